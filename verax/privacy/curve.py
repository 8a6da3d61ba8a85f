"""What a guarantee is made of."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Protocol, cast

from verax.privacy.composition import BOTH, Composition, Sides


class Curve(Protocol):
    """Bounds on the privacy curve of one direction; see :class:`verax.privacy.composition.Composition`."""

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on epsilon(delta)."""

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on delta(epsilon)."""


def remembering(curve: Curve) -> Curve:
    """A copy in which every composition, however deep inside, remembers what it composed for earlier questions."""
    if isinstance(curve, Composition):
        return curve.remembering()
    inside: object = curve
    if not is_dataclass(inside) or isinstance(inside, type):
        return curve
    found: dict[str, object] = {}
    for name in (field.name for field in fields(inside) if field.init):
        part = getattr(curve, name)
        if isinstance(part, tuple) and part and all(hasattr(one, "estimate") for one in part):
            found[name] = tuple(remembering(one) for one in part)
        elif hasattr(part, "estimate"):
            found[name] = remembering(part)
    return cast("Curve", replace(inside, **found)) if found else curve
