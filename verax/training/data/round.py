"""One round of training: a batch as the sampler drew it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Round:
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


def sizes_of(labels: NDArray[np.int64] | None) -> list[int] | None:
    """How many records have each label that occurs."""
    return None if labels is None else [size for size in np.bincount(labels).tolist() if size]
