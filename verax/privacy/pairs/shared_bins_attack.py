"""The lower bound for groups under balls-in-bins: what an attacker sees in the bins' scores.

All records of the group have the same gradient. The attacker adds up scores log(sum_n w_n exp(s_n x
- s_n^2 / 2)), one for each bin, which would be the privacy loss if the numbers in different bins
were independent. Without the group that is a sum of independent scores. With it, it does not matter
which bins hold how many: the transform of the sum's pmf is a coefficient of a power,

    (size! / T^size) [y^size] (sum_n y^n phi_n / n!)^T,    phi_n the transform of the score of a bin
    that holds n,

and the coefficient is an average over a circle in the y-plane. Everything is done under several
tilts, so that both tails keep their digits. Proof and errors: docs/allocation.md, theorem 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import root
from verax.privacy.numerics.rounding import transform_error, ulps
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair, log_interval
from verax.privacy.pairs.shared_bins import SharedBins
from verax.privacy.pairs.some_of_many import (
    ALIAS,
    TiltedView,
    binned_pair,
    means_when_tilted,
    merge_views,
    pmf_of_sum,
    standard_deviation,
    tilt_to,
)
from verax.privacy.pld.convolve import MAX_POINTS, sum_window
from verax.privacy.pld.discretise import DiscretePld

ALL_COUNTED = 48
"""Records up to which every number in a bin counts. Beyond it the pmf with the group is a part of
the true one only, and the attack is valid in the direction "with against without"."""
_LEAN = 0.8  # of the scores' rho; all are valid, and differ little
_LARGEST_UNIT = 12.0
_LARGEST = 10**8  # records times bins
_RARE = (0.0, 20.0)  # how rare are the sums, as -log probability, that tilts make common
_FINE = 0.15  # grid step, in standard deviations of one bin's score
_MOST_CELLS = 2**13
_FAR = 8.0  # standard deviations of one bin's noise beyond which scores are not told apart
_RARE_COUNT = 1e-15  # chance of a bin with more records than are looked at
_DEAD = 1e-26  # modulus of a frequency that is left out
_MOST_WORK = 2**27  # nodes times frequencies; more is refused


def group_attack(group: SharedBins, coarser: float = 1.0) -> MixturePair | DiscretePair:
    """What an attacker sees of one epoch; the sum of all outputs where scores are too far apart.

    The sum is shifted by size * unit if shifts add up, by a unit at least if not. Grids may be
    ``coarser`` than usual, for one of many phases: then rare sums matter less, too.
    """
    if group.unit <= _LARGEST_UNIT and group.size * group.bins <= _LARGEST:
        rare = _RARE if coarser == 1.0 else _RARE[:1]
        return shared_bins_attack(group, _LEAN, _FINE * coarser, rare)
    return MixturePair.gaussian(
        group.unit * (group.size if group.adds_up else 1.0) / math.sqrt(group.bins)
    )


@lru_cache(maxsize=64)
def shared_bins_attack(
    group: SharedBins, lean: float, fine: float = _FINE, rare: tuple[float, ...] = _RARE
) -> DiscretePair:
    """The binned sum of scores with the group against without it.

    ``lean`` scales rho = size / bins of the scores.

    >>> table = shared_bins_attack(SharedBins(4, 100, 1.0, adds_up=True), lean=0.7)
    >>> bool(table.delta(2.7)[0] > 1e-5)  # one record alone: epsilon .62
    True
    """
    pmfs = _scores(group, lean, fine)
    plain = [(pmfs[0], group.bins)]
    mixed = [(_independent_score(group, pmfs), group.bins)]
    means = [mean for pmf in (mixed, plain) for mean in means_when_tilted(pmf, rare)]
    views = []
    for mean in means:
        try:
            views.append(_sum_with_group(group, pmfs, tilt_to(mixed, mean)))
        except (FloatingPointError, MemoryError):
            continue
    with_group, without = merge_views(views), pmf_of_sum(plain, means)
    spread = standard_deviation(pmfs[0], group.bins)
    return binned_pair(with_group, without, pmfs[0].step, spread, group.bins)


def _scores(group: SharedBins, lean: float, fine: float) -> list[DiscretePld]:
    """The score of a bin on a grid, if it holds 0, 1, ... records of the group.

    In groups too large for that, bins with more records than are ever likely are left out.
    """
    likely = min(group.likely(_RARE_COUNT) + 1, group.size)
    most = group.size if group.size <= ALL_COUNTED else likely
    log_weights, _ = group.log_weights(lean * group.size / group.bins, most)
    pair, shifts = group.pair(log_weights), group.shifts(most)
    x = np.linspace(-9.0, 9.0, 2001)
    weight = np.exp(-x * x / 2.0)
    values = pair.loss(x)
    mean = float(weight @ values) / float(weight.sum())
    spread = math.sqrt(float(weight @ (values - mean) ** 2) / float(weight.sum()))
    bottom, top = pair.loss(np.array([-_FAR, float(shifts[likely]) + _FAR])).tolist()
    step = max(fine * spread, (top - bottom) / _MOST_CELLS)
    grid = step * np.arange(math.floor(bottom / step), math.ceil(top / step) + 1)
    inner = pair.inverse(np.asarray(grid[1:] - step / 2.0, dtype=np.float64))
    between = np.concatenate([[-np.inf], np.maximum.accumulate(inner), [np.inf]])
    index = np.arange(len(grid), dtype=np.int64)
    return [
        DiscretePld(float(grid[0]), step, index, log_interval(between - shift)[0], 0.0, 0.0)
        for shift in shifts.tolist()
    ]


def _independent_score(group: SharedBins, pmfs: list[DiscretePld]) -> DiscretePld:
    """One bin's score if the numbers in different bins were independent; to choose tilts by."""
    log_weights, _ = group.log_weights(group.size / group.bins, len(pmfs) - 1)
    logs = special.logsumexp(
        np.stack([pmf.log_mass for pmf in pmfs]) + log_weights[:, None], axis=0
    )
    return DiscretePld(pmfs[0].start, pmfs[0].step, pmfs[0].index, np.asarray(logs), 0.0, 0.0)


