"""The file that a run leaves beside its ledger: a state for its owner."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from pickle import PicklingError
from typing import Any

import torch

from verax.durable import sync_directory


def fresh_of(path: str | os.PathLike[str]) -> Path:
    """Where a state is written before it takes its place."""
    return Path(path).with_name(Path(path).name + ".new")


def write_secret(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state that only its owner can read: all of it, or after a crash the one that was there before.

    What could not be read again is refused, and leaves the one that was there before.
    """
    fresh = fresh_of(path)
    fresh.unlink(missing_ok=True)  # others may be able to read it
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                torch.save(state, file)
            except (PicklingError, AttributeError, TypeError) as error:
                raise ValueError(f"a state must be tensors and plain values, got one that is not: {error}") from error
            file.flush()
            os.fsync(file.fileno())
        refuse_unreadable(fresh)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":
        sync_directory(os.fspath(path))


def refuse_unreadable(path: Path) -> None:
    """Refuse a state that holds what ``torch.load(weights_only=True)`` refuses; no tensor is read for that."""
    try:
        torch.load(path, weights_only=True, map_location="meta")
    except Exception as error:
        found = ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
        raise ValueError(
            f"a state must be tensors and plain values, got {found or 'something else'} in that of the model, the "
            "optimizer or the schedule, which would not be read again: turn it into such, or leave it out of state_dict"
        ) from error
