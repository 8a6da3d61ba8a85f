"""Bounds on the length and the duration of request bodies, as plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from verax.web.guard import Receive, Scope, Send

SMALL = 4096  # bytes; more than any body but a ledger has


class BodyLimit:
    """Refuses a body as soon as it is too long or too slow.

    Args:
        app: what is asked.
        large: the most bytes of a body by path; every other path takes ``SMALL``.
        seconds: in which a body must have come.
    """

    def __init__(self, app: Any, large: Mapping[str, int], seconds: float) -> None:
        self._app, self._large, self._seconds = app, large, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask the application, which reads through us."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._large.get(scope["path"], SMALL)
        other = "; verax report reads ledgers of any length" if scope["path"] in self._large else ""
        refusal = f"the body of this request may have at most {most} bytes here{other}"
        if _declared(scope) > most:
            await JSONResponse({"message": refusal}, 413)(scope, receive, send)
            return
        until = asyncio.get_running_loop().time() + self._seconds
        length, more = 0, True

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal length, more
            # what comes now is that the client has gone, which may take as long as the answer
            if not more:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the body must come within {self._seconds:g} seconds"
                ) from None
            more = bool(message.get("more_body"))
            length += len(message.get("body", b""))
            if length > most:
                raise HTTPException(413, refusal)
            return message

        await self._app(scope, bounded, send)


def _declared(scope: Scope) -> int:
    """The length that the head promises, if it does."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
