"""What a guarantee is made of."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Protocol, cast, runtime_checkable

from verax.privacy.pld.composition import BOTH, Bounds, Sides


class Curve(Protocol):
    """Bounds on the privacy curve of one direction, as a ``Composition`` has them."""

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on epsilon(delta)."""

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on delta(epsilon)."""


@runtime_checkable
class _SharesPlds(Protocol):
    def with_shared_plds(self) -> Curve: ...


def with_shared_plds(curve: Curve) -> Curve:
    """A copy in which every composition inside remembers what it composed."""
    if isinstance(curve, _SharesPlds):
        return curve.with_shared_plds()
    inside: object = curve
    if not is_dataclass(inside) or isinstance(inside, type):
        return curve
    parts = {field.name: getattr(curve, field.name) for field in fields(inside) if field.init}
    copies = {name: _with_shared_parts(part) for name, part in parts.items()}
    if all(copies[name] is part for name, part in parts.items()):
        return curve
    return cast("Curve", replace(inside, **copies))


def _with_shared_parts(part: object) -> object:
    """A curve that remembers, or a tuple of such, however deep; anything else as it is."""
    if type(part) is tuple:
        copies = tuple(_with_shared_parts(one) for one in part)
        return part if all(one is copy for one, copy in zip(part, copies, strict=True)) else copies
    return with_shared_plds(cast("Curve", part)) if hasattr(part, "estimate") else part
