"""Fixed batches in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from verax import checks
from verax.samplers.base import at_least_one_each, settle
from verax.samplers.fixed import BATCHES, BatchCount
from verax.samplers.sorting import edges
from verax.samplers.stream import Batches, Stage


@dataclass(frozen=True)
class Deterministic:
    """The data cut into ``batches`` consecutive runs, the same in each epoch. Nothing is random.

    Formal guarantee of the iterator:
        * in each epoch every record is in exactly one batch: batches of an epoch are disjoint, nothing is dropped;
        * sizes are balanced: the first ``population % batches`` batches have one record more than the others, and
          none is empty;
        * batch t is the same in every epoch, and lists its records in increasing order;
        * the generator is not used.

    Args:
        batches: number of batches in an epoch, at most the population. Called, it draws them.
        epochs: number of times through the data.

    >>> import numpy as np
    >>> from verax.samplers import Deterministic
    >>> sampler = Deterministic(batches=3)
    >>> [batch.tolist() for batch in sampler.batches(7, np.random.default_rng())]
    [[0, 1, 2], [3, 4], [5, 6]]
    >>> len(sampler), sampler.batches, sampler.expected_batch(7)
    (3, 3, 2.3333333333333335)
    """

    relation: ClassVar[str] = "zero-out"
    batches: BatchCount = BATCHES
    epochs: int = 1

    def __post_init__(self) -> None:
        settle(self, epochs=checks.count("epochs", self.epochs))

    def __len__(self) -> int:
        return self.batches * self.epochs

    def expected_batch(self, population: int) -> float:
        """``population / batches``, also where the batches differ by one."""
        return at_least_one_each(self.batches, population) / self.batches

    def _run(self, population: int, rng: np.random.Generator) -> Batches:
        return Batches(self, population, rng, self._epoch, passes=self.epochs)

    def _epoch(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        cuts = edges(population, self.batches).tolist()
        yield (np.arange(start, stop, dtype=np.int64) for start, stop in pairwise(cuts))
