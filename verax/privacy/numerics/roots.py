"""A bracketing root finder, so that importing verax does not import all of scipy.optimize."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

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
        step = (middle - low) * at_middle / scale
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
