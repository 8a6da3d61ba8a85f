"""Loaders of torch: only their data set is used, and batches that cannot be priced are refused."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from verax.samplers import Deterministic, Sampler, Shuffle

_REMEDY = (
    "Pass loader.dataset (and collate_fn=loader.collate_fn, if it has one of its own), and let the "
    "mechanism's sampler draw the batches"
)


def refuse_other_batches(loader: Any, sampler: Sampler) -> None:
    """Refuse a loader unless its batches are distributed as the mechanism's, which draws them."""
    found = sampler_of(loader)
    if found is None:
        raise ValueError(
            "dataset must not bring batches of its own, got a DataLoader with "
            f"{type(loader.batch_sampler).__name__} of {type(loader.sampler).__name__}, which "
            f"follow no law that can be priced{_uneven(loader)}. {_REMEDY}"
        )
    same = type(found) is type(sampler) and found.batches == getattr(sampler, "batches", None)
    if not same or not getattr(sampler, "reshuffle", True):
        raise ValueError(
            "dataset must not bring batches of its own, got a DataLoader whose batches are those "
            f"of {found!r} while the mechanism has {sampler!r}. {_REMEDY}, or use the sampler "
            f"{type(found).__name__}(batches={found.batches}, epochs=...)"
        )


def warn_unused(loader: Any, in_memory: bool) -> None:
    """Warn of a loader's settings that have no effect, since only its data set is used."""
    no_workers = in_memory or not loader.num_workers
    settings = {
        "num_workers": loader.num_workers and in_memory,
        "worker_init_fn": loader.worker_init_fn and no_workers,
        "pin_memory": loader.pin_memory,
        "generator": loader.generator and no_workers,
    }
    unused = [name for name, value in settings.items() if value]
    if unused:
        why = "its records are tensors in memory, " if in_memory else ""
        warnings.warn(
            f"of the DataLoader, {' and '.join(unused)} will not be used: {why}in batches that the "
            "mechanism's sampler draws",
            UserWarning,
            stacklevel=2,
        )


def _uneven(loader: Any) -> str:
    """The reason, if it is the size of the batches."""
    streamed = isinstance(loader.dataset, IterableDataset)
    if type(loader.batch_sampler) is not BatchSampler or streamed:
        return ""
    if len(loader.dataset) % int(loader.batch_size) == 0:
        return ""
    return (
        f" ({loader.batch_size} does not divide the number of records, so that one batch is "
        "smaller)"
    )


def sampler_of(loader: Any) -> Shuffle | Deterministic | None:
    """The sampler that draws batches as one pass of a DataLoader does; None if none is known to.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> sampler_of(DataLoader(TensorDataset(torch.zeros(12, 2)), batch_size=4, shuffle=True))
    Shuffle(batches=3, epochs=1, reshuffle=True)
    """
    batches, order = loader.batch_sampler, loader.sampler
    if type(batches) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        return None
    records, size = len(loader.dataset), int(loader.batch_size)
    # The last batch would be smaller, or left out: ours are balanced.
    if records == 0 or records % size:
        return None
    if type(order) is SequentialSampler:
        return Deterministic(records // size)
    if type(order) is RandomSampler and not order.replacement and order.num_samples == records:
        return Shuffle(records // size)
    return None
