"""Proactive training: utility graph, calculator, run, accuracy check, next phase (docs/utility.md).

The flow chart of "Proactive DP", figure 15, with two changes: phases are accepted by a budget
(:class:`verax.privacy.renyi.filter.Budget`), which is proved for choices made on the way, and the
accountant takes the place of the closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verax import checks
from verax.mechanism import Individual, Mechanism
from verax.planning.utility import UtilityGraph
from verax.privacy.renyi.filter import Budget, OverBudget
from verax.samplers import Poisson

if TYPE_CHECKING:
    from torch import Tensor, nn

DROPS = (0.2, 0.1, 0.05, 0.02)


@dataclass(frozen=True)
class Ran:
    """A phase that ran: its plan, the drop allowed by the graph, and the accuracy afterwards."""

    mechanism: Mechanism
    drop: float
    learning_rate: float
    accuracy: float
    used: float
    """The budget's gauge after the phase."""


@dataclass(frozen=True)
class Flow:
    """All phases, and why it ended: ``goal`` reached, ``budget`` used up, or no ``drops`` left."""

    phases: tuple[Ran, ...]
    ended: str

    @property
    def accuracy(self) -> float:
        """After the last phase; 0 if none ran."""
        return self.phases[-1].accuracy if self.phases else 0.0


def calculate(
    graph: UtilityGraph, drop: float, records: int, batch: int, epochs: int
) -> tuple[Mechanism, float] | None:
    """The phase with the most noise that the graph tolerates at this drop, and its learning rate.

    The phase walks the graph's path in its own number of rounds; the noise that adds up on the
    weights is then sigma.

    >>> from verax.planning.utility import Line, Point
    >>> line = Line(0.5, 0.95, (Point(0.1, 0.99, 0.98, 1.0), Point(0.4, 0.8, 0.78, 0.82)))
    >>> graph = UtilityGraph(
    ...     (line,), learning_rate=0.5, rounds=40, draws=20, confidence=0.95, public=True
    ... )
    >>> phase, learning_rate = calculate(graph, drop=0.1, records=10_000, batch=1_000, epochs=4)
    >>> phase.clipping.norm, len(phase.sampler), round(phase.noise_multiplier, 1), learning_rate
    (0.5, 40, 69.6, 0.5)
    """
    found = graph.pick(drop)
    if found is None:
        return None
    line, sigma = found
    size = min(checks.count("batch", batch), checks.count("records", records))
    rounds = math.ceil(checks.count("epochs", epochs) * records / size)
    noise = sigma * size * math.sqrt(rounds) / graph.path
    return Mechanism(
        Poisson(size / records, rounds), noise, Individual(line.clip_norm)
    ), graph.path / rounds


def proactive(
    model: nn.Module,
    loss: Callable[..., Tensor],
    dataset: Any,
    check: Callable[[nn.Module], float],
    *,
    goal: float,
    graph: UtilityGraph,
    budget: Budget,
    records: int,
    batch: int,
    epochs: int,
    drops: Sequence[float] = DROPS,
    ledgers: Path | None = None,
    insecure_seed: int | None = None,
) -> Flow:
    """Train in phases, most noise first, until the accuracy is good enough or the budget refuses.

    Args:
        model: trained in place; every phase goes on from the one before.
        loss: a torch criterion.
        dataset: the private records.
        check: from the model to its accuracy, on public records: what it sees decides what runs
            next.
        goal: the accuracy at which to stop.
        graph: how much noise the model bears.
        budget: accepts or refuses every phase before it runs.
        records: the public number of records, by which the sampling rate is set.
        batch: expected batch size.
        epochs: passes over the data in one phase.
        drops: tolerated losses of accuracy, one per phase: smaller ones ask for less noise.
        ledgers: a folder for the ledger of every phase.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.
    """
    import torch

    from verax.training import fit

    ran: list[Ran] = []
    for number, drop in enumerate(drops):
        found = calculate(graph, drop, records, batch, epochs)
        if found is None:
            continue
        phase, learning_rate = found
        try:
            budget.spend(phase)
        except OverBudget as refused:
            if refused.most_rounds == 0:
                return Flow(tuple(ran), "budget")
            phase = replace(phase, sampler=replace(phase.sampler, steps=refused.most_rounds))  # type: ignore[type-var]
            budget.spend(phase)
        fit(
            model,
            loss,
            dataset,
            phase,
            lambda p, rate=learning_rate: torch.optim.SGD(p, rate),  # type: ignore[misc]
            ledger=None if ledgers is None else ledgers / f"phase-{number}.ledger",
            delta=budget.delta,
            progress=False,
            insecure_seed=None if insecure_seed is None else insecure_seed + number,
        )
        ran.append(Ran(phase, drop, learning_rate, check(model), budget.used))
        if ran[-1].accuracy >= goal:
            return Flow(tuple(ran), "goal")
        if len(phase.sampler) < len(found[0].sampler):
            return Flow(tuple(ran), "budget")
    return Flow(tuple(ran), "drops")
