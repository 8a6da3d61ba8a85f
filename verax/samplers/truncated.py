"""Poisson batches that fit in a fixed number of places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from verax import checks
from verax.samplers.base import same_population, settle
from verax.samplers.coins import heads
from verax.samplers.stream import Batches, Stage


@dataclass(frozen=True)
class TruncatedPoisson:
    """A Poisson batch each round, and if it has more than ``max_batch`` records, a uniform ``max_batch`` of them.

    Formal guarantee of the iterator:
        * rounds are independent and identically distributed;
        * a batch has the law of a Poisson batch of probability ``rate``, replaced by a uniform subset of
          ``max_batch`` of its records when it is larger: sizes are min(Binomial(population, rate), max_batch), and
          given its size a batch is a uniform subset;
        * inside a round memberships are *not* independent: that is why the analysis needs the population;
        * batches may be empty; a batch lists distinct records in increasing order.

    Args:
        rate: probability of joining one batch before truncation, in (0, 1].
        steps: number of rounds.
        max_batch: the largest batch, at least the mean ``rate * population``.
        population: number of records, a public fact here because the analysis depends on it.

    >>> import numpy as np
    >>> from verax.samplers import TruncatedPoisson
    >>> sampler = TruncatedPoisson(rate=0.25, steps=100, max_batch=3, population=8)
    >>> max(len(batch) for batch in sampler.batches(8, np.random.default_rng(0)))
    3
    >>> len(sampler), sampler.expected_batch(8)
    (100, 2.0)
    """

    relation: ClassVar[str] = "add-remove"
    rate: float
    steps: int
    max_batch: int
    population: int

    def __post_init__(self) -> None:
        settle(
            self,
            rate=checks.rate("rate", self.rate),
            steps=checks.count("steps", self.steps),
            max_batch=checks.count("max_batch", self.max_batch),
            population=checks.count("population", self.population),
        )
        mean = self.rate * self.population
        if self.max_batch < mean * (1 - 1e-12):  # 0.07 * 100 is a little above 7 in doubles; 7 is allowed
            raise ValueError(f"max_batch must be at least rate * population = {mean:g}, got {self.max_batch!r}")

    def __len__(self) -> int:
        return self.steps

    def expected_batch(self, population: int) -> float:
        """``rate * population``, the mean before truncation."""
        return self.rate * same_population(self.population, population)

    def batches(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw the batches lazily, in time and memory of the batch (of the population, for rates above 1/2)."""
        return Batches(self, same_population(self.population, population), rng, self._round, passes=self.steps)

    def _round(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        batch = heads(rng, population, self.rate)
        if len(batch) > self.max_batch:
            batch = batch[np.sort(rng.choice(len(batch), self.max_batch, replace=False, shuffle=False))]
        yield (batch,)
