"""Upper bounds for a group whose records pick bins at random, in both directions.

*With against without.* If the numbers in different bins were independent with weights w_n, the
likelihood would change by the product R of the bins' own ratios, and given the transcript the group
would have N = sum N_t records with independent N_t. So S = R P[N = size] / beta, and the
probability is bounded through its characteristic function, as for random allocation
(docs/allocation.md, theorem 3).

*Either way.* The attacker knows into how many bins the records fell, and how many into each, but
not which: if the parts are l_1, l_2, ..., part i is in a bin of its own block of bins
(docs/allocation.md, theorem 4). That is for "without against with", for low noise and for large
deltas.

Both come as tables of one epoch, to be composed with other epochs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import numpy as np
from scipy import special

from verax.privacy.curves.random_subset import angles, shares_of_nodes
from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8, OPS_8G, OPS_8M, OPS_8000, down, ulps, up
from verax.privacy.pairs.base import Cells
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.mixture_weights import distinct_groups
from verax.privacy.pairs.one_of_many import LARGEST_SHIFT, dominating_one_of_many
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pairs.shared_bins import SharedBins
from verax.privacy.pairs.sharing import records_per_round, remaining_probability, sharings
from verax.privacy.pairs.some_of_many import tilt_for
from verax.privacy.pld import discretise
from verax.privacy.pld.composition import Composition
from verax.privacy.pld.convolve import convolve, infinite_mass
from verax.privacy.pld.discretise import DiscretePld, Spacing

_MOST_SHARING = 512  # records up to which the bound by independent numbers is worth its time
_RARE_COUNT = 1e-25  # chance of a bin with more records, beyond which a loss is taken for infinite
_MOST_APART = 8  # differences of numbers in one bin that sharpen the bound
_FAINT = -160.0  # log of a mass that may as well be at infinity
_KIND_TAIL = 1e-11  # probability of numbers of used bins that are taken for the worst
_LEANS = (1.0, 0.87)  # of the weights' rho that are tried
# and for a single epoch of so few records, in a phase or two: their tail is further out
_FAR_OUT, _FEW, _FEW_PHASES = (0.7,), 8, 2
_TYPICAL_DELTA = 1e-6  # at which the better one is taken; either is valid
_LARGEST_UNIT = 3.5  # shift of one record beyond which cells and factors grow too many
_LINE_STEP = 0.01  # width of cells on the line, in standard deviations of the noise
_FAR = 12.5  # standard deviations beyond which nothing is told apart
_GRID = 0.12  # step of the losses' grid, in standard deviations of one bin's loss
_COARSER = 0.5  # of the root of the number of bins, how much coarser an epoch's grid is
_BLOCK_FINE = 0.1  # grid of block averages
_RARE = (0.0, 20.0)  # how rare are the losses, as -log probability, that tilts make common
_SELDOM = 1e-3  # chance of a kind of sharing that need not be known as well
# mass of one bin's loss, on either side, that may be moved to the end of the grid or to infinity
_CUT = 1e-24
_ALIAS = 1e-16


Part = tuple[float, Array, float, float]
"""The first loss on a grid, log masses of P from there on, P-mass at infinity, and how far losses
may be off.
"""


def group_bounds(
    group: SharedBins, epochs: int, coarser: float = 1.0, phases: int = 1
) -> tuple[MixturePair | DiscretePair, MixturePair | DiscretePair, MixturePair | DiscretePair]:
    """What dominates an epoch with the group: for small deltas, for large ones, and backwards.

    Where groups or shifts are large, the attacker knows where the records are. The grids of one
    of many phases may be ``coarser`` than usual; which bound is best is asked of all together.
    """
    told = MixturePair.gaussian(group.reach)
    together = epochs if phases <= _FEW_PHASES else epochs * phases
    leans = (*_LEANS, *_FAR_OUT) if together == 1 and group.size <= _FEW else _LEANS
    worth = group.unit <= _LARGEST_UNIT and group.size <= _MOST_SHARING and group.times == 1
    forth = [_or_none(partial(presence_pair, group, lean)) for lean in leans if worth]
    near = _or_none(partial(known_sharing_pair, group, False, coarser))
    tables = [table for table in (*forth, near) if table is not None]
    costs = [
        Composition([(PricedRound(table), together)]).estimate(_TYPICAL_DELTA) for table in tables
    ]
    best = tables[int(np.argmin(costs))] if tables else told
    return best, near or told, _or_none(partial(known_sharing_pair, group, True, coarser)) or told


def _or_none(bound: Callable[[], DiscretePair]) -> DiscretePair | None:
    """The bound, or None where its grids grow too large."""
    try:
        return bound()
    except (FloatingPointError, MemoryError):
        return None


# --- with the group against without ---------------------------------------------------------------


@lru_cache(maxsize=64)
def presence_pair(group: SharedBins, lean: float) -> DiscretePair:
    """A table that dominates one epoch; any ``lean``, the scale of rho = size / bins, is valid."""
    rho = lean * group.size / group.bins
    log_weights, log_z = group.log_weights(rho, group.size)
    pair = group.pair(log_weights)
    top = float(group.shifts(group.size)[group.likely(_RARE_COUNT)]) + group.unit + _FAR
    x = np.arange(-_FAR, top, _LINE_STEP / max(group.unit, 1.0))
    posterior = _posterior(group, log_weights, x)
    cells = pair.cells(np.concatenate([[-np.inf], x, [np.inf]]))
    p = np.exp(cells.log_p)
    held = np.arange(len(posterior))
    spread = held**2 @ posterior - (held @ posterior) ** 2
    variance = group.bins * float(p[1:] @ spread) / float(p.sum())
    weights, nodes = angles(variance)
    shares = shares_of_nodes(weights, nodes, variance)
    scales = np.log(weights) - group.log_beta(rho, log_z) - np.log(shares) + 2.0 * OPS_8M
    log_ratio = np.concatenate([[float(log_weights[0])], pair.loss(x)])
    step, parts = 0.0, []
    tilts: list[float] = []
    for node, exponent in zip(nodes.tolist(), _exponents(posterior, nodes), strict=True):
        table = _bin_factor(cells, log_ratio, node * exponent)
        step = step or _GRID * _spread(table)
        rounds = [(_discretise_upper(table, step), group.bins)]
        tilts = tilts or _tilts(rounds)
        parts.append(_epoch_part(rounds, step, tilts))
    return _mixture_of_parts(
        list(zip(np.log(shares).tolist(), scales.tolist(), parts, strict=True)), step, group.bins
    )


def _posterior(group: SharedBins, log_weights: Array, x: Array) -> Array:
    """Given x, the probabilities that the bin holds 0, 1, ... records, if bins were independent."""
    shifts = group.shifts(len(log_weights) - 1)[:, None]
    return np.asarray(
        special.softmax(log_weights[:, None] + shifts * x - shifts * shifts / 2.0, axis=0)
    )


def _exponents(posterior: Array, nodes: Array) -> Iterator[Array]:
    """For every node s a v(x) with |E e^(i phi N)| <= e^(-(1 - cos phi) v) up to the next angle.

    |E e^(i phi N)|^2 = 1 - 2 sum_m v_m (1 - cos m phi) with v_m = sum_n p_n p_(n+m), and the ratio
    of 1 - cos m phi to 1 - cos phi falls up to the angle 2 pi / m. Beyond a right angle only m = 1
    counts.
    """
    most = min(len(posterior) - 1, _MOST_APART)
    products = [(posterior[:-m] * posterior[m:]).sum(axis=0) for m in range(1, most + 1)]
    half = np.arcsin(np.sqrt(0.5 * np.minimum(nodes, 1.0)))
    for end in half[1:].tolist():
        factors = [
            (math.sin(m * end) / math.sin(end)) ** 2 if m * end < math.pi else 0.0
            for m in range(1, most + 1)
        ]
        yield np.asarray(
            down(1.0, OPS_8M) * sum(f * v for f, v in zip(factors, products, strict=True))
        )
    yield np.asarray(down(products[0], OPS_8M))


def _bin_factor(cells: Cells, log_ratio: Array, exponent: Array) -> DiscretePair:
    """One bin's factor R(x) exp(-exponent(x)) under Q, rounded up to two values in every cell.

    On a cell from x to x' every p_n is at least r = R(x) / R(x') times what it is at x, and at most
    1 / r times what it is at x', because p_n R rises; so the exponent is between r^2 and r^-2 times
    its values there. The mean of R is known. What lies beyond the last cell is at infinity.
    """
    gain = np.diff(log_ratio)
    least = np.concatenate([[0.0], exponent[:-1]]) * np.exp(-2.0 * gain)
    most = exponent * np.exp(2.0 * gain)
    error = 2.0 * float(cells.error[:-1].max()) + OPS_8000
    low = log_ratio[:-1] - most - error
    high = log_ratio[1:] - least + error
    mean = np.minimum(cells.loss[:-1] + error - least, high)
    # (e^mean - e^low) / (e^high - e^low)
    share = np.exp(mean - high) * np.expm1(low - mean) / np.expm1(low - high)
    share = np.clip(share, 0.0, 1.0)
    log_q = np.tile(cells.log_p[:-1] - cells.loss[:-1], 2)
    weight, place = np.concatenate([share, 1.0 - share]), np.concatenate([high, low])
    kept = weight > 0.0
    log_q = log_q[kept] + np.log(weight[kept])
    infinite = up(math.exp(float(cells.log_p[-1])), OPS_8G)
    return DiscretePair.from_log_masses(log_q + place[kept], log_q, infinite, error=2.0 * error)


# --- told how many share bins ---------------------------------------------------------------------


@lru_cache(maxsize=64)
def known_sharing_pair(group: SharedBins, backwards: bool, coarser: float = 1.0) -> DiscretePair:
    """A table that dominates one epoch with the group against without it, or ``backwards``."""
    usual = _block(group.bins // min(group.size * group.times, group.bins), group.unit, _BLOCK_FINE)
    step = _GRID * _spread(usual) if isinstance(usual, DiscretePair) else _GRID * group.unit
    pmfs: dict[tuple[int, int], DiscretePld] = {}
    kinds, left = _kinds(group)
    mixed = []
    tilts: list[float] = []
    for chance, held_by_bins in kinds:
        size, longer = divmod(group.bins, len(held_by_bins))
        longer = longer if chance > _SELDOM else 0  # smaller blocks show more
        blocks = Counter((size + (rank < longer), held) for rank, held in enumerate(held_by_bins))
        for kind in blocks:
            if kind not in pmfs:
                fine = min(_BLOCK_FINE * kind[1] * coarser, 0.4)  # the rarer, the coarser
                block = _block(kind[0], group.unit * kind[1], fine)
                pmfs[kind] = _discretise_upper(block.reverse() if backwards else block, step)
        rounds = [(pmfs[kind], count) for kind, count in blocks.items()]
        tilts = tilts or _tilts(rounds)
        part = _epoch_part(rounds, step, tilts if chance > _SELDOM else tilts[:1])
        mixed.append((math.log(chance) + OPS_8000, 0.0, part))
    worst = _epoch_part(
        [(_discretise_upper(MixturePair.gaussian(group.reach), step), 1)], step, tilts[:1]
    )
    mixed.append((math.log(left + OPS_8), 0.0, worst))
    return _mixture_of_parts(mixed, step, min(group.size * group.times, group.bins))


def _block(size: int, shift: float, fine: float) -> MixturePair | DiscretePair:
    """One bin of ``size`` shifted against none; where factors grow too large, it is known which."""
    if size == 1 or shift > LARGEST_SHIFT:
        return MixturePair.gaussian(shift)
    return dominating_one_of_many(size, shift, fine)


_Kinds = list[tuple[float, tuple[int, ...]]]


def _kinds(group: SharedBins) -> tuple[_Kinds, float]:
    """Ways of sharing bins with their probabilities, and the probability of any other way."""
    if not group.adds_up and group.times == 1:
        least = _KIND_TAIL / group.size
        bins_used = distinct_groups(group.size, 1.0, group.bins)
        kinds = [(p, (1,) * used) for used, p in enumerate(bins_used.tolist()) if p > least]
        return kinds, remaining_probability(chance for chance, _ in kinds)
    found, left = sharings(group.size, group.times, group.bins)
    if not group.adds_up:
        return [(chance, (1,) * sharing[0]) for chance, sharing in found], left
    return [(chance, records_per_round(sharing)) for chance, sharing in found], left


# --- from one bin to an epoch ---------------------------------------------------------------------


def _spread(table: DiscretePair) -> float:
    """The standard deviation of the loss, to choose a grid by; it never enters a bound."""
    p = table.p / table.p.sum()
    return max(math.sqrt(float(p @ (table.loss_values - p @ table.loss_values) ** 2)), 1e-9)


def _discretise_upper(pair: MixturePair | DiscretePair, step: float) -> DiscretePld:
    """Connected dots, as far as mass goes that could matter."""
    if isinstance(pair, DiscretePair):
        below, above = np.cumsum(pair.p), np.cumsum(pair.p[::-1])[::-1]
        some = np.flatnonzero((below > _CUT) & (above > _CUT))
        low, high = (float(pair.loss_values[some[end]]) for end in (0, -1))
        return discretise.upper(pair, Spacing(step, low, high, max(_spread(pair), step)))
    low, high = pair.loss(np.array([-_FAR, float(pair.max_shift) + _FAR])).tolist()
    return discretise.upper(pair, Spacing(step, low, high, max(0.1 * (high - low), step)))


def _tilts(rounds: list[tuple[DiscretePld, int]]) -> list[float]:
    """Tilts that make rare sums of losses common; the first is 0. Any are valid."""
    return [tilt_for(rounds, 1.0, rare) for rare in _RARE]


def _epoch_part(rounds: list[tuple[DiscretePld, int]], step: float, tilts: list[float]) -> Part:
    """Sums of losses: log masses that are nowhere too small, from the tilts that know them best."""
    views = [(0.0, convolve(rounds, 0.0, _ALIAS))]
    for tilt in tilts[1:]:
        try:
            views.append((tilt, convolve(rounds, tilt, _ALIAS)))
        except (FloatingPointError, MemoryError):
            continue  # only less is known of the tail
    first = min(view.first for _, view in views)
    last = max(view.first + len(view.pmf) for _, view in views)
    base = views[0][1].base
    losses = base + step * np.arange(first, last + 1)
    logs, beyond = np.full(last + 1 - first, np.inf), math.inf
    for tilt, view in views:
        here = np.full(len(logs), math.log(_ALIAS))
        inside = slice(view.first - first, view.first - first + len(view.pmf))
        here[inside] = np.log(np.maximum(view.pmf, 0.0) + view.bin_error)
        here += view.log_scale - tilt * losses
        logs = np.minimum(
            logs, here + ulps(16.0, of=4.0 + abs(view.log_scale) + np.abs(tilt * losses))
        )
        beyond = min(beyond, float(logs[-1]))
    # what lies further left, moved up
    logs[0] = np.logaddexp(logs[0], math.log(_ALIAS) + views[0][1].log_scale)
    off = math.fsum([count * pmf.shift for pmf, count in rounds])
    return float(losses[0]), logs, infinite_mass(rounds) + math.exp(min(beyond, 0.0)), off


def _mixture_of_parts(
    parts: list[tuple[float, float, Part]], step: float, rounds: int
) -> DiscretePair:
    """Measures with shares of Q and factors, both as logarithms, on one coarser grid."""
    logs, losses, infinite, off = [], [], 0.0, 0.0
    for log_share, scale, (start, masses, beyond, error) in parts:
        logs.append(masses + log_share + scale)
        losses.append(start + scale + step * np.arange(len(masses)))
        infinite += math.exp(log_share + scale) * beyond
        off = max(off, error)
    log_p, loss_values = np.concatenate(logs), np.concatenate(losses)
    faint = log_p < _FAINT
    infinite += up(float(np.exp(log_p[faint]).sum()), OPS_8G)
    table = DiscretePair.from_log_masses(
        log_p[~faint], log_p[~faint] - loss_values[~faint], infinite, error=off
    )
    low, high = float(table.loss_values[0]), float(table.loss_values[-1])
    found = discretise.upper(
        table, Spacing(max(_COARSER * math.sqrt(rounds), 1.0) * step, low, high)
    )
    some = found.log_mass > -np.inf
    log_p, loss_values = found.log_mass[some], found.losses[some]
    return DiscretePair.from_log_masses(
        log_p, log_p - loss_values, found.infinite, error=found.shift + OPS_8000
    )
