"""The file that a run is resumed from: written whole, for its owner only, by one process."""

from __future__ import annotations

import os
import struct
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import PicklingError, UnpicklingError
from typing import Any

import torch

from verax import checks
from verax.durable import refuse_special, sync_directory
from verax.ledger.file import LedgerBusy, locked

# Of the time, what may be spent on writing checkpoints.
_SHARE = 0.05

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
                with warnings.catch_warnings():
                    # torch warns of pickles; what comes of it is told here
                    warnings.simplefilter("ignore")
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


def refuse_shared(state: str | os.PathLike[str], others: Mapping[str, Any]) -> None:
    """Refuse a state that is another file of the run, too: it would be overwritten."""
    mine = {os.path.realpath(path) for path in (state, temporary_path(state))}
    for what, path in others.items():
        if path is not None and os.path.realpath(path) in mine:
            raise ValueError(
                f"state must be a file of its own, got {os.fspath(state)!r}, which is the {what}, "
                "too"
            )


class CheckpointFile:
    """Where a run saves its state as it goes; writing takes at most a twentieth of the time.

    It is locked by one process: two that resume from one state would release the same batches.

    Args:
        path: of the file; if it is there, the run resumes from it.
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
        self._release_lock: Callable[[], Any] = lambda: None
        _FILES.add(self)

    def lock(self) -> bool:
        """Lock the file, which is created empty if needed; whether it holds a run to resume."""
        if sys.platform == "win32":
            return self.path.exists()
        self._new = not self.path.exists()
        fd = locked(str(self.path), os.O_CREAT)
        self._release_lock()
        self._fd, self._release_lock = fd, weakref.finalize(self, os.close, fd)
        return os.fstat(fd).st_size > 0

    def save_if_due(self, save: Callable[[Path], None], late: bool) -> None:
        """Save if it is time, or ``late`` and there will be no other time."""
        started = time.monotonic()
        if self._closed if late else started < self._due:
            return
        if self._closed or not self._is_same_file():
            raise LedgerBusy(
                f"{self.path} was let go, or replaced by another process: this trainer cannot go on"
            )
        save(self.path)
        ended = time.monotonic()
        self._due = ended + (ended - started) / _SHARE

    def _is_same_file(self) -> bool:
        if sys.platform == "win32" or not self.path.exists():
            return True
        return self._fd is not None and os.path.samestat(os.fstat(self._fd), self.path.stat())

    def warn_over(self) -> None:
        """Warn that the run is over, so that no other setting can have an effect."""
        warnings.warn(
            f"the run in {self.path} is over: nothing was trained, the last weights that it kept "
            "were loaded",
            UserWarning,
            stacklevel=4,
        )

    def relock(self, path: str | os.PathLike[str]) -> None:
        """Lock the file anew if a state was written to this path: it is another file now."""
        if not self._closed and os.path.realpath(path) == os.path.realpath(self.path):
            self.lock()

    def close(self) -> None:
        """Release the lock; delete the file if nothing was written."""
        if (
            self._new
            and self._fd is not None
            and os.fstat(self._fd).st_size == 0
            and self._is_same_file()
        ):
            self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Release the lock and leave the file as it is."""
        self._closed, self._fd = True, None
        self._release_lock()


_FILES: weakref.WeakSet[CheckpointFile] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    """Release the locks in a forked child, which must not keep them if its parent dies."""
    for file in list(_FILES):
        file.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_forked_child)
