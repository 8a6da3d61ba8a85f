"""Poisson batches: every record joins every batch by its own coin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, rounds_for, store_fields
from verax.samplers.bernoulli import heads
from verax.samplers.options import Rate, Steps
from verax.samplers.registry import register
from verax.samplers.stream import Batches, Stage


@register("poisson", "Poisson")
@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record joins each of ``steps`` batches independently with probability ``rate``.

    Formal guarantee of the iterator:
        * the ``steps * population`` membership indicators are independent Bernoulli(rate),
          exactly: ``verax.samplers.bernoulli`` says why rounding does not change that;
        * batch sizes are independent Binomial(population, rate), so they vary and may be zero; an
          empty batch is a round like any other;
        * a batch lists distinct records in increasing order.

    Args:
        rate: probability of joining one batch, in (0, 1].
        steps: number of rounds.

    >>> import numpy as np
    >>> from verax.samplers import Poisson
    >>> sampler = Poisson(rate=0.25, steps=3)
    >>> [batch.tolist() for batch in sampler.draw(8, np.random.default_rng(0))]
    [[1, 6], [6, 7], [1, 5]]
    >>> len(sampler), sampler.expected_batch(8)
    (3, 2.0)
    """

    relation: ClassVar[str] = "add-remove"
    repeats: ClassVar[str] = "steps"
    independent_records: ClassVar[bool] = True
    rate: Rate
    steps: Steps

    def __post_init__(self) -> None:
        store_fields(
            self, rate=checks.rate("rate", self.rate), steps=checks.count("steps", self.steps)
        )

    def __len__(self) -> int:
        return self.steps

    def expected_batch(self, population: int) -> float:
        """``rate * population``."""
        return self.rate * checks.count("population", population)

    def title(self) -> str:
        return "Poisson"

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        return cls(batch / records, rounds_for(records, batch, epochs))

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        return cls(1.0 / batches, batches * epochs)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw lazily, in time and memory of the batch (of the population above rate 1/2)."""
        return Batches(self, population, rng, self._round, passes=self.steps)

    def _round(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        yield (heads(rng, population, self.rate),)
