"""The upper bound: the sum over the batches, and what the hub tells of who was displaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import special

from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import NORMAL_TAIL, OPS_8000, up
from verax.privacy.pairs.gaussian_mixture import log_interval
from verax.privacy.pairs.shuffled.ratios import Geometry, largest_ratio
from verax.privacy.pairs.shuffled.sums import UNIT_WEIGHT, Batches, PositivePart, batch_weights

# Free constants: any choice is sound (docs/shuffle.md, lemma S4).
_EXCESS, _EXCESS_OF_SMALL = 0.04, 0.15  # share of delta that the cap of the weights may cost
_SMALL = 0.1  # cap of the weights, relative to the size of the batch, from which batches are small
_FINE, _FINE_OF_SMALL, _COARSE = 1.3, 1.2, 3.0  # ratios of the grid of mean weights
_LOW, _LEAST = 0.03, 3e-3  # mean weights below which that is coarse, and where it ends
_RATES = np.geomspace(0.3, 3000.0, 14)  # of the exponentials in the bound on the mean weight
_HEIGHTS = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 16)])
"""Knots of the bound on the hub's own term, relative to the largest."""
_TOP = 4.5  # standard deviations of the hub's noise up to which they reach
_MARKS = np.linspace(0.0, 1.0, 5)  # pieces of a cell of mean weights
_SIDE = 0.02  # share of the main term that the hub's own term may take


