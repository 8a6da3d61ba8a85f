"""Coins of clients and records: 128 fixed bits per round, client and record, from a key.

Bits are the AES-256 encryption of (round, client, place), so any set of coins is found in one call
without drawing the others: an engine tosses those of all clients at once, and a client its own,
from the same key if it is shared (a simulation) or from a key of its own. Nothing is kept
between rounds, so there is no state to save or to lose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verax.randomness import Source
from verax.randomness.keystream import Secret

Numbers = NDArray[np.int64]
Rates = float | NDArray[np.float64]
"""One rate for all, or one for each."""
_ITSELF = 0  # place of the client's own coin; its records follow from 1
_LAST = 2**32 - 1  # places of the picks of a round, from here downwards


class Coins(Secret):
    """Coins that cannot be predicted without the key.

    Args:
        source: where the key comes from. Sources in the same state give the same coins.
        since: the first round it is used in.

    >>> from verax.randomness import Source
    >>> coins = Coins(Source.insecure(1))
    >>> heads = coins.clients(0.25, 7, np.arange(8))
    >>> np.array_equal(heads[3:5], coins.clients(0.25, 7, np.array([3, 4])))
    True
    """

    def __init__(self, source: Source, since: int = 0) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        key = source.generator().integers(0, 2**64, 4, dtype=np.uint64).tobytes()
        self.since = since
        # Every block is encrypted once per purpose, so this is counter mode with chosen counters.
        self._encryptor: Any = Cipher(AES(key), ECB()).encryptor()

    def clients(self, rate: Rates, number: int, clients: Numbers) -> NDArray[np.bool_]:
        """Which of these clients take part in round ``number``, each with probability ``rate``."""
        return self._heads(rate, self._bits(number, clients, _ITSELF))

    def records(
        self, rate: Rates, number: int, clients: Numbers, sizes: Numbers
    ) -> NDArray[np.bool_]:
        """Which records of these clients are used in round ``number``, client after client."""
        rate = np.repeat(rate, sizes) if np.size(rate) > 1 else rate
        total = int(sizes.sum())
        places = np.arange(1, total + 1, dtype=np.uint64)
        places -= np.repeat((np.cumsum(sizes) - sizes).astype(np.uint64), sizes)
        return self._heads(rate, self._bits(number, np.repeat(clients, sizes), places))

    def picks(self, bins: int, epoch: int, clients: Numbers) -> Numbers:
        """The round of ``bins`` in which each client takes part, uniform and independent."""
        # above it some rounds would be favoured: the next place is tried
        most = np.uint64(2**64 - 2**64 % bins - 1)
        words, attempt = self._bits(epoch, clients, np.uint64(_LAST))[:, 0].copy(), _LAST
        while (again := np.flatnonzero(words > most)).size:
            attempt -= 1
            words[again] = self._bits(epoch, clients[again], np.uint64(attempt))[:, 0]
        return (words % np.uint64(bins)).astype(np.int64)

    def _bits(self, number: int, clients: Numbers, places: Any) -> NDArray[np.uint64]:
        """128 bits for each client and place, as two words."""
        blocks = np.empty((len(clients), 2), dtype=np.uint64)
        blocks[:, 0] = number
        np.left_shift(clients, 32, out=blocks[:, 1], casting="unsafe")
        if places is not _ITSELF:
            blocks[:, 1] |= places
        return np.frombuffer(
            self._encryptor.update(blocks.data.cast("B")), dtype=np.uint64
        ).reshape(-1, 2)

    @staticmethod
    def _heads(rate: Rates, bits: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether the bits, as a fraction, are below ``rate``; exact for rates from 2^-70 on.

        Such a rate is a whole multiple of 2^-128, and so both of its words are floating-point
        numbers.
        """
        low, high = np.modf(np.ldexp(rate, 64))
        sure = high >= 2.0**64
        first, word = bits[:, 0], np.where(sure, 0.0, high).astype(np.uint64)
        below: NDArray[np.bool_] = (first < word) | sure
        undecided = np.flatnonzero(first == word)
        if undecided.size:
            rest = np.broadcast_to(np.ldexp(low, 64).astype(np.uint64), first.shape)[undecided]
            below[undecided] |= bits[undecided, 1] < rest
        return below
