"""One epoch of shuffled batches as a pair to compose: its curve between knots, and its attacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_80, OPS_8000, ulps, up
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.shuffled import attack
from verax.privacy.pairs.shuffled.hub import Epoch, upper_delta
from verax.privacy.pairs.shuffled.ratios import Geometry, Ratio, geometries

LARGEST_SHIFT = 2.5
"""Clip norms in standard deviations of the noise beyond which shuffling is not worth a look."""
SMALLEST_SHIFT = 1e-3
"""Below which likelihood ratios differ from 1 by too little for differences to keep digits."""
LEAST_DELTA = 1e-17
"""At which the knots end."""
FEWER_LOSSES = 1e-11
"""The same for a pair without losses so rare and large that compositions spread over them."""
_FINE_DROP, _DROP = 0.6, 1.2  # of log delta from knot to knot: above, and below
_FINE_ABOVE = 1e-3  # delta down to which knots are close
_KNOTS = 90  # at most, in one direction
_TAIL_KNOTS = 40  # more of them where only fixed batches bound the curve


@dataclass(frozen=True)
class Neighbours:
    """Whose epoch it is: the clip norm in standard deviations, the relation, what is clipped."""

    shift: float
    relation: str
    clipped_alone: bool

    @property
    def fixed_shift(self) -> float:
        """How far the record moves its batch, if it is known which."""
        alone = self.clipped_alone and self.relation == "zero-out"
        return self.shift if alone else 2.0 * self.shift

    @property
    def geometries(self) -> tuple[Geometry, Geometry]:
        """Both directions."""
        return geometries(self.shift, self.relation, self.clipped_alone)


@lru_cache(maxsize=32)
def dominating_epoch(
    neighbours: Neighbours, epoch: Epoch, least: float = LEAST_DELTA
) -> DiscretePair:
    """A pair that dominates one epoch (docs/shuffle.md, theorems S1 and S2).

    Losses that are exceeded with delta ``least`` at most are taken to be infinite.

    >>> from verax.privacy.pairs.shuffled.hub import Epoch
    >>> table = dominating_epoch(Neighbours(0.5, "zero-out", True), Epoch(102400, 100))
    >>> bool(0.49 < table.delta(0.4936)[1] * 1e5 < 3.0)
    True
    """
    forth, back = (_down_to(least, _knots(neighbours, direction, epoch)) for direction in (0, 1))
    # D_a(P||Q) = 1 - a + a D_{1/a}(Q||P)
    left = [(math.exp(-e), -math.expm1(-e) + math.exp(-e) * d) for e, d in back[:0:-1]]
    one = (1.0, min(forth[0][1], back[0][1]))
    right = [(math.exp(e), d) for e, d in forth[1:]]
    places, heights = np.array([(0.0, 1.0), *left, one, *right]).T
    hull = _lower_hull(places, up(heights, OPS_80))
    a, h = places[hull], heights[hull]
    slopes = np.append(np.diff(h) / np.diff(a), 0.0)
    q = np.diff(np.maximum(slopes, -1.0), prepend=-1.0)[1:]
    q = np.maximum(q, 0.0)
    p = q * a[1:]
    missing = max(1.0 + float(slopes[0]), 0.0) + float(ulps(16.0))
    kept = q > 0.0
    infinite = float(h[-1])
    return DiscretePair.from_masses(
        up(p[kept], OPS_8000), up(q[kept], OPS_8000), infinite, missing, error=OPS_8000
    )


def _down_to(least: float, knots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The knots up to the first with so small a delta."""
    above = sum(delta > least for _, delta in knots)
    return [*knots[: above + 1]]


def epoch_delta(
    neighbours: Neighbours, direction: int, epoch: Epoch, epsilon: float, goal: float
) -> float:
    """At most D_a of one epoch, never more than that of fixed batches.

    ``goal`` is about the delta that matters; it steers the free constants.
    """
    known = gaussian_delta(neighbours.fixed_shift, epsilon)
    if known <= LEAST_DELTA:
        return known
    geometry = neighbours.geometries[direction]
    with suppress(MemoryError):
        return min(upper_delta(geometry, epsilon, epoch, min(max(goal, 1e-300), known)), known)
    return known