@dataclass(frozen=True)
class Epoch:
    """An epoch's batches, the first of which is the hub and the largest."""

    records: int
    batches: int

    @property
    def hub(self) -> int:
        """The size of the first batch."""
        return -(-self.records // self.batches)

    @property
    def others(self) -> int:
        """The number of records that have their home in another batch."""
        return self.records - self.hub

    @property
    def kinds(self) -> list[Batches]:
        """All batches but the hub, with their sizes relative to it."""
        size, longer = divmod(self.records, self.batches)
        if not longer:
            return [Batches(self.batches - 1, size, 1.0)]
        kinds = [Batches(longer - 1, size + 1, 1.0)] if longer > 1 else []
        return [*kinds, Batches(self.batches - longer, size, size / (size + 1.0))]


def ideal_delta(geometry: Geometry, log_a: float, epoch: Epoch) -> float:
    """About the least that :func:`upper_delta` can be: the hub tells nothing."""
    ratio = largest_ratio(geometry, log_a)
    try:
        part = PositivePart(ratio, [(kind, UNIT_WEIGHT) for kind in epoch.kinds])
    except MemoryError:  # then nothing is known of the bound either
        return 1.0
    return part.at(0.0) * epoch.hub / epoch.records


def upper_delta(geometry: Geometry, log_a: float, epoch: Epoch, goal: float) -> float:
    """At most D_a of one epoch (docs/shuffle.md, theorem S1).

    ``goal`` is about the delta that matters; it steers the free constants.
    """
    ratio = largest_ratio(geometry, log_a)
    alone = float(np.maximum(ratio.values, 0.0) @ ratio.masses) + ratio.beyond
    worst = up(epoch.others / epoch.hub * alone, OPS_8000)
    cap = _cap(geometry.hub, goal / alone, epoch.hub)
    small = cap > _SMALL * epoch.hub
    excess = worst * gaussian_delta(geometry.hub, math.log(cap))
    means, rates = _mean_weights(cap, epoch.others, _FINE_OF_SMALL if small else _FINE)
    if not len(means):
        return 1.0
    parts = [
        PositivePart(
            ratio,
            [
                (kind, batch_weights(kind.size, rate, _contrast(epoch.others, rate)))
                for kind in epoch.kinds
            ],
        )
        for rate in rates.tolist()
    ]
    costs = np.concatenate([[1.0, 1.0], _laplace(geometry.hub, cap, epoch.others)])
    cells = _Cells(means, np.append(means[1:], cap), parts, worst, _own_term(geometry, log_a))
    total = up(cells.bound(costs) + excess, OPS_8000)
    return min(total * epoch.hub / epoch.records, 1.0)


def _cap(shift: float, share: float, size: int) -> float:
    """Where the weights are capped."""
    for excess in (_EXCESS, _EXCESS_OF_SMALL):
        cap = max(math.exp(gaussian_epsilon(shift, min(excess * share, 0.3))), 2.0)
        if cap <= _SMALL * size:
            break
    return cap


def _contrast(records: int, rate: float) -> float:
    """At most 1 - P[Bin(records, rate) = records * rate] (docs/shuffle.md, lemma S3)."""
    return 1.0 - 1.0 / math.sqrt(2.0 * math.pi * records * rate * (1.0 - rate))


def _mean_weights(cap: float, records: int, ratio: float) -> tuple[Array, Array]:
    """Mean weights at which the sum is bounded, ascending, and the rates that they belong to."""
    found = []
    rate = 0.5
    while rate * records >= 1.0 and rate * cap > _LEAST:
        found.append(math.floor(rate * records) / records)
        rate /= ratio if rate * cap > _LOW else _COARSE
    rates = np.array(sorted(set(found)))
    return cap * rates, rates


@lru_cache(maxsize=256)
def _laplace(shift: float, cap: float, records: int) -> Array:
    """At least E exp(-r L) for the mean weight L and each rate r (docs/shuffle.md, lemma S4)."""
    effective = -np.expm1(-_RATES * cap / records) * records / cap
    x = np.linspace(-9.0, 9.0, 1401)
    log_mass, error = log_interval(np.concatenate([[-np.inf], x, [np.inf]]))
    mass = up(np.exp(log_mass), float(error.max()))
    # a falling function is largest at the left end of a cell
    left = np.concatenate([[0.0], np.minimum(np.exp(shift * x - 0.5 * shift * shift), cap)])
    return np.asarray(up(np.exp(-np.multiply.outer(effective, left)) @ mass, OPS_8000))


@dataclass(frozen=True)
class _OwnTerm:
    """The hub's own term y: the largest value with a knot, and k -> E(y - k)^+ from above."""

    most: float
    expected: Callable[[float], float]


def _own_term(geometry: Geometry, log_a: float) -> _OwnTerm:
    first, second = geometry.own
    a = math.exp(log_a)
    if first == 0.0:  # y = 1 - a Y

        def absent(y: float) -> float:
            rest = 1.0 - y
            return rest * gaussian_delta(second, log_a - math.log(rest)) if rest > 0.0 else 0.0

        return _OwnTerm(1.0, absent)
    most = max(math.exp(_TOP * first - 0.5 * first * first) - a, 1e-3)
    if second == 0.0:  # y = Y - a
        return _OwnTerm(most, lambda y: gaussian_delta(first, math.log(a + y)))

    def replaced(y: float) -> float:
        # the event {dN(s) - a dN(-s) > y dN(0)} is a half-line
        k = y * math.exp(0.5 * first * first)
        edge = math.log(0.5 * (k + math.sqrt(k * k + 4.0 * a))) / first
        ahead = float(special.ndtr(first - edge))
        behind = a * float(special.ndtr(-first - edge)) + y * float(special.ndtr(-edge))
        return max(ahead - behind, 0.0) + NORMAL_TAIL * ahead

    return _OwnTerm(most, replaced)


class _Cells:
    """Cells [means, ends] of mean weights; f and g of lemma S4 that are above the sum on each."""

    def __init__(
        self, means: Array, ends: Array, parts: Sequence[PositivePart], worst: float, own: _OwnTerm
    ) -> None:
        self.means, self.ends, self.worst, self.own = means, ends, worst, own
        heights = own.most * _HEIGHTS
        pairs = zip(means.tolist(), parts, strict=True)
        table = np.array([[mean * part.at(y / mean) for y in heights] for mean, part in pairs])
        self.table = np.maximum.accumulate(table, axis=1)
        self.rise = (ends / means)[:, None] * (self.table - self.table[:, :1])
        self.knots = np.array([own.expected(float(y)) for y in heights])
        self.heights = heights

    def bound(self, costs: Array) -> float:
        """The least E f(L) + E g(y) found; f alone is above the sum on the first few cells."""
        base, sides = self.cheapest(costs, 0), [self.side(k) for k in range(len(self.means))]
        best = base + sides[0]
        for skip in range(1, len(sides)):
            if _SIDE * base < sides[skip] < sides[skip - 1] or sides[skip] < _SIDE * base:
                best = min(best, self.cheapest(costs, skip) + sides[skip])
            if sides[skip] < _SIDE * base:
                break
        return best

    def side(self, skip: int) -> float:
        """E g(y) where g is above the rise of the cells from ``skip`` on."""
        slopes = np.diff(self.rise[skip:].max(axis=0)) / np.diff(self.heights)
        last = float((self.ends / self.means)[skip:].max())
        slopes = np.maximum.accumulate(np.append(slopes, last))
        return up(float(np.diff(slopes, prepend=0.0) @ self.knots), OPS_8000)

    def cheapest(self, costs: Array, skip: int) -> float:
        """The least E f(L), f(L) = A L + B + sum_k D_k exp(-r_k L), above all cells' lines."""
        levels = np.where(np.arange(len(self.means)) < skip, self.table[:, -1], self.table[:, 0])
        cells = [(0.0, float(self.means[0]), self.own.most, self.worst)]
        cells += [
            (low, high, 0.0, level / low)
            for low, high, level in zip(
                self.means.tolist(), self.ends.tolist(), levels.tolist(), strict=True
            )
        ]
        rows, targets = [], []
        for low, high, base, slope in cells:
            marks = low + (high - low) * _MARKS
            for left, right in pairwise(marks.tolist()):
                middle = 0.5 * (left + right)
                # on a piece an exponential is above its tangent at the middle, and its last value
                tangent, last = np.exp(-_RATES * middle), np.exp(-_RATES * right)
                straight = _RATES * (right - left) < 1.0
                for end in (left, right):
                    line = np.where(straight, tangent * (1.0 - _RATES * (end - middle)), last)
                    rows.append(np.concatenate([[end, 1.0], line]))
                    targets.append(base + slope * end)
        # what each term is worth to each line, for a cost of 1
        worth = np.array(rows) / np.maximum(np.array(targets), 1e-290)[:, None] / costs
        return _cover(worth * (1.0 - OPS_8000))


def _cover(worth: Array) -> float:
    """About the least sum of x >= 0 with ``worth`` x >= 1; any that is large enough will do."""
    from scipy.optimize import linprog

    chosen = np.argmax(worth, axis=1)
    simple = np.zeros(worth.shape[1])
    np.maximum.at(simple, chosen, 1.0 / worth[np.arange(len(worth)), chosen])
    total = float(simple.sum())
    scaled = np.minimum(worth * total, 1e5)
    scaled[scaled < 1e-7] = 0.0
    found = linprog(np.ones(len(simple)), A_ub=-scaled, b_ub=-np.ones(len(worth)), method="highs")
    if found.x is None:
        return up(total, OPS_8000)
    x = np.maximum(found.x, 0.0) * total
    # whatever the programme says, only what is above all lines counts
    short = float(np.min(worth @ x))
    return up(min(float(x.sum()) / short if short > 0.0 else math.inf, total), OPS_8000)
