"""What every sampler is: a frozen description that can draw its own batches.

Public facts (rates, numbers of rounds) are fields; secrets (the data's size where it is one, the random
generator) are arguments of :meth:`Sampler.batches`. The privacy of each sampler is registered apart, in
``verax.privacy.samplers``, keyed by the sampler's class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from verax import checks

Indices = NDArray[np.int64]


@runtime_checkable
class Sampler(Protocol):
    """A frozen dataclass with these members; see CONTRIBUTING for how to add one."""

    relation: ClassVar[str]
    """The neighbouring relation a mechanism uses when the caller names none."""

    def __len__(self) -> int:
        """Number of rounds."""

    def batches(self, population: int, rng: np.random.Generator) -> Iterator[Indices]:
        """The batches of one run: one index array per round, drawn lazily; empty ones are rounds too."""

    def expected_batch(self, population: int) -> float:
        """The data-independent batch size every update is divided by."""


def settle(sampler: object, **fields: Any) -> None:
    """Store checked fields in a frozen dataclass, so that ``10.0`` and ``numpy.int64(10)`` are the same description."""
    for name, value in fields.items():
        object.__setattr__(sampler, name, value)


def same_population(declared: int, population: int) -> int:
    """Refuse to draw from a data set of another size than the one the sampler describes."""
    if checks.count("population", population) != declared:
        raise ValueError(f"population must be the declared {declared}, got {population!r}")
    return declared


def at_least_one_each(batches: int, population: int) -> int:
    """Refuse fixed batches that would have no record in them."""
    if checks.count("population", population) < batches:
        raise ValueError(f"population must be at least the number of batches, {batches}, got {population!r}")
    return int(population)
