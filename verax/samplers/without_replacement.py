"""Uniform batches of fixed size, drawn afresh each round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, require_population, rounds_for, store_fields
from verax.samplers.options import BatchSize, Records, Steps
from verax.samplers.registry import register
from verax.samplers.stream import Batches, Stage


@register("without-replacement", "without replacement")
@dataclass(frozen=True)
class WithoutReplacement(Sampler):
    """Each round an independent uniform subset of ``batch`` of the ``population`` records.

    Formal guarantee of the iterator:
        * rounds are independent; each batch is exactly uniform among the subsets of size ``batch``
          (whole-number draws by rejection);
        * every batch has ``batch`` distinct records, in increasing order; a record may be in any
          number of batches.

    Args:
        batch: size of every batch, at most ``population``.
        population: number of records, a public fact here because it fixes the sampling rate.
        steps: number of rounds.

    >>> import numpy as np
    >>> from verax.samplers import WithoutReplacement
    >>> sampler = WithoutReplacement(batch=2, population=5, steps=3)
    >>> [len(batch) for batch in sampler.draw(5, np.random.default_rng(0))]
    [2, 2, 2]
    >>> len(sampler), sampler.expected_batch(5)
    (3, 2.0)
    """

    relation: ClassVar[str] = "replace"
    repeats: ClassVar[str] = "steps"
    independent_records: ClassVar[bool] = False
    batch: BatchSize
    population: Records
    steps: Steps

    def __post_init__(self) -> None:
        store_fields(
            self,
            population=checks.count("population", self.population),
            steps=checks.count("steps", self.steps),
        )
        store_fields(self, batch=checks.count("batch", self.batch, maximum=self.population))

    def __len__(self) -> int:
        return self.steps

    def expected_batch(self, population: int) -> float:
        """``batch``."""
        require_population(self.population, population)
        return float(self.batch)

    def title(self) -> str:
        return "without replacement"

    @property
    def declared_population(self) -> int:
        return self.population

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        return cls(batch, records, rounds_for(records, batch, epochs))

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        return cls(-(-records // batches), records, batches * epochs)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw lazily: a batch below a twentieth of the population costs only its own size."""
        records = require_population(self.population, population)
        return Batches(self, records, rng, self._round, passes=self.steps)

    def _round(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        batch = rng.choice(population, self.batch, replace=False, shuffle=False)
        batch.sort()
        yield (batch.astype(np.int64, copy=False),)
