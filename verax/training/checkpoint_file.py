"""The file that a run leaves beside its ledger: a state for its owner."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from pickle import PicklingError, UnpicklingError
from typing import Any

import torch

from verax.durable import refuse_special, sync_directory

# What torch.load raises for bytes that are no state: pickles and archives fail wherever they are
# cut or changed.
UNREADABLE_ERRORS = (
    UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    ImportError,
    MemoryError,
    OSError,
    struct.error,
)


def temporary_path(path: str | os.PathLike[str]) -> Path:
    """Where a state is written before it takes its place."""
    return Path(path).with_name(Path(path).name + ".new")


def write_secret(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state that only its owner can read, whole or not at all.

    What could not be read again is refused, and leaves the one that was there before.
    """
    refuse_special(os.fspath(path))  # it would be replaced
    fresh = temporary_path(path)
    fresh.unlink(missing_ok=True)  # others may be able to read it
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                torch.save(state, file)
            except (PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"a state must be tensors and plain values, got one that is not: {error}"
                ) from error
            file.flush()
            os.fsync(file.fileno())
        refuse_unreadable(fresh)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":
        sync_directory(os.fspath(path))


def read_secret(path: str | os.PathLike[str]) -> Any:
    """What :func:`write_secret` wrote there, or None if it is something else, or damaged."""
    refuse_special(os.fspath(path))
    try:
        with open(path, "rb") as file:
            try:
                return torch.load(file, weights_only=True, map_location="cpu")
            except UNREADABLE_ERRORS:
                return None
    except OSError as error:
        raise ValueError(
            f"state must be a file that can be read, got {os.fspath(path)!r}: {error.strerror}"
        ) from error


def refuse_unreadable(path: Path) -> None:
    """Refuse a state that ``torch.load(weights_only=True)`` refuses; reads no tensor."""
    try:
        torch.load(path, weights_only=True, map_location="meta")
    except UNREADABLE_ERRORS as error:
        found = ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
        raise ValueError(
            f"a state must be tensors and plain values, got {found or 'something else'} in that of "
            "the model, the optimizer or the schedule, which would not be read again: turn it into "
            "such, or leave it out of state_dict"
        ) from error
