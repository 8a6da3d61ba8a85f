"""Streams: data sets that are read in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate

from verax import checks
from verax.samplers import Sampler
from verax.training.checks.collate import CollateCheck
from verax.training.data.containers import plain_containers

Collate = Callable[[list[Any]], Any]
"""From a list of records to a batch."""
Chosen = slice | NDArray[np.int64] | None
"""Which of a batch's records are wanted: all, or a process's share of them."""


class StreamLengthError(ValueError):
    """A stream does not have as many records as was declared."""


def collated(collate: Collate, records: list[Any]) -> Any:
    """A batch of these records in plain containers, whatever the function returns."""
    return plain_containers(collate(records), len(records))


class Stream:
    """A stream read in its own order, once an epoch; holds the records read and not yet drawn.

    Two samplers draw from a stream as it passes: fixed batches in its order, and batches through a
    shuffle buffer, which keeps ``buffer`` batches at a time. All others may draw any record in any
    round.

    Args:
        source: yields the same records in the same order every time it is iterated over.
        sampler: who is in each batch.
        records: how many records the stream has, unless it has a length.
    """

    def __init__(self, source: Any, sampler: Sampler, records: int | None = None) -> None:
        if not sampler.in_order:
            raise ValueError(
                f"dataset must give its records by number for {type(sampler).__name__}, which may "
                f"draw any record in any round, got {type(source).__name__}, a stream: use the "
                "sampler BufferedShuffle(batches, buffer) or Deterministic(batches), which read it "
                "in order, or put it into tensors or a map-style data set"
            )
        size = len(source) if records is None and hasattr(source, "__len__") else records
        if size is None:
            raise ValueError(
                f"records must say how many records {type(source).__name__} has, a stream without "
                "a length: the sampler cuts it into batches of known sizes"
            )
        self._source = source
        # Loaders of streams are refused, and so are their collate functions.
        self.collate_check: CollateCheck | None = None
        self._size = checks.count("records", size)
        self._batches = len(sampler) // getattr(sampler, sampler.repeats)
        self._epoch = -1
        self._items: Iterator[Any] = iter(())
        self._read = 0
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Nothing to end: a stream is read in this process."""

    def take(self, indices: NDArray[np.int64], number: int = 0, mine: Chosen = None) -> Any:
        """The records with these indices, of the epoch of round ``number``, collated."""
        epoch, within = divmod(number, self._batches)
        if epoch != self._epoch:
            self._epoch, self._items, self._read, self._held = epoch, iter(self._source), 0, {}
        last = int(indices.max())
        while self._read <= last:
            try:
                self._held[self._read] = next(self._items)
            except StopIteration:
                raise StreamLengthError("the stream has fewer records than was declared") from None
            self._read += 1
        found = [self._held.pop(i) for i in indices.tolist()]
        if within == self._batches - 1 and next(self._items, self) is not self:
            raise StreamLengthError("the stream has more records than was declared")
        if isinstance(mine, slice):
            found = found[mine]
        elif mine is not None:
            found = [found[i] for i in mine.tolist()]
        return collated(default_collate, found) if found else None
