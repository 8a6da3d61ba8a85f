"""The file of a ledger while it is written: one writer, checks before and after each line."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from itertools import chain

from verax.durable import append, refuse_special
from verax.ledger.entries import DamagedLedger, LedgerError, Log, is_unfinished_header, parse

if sys.platform != "win32":
    import fcntl


class LedgerBusy(LedgerError):
    """Another process, another object of this process or a running call is writing the ledger."""


class LedgerFile:
    """A file that is locked, and that must stay what and where it was when it was opened.

    Args:
        path: the name it was opened by.
        fd: its descriptor, locked; it is closed with this object.
    """

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        # Absolute: the program may change its working directory.
        self._absolute_path = os.path.abspath(path)
        self._fd = fd
        self._changed = os.fstat(fd).st_mtime_ns
        self.close = weakref.finalize(self, os.close, fd)

    def append(self, line: bytes, digest: str, log: Log, otherwise: str) -> None:
        """Append a line to those of ``log`` and force it to disk.

        Raises if others changed the file, before or meanwhile; ``otherwise`` ends the message.
        """
        self._check(log.size, log.head, otherwise)
        append(self._fd, line)
        self._changed = os.fstat(self._fd).st_mtime_ns
        self._check(log.size + len(line), digest, otherwise)

    def _check(self, size: int, head: str, otherwise: str) -> None:
        now = os.fstat(self._fd)
        try:
            named = os.stat(self._absolute_path)
        except OSError:
            named = None
        if named is None or not os.path.samestat(now, named):
            raise DamagedLedger(
                f"{self.path} was deleted, moved or replaced while it was being written; "
                f"{otherwise}. Put the file that was written back under its name, and open it again"
            )
        if now.st_size != size or (now.st_mtime_ns != self._changed and self._head() != head):
            raise DamagedLedger(
                f"{self.path}: someone else changed the file; {otherwise}. Restore the file from a "
                "copy; without one, charge the whole declared run"
            )
        self._changed = now.st_mtime_ns

    def _head(self) -> str | None:
        """The hash of the last line, if all lines are as a ledger writes them."""
        try:
            with open(self._fd, "rb", closefd=False) as file:
                file.seek(0)
                return parse(file, self.path).head
        except LedgerError:
            return None


def locked(name: str, create: int = 0) -> int:
    """Open the file and hold its lock, which the kernel releases when the process dies."""
    if sys.platform == "win32":
        raise LedgerError(
            "ledgers are written on POSIX systems only, where a file can be locked; reading works"
        )
    try:
        # Opening alone could do something to a device.
        refuse_special(name)
        fd = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | create, 0o644)
    except OSError as error:
        wanted = "a file in an existing directory" if create else "an existing ledger"
        raise LedgerError(
            f"path must be {wanted} that can be written, got {name!r}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise LedgerError(str(error)) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.stat(name)):
            raise BlockingIOError
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise LedgerBusy(
                f"{name} is being written by this or another process; it has one writer at a time"
            ) from None
        raise LedgerError(
            f"{name} cannot be locked ({error.strerror}); keep it on a local disk"
        ) from error
    return fd


def complete(fd: int, log: Log) -> None:
    """Write what a crash left unwritten: at the end, or over the zeros that a power cut left."""
    if not log.zeros:
        append(fd, log.missing)
        return
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_APPEND)
    try:
        os.lseek(fd, log.size - len(log.missing), os.SEEK_SET)
        append(fd, log.missing)
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def is_unused(lines: Iterator[bytes], name: str) -> bool:
    """Whether these lines are empty, or of a run that released nothing and is not over."""
    first = next(lines, b"")
    if is_unfinished_header(first):
        return next(lines, None) is None
    try:
        log = parse(chain([first], lines), name)
    except LedgerError:
        return False
    return log.released == 0 and log.over is None
