"""Random allocation: every record picks a set of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.base import Indices, Sampler, batches_per_epoch, store_fields
from verax.samplers.options import BatchCount, Epochs, Option
from verax.samplers.registry import register
from verax.samplers.sorting import (
    MAX_PARTS,
    Labels,
    balanced_edges,
    sort_by_label,
    split_at,
    uniform_labels,
)
from verax.samplers.stream import Batches, Stage


@register("random-allocation", "random allocation")
@dataclass(frozen=True)
class RandomAllocation(Sampler):
    """Each epoch, every record picks ``times`` of the ``steps`` rounds, independently, uniformly.

    Formal guarantee of the iterator:
        * in each epoch every record is in exactly ``times`` batches, at most once in each;
        * the ``epochs * population`` sets of rounds are independent, each exactly uniform among the
          subsets of size ``times``: every draw is one of whole numbers;
        * batches of an epoch are dependent; a batch's size is Binomial(population, times / steps)
          and may be zero; an empty batch is a round like any other;
        * the order of records inside a batch is unspecified.

    Args:
        times: number of rounds a record joins in an epoch, at most ``steps``.
        steps: number of rounds in an epoch.
        epochs: number of epochs.

    >>> import numpy as np
    >>> from verax.samplers import RandomAllocation
    >>> sampler = RandomAllocation(times=2, steps=5)
    >>> drawn = np.concatenate(list(sampler.draw(4, np.random.default_rng(0))))
    >>> np.bincount(drawn).tolist()
    [2, 2, 2, 2]
    >>> len(sampler), sampler.expected_batch(4)
    (5, 1.6)
    """

    relation: ClassVar[str] = "add-remove"
    repeats: ClassVar[str] = "epochs"
    independent_records: ClassVar[bool] = True
    times: Annotated[int, Option("--times", "Rounds each record joins in an epoch.")]
    steps: BatchCount
    epochs: Epochs = 1

    def __post_init__(self) -> None:
        store_fields(
            self,
            steps=checks.count("steps", self.steps, maximum=MAX_PARTS),
            epochs=checks.count("epochs", self.epochs),
        )
        store_fields(self, times=checks.count("times", self.times, maximum=self.steps))

    def __len__(self) -> int:
        return self.steps * self.epochs

    def expected_batch(self, population: int) -> float:
        """``population * times / steps``."""
        return checks.count("population", population) * self.times / self.steps

    def title(self) -> str:
        return f"exactly {self.times} rounds"

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """One allocation for the whole run: every record joins exactly ``epochs`` of its rounds."""
        return cls.with_batches(batches_per_epoch(records, batch), epochs, records)

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        return cls(epochs, epochs * batches)

    def simplest(self) -> Sampler:
        """Balls in bins, where every record joins one round."""
        return BallsInBins(self.steps, self.epochs) if self.times == 1 else self

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw about ``steps / times`` rounds at a time: memory stays linear in the population."""
        return Batches(self, population, rng, self._epoch, passes=self.epochs)

    def _epoch(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        """One stage for each of ``times`` windows; on average a record joins one round of each."""
        ahead = self.steps
        due = np.full(population, self.times, dtype=np.min_scalar_type(self.steps))
        for window in np.diff(balanced_edges(self.steps, self.times)).tolist():
            now = due if window == ahead else draw_window_counts(rng, window, ahead, due)
            records, rounds = draw_window_rounds(rng, now, window)
            order, cuts = sort_by_label(rounds, window)
            yield split_at(records[order], cuts)
            due, ahead = due - now, ahead - window


def draw_window_counts(rng: np.random.Generator, window: int, ahead: int, due: Labels) -> Labels:
    """How many of each record's ``due`` of ``ahead`` rounds are in the window: hypergeometric.

    Drawn as from an urn, pick by pick for all records at once: among the ``ahead - pick`` rounds
    not yet picked, ``window - found`` are in the window. Whole numbers, so the pmf is exact.
    """
    found = np.zeros_like(due)
    for pick in range(int(due.max())):
        hit = uniform_labels(rng, len(due), ahead - pick) < window - found
        hit &= due > pick
        found += hit
    return found


def draw_window_rounds(
    rng: np.random.Generator, picks: Labels, window: int
) -> tuple[Indices, Labels]:
    """Pairs of record and round: record i gets a uniform ``picks[i]``-subset of the window.

    Floyd's method, on all records of equal count at once: the j-th of m picks is uniform among the
    first window-m+j rounds, and becomes the last of these if it repeats an earlier pick.
    """
    dtype = np.min_scalar_type(window - 1)
    records: list[Indices] = [np.empty(0, dtype=np.int64)]
    rounds: list[Labels] = [np.empty(0, dtype=dtype)]
    for count in np.flatnonzero(np.bincount(picks)).tolist():
        who = np.flatnonzero(picks == count).astype(np.int64, copy=False)
        chosen = np.empty((count, len(who)), dtype=dtype)
        for j in range(count):
            last = window - count + j
            drawn = rng.integers(0, last + 1, len(who), dtype=dtype)
            chosen[j] = np.where((chosen[:j] == drawn).any(axis=0), last, drawn)
        records += [who] * count
        rounds += list(chosen)
    return np.concatenate(records), np.concatenate(rounds)
