"""Data sets whose records are taken by index: tensors, arrays, tables, map-style ones, loaders.

Batches are always the mechanism's: data never bring their own. Empty batches have the structure of
the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from verax.mechanism import Batch, Clipping, Mixed
from verax.samplers import Deterministic, Sampler, Shuffle
from verax.training.checks.collate import CollateCheck
from verax.training.data.containers import Fields, from_array, map_leaves
from verax.training.data.microbatch import part
from verax.training.data.stream import Chosen, Collate, Stream, collated
from verax.training.data.workers import Workers

# Libraries whose tables are dictionaries of columns in memory.
_TABLES = ("pandas", "pyarrow", "polars")
_REMEDY = (
    "Pass loader.dataset (and collate_fn=loader.collate_fn, if it has one of its own), and let the "
    "mechanism's sampler draw the batches"
)


def open_dataset(
    source: Any,
    sampler: Sampler,
    records: int | None = None,
    clipping: Clipping | None = None,
    collate: Collate | None = None,
) -> Data | Stream:
    """The records of a data set, a loader or a stream.

    Unless the whole batch is clipped at once, a ``CollateCheck`` watches how batches are made.
    """
    loader = source if isinstance(source, DataLoader) else None
    if collate is not None:
        _refuse_collate(collate, source)
    if loader is not None:
        refuse_other_batches(loader, sampler)
        source, collate = loader.dataset, loader.collate_fn
    if isinstance(source, IterableDataset):
        return Stream(source, sampler, records)
    by_record = loader is not None or collate is not None
    found = Data(source, collate or default_collate, by_record=by_record)
    if loader is not None:
        found.use_workers(loader)
    if clipping is not None and not isinstance(clipping, Batch):
        found.watch(in_order=isinstance(clipping, Mixed))
    return found


def _refuse_collate(collate: Any, source: Any) -> None:
    """Refuse a ``collate_fn`` that is no function, or that the data do not need."""
    if not callable(collate):
        raise ValueError(
            f"collate_fn must be a function from a list of records to a batch, got {collate!r}"
        )
    in_columns = not isinstance(source, Dataset) and columns(source) is not None
    if in_columns or isinstance(source, DataLoader | IterableDataset):
        raise ValueError(
            "collate_fn is for data sets that give records by number (a map-style data set, or a "
            f"list of records), got it with a {type(source).__name__}: leave it out"
        )


class Data:
    """A data set of known length from which batches are taken by index.

    Args:
        source: a tensor or numpy array, a tuple, dictionary or dataclass of them with the records
            along the first dimension, or a table of pandas, pyarrow or polars, which is a
            dictionary of its columns; or a map-style ``torch.utils.data.Dataset``; if it has
            ``__getitems__``, a batch is one call of it. A list is one of records, unless it holds
            tensors and arrays only.
        collate: from a list of records to a batch.
        by_record: whether the source gives a record for each number, whatever it is, as a loader
            takes it.
    """

    def __init__(
        self, source: Any, collate: Collate = default_collate, *, by_record: bool = False
    ) -> None:
        self._whole: Any = None
        self._own_collate = collate is not default_collate
        self._collate: Collate = partial(collated, collate)
        self._make: Collate = self._fetch
        self._empty: Any = None
        self._workers: Workers | None = None
        self.collate_check: CollateCheck | None = None
        # The very type: subclasses may change what they return.
        if type(source) is TensorDataset and not self._own_collate:
            source, by_record = source.tensors, False
        if not by_record and (found := columns(source)) is not None:
            self._whole = found
            sizes = {len(part) for part in pytree.tree_leaves(found)}
            if len(sizes) > 1:
                raise ValueError(
                    f"dataset must hold tensors of equal length, got lengths {sorted(sizes)}"
                )
            self._size = sizes.pop()
        elif isinstance(source, Dataset) or _holds_records(source):
            self._one, self._many = source.__getitem__, getattr(source, "__getitems__", None)
            self._at_once = _gives_many(source)
            self._size = _length(source)
        else:
            raise ValueError(
                "dataset must be tensors, numpy arrays or a map-style data set with a length, got "
                f"{source!r}"
            )
        if self._size == 0:
            raise ValueError("dataset must hold at least one record, got none")

    def __len__(self) -> int:
        return self._size

    def watch(self, in_order: bool) -> None:
        """Check whatever sees several records and is not known to keep them apart."""
        if self._whole is None and self._at_once:
            self._make = self.collate_check = CollateCheck(self._make, in_order, self._fetch)
        elif self._own_collate:
            self._collate = self.collate_check = CollateCheck(self._collate, in_order)

    def take(self, indices: NDArray[np.int64], number: int = 0, mine: Chosen = None) -> Any:
        """The records with these indices, collated; an empty batch has the same structure."""
        if mine is not None:
            indices = indices[mine]
        if self._whole is not None:
            chosen = torch.from_numpy(indices)
            return pytree.tree_map(lambda part: part[chosen], self._whole)
        if len(indices) == 0:
            if self._empty is None:
                self._empty = part(self._make([0]), slice(0), 1)
            return self._empty
        return self._make(indices.tolist())

    def use_workers(self, loader: Any) -> None:
        """Fetch records in a loader's worker processes, unless the data are in memory."""
        warn_unused(loader, self._whole is not None)
        if self._whole is None and loader.num_workers:
            self._workers = workers = Workers(loader)
            self._make = lambda numbers: self._collate(workers.fetch(numbers))

    def close(self) -> None:
        """End worker processes, if there are any."""
        if self._workers is not None:
            self._workers.close()

    def _fetch(self, numbers: list[int]) -> Any:
        many = self._many
        return self._collate([self._one(i) for i in numbers] if many is None else many(numbers))


