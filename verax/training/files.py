"""The file that a run leaves beside its ledger: a state for its owner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def write_secret(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state that only its owner can read: all of it, or after a crash the one that was there before."""
    target = Path(path)
    fresh = target.with_name(target.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, target)
