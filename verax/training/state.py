"""Saved states of training: what may be loaded into which run."""

from __future__ import annotations

import os
from pickle import UnpicklingError
from typing import Any

import torch

from verax.mechanism import Mechanism
from verax.training.ledger import Ledger


def read_state(
    path: str | os.PathLike[str], mechanism: Mechanism, norms: list[float] | None, ledger: Ledger | None
) -> dict[str, Any]:
    """A state that ``PrivateTrainer.save`` wrote, if it is of this very run.

    "spent" is how many rounds the ledger knows beyond it, and "blind" whether there is no ledger to know.
    """
    try:
        state: Any = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, UnpicklingError):
        state = None
    if not isinstance(state, dict) or "seeded" not in state:
        raise ValueError(f"path must be a state that save() wrote, got {os.fspath(path)!r}, which is none")
    for what, mine in (("mechanism", repr(mechanism)), ("clip_norms", norms)):
        if state[what] != mine:
            raise ValueError(f"path must hold a run of {what} {mine}, got one of {state[what]}")
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


def refuse_seed(ledger: Ledger, secure: bool) -> None:
    """Refuse seeds in a run whose ledger says that there are none."""
    if not secure and not ledger.insecure_seed:
        raise ValueError("insecure_seed must not be used in a run whose ledger says that its randomness is secret")
