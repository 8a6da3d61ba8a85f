"""Fixed-size batches of shuffled data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from verax import checks
from verax.samplers.base import (
    FixedBatches,
    Sampler,
    require_population,
    require_record_each,
    store_fields,
)
from verax.samplers.options import BatchCount, Epochs
from verax.samplers.registry import register
from verax.samplers.sorting import balanced_edges, split_at, uniform_order
from verax.samplers.stream import Batches, Stage


@register("persistent-shuffle", "shuffled once", reshuffle=False)
@register("shuffle", "shuffled each epoch", reshuffle=True)
@dataclass(frozen=True)
class Shuffle(FixedBatches):
    """The data in random order, cut into ``batches`` runs; a new order each epoch, or one for all.

    Formal guarantee of the iterator:
        * in each epoch every record is in exactly one batch;
        * sizes are balanced: the first ``population % batches`` batches have one record more than
          the others, and none is empty;
        * the partition of an epoch is uniform among all partitions of these sizes;
        * epochs are independent if ``reshuffle``, otherwise batch t is the same in every epoch;
        * the order of records inside a batch is unspecified.

    Args:
        batches: number of batches in an epoch, at most the population.
        epochs: number of times through the data.
        reshuffle: draw a fresh order for each epoch; otherwise one order serves for all.
        population: number of records, if it is public. The privacy that fresh shuffles add depends
            on the size of the batches, and is proved only where that is known (docs/shuffle.md).

    >>> import numpy as np
    >>> from verax.samplers import Shuffle
    >>> sampler = Shuffle(batches=3, epochs=2)
    >>> [len(batch) for batch in sampler.draw(7, np.random.default_rng(0))]
    [3, 2, 2, 3, 2, 2]
    >>> np.sort(np.concatenate(list(Shuffle(batches=3).draw(7, np.random.default_rng(0))))).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """

    batches: BatchCount
    epochs: Epochs = 1
    reshuffle: bool = True
    population: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reshuffle, bool):
            raise ValueError(f"reshuffle must be True or False, got {self.reshuffle!r}")
        super().__post_init__()
        if self.population is not None:
            population = checks.count("population", self.population)
            store_fields(self, population=require_record_each(self.batches, population))

    def __repr__(self) -> str:
        """Without a population that was not given."""
        known = "" if self.population is None else f", population={self.population}"
        return (
            f"Shuffle(batches={self.batches}, epochs={self.epochs}, "
            f"reshuffle={self.reshuffle}{known})"
        )

    @property
    def declared_population(self) -> int | None:
        return self.population

    def expected_batch(self, population: int) -> float:
        """``population / batches``, also where the batches differ by one."""
        return super().expected_batch(self._as_declared(population))

    def _as_declared(self, population: int) -> int:
        return (
            population
            if self.population is None
            else require_population(self.population, population)
        )

    def title(self) -> str:
        if self.epochs == 1:
            return "shuffled"
        return "shuffled each epoch" if self.reshuffle else "shuffled once"

    def simplest(self) -> Sampler:
        """The order drawn anew each epoch, where there is only one epoch."""
        return replace(self, reshuffle=True) if self.epochs == 1 else self

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        require_record_each(self.batches, self._as_declared(population))
        orders = self.epochs if self.reshuffle else 1
        return Batches(self, population, rng, self._order, passes=orders)

    def _order(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        cuts = balanced_edges(population, self.batches)
        order = uniform_order(rng, population, cuts)
        uses = 1 if self.reshuffle else self.epochs
        yield chain.from_iterable(split_at(order, cuts) for _ in range(uses))
