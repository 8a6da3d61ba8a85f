"""Whether somebody goes on with a ledger."""

from __future__ import annotations

import os
import sys
import time

import pytest

pytest.importorskip("fastapi")

from verax import Mechanism, Poisson
from verax.training import Ledger
from verax.web import ledgers

LONG_AGO = (1e9, 1e9)


@pytest.fixture
def book(tmp_path):
    with Ledger.create(tmp_path / "run.ledger", Mechanism(Poisson(0.05, 6), 1.2)) as one:
        yield one


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has a table of locks")
def test_a_writer_is_seen_by_its_lock(book):
    os.utime(book.path, LONG_AGO)
    assert ledgers.is_written(book.path)
    assert ledgers.quiet(book.path) is None
    book.close()
    assert not ledgers.is_written(book.path)
    assert ledgers.quiet(book.path) == {"written": 1e9}


def test_what_was_written_just_now_is_not_quiet(book, monkeypatch):
    book.close()
    now = os.stat(book.path).st_mtime
    monkeypatch.setattr(time, "time", lambda: now + ledgers.QUIET_SECONDS - 1.0)
    assert ledgers.quiet(book.path) is None
    monkeypatch.setattr(time, "time", lambda: now + ledgers.QUIET_SECONDS + 1.0)
    assert ledgers.quiet(book.path) == {"written": now}


def test_without_a_table_of_locks_the_time_decides(book, tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "LOCKS", tmp_path / "none")
    os.utime(book.path, LONG_AGO)
    assert ledgers.quiet(book.path) == {"written": 1e9}


def test_the_table_of_locks_is_read_by_inode(book, tmp_path, monkeypatch):
    inode = os.stat(book.path).st_ino
    table = tmp_path / "locks"
    monkeypatch.setattr(ledgers, "LOCKS", table)
    for line, written in {
        f"1: FLOCK  ADVISORY  WRITE 42 fe:00:{inode} 0 EOF": True,
        f"1: FLOCK  ADVISORY  READ 42 fe:00:{inode} 0 EOF": False,
        f"1: POSIX  ADVISORY  WRITE 42 fe:00:{inode} 0 EOF": False,
        f"1: FLOCK  ADVISORY  WRITE 42 fe:00:{inode}1 0 EOF": False,
        "1:": False,
        "": False,
    }.items():
        table.write_text(f"{line}\n")
        assert ledgers.is_written(book.path) is written, line


def test_a_ledger_that_is_gone_is_not_quiet(tmp_path):
    assert ledgers.quiet(str(tmp_path / "none.ledger")) is None
