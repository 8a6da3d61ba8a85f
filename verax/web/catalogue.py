"""Everything a computing process can be asked for, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from verax.web import ledgers, tasks

TASKS: dict[str, Callable[..., Iterable[tasks.Part]]] = {
    "epsilon": tasks.epsilon,
    "at-most": tasks.at_most,
    "curve": tasks.curve,
    "plans": tasks.plans,
    "costs": tasks.costs,
    "participation": tasks.participation,
    "observer": tasks.observer,
    "participation-curve": tasks.participation_curve,
    "summary": ledgers.summary,
    "statement": ledgers.statement,
    "together": ledgers.together,
}
