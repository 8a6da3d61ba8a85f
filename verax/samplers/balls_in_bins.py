"""Balls in bins: every record picks one batch of the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, batches_per_epoch, store_fields
from verax.samplers.options import BatchCount, Epochs
from verax.samplers.registry import register
from verax.samplers.sorting import MAX_PARTS, sort_by_label, split_at, uniform_labels
from verax.samplers.stream import Batches, Stage


@register("balls-in-bins", "balls in bins")
@dataclass(frozen=True)
class BallsInBins(Sampler):
    """Each epoch, every record picks one of ``bins`` batches, independently and uniformly.

    Formal guarantee of the iterator:
        * in each epoch every record is in exactly one batch;
        * the ``epochs * population`` choices are independent and exactly uniform (whole-number
          draws by rejection);
        * batch sizes of an epoch are Multinomial(population; 1/bins, ...): they vary and may be
          zero; an empty batch is a round like any other;
        * a batch lists its records in increasing order.

    Args:
        bins: number of batches in an epoch; may exceed the number of records.
        epochs: number of times through the data.

    >>> import numpy as np
    >>> from verax.samplers import BallsInBins
    >>> sampler = BallsInBins(bins=3)
    >>> [batch.tolist() for batch in sampler.draw(7, np.random.default_rng(2))]
    [[4, 5], [1, 2], [0, 3, 6]]
    >>> len(sampler), sampler.expected_batch(6)
    (3, 2.0)
    """

    relation: ClassVar[str] = "add-remove"
    repeats: ClassVar[str] = "epochs"
    independent_records: ClassVar[bool] = True
    bins: BatchCount
    epochs: Epochs = 1

    def __post_init__(self) -> None:
        store_fields(
            self,
            bins=checks.count("bins", self.bins, maximum=MAX_PARTS),
            epochs=checks.count("epochs", self.epochs),
        )

    def __len__(self) -> int:
        return self.bins * self.epochs

    def expected_batch(self, population: int) -> float:
        """``population / bins``."""
        return checks.count("population", population) / self.bins

    def title(self) -> str:
        return "balls in bins"

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        return cls.with_batches(batches_per_epoch(records, batch), epochs, records)

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        return cls(batches, epochs)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw an epoch at a time, in linear time: labels, then a counting sort."""
        return Batches(self, population, rng, self._epoch, passes=self.epochs)

    def _epoch(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        yield split_at(*sort_by_label(uniform_labels(rng, population, self.bins), self.bins))
