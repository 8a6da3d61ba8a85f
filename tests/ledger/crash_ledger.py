"""Crash a small trainer at random instants or instructions; compare ledger and releases.

Run by test_ledger in a process of its own, which forks the trainers: python crash_ledger.py
kill|instructions FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from verax import Mechanism, Shuffle
from verax.ledger import Ledger, entries, ledger
from verax.ledger import file as ledger_file

KILLS = 220
RECORDS = 40
RUN = Mechanism(Shuffle(batches=5, epochs=3), noise_multiplier=2.0)
SECRET = 7  # the same in every life of a trainer, as its checkpoint would keep it
WATCHED = {ledger.__file__, ledger_file.__file__, entries.__file__}


def batches() -> Any:
    return RUN.sampler.draw(RECORDS, np.random.default_rng(SECRET))


def train(folder: Path) -> None:
    """One life of a trainer: it resumes where the ledger says, perhaps with an older checkpoint."""
    book, saved = folder / "run.ledger", folder / "checkpoint.json"
    try:
        held = (
            Ledger.open(book, RUN)
            if book.exists()
            else Ledger.create(book, RUN, insecure_seed=True)
        )
    except entries.DamagedLedger:  # all that a crash can do: there is no whole first line yet
        held = Ledger.create(book, RUN, insecure_seed=True)
    done, run = 0, batches()
    if saved.exists():
        done, state = json.loads(saved.read_text())
        run.restore(state)
    for _ in range(done, held.released):
        next(run)  # spent: recorded, perhaps released, not in the checkpoint
    out = os.open(folder / "released", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in range(held.released, len(RUN.sampler)):
        batch = next(run)
        held.release(number, clip_norm=1.0, noise_multiplier=2.0)
        os.write(out, f"{number} {sorted(batch.tolist())}\n".encode())
        if number % 3 == 2:
            fresh = folder / "checkpoint.new"
            fresh.write_text(json.dumps([number + 1, run.state()]))
            fresh.replace(saved)
    held.finish()


def check(folder: Path) -> tuple[int, bool]:
    """Rounds that the ledger knows, and whether the run is over; never fewer than were released."""
    out, book = folder / "released", folder / "run.ledger"
    said = out.read_text().splitlines() if out.exists() else []
    rounds = [int(line.split(" ", 1)[0]) for line in said]
    assert rounds == sorted(set(rounds)), "a round was released twice"
    truth = [sorted(batch.tolist()) for batch in batches()]
    for line in said:
        number, batch = line.split(" ", 1)
        assert json.loads(batch) == truth[int(number)], "a resumed run left the sampler's sequence"
    try:
        run = ledger.read(book)
    except ledger.LedgerError:
        assert not said, "a ledger that cannot be read knows nothing of the rounds released"
        return 0, False
    assert run.released > max(rounds, default=-1), "the ledger knows less than was released"
    return run.released, run.ended is not None


def fork(life: Callable[[Path], None], folder: Path) -> int:
    """Start a life in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        life(folder)
        code = 0
    except Exception as error:  # noqa: BLE001 - the parent fails on whatever went wrong here
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def kill(top: Path) -> None:
    """kill -9 after a random time, again and again; every run is resumed until it is over."""
    chance = random.Random(1)
    kills = runs = 0
    # seconds of a life, and more while none is long enough: on a busy machine all is slow
    longest = 0.03
    folder = top / "0"
    folder.mkdir()
    known = 0
    while kills < KILLS or runs < 4:
        child = fork(train, folder)
        time.sleep(chance.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        kills += os.WIFSIGNALED(status)
        now, over = check(folder)
        assert now >= known, "the ledger forgot rounds"
        known = now
        longest *= 1.02
        if over:
            longest = 0.03
            runs += 1
            folder, known = top / str(runs), 0
            folder.mkdir()
    print(f"{kills} kills, {runs} runs finished")


def dying(after: int) -> None:
    """Make this process die after so many instructions of the ledger."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == after:
                os._exit(9)
        return trace

    sys.settrace(trace)


def lives(top: Path, step: int) -> Iterator[int]:
    """Die after instruction 1, then 1 + step and so on, as far as a life goes.

    Each time live again, undisturbed.
    """
    # what a dead process wrote stays written; only the machine's death needs more
    os.fsync = lambda fd: None
    for after in range(1, 10**6, step):
        folder = top / str(after)
        folder.mkdir()

        def short(folder: Path, after: int = after) -> None:
            dying(after)
            train(folder)

        _, status = os.waitpid(fork(short, folder), 0)
        code = os.WEXITSTATUS(status)
        assert code in (0, 9)
        known, over = check(folder)
        if code == 0:
            return
        if not over:
            _, status = os.waitpid(fork(train, folder), 0)
            assert os.WEXITSTATUS(status) == 0
            later, over = check(folder)
            assert over
            assert later >= known
        yield after


if __name__ == "__main__":
    where = Path(sys.argv[2])
    if sys.argv[1] == "kill":
        kill(where)
    else:
        deaths = list(lives(where, step=53))
        print(f"{len(deaths)} deaths, up to instruction {deaths[-1]}")
