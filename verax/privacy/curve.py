"""What a guarantee is made of."""

from __future__ import annotations

from typing import Protocol

from verax.privacy.composition import BOTH, Sides


class Curve(Protocol):
    """Bounds on the privacy curve of one direction; see :class:`verax.privacy.composition.Composition`."""

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on epsilon(delta)."""

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on delta(epsilon)."""
