"""Saved states of a training run: which run may load them, and the file that keeps them."""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax import checks
from verax.ledger.entries import schedule_of
from verax.ledger.ledger import Ledger, LedgerBusy, RunOver, locked
from verax.mechanism import Mechanism
from verax.randomness import Source
from verax.training.checkpoint_file import UNREADABLE_ERRORS, temporary_path

_SHARE = 0.05  # of the time that may be spent on writing states
_PLAIN = (bool, int, float, str, type(None))
_HELD = {
    "mechanism",
    "clip_norms",
    "run",
    "records",
    "rounds",
    "model",
    "optimizer",
    "sampler",
    "sampling",
    "seeded",
}


def read_state(
    path: str | os.PathLike[str],
    mechanism: Mechanism,
    norms: list[float] | None,
    records: int | None,
    ledger: Ledger | None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """A state that ``PrivateTrainer.save`` wrote, if it is of this very run.

    "spent" is how many rounds the ledger knows beyond it, "blind" whether there may be some that no
    ledger knows, and "secure" whether nobody chose the seed.
    """
    try:
        state: Any = torch.load(path, weights_only=True, map_location=device)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except UNREADABLE_ERRORS:
        state = None
    if not isinstance(state, dict) or not state.keys() >= _HELD:
        raise ValueError(
            f"path must be a state that save() wrote, got {os.fspath(path)!r}, which is none, or a "
            "damaged one: name another file; a run whose state is lost cannot go on"
        )
    for what, mine in (("mechanism", repr(mechanism)), ("clip_norms", norms)):
        if state[what] != mine:
            raise ValueError(f"path must hold a run of {what} {mine}, got one of {state[what]}")
    if state.setdefault("population", records) != records:
        raise ValueError(
            f"records must be {state['population']} as in the run of {os.fspath(path)!r}, got "
            f"{records}"
        )
    if (state.setdefault("schedule", None) is None) != (schedule is None):
        raise ValueError(
            f"schedule must be given as it was in the run of {os.fspath(path)!r}, got {schedule!r}"
        )
    state["spent"] = 0
    if ledger is not None:
        _refuse_ledger(state, ledger)
        state["spent"] = ledger.released - state["rounds"]
    elif state["run"] is not None:
        raise ValueError(
            f"ledger must be that of the run in {os.fspath(path)!r}, got None: rounds would be "
            "released that its ledger does not know"
        )
    elif state["sampling"] is not None:  # after the last round nothing can be released any more
        state["blind"] = True
    state.setdefault("blind", False)
    state["secure"] = state["seeded"] is None
    return state


def _refuse_ledger(state: dict[str, Any], ledger: Ledger) -> None:
    """Refuse a ledger that is not that of the state, or knows less."""
    refuse_seed(ledger, state["seeded"] is None)
    if state["run"] != ledger.run:
        raise ValueError(
            f"path must hold a state of the run in {ledger.path}, got one of another run: its "
            "sampler would draw records again that this run has used"
        )
    if state["rounds"] > ledger.released:
        raise ValueError(
            f"path must not be ahead of the ledger, got {state['rounds']} rounds, {ledger.path} "
            "knows fewer: its last lines are lost; bring back a whole copy of it"
        )
    if ledger.over and state["rounds"] < ledger.released:
        raise ValueError(
            f"path must hold the end of the run, which is over, got {state['rounds']} of "
            f"{ledger.released} rounds: an older copy"
        )


def random_sources(seeds: dict[str, Any] | None) -> dict[str, Source]:
    """The sources of noise, clip-groups and dropout: fresh, or as a seeded run saved them."""
    if seeds is not None:
        return {use: Source.restore(seed) for use, seed in seeds.items()}
    fresh = Source.system()
    return {use: fresh.spawn(use) for use in ("noise", "clip-groups", "draws")}


def skip_rounds(
    drawn: Iterator[Any], schedule: torch.optim.lr_scheduler.LRScheduler | None, rounds: int
) -> None:
    """Draw and drop the batches of rounds that were released after the state was saved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch misses the optimizer's own step
        for _ in range(rounds):
            next(drawn)
            if schedule is not None:
                schedule.step()


def restore_state(
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None,
) -> None:
    """Restore weights, optimizer and schedule, which must be of the saved kinds."""
    for what, now in (("optimizer", optimizer), ("schedule", schedule)):
        kind = state.get("kinds", {}).get(what)
        if kind not in (None, type(now).__name__):
            raise ValueError(
                f"{what} must be the {kind} that the run began with, got {type(now).__name__}"
            )
    for setting, value in state.get("settings", {}).items():
        mine = settings_of(optimizer).get(setting)
        if mine != value:
            raise ValueError(
                f"optimizer must have the {setting} {value!r} that the run began with, got "
                f"{mine!r}: change it in optimizer.param_groups once the run goes on, or begin "
                "another run"
            )
    for name, mine in model.state_dict().items():
        theirs = state["model"].get(name, mine)
        if isinstance(mine, Tensor) and theirs.dtype is not mine.dtype:  # torch would round
            raise ValueError(
                f"model must be that of the saved run, got {mine.dtype} for {theirs.dtype} in "
                f"{name}"
            )
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise ValueError(
            f"model must be that of the saved run, got another: {_line(error)}"
        ) from error
    try:
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise ValueError(
            f"optimizer must be over the parameters of the saved run: {_line(error)}"
        ) from error
    if schedule is not None:
        schedule.load_state_dict(state["schedule"])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def plain(state: Any) -> Any:
    """An optimizer's or schedule's state with plain numbers in place of numpy's.

    >>> plain({"lr": np.float64(0.5), "betas": (0.9, np.float32(0.5))})
    {'lr': 0.5, 'betas': (0.9, 0.5)}
    """
    return pytree.tree_map(lambda x: x.item() if isinstance(x, np.generic) else x, state)


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer was made with, as far as it is plain values."""
    made = plain(optimizer.defaults)
    leaves = {name: pytree.tree_leaves(value) for name, value in made.items()}
    return {
        name: made[name] for name, found in leaves.items() if all(type(x) in _PLAIN for x in found)
    }


def refuse_shared(state: str | os.PathLike[str], others: Mapping[str, Any]) -> None:
    """Refuse a state that is another file of the run, too: it would be overwritten."""
    mine = {os.path.realpath(path) for path in (state, temporary_path(state))}
    for what, path in others.items():
        if path is not None and os.path.realpath(path) in mine:
            raise ValueError(
                f"state must be a file of its own, got {os.fspath(state)!r}, which is the {what}, "
                "too"
            )


class StateFile:
    """Where a run keeps its state while it goes on; writing takes at most a twentieth of the time.

    It is held by one process: two that went on from the same state would release the same batches.

    Args:
        path: of the file; if it is there, the run goes on from it.
        others: files of the same run by what they are.
    """

    def __init__(self, path: str | os.PathLike[str], others: Mapping[str, Any]) -> None:
        self.path = Path(path)
        checks.writable("state", path)
        refuse_shared(path, others)
        self._due = 0.0
        self._closed = False
        self._new = False  # whether there was no file
        self._fd: int | None = None  # of the file that is there, as far as this process knows
        self._let_go: Callable[[], Any] = lambda: None
        _FILES.add(self)

    def hold(self) -> bool:
        """Lock the file, which is created empty if needed; whether it holds a run to resume."""
        if sys.platform == "win32":
            return self.path.exists()
        self._new = not self.path.exists()
        fd = locked(str(self.path), os.O_CREAT)
        self._let_go()
        self._fd, self._let_go = fd, weakref.finalize(self, os.close, fd)
        return os.fstat(fd).st_size > 0

    def keep(self, save: Callable[[Path], None], late: bool) -> None:
        """Save if it is time, or ``late`` and there will be no other time."""
        started = time.monotonic()
        if self._closed if late else started < self._due:
            return
        if self._closed or not self._mine():
            raise LedgerBusy(
                f"{self.path} was let go, or replaced by another process: this trainer cannot go on"
            )
        save(self.path)
        ended = time.monotonic()
        self._due = ended + (ended - started) / _SHARE

    def _mine(self) -> bool:
        if sys.platform == "win32" or not self.path.exists():
            return True
        return self._fd is not None and os.path.samestat(os.fstat(self._fd), self.path.stat())

    def tell_over(self) -> None:
        """Warn that the run is over, so that no other setting can have an effect."""
        warnings.warn(
            f"the run in {self.path} is over: nothing was trained, the last weights that it kept "
            "were loaded",
            UserWarning,
            stacklevel=4,
        )

    def written(self, path: str | os.PathLike[str]) -> None:
        """A state was put there, which is a new file: if it is this one, hold that."""
        if not self._closed and os.path.realpath(path) == os.path.realpath(self.path):
            self.hold()

    def close(self) -> None:
        """Let others go on from it."""
        if self._new and self._fd is not None and os.fstat(self._fd).st_size == 0 and self._mine():
            self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Have no more to do with it."""
        self._closed, self._fd = True, None
        self._let_go()

    def ledger(
        self, path: Path, mechanism: Mechanism, begin: Callable[[], Ledger], goes_on: bool
    ) -> Ledger:
        """The ledger of the run that is kept here, or that of one that begins."""
        if not goes_on:
            return begin()
        if not path.exists():
            raise ValueError(
                f"ledger must be that of the run in {self.path}, got {path}, which is not there: "
                "bring it back, leave it out if that run had none, or take the state away to begin "
                "anew"
            )
        try:
            return Ledger.open(path, mechanism, finished=True)
        except RunOver as error:
            error.add_note(f'The last weights that were kept are in {self.path}, under "model".')
            raise


_FILES: weakref.WeakSet[StateFile] = weakref.WeakSet()


def _forked() -> None:
    """Let go in a forked child, which must not keep the lock if its parent dies."""
    for file in list(_FILES):
        file.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def refuse_other_run(
    ledger: Ledger,
    mechanism: Mechanism,
    norms: list[float] | None,
    records: int | None,
    secure: bool,
) -> None:
    """Refuse a ledger that declares another run than the one to be trained."""
    declared = None if norms is None else schedule_of(norms, len(mechanism.sampler))
    for what, theirs, mine in (
        ("mechanism", ledger.mechanism.mechanisms, (mechanism,)),
        ("clip_norms", ledger.clip_norms, declared),
    ):
        if theirs != mine:
            raise ValueError(
                f"ledger must declare the {what} that is trained, {mine!r}, got one with {theirs!r}"
            )
    if ledger.population != records and (ledger.released > 0 or ledger.population is not None):
        raise ValueError(
            f"records must be the {ledger.population} that {ledger.path} declares, got {records}"
        )
    refuse_seed(ledger, secure)


def refuse_seed(ledger: Ledger, secure: bool) -> None:
    """Refuse seeds in a run whose ledger says that there are none."""
    if not secure and not ledger.insecure_seed:
        raise ValueError(
            "insecure_seed must not be used in a run whose ledger says that its randomness is "
            "secret"
        )
