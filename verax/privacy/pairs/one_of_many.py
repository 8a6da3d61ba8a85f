"""One round picked at random: an average of log-normals, rounded up and down in convex order.

A record that joins one of T rounds, picked at random, changes the likelihood of the transcript by
the factor

    S = (1/T) sum_t Y_t,    Y_t = exp(u x_t - u^2 / 2),    x_t independent N(0, 1) without the
    record.

Both directions are expectations of convex functions of S: D_a(P||Q) = E (S - a)_+ and D_a(Q||P) = E
(1 - a S)_+. So whatever is larger than S in convex order dominates, whatever is smaller is
dominated, and convex order survives independent sums. Splitting an atom between two grid points
around it, keeping the mean, makes a pmf larger; merging the atoms of a cell into one at their mean
makes it smaller (an attacker who does not look inside the cell). T comes from doublings, each
followed by one such rounding; what they cost is of second order in the grid, and everything is a
sum of products of positive numbers, so the tails keep their digits. Statements and proofs:
docs/proofs.md, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import ulps
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.rounds import PricedRound

FINE = 0.03  # grid points per scale of the pmf: widths below half a percent of epsilon
LARGEST_SHIFT = 12.0  # beyond this the factors leave the range of doubles
TAIL, DEEP_TAIL = -92.0, -300.0
"""Log of the mass beyond the ends of the grid; the second where deltas far below all that are asked
for matter.
"""
_FLAT = 3.0  # scales from the middle within which points are evenly spaced; further out they spread
_LEAST = 1e-290  # of mass that keeps its digits; less is left out of what is rounded down
_ROWS = 16  # of sums worked on at once, to stay in the cache and to add up few at a time
# from which grids are planned
_QUANTILES, _FEW_QUANTILES = ((np.arange(count) + 0.5) / count for count in (200, 64))


@dataclass(frozen=True, eq=False)
class RatioPmf:
    """Mass ``q`` at ascending ``places``, and a part of the mean so far out that its mass is none.

    Masses may be off by e^mass_error and places by e^place_error, as follows. All masses times
    e^mass_error, each at its place or nearly so, are what rounding up makes of a measure that
    nowhere falls short of the true pmf. All masses times e^-mass_error are what merging makes of a
    part of the true pmf. Products of such measures are such measures, so the errors of masses add
    up and never touch the places.
    """

    places: Array
    q: Array
    infinite: float
    mass_error: float
    place_error: float

    def table(self, spread: bool) -> DiscretePair:
        """P against Q, where P has the density S, with all masses moved to the safe side.

        Products of masses that fell below the range of doubles are covered by what is added at the
        ends.
        """
        q = self.q * math.exp(self.mass_error if spread else -self.mass_error)
        ends = (2.0 * self.infinite, _LEAST) if spread else (0.0, 0.0)
        return DiscretePair.from_masses(q * self.places, q, *ends, error=self.place_error)


@lru_cache(maxsize=64)
def one_of_many_pairs(
    count: int, shift: float, fine: float = FINE
) -> tuple[DiscretePair, DiscretePair]:
    """Tables that dominate, and are dominated by, one of ``count`` rounds shifted against none.

    >>> upper, lower = one_of_many_pairs(100, 1.0)
    >>> lower.delta(0.5)[0] <= upper.delta(0.5)[1] <= 1.01 * lower.delta(0.5)[0]
    True
    """
    return dominating_one_of_many(count, shift, fine), dominated_one_of_many(count, shift, fine)


@lru_cache(maxsize=64)
def dominating_one_of_many(
    count: int, shift: float, fine: float = FINE, log_tail: float = TAIL
) -> DiscretePair:
    """The first of these tables alone."""
    return _average(count, shift, fine, spread=True, log_tail=log_tail).table(spread=True)


@lru_cache(maxsize=64)
def dominated_one_of_many(count: int, shift: float, fine: float = FINE) -> DiscretePair:
    """The second of them alone."""
    return _average(count, shift, fine, spread=False).table(spread=False)


@lru_cache(maxsize=256)
def _average(
    count: int, shift: float, fine: float, spread: bool, log_tail: float = TAIL
) -> RatioPmf:
    """The average of ``count`` factors, rounded up (``spread``) or down: twice that of half."""
    cap = 0.5 * fine * shift
    if count == 1:
        return _single_factor(shift, fine, cap, spread, log_tail)
    half = _average(count // 2, shift, fine, spread, log_tail)
    pmf = _convolve(half, half, 0.5, _grid(half, half, 0.5, fine, cap, log_tail), spread)
    if count % 2 == 0:
        return pmf
    share, single = (count - 1.0) / count, _average(1, shift, fine, spread, log_tail)
    grid = _grid(pmf, single, share, fine, cap, log_tail)
    return _convolve(pmf, single, share, grid, spread)


def _single_factor(
    shift: float, fine: float, cap: float, spread: bool, log_tail: float = TAIL
) -> RatioPmf:
    """One log-normal factor."""
    far = math.sqrt(-2.0 * log_tail)
    middle = -shift * shift / 2.0
    grid = _grid_points(
        middle - far * shift, middle + (far + shift) * shift, middle, shift, fine, cap
    )
    pair = MixturePair.gaussian(shift)
    cells = pair.cells(np.concatenate([[-np.inf], pair.boundaries_at(grid)[0], [np.inf]]))
    q, places = np.exp(cells.log_p - cells.loss), np.exp(cells.loss)
    error = 2.0 * float(cells.error.max()) + ulps(4.0, of=float(np.abs(cells.loss).max()))
    corners = np.concatenate([[0.0], np.exp(grid)])
    return round_to_grid(
        q, q * np.maximum(places - corners, 0.0), corners, 0.0, 2.0 * error, error, spread
    )


def _convolve(a: RatioPmf, b: RatioPmf, share: float, grid: Array, spread: bool) -> RatioPmf:
    """The pmf of ``share`` times A plus the rest times B, rounded to the grid."""
    corners = np.concatenate([[0.0], np.exp(grid)])
    q, beyond = np.zeros(len(corners)), np.zeros(len(corners))
    most = 0
    tail = (1.0 - share) * b.places
    # then every sum occurs in both orders: those above the diagonal count double
    twice = a is b and share == 0.5
    for row in range(0, len(a.q), _ROWS):
        first = row if twice else 0
        places = (share * a.places[row : row + _ROWS, None] + tail[first:]).reshape(-1)
        mass = a.q[row : row + _ROWS, None] * b.q[first:]
        if twice:
            mass[:, _ROWS:] *= 2.0
        mass = mass.reshape(-1)
        cell = np.searchsorted(corners, places, side="right") - 1
        q += np.bincount(cell, weights=mass, minlength=len(corners))
        beyond += np.bincount(cell, weights=mass * (places - corners[cell]), minlength=len(corners))
        most = max(most, int(np.bincount(cell).max()))
    # additions in one cell: inside a block, and block by block
    added = ulps(most + len(a.q) / _ROWS + 8.0)
    mass_error = a.mass_error + b.mass_error + added
    place_error = max(a.place_error, b.place_error) + 2.0 * added + ulps(8.0)
    infinite = share * a.infinite + (1.0 - share) * b.infinite
    return round_to_grid(q, beyond, corners, infinite, mass_error, place_error, spread)


def round_to_grid(
    q: Array,
    beyond: Array,
    corners: Array,
    infinite: float,
    mass_error: float,
    place_error: float,
    spread: bool,
) -> RatioPmf:
    """Move each cell's mass to its corners (``spread``) or its mean, a distance beyond the left."""
    if not spread:
        filled = q > _LEAST
        places = corners[filled] + beyond[filled] / q[filled]
        return RatioPmf(places, q[filled], 0.0, mass_error, place_error)
    right = beyond[:-1] / np.diff(corners)
    mass = np.concatenate([np.maximum(q[:-1] - right, 0.0), [q[-1]]])
    mass[1:] += right
    return RatioPmf(corners, mass, infinite + float(beyond[-1]), mass_error, place_error)


