"""Server-sent events: the parts of an answer as they are computed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from verax.web.auth import Receive, Scope, Send
from verax.web.worker import Emit, RequestRefused, ServerBusy, WorkerCrashed

Produce = Callable[[Emit], Awaitable[None]]
CRASHED = "the computation failed; the server's own log says more"


def event(name: str, value: Any) -> bytes:
    r"""One server-sent event as bytes.

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
            gone = asyncio.ensure_future(_disconnected(receive))
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
    """The last event of a stream: its content and its name."""
    if not work.done():
        return {
            "message": f"stopped after {seconds:g} seconds, the most that one request may take"
        }, "error"
    match work.exception():
        case None:
            return {}, "end"
        case RequestRefused() | ServerBusy() as error:
            return {"message": str(error)}, "error"
        case WorkerCrashed():
            return {"message": CRASHED}, "error"
        case error:
            raise error


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