@lru_cache(maxsize=64)
def _knots(neighbours: Neighbours, direction: int, epoch: Epoch) -> Sequence[tuple[float, float]]:
    """Epsilons from 0 on, and upper bounds there, so close that chords hardly miss the curve."""
    fixed = neighbours.fixed_shift

    def bound(epsilon: float, goal: float) -> float:
        return epoch_delta(neighbours, direction, epoch, epsilon, goal)

    start = gaussian_delta(fixed, 0.0)
    found = [(0.0, bound(0.0, 0.3 * start / math.sqrt(epoch.batches)))]
    step = fixed / math.sqrt(epoch.batches)
    drop = _FINE_DROP
    looks = 0
    while found[-1][1] > LEAST_DELTA and looks < _KNOTS:
        looks += 1
        epsilon, before = found[-1]
        value = min(bound(epsilon + step, before * math.exp(-drop)), before)
        drop = max(math.log(before / max(value, 1e-300)), 1e-3)
        wanted = _FINE_DROP if value > _FINE_ABOVE * found[0][1] else _DROP
        if drop < 2.0 * wanted or value <= LEAST_DELTA < before < 1e-14:
            found.append((epsilon + step, value))
        step *= min(max(wanted / drop, 0.3), 2.0)
        drop = wanted
    # fixed batches say more of the largest losses
    epsilon, last = found[-1]
    end = gaussian_epsilon(fixed, LEAST_DELTA)
    if end > epsilon and last > LEAST_DELTA:
        places = np.linspace(epsilon, end, _TAIL_KNOTS)[1:].tolist()
        found += [(place, min(last, gaussian_delta(fixed, place))) for place in places]
    return found


def _lower_hull(places: Array, heights: Array) -> list[int]:
    """Indices of the lower convex hull of points with ascending places."""
    hull: list[int] = []
    for i in range(len(places)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            before = (heights[b] - heights[a]) * (places[i] - places[a])
            if before < (heights[i] - heights[a]) * (places[b] - places[a]):
                break
            hull.pop()
        hull.append(i)
    return hull


@lru_cache(maxsize=32)
def attacked_epoch(neighbours: Neighbours, batches: int) -> DiscretePair:
    """What one epoch shows to the attacks of :mod:`verax.privacy.pairs.shuffled.attack`."""
    forth, back = attack.ratios(neighbours.shift, neighbours.relation, neighbours.clipped_alone)
    points = [(0.0, 0.0), (1.0, 1.0)]
    for ratio in forth:
        points += [(q, p) for q, p in _events(ratio, neighbours, batches)]
    for ratio in back:  # the complement: likely without the record, unlikely with it
        # 1 - p rounds; a little more, and a little less, is on the safe side
        points += [
            (1.0 - p + ulps(4.0), 1.0 - q - ulps(4.0))
            for q, p in _events(ratio, neighbours, batches)
        ]
    points = sorted((q, p) for q, p in points if 0.0 <= p <= 1.0 and q <= 1.0)
    q, p = np.array(points).T
    hull = _lower_hull(q, -p)
    q, p = np.diff(q[hull]), np.diff(p[hull])
    kept = (p > 0.0) & (q > 0.0)
    return DiscretePair.from_masses(p[kept], q[kept], error=OPS_8000)


def _events(ratio: Ratio, neighbours: Neighbours, batches: int) -> list[tuple[float, float]]:
    fixed = neighbours.fixed_shift
    found: list[tuple[float, float]] = []
    epsilon, step = 0.0, 0.5 * fixed / math.sqrt(batches)
    last = None
    while len(found) < _KNOTS:
        event = attack.event(ratio, epsilon, batches)
        value = 0.0 if event is None else event[1] - math.exp(epsilon) * event[0]
        if event is None or value < 1e-16:
            break
        found.append(event)
        if last is not None:
            step *= min(max(0.5 / max(math.log(last / value), 1e-3), 0.4), 2.0)
        last = value
        epsilon += step
    return found
