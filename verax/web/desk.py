"""Answers questions, not too many at once, whole or piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from verax.web import ledgers
from verax.web.answers import Known, Step, answer
from verax.web.pool import Busy, Emit, Pool, Task, TooCostly
from verax.web.settings import Settings
from verax.web.stream import EventStream

_LOOK = 0.5  # seconds between looks at a live ledger
_UPLOADS = 4  # ledgers that are in memory at the same time
_MISSES = 3  # times in a row that reading it may take too long


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
            Task("summary", (source, delta, group, self.settings.diagnostics), True),
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
