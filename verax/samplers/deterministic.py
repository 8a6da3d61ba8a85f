"""Fixed batches in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from verax.samplers.base import FixedBatches, require_record_each
from verax.samplers.options import BatchCount, Epochs
from verax.samplers.registry import register
from verax.samplers.sorting import balanced_edges
from verax.samplers.stream import Batches, Stage


@register("deterministic", "fixed batches")
@dataclass(frozen=True)
class Deterministic(FixedBatches):
    """The data cut into ``batches`` consecutive runs, the same in each epoch. Nothing is random.

    Formal guarantee of the iterator:
        * in each epoch every record is in exactly one batch;
        * sizes are balanced: the first ``population % batches`` batches have one record more than
          the others, and none is empty;
        * batch t is the same in every epoch, and lists its records in increasing order;
        * the generator is not used.

    Args:
        batches: number of batches in an epoch, at most the population.
        epochs: number of times through the data.

    >>> import numpy as np
    >>> from verax.samplers import Deterministic
    >>> sampler = Deterministic(batches=3)
    >>> [batch.tolist() for batch in sampler.draw(7, np.random.default_rng())]
    [[0, 1, 2], [3, 4], [5, 6]]
    >>> len(sampler), sampler.batches, sampler.expected_batch(7)
    (3, 3, 2.3333333333333335)
    """

    in_order: ClassVar[bool] = True
    batches: BatchCount
    epochs: Epochs = 1

    def title(self) -> str:
        return "fixed"

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        require_record_each(self.batches, population)
        return Batches(self, population, rng, self._epoch, passes=self.epochs)

    def _epoch(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        cuts = balanced_edges(population, self.batches).tolist()
        yield (np.arange(start, stop, dtype=np.int64) for start, stop in pairwise(cuts))
