"""Kill a whole trainer at random instants, resume it, compare ledger and releases.

Run by test_crash_trainer in a process of its own, which forks the trainers: python crash_trainer.py
KILLS FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from verax import BallsInBins, Individual, Mechanism, Mixed, Poisson, Shuffle, ledger
from verax.randomness import Source
from verax.training import Ledger, PrivateTrainer

RECORDS = 40
RUNS = (
    Mechanism(Shuffle(batches=5, epochs=3), 2.0),
    Mechanism(Poisson(rate=0.2, steps=15), 2.0),
    Mechanism(BallsInBins(bins=5, epochs=3), 2.0, Individual(0.5)),
    Mechanism(Poisson(rate=0.3, steps=15), 2.0, Mixed(1.0, groups=2)),
)
DATA = (
    torch.arange(RECORDS).float().unsqueeze(1).repeat(1, 3),
    torch.zeros(RECORDS, dtype=torch.long),
)
LOSS = nn.CrossEntropyLoss()
torch.set_num_threads(1)


def life(folder: Path, mechanism: Mechanism) -> None:
    """Train or resume; note every noisy sum the moment it exists."""
    model = nn.Linear(3, 2)
    book, saved = folder / "run.ledger", folder / "state"
    held = Ledger.open(book, mechanism) if saved.exists() else None
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    # a state that knows the sampler's secret comes first: a run that has lost it cannot be resumed
    if held is None:
        book.unlink(missing_ok=True)
        trainer = PrivateTrainer(model, optimizer, mechanism, ledger=book)
        trainer.save(folder / "first")
        trainer.save(saved)
    else:
        trainer = PrivateTrainer(model, optimizer, mechanism, ledger=held)
        trainer.load(saved, DATA)
    out = os.open(folder / "released", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    now: list[Any] = []
    add = Source.add_gaussian

    def noted(self: Source, buffer: Any, sigma: float) -> Any:
        before = buffer.copy()
        add(self, buffer, sigma)
        os.write(out, json.dumps([*now, (buffer - before).tolist()]).encode() + b"\n")
        return buffer

    Source.add_gaussian = noted  # type: ignore[method-assign]
    for batch in trainer.batches(DATA):
        now[:] = batch.number, sorted(batch.data[0][:, 0].int().tolist())
        trainer.step(batch, LOSS)
        if trainer.rounds % 4 == 0:
            trainer.save(saved)


def check(folder: Path, mechanism: Mechanism) -> tuple[int, bool]:
    """Rounds that the ledger knows, and whether the run is over."""
    out, book = folder / "released", folder / "run.ledger"
    said = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if not (folder / "state").exists():
        assert not said, "something was released before a state was saved"
        return 0, False
    rounds = [number for number, _, _ in said]
    assert rounds == sorted(set(rounds)), f"a round was released twice: {rounds}"
    secret = Source.restore(torch.load(folder / "first")["sampling"]).generator()
    truth = [sorted(batch.tolist()) for batch in mechanism.sampler.draw(RECORDS, secret)]
    for number, batch, _ in said:
        assert batch == truth[number], "a resumed run left the sampler's sequence"
    drawn = [value for _, _, noise in said for value in noise]
    assert len(set(drawn)) == len(drawn), "noise was used twice"
    run = ledger.read(book)
    assert run.released > max(rounds, default=-1), "the ledger knows less than was released"
    return run.released, run.ended is not None


def warm() -> None:
    """Import what torch and we import when first needed, before the trainers are forked."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    torch.optim.SGD([parameter], 0.1).step()
    for mechanism in RUNS:
        mechanism.guarantee()


def start(folder: Path, mechanism: Mechanism) -> int:
    """Begin or go on with a run in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        life(folder, mechanism)
        code = 0
    except Exception as error:  # noqa: BLE001 - the parent fails on whatever went wrong here
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def main(kills: int, top: Path) -> None:
    chance = random.Random(3)
    killed = runs = known = 0
    folder = top / "undisturbed"
    folder.mkdir()
    began = time.monotonic()
    assert os.waitpid(start(folder, RUNS[0]), 0)[1] == 0
    longest = 1.2 * (time.monotonic() - began)
    assert check(folder, RUNS[0]) == (len(RUNS[0].sampler), True)
    folder = top / "0"
    folder.mkdir()
    while killed < kills:
        mechanism = RUNS[runs % len(RUNS)]
        child = start(folder, mechanism)
        time.sleep(chance.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a trainer could not go on"
        killed += os.WIFSIGNALED(status)
        now, over = check(folder, mechanism)
        assert now >= known, "the ledger forgot rounds"
        known = now
        if over:
            assert ledger.read(folder / "run.ledger").complete
            runs, known = runs + 1, 0
            folder = top / str(runs)
            folder.mkdir()
    print(json.dumps({"kills": killed, "runs": runs}))


if __name__ == "__main__":
    warm()
    main(int(sys.argv[1]), Path(sys.argv[2]))
