"""Rounds without noise: a record that is sampled in one of them is exposed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verax.privacy.curves.base import Curve
from verax.privacy.numerics.rounding import OPS_8M, down
from verax.privacy.pld.composition import BOTH, Bounds, Sides


@dataclass(frozen=True)
class NoiselessRounds:
    """The group is seen outright with probability ``exposure``; otherwise only ``rest`` is seen.

    From above delta is at most ``exposure`` plus the delta of the rest (condition on being seen),
    from below it is at least the larger of the two.
    """

    exposure: float
    rest: Curve | None = None

    def estimate(self, delta: float) -> float:
        """Infinite unless delta allows for being seen."""
        if delta < self.exposure:
            return math.inf
        return self.rest.estimate(delta) if self.rest else 0.0

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Infinite unless delta allows for being seen."""
        if delta < self.exposure:
            return math.inf, math.inf
        if self.rest is None:
            return 0.0, 0.0
        left = down(delta - self.exposure, OPS_8M)
        upper = self.rest.epsilon(left, rtol, sides, enough)[1] if left > 0.0 else math.inf
        return self.rest.epsilon(delta, rtol, sides, enough)[0], upper

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """The probability of being seen, and what the rest adds."""
        lower, upper = self.rest.delta(epsilon, rtol, sides, enough) if self.rest else (0.0, 0.0)
        return max(lower, self.exposure), min(upper + self.exposure, 1.0)
