"""Fixed-size batches of shuffled data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, at_least_one_each, batches_per_epoch, settle
from verax.samplers.options import BatchCount, Epochs
from verax.samplers.registry import register
from verax.samplers.sorting import edges, slices, uniform_order
from verax.samplers.stream import Batches, Stage


@register("persistent-shuffle", "shuffled once", reshuffle=False)
@register("shuffle", "shuffled each epoch", reshuffle=True)
@dataclass(frozen=True)
class Shuffle(Sampler):
    """The data in uniformly random order, cut into ``batches`` runs; a fresh order each epoch, or one for all.

    Formal guarantee of the iterator: * in each epoch every record is in exactly one batch: batches
        of an epoch are disjoint, nothing is dropped; * sizes are balanced: the first ``population %
        batches`` batches have one record more than the others, and
          none is empty;
        * the partition of an epoch is uniform among all partitions of these sizes;
        * epochs are independent if ``reshuffle``, otherwise batch t is the same in every epoch;
        * the order of records inside a batch is unspecified.

    Args:
        batches: number of batches in an epoch, at most the population.
        epochs: number of times through the data.
        reshuffle: draw a fresh order for each epoch; otherwise one order is drawn and kept.

    >>> import numpy as np
    >>> from verax.samplers import Shuffle
    >>> sampler = Shuffle(batches=3, epochs=2)
    >>> [len(batch) for batch in sampler.draw(7, np.random.default_rng(0))]
    [3, 2, 2, 3, 2, 2]
    >>> np.sort(np.concatenate(list(Shuffle(batches=3).draw(7, np.random.default_rng(0))))).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """

    relation: ClassVar[str] = "zero-out"
    repeats: ClassVar[str] = "epochs"
    independent_records: ClassVar[bool] = False
    batches: BatchCount
    epochs: Epochs = 1
    reshuffle: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.reshuffle, bool):
            raise ValueError(f"reshuffle must be True or False, got {self.reshuffle!r}")
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
        """How often it is shuffled."""
        if self.epochs == 1:
            return "shuffled"
        return "shuffled each epoch" if self.reshuffle else "shuffled once"

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """As many batches as hold all records, none larger than ``batch``."""
        return cls(batches_per_epoch(records, batch), epochs)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw an epoch at a time, in linear time."""
        at_least_one_each(self.batches, population)
        return Batches(
            self, population, rng, self._order, passes=self.epochs if self.reshuffle else 1
        )

    def _order(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        cuts = edges(population, self.batches)
        order = uniform_order(rng, population, cuts)
        uses = 1 if self.reshuffle else self.epochs
        yield chain.from_iterable(slices(order, cuts) for _ in range(uses))