def _grid(
    a: RatioPmf, b: RatioPmf, share: float, fine: float, cap: float, log_tail: float
) -> Array:
    """Logs of grid points for a sum: dense around its middle, out to its tails. Any are valid."""
    at = _QUANTILES if fine <= 2.0 * FINE else _FEW_QUANTILES
    sums = (share * _quantiles(a, at)[:, None] + (1.0 - share) * _quantiles(b, at)).reshape(-1)
    left, middle, right = np.log(np.quantile(sums, [0.16, 0.5, 0.84])).tolist()
    one_large = max(share * a.places[-1] + (1.0 - share), (1.0 - share) * b.places[-1] + share)
    top = math.log(
        max(one_large, share * _upper_end(a, log_tail) + (1.0 - share) * _upper_end(b, log_tail))
    )
    bottom = math.log(share * _lower_end(a, log_tail) + (1.0 - share) * _lower_end(b, log_tail))
    return _grid_points(
        min(bottom, middle), max(top, middle), middle, 0.5 * (right - left), fine, cap
    )


def _quantiles(pmf: RatioPmf, at: Array) -> Array:
    return np.asarray(np.interp(at, np.cumsum(pmf.q), pmf.places))


def _lower_end(pmf: RatioPmf, log_tail: float) -> float:
    """A place with so little mass below it that a sum of two below theirs hardly happens."""
    first = int(np.searchsorted(np.cumsum(pmf.q), math.exp(0.5 * log_tail)))
    return max(float(pmf.places[min(first, len(pmf.q) - 1)]), 1e-300)


