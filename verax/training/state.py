"""Saved states of training: what may be loaded into which run, and a file that is kept up to date."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from verax.mechanism import Mechanism
from verax.training.ledger import Ledger, RunOver

_SHARE = 0.05  # of the time that may be spent on writing states


def read_state(
    path: str | os.PathLike[str], mechanism: Mechanism, norms: list[float] | None, ledger: Ledger | None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A state that ``PrivateTrainer.save`` wrote, if it is of this very run.

    "spent" is how many rounds the ledger knows beyond it, and "blind" whether there is no ledger to know.
    """
    try:
        state: Any = torch.load(path, weights_only=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (RuntimeError, EOFError, UnpicklingError, OSError):  # the last if its end is missing
        state = None
    if not isinstance(state, dict) or "seeded" not in state:
        raise ValueError(f"path must be a state that save() wrote, got {os.fspath(path)!r}, which is none")
    for what, mine in (("mechanism", repr(mechanism)), ("clip_norms", norms)):
        if state[what] != mine:
            raise ValueError(f"path must hold a run of {what} {mine}, got one of {state[what]}")
    if (state.setdefault("schedule", None) is None) != (schedule is None):
        raise ValueError(f"schedule must be given as it was in the run of {os.fspath(path)!r}, got {schedule!r}")
    if ledger is None and state["run"] is not None:
        raise ValueError(
            f"ledger must be that of the run in {os.fspath(path)!r}, got None: rounds would be released that its "
            "ledger does not know"
        )
    state.update(blind=ledger is None, spent=0)
    if ledger is not None:
        refuse_seed(ledger, state["seeded"] is None)
        state["spent"] = ledger.released - state["rounds"]
        if state["spent"] < 0:
            raise ValueError(
                f"path must not be ahead of the ledger, got {state['rounds']} rounds, the ledger knows fewer"
            )
        if state["run"] != ledger.run:
            raise ValueError(
                f"path must hold a state of the run in {ledger.path}, got one of another run: its sampler would draw "
                "records again that this run has used"
            )
    return state


def spend(drawn: Iterator[Any], schedule: torch.optim.lr_scheduler.LRScheduler | None, rounds: int) -> None:
    """Go past rounds that were released after the state was saved: their batches are drawn and dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch misses the optimizer's own step
        for _ in range(rounds):
            next(drawn)
            if schedule is not None:
                schedule.step()


class StateFile:
    """Where a run keeps its state while it goes on; writing takes at most a twentieth of the time.

    Args:
        path: of the file; if it is there, the run goes on from it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._due = 0.0

    def exists(self) -> bool:
        """Whether there is a run to go on with."""
        return self.path.exists()

    def keep(self, save: Callable[[Path], None], late: bool) -> None:
        """Save if it is time, or ``late`` and there will be no other time."""
        started = time.monotonic()
        if started < self._due and not late:
            return
        save(self.path)
        ended = time.monotonic()
        self._due = ended + (ended - started) / _SHARE

    def reopened(self, path: Path, mechanism: Mechanism) -> Ledger:
        """The ledger of the run that is kept here."""
        if not path.exists():
            raise ValueError(
                f"ledger must be that of the run in {self.path}, got {path}, which is not there: bring it back, or "
                "take the state away to begin anew"
            )
        try:
            return Ledger.open(path, mechanism)
        except RunOver as error:
            error.add_note(f'The weights that it ended with are in {self.path}, under "model".')
            raise


def refuse_seed(ledger: Ledger, secure: bool) -> None:
    """Refuse seeds in a run whose ledger says that there are none."""
    if not secure and not ledger.insecure_seed:
        raise ValueError("insecure_seed must not be used in a run whose ledger says that its randomness is secret")
