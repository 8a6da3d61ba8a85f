"""Random words from a secret key: AES-256 in counter mode, through the ``cryptography`` package.

Word p of a stream is half of the encrypted counter p // 2, so the words depend on the key and the
position only. Every stream has a key of its own, derived by a keyed hash, and starts at zero: no
counter is ever used twice under one key.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
KEY_BYTES = 32
# Words kept for single draws.
AHEAD = 512
# Words of zeros to encrypt at a time.
CHUNK = 2**15
ZEROS = memoryview(bytes(8 * CHUNK))

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def _process() -> tuple[int, int]:
    """Differs between a process and its forks, also when a process number is used again."""
    return os.getpid(), _forks


def derive(key: bytes, purpose: str, label: str = "") -> bytes:
    """A key for one purpose and label: BLAKE2b keyed with ``key``, which it does not reveal."""
    return hashlib.blake2b(
        label.encode(), key=key, person=purpose.encode(), digest_size=KEY_BYTES
    ).digest()


class Secret:
    """Holds a key: never printed, copied or pickled, since a copy would repeat the randomness."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} must not be copied or pickled: the copy would repeat its "
            "randomness"
        )


class Keystream(Secret):
    """The words of one key, in order.

    Args:
        key: 32 secret bytes that no other stream uses.
        position: the first word to deal.
    """

    __slots__ = ("_ahead", "_cipher", "_key", "_next", "_position", "_process", "failure")

    def __init__(self, key: bytes, position: int = 0) -> None:
        self._process = _process()
        self.failure: BaseException | None = None
        self.move(key, position)

    @property
    def key(self) -> bytes:
        """The secret key."""
        return self._key

    @property
    def position(self) -> int:
        """How many words have been dealt."""
        return self._position

    def check(self) -> None:
        """Raise in a forked process, which would repeat the parent's words, and after a failure."""
        if self._process != _process():
            raise RuntimeError(
                "a random source must not cross a fork: make a new one in the child process"
            )
        if self.failure is not None:
            raise RuntimeError(
                "a draw from this random source was cut short: make a new source"
            ) from self.failure

    def move(self, key: bytes, position: int) -> None:
        """Go to any word of any key."""
        self._key, self._cipher = key, _cipher(key, position // 2)
        self._position = position - position % 2
        self._ahead: list[int] = []
        self._next = 0
        self.words(position % 2)

    def fill(self, out: Words) -> None:
        """Deal as many words as ``out``, which must be contiguous, holds."""
        self.check()
        size = len(out)
        target = out.data.cast("B")
        try:
            kept = min(size, len(self._ahead) - self._next)
            if kept:
                out[:kept] = self._ahead[self._next : self._next + kept]
                self._next += kept
            # After an odd number of words the cipher itself keeps its place inside the block.
            for start in range(8 * kept, 8 * size, len(ZEROS)):
                stop = min(start + len(ZEROS), 8 * size)
                self._cipher.update_into(ZEROS[: stop - start], target[start:stop])
            self._position += size
        except BaseException as error:
            # An interrupt may have left the cipher and the position apart.
            self.failure = error
            raise

    def words(self, size: int) -> Words:
        """The next ``size`` words."""
        out = np.empty(size, dtype=np.uint64)
        if size:
            self.fill(out)
        return out

    def word(self) -> int:
        """The next word."""
        self.check()
        if self._next == len(self._ahead):
            position = self._position
            self._ahead, self._next = [], 0
            self._ahead = self.words(AHEAD).tolist()
            self._position = position
        self._next += 1
        self._position += 1
        return self._ahead[self._next - 1]

    def at(self, position: int) -> int:
        """One word from anywhere, without moving."""
        return Keystream(self._key, position).word()


def _cipher(key: bytes, block: int) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "private randomness needs the cryptography package: pip install 'verax[train]'"
        ) from error
    return Cipher(AES(key), CTR(block.to_bytes(16, "big"))).encryptor()
