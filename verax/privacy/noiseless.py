"""A run without noise: whoever is sampled is exposed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verax.privacy.composition import BOTH, Sides


@dataclass(frozen=True)
class Noiseless:
    """delta(eps) is the probability ``visible`` of being seen at all, whatever epsilon is."""

    visible: float

    def estimate(self, delta: float) -> float:
        """Infinite unless delta allows for being seen."""
        return math.inf if delta < self.visible else 0.0

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Infinite unless delta allows for being seen."""
        return self.estimate(delta), self.estimate(delta)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """The same at every epsilon."""
        return self.visible, self.visible
