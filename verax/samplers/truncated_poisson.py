"""Poisson batches that fit in a fixed number of places."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, require_population, rounds_for, store_fields
from verax.samplers.bernoulli import heads
from verax.samplers.options import Option, Rate, Records, Steps
from verax.samplers.registry import register
from verax.samplers.stream import Batches, Stage

# Probability that a planned run truncates any batch: below any usual delta, also times the
# e^epsilon it may cost.
_RARE = 1e-20


@register("truncated-poisson", "truncated Poisson")
@dataclass(frozen=True)
class TruncatedPoisson(Sampler):
    """A Poisson batch each round, or a uniform ``max_batch`` of its records if it is larger.

    Formal guarantee of the iterator:
        * rounds are independent and identically distributed;
        * a batch is a Poisson batch of probability ``rate``, replaced by a uniform subset of
          ``max_batch`` of its records when it is larger: sizes are min(Binomial(population, rate),
          max_batch), and given its size a batch is a uniform subset;
        * inside a round memberships are *not* independent: that is why the analysis needs the
          population;
        * batches may be empty; a batch lists distinct records in increasing order.

    Args:
        rate: probability of joining one batch before truncation, in (0, 1].
        steps: number of rounds.
        max_batch: the largest batch, at least the mean ``rate * population``.
        population: number of records, a public fact here because the analysis depends on it.

    >>> import numpy as np
    >>> from verax.samplers import TruncatedPoisson
    >>> sampler = TruncatedPoisson(rate=0.25, steps=100, max_batch=3, population=8)
    >>> max(len(batch) for batch in sampler.draw(8, np.random.default_rng(0)))
    3
    >>> len(sampler), sampler.expected_batch(8)
    (100, 2.0)
    """

    relation: ClassVar[str] = "add-remove"
    repeats: ClassVar[str] = "steps"
    independent_records: ClassVar[bool] = False
    rate: Rate
    steps: Steps
    max_batch: Annotated[int, Option("--max-batch", "The largest batch.")]
    population: Records

    def __post_init__(self) -> None:
        store_fields(
            self,
            rate=checks.rate("rate", self.rate),
            steps=checks.count("steps", self.steps),
            max_batch=checks.count("max_batch", self.max_batch),
            population=checks.count("population", self.population),
        )
        mean = self.rate * self.population
        # 0.07 * 100 is a little above 7 in doubles; 7 is allowed
        if self.max_batch < mean * (1 - 1e-12):
            raise ValueError(
                f"max_batch must be at least rate * population = {mean:g}, got {self.max_batch!r}"
            )

    def __len__(self) -> int:
        return self.steps

    def expected_batch(self, population: int) -> float:
        """``rate * population``, the mean before truncation."""
        return self.rate * require_population(self.population, population)

    def title(self) -> str:
        return f"Poisson, at most {self.max_batch}"

    @property
    def declared_population(self) -> int:
        return self.population

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """Poisson rounds, with a largest batch that is practically never reached."""
        return cls._rarely_truncated(batch / records, rounds_for(records, batch, epochs), records)

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        return cls._rarely_truncated(1.0 / batches, batches * epochs, records)

    @classmethod
    def _rarely_truncated(cls, rate: float, steps: int, records: int) -> Self:
        return cls(rate, steps, rarely_exceeded_size(records, rate, steps), records)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw lazily, in time and memory of the batch (of the population above rate 1/2)."""
        records = require_population(self.population, population)
        return Batches(self, records, rng, self._round, passes=self.steps)

    def _round(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        batch = heads(rng, population, self.rate)
        if len(batch) > self.max_batch:
            chosen = rng.choice(len(batch), self.max_batch, replace=False, shuffle=False)
            batch = batch[np.sort(chosen)]
        yield (batch,)


def rarely_exceeded_size(records: int, rate: float, rounds: int) -> int:
    """The smallest batch size that a run of Poisson rounds exceeds with probability 1e-20 at most.

    Nothing that is proved rests on the tail used here: the analysis prices any size.
    """
    from scipy import special  # here, because drawing batches does without it

    def rarely_exceeded(size: int) -> bool:
        return bool(special.betainc(size + 1.0, float(records - size), rate) <= _RARE / rounds)

    least = math.ceil(rate * records)
    return least + bisect_left(range(least, records), True, key=rarely_exceeded)
