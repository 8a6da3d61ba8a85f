"""The saved state of a server, from which a restart resumes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from verax.federated.messages import RUN_BYTES
from verax.federated.plan import Plan
from verax.ledger.ledger import Ledger
from verax.training.checkpoint import settings_of
from verax.training.checkpoint_file import read_secret


def read_state(
    path: str | os.PathLike[str], plan: Plan, held: Mapping[str, type]
) -> dict[str, Any]:
    """The state of a server of this plan that was kept in a file.

    Args:
        path: the file.
        plan: what runs.
        held: what else the state must hold, by name and type.
    """
    state = read_secret(path)
    wanted = {"plan": str, "run": str, "weights": torch.Tensor, **held}
    if not isinstance(state, dict) or not all(
        isinstance(state.get(name), kind) for name, kind in wanted.items()
    ):
        raise ValueError(
            f"state must be a file that this kind of server wrote, got {os.fspath(path)!r}, which "
            "is none, or a damaged one: name another file; a run whose state is lost cannot go on"
        )
    if state["plan"] != repr(plan):
        raise ValueError(f"state must be of the plan {plan!r}, got one of {state['plan']!r}")
    weights = state["weights"]
    if weights.ndim != 1 or not bool(torch.isfinite(weights).all()) or not _is_run(state["run"]):
        raise ValueError(
            f"state must hold finite weights of a run, got {os.fspath(path)!r}, which is damaged"
        )
    return state


def _is_run(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == RUN_BYTES
    except ValueError:
        return False


def refuse_other_ledger(state: Mapping[str, Any], ledger: Ledger) -> None:
    """Refuse a ledger that is not that of the state, or knows less, and so would miss rounds."""
    if state["run"] != ledger.run:
        raise ValueError(
            f"state must be of the run in {ledger.path!r}, got one of another run: name the two "
            "files that one server kept"
        )
    if state["rounds"] > ledger.released:
        raise ValueError(
            f"state must not be ahead of the ledger, got {state['rounds']} rounds, of which "
            f"{ledger.path!r} knows {ledger.released}: its last lines are lost; "
            "bring back a whole copy of it"
        )


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put the optimizer where it was; another would fail in its first step, or do as this one."""
    kind, settings = state["optimizer_kind"], settings_of(optimizer)
    if kind != type(optimizer).__name__:
        raise ValueError(
            f"optimizer must be the {kind} that the run began with, got {type(optimizer).__name__}"
        )
    for name, value in state["settings"].items():
        if settings.get(name) != value:
            raise ValueError(
                f"optimizer must have the {name} {value!r} that the run began with, "
                f"got {settings.get(name)!r}"
            )
    optimizer.load_state_dict(state["optimizer"])
