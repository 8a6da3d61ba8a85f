"""Worker processes that fetch records, as a ``torch.utils.data.DataLoader`` has them.

The mechanism's sampler still draws the batches: the numbers of each are dealt to the workers, and
what they fetch is collated in this process, so that a run is the same with and without workers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

# What is taken over from the loader.
_SETTINGS = (
    "num_workers",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)


class Workers:
    """Fetches records in the worker processes of a loader, which live until it is closed.

    Args:
        loader: whose data set, number of workers and the like are used; its batches are not.
    """

    def __init__(self, loader: Any) -> None:
        self._dataset, self._count = loader.dataset, int(loader.num_workers)
        self._settings = {name: getattr(loader, name) for name in _SETTINGS}
        self._shares = _Shares()
        self._loader: Any = None

    def fetch(self, numbers: list[int]) -> list[Any]:
        """The records with these numbers, in their order."""
        if self._loader is None:
            self._loader = DataLoader(
                self._dataset,
                batch_sampler=self._shares,
                collate_fn=_packed,
                persistent_workers=True,
                **self._settings,
            )
        each = -(-len(numbers) // self._count)
        self._shares.held = [numbers[i : i + each] for i in range(0, len(numbers), each)]
        # The loader draws its seeds from torch's generator, which stays as it is.
        with torch.random.fork_rng(devices=[]):
            shares = list(self._loader)
        return [record for share in shares for record in pickle.loads(share)]

    def close(self) -> None:
        """End the processes; another batch would start new ones."""
        # Torch ends them with the iterator, which a traceback may hold for long.
        end = getattr(getattr(self._loader, "_iterator", None), "_shutdown_workers", None)
        self._loader = None
        if end is not None:
            end()


class _Shares:
    """What each worker is to fetch of one batch."""

    def __init__(self) -> None:
        self.held: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class _Pickler(pickle.Pickler):
    """Pickles a tensor that is part of a larger one without the rest of it."""

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is Tensor and value.layout is torch.strided and not value.requires_grad
        if plain and value.untyped_storage().nbytes() > value.nbytes:
            return value.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _packed(records: list[Any]) -> bytes:
    """Records as bytes: as tensors, each of them would take a file descriptor on its way."""
    held = io.BytesIO()
    _Pickler(held, pickle.HIGHEST_PROTOCOL).dump(records)
    return held.getvalue()
