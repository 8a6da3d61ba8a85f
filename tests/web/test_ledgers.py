"""What ledgers show on the way, and whether somebody goes on with one."""

from __future__ import annotations

import os
import sys
import time

import pytest

pytest.importorskip("fastapi")

from verax import Mechanism, Poisson
from verax.privacy.guarantee import Bracket, Guarantee
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
    assert ledgers.is_being_written(book.path)
    assert ledgers.silence(book.path) is None
    book.close()
    assert not ledgers.is_being_written(book.path)
    assert ledgers.silence(book.path) == {"written": 1e9}


def test_what_was_written_just_now_is_not_quiet(book, monkeypatch):
    book.close()
    now = os.stat(book.path).st_mtime
    monkeypatch.setattr(time, "time", lambda: now + ledgers.QUIET_SECONDS - 1.0)
    assert ledgers.silence(book.path) is None
    monkeypatch.setattr(time, "time", lambda: now + ledgers.QUIET_SECONDS + 1.0)
    assert ledgers.silence(book.path) == {"written": now}


def test_without_a_table_of_locks_the_time_decides(book, tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "LOCKS", tmp_path / "none")
    os.utime(book.path, LONG_AGO)
    assert ledgers.silence(book.path) == {"written": 1e9}


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
        assert ledgers.is_being_written(book.path) is written, line


def test_a_ledger_that_is_gone_is_not_quiet(tmp_path):
    assert ledgers.silence(str(tmp_path / "none.ledger")) is None


@pytest.fixture
def computed_roughly(monkeypatch):
    """Parts of a run get upper bounds that are far too large; the declared run does not."""

    def epsilon(guarantee, delta, rtol=1e-3):
        rounds = sum(len(phase.sampler) for phase in getattr(guarantee.mechanism, "mechanisms", ()))
        return Bracket(0.1, 2.0 if rounds == 6 else 9.0 / rounds, upper_by=f"{rounds} rounds")

    monkeypatch.setattr(Guarantee, "epsilon", epsilon)


def test_fewer_rounds_never_seem_to_cost_more(book, computed_roughly):
    """A part of a run costs no more than the whole, to whatever accuracy each is computed."""
    book.release(0, clip_norm=1.0, noise_multiplier=1.2)
    *_, last = ledgers.summary(("run", None, book.path), 1e-5, 1)
    points = [(point["rounds"], point["epsilon"]["upper"]) for point in last["points"]]
    assert points == [(1, 1.8), (2, 1.8), (3, 1.8), (4, 1.8), (5, 1.8), (6, 2.0)]
    assert last["spent"]["upper"] == last["epsilon"]["upper"] == 2.0
    (all_of_them,) = ledgers.together([("run", None, book.path)], 1e-5, 1)
    assert all_of_them["spent"]["upper"] == all_of_them["epsilon"]["upper"] == 2.0


def test_the_figure_rises_to_the_stated_number_whatever_was_released(book):
    *_, last = ledgers.summary(("run", None, book.path), 1e-5, 1)
    assert last["points"][-1]["rounds"] == 6
    for side in ("lower", "upper"):
        values = [point["epsilon"][side] for point in last["points"]]
        assert values == sorted(values)
    assert values[-1] <= last["epsilon"]["upper"]
    assert values[-1] == pytest.approx(last["epsilon"]["upper"], rel=0.02)
