"""Connections that send nothing or half a request, and what is answered to them."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing, suppress

import httpx
import pytest

pytest.importorskip("fastapi")

from verax.web.auth import HEADERS
from verax.web.settings import Settings

HALF = b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
FOR_EVER = 86_400.0


def connected(address):
    """A connection that gives up after ten minutes: nothing here takes as long."""
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=600)


def answer_to(address, sent):
    """All that comes back until the server closes."""
    with connected(address) as one:
        one.sendall(sent)
        return rest(one)


def rest(connection):
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass  # closed at once
    return b"".join(parts)


def headers_of(answer):
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1")
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


@pytest.fixture(scope="module")
def hasty(serving):
    """A server whose clock for heads runs fast."""
    with serving(Settings(workers=2, header_seconds=0.5, stream_seconds=2.0)) as address:
        yield address


@pytest.fixture(scope="module")
def hasty_with_bodies(serving):
    """A server whose clock for heads stands still, while that of requests runs fast."""
    with serving(Settings(workers=2, header_seconds=FOR_EVER, stream_seconds=2.0)) as address:
        yield address


@pytest.fixture(scope="module")
def patient(serving):
    """One that closes connections only if there are too many."""
    with serving(
        Settings(
            workers=2,
            header_seconds=FOR_EVER,
            idle_connections=4,
            seconds=600.0,
            stream_seconds=1800.0,
        )
    ) as address:
        yield address


def test_half_a_head_is_refused_in_words_after_its_time(hasty):
    answer = answer_to(hasty, HALF)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert HEADERS.items() <= headers_of(answer).items()
    assert b"within 0.5 seconds" in answer


def test_a_connection_that_says_nothing_is_closed(hasty):
    assert answer_to(hasty, b"") == b""


def test_sending_little_by_little_does_not_move_the_clock(hasty):
    with connected(hasty) as one:
        one.sendall(HALF)
        one.settimeout(0.02)
        for _ in range(3000):  # a minute; the clock has half a second
            try:
                one.sendall(b"x")
                if one.recv(1000):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("half a head was held for ever")


def test_half_a_body_is_refused_after_the_time_of_a_request(hasty_with_bodies):
    head = b"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    answer = answer_to(hasty_with_bodies, head + b"half")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert HEADERS.items() <= headers_of(answer).items()
    assert b"within 2 seconds" in answer


def test_a_body_that_nobody_reads_does_not_hold_the_connection(hasty):
    head = b"POST /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    assert answer_to(hasty, head + b"half").startswith(b"HTTP/1.1 40")


def test_idle_connections_shut_nobody_out(patient):
    """Not even others at the same address: the oldest that only wait are closed."""
    with ExitStack() as stack:
        idle = [stack.enter_context(closing(connected(patient))) for _ in range(150)]
        for one in idle:
            with suppress(ConnectionError):  # closed already
                one.sendall(HALF)
        assert httpx.get(f"{patient}/api/about", timeout=600).status_code == 200
        for one in idle[:140]:
            assert rest(one) == b""  # closed, and not by its clock


def test_an_answer_under_way_is_not_idle(patient):
    params = {"sampler": "poisson", "figure": "noise"}
    with ExitStack() as stack:
        reader = stack.enter_context(httpx.Client(base_url=patient, timeout=600))
        response = stack.enter_context(reader.stream("GET", "/api/compare/stream", params=params))
        lines = response.iter_lines()
        next(lines)
        for _ in range(20):
            stack.enter_context(closing(connected(patient))).sendall(HALF)
        assert "event: end" in list(lines)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nBad header\r\n\r\n",
        b"GET /" + b"x" * 200_000,
        b"GET / HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://[\r\nConnection: close\r\n\r\n",
        b"GET /static/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n"
        b"Connection: close\r\n\r\n",
        b"GET /static/"
        + b"x" * 5000
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"TRACE * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n"
        b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 400000000\r\n\r\n",
    ],
    ids=lambda sent: sent[:24].decode("latin-1"),
)
def test_every_answer_has_the_headers_of_a_guarded_page(hasty, sent):
    answer = answer_to(hasty, sent)
    status = int(answer.split()[1])
    assert status < 500, answer
    assert HEADERS.items() <= headers_of(answer).items()
