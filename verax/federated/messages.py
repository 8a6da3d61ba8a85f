"""Messages between clients and server: three frozen kinds, and their bytes.

Bytes are a fixed header and little-endian single precision: nothing in them is ever executed, and
whatever is not exactly one message is refused. Who sent a message is for the transport to know.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

RUN_BYTES = 16
_MAGIC = b"VRX1"
_MODEL, _UPDATE, _RECEIPT = b"M", b"U", b"R"
_HEADS = {_MODEL: "<4sc16sQ", _UPDATE: "<4sc16sQQd", _RECEIPT: "<4sc16sQQ"}


class BadMessage(ValueError):  # noqa: N818 - public name, says what it is
    """These bytes are not a message."""


@dataclass(frozen=True, eq=False)
class Model:
    """From the server to all clients: the weights that round ``round`` starts from."""

    run: bytes
    round: int
    weights: Values

    def __post_init__(self) -> None:
        _check(self, round=self.round)
        object.__setattr__(self, "weights", _frozen(self.weights))

    def pack(self) -> bytes:
        """The message as bytes; :func:`unpack` is the inverse."""
        return (
            struct.pack(_HEADS[_MODEL], _MAGIC, _MODEL, self.run, self.round)
            + self.weights.tobytes()
        )


@dataclass(frozen=True, eq=False)
class Update:
    """From a client: its clipped sum of a round, noisy where clients add noise.

    ``seen`` is for asynchronous rounds: the expected number of records the client used in earlier
    rounds, a public number from which the step size follows.
    """

    run: bytes
    client: int
    round: int
    values: Values
    seen: float = 0.0

    def __post_init__(self) -> None:
        _check(self, client=self.client, round=self.round)
        if not 0.0 <= self.seen < math.inf:
            raise BadMessage(f"seen must be at least 0 and finite, got {self.seen!r}")
        object.__setattr__(self, "values", _frozen(self.values))

    def pack(self) -> bytes:
        """The message as bytes; :func:`unpack` is the inverse."""
        head = struct.pack(
            _HEADS[_UPDATE], _MAGIC, _UPDATE, self.run, self.client, self.round, self.seen
        )
        return head + self.values.tobytes()


@dataclass(frozen=True)
class Receipt:
    """From the server to a client: its rounds below ``below`` have arrived."""

    run: bytes
    client: int
    below: int

    def __post_init__(self) -> None:
        _check(self, client=self.client, below=self.below)

    def pack(self) -> bytes:
        """The message as bytes; :func:`unpack` is the inverse."""
        return struct.pack(_HEADS[_RECEIPT], _MAGIC, _RECEIPT, self.run, self.client, self.below)


Message = Model | Update | Receipt


def unpack(content: bytes) -> Message:
    """The message that these bytes are, or :class:`BadMessage`.

    >>> import numpy as np
    >>> sent = Update(
    ...     b"0123456789abcdef", client=3, round=5, values=np.array([0.5, -1.0], dtype=np.float32)
    ... )
    >>> got = unpack(sent.pack())
    >>> got.client, got.round, got.values.tolist()
    (3, 5, [0.5, -1.0])
    """
    kind = bytes(content[4:5])
    if bytes(content[:4]) != _MAGIC or kind not in _HEADS:
        raise BadMessage("these bytes do not begin like a message")
    size = struct.calcsize(_HEADS[kind])
    rest = len(content) - size
    if rest < 0 or rest % 4 or (kind == _RECEIPT and rest):
        raise BadMessage(f"a message of this kind cannot have {len(content)} bytes")
    _, _, *fields = struct.unpack(_HEADS[kind], content[:size])
    values = np.frombuffer(content, dtype="<f4", offset=size).astype(np.float32)
    if kind == _MODEL:
        run, number = fields
        return Model(run, number, values)
    if kind == _UPDATE:
        run, client, number, seen = fields
        return Update(run, client, number, values, seen)
    run, client, below = fields
    return Receipt(run, client, below)


def _frozen(values: Any) -> Values:
    """The numbers, in memory that is not writable."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.ndim != 1:
        kind = (
            f"{values.dtype} of shape {values.shape}"
            if isinstance(values, np.ndarray)
            else type(values).__name__
        )
        raise BadMessage(f"values must be a flat float32 array, got {kind}")
    found: Values = values
    if found.flags.writeable or not found.flags.c_contiguous:
        found = found.copy()
        found.flags.writeable = False
    return found


def _check(message: Any, **counts: Any) -> None:
    if not isinstance(message.run, bytes) or len(message.run) != RUN_BYTES:
        raise BadMessage(f"run must be {RUN_BYTES} bytes")
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise BadMessage(f"{name} must be a whole number of at least 0, got {value!r}")
