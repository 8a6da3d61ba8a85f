"""The rounds of a run: batches as the sampler draws them, with their records and clip-groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from verax.mechanism import Mechanism, Mixed
from verax.samplers.stream import Batches, resume
from verax.training.data.dataset import Data
from verax.training.data.stream import Stream
from verax.training.seeds import RunSources

if TYPE_CHECKING:
    from verax.training.distributed import Processes


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """One batch as the sampler drew it: round number, records, and their number (a secret).

    Where several processes train, the records are this process's share of the batch. Only the
    number is printed.
    """

    number: int
    data: Any = field(repr=False)
    records: int = field(repr=False)
    share: float | None = field(default=None, repr=False)
    """The share of the batch's one clip-group, if several processes work on it."""
    groups: list[int] | None = field(default=None, repr=False)
    """The sizes of mixed clipping's clip-groups, which follow each other."""

    def __iter__(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a batch is not to be taken apart: give it to trainer.step(batch, loss), which clips, "
            "adds noise and steps; its records are in batch.data"
        )

    __getitem__ = __len__ = __iter__


class RoundSource:
    """Draws the batches of a run and fetches their records, one round after the other.

    Args:
        mechanism: what runs.
        data: where the records come from.
        sources: of the randomness of sampling and clip-groups.
        population: the number of records that updates are scaled by.
        processes: that share the batches; None for this one alone.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        data: Data | Stream,
        sources: RunSources,
        population: int,
        processes: Processes | None,
    ) -> None:
        self._mechanism, self._sources, self._processes = mechanism, sources, processes
        self.data = data
        self.expected_batch = mechanism.sampler.expected_batch(population)
        self.pending: DrawnBatch | None = None
        """The batch that was handed out and not stepped on yet."""
        self._sequence: Batches | None = None
        self._indices: NDArray[np.int64] | None = None  # drawn, and not fetched yet

    @property
    def between_rounds(self) -> bool:
        """Whether no batch was drawn that was not stepped on."""
        return self.pending is None and self._indices is None

    def start(self, state: dict[str, Any] | None = None, skip: int = 0) -> None:
        """Begin the sampler's sequence, or resume it; rounds to skip are drawn and dropped."""
        sampler, records = self._mechanism.sampler, len(self.data)
        rng = self._sources.sampling.generator()
        sequence = (
            sampler.draw(records, rng) if state is None else resume(sampler, state, records, rng)
        )
        self._sequence = cast(Batches, sequence)
        for _ in range(skip):
            next(self._sequence)

    def end(self) -> None:
        """Draw no more: all rounds were released."""
        self._sequence = None

    def state(self) -> dict[str, Any] | None:
        """What ``start`` needs to resume the sequence; None if it has not begun, or is over."""
        return None if self._sequence is None else self._sequence.state()

    def draw(self) -> bool:
        """Draw the next batch, unless one waits to be fetched; False after the last."""
        if self._indices is None and self._sequence is not None:
            self._indices = next(self._sequence, None)
        return self._indices is not None

    def fetch(self, number: int, split: bool) -> DrawnBatch | None:
        """The records of the batch that was drawn, or this process's share; None if there is none.

        Args:
            number: of the round.
            split: whether several processes may work on one clip-group.
        """
        if self._indices is None:
            return None
        indices, records, labels = self._indices, len(self._indices), None
        clipping = self._mechanism.clipping
        # For the whole batch, whoever works on it; clip-groups lie one behind the other.
        if isinstance(clipping, Mixed):
            drawn = self._sources.groups.generator().integers(0, clipping.groups, records)
            order = np.argsort(drawn, kind="stable")
            indices, labels = indices[order], drawn[order]
        share = None
        if self._processes is None:
            data = self.data.take(indices, number)
        else:
            mine = self._processes.share_of(records, clipping, labels, split)
            data = self.data.take(indices, number, mine)
            here = len(indices[mine])
            share = here / records if split and records else None
            records, labels = here, None if labels is None else labels[mine]
        groups = None if labels is None else [size for size in np.bincount(labels).tolist() if size]
        self.pending, self._indices = DrawnBatch(number, data, records, share, groups), None
        return self.pending


def refuse_other_number(data: Data | Stream, records: int) -> None:
    """Refuse data with another number of records than the run began with."""
    if len(data) != records:
        raise ValueError(
            f"dataset must have the {records} records that the run began with, got {len(data)}"
        )
