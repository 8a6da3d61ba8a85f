"""Neighbours of neighbours: the triangle inequality for privacy curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from verax.privacy.curves.base import Curve
from verax.privacy.numerics.roots import bisect, bracket
from verax.privacy.numerics.rounding import OPS_8000, up
from verax.privacy.pld.composition import BOTH, UPPER, Bounds, Sides

_LEAST = 1e-300  # a delta that came out smaller may have fallen below the range of doubles
_HOPELESS = 1.3  # times a bound that is known, an estimate that is not worth a computation
_TYPICAL_DELTA = 1e-6  # where epsilon is divided among unequal links; any division is valid


@dataclass(frozen=True)
class TriangleInequality:
    """Steps between data sets, each with its privacy curve; ``links`` are (curve, steps).

    For any eps_1 + ... + eps_k = eps,

        D_eps(P_0||P_k) <= sum_i e^(eps_1 + ... + eps_(i-1)) D_(eps_i)(P_(i-1)||P_i),

    (docs/proofs.md, lemma 5). Equal steps get equal shares of epsilon, unequal ones in proportion
    to what they cost. Nothing is known from below.
    """

    links: tuple[tuple[Curve, int], ...]

    def estimate(self, delta: float) -> float:
        """The sum of what the links would cost; rough."""
        return math.fsum(steps * curve.estimate(delta) for curve, steps in self.links)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        costs = [max(steps * curve.estimate(_TYPICAL_DELTA), 1e-12) for curve, steps in self.links]
        total, used = 0.0, 0.0
        for (curve, steps), cost in zip(self.links, costs, strict=True):
            each = epsilon * cost / math.fsum(costs) / steps
            if used + steps * each > 700.0:
                return 0.0, 1.0
            one = max(curve.delta(each, rtol, (UPPER,))[1], _LEAST)
            repeats = math.expm1(steps * each) / math.expm1(each) if each > 0.0 else float(steps)
            total += one * math.exp(used) * repeats
            used += steps * each
        return 0.0, min(up(total, OPS_8000), 1.0)

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Upper bound on epsilon(delta), by bisection; every end it returns holds."""

        def exceeds(epsilon: float) -> bool:
            return self.delta(epsilon, rtol)[1] > delta

        if not exceeds(0.0):
            return 0.0, 0.0
        start = max(self.estimate(delta), 1e-3)
        limit = max(start, 1e6)
        low, high = bracket(exceeds, 0.0, start, 1.5, limit)
        if high > limit:
            return 0.0, math.inf
        return 0.0, bisect(exceeds, low, high, rtol=0.1 * rtol)[1]


@dataclass(frozen=True)
class SmallestBound:
    """Several upper bounds on the same curve: the smallest one counts. Nothing is known from below.

    Those that by their estimates are far from it are not looked at, which costs no more than a
    wider bracket. ``names`` are the theorems, one for each curve, if the one that counts is to be
    named.
    """

    curves: tuple[Curve, ...]
    names: tuple[str, ...] = ()

    def estimate(self, delta: float) -> float:
        """The smallest estimate."""
        return min(curve.estimate(delta) for curve in self.curves)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        return 0.0, self.delta_by(epsilon, rtol, enough)[0]

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        return 0.0, self.epsilon_by(delta, rtol, enough)[0]

    def delta_by(self, epsilon: float, rtol: float, enough: float = 0.0) -> tuple[float, str]:
        """The smallest upper bound on delta(epsilon), and whose it is."""

        def hopeless(curve: Curve, smallest: float) -> bool:
            return 0.0 < smallest < 1.0 and curve.estimate(smallest) > _HOPELESS * epsilon

        return self._smallest(
            lambda curve: curve.delta(epsilon, rtol, (UPPER,), enough)[1], hopeless, enough
        )

    def epsilon_by(self, delta: float, rtol: float, enough: float = 0.0) -> tuple[float, str]:
        """The smallest upper bound on epsilon(delta), and whose it is."""

        def hopeless(curve: Curve, smallest: float) -> bool:
            return curve.estimate(delta) > _HOPELESS * smallest

        return self._smallest(
            lambda curve: curve.epsilon(delta, rtol, (UPPER,), enough)[1], hopeless, enough
        )

    def _smallest(
        self,
        read: Callable[[Curve], float],
        hopeless: Callable[[Curve, float], bool],
        enough: float,
    ) -> tuple[float, str]:
        first, *others = self.curves
        smallest, winner = read(first), 0
        for rank, curve in enumerate(others, 1):
            if smallest <= enough or hopeless(curve, smallest):
                continue
            if (found := read(curve)) < smallest:
                smallest, winner = found, rank
        return smallest, self.names[winner] if self.names else ""
