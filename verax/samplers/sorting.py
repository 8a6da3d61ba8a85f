"""Splitting records into batches: balanced sizes, counting sorts, uniform orders."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from verax.samplers.base import Indices

Labels = NDArray[np.unsignedinteger]
# Numpy sorts keys of up to 16 bits by radix, longer ones several times slower by comparison.
DIGIT = 16
# Labels of an epoch's batches fit in 32 bits.
MAX_PARTS = 2**32 - 1


def balanced_edges(total: int, parts: int) -> Indices:
    """Where each of ``parts`` balanced runs of ``0..total-1`` begins, and the end.

    The first ``total % parts`` runs are one longer than the rest.
    """
    size, extra = divmod(total, parts)
    part = np.arange(parts + 1, dtype=np.int64)
    return part * size + np.minimum(part, extra)


def uniform_labels(rng: np.random.Generator, size: int, bound: int) -> Labels:
    """Independent uniform whole numbers below ``bound`` in the smallest type that holds them."""
    dtype = np.min_scalar_type(bound - 1)
    drawn: Labels = rng.integers(0, bound, size, dtype=dtype)
    return drawn


def stable_order(keys: Labels, bound: int) -> Indices:
    """The stable order of ``keys`` below ``bound``, least significant digit first: linear time."""
    order = np.argsort(keys if bound <= 2**8 else keys.astype(np.uint16), kind="stable")
    for shift in range(DIGIT, (bound - 1).bit_length(), DIGIT):
        digit = (keys >> shift).astype(np.uint16)[order]  # the conversion keeps the low 16 bits
        order = order[np.argsort(digit, kind="stable")]
    return order.astype(np.int64, copy=False)


def split_at(order: Indices, cuts: Indices) -> Iterator[Indices]:
    """The runs of ``order`` between successive ``cuts``."""
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield order[start:stop]


def sort_by_label(keys: Labels, bound: int) -> tuple[Indices, Indices]:
    """Positions sorted by label below ``bound``, and the cuts between the labels' runs."""
    cuts = np.zeros(bound + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=bound), out=cuts[1:])
    return stable_order(keys, bound), cuts


def uniform_order(rng: np.random.Generator, size: int, cuts: Indices) -> Indices:
    """A permutation of ``0..size-1``, uniform up to the order inside the runs between ``cuts``.

    Independent uniform keys, sorted, ties put in uniform order, make a uniform permutation (Rao
    1961, Sandelius 1962). With 16-bit keys the sort is one linear pass over memory instead of the
    random walk of a plain shuffle, and only ties that straddle a cut can matter, so only those are
    shuffled.
    """
    if size < 2**DIGIT:
        return rng.permutation(size).astype(np.int64, copy=False)
    order, ties = sort_by_label(uniform_labels(rng, size, 2**DIGIT), 2**DIGIT)
    straddling = np.unique(np.searchsorted(ties, cuts[1:-1], side="right") - 1)
    for start, stop in zip(ties[straddling].tolist(), ties[straddling + 1].tolist(), strict=True):
        rng.shuffle(order[start:stop])
    return order