@dataclass(frozen=True)
class _TiltedScores:
    """Tilted scores of bins by the number they hold, of mass 1, and weights that add up to 1."""

    pmfs: Array
    weights: Array
    log_scale: float

    @property
    def mixed(self) -> Array:
        """One bin's score if the numbers in different bins were independent."""
        return np.asarray(self.weights @ self.pmfs)


def _tilt_scores(group: SharedBins, pmfs: list[DiscretePld], tilt: float) -> _TiltedScores:
    """The scores tilted, with rho such that bins hold ``size`` records on average.

    Then the coefficient is not small.
    """
    logs = np.stack([pmf.log_mass for pmf in pmfs]) + tilt * pmfs[0].losses
    log_norms = np.asarray(special.logsumexp(logs, axis=1))
    held = np.arange(len(pmfs))
    log_terms = log_norms - special.gammaln(held + 1.0)

    def excess(log_rho: float) -> float:
        return float(special.softmax(log_terms + held * log_rho) @ held) - group.size / group.bins

    low = high = math.log(group.size / group.bins)
    while excess(low) > 0.0:
        low -= 4.0
    while excess(high) < 0.0 and high < 400.0:
        high += 4.0
    log_rho = root(excess, low, high, xtol=1e-6) if low < high else low
    terms = log_terms + held * log_rho
    log_z = float(special.logsumexp(terms))
    log_scale = (
        math.lgamma(group.size + 1.0)
        - group.size * (math.log(group.bins) + log_rho)
        + group.bins * log_z
    )
    return _TiltedScores(np.exp(logs - log_norms[:, None]), np.exp(terms - log_z), log_scale)


