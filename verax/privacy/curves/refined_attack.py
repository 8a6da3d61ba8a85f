"""Attacks with heavy atoms, composed on ever finer grids."""

from __future__ import annotations

from collections.abc import Callable

from verax.privacy.pld.composition import BOTH, LOWER, Bounds, Composition, Sides

_ROUGH = 1e-2  # accuracy of an attack's curve: attacks do not reach the upper bound anyway
_FINER = (0.1, 0.02)  # shares of it that are tried until the curve stays
_STAYS = 0.02


class RefinedAttack(Composition):
    """An attack whose pmf has heavy atoms, its lower bound refined until it stays.

    Coarse grids may tell such a pmf badly.

    Any of them is valid.
    """

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        if sides != (LOWER,):
            return super().epsilon(delta, rtol, sides, enough)
        return _refine(
            lambda finer: super(RefinedAttack, self).epsilon(delta, finer, sides, enough), rtol
        )

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        if sides != (LOWER,):
            return super().delta(epsilon, rtol, sides, enough)
        return _refine(
            lambda finer: super(RefinedAttack, self).delta(epsilon, finer, sides, enough), rtol
        )


def _refine(bounds: Callable[[float], tuple[float, float]], rtol: float) -> tuple[float, float]:
    best = bounds(max(rtol, _ROUGH))
    for finer in _FINER:
        found = bounds(max(rtol, _ROUGH) * finer)
        steady = best[0] > 0.0 and found[0] <= best[0] * (1.0 + _STAYS)
        best = max(best, found)
        if steady:
            break
    return best
