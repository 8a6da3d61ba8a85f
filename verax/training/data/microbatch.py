"""Pieces of a batch: micro-batches and runs of clip-groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from verax.training.data.containers import Column


def slices(batch: Any, size: int, records: int) -> list[tuple[Any, int]]:
    """A batch in pieces of at most ``size`` records."""
    if size >= records:
        return [(batch, records)]
    cuts = [slice(start, min(start + size, records)) for start in range(0, records, size)]
    return [(part(batch, cut, records), cut.stop - cut.start) for cut in cuts]


def runs(sizes: list[int], most: int) -> Iterator[list[int]]:
    """Runs of neighbouring sizes with at most this many records together, or one with more.

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


def has_entries(leaf: Any, records: int) -> bool:
    """Whether a leaf of a batch has one entry for each record; others are shared by all."""
    if isinstance(leaf, Column):
        return True
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == records


def can_be_cut(batch: Any, records: int) -> bool:
    """Whether every tensor of a batch has one entry for each record, so that it can be cut.

    >>> import torch
    >>> (
    ...     can_be_cut((torch.ones(3, 2), "a name"), 3),
    ...     can_be_cut((torch.ones(3, 2), torch.tensor(1.0)), 3),
    ... )
    (True, False)
    """
    return all(has_entries(x, records) for x in pytree.tree_leaves(batch) if isinstance(x, Tensor))


def part(batch: Any, chosen: slice, records: int | None = None) -> Any:
    """A slice of the records; without their number, every tensor is taken to have all of them."""

    def cut(x: Any) -> Any:
        whole = isinstance(x, Tensor | Column) if records is None else has_entries(x, records)
        return x[chosen] if whole else x

    return pytree.tree_map(cut, batch)
