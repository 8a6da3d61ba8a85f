"""What a checkpoint holds of a training run, and which run may resume from it."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax.ledger.ledger import Ledger
from verax.mechanism import Mechanism
from verax.training.checkpoint_file import UNREADABLE_ERRORS

Schedule: TypeAlias = torch.optim.lr_scheduler.LRScheduler

_PLAIN = (bool, int, float, str, type(None))
_FIELDS = {
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


@dataclass(frozen=True)
class RunDeclaration:
    """What a run declares before its first round: public facts only."""

    mechanism: Mechanism
    clip_norms: list[float] | None
    """One for every round, if they are not the clipping's own."""
    records: int | None
    """By which updates are scaled, if that is not the data set's own number."""

    @property
    def rounds(self) -> int:
        """How many rounds the whole run has."""
        return len(self.mechanism.sampler)

    def clip_norm(self, number: int) -> float:
        """The clip norm of a round."""
        return self.mechanism.clipping.norm if self.clip_norms is None else self.clip_norms[number]


@dataclass
class Progress:
    """How far a run is, and what must be said of it."""

    rounds: int = 0
    resumed: bool = False
    """Whether there is a checkpoint to resume from."""
    secure: bool = True
    """Whether nobody chose the seed."""
    unrecorded: bool = False
    """Whether rounds may have been released that no ledger knows."""

    def set_from(self, state: dict[str, Any]) -> None:
        """Be where a checkpoint is, with the rounds that the ledger knows beyond it."""
        self.rounds = state["rounds"] + state["spent"]
        self.unrecorded, self.secure = state["blind"], state["secure"]


def read_state(
    path: str | os.PathLike[str],
    run: RunDeclaration,
    ledger: Ledger | None,
    schedule: Schedule | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """A state that ``PrivateTrainer.save`` wrote, if it is of this very run.

    "spent" is how many rounds the ledger knows beyond it, "blind" whether there may be some that no
    ledger knows, and "secure" whether nobody chose the seed.
    """
    name = os.fspath(path)
    try:
        state: Any = torch.load(path, weights_only=True, map_location=device)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except UNREADABLE_ERRORS:
        state = None
    if not isinstance(state, dict) or not state.keys() >= _FIELDS:
        raise ValueError(
            f"path must be a state that save() wrote, got {name!r}, which is none, or a "
            "damaged one: name another file; a run whose state is lost cannot go on"
        )
    for what, mine in (("mechanism", repr(run.mechanism)), ("clip_norms", run.clip_norms)):
        if state[what] != mine:
            raise ValueError(f"path must hold a run of {what} {mine}, got one of {state[what]}")
    if state.setdefault("population", run.records) != run.records:
        raise ValueError(
            f"records must be {state['population']} as in the run of {name!r}, got {run.records}"
        )
    if (state.setdefault("schedule", None) is None) != (schedule is None):
        raise ValueError(
            f"schedule must be given as it was in the run of {name!r}, got {schedule!r}"
        )
    state["spent"] = 0
    if ledger is not None:
        _refuse_ledger(state, ledger)
        state["spent"] = ledger.released - state["rounds"]
    elif state["run"] is not None:
        raise ValueError(
            f"ledger must be that of the run in {name!r}, got None: rounds would be released that "
            "its ledger does not know"
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


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule | None
) -> dict[str, Any]:
    """What ``restore_state`` needs of weights, optimizer and schedule."""
    return {
        "model": model.state_dict(),
        "optimizer": plain(optimizer.state_dict()),
        "schedule": None if schedule is None else plain(schedule.state_dict()),
        "kinds": {"optimizer": type(optimizer).__name__, "schedule": type(schedule).__name__},
        "settings": settings_of(optimizer),
    }


def restore_state(
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule | None,
) -> None:
    """Restore weights, optimizer and schedule, which must be of the saved kinds.

    The schedule is stepped as in the rounds that were released after the state was saved.
    """
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
            f"model must be that of the saved run, got another: {_in_one_line(error)}"
        ) from error
    try:
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise ValueError(
            f"optimizer must be over the parameters of the saved run: {_in_one_line(error)}"
        ) from error
    if schedule is not None:
        schedule.load_state_dict(state["schedule"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch misses the optimizer's own step
            for _ in range(state["spent"]):
                schedule.step()


def _in_one_line(error: Exception) -> str:
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


def refuse_seed(ledger: Ledger, secure: bool) -> None:
    """Refuse seeds in a run whose ledger says that there are none."""
    if not secure and not ledger.insecure_seed:
        raise ValueError(
            "insecure_seed must not be used in a run whose ledger says that its randomness is "
            "secret"
        )
