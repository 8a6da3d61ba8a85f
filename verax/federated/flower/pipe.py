"""Lists of byte strings over a local socket, between the processes of one host."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as sockets
from multiprocessing.connection import Connection, Listener
from pathlib import Path

TRAIN, END = b"train", b"end"
"""What a ClientApp asks a client for: answers to models, or to end with the last one."""

_COUNT = "<I"
_MOST = 1024  # byte strings in a list


def connect(address: str) -> Connection:
    """A connection to the process that listens at an address, or OSError."""
    return sockets.Client(address)


def send(connection: Connection, pieces: Sequence[bytes]) -> None:
    """Send a list of byte strings."""
    connection.send_bytes(struct.pack(_COUNT, len(pieces)))
    for piece in pieces:
        connection.send_bytes(piece)


def receive(connection: Connection, longest: int | None = None) -> list[bytes]:
    """Receive a list of byte strings, or raise OSError or EOFError.

    Args:
        connection: where from.
        longest: the most bytes that a string may have; by default any number.
    """
    head = connection.recv_bytes(struct.calcsize(_COUNT))
    if len(head) != struct.calcsize(_COUNT):
        raise OSError("the other side does not send a list of byte strings")
    (count,) = struct.unpack(_COUNT, head)
    if count > _MOST:
        raise OSError(f"a list must have at most {_MOST} byte strings, got {count}")
    return [connection.recv_bytes(longest) for _ in range(count)]


@contextmanager
def listening(address: str, mode: int = 0o600) -> Iterator[Listener]:
    """Listen on a socket, which by default only processes of this user can open.

    A socket left behind by a process that died is replaced; one in use is not.
    """
    path = Path(address)
    if path.is_socket():
        with suppress(OSError), connect(address):
            raise ValueError(f"address must not be in use, got {address!r}: name another")
        path.unlink()
    # the mode is that of the socket from its first moment; a Listener cannot be given one
    before = os.umask(0o777 & ~mode)
    try:
        listener = Listener(address)
    finally:
        os.umask(before)
    with listener:
        yield listener
