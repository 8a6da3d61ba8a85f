"""One round of many at random, as a round to compose."""

from __future__ import annotations

from verax.privacy.averages import FINE, LARGEST_SHIFT, one_of
from verax.privacy.composition import Round
from verax.privacy.largest import largest_sum
from verax.privacy.pairs import Pair


def one_round_of(count: int, unit: float, fine: float = FINE) -> Round:
    """One round of ``count`` shifted; where factors leave the range of doubles, the attacker is told which."""
    if count == 1:
        return Round(Pair.gaussian(unit))
    if unit > LARGEST_SHIFT:
        return Round(Pair.gaussian(unit), largest_sum(count, unit, 0.0))
    return Round(*one_of(count, unit, fine))
