"""Batches of a stream that passes through a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import (
    FixedBatches,
    Indices,
    batches_per_epoch,
    require_record_each,
    store_fields,
)
from verax.samplers.options import BatchCount, Epochs, Option
from verax.samplers.registry import register
from verax.samplers.sorting import (
    Labels,
    balanced_edges,
    split_at,
    stable_order,
    uniform_labels,
    uniform_order,
)
from verax.samplers.stream import Batches, Stage

# Times sorted at once: the sort stays in the processor's cache.
BLOCK = 2**16


@register("buffered-shuffle", "shuffled in a buffer")
@dataclass(frozen=True)
class BufferedShuffle(FixedBatches):
    """The data streamed in order through a buffer that records leave at random (data loaders).

    The buffer is filled with the first records, as many as the first ``buffer`` batches hold. While
    the stream lasts, a uniformly chosen place of the buffer gives up its record and takes the next
    of the stream; then what is left in the buffer leaves in uniformly random order. Records in
    their order of leaving are cut into batches.

    Formal guarantee of the iterator:
        * in each epoch every record is in exactly one batch;
        * sizes are balanced: the first ``population % batches`` batches have one record more than
          the others, and none is empty;
        * with C places and n records, record i (from 0) enters at time e = max(0, i - C + 1); it
          leaves at time s with probability (1 - 1/C)^(s-e) / C for e <= s < n - C, and otherwise at
          a uniform time of the last C. So no record comes more than C - 1 places early;
        * epochs are independent and begin with the same stream; ``buffer == batches`` is
          :class:`Shuffle`;
        * the order of records inside a batch is unspecified.

    Args:
        batches: number of batches in an epoch, at most the population.
        buffer: size of the buffer, counted in batches, at most ``batches``.
        epochs: number of times through the data.

    >>> import numpy as np
    >>> from verax.samplers import BufferedShuffle
    >>> sampler = BufferedShuffle(batches=5, buffer=1)
    >>> first = next(sampler.draw(1000, np.random.default_rng(0)))
    >>> len(first), bool(first.max() < 2 * 200 - 1)
    (200, True)
    """

    in_order: ClassVar[bool] = True
    batches: BatchCount
    buffer: Annotated[int, Option("--buffer", "Size of the buffer in batches.")]
    epochs: Epochs = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        store_fields(self, buffer=checks.count("buffer", self.buffer, maximum=self.batches))

    def title(self) -> str:
        return f"buffer of {self.buffer}"

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """As many batches as hold all records, and a buffer of a tenth of them."""
        return cls.with_batches(batches_per_epoch(records, batch), epochs, records)

    @classmethod
    def with_batches(cls, batches: int, epochs: int, records: int) -> Self:
        return cls(batches, max(1, batches // 10), epochs)

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        require_record_each(self.batches, population)
        return Batches(self, population, rng, self._epoch, passes=self.epochs)

    def _epoch(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        cuts = balanced_edges(population, self.batches)
        places = int(cuts[self.buffer])
        streamed = population - places
        leaving, remaining = stream_through(uniform_labels(rng, streamed, places), places)
        later = cuts[cuts > streamed] - streamed
        remaining = remaining[uniform_order(rng, places, np.concatenate(([0], later)))]
        yield split_at(np.concatenate((leaving, remaining)), cuts)


def stream_through(chosen: Labels, places: int) -> tuple[Indices, Indices]:
    """Records that leave where ``chosen[t]`` is emptied at time t, and those in each place then.

    The record leaving a place is the one put there when the place was last chosen, record
    ``places + t`` at time t, or the one it was filled with. Sorting the times by place puts each
    time right after that previous time.
    """
    held = np.arange(places, dtype=np.int64)
    left = np.empty(len(chosen), dtype=np.int64)
    for start in range(0, len(chosen), BLOCK):
        block = chosen[start : start + BLOCK]
        order = stable_order(block, places)
        place = block[order]
        entering = order + (places + start)
        new = np.ones(len(block) + 1, dtype=bool)  # at both ends of each run of equal places
        np.not_equal(place[1:], place[:-1], out=new[1:-1])
        leaving = np.empty_like(entering)
        leaving[1:] = entering[:-1]
        leaving[new[:-1]] = held[place[new[:-1]]]
        left[start : start + BLOCK][order] = leaving
        held[place[new[1:]]] = entering[new[1:]]
    return left, held
