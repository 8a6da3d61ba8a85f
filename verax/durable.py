"""Files that only grow: lines chained by hash, each on disk before the next step is taken."""

from __future__ import annotations

import json
import os
import stat
import sys
from hashlib import sha256
from typing import Any

FIRST_HASH = "0" * 64  # what the first line is chained to


def encode(content: dict[str, Any]) -> bytes:
    """JSON in one way only, without its last brace."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()[:-1]


def chain_line(body: bytes, previous: str) -> tuple[bytes, str]:
    """A whole line, and its hash, which covers all lines before it.

    >>> line, digest = chain_line(encode({"round": 1}), FIRST_HASH)
    >>> line.decode().strip() == f'{{"round":1,"hash":"{digest}"}}'
    True
    """
    digest = sha256(previous.encode() + body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), digest


def append(fd: int, line: bytes) -> None:
    """Append, and force to disk; on macOS fsync alone leaves it in the drive's cache."""
    while line:
        line = line[os.write(fd, line) :]
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def lock_file(fd: int) -> None:
    """Wait until no other process, nor object of this one, holds the file; let go by closing it."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX)


def sync_directory(name: str) -> None:
    """Force the file's name to disk."""
    fd = os.open(os.path.dirname(os.path.realpath(name)), os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refuse_device(name: str) -> None:
    """Refuse a device, such as /dev/zero, from which one could read for ever.

    Files that are not there pass.
    """
    try:
        mode = os.stat(name).st_mode
    except OSError:
        return  # opening it says why that is not possible
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ValueError(f"path must be a file, got {name!r}, which is a device")


def refuse_special(name: str) -> None:
    """Refuse what is there and is neither a file nor a folder: nothing could be kept in it."""
    try:
        mode = os.stat(name).st_mode
    except OSError:
        return  # opening it says why that is not possible
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(
            f"path must be a file, got {name!r}, which is a device, a pipe or a socket"
        )
