"""Mechanisms as plain JSON values and back, so that a file can say what ran.

A description never changes its meaning: new samplers and fields get a new ``SCHEMA``, and unknown
ones are refused rather than guessed at.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from verax.mechanism import Batch, Individual, Mechanism, Mixed, Phases
from verax.samplers import registry

SCHEMA = 1
CLIPPINGS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Individual, Batch, Mixed)}


def describe(mechanism: Mechanism | Phases) -> dict[str, Any]:
    """Everything that defines the mechanism, as JSON values; :func:`restore` is the inverse.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> describe(run)["phases"][0]["sampler"]
    {'kind': 'Poisson', 'rate': 0.01, 'steps': 1000}
    >>> restore(describe(run)) == run
    True
    """
    phases = mechanism.mechanisms if isinstance(mechanism, Phases) else (mechanism,)
    return {"schema": SCHEMA, "phases": [_phase(phase) for phase in phases]}


def restore(description: Any) -> Mechanism | Phases:
    """The mechanism that was described; one phase alone comes back as a ``Mechanism``."""
    content = _exactly("description", description, ("schema", "phases"))
    if content["schema"] != SCHEMA or isinstance(content["schema"], bool):
        raise ValueError(
            f"schema must be {SCHEMA}, the only one this version knows, got {content['schema']!r}"
        )
    if not isinstance(content["phases"], list) or not content["phases"]:
        raise ValueError(f"phases must be a list of at least one, got {content['phases']!r}")
    phases = tuple(_restored(phase) for phase in content["phases"])
    return phases[0] if len(phases) == 1 else Phases(phases)


def _phase(mechanism: Mechanism) -> dict[str, Any]:
    return {
        "sampler": _part("sampler", mechanism.sampler, registry.kinds()),
        "noise_multiplier": float(mechanism.noise_multiplier),
        "clipping": _part("clipping", mechanism.clipping, CLIPPINGS),
        "relation": mechanism.relation,
    }


def _restored(phase: Any) -> Mechanism:
    content = _exactly("phase", phase, ("sampler", "noise_multiplier", "clipping", "relation"))
    if not content["relation"]:
        raise ValueError(f"relation must be named, got {content['relation']!r}")
    return Mechanism(
        _made("sampler", content["sampler"], registry.kinds()),
        content["noise_multiplier"],
        _made("clipping", content["clipping"], CLIPPINGS),
        content["relation"],
    )


def _part(name: str, value: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    kind = type(value)
    if kinds.get(kind.__name__) is not kind:  # a subclass may draw something else
        raise ValueError(f"{name} must be one of {', '.join(kinds)} to be described, got {value!r}")
    return {
        "kind": kind.__name__,
        **{
            field.name: _plain(getattr(value, field.name))
            for field in fields(kind)
            if getattr(value, field.name) is not None
        },
    }


def _made(name: str, description: Any, kinds: Mapping[str, type[Any]]) -> Any:
    named = description.get("kind") if isinstance(description, dict) else None
    if not isinstance(named, str) or named not in kinds:
        raise ValueError(f"{name} must be one of {', '.join(kinds)}, got {description!r}")
    kind = kinds[named]
    # what is None is left out
    names = [
        field.name
        for field in fields(kind)
        if field.default is not None or field.name in description
    ]
    content = _exactly(named, description, ("kind", *names))
    return kind(**{key: value for key, value in content.items() if key != "kind"})


def _exactly(name: str, value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        found = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
        raise ValueError(
            f"{name} must have exactly the fields {', '.join(map(repr, keys))}, got {found}"
        )
    return value


def _plain(value: Any) -> bool | int | float:
    """A field of a description as Python's own number."""
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)
