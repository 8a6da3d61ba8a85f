"""Answers requests: which tasks of worker processes, in which order, whole or piece by piece."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from verax.federated.observers import OBSERVERS
from verax.web import computations, ledgers
from verax.web.events import EventStream, Produce
from verax.web.plan_grid import pricing_named
from verax.web.requests import (
    MOST_ROUNDS,
    ChangesRequest,
    CompareRequest,
    FederatedRequest,
    PlanRequest,
)
from verax.web.settings import Settings
from verax.web.worker import Emit, RequestRefused, ServerBusy, Task, TooCostly, WorkerPool

# Models of participation, from the least to the most that a client's record costs.
MODELS = ("CS", computations.PARTICIPATION, "WCS", "OLS")
# By figure, the parameter across and where epsilon is read: always the same places, so that they
# are computed once.
AXES: dict[str, tuple[str, tuple[float, ...]]] = {
    "noise": ("noise_multiplier", tuple(round(0.3 * 40.0 ** (i / 16), 4) for i in range(17))),
    "epochs": ("epochs", (1, 2, 3, 5, 8, 12, 20, 32, 50, 80, 120, 200)),
    "rounds": ("rounds", (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)),
    "client-rate": ("client_rate", (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)),
}
_RTOL, _FIGURE_RTOL = 1e-3, 1e-2
# Tasks of one request that are computed at the same time.
_SIDE_BY_SIDE = 3
# Seconds between looks at a live ledger, and how often in a row reading it may take too long.
_WATCH_SECONDS, _MOST_MISSES = 0.5, 3
# Ledgers that are in memory at the same time.
_MOST_UPLOADS = 4


@dataclass(frozen=True)
class Step:
    """A task, what its parts are about, and the task that makes a provisional answer needless."""

    label: dict[str, Any]
    task: Task
    until: Task | None = None


class AnswerCache:
    """The answers to the tasks that were asked for most recently."""

    def __init__(self, most: int = 20_000) -> None:
        self._answers: OrderedDict[Task, Sequence[Any]] = OrderedDict()
        self._most = most

    def get(self, task: Task) -> Sequence[Any] | None:
        """The parts of the answer, if it is known."""
        found = self._answers.get(task)
        if found is not None:
            self._answers.move_to_end(task)
        return found

    def keep(self, task: Task, parts: Sequence[Any]) -> None:
        """Remember the parts that are not provisional; forget the least recently asked."""
        self._answers[task] = [part for part in parts if not part.get("provisional")]
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)


async def answer(
    pool: WorkerPool, cache: AnswerCache, steps: Sequence[Step], emit: Emit, seconds: float
) -> None:
    """Emit the parts of all steps: what is known at once, the rest in order, a few side by side.

    A step that is refused says so in its place, unless it is the only one.
    """
    missing = []
    for step in steps:
        if step.until is not None and cache.get(step.until) is not None:
            continue
        parts = cache.get(step.task)
        if parts is None:
            missing.append(step)
        for part in parts or ():
            await emit(step.label | part)
    rest = iter(missing)

    async def run_missing() -> None:
        for step in rest:
            parts: list[Any] = []

            async def pass_on(part: Any, step: Step = step, parts: list[Any] = parts) -> None:
                parts.append(part)
                await emit(step.label | part)

            try:
                await pool.run(step.task, pass_on, seconds)
            except RequestRefused as error:
                if step.until is not None:
                    continue
                if len(steps) == 1:
                    raise
                refusal = {"why_not": str(error), "provisional": False}
                await emit(step.label | refusal)
                if isinstance(error, TooCostly):
                    continue  # perhaps not next time
                parts.append(refusal)
            cache.keep(step.task, parts)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_SIDE_BY_SIDE):
                group.create_task(run_missing())
    except ExceptionGroup as several:  # not except*, which before Python 3.11.4 raises groups only
        refused, others = several.split(RequestRefused)
        raise (others or refused or several).exceptions[0] from None


class Slots:
    """A bounded number of places, each taken for a while; ``ServerBusy`` if none is free."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what, self._taken = most, what, 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Take a place until the block ends."""
        if self._taken >= self._most:
            raise ServerBusy(f"{self._taken} {self._what}, the most at once; try again in a moment")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class Service:
    """Answers requests, a bounded number at a time; one for each server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = WorkerPool(settings.workers, settings.memory)
        self._cache = AnswerCache()
        self._requests = Slots(settings.requests, "requests are being answered")
        self.uploads = Slots(_MOST_UPLOADS, "ledgers are being sent")

    async def whole(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """The answer in whole: all parts that are not provisional."""
        parts: list[dict[str, Any]] = []

        async def keep(part: Any) -> None:
            if not part.get("provisional"):
                parts.append(part)

        with self._requests.take():
            try:
                async with asyncio.timeout(self.settings.stream_seconds):
                    final = [step for step in steps if step.until is None]
                    await answer(self.pool, self._cache, final, keep, self._seconds(steps))
            except TimeoutError:
                raise TooCostly(
                    f"this takes more than {self.settings.stream_seconds:g} seconds, "
                    "the most that one request may; ask for something smaller, "
                    "or use the command line, which waits"
                ) from None
        return parts

    def stream(self, steps: Sequence[Step]) -> EventStream:
        """The answer as a stream of parts, as they are computed."""

        async def produce(emit: Emit) -> None:
            await emit({"kind": "begin", "of": sum(step.until is None for step in steps)})
            await answer(self.pool, self._cache, steps, emit, self._seconds(steps))

        return self._streamed(produce)

    def summary_task(self, source: ledgers.Source, delta: float, group: int) -> Task:
        """What a ledger proves; with diagnostics if this server shows them."""
        return Task(ledgers.summary, (source, delta, group, self.settings.diagnostics), True)

    async def once(self, task: Task) -> dict[str, Any]:
        """The last part of a task whose answer is not cached."""
        parts: list[dict[str, Any]] = []

        async def keep(part: Any) -> None:
            parts.append(part)

        with self._requests.take():
            await self.pool.run(task, keep, self.settings.seconds)
        return parts[-1]

    def watch(self, source: ledgers.Source, delta: float, group: int) -> EventStream:
        """A stream of what a ledger proves, whenever it has changed, until its run has ended."""
        path, task = source[2], self.summary_task(source, delta, group)

        async def produce(emit: Emit) -> None:
            version, over, misses = None, False, 0

            async def pass_on(part: Any) -> None:
                nonlocal over
                over = part["over"]
                await emit({"kind": "run"} | part)

            while not over:
                now = ledgers.version_of(path)
                if now == version:
                    silence = ledgers.silence(path)
                    if silence is not None:
                        await emit({"kind": "quiet"} | silence)
                        return
                    await asyncio.sleep(_WATCH_SECONDS)
                    continue
                try:
                    await self.pool.run(task, pass_on, self.settings.seconds)
                    version, misses = now, 0
                except TooCostly:  # the machine may be busy for a moment of a long run
                    misses += 1
                    if misses == _MOST_MISSES:
                        raise

        return self._streamed(produce)

    def _streamed(self, produce: Produce) -> EventStream:
        place = ExitStack()
        place.enter_context(self._requests.take())
        return EventStream(produce, self.settings.stream_seconds, place.close)

    def _seconds(self, steps: Sequence[Step]) -> float:
        """A single task, such as a whole frontier, may take as long as its request."""
        return self.settings.stream_seconds if len(steps) == 1 else self.settings.seconds


def compare_steps(asked: CompareRequest) -> list[Step]:
    """Rows first, the quick ones before the slow ones, then what the figure needs."""
    pricings = {name: pricing_named(name) for name in asked.sampler}
    names = sorted(
        pricings, key=lambda name: (pricings[name].slow_bound, pricings[name].slow_attack)
    )

    def epsilon(name: str, rtol: float, **other: Any) -> Task:
        pricing = pricings[name]
        slow = pricing.slow_attack or (asked.group > 1 and pricing.slow_groups)
        run = asked.run(name, **other)
        return Task(computations.epsilon, (run, asked.delta, rtol), slow or rtol == _FIGURE_RTOL)

    def upper_side(name: str, task: Task) -> Task:
        return Task(computations.upper_side, task.arguments, pricings[name].slow_bound)

    tasks = {name: epsilon(name, _RTOL) for name in names}
    rows = [Step(_row(name), task) for name, task in tasks.items()]
    quick = [
        Step(_row(name), upper_side(name, task), until=task)
        for name, task in tasks.items()
        if asked.group == 1 and pricings[name].slow_attack
    ]
    figure = _figure_steps(
        asked.figure,
        names,
        epsilon,
        lambda name: Task(computations.curve, (asked.run(name), asked.delta), True),
        lambda x: asked.figure != "epochs" or x * asked.records <= MOST_ROUNDS * asked.batch,
    )
    return [
        *(step for step in rows if not step.task.slow),
        *quick,
        *(step for step in rows if step.task.slow),
        *figure,
    ]


def plan_steps(asked: PlanRequest) -> list[Step]:
    """One task for the whole frontier; its parts say how far it is."""
    grid = asked.grid()
    arguments = asked.target(), grid.points(), asked.limits(), asked.rank, grid.notes()
    return [Step({"kind": "plan"}, Task(computations.plans, arguments, True))]


def change_steps(asked: ChangesRequest) -> list[Step]:
    """What changes to one plan cost."""
    (point,) = asked.grid().points()
    task = Task(computations.plan_changes, (asked.target(), *point), True)
    return [Step({"kind": "change"}, task)]


def federated_steps(asked: FederatedRequest) -> list[Step]:
    """The client and what it is compared with, its observers, then what the figure needs."""

    def run(model: str, noise_multiplier: float, **other: Any) -> computations.ClientRun:
        return computations.ClientRun(model, asked.client(**other), noise_multiplier)

    def epsilon(model: str, rtol: float, **other: Any) -> Task:
        described = run(model, **({"noise_multiplier": asked.noise_multiplier} | other))
        return Task(computations.epsilon, (described, asked.delta, rtol), rtol == _FIGURE_RTOL)

    def curve(model: str) -> Task:
        return Task(computations.curve, (run(model, asked.noise_multiplier), asked.delta), True)

    observers = [
        Step(
            {"kind": "observer", "observer": observer, "trusted": trusted},
            Task(
                computations.observer,
                (asked.federation(trusted), observer, asked.delta, _RTOL),
                True,
            ),
        )
        for observer in OBSERVERS
        for trusted in (True, False)
    ]
    rows = [Step(_row(model), epsilon(model, _RTOL)) for model in MODELS]
    return rows + observers + _figure_steps(asked.figure, MODELS, epsilon, curve)


def _row(name: str) -> dict[str, Any]:
    return {"kind": "row", "sampler": name}


def _figure_steps(
    figure: str,
    names: Sequence[str],
    epsilon: Callable[..., Task],
    curve: Callable[[str], Task],
    allowed: Callable[[float], bool] = lambda x: True,
) -> list[Step]:
    """What one figure needs: epsilon along an axis, or a curve of each name; or nothing."""
    if figure in AXES:
        field, values = AXES[figure]
        return [
            Step(
                {"kind": "point", "sampler": name, "x": x},
                epsilon(name, _FIGURE_RTOL, **{field: x}),
            )
            for x in coarse_first([value for value in values if allowed(value)])
            for name in names
        ]
    if figure == "none":
        return []
    return [Step({"kind": "curve", "sampler": name}, curve(name)) for name in names]


def coarse_first(values: Sequence[Any]) -> Iterator[Any]:
    """All values, the ends and the middle first, then ever finer.

    >>> list(coarse_first([0, 1, 2, 3, 4]))
    [0, 4, 2, 1, 3]
    """
    last = len(values) - 1
    done: set[int] = set()
    parts = 1
    while len(done) < len(values):
        for i in range(parts + 1):
            place = round(i * last / parts)
            if place not in done:
                done.add(place)
                yield values[place]
        parts *= 2
