"""Batches in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def slices(batch: Any, size: int, records: int) -> list[tuple[Any, int]]:
    """A batch in pieces of at most ``size`` records."""
    if size >= records:
        return [(batch, records)]
    return [
        (part(batch, slice(start, start + size)), min(size, records - start)) for start in range(0, records, size)
    ]  # fmt: skip


def runs(sizes: list[int], most: int) -> Iterator[list[int]]:
    """Sizes next to each other with so many records together, or one with more.

    >>> list(runs([2, 2, 2, 9, 1], 5))
    [[2, 2], [2], [9], [1]]
    """
    some: list[int] = []
    for size in sizes:
        if some and sum(some) + size > most:
            yield some
            some = []
        some.append(size)
    if some:
        yield some


def by_records(batch: Any, records: int) -> bool:
    """Whether every tensor of a batch has one entry for each record, so that some of them can be taken.

    >>> import torch
    >>> by_records((torch.ones(3, 2), "a name"), 3), by_records((torch.ones(3, 2), torch.tensor(1.0)), 3)
    (True, False)
    """
    tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)]
    return all(x.dim() > 0 and len(x) == records for x in tensors)


def part(batch: Any, chosen: slice | Tensor) -> Any:
    """Some of the records of a batch."""
    return pytree.tree_map(lambda x: x[chosen] if isinstance(x, Tensor) else x, batch)
