"""Parts of a statement as values that JSON can hold; the browser shows the same."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from verax.ledger.run import Run
from verax.mechanism import Phases
from verax.privacy.guarantee import Bracket


def json_number(value: float) -> float | str:
    """The number, or "inf": JSON has no infinity."""
    return "inf" if math.isinf(value) else value


def json_bracket(bracket: Bracket) -> dict[str, Any]:
    """A bracket as values that JSON can hold."""
    sides = {"lower": json_number(bracket.lower), "upper": json_number(bracket.upper)}
    by = {"lower_by": bracket.lower_by, "upper_by": bracket.upper_by}
    return sides | {"evidence": bracket.evidence} | by


def json_phases(setting: Phases) -> list[dict[str, Any]]:
    """Who is in each batch of every phase, and with how much noise."""
    return [
        {
            "sampler": _kind_and_fields(phase.sampler),
            "rounds": len(phase.sampler),
            "noise_multiplier": float(phase.noise_multiplier),
            "clipping": _kind_and_fields(phase.clipping),
        }
        for phase in setting.mechanisms
    ]


def _kind_and_fields(value: Any) -> dict[str, Any]:
    named = {field.name: getattr(value, field.name) for field in fields(value)}
    named = {name: part for name, part in named.items() if part is not None}
    return {"kind": type(value).__name__} | named


def json_run(run: Run) -> dict[str, Any]:
    """What a ledger says of its run, but for the phases, as values that JSON can hold."""
    ended = run.ended
    return {
        "run": run.id,
        "begun": run.time,
        "verax": run.verax,
        "head": run.head,
        "declared": run.declared,
        "released": run.released,
        "resumed": sum(event.kind == "resumed" for event in run.events),
        "torn": run.torn,
        "ended": ended and {"how": ended.kind, "reason": ended.reason, "private": ended.private},
        "population": run.population,
        "insecure_seed": run.insecure_seed,
    }