def _holds_records(source: Any) -> bool:
    """Whether it gives records by index; the name of a file does not."""
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return indexed and not isinstance(source, str | bytes)


def _length(source: Any) -> int:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        raise ValueError(
            f"dataset must have a length, got {type(source).__name__} without __len__: the sampler "
            "draws from all records, so it must know how many there are"
        ) from None


def _gives_many(source: Any) -> bool:
    """Whether a data set, or that of a subset, has ``__getitems__`` for several records."""
    while type(source) is Subset:
        source = source.dataset
    return hasattr(source, "__getitems__")


def columns(source: Any) -> Any:
    """Tensors with the records along the first dimension; None for what gives single records.

    >>> columns((np.zeros((2, 3)), torch.zeros(2)))[0].shape
    torch.Size([2, 3])
    >>> columns([(torch.zeros(3), 0), (torch.zeros(3), 1)]) is None
    True
    """
    if isinstance(source, Tensor | np.ndarray):
        return _tensor(source)
    if _is_table(source):
        names = getattr(source, "column_names", getattr(source, "columns", None))
        if names is None:
            return _tensor(source)
        return {name: _column(source[name], name) for name in names}
    if isinstance(source, Mapping) and source:
        named = {name: _column(column, name) for name, column in source.items()}
        return named if type(source) is dict else Fields(named)
    instance = is_dataclass(source) and not isinstance(source, type | Dataset)
    if instance and not _holds_records(source):
        return Fields({f.name: _column(getattr(source, f.name), f.name) for f in fields(source)})
    if not isinstance(source, tuple | list) or not source:
        return None
    if isinstance(source, list) and not all(isinstance(x, Tensor | np.ndarray) for x in source):
        return None
    found = [_tensor(column, f" in column {number}") for number, column in enumerate(source)]
    return pytree.tree_unflatten(found, pytree.tree_structure(source))


def _column(column: Any, name: Any) -> Any:
    """All tensors of a column, which may be in containers."""
    return map_leaves(column, lambda leaf, _: _tensor(leaf, f" in column {name!r}"))


def _is_table(source: Any) -> bool:
    """Whether it is a table of pandas, pyarrow or polars, or a column of one."""
    return any(kind.__module__.partition(".")[0] in _TABLES for kind in type(source).__mro__)


def _tensor(column: Any, where: str = "") -> Tensor:
    """A column as a tensor that shares its memory, if it can."""
    if isinstance(column, Tensor) and column.layout is not torch.strided:
        raise ValueError(
            f"dataset must hold an entry for each record, got a sparse tensor{where}: pass a dense "
            "one"
        )
    if isinstance(column, np.ndarray) or _is_table(column):
        column = from_array(np.asanyarray(column), "dataset", where)
    if not isinstance(column, Tensor):
        raise ValueError(
            "dataset must hold tensors or numpy arrays with an entry for each record, got "
            f"{type(column).__name__}{where}: turn it into a tensor, leave it out, or pass a list "
            "of records"
        )
    if column.dim() == 0:
        raise ValueError(
            f"dataset must hold the records along the first dimension, got a single number{where}"
        )
    return column


# --- loaders --------------------------------------------------------------------------------------


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
