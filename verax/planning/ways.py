"""Ways of drawing batches by name: what a plan chooses among, each built from records, batch size and epochs."""

from __future__ import annotations

import math
from collections.abc import Callable

from verax import checks
from verax.privacy.numerics.distributions import binomial_at_least
from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Poisson,
    RandomAllocation,
    Sampler,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)

_RARE = 1e-20  # how seldom some batch of a run is cut: below any usual delta, also times the e^epsilon it may cost


def _poisson(records: int, batch: int, epochs: int) -> Poisson:
    return Poisson(batch / records, _rounds(records, batch, epochs))


def _truncated(records: int, batch: int, epochs: int) -> TruncatedPoisson:
    rate, rounds = batch / records, _rounds(records, batch, epochs)
    return TruncatedPoisson(rate, rounds, uncut(records, rate, rounds), records)


def _buffered(records: int, batch: int, epochs: int) -> BufferedShuffle:
    batches = _batches(records, batch)
    return BufferedShuffle(batches, max(1, batches // 10), epochs)


def _rounds(records: int, batch: int, epochs: int) -> int:
    """Rounds whose expected batches add up to at least this many passes over the data, in whole numbers."""
    return -(-epochs * records // batch)


def _batches(records: int, batch: int) -> int:
    return -(-records // batch)


WAYS: dict[str, Callable[[int, int, int], Sampler]] = {
    "poisson": _poisson,
    "balls-in-bins": lambda n, b, e: BallsInBins(_batches(n, b), e),
    "random-allocation": lambda n, b, e: RandomAllocation(e, e * _batches(n, b)),
    "truncated-poisson": _truncated,
    "without-replacement": lambda n, b, e: WithoutReplacement(b, n, _rounds(n, b, e)),
    "shuffle": lambda n, b, e: Shuffle(_batches(n, b), e),
    "persistent-shuffle": lambda n, b, e: Shuffle(_batches(n, b), e, reshuffle=False),
    "buffered-shuffle": _buffered,
    "deterministic": lambda n, b, e: Deterministic(_batches(n, b), e),
}
"""By name: the sampler for (records, batch, epochs). A record is expected in ``epochs`` rounds in every one of them."""


def drawn(way: str, records: int, batch: int, epochs: int) -> Sampler:
    """The sampler of this name whose expected batch is ``batch`` and in which a record joins ``epochs`` rounds or so.

    Fixed batches and bins divide the records evenly, so theirs may be smaller than ``batch``; Poisson rounds are
    counted up to the next whole one. A truncated run's largest batch is one it practically never reaches, a buffer
    holds a tenth of the batches.

    >>> drawn("poisson", records=60000, batch=600, epochs=3)
    Poisson(rate=0.01, steps=300)
    >>> drawn("balls-in-bins", records=60000, batch=512, epochs=3)
    BallsInBins(bins=118, epochs=3)
    """
    make = WAYS[checks.choice("sampler", way, tuple(WAYS))]
    records, epochs = checks.count("records", records), checks.count("epochs", epochs)
    return make(records, checks.count("batch", batch, maximum=records), epochs)


def uncut(records: int, rate: float, rounds: int) -> int:
    """The smallest batch that hardly any run of so many Poisson rounds exceeds."""
    low, high = math.ceil(rate * records), records
    while low < high:
        middle = (low + high) // 2
        if binomial_at_least(records, rate, middle + 1).upper <= _RARE / rounds:
            high = middle
        else:
            low = middle + 1
    return low
