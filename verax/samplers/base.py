"""The base of all samplers: a frozen dataclass that draws its own batches.

Public facts (rates, numbers of rounds) are fields; secrets (the data's size where it is one, the
random generator) are arguments of :meth:`Sampler.draw`. What a sampler costs is in
``verax.privacy.samplers``, one file per sampler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from verax import checks

if TYPE_CHECKING:
    from verax.samplers.stream import Batches

Indices = NDArray[np.int64]


class Sampler(ABC):
    """Base of all samplers. See CONTRIBUTING for how to add one: two files, two test files.

    A subclass is a frozen dataclass, registered with :func:`verax.samplers.registry.register`.
    Registering it checks that it says everything below that has no value here.
    """

    relation: ClassVar[str]
    """The neighbouring relation a mechanism uses when the caller names none."""
    repeats: ClassVar[str]
    """The field that counts independent repetitions, such as "steps" or "epochs"."""
    independent_records: ClassVar[bool]
    """Whether records are drawn independently, so that removing one moves no other."""
    in_order: ClassVar[bool] = False
    """Whether batches can be taken from a stream as it passes."""
    plannable: ClassVar[bool] = True
    """Whether a number of records, a batch size and a number of epochs describe a run."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of rounds."""

    @abstractmethod
    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """The batches of one run: one index array per round, drawn lazily, some perhaps empty."""

    @abstractmethod
    def expected_batch(self, population: int) -> float:
        """The data-independent batch size every update is divided by."""

    @abstractmethod
    def title(self) -> str:
        """A few words for the row of a table, such as "shuffled each epoch"."""

    @classmethod
    @abstractmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """The sampler of expected batch ``batch`` in which a record joins about ``epochs`` rounds.

        Raises ``ValueError`` where these three numbers do not describe a run of this sampler.
        """

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        """The sampler with ``batches`` rounds an epoch, of 1 / ``batches`` of the records each."""
        return cls.planned(records, -(-records // batches), epochs)

    def simplest(self) -> Sampler:
        """The simplest sampler that draws by the same law; itself if none is simpler."""
        return self

    @property
    def declared_population(self) -> int | None:
        """The number of records, where it is a public part of the description."""
        return None

    @property
    def most_records(self) -> int | None:
        """The most records the sampler may be given, where it declares that."""
        return self.declared_population

    @property
    def by_round(self) -> bool:
        """Whether every round is drawn anew; otherwise a whole epoch is."""
        return self.repeats != "epochs"

    def repeated(self, count: int) -> Self:
        """The same sampler with another number of independent repetitions."""
        # subclasses are dataclasses
        return replace(self, **{self.repeats: count})  # type: ignore[type-var]

    def prefix(self, rounds: int, up: bool) -> Self | None:
        """The sampler of the first ``rounds``; None if no repetition is complete.

        Repetitions are independent, so the first ones are a shorter run. A part of a repetition is
        counted in full if ``up``, which is sound for an upper bound (post-processing), and else not
        at all.
        """
        each = len(self) // getattr(self, self.repeats)
        count = -(-rounds // each) if up else rounds // each
        return self.repeated(count) if count else None


class FixedBatches(Sampler):
    """Base of samplers with ``batches`` batches of fixed sizes in each of ``epochs`` epochs."""

    relation = "zero-out"
    repeats = "epochs"
    independent_records = False
    batches: Any
    epochs: Any

    def __post_init__(self) -> None:
        store_fields(
            self,
            batches=checks.count("batches", self.batches),
            epochs=checks.count("epochs", self.epochs),
        )

    def __len__(self) -> int:
        return int(self.batches * self.epochs)

    def expected_batch(self, population: int) -> float:
        """``population / batches``, also where the batches differ by one."""
        return float(require_record_each(self.batches, population) / self.batches)

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """As many batches as hold all records, none larger than ``batch``."""
        return cls.with_batches(batches_per_epoch(records, batch), epochs, records)

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        """So many batches of equal sizes, or of two sizes that differ by one."""
        return cls(batches=batches, epochs=epochs)  # type: ignore[call-arg]


def store_fields(sampler: object, **fields: Any) -> None:
    """Store checked fields in a frozen dataclass: ``10.0`` and ``numpy.int64(10)`` become 10."""
    for name, value in fields.items():
        object.__setattr__(sampler, name, value)


def require_population(declared: int, population: int) -> int:
    """Refuse to draw from a data set of another size than the one the sampler describes."""
    if checks.count("population", population) != declared:
        raise ValueError(f"population must be the declared {declared}, got {population!r}")
    return declared


def require_record_each(batches: int, population: int) -> int:
    """Refuse fixed batches that would have no record in them."""
    if checks.count("population", population) < batches:
        raise ValueError(
            f"population must be at least the number of batches, {batches}, got {population!r}"
        )
    return int(population)


def batches_per_epoch(records: int, batch: int) -> int:
    """Batches that hold all records once, none larger than ``batch``."""
    return -(-records // batch)


def rounds_for(records: int, batch: int, epochs: int) -> int:
    """Rounds whose expected batches add up to at least ``epochs`` passes over the data."""
    return -(-epochs * records // batch)
