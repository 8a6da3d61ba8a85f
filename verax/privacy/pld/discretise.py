"""Discretised privacy-loss distributions of one round: a certified upper and a certified lower one.

Both live on points of a grid ``anchor + i * step`` and carry the masses of P (those of Q follow: q
= p e^{-loss}). In terms of the hockey-stick curve a -> D_a(P||Q), which is convex, the upper one
replaces the curve by its chords between grid points ("connect the dots", Doroshenko et al. 2022),
the lower one by tangents between them; both err by the square of the spacing. Points are adjacent
where most of the mass is and further apart in the tails. Statements and proofs: docs/proofs.md,
section 2. Masses are kept as logarithms, so that tilting by e^{t loss} costs no accuracy however
small the probabilities are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import root
from verax.privacy.numerics.rounding import ulps
from verax.privacy.pairs.base import DominatingPair
from verax.privacy.pairs.gaussian_mixture import MixturePair

# how far a first cell reaches beyond its grid point, in steps: over half, as the density falls
# there
_REACH = 0.65
_ROUNDED = 1e-9  # a miss this small, in grid steps, is charged as a shift of the losses
_STEEPEST = 600.0  # miss of a cell's loss beyond which less is taken, which keeps less of its mass
_WIDE = 0.05  # a cell whose loss is not the mean of its losses
_NEGLIGIBLE = 1e-13  # P-mass, or loss, that a round may give up for a better shape
_MOST_POINTS = 2**40
_MOST_EVEN = 2**25  # points next to each other
_LOOKS = 300_000  # points looked at in search of neighbours
# negative masses repaired one by one at most; more means that the grid is too coarse
_STEEP_LIMIT = 2000


@dataclass(frozen=True)
class Spacing:
    """Which grid points carry mass: those in [low, high], ``step`` apart near the bulk of the pmf.

    Beyond twice ``scale`` from the bulk the points are half the distance divided by ``scale`` steps
    apart.
    """

    step: float
    low: float
    high: float
    scale: float = np.inf


@dataclass(frozen=True)
class DiscretePld:
    """Masses exp(log_mass[i]) of P at loss ``start + index[i] * step``; ``infinite`` at infinity.

    ``shift`` bounds how far the grid itself may be off through rounding: an upper bound must be
    read that much to the left, a lower bound that much to the right, per round.
    """

    start: float
    step: float
    index: NDArray[np.int64]
    log_mass: Array
    infinite: float
    shift: float

    @property
    def losses(self) -> Array:
        """The points."""
        return np.asarray(self.start + self.step * self.index)


def origin(pair: DominatingPair, step: float) -> float:
    """A grid point at the exact mean of the first cell of the pmf's range, or of its last cell.

    With a tiny sampling rate nearly all the mass sits in that cell, within far less than one step;
    a grid point at its mean makes both discretisations leave it (almost) where it is. Any other
    origin would be as valid.
    """
    return _origin(pair, step) if isinstance(pair, MixturePair) else pair.bulk


@lru_cache(maxsize=1024)
def _origin(pair: MixturePair, step: float) -> float:
    if np.isfinite(pair.supremum):
        return -_origin(pair.reverse(), step)
    if not np.isfinite(pair.infimum):
        return pair.bulk

    def excess(x: float) -> float:
        """Mean loss of everything left of x, minus what lies most of a step below the loss at x."""
        return pair.mean_loss_below(x) - (float(pair.loss(np.array([x]))[0]) - _REACH * step)

    ends = pair.inverse(pair.infimum + step * np.array([_REACH + 1e-9, _REACH + 1.0]))
    if not np.isfinite(ends).all() or not excess(float(ends[1])) < 0.0 < excess(float(ends[0])):
        return pair.bulk
    return pair.mean_loss_below(root(excess, float(ends[0]), float(ends[1]), xtol=1e-3))


def _points(
    base: float, spacing: Spacing, least: float = -np.inf, most: float = np.inf
) -> tuple[float, NDArray[np.int64]]:
    """The first grid point in [low, high] and [least, most], and indices of those with mass."""
    step = spacing.step
    first = int(max(np.floor((spacing.low - base) / step), np.ceil((least - base) / step)))
    last = int(
        max(min(np.ceil((spacing.high - base) / step), np.floor((most - base) / step)), first)
    )
    if last - first > _MOST_POINTS:
        raise MemoryError(
            f"a grid of {last - first} points is more than {_MOST_POINTS}; ask for a larger rtol"
        )
    ratio = 0.5 * step / max(spacing.scale, 1e-3 * step)
    sides = [_ticks(end, ratio) for end in (last, -first)]
    index = np.clip(np.concatenate([-sides[1][::-1], sides[0]]), first, last)  # ascending
    index = index[np.append(True, np.diff(index) > 0)]
    return float(base + first * step), index - first


def _ticks(end: int, ratio: float) -> NDArray[np.int64]:
    """Integers from 0 to ``end``: all of them at first, then growing by this ratio."""
    even = min(int(min(2.0 / ratio, 2.0**40)) + 1, end) if ratio > 0.0 else end
    if even > _MOST_EVEN:
        raise MemoryError(
            f"a grid of {even} points is more than {_MOST_EVEN}; ask for a larger rtol"
        )
    if even >= end:
        return np.arange(max(end, 0) + 1)
    more = int(np.log(end / even) / np.log1p(ratio)) + 1
    wide = np.minimum(even * np.exp(np.log1p(ratio) * np.arange(1, more + 1)), float(end))
    return np.concatenate([np.arange(even + 1), wide.astype(np.int64), [end]])


def upper(pair: DominatingPair, spacing: Spacing, base: float | None = None) -> DiscretePld:
    """Connect the dots: dominates the pair.

    Masses and losses are first raised by their error bounds. Mass left of the grid moves up to the
    first point, the part of the mass right of it that no finite point can carry moves to +infinity.
    Inside, each cell's mass is split between the cell's two ends so that both its P- and its Q-mass
    are kept.
    """
    step = spacing.step
    start, index = _points(origin(pair, step) if base is None else base, spacing)
    grid: Array = start + step * index.astype(np.float64)
    boundaries, residual = pair.boundaries_at(grid)
    cells = pair.cells(np.concatenate([[-np.inf], boundaries, [np.inf]]))
    log_p = cells.log_p + 2.0 * cells.error
    width = np.diff(grid)
    rise = np.clip(cells.loss[1:-1] + 2.0 * cells.error[1:-1] - grid[:-1], 0.0, width)
    with np.errstate(divide="ignore"):
        log_whole = np.log(-np.expm1(-width))
        log_up = np.log(-np.expm1(-rise)) - log_whole
        log_down = np.log(-np.expm1(rise - width)) - rise - log_whole
        log_mass = np.full(len(grid), -np.inf)
        log_mass[:-1] = log_p[1:-1] + log_down
        log_mass[1:] = np.logaddexp(log_mass[1:], log_p[1:-1] + log_up)
        log_mass[0] = np.logaddexp(log_mass[0], log_p[0])
        rest = max(float(cells.loss[-1] + 2.0 * cells.error[-1] - grid[-1]), 0.0)
        log_mass[-1] = np.logaddexp(log_mass[-1], log_p[-1] - rest)
    infinite = pair.infinite + (
        float(np.exp(log_p[-1]) * -np.expm1(-rest)) if np.isfinite(log_p[-1]) else 0.0
    )
    return DiscretePld(
        start, step, index, log_mass, infinite, residual + ulps(4.0, of=float(np.abs(grid).max()))
    )


def upper_symmetric(pair: MixturePair, spacing: Spacing) -> DiscretePld:
    """Dominates a subsampled Gaussian pair and its reverse: the larger of both curves at every a.

    The pair itself has the larger curve for a >= 1 (docs/proofs.md, theorem 3); the curve for a < 1
    follows by symmetry, as mass p e^{-x} at -x for every mass p at x > 0.
    """
    high = max(spacing.high, -spacing.low)
    forward = upper(pair, Spacing(spacing.step, 0.0, high, spacing.scale), base=0.0)
    right = forward.log_mass[1:]
    left = (right - forward.losses[1:])[::-1]
    centre = 1.0 - forward.infinite - float(np.exp(right).sum() + np.exp(left).sum())
    log_mass = np.concatenate([left, [np.log(max(centre, 0.0) + ulps(4.0))], right])
    index = np.concatenate([-forward.index[:0:-1], forward.index])
    start = float(index[0] * spacing.step)
    return DiscretePld(
        start, spacing.step, index - index[0], log_mass, forward.infinite, forward.shift
    )


def lower(pair: DominatingPair, spacing: Spacing) -> DiscretePld:
    """Tangents between grid points, bent so that they meet on the grid: dominated by the pair.

    Masses and losses are first lowered by their error bounds. The cell around each point is merged
    into one atom (a test that does not look inside the cell). Its loss misses the point by
    ``rise``; the curve is lowered at that point to the smaller of its two tangents, which moves the
    miss to the neighbours with the opposite sign and keeps the total mass. What lies left of the
    grid is dropped.
    """
    step = spacing.step
    # no grid point but the origin so close to an end that its cell could not be balanced
    edge = 0.25 * step
    base = origin(pair, step)
    least, most = min(pair.infimum + edge, base), max(pair.supremum - edge, base)
    start, index = _points(base, spacing, least, most)
    grid: Array = start + step * index.astype(np.float64)
    boundaries = _cell_boundaries(pair, grid, step)
    # the last cell takes the whole tail, of which it keeps what its grid point can carry
    boundaries[-1] = np.inf
    if grid[0] - pair.infimum < 1.5 * step:
        boundaries[0] = -np.inf
    _balance_ends(pair, grid, boundaries, step)
    cells = pair.cells(np.maximum.accumulate(boundaries))
    filled = np.isfinite(cells.log_p) & np.isfinite(cells.loss)
    with np.errstate(invalid="ignore"):  # of cells that are not filled
        rise = np.where(filled, cells.loss - 2.0 * cells.error - grid, 0.0)
        # the P-mass that the cell's Q-mass would have at the point
        log_q = np.where(filled, cells.log_p - cells.error - rise, -np.inf)
    scale = float(log_q.max())
    if np.isneginf(scale):
        raise FloatingPointError("grid too coarse for a lower bound")
    mass, slack = _meet_on_grid(np.exp(log_q - scale), rise, cells.error, grid, step)
    with np.errstate(divide="ignore"):
        log_mass = scale + np.log(mass)
    return DiscretePld(
        start, step, index, log_mass, 0.0, slack + ulps(4.0, of=float(np.abs(grid).max()))
    )


def _cell_boundaries(pair: DominatingPair, grid: Array, step: float) -> Array:
    """Cell ends between grid points such that each cell's mean loss is near its grid point.

    Halfway where the density is flat, nearer to the next grid point where it falls steeply: the
    mean of an exponential pmf of slope rho on a unit interval lies at 1/rho - 1/(e^rho - 1). The
    slope is taken a little too steep, so that what a cell misses is paid for by the larger of its
    neighbours.

    In a cell whose width w is not small, the loss log P/Q is -log E e^{-loss}, nearer to its lower
    end: there it is log m(rho) - log m(rho + w) above that end, with m(x) = (1 - e^{-x}) / x.
    """
    at = pair.inverse(grid)
    gaps = np.diff(grid)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        log_density = pair.log_loss_density(at)
        drop = np.clip(1.5 * (log_density[:-1] - log_density[1:]), -500.0, 500.0)
        offset = np.where(np.abs(drop) > 1e-3, 1.0 / drop - 1.0 / np.expm1(drop), 0.5 - drop / 12.0)
        wide = gaps > _WIDE
        offset[wide] = (_log_mean(drop[wide]) - _log_mean(drop[wide] + gaps[wide])) / gaps[wide]
    offset[~np.isfinite(offset)] = 0.5
    between = grid[1:] - offset * gaps
    return pair.inverse(np.concatenate([[grid[0] - step / 2.0], between, [grid[-1] + step / 2.0]]))


def _log_mean(x: Array) -> Array:
    """log((1 - e^{-x}) / x): the log of the mean of e^{-xt} over t in [0, 1]."""
    return np.asarray(np.where(np.abs(x) > 1e-6, np.log(-np.expm1(-x) / x), -x / 2.0))


def _balance_ends(pair: DominatingPair, grid: Array, boundaries: Array, step: float) -> None:
    """Set the first or last cell so that its loss is its grid point's and no mass is lost.

    Any boundary is a valid choice; this one only makes the bound good.
    """
    if len(grid) < 3:
        return
    if grid[0] - pair.infimum < 1.5 * step:
        boundaries[1] = _balanced(pair, float(grid[0]), float(boundaries[1]), float(boundaries[2]))
    if pair.supremum - grid[-1] < 1.5 * step:
        boundaries[-2] = -_balanced(
            pair.reverse(), -float(grid[-1]), -float(boundaries[-2]), -float(boundaries[-3])
        )


def _balanced(pair: DominatingPair, point: float, usual: float, limit: float) -> float:
    """The end of a first cell whose loss is ``point``, if below ``limit``; else the usual one."""

    def excess(x: float) -> float:
        return pair.mean_loss_below(x) - point

    far, width = limit, 1.0
    if 0.0 <= excess(usual) <= _NEGLIGIBLE:
        return usual
    if not np.isfinite(limit) or not excess(limit) > 0.0:
        return usual
    while excess(far) > 0.0:
        far, width = far - width, 2.0 * width
        if width > 1e3:
            return usual
    return root(excess, far, limit, xtol=1e-13 * (1.0 + abs(limit)))


def _meet_on_grid(
    weight: Array, rise: Array, error: Array, grid: Array, step: float
) -> tuple[Array, float]:
    """Masses at the knots of the lower curve (docs/proofs.md, lemma 4), less where not convex.

    Also returns by how much the losses are too large because the last cell's was rounded up to its
    grid point.
    """
    first = int(np.argmax(weight > 0.0))
    weight, miss = weight.copy(), np.expm1(np.minimum(rise, _STEEPEST))
    # the first and last cells give up what would need a knot beyond them
    miss[first] = min(miss[first], 0.0)
    # errors are all that balanced cells miss by
    tiny = (miss < 0.0) & (miss >= -_ROUNDED * step - 4.0 * error)
    slack = float(-miss[tiny].min(initial=0.0)) * (1.0 + step)
    miss[tiny] = 0.0
    ahead = np.diff(grid)
    below = np.maximum(-miss, 0.0) * weight
    taken = np.concatenate([[0.0], below[:-1] / -np.expm1(-ahead)])
    usable = np.flatnonzero(
        (weight > taken) & (miss >= 0.0) & (np.arange(len(weight)) >= first)
    ).tolist()
    while usable:  # where the tail is too steep to be bent, give up some of it
        mass = _knot_masses(weight, miss, grid, first, usable[-1])
        if mass is not None:
            return mass, slack
        usable = usable[: len(usable) // 2]
    raise FloatingPointError("grid too coarse for a lower bound")


def _knot_masses(weight: Array, miss: Array, grid: Array, first: int, last: int) -> Array | None:
    weight, miss = weight.copy(), miss.copy()
    weight[last + 1 :] = 0.0
    miss[last:] = 0.0
    below, above = np.maximum(-miss, 0.0) * weight, np.maximum(miss, 0.0) * weight
    ahead = np.diff(grid)
    mass = weight.copy()
    with np.errstate(over="ignore"):
        mass[:-1] += (below[:-1] - above[1:]) / np.expm1(ahead)
    mass[1:] += (above[1:] - below[:-1]) / -np.expm1(-ahead)
    negative = np.flatnonzero(mass < 0.0)
    return _convexify(mass, grid, first, last, negative) if negative.size else mass


def _convexify(
    mass: Array, grid: Array, first: int, last: int, negative: NDArray[np.int64]
) -> Array | None:
    """Spread negative masses over neighbouring knots, which only lowers the curve.

    None if the last knot would have to go, or if knots are so far apart that looking for neighbours
    takes too long.
    """
    if len(negative) > _STEEP_LIMIT:
        return None
    dead = mass == 0.0
    queue = [int(i) for i in negative]
    looked = 0
    while queue:
        i = queue.pop()
        if mass[i] >= 0.0:
            continue
        left, right = i - 1, i + 1
        while left >= first and dead[left]:
            left -= 1
        while right <= last and dead[right]:
            right += 1
        looked += right - left
        if right > last or looked > _LOOKS:
            return None
        debt, mass[i], dead[i] = mass[i], 0.0, True
        up = np.exp(grid[i] - grid[right])  # inverse ratios, which cannot overflow
        down = np.exp(grid[left] - grid[i]) if left >= first else 0.0
        mass[right] += debt * (1.0 - down) / (1.0 - down * up)
        queue.append(right)
        if left >= first:
            mass[left] += debt * down * (1.0 - up) / (1.0 - down * up)
            queue.append(left)
    return mass
