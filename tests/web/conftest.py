"""A server that really runs, for tests that ask it over the network."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from verax import Mechanism, Poisson

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
import httpx

from verax.training import Ledger
from verax.web.app import create_app
from verax.web.server import server as web_server
from verax.web.settings import Settings

RUN = Mechanism(Poisson(0.05, 40), 1.2)


@contextmanager
def running(settings):
    """The address of a server with these settings, until the block ends."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = web_server(create_app(settings), settings, log_level="critical")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 600
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(600)
        assert not thread.is_alive()


class Asked:
    """An application asked in this process, without the processes that compute."""

    def __init__(self, app, base_url):
        self.app, self._base = app, base_url

    def __getattr__(self, method):
        def ask(path, **how):
            async def once():
                transport = httpx.ASGITransport(app=self.app)
                async with httpx.AsyncClient(transport=transport, base_url=self._base) as one:
                    return await one.request(method.upper(), path, **how)

            return asyncio.run(once())

        return ask


@pytest.fixture(scope="session")
def asked():
    return Asked


@pytest.fixture(scope="session")
def serving():
    return running


def written(path, rounds, mechanism=RUN, **facts):
    """A ledger with so many rounds, finished if these are all."""
    sync, os.fsync = os.fsync, lambda fd: None  # do not wait for the disk
    try:
        with Ledger.create(path, mechanism, **facts) as book:
            for number in range(rounds):
                book.release(number, clip_norm=1.0, noise_multiplier=mechanism.noise_multiplier)
            if rounds == len(mechanism.sampler):
                book.finish()
    finally:
        os.fsync = sync
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    written(place / "whole.ledger", 40)
    written(place / "part.ledger", 10)
    written(place / "seeded.ledger", 5, insecure_seed=True)
    (place / "part.log").write_text(
        '{"round": 5, "accuracy": 0.5}\n{"round": 10, "accuracy": 0.75}\nnot json\n'
    )
    entry = {
        "loss": 0.4,
        "accuracy": 0.875,
        "norm_10": 0.5,
        "norm_50": 2.0,
        "norm_90": 4.0,
        "clip_norm": 1.0,
    }
    lines = [entry | {"round": i, "clipped": 0.9, "signal_to_noise": 0.1} for i in range(1, 11)]
    (place / "part.private").write_text(
        "\n".join(map(json.dumps, [{"note": "private"}, *lines])) + "\n"
    )
    (place / "damaged.ledger").write_bytes(
        (place / "whole.ledger").read_bytes().replace(b'"round":7', b'"round":8', 1)
    )
    (place.parent / "outside.ledger").write_bytes((place / "whole.ledger").read_bytes())
    (place / "link.ledger").symlink_to(place.parent / "outside.ledger")
    return place


@pytest.fixture(scope="session")
def server(folder):
    with running(
        Settings(runs=folder, seconds=600.0, stream_seconds=1800.0, upload=100_000)
    ) as address:
        yield address


@pytest.fixture(scope="session")
def open_server(folder):
    """One that shows diagnostics."""
    with running(Settings(runs=folder, diagnostics=True, workers=2)) as address:
        yield address


@pytest.fixture(scope="session")
def client(server):
    with httpx.Client(base_url=server, timeout=600.0) as one:
        yield one