def _sum_with_group(group: SharedBins, pmfs: list[DiscretePld], tilt: float) -> TiltedView:
    """First index, log masses and relative errors of the sum with the group, from one tilt."""
    found = _tilt_scores(group, pmfs, tilt)
    index, step = pmfs[0].index, pmfs[0].step
    low, high = sum_window(index, found.mixed, group.bins, ALIAS)
    points = fft.next_fast_len(high - low + 1, real=True)
    nodes, beyond = _nodes(group, found.weights)
    if points > MAX_POINTS or points * nodes > _MOST_WORK:
        raise MemoryError(
            f"a group of {group.size} in {group.bins} bins is too large to be followed exactly"
        )
    centre = int(index[np.argmax(found.mixed)])
    place = (index - centre) % points
    circles = np.zeros((len(pmfs), points))
    np.add.at(circles.T, place, found.pmfs.T)
    transforms = fft.rfft(circles, axis=1)
    error = ulps(
        32.0
        + 8.0 * math.log2(points)
        + 8.0 * (abs(tilt) * float(np.abs(pmfs[0].losses).max()) + 40.0)
    )
    spectrum, wrong = _coefficient(group, found.weights, transforms, nodes, error)
    pmf = np.roll(fft.irfft(spectrum, points), (group.bins * centre - low) % points)
    off = 2.0 / points * wrong + ALIAS * 2.0 + beyond
    sums = group.bins * pmfs[0].start + step * (low + np.arange(points))
    known = pmf > 2.0 * off
    logs = np.log(pmf, out=np.full(points, -np.inf), where=known) + found.log_scale - tilt * sums
    share = np.divide(2.0 * off, pmf, out=np.full(points, np.inf), where=known)
    size = (
        1.0 + abs(found.log_scale) + group.size * math.log(group.size + 2.0) + np.abs(tilt * sums)
    )
    return low, logs, share + ulps(64.0, of=size + group.bins)


def _nodes(group: SharedBins, weights: Array) -> tuple[int, float]:
    """The number of nodes on the circle, and the mass that they take for the coefficient."""
    nodes, held = group.size + 1, np.arange(len(weights))
    while True:
        rates = np.array([0.25, 0.5, 1.0, 2.0])
        bounds = group.bins * np.log(np.exp(np.outer(rates, held)) @ weights) - rates * (
            group.size + nodes
        )
        beyond = math.exp(min(float(bounds.min()), 0.0))
        if beyond < ALIAS or nodes > 2 * group.size + 10_000:
            return nodes, beyond
        nodes += group.size // 2 + 8


def _coefficient(
    group: SharedBins, weights: Array, transforms: NDArray[np.complex128], nodes: int, error: float
) -> tuple[NDArray[np.complex128], float]:
    """[y^size] (sum_n w_n y^n phi_n)^T at all frequencies, and a bound on the sum of its errors."""
    angles = 2.0 * math.pi * np.arange(nodes) / nodes
    held = np.arange(len(weights))
    powers = np.exp(1j * np.outer(angles, held)) * weights
    phases = np.exp(-2j * math.pi * (np.arange(nodes) * group.size % nodes) / nodes) / nodes
    spectrum = np.zeros(transforms.shape[1], dtype=np.complex128)
    wrong = 0.0
    most = weights @ np.abs(transforms)
    alive = np.flatnonzero(group.bins * np.log(np.minimum(most + error, 1.0)) > math.log(_DEAD))
    wrong += _DEAD * math.exp(min(group.bins * error, 50.0)) * (len(most) - len(alive))
    for part in np.array_split(alive, max(len(alive) * nodes // 2**20, 1)):
        base = powers @ transforms[:, part]
        raised = _power(base, group.bins)
        spectrum[part] = phases @ raised
        sizes = np.minimum(np.abs(base) + error, 1.0 + error) ** (group.bins - 1)
        relative = ulps(8.0, of=2.0 + group.bins)
        wrong += float((group.bins * error * sizes + relative * np.abs(raised)).mean(axis=0).sum())
    return spectrum, wrong + transform_error(transforms.shape[1] + 2) * float(
        np.abs(spectrum).sum()
    )


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base ** exponent by squaring, within a relative error of 3 u * exponent.

    What falls below the range of doubles on the way is 0.
    """
    power = np.ones_like(base)
    for bit in bin(exponent)[2:]:
        power *= power
        if bit == "1":
            power *= base
    return power
