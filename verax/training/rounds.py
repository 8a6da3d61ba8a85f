"""What a round of training works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Round:
    """One batch as the sampler drew it: its number in the run, its records, and how many they are (a secret).

    Where several processes train, the records are this process's share of the batch.
    """

    number: int
    data: Any
    records: int
    share: float | None = None
    """Which part of the batch's one clip-group the records are, if several processes work on it."""
    groups: list[int] | None = None
    """The sizes of mixed clipping's clip-groups, which lie one behind the other."""


def sizes_of(labels: NDArray[np.int64] | None) -> list[int] | None:
    """How many records have each label that occurs."""
    return None if labels is None else [size for size in np.bincount(labels).tolist() if size]