def _upper_end(pmf: RatioPmf, log_tail: float) -> float:
    """The same above: a place with so little of the mean beyond it."""
    beyond = np.cumsum((pmf.q * pmf.places)[::-1])[::-1]
    return float(pmf.places[max(int(np.count_nonzero(beyond > math.exp(0.5 * log_tail))) - 1, 0)])


def _grid_points(
    low: float, high: float, middle: float, scale: float, fine: float, cap: float
) -> Array:
    """Points from low to high: ``fine * scale`` apart near the middle, further apart outside.

    On the right, where a single large factor makes the tail, they are never more than ``cap``
    apart.
    """
    left = _distances(middle - low, scale, fine, math.inf)
    right = _distances(high - middle, scale, fine, max(cap, fine * scale))
    return np.concatenate([middle - left[::-1], [middle], middle + right])


def _distances(end: float, scale: float, fine: float, cap: float) -> Array:
    """Distances from 0 to beyond ``end``."""
    step, growth = fine * scale, fine / _FLAT
    parts = [step * np.arange(1.0, min(end, _FLAT * scale) / step + 2.0)]
    last, stop = float(parts[0][-1]), min(end, cap / growth)
    if last < stop:
        parts.append(
            last
            * np.exp(
                math.log1p(growth)
                * np.arange(1.0, math.log(stop / last) / math.log1p(growth) + 2.0)
            )
        )
        last = float(parts[-1][-1])
    if last < end:
        parts.append(last + cap * np.arange(1.0, (end - last) / cap + 2.0))
    return np.concatenate(parts)


# --- as rounds to compose ------------------------------------------------------------------


def one_round_of_many(count: int, unit: float, fine: float) -> PricedRound:
    """One of ``count`` rounds shifted; known which one, where factors exceed doubles."""
    if count == 1:
        return PricedRound(MixturePair.gaussian(unit))
    if unit > LARGEST_SHIFT:
        return PricedRound(MixturePair.gaussian(unit), largest_sum(count, unit, 0.0))
    return PricedRound(*one_of_many_pairs(count, unit, fine))


def one_round_from_above(
    count: int, unit: float, fine: float, log_tail: float = TAIL
) -> PricedRound:
    """The same from above alone."""
    if count == 1 or unit > LARGEST_SHIFT:
        return PricedRound(MixturePair.gaussian(unit))
    return PricedRound(dominating_one_of_many(count, unit, fine, log_tail))


def one_round_from_below(count: int, unit: float, fine: float) -> PricedRound:
    """The same from below alone."""
    if count == 1:
        return PricedRound(MixturePair.gaussian(unit))
    if unit > LARGEST_SHIFT:
        return PricedRound(largest_sum(count, unit, 0.0))
    return PricedRound(dominated_one_of_many(count, unit, fine))
