"""Fixed batches in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, at_least_one_each, batches_per_epoch, settle
from verax.samplers.options import BatchCount, Epochs
from verax.samplers.registry import register
from verax.samplers.sorting import edges
from verax.samplers.stream import Batches, Stage


@register("deterministic", "fixed batches")
@dataclass(frozen=True)
class Deterministic(Sampler):
    """The data cut into ``batches`` consecutive runs, the same in each epoch. Nothing is random.

    Formal guarantee of the iterator: * in each epoch every record is in exactly one batch: batches
        of an epoch are disjoint, nothing is dropped; * sizes are balanced: the first ``population %
        batches`` batches have one record more than the others, and
          none is empty;
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

    relation: ClassVar[str] = "zero-out"
    repeats: ClassVar[str] = "epochs"
    independent_records: ClassVar[bool] = False
    in_order: ClassVar[bool] = True
    batches: BatchCount
    epochs: Epochs = 1

    def __post_init__(self) -> None:
        settle(
            self,
            batches=checks.count("batches", self.batches),
            epochs=checks.count("epochs", self.epochs),
        )

    def __len__(self) -> int:
        return self.batches * self.epochs

    def expected_batch(self, population: int) -> float:
        """``population / batches``, also where the batches differ by one."""
        return at_least_one_each(self.batches, population) / self.batches

    def title(self) -> str:
        """The name alone."""
        return "fixed"

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """As many batches as hold all records, none larger than ``batch``."""
        return cls(batches_per_epoch(records, batch), epochs)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw an epoch at a time, in linear time."""
        at_least_one_each(self.batches, population)
        return Batches(self, population, rng, self._epoch, passes=self.epochs)

    def _epoch(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        cuts = edges(population, self.batches).tolist()
        yield (np.arange(start, stop, dtype=np.int64) for start, stop in pairwise(cuts))
