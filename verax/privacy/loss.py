"""Discretised privacy-loss distributions of one round: a certified upper and a certified lower one.

Both live on a grid ``anchor + i * step`` and carry the masses of P (those of Q follow: q = p e^{-loss}). In terms of the
hockey-stick curve a -> D_a(P||Q), which is convex, the upper one replaces the curve by its chords between grid points
("connect the dots", Doroshenko et al. 2022), the lower one by its tangents at mid-cells; both err by O(step^2).
Statements and proofs: docs/proofs.md, section 2. Masses are kept as logarithms, so that tilting by e^{t loss} costs
no accuracy however small the probabilities are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from verax.privacy.roots import root

from verax.privacy.pairs import UNIT, Array, Cells, Pair

STEEP_LIMIT = 2000  # negative masses repaired one by one at most; more means that the grid is too coarse
_ROUNDED = 1e-9  # a miss this small, in grid steps, is charged as a shift of the losses


@dataclass(frozen=True)
class Discrete:
    """Masses exp(log_mass[i]) of P at loss ``start + i * step``, plus ``infinite`` at loss +infinity.

    ``shift`` bounds how far the grid itself may be off through rounding: an upper bound must be read that much to the left, a
    lower bound that much to the right, per round.
    """

    start: float
    step: float
    log_mass: Array
    infinite: float
    shift: float

    @property
    def losses(self) -> Array:
        """The grid."""
        return self.start + self.step * np.arange(len(self.log_mass))


def origin(pair: Pair, step: float) -> float:
    """A grid point at the exact mean of the first cell of the law's range, or of its last cell.

    With a tiny sampling rate nearly all the mass sits in that cell, within far less than one step; a grid point at its mean
    makes both discretisations leave it (almost) where it is. Any other origin would be as valid.
    """
    if np.isfinite(pair.supremum):
        return -origin(pair.reverse(), step)
    if not np.isfinite(pair.infimum):
        return float(pair.loss(np.zeros(1))[0])

    def excess(x: float) -> float:
        """Mean loss of everything left of x, minus what lies half a step below the loss at x."""
        return pair.mean_loss_below(x) - (float(pair.loss(np.array([x]))[0]) - step / 2.0)

    ends = pair.inverse(pair.infimum + step * np.array([0.5 + 1e-9, 1.5]))
    if not np.isfinite(ends).all() or not excess(float(ends[1])) < 0.0 < excess(float(ends[0])):
        return float(pair.loss(np.zeros(1))[0])
    return pair.mean_loss_below(root(excess, *ends.tolist(), xtol=1e-3))


def _grid(
    origin: float, step: float, low: float, high: float, least: float = -np.inf, most: float = np.inf
) -> tuple[float, int]:
    """Grid points anchored at ``origin`` that cover [low, high] within [least, most]: the first one and their number."""
    first = max(np.floor((low - origin) / step), np.ceil((least - origin) / step))
    last = max(min(np.ceil((high - origin) / step), np.floor((most - origin) / step)), first)
    return float(origin + first * step), int(last - first) + 1


def upper(pair: Pair, step: float, low: float, high: float, base: float | None = None) -> Discrete:
    """Connect the dots on [low, high]: dominates the pair.

    Masses and losses are first raised by their error bounds. Mass left of the grid moves up to the first point, the part of the mass right of it that no finite point can carry moves
    to +infinity. Inside, each cell's mass is split between the cell's two ends so that both its P- and its Q-mass are kept.
    """
    start, points = _grid(origin(pair, step) if base is None else base, step, low, high)
    grid = start + step * np.arange(points)
    boundaries = pair.inverse(grid)
    cells = pair.cells(np.concatenate([[-np.inf], boundaries, [np.inf]]))
    log_p = cells.log_p + 2.0 * cells.error
    rise = np.clip(cells.loss[1:-1] + 2.0 * cells.error[1:-1] - grid[:-1], 0.0, step)
    with np.errstate(divide="ignore"):
        log_up = np.log(-np.expm1(-rise)) - np.log(-np.expm1(-step))
        log_down = np.log(-np.expm1(rise - step)) - rise - np.log(-np.expm1(-step))
        log_mass = np.full(points, -np.inf)
        log_mass[:-1] = log_p[1:-1] + log_down
        log_mass[1:] = np.logaddexp(log_mass[1:], log_p[1:-1] + log_up)
        log_mass[0] = np.logaddexp(log_mass[0], log_p[0])
        rest = max(float(cells.loss[-1] + 2.0 * cells.error[-1] - grid[-1]), 0.0)
        log_mass[-1] = np.logaddexp(log_mass[-1], log_p[-1] - rest)
    infinite = pair.up.lost + (float(np.exp(log_p[-1]) * -np.expm1(-rest)) if np.isfinite(log_p[-1]) else 0.0)
    finite = np.isfinite(boundaries)
    residual = float(np.abs(pair.loss(boundaries[finite]) - grid[finite]).max(initial=0.0))
    return Discrete(start, step, log_mass, infinite, residual + 4.0 * UNIT * float(np.abs(grid).max()))


def upper_symmetric(pair: Pair, step: float, high: float) -> Discrete:
    """Dominates a subsampled Gaussian pair and its reverse at once: the larger of both curves at every a.

    The pair itself has the larger curve for a >= 1 (docs/proofs.md, theorem 3); the curve for a < 1 follows by symmetry, as
    mass p e^{-x} at -x for every mass p at x > 0.
    """
    forward = upper(pair, step, 0.0, high, base=0.0)
    right = forward.log_mass[1:]
    left = (right - forward.losses[1:])[::-1]
    centre = 1.0 - forward.infinite - float(np.exp(right).sum() + np.exp(left).sum())
    log_mass = np.concatenate([left, [np.log(max(centre, 0.0) + 4.0 * UNIT)], right])
    return Discrete(-float(forward.losses[-1]), step, log_mass, forward.infinite, forward.shift)


def lower(pair: Pair, step: float, low: float, high: float) -> Discrete:
    """Tangents at mid-cells, bent so that they meet on the grid: dominated by the pair.

    Masses and losses are first lowered by their error bounds. Cell i around grid point i is merged into one atom (a test that does not look inside the cell). Its loss misses the grid
    point by ``rise``; the curve is lowered at that grid point to the smaller of its two tangents, which moves the miss to the
    neighbours with the opposite sign and keeps the total mass. What lies left of the grid is dropped.
    """
    edge = 0.25 * step  # no grid point but the origin so close to an end of the range that its cell could not be balanced
    base = origin(pair, step)
    least, most = min(pair.infimum + edge, base), max(pair.supremum - edge, base)
    start, points = _grid(base, step, low, high, least, most)
    grid = start + step * np.arange(points)
    boundaries = _cell_boundaries(pair, start, step, points)
    boundaries[-1] = np.inf  # the last cell takes the whole tail, of which it keeps what its grid point can carry
    if grid[0] - pair.infimum < 1.5 * step:
        boundaries[0] = -np.inf
    _balance_ends(pair, grid, boundaries, step)
    cells = pair.cells(boundaries)
    filled = np.isfinite(cells.log_p) & np.isfinite(cells.loss)
    rise = np.where(filled, cells.loss - 2.0 * cells.error - grid, 0.0)
    log_q = np.where(filled, cells.log_p - cells.error - rise, -np.inf)  # P-mass that the cell's Q-mass would have at the grid point
    theta = np.expm1(rise) / np.expm1(step)
    scale = float(log_q.max())
    mass, slack = _meet_on_grid(np.exp(log_q - scale), theta, step)
    with np.errstate(divide="ignore"):
        log_mass = scale + np.log(mass)
    return Discrete(start, step, log_mass, 0.0, slack + 4.0 * UNIT * float(np.abs(grid).max()))


def _cell_boundaries(pair: Pair, start: float, step: float, points: int) -> Array:
    """Cell ends between grid points such that each cell's mean loss is near its grid point.

    Mid-cell where the density is flat, nearer to the next grid point where it falls steeply: the mean of an exponential law
    of slope rho on a unit interval lies at 1/rho - 1/(e^rho - 1). The slope is taken a little too steep, so that what a cell
    misses is paid for by the larger of its neighbours.
    """
    middle = pair.inverse(start + step * (np.arange(points + 1) - 0.5))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        log_density = pair.log_density(middle) - np.log(pair.slope(middle))
        drop = np.clip(1.5 * (log_density[:-1] - log_density[1:]), -500.0, 500.0)
        offset = np.where(np.abs(drop) > 1e-3, 1.0 / drop - 1.0 / np.expm1(drop), 0.5 - drop / 12.0)
    offset[~np.isfinite(offset)] = 0.5
    between = np.concatenate([offset[:1], (offset[1:] + offset[:-1]) / 2.0, offset[-1:]])
    return pair.inverse(start + step * (np.arange(points + 1) - between))


def _balance_ends(pair: Pair, grid: Array, boundaries: Array, step: float) -> None:
    """Where the law's range ends, set the first or last cell so that its loss is its grid point's and no mass is lost.

    Any boundary is a valid choice; this one only makes the bound good.
    """
    if len(grid) < 3:
        return

    if grid[0] - pair.infimum < 1.5 * step:
        boundaries[1] = _balanced(pair, float(grid[0]), float(boundaries[1]), float(boundaries[2]))
    if pair.supremum - grid[-1] < 1.5 * step:
        boundaries[-2] = -_balanced(pair.reverse(), -float(grid[-1]), -float(boundaries[-2]), -float(boundaries[-3]))


def _balanced(pair: Pair, point: float, usual: float, limit: float) -> float:
    """The end of a first cell whose loss is ``point``, if there is one up to ``limit``; else the usual end."""

    def excess(x: float) -> float:
        return pair.mean_loss_below(x) - point

    far, width = limit, 1.0
    if not np.isfinite(limit) or not excess(limit) > 0.0:
        return usual
    while excess(far) > 0.0:
        far, width = far - width, 2.0 * width
        if width > 1e3:
            return usual
    return root(excess, far, limit, xtol=1e-13 * (1.0 + abs(limit)))


def _meet_on_grid(weight: Array, theta: Array, step: float) -> tuple[Array, float]:
    """Masses at the knots of the lower curve (docs/proofs.md, lemma 4), or a smaller valid choice where it is not convex.

    Also returns by how much the losses are too large because the last cell's was rounded up to its grid point.
    """
    first = int(np.argmax(weight > 0.0))
    weight, theta = weight.copy(), theta.copy()
    theta[first] = min(theta[first], 0.0)  # the first and last cells give up what would need a knot beyond them
    growth = np.exp(step)
    taken = np.concatenate([[0.0], growth * weight[:-1] * np.maximum(-theta[:-1], 0.0)])
    last = int(np.flatnonzero((weight > taken) & (theta >= -_ROUNDED) | (np.arange(len(weight)) == first))[-1])
    slack = max(-float(theta[last]), 0.0) * np.expm1(step)
    weight[last + 1 :] = 0.0
    theta[last:] = 0.0
    below, above = np.maximum(-theta, 0.0), np.maximum(theta, 0.0)
    mass = weight * (1.0 + below + growth * above)
    mass[:-1] -= weight[1:] * above[1:]
    mass[1:] -= growth * weight[:-1] * below[:-1]
    negative = np.flatnonzero(mass < 0.0)
    if negative.size:
        mass = _convexify(mass, step, first, last, negative)
    return mass, slack


def _convexify(mass: Array, step: float, first: int, last: int, negative: Array) -> Array:
    """Remove knots of negative mass by spreading it over their neighbours, which only lowers the curve."""
    if len(negative) > STEEP_LIMIT:
        raise FloatingPointError("grid too coarse for a lower bound")
    dead = mass == 0.0
    queue = [int(i) for i in negative]
    while queue:
        i = queue.pop()
        if mass[i] >= 0.0:
            continue
        left = i - 1
        while left >= first and dead[left]:
            left -= 1
        right = i + 1
        while right <= last and dead[right]:
            right += 1
        debt, mass[i], dead[i] = mass[i], 0.0, True
        if right > last:
            raise FloatingPointError("grid too coarse for a lower bound")
        up = np.exp((right - i) * step)
        down = np.exp((left - i) * step) if left >= first else 0.0
        mass[right] += debt * up * (1.0 - down) / (up - down)
        queue.append(right)
        if left >= first:
            mass[left] += debt * down * (up - 1.0) / (up - down)
            queue.append(left)
    return mass
