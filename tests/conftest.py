"""Ledgers to test with."""

from __future__ import annotations

import os
from itertools import accumulate

import pytest

from verax import Mechanism, Poisson
from verax.ledger import Ledger

RUN = Mechanism(Poisson(0.01, 8), 1.5)


@pytest.fixture
def no_waiting(monkeypatch):
    """Do not wait for the disk where only this process looks; the crashed trainers and other
    writers do.
    """
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


def _written(path, rounds=3, mechanism=RUN, finish=False, **facts):
    """A ledger with so many rounds, closed."""
    with Ledger.create(path, mechanism, **facts) as book:
        _go_on(book, rounds)
        if finish:
            book.finish()
    return path


def _go_on(book, rounds):
    phases = book.mechanism.mechanisms
    ends = list(accumulate(len(m.sampler) for m in phases))
    for number in range(book.released, book.released + rounds):
        phase = phases[sum(number >= end for end in ends[:-1])]
        book.release(number, clip_norm=phase.clipping.norm, noise_multiplier=phase.noise_multiplier)


def _contents(path, end):
    """A ledger with rounds, an interruption and an end of some kind."""
    with Ledger.create(path, RUN) as book:
        _go_on(book, 2)
    with Ledger.open(path) as book:
        _go_on(book, 2)
        if end == "finished":
            book.finish()
        elif end:
            book.stop("clip norm was changed", private=end == "private")
    return path.read_bytes()


@pytest.fixture(scope="session")
def written():
    return _written


@pytest.fixture(scope="session")
def go_on():
    return _go_on


@pytest.fixture(scope="session")
def contents():
    return _contents
