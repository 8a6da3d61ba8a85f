"""The file of a ledger while it is written: one writer, and a look before and after each line."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from itertools import chain

from verax.durable import append, refuse_special
from verax.ledger.entries import DamagedLedger, LedgerError, Log, parse, unfinished_header

if sys.platform != "win32":
    import fcntl


class LedgerBusy(LedgerError):  # noqa: N818 - public name, says what is wrong
    """Another process, another object of this one or a call under way is writing the ledger."""


class LedgerFile:
    """A file that is locked, and that must stay what and where it was when it was opened.

    Args:
        path: the name it was opened by.
        fd: its descriptor, locked; it is closed with this object.
    """

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._place = os.path.abspath(path)  # the program may go elsewhere
        self._fd = fd
        self._changed = os.fstat(fd).st_mtime_ns
        self.close = weakref.finalize(self, os.close, fd)

    def append(self, line: bytes, digest: str, log: Log, otherwise: str) -> None:
        """Write a line behind those that ``log`` knows, and force it to disk; or say what is wrong.

        What others do to the file meanwhile is noticed afterwards, before anybody relies on the
        line.
        """
        self._check(log.size, log.head, otherwise)
        append(self._fd, line)
        self._changed = os.fstat(self._fd).st_mtime_ns
        self._check(log.size + len(line), digest, otherwise)

    def _check(self, size: int, head: str, otherwise: str) -> None:
        now = os.fstat(self._fd)
        try:
            named = os.stat(self._place)
        except OSError:
            named = None
        if named is None or not os.path.samestat(now, named):
            raise DamagedLedger(
                f"{self.path} was deleted, moved or replaced while it was being written; {otherwise}. "
                "Put the file that was written back under its name, and open it again"
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
    """Open the file and hold its lock. The kernel lets go of it whenever the process dies."""
    if sys.platform == "win32":
        raise LedgerError(
            "ledgers are written on POSIX systems only, where a file can be locked; reading works"
        )
    try:
        refuse_special(name)  # opening alone could do something to a device
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
    """Write what a crash left unwritten: behind the end, or over the zeros that a power cut left."""
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


def unused(lines: Iterator[bytes], name: str) -> bool:
    """Whether these are the lines of a run that released nothing and may have gone on, or of none."""
    first = next(lines, b"")
    if unfinished_header(first):
        return next(lines, None) is None
    try:
        log = parse(chain([first], lines), name)
    except LedgerError:
        return False
    return log.released == 0 and log.over is None
