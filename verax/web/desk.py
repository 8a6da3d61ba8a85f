"""Answers questions, not too many at once, whole or piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from starlette.responses import Response

from verax.web import ledgers
from verax.web.answers import Step
from verax.web.guard import Receive, Scope, Send
from verax.web.pool import Busy, Crashed, Emit, Pool, Refused, Task, TooCostly
from verax.web.settings import Settings

Produce = Callable[[Emit], Awaitable[None]]
CRASHED = "the computation failed; the server's own log says more"
_SIDE_BY_SIDE = 3  # tasks of one question that are computed at the same time
_LOOK = 0.5  # seconds between looks at a live ledger
_UPLOADS = 4  # ledgers that are in memory at the same time
_MISSES = 3  # times in a row that reading it may take too long


class Known:
    """Answers that were given lately, by task."""

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
    pool: Pool, known: Known, steps: Sequence[Step], emit: Emit, seconds: float
) -> None:
    """Emit the parts of all steps: what is known at once, the rest in order, a few side by side.

    A step that is refused says so in its place, unless it is the only one.
    """
    missing = []
    for step in steps:
        if step.until is not None and known.get(step.until) is not None:
            continue
        parts = known.get(step.task)
        if parts is None:
            missing.append(step)
        for part in parts or ():
            await emit(dict(step.label) | part)
    rest = iter(missing)

    async def one_after_the_other() -> None:
        for step in rest:
            parts: list[Any] = []

            async def pass_on(part: Any, step: Step = step, parts: list[Any] = parts) -> None:
                parts.append(part)
                await emit(dict(step.label) | part)

            try:
                await pool.run(step.task, pass_on, seconds)
            except Refused as error:
                if step.until is not None:
                    continue
                if len(steps) == 1:
                    raise
                await emit(dict(step.label) | {"why_not": str(error), "provisional": False})
                if isinstance(error, TooCostly):
                    continue  # perhaps not next time
                parts.append({"why_not": str(error), "provisional": False})
            known.keep(step.task, parts)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_SIDE_BY_SIDE):
                group.create_task(one_after_the_other())
    except ExceptionGroup as several:  # not except*, which before Python 3.11.4 raises groups only
        refused, others = several.split(Refused)
        raise (others or refused or several).exceptions[0] from None


class Desk:
    """One for each server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = Pool(settings.workers, settings.memory)
        self._known = Known()
        self._open = self._uploads = 0

    async def whole(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """All parts that are not provisional."""
        parts: list[dict[str, Any]] = []

        async def keep(part: Any) -> None:
            if not part.get("provisional"):
                parts.append(part)

        with self._counted():
            try:
                async with asyncio.timeout(self.settings.stream_seconds):
                    final = [step for step in steps if step.until is None]
                    await answer(self.pool, self._known, final, keep, self._seconds(steps))
            except TimeoutError:
                raise TooCostly(
                    f"this takes more than {self.settings.stream_seconds:g} seconds, "
                    "the most that one request may; ask for something smaller, "
                    "or use the command line, which waits"
                ) from None
        return parts

    def stream(self, steps: Sequence[Step]) -> EventStream:
        """All parts, as they come."""

        async def produce(emit: Emit) -> None:
            await emit({"kind": "begin", "of": sum(step.until is None for step in steps)})
            await answer(self.pool, self._known, steps, emit, self._seconds(steps))

        return self._streamed(produce)

    async def once(self, task: Task) -> dict[str, Any]:
        """The last part of a task that is not worth remembering."""
        parts: list[dict[str, Any]] = []

        async def keep(part: Any) -> None:
            parts.append(part)

        with self._counted():
            await self.pool.run(task, keep, self.settings.seconds)
        return parts[-1]

    def watch(self, source: ledgers.Source, delta: float, group: int) -> EventStream:
        """A ledger, again whenever it has changed, until its run is over or broken off."""
        path, task = (
            source[2],
            Task(ledgers.summary, (source, delta, group, self.settings.diagnostics), True),
        )

        async def produce(emit: Emit) -> None:
            seen, over, misses = None, False, 0

            async def pass_on(part: Any) -> None:
                nonlocal over
                over = part["over"]
                await emit({"kind": "run"} | part)

            while not over:
                now = ledgers.stamp(path)
                if now == seen:
                    silence = ledgers.quiet(path)
                    if silence is not None:
                        await emit({"kind": "quiet"} | silence)
                        return
                    await asyncio.sleep(_LOOK)
                    continue
                try:
                    await self.pool.run(task, pass_on, self.settings.seconds)
                    seen, misses = now, 0
                except (
                    TooCostly
                ):  # a run that is followed for long meets moments in which the machine is busy
                    misses += 1
                    if misses == _MISSES:
                        raise

        return self._streamed(produce)

    def _streamed(self, produce: Any) -> EventStream:
        counted = ExitStack()
        counted.enter_context(self._counted())
        return EventStream(produce, self.settings.stream_seconds, counted.close)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._open >= self.settings.requests:
            raise Busy(
                f"{self._open} requests are being answered, the most at once; try again in a moment"
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    @contextmanager
    def upload(self) -> Iterator[None]:
        """A place for one ledger that somebody sends, until it is read and answered."""
        if self._uploads >= _UPLOADS:
            raise Busy(
                f"{self._uploads} ledgers are being sent, the most at once; try again in a moment"
            )
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    def _seconds(self, steps: Sequence[Step]) -> float:
        """A single task, such as a whole frontier, may take as long as its request."""
        return self.settings.stream_seconds if len(steps) == 1 else self.settings.seconds


def event(name: str, value: Any) -> bytes:
    r"""One event.

    >>> event("part", {"x": 1})
    b'event: part\ndata: {"x": 1}\n\n'
    """
    return f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()


class EventStream(Response):
    """An ASGI response: parts as they are produced, then ``end``, or ``error`` with a message.

    When the reader goes away, the production is cancelled.
    """

    def __init__(self, produce: Produce, seconds: float, done: Callable[[], None]) -> None:
        super().__init__()
        self._produce, self._seconds, self._done = produce, seconds, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"x-accel-buffering", b"no"),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})

            async def emit(part: Any, name: str = "part") -> None:
                await send(
                    {"type": "http.response.body", "body": event(name, part), "more_body": True}
                )

            work = asyncio.ensure_future(self._produce(emit))
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await asyncio.wait(
                    {work, gone}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if gone.done() and not work.done():
                    return
                await emit(*_ending(work, self._seconds))
                await send({"type": "http.response.body", "body": b""})
            finally:
                work.cancel()
                gone.cancel()
                await asyncio.gather(work, gone, return_exceptions=True)
        finally:
            self._done()


def _ending(work: asyncio.Future[None], seconds: float) -> tuple[Any, str]:
    """The last event."""
    if not work.done():
        return {
            "message": f"stopped after {seconds:g} seconds, the most that one request may take"
        }, "error"
    match work.exception():
        case None:
            return {}, "end"
        case Refused() | Busy() as error:
            return {"message": str(error)}, "error"
        case Crashed():
            return {"message": CRASHED}, "error"
        case error:
            raise error


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
