"""Draw many runs of a sampler; keep what an attack needs: the target's rounds, the batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verax.samplers.base import Indices

# Starts one run; returns its batches: lists, arrays or tensors of record indices, one per round.
Factory = Callable[[], Iterable[Any]]

# Indices and batches held before they are counted: bounds memory, spreads the cost of counting.
FLUSH = 2**14


@dataclass(frozen=True)
class SampledRuns:
    """Batch sizes of several runs, and one entry per round that the target was in."""

    sizes: Indices
    """Batch sizes, one row per run and one column per round; a record drawn twice counts twice."""
    run: Indices
    round: Indices
    copies: Indices
    """How often the target is in that batch."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether the target is in the batch, one row per run and one column per round."""
        found = np.zeros(self.sizes.shape, dtype=bool)
        found[self.run, self.round] = True
        return found


@dataclass(frozen=True)
class RunSource:
    """A factory, what its runs must look like, and the record that is watched."""

    factory: Factory
    rounds: int
    target: int
    population: int | None

    def draw(self, count: int, report: Callable[[int], None]) -> SampledRuns:
        """``count`` runs; ``report`` hears how many more are done, every now and then."""
        sizes = np.empty((count, self.rounds), dtype=np.int64)
        places: list[Indices] = []
        batches: list[Any] = []
        lengths: list[int] = []
        done = held = 0
        for number in range(1, count + 1):
            batches += self._run()
            lengths += _lengths(batches[-self.rounds :])
            held += sum(lengths[-self.rounds :]) + self.rounds
            if held >= FLUSH or number == count:
                sizes[done:number] = np.array(lengths).reshape(-1, self.rounds)
                places.append(self._find(batches, sizes[done:number].ravel()) + done * self.rounds)
                report(number - done)
                done, held = number, 0
                batches.clear()
                lengths.clear()
        where, copies = np.unique(np.concatenate(places), return_counts=True)
        return SampledRuns(
            sizes, where // self.rounds, where % self.rounds, copies.astype(np.int64, copy=False)
        )

    def _run(self) -> list[Any]:
        batches = list(islice(self.factory(), self.rounds + 1))
        if len(batches) != self.rounds:
            got = f"more than {self.rounds}" if len(batches) > self.rounds else len(batches)
            raise ValueError(
                f"batches must yield {self.rounds} rounds a run, as the claim says, got {got}; "
                "claim as many rounds as the code runs"
            )
        return batches

    def _find(self, batches: Sequence[Any], sizes: Indices) -> Indices:
        """The position of every batch that holds the target, once for each copy of it."""
        # An empty list would be taken for one of real numbers.
        if not sizes.all():
            batches = [batch for batch, size in zip(batches, sizes.tolist(), strict=True) if size]
        if not batches:
            return np.empty(0, dtype=np.int64)
        flat = np.concatenate(batches)
        if flat.ndim != 1 or flat.dtype.kind not in "iu":
            raise ValueError(
                f"batches must hold record indices, whole numbers, got {flat.dtype} in {flat.ndim} "
                "dimension(s); audit the batch sampler, not the loader that turns indices into data"
            )
        smallest, largest = int(flat.min()), int(flat.max())
        if smallest < 0 or (self.population is not None and largest >= self.population):
            bad = smallest if smallest < 0 else largest
            known = self.population is not None
            most = f" and below the population, {self.population}" if known else ""
            raise ValueError(f"batches must hold indices of at least 0{most}, got {bad}")
        found = np.searchsorted(np.cumsum(sizes), np.flatnonzero(flat == self.target), side="right")
        return found.astype(np.int64, copy=False)


def _lengths(batches: Sequence[Any]) -> list[int]:
    try:
        return list(map(len, batches))
    except TypeError:
        odd = next(batch for batch in batches if not hasattr(batch, "__len__"))
        raise ValueError(
            f"batches must yield one list, array or tensor of indices per round, got {odd!r}"
        ) from None
