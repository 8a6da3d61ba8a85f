"""Which tasks answer a question, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verax.federated.observers import OBSERVERS
from verax.web import questions, tasks
from verax.web.pool import Task

NOISES = tuple(round(0.3 * 40.0 ** (i / 16), 4) for i in range(17))
"""Where epsilon is read for a figure against noise: from 0.3 to 12, always the same, so that they
are computed once.
"""
EPOCHS = (1, 2, 3, 5, 8, 12, 20, 32, 50, 80, 120, 200)
ROUNDS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
CLIENT_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_RTOL, _FIGURE_RTOL = 1e-3, 1e-2


@dataclass(frozen=True)
class Step:
    """A task and what its parts are about."""

    label: tuple[tuple[str, Any], ...]
    task: Task
    until: Task | None = None
    """For a step whose answer is provisional: the task that makes it needless."""

    @staticmethod
    def of(task: Task, until: Task | None = None, /, **label: Any) -> Step:
        """A step with this label."""
        return Step(tuple(label.items()), task, until)


def compare(asked: questions.Compare) -> list[Step]:
    """Rows first, the quick ones before the slow ones, then what the figure needs."""
    ways = sorted(
        dict.fromkeys(asked.sampler),
        key=lambda way: (
            questions.pricing_named(way).slow_bound,
            questions.pricing_named(way).slow_attack,
        ),
    )
    rows = {way: _epsilon(asked, way, _RTOL) for way in ways}
    steps = [Step.of(task, kind="row", sampler=way) for way, task in rows.items() if not task.slow]
    if asked.group == 1:
        steps += [
            Step.of(
                Task(tasks.at_most, task.arguments, questions.pricing_named(way).slow_bound),
                task,
                kind="row",
                sampler=way,
            )
            for way, task in rows.items()
            if questions.pricing_named(way).slow_attack
        ]
    steps += [Step.of(task, kind="row", sampler=way) for way, task in rows.items() if task.slow]
    match asked.figure:
        case "noise":
            steps += _along(asked, ways, "noise_multiplier", NOISES)
        case "epochs":
            fitting = [
                e for e in EPOCHS if e * asked.records <= questions.MOST_ROUNDS * asked.batch
            ]
            steps += _along(asked, ways, "epochs", fitting)
        case "delta" | "tradeoff":
            steps += [
                Step.of(
                    Task(tasks.curve, (asked.setting(way), asked.delta), True),
                    kind="curve",
                    sampler=way,
                )
                for way in ways
            ]
    return steps


def _along(
    asked: questions.Compare, ways: Sequence[str], name: str, values: Sequence[float]
) -> list[Step]:
    return [
        Step.of(
            _epsilon(asked, way, _FIGURE_RTOL, **{name: value}), kind="point", sampler=way, x=value
        )
        for value in coarse_first(values)
        for way in ways
    ]


def _epsilon(asked: questions.Compare, way: str, rtol: float, **other: Any) -> Task:
    slow = (
        rtol != _RTOL
        or questions.pricing_named(way).slow_attack
        or (asked.group > 1 and questions.pricing_named(way).slow_groups)
    )
    return Task(tasks.epsilon, (asked.setting(way, **other), asked.delta, rtol), slow)


def coarse_first(values: Sequence[Any]) -> Iterator[Any]:
    """All values, the ends and the middle first, then ever finer.

    >>> list(coarse_first([0, 1, 2, 3, 4]))
    [0, 4, 2, 1, 3]
    """
    last = len(values) - 1
    seen: set[int] = set()
    parts = 1
    while len(seen) < len(values):
        for i in range(parts + 1):
            place = round(i * last / parts)
            if place not in seen:
                seen.add(place)
                yield values[place]
        parts *= 2


def plan(asked: questions.Plan) -> list[Step]:
    """One task, which says how far it is."""
    task = Task(
        tasks.plans,
        (asked.target(), asked.points(), asked.limits(), asked.rank, asked.notes()),
        True,
    )
    return [Step.of(task, kind="plan")]


def costs(asked: questions.Chosen) -> list[Step]:
    """What changes to one plan cost."""
    return [Step.of(Task(tasks.costs, (asked.target(), *asked.points()[0]), True), kind="change")]


NAMES = ("CS", "participation", "WCS", "OLS")


def federated(asked: questions.Federated) -> list[Step]:
    """The client and what it is compared with, then what the figure needs."""
    noise = asked.noise_multiplier

    def task(name: str, rtol: float, noise: float = noise, **other: Any) -> Task:
        return Task(
            tasks.participation,
            (name, asked.client(**other), noise, asked.delta, rtol),
            rtol != _RTOL,
        )

    steps = [Step.of(task(name, _RTOL), kind="row", sampler=name) for name in NAMES]
    steps += [
        Step.of(
            Task(tasks.observer, (asked.federation(trusted), observer, asked.delta, _RTOL), True),
            kind="observer",
            observer=observer,
            trusted=trusted,
        )
        for observer in OBSERVERS
        for trusted in (True, False)
    ]
    match asked.figure:
        case "noise":
            points = [
                (value, task(name, _FIGURE_RTOL, value), name)
                for value in coarse_first(NOISES)
                for name in NAMES
            ]
        case "rounds":
            points = [
                (v, task(name, _FIGURE_RTOL, rounds=v), name)
                for v in coarse_first(ROUNDS)
                for name in NAMES
            ]
        case "client-rate":
            points = [
                (v, task(name, _FIGURE_RTOL, client_rate=v), name)
                for v in coarse_first(CLIENT_RATES)
                for name in NAMES
            ]
        case "delta" | "tradeoff":
            curves = (
                Task(tasks.participation_curve, (name, asked.client(), noise, asked.delta), True)
                for name in NAMES
            )
            return steps + [
                Step.of(task, kind="curve", sampler=name)
                for name, task in zip(NAMES, curves, strict=True)
            ]
        case _:
            points = []
    return steps + [
        Step.of(one, kind="point", sampler=name, x=value) for value, one, name in points
    ]
