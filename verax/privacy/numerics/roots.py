"""Every search for a place where something changes: roots, crossings, bisections.

They are written out so that importing verax does not import all of scipy.optimize.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from verax.privacy.numerics import Array

CROSSING_TOLERANCE = 1e-13
"""How close to a crossing on [low, high] a point is, in units of 1 + high, up to the rounding of
the function.
"""


def root(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """A point within ``xtol`` of a sign change in [low, high], whose ends must differ in sign.

    Ridders' method: exact on exponentials times lines, never leaves the bracket, at least halves it
    in two evaluations.
    """
    at_low, at_high = function(low), function(high)
    if at_low == 0.0 or at_high == 0.0:
        return low if at_low == 0.0 else high
    if (at_low > 0.0) == (at_high > 0.0):
        raise ValueError(f"no sign change between {low!r} ({at_low!r}) and {high!r} ({at_high!r})")
    for _ in range(200):
        middle = 0.5 * (low + high)
        at_middle = function(middle)
        if at_middle == 0.0 or abs(high - low) <= xtol:
            return middle
        scale = math.sqrt(at_middle * at_middle - at_low * at_high)
        # where squares leave the range of doubles, halve
        step = (middle - low) * at_middle / scale if 0.0 < scale < math.inf else 0.0
        fresh = middle + (step if at_low > at_high else -step)
        at_fresh = function(fresh)
        if at_fresh == 0.0:
            return fresh
        points = sorted([(low, at_low), (middle, at_middle), (fresh, at_fresh), (high, at_high)])
        for (a, fa), (b, fb) in itertools.pairwise(points):
            if (fa > 0.0) != (fb > 0.0):
                low, at_low, high, at_high = a, fa, b, fb
                break
    return 0.5 * (low + high)


def crossing(excess: Callable[[float], float], low: float, high: float, sign: int) -> float:
    """Where a falling function crosses zero in [low, high], low >= 0, on the safe side of it.

    That is to a point where it is not positive for an upper bound (``sign`` 1), not negative for a
    lower one (-1).
    """
    point = root(excess, low, high, xtol=CROSSING_TOLERANCE * (1.0 + high))
    nudge = 1e-14 * (1.0 + point)
    while sign * excess(point) > 0.0 and point > 0.0:
        point, nudge = max(point + sign * nudge, 0.0), 2.0 * nudge
    return point


def bracket(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    factor: float = 2.0,
    limit: float = math.inf,
) -> tuple[float, float]:
    """The last point that holds and the first that does not, going out from ``high`` by a factor.

    ``low`` is known to hold. If all points up to ``limit`` hold, the second is beyond it.
    """
    while high <= limit and holds(high):
        low, high = high, factor * high
    return low, high


def bisect(
    holds: Callable[[float], bool],
    inside: float,
    outside: float,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    halvings: int = 2000,
    geometric: bool = False,
) -> tuple[float, float]:
    """A point that holds and one that does not, close together, from two such points.

    Halving ends when they are within ``atol`` and ``rtol`` times the larger of each other, or no
    double is between them. If ``geometric`` their ratio is halved, until it is 1 + ``rtol``.
    """
    for _ in range(halvings):
        small, large = sorted((inside, outside))
        if large <= (1.0 + rtol) * small if geometric else large - small <= atol + rtol * large:
            break
        middle = math.sqrt(small * large) if geometric else 0.5 * (small + large)
        if middle in (small, large):
            break
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside, outside


def last_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last whole number before ``high`` that holds, where ``low`` and none after it does."""
    return low + bisect_left(range(low + 1, high), True, key=lambda number: not holds(number))


def bisect_all(
    excess: Callable[[Array, NDArray[np.bool_]], Array],
    sought: NDArray[np.bool_],
    start: float,
    limit: float,
    halvings: int,
) -> Array:
    """Positive places from which on each excess is positive, all at once; 0 where none is sought.

    ``excess`` is called with some of the places, and with which ones they are.
    """
    low, high = np.zeros(len(sought)), np.full(len(sought), start)
    more = sought.copy()
    while more.any():
        more[more] = excess(high[more], more) < 0.0
        more &= high < limit
        low[more], high[more] = high[more], 2.0 * high[more]
    for _ in range(halvings if sought.any() else 0):
        middle = 0.5 * (low + high)
        short = sought.copy()
        short[sought] = excess(middle[sought], sought) < 0.0
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(sought, high, 0.0)
