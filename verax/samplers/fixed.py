"""The field ``batches`` of samplers that have a fixed number of batches in an epoch.

Such a sampler is described by its number of batches, ``Shuffle(batches=100)``, and like every sampler draws them with
``sampler.batches(population, rng)``. Both are read from one attribute: a whole number that can be called. In every
other way (equality, repr, ``dataclasses.replace`` and ``asdict``, pickling, JSON) it is the number.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from verax import checks
from verax.samplers.base import at_least_one_each
from verax.samplers.stream import Batches


class FixedBatches(Protocol):
    """What a sampler with such a field provides: the run that a call of the number starts."""

    def _run(self, population: int, rng: np.random.Generator) -> Batches: ...


class Count(int):
    """A number of batches; called, it draws them."""

    sampler: FixedBatches

    def __call__(self, population: int, rng: np.random.Generator) -> Batches:
        """The batches of one run: every epoch's, in order."""
        return self.sampler._run(at_least_one_each(int(self), population), rng)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # a copy of the number alone is a plain number


class BatchCount:
    """Descriptor: stores a checked whole number in the sampler, gives it back as a :class:`Count`."""

    def __get__(self, sampler: Any, owner: type | None = None) -> Count:
        if sampler is None:
            raise AttributeError("batches")  # tells dataclass that the field has no default
        number = Count(sampler.__dict__["batches"])
        number.sampler = sampler
        return number

    def __set__(self, sampler: Any, value: int) -> None:
        sampler.__dict__["batches"] = checks.count("batches", value)


BATCHES = BatchCount()
