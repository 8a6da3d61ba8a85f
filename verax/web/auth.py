"""Who may ask, and with how long a body; and security headers. Plain ASGI middleware."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders

from verax.web import pages
from verax.web.settings import Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

COOKIE = "verax_session"
# Bytes that a body may have, unless it is a ledger.
SMALL_BODY = 4096
# Paths that need no token.
OPEN_PATHS = ("/login", "/api/login", "/static/login.js", "/static/style.css")
# Requests that are answered at the same time; the service limits how many of them compute.
MOST_AT_ONCE = 100

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Passes a request to ``api`` if its host and origin are ours and it shows the token."""

    def __init__(self, api: Any, settings: Settings) -> None:
        self.api, self._settings = api, settings
        self._key = secrets.token_bytes(32)  # cookies end with the process
        self._open = 0

    @property
    def session(self) -> str:
        """What the cookie of somebody who has shown the token holds."""
        return hmac.new(self._key, self._settings.token.encode(), hashlib.sha256).hexdigest()

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return bool(self._settings.token) and hmac.compare_digest(
            token.encode(), self._settings.token.encode()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with our headers on the answer."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.api(scope, receive, send)
            return
        scope["verax.guard"] = self
        refusal = self._refusal(scope["path"], Headers(scope=scope))

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/api"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        if refusal is not None:
            await _refusal_response(scope, *refusal)(scope, receive, with_headers)
            return
        self._open += 1
        try:
            await self.api(scope, receive, with_headers)
        finally:
            self._open -= 1

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """Status and words of a refusal, or None."""
        host = _host_name(headers.get("host", ""))
        if host is None or not self._settings.answers_to(host):
            return 421, (
                "this server does not answer to that host name; "
                "start it with --allow-host to add one"
            )
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        origin = headers.get("origin")
        wrong_origin = origin is not None and _origin_host(origin) != headers.get("host")
        if wrong_origin or (elsewhere and path.startswith("/api")):
            return 403, "requests from other sites are refused"
        if self._settings.token and path not in OPEN_PATHS and not self._has_token(headers):
            return 401, (
                "this server asks for a token: "
                "send it as 'Authorization: Bearer ...', or log in at /login"
            )
        if self._open >= MOST_AT_ONCE:
            return 503, (
                f"{self._open} requests are being answered, the most at once; try again in a moment"
            )
        return None

    def _has_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token.isascii():
            return self.knows(token.strip())
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(COOKIE)
        return (
            found is not None
            and found.value.isascii()
            and hmac.compare_digest(found.value, self.session)
        )


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None if it is not one.

    >>> _host_name("localhost:8000"), _host_name("[::1]:80"), _host_name("a b")
    ('localhost', '::1', None)
    """
    try:
        parts = urlsplit(f"//{host}")
        good = parts.netloc == host and not set("@ ") & set(host) and parts.port != 0
    except ValueError:
        return None
    return parts.hostname if good else None


def _origin_host(origin: str) -> str | None:
    """Host name and port of an Origin header; None if it has none, such as "null".

    >>> _origin_host("http://localhost:8321"), _origin_host("null"), _origin_host("http://[")
    ('localhost:8321', None, None)
    """
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _refusal_response(scope: Scope, status: int, words: str) -> Response:
    if status == 401 and not scope["path"].startswith(("/api", "/static")):
        return RedirectResponse("/login", 303)
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "2"}}.get(status, {})
    return pages.problem_response(scope, status, words, headers)


class BodyLimit:
    """Refuses a body as soon as it is too long or too slow.

    Args:
        app: the application behind it.
        large: the most bytes of a body by path; every other path takes ``SMALL_BODY``.
        seconds: in which a body must have come.
    """

    def __init__(self, app: Any, large: Mapping[str, int], seconds: float) -> None:
        self._app, self._large, self._seconds = app, large, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a body that is read through the limit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._large.get(scope["path"], SMALL_BODY)
        other = "; verax report reads ledgers of any length" if scope["path"] in self._large else ""
        refusal = f"the body of this request may have at most {most} bytes here{other}"
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
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
