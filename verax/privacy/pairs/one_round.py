"""One round of many at random, as a round to compose."""

from __future__ import annotations

from verax.privacy.pairs.gaussian_mixture import Pair
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.one_of_many import (
    LARGEST_SHIFT,
    TAIL,
    at_least_one_of,
    at_most_one_of,
    one_of,
)
from verax.privacy.pld.composition import Round


def one_round_of(count: int, unit: float, fine: float) -> Round:
    """One of ``count`` rounds shifted; known which one, where factors exceed doubles."""
    if count == 1:
        return Round(Pair.gaussian(unit))
    if unit > LARGEST_SHIFT:
        return Round(Pair.gaussian(unit), largest_sum(count, unit, 0.0))
    return Round(*one_of(count, unit, fine))


def at_most_one_round_of(count: int, unit: float, fine: float, log_tail: float = TAIL) -> Round:
    """The same from above alone."""
    if count == 1 or unit > LARGEST_SHIFT:
        return Round(Pair.gaussian(unit))
    return Round(at_most_one_of(count, unit, fine, log_tail))


def at_least_one_round_of(count: int, unit: float, fine: float) -> Round:
    """The same from below alone."""
    if count == 1:
        return Round(Pair.gaussian(unit))
    if unit > LARGEST_SHIFT:
        return Round(largest_sum(count, unit, 0.0))
    return Round(at_least_one_of(count, unit, fine))
