"""The server: uvicorn, with time limits on every connection and a bound on those that wait.

A connection waits while its client has not sent a whole request: nothing, half a head, half a body.
Waiting costs the client nothing, so it must not cost the others anything: a head has a few seconds,
however many pieces it comes in, and of too many waiting connections from one address the oldest is
closed. Every whole request is answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections import OrderedDict
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from verax.web.auth import HEADERS, Guard
from verax.web.settings import Settings

# Seconds that a request may take beyond its time, so that its end is still sent.
_GRACE = 10.0
# Connections in all that may wait for their clients.
_MOST_WAITING = 512


def server(app: Guard, settings: Settings, log_level: str = "warning") -> uvicorn.Server:
    """A server of the application; its ``run`` takes the sockets to listen on."""
    waiting = WaitingConnections(settings.idle_connections, _MOST_WAITING)
    config = uvicorn.Config(
        app,
        http=partial(TimedConnection, settings=settings, waiting=waiting),
        ws="none",
        log_level=log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


class WaitingConnections:
    """Connections that wait for their clients, the oldest first."""

    def __init__(self, most_of_one: int, most: int) -> None:
        self._most_of_one, self._most = most_of_one, most
        self._all: OrderedDict[TimedConnection, str] = OrderedDict()

    def add(self, connection: TimedConnection) -> None:
        """Add one that waits; close the oldest if too many wait, of its network or in all."""
        if connection in self._all:
            return
        self._all[connection] = connection.network
        same = [one for one, network in self._all.items() if network == connection.network]
        if len(same) > self._most_of_one:
            same[0].hang_up()
        elif len(self._all) > self._most:
            next(iter(self._all)).hang_up()

    def discard(self, connection: TimedConnection) -> None:
        """Remove a connection that waits no longer, or is closed."""
        self._all.pop(connection, None)


class TimedConnection(H11Protocol):
    """One connection, with a clock: for the head of a request, and for the request as a whole."""

    def __init__(self, *, settings: Settings, waiting: WaitingConnections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._seconds = {False: settings.header_seconds, True: settings.stream_seconds + _GRACE}
        self._waiting = waiting
        self._clock: asyncio.TimerHandle | None = None
        self._state: tuple[Any, bool] | None = None
        self.network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the clock for the first request."""
        super().connection_made(transport)
        self.network = network(self.client[0] if self.client else "")
        self._follow()

    def data_received(self, data: bytes) -> None:
        """Parse the data; restart the clock if a request began."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Start the clock for the next request, if the connection stays open."""
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._end()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close at once, whatever is still to be sent or read."""
        self._end()
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is no HTTP request, with the headers that every answer has."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _follow(self) -> None:
        """Set the clock when a request begins or ends; data in between does not move it."""
        if self.transport.is_closing():
            self._end()
            return
        asked = self.cycle is not None and not self.cycle.response_complete
        if self._state != (self.cycle, asked):
            self._state = (self.cycle, asked)
            if self._clock is not None:
                self._clock.cancel()
            self._clock = self.loop.call_later(self._seconds[asked], self._late)
        if asked and not self.cycle.more_body:
            self._waiting.discard(self)
        else:
            self._waiting.add(self)

    def _late(self) -> None:
        """Close; with words if there is half a head, to which they can be an answer."""
        half_a_head = self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]
        if half_a_head and not self.transport.is_closing():
            seconds = self._seconds[False]
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT, f"a request must begin within {seconds:g} seconds"
            )
        else:
            self.hang_up()

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        body = json.dumps({"message": words}).encode()
        headers = HEADERS | {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        self._end()
        self.transport.close()

    def _end(self) -> None:
        self._waiting.discard(self)
        if self._clock is not None:
            self._clock.cancel()


def network(address: str) -> str:
    """The network of a client: its IPv4 address, or the part of IPv6 that one customer gets.

    >>> network("192.0.2.7"), network("2001:db8::1"), network("2001:db8::2")
    ('192.0.2.7', '2001:db8::/64', '2001:db8::/64')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket of this machine
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
