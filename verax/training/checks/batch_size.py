"""Whether copies of one record become the same in batches of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from verax.training.data.containers import Column

# Difference, relative to the largest entry, that computing on larger batches may cause.
_ROUNDED = 1e-5


def alike_at_both_sizes(
    fewer: Sequence[Any], few: int, more: Sequence[Any], many: int
) -> bool | None:
    """Whether what belongs to the first record is the same; None if shapes do not tell.

    Several batches of either size are made with different random numbers: what differs among them
    is not compared.

    >>> alike_at_both_sizes([torch.ones(2)], 2, [torch.ones(3)], 3)
    True
    >>> alike_at_both_sizes([(torch.ones(2), 2)], 2, [(torch.ones(3), 3)], 3)
    False
    """
    first, second = ([pytree.tree_leaves(batch) for batch in batches] for batches in (fewer, more))
    if len({len(leaves) for leaves in (*first, *second)}) > 1:
        return None
    found = [
        _alike(x, few, y, many)
        for x, y in zip(zip(*first, strict=True), zip(*second, strict=True), strict=True)
    ]
    return False if False in found else None if None in found else True


def _alike(fewer: Sequence[Any], few: int, more: Sequence[Any], many: int) -> bool | None:
    """The same for one leaf, as it is in each of the batches."""
    if all(isinstance(x, Tensor) for x in (*fewer, *more)):
        pairs = [_first_entries(x, few, y, many) for x, y in zip(fewer, more, strict=True)]
        known = [pair for pair in pairs if pair is not None]
        if len(known) < len(pairs) or len({x.shape for x, _ in known}) > 1:
            return None
        return _constant_entries_agree(*(torch.stack(part) for part in zip(*known, strict=True)))
    if all(isinstance(x, Column) for x in (*fewer, *more)):
        fewer, more = ([x[0] if x else None for x in part] for part in (fewer, more))
    constant = all(x == part[0] for part in (fewer, more) for x in part)
    return not constant or bool(fewer[0] == more[0])


def _first_entries(x: Tensor, few: int, y: Tensor, many: int) -> tuple[Tensor, Tensor] | None:
    """What both have of the first record: all, or a share of the one dimension that grows."""
    if x.shape == y.shape:
        return x, y
    if x.dim() != y.dim() or x.dtype != y.dtype:
        return None
    grown = [axis for axis in range(x.dim()) if x.shape[axis] != y.shape[axis]]
    share, rest = divmod(x.shape[grown[0]], few)
    if len(grown) > 1 or rest or y.shape[grown[0]] != share * many:
        return None
    return x.narrow(grown[0], 0, share), y.narrow(grown[0], 0, share)


def _constant_entries_agree(x: Tensor, y: Tensor) -> bool:
    """Whether entries that are the same in all of x, and in all of y, are the same in both."""
    if not x.numel():
        return True
    x, y = (part.to(torch.complex128 if part.is_complex() else torch.float64) for part in (x, y))
    constant = (x == x[:1]).all(0) & (y == y[:1]).all(0)
    size = x[0].abs().nan_to_num(posinf=0.0).max()
    return bool(((x[0] - y[0]).abs() <= _ROUNDED * size)[constant].all()) or bool(
        torch.equal(x[0][constant], y[0][constant])
    )
