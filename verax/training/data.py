"""Records by their numbers: tensors, dictionaries of tensors, or any map-style data set, empty batches included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate


class Data:
    """A data set of known length from which batches are taken by index.

    Args:
        source: a tensor, a tuple or dictionary of tensors with the records along the first dimension, or a map-style
            ``torch.utils.data.Dataset``.
    """

    def __init__(self, source: Any) -> None:
        self._whole: Any = None
        self._items: Sequence[Any] | None = None
        if isinstance(source, IterableDataset):
            raise ValueError(
                f"dataset must give its records by number, got {type(source).__name__}, a stream: a sampler draws "
                "records by number, so put the stream into a map-style data set or tensors first"
            )
        if isinstance(source, TensorDataset):
            source = source.tensors
        if isinstance(source, Tensor | Mapping) or (
            isinstance(source, tuple | list) and source and all(isinstance(part, Tensor) for part in source)
        ):
            self._whole = dict(source) if isinstance(source, Mapping) else source
            sizes = {len(part) for part in pytree.tree_leaves(self._whole) if isinstance(part, Tensor)}
            if len(sizes) != 1:
                raise ValueError(f"dataset must hold tensors of equal length, got lengths {sorted(sizes)}")
            self._size = sizes.pop()
        elif isinstance(source, Dataset) or (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
            self._items = source
            self._size = len(source)
        else:
            raise ValueError(f"dataset must be tensors or a map-style data set with a length, got {source!r}")
        if self._size == 0:
            raise ValueError("dataset must hold at least one record, got none")

    def __len__(self) -> int:
        return self._size

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The records with these numbers, collated; an empty batch has the same structure and no records."""
        if self._whole is not None:
            chosen = torch.from_numpy(indices)
            return pytree.tree_map(lambda part: part[chosen] if isinstance(part, Tensor) else part, self._whole)
        assert self._items is not None  # noqa: S101
        if len(indices) == 0:
            one = default_collate([self._items[0]])
            return pytree.tree_map(lambda part: part[:0] if isinstance(part, Tensor) else part, one)
        return default_collate([self._items[int(i)] for i in indices])


def slices(batch: Any, size: int, records: int) -> list[tuple[Any, int]]:
    """A batch in pieces of at most ``size`` records."""
    if size >= records:
        return [(batch, records)]
    return [
        (part(batch, slice(start, start + size)), min(size, records - start)) for start in range(0, records, size)
    ]  # fmt: skip


def part(batch: Any, chosen: slice | Tensor) -> Any:
    """Some of the records of a batch."""
    return pytree.tree_map(lambda x: x[chosen] if isinstance(x, Tensor) else x, batch)
