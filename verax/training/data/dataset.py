"""Records by their numbers: tensors or arrays, dictionaries of them, map-style data sets, or streams read in order.

Batches are always the mechanism's: data never bring their own. Empty batches have the structure of
the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
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

from verax import checks
from verax.mechanism import Batch, Clipping, Mixed
from verax.samplers import Deterministic, Sampler, Shuffle
from verax.training.data.collate import CollateCheck
from verax.training.data.containers import Fields, from_array, map_leaves, plain_containers
from verax.training.data.microbatch import part
from verax.training.data.workers import Workers

Collate = Callable[[list[Any]], Any]
"""From a list of records to a batch."""
Chosen = slice | NDArray[np.int64] | None
"""Which of a batch's records are wanted: all, or a process's share of them."""
_TABLES = ("pandas", "pyarrow", "polars")


class WrongLength(ValueError):  # noqa: N818  it says what is wrong
    """A stream does not have as many records as was declared."""


def open_dataset(
    source: Any,
    sampler: Sampler,
    records: int | None = None,
    clipping: Clipping | None = None,
    collate: Collate | None = None,
) -> Data | Stream:
    """The records of whatever a caller calls a data set, or an error that says what to pass instead.

    Unless the whole batch is clipped at once, it is watched how batches are made (see ``Watched``).
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
    """Say what a ``collate_fn`` is for, where it is none or the data need none."""
    if not callable(collate):
        raise ValueError(
            f"collate_fn must be a function from a list of records to a batch, got {collate!r}"
        )
    if isinstance(source, DataLoader | IterableDataset) or (
        not isinstance(source, Dataset) and columns(source) is not None
    ):
        raise ValueError(
            "collate_fn is for data sets that give records by number (a map-style data set, or a list of records), got "
            f"it with a {type(source).__name__}: leave it out"
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
        self,
        source: Any,
        collate: Callable[[list[Any]], Any] = default_collate,
        *,
        by_record: bool = False,
    ) -> None:
        self._whole: Any = None
        self._own_collate = collate is not default_collate
        self._collate: Collate = partial(_batch, collate)
        self._make: Callable[[list[Any]], Any] = self._collated
        self._empty: Any = None
        self._workers: Workers | None = None
        self.watched: CollateCheck | None = None
        # subclasses may change what they give
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
                f"dataset must be tensors, numpy arrays or a map-style data set with a length, got {source!r}"
            )
        if self._size == 0:
            raise ValueError("dataset must hold at least one record, got none")

    def __len__(self) -> int:
        return self._size

    def watch(self, in_order: bool) -> None:
        """Watch whatever sees several records and is not known to keep them apart."""
        if self._whole is None and self._at_once:
            self._make = self.watched = CollateCheck(self._make, in_order, self._collated)
        elif self._own_collate:
            self._collate = self.watched = CollateCheck(self._collate, in_order)

    def take(self, indices: NDArray[np.int64], number: int = 0, mine: Chosen = None) -> Any:
        """The records with these numbers, collated; an empty batch has the same structure and no records."""
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
        """Fetch records in the worker processes of a loader, if it has any and they are not in memory."""
        _tell_unused(loader, self._whole is not None)
        if self._whole is None and loader.num_workers:
            self._workers = workers = Workers(loader)
            self._make = lambda numbers: self._collate(workers.fetch(numbers))

    def close(self) -> None:
        """End worker processes, if there are any."""
        if self._workers is not None:
            self._workers.close()

    def _collated(self, numbers: list[int]) -> Any:
        return self._collate(
            [self._one(i) for i in numbers] if self._many is None else self._many(numbers)
        )


def _batch(collate: Collate, records: list[Any]) -> Any:
    """A batch of these records in plain containers, whatever the function returns."""
    return plain_containers(collate(records), len(records))


def _holds_records(source: Any) -> bool:
    """Whether it gives records by number; the name of a file is not its records."""
    return (
        hasattr(source, "__getitem__")
        and hasattr(source, "__len__")
        and not isinstance(source, str | bytes)
    )


def _length(source: Any) -> int:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        raise ValueError(
            f"dataset must have a length, got {type(source).__name__} without __len__: the sampler draws from all "
            "records, so it must know how many there are"
        ) from None


def _gives_many(source: Any) -> bool:
    """Whether a data set has a way of its own to give several records at once; a subset has its data set's."""
    while type(source) is Subset:
        source = source.dataset
    return hasattr(source, "__getitems__")


def columns(source: Any) -> Any:
    """Tensors with the records along the first dimension, arrays as tensors; None for what holds records instead.

    >>> columns((np.zeros((2, 3)), torch.zeros(2)))[0].shape
    torch.Size([2, 3])
    >>> columns([(torch.zeros(3), 0), (torch.zeros(3), 1)]) is None
    True
    """
    if isinstance(source, Tensor | np.ndarray):
        return _tensor(source)
    if _of_a_table(source):
        names = getattr(source, "column_names", getattr(source, "columns", None))
        if names is None:
            return _tensor(source)
        return {name: _column(source[name], name) for name in names}
    if isinstance(source, Mapping) and source:
        named = {name: _column(column, name) for name, column in source.items()}
        return named if type(source) is dict else Fields(named)
    if (
        is_dataclass(source)
        and not isinstance(source, type | Dataset)
        and not _holds_records(source)
    ):
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


def _of_a_table(source: Any) -> bool:
    """Whether it is a table of pandas, pyarrow or polars, or a column of one: all in memory."""
    return any(kind.__module__.partition(".")[0] in _TABLES for kind in type(source).__mro__)


def _tensor(column: Any, where: str = "") -> Tensor:
    """A column as a tensor that shares its memory, if it can."""
    if isinstance(column, Tensor) and column.layout is not torch.strided:
        raise ValueError(
            f"dataset must hold an entry for each record, got a sparse tensor{where}: pass a dense one"
        )
    if isinstance(column, np.ndarray) or _of_a_table(column):
        column = from_array(np.asanyarray(column), "dataset", where)
    if not isinstance(column, Tensor):
        raise ValueError(
            f"dataset must hold tensors or numpy arrays with an entry for each record, got "
            f"{type(column).__name__}{where}: turn it into a tensor, leave it out, or pass a list of records"
        )
    if column.dim() == 0:
        raise ValueError(
            f"dataset must hold the records along the first dimension, got a single number{where}"
        )
    return column


class Stream:
    """A stream read in its own order, once an epoch, keeping only the records that were read and not yet drawn.

    Two samplers draw from a stream as it passes: fixed batches in its order, and batches through a
    shuffle buffer, which keeps ``buffer`` batches at a time. All others may draw any record in any
    round.

    Args:
        source: yields the same records in the same order every time it is iterated over.
        sampler: who is in each batch.
        records: how many records the stream has, unless it has a length.
    """

    def __init__(self, source: Any, sampler: Sampler, records: int | None = None) -> None:
        if not sampler.in_order:
            raise ValueError(
                f"dataset must give its records by number for {type(sampler).__name__}, which may draw any record in "
                f"any round, got {type(source).__name__}, a stream: use the sampler BufferedShuffle(batches, buffer) "
                "or Deterministic(batches), which read it in order, or put it into tensors or a map-style data set"
            )
        size = len(source) if records is None and hasattr(source, "__len__") else records
        if size is None:
            raise ValueError(
                f"records must say how many records {type(source).__name__} has, a stream without a length: the "
                "sampler cuts it into batches of known sizes"
            )
        self._source = source
        # loaders of streams are refused, and so are their collate functions
        self.watched: CollateCheck | None = None
        self._size, self._batches = (
            checks.count("records", size),
            len(sampler) // getattr(sampler, sampler.repeats),
        )
        self._epoch = -1
        self._items: Iterator[Any] = iter(())
        self._read = 0
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Nothing to end: a stream is read in this process."""

    def take(self, indices: NDArray[np.int64], number: int = 0, mine: Chosen = None) -> Any:
        """The records with these numbers, of the epoch that round ``number`` belongs to, collated."""
        epoch, within = divmod(number, self._batches)
        if epoch != self._epoch:
            self._epoch, self._items, self._read, self._held = epoch, iter(self._source), 0, {}
        last = int(indices.max())
        while self._read <= last:
            try:
                self._held[self._read] = next(self._items)
            except StopIteration:
                raise WrongLength("the stream has fewer records than was declared") from None
            self._read += 1
        found = [self._held.pop(i) for i in indices.tolist()]
        if within == self._batches - 1 and next(self._items, self) is not self:
            raise WrongLength("the stream has more records than was declared")
        if isinstance(mine, slice):
            found = found[mine]
        elif mine is not None:
            found = [found[i] for i in mine.tolist()]
        return _batch(default_collate, found) if found else None


def refuse_other_batches(loader: Any, sampler: Sampler) -> None:
    """Let a loader pass only if its batches follow the mechanism's law; then the mechanism draws them in its place."""
    found = described(loader)
    if found is None:
        raise ValueError(
            f"dataset must not bring batches of its own, got a DataLoader with {type(loader.batch_sampler).__name__} "
            f"of {type(loader.sampler).__name__}, which follow no law that can be priced{_uneven(loader)}. Pass "
            "loader.dataset (and collate_fn=loader.collate_fn, if it has one of its own), and let the mechanism's "
            "sampler draw the batches"
        )
    same = type(found) is type(sampler) and found.batches == getattr(sampler, "batches", None)
    if not same or not getattr(sampler, "reshuffle", True):
        raise ValueError(
            f"dataset must not bring batches of its own, got a DataLoader whose batches are those of {found!r} while "
            f"the mechanism has {sampler!r}. Pass loader.dataset (and collate_fn=loader.collate_fn, if it has one of "
            "its own), and let the mechanism's sampler draw the batches, or "
            f"use the sampler {type(found).__name__}(batches={found.batches}, epochs=...)"
        )


def _tell_unused(loader: Any, in_memory: bool) -> None:
    """Warn of a loader's settings that have no effect, since only its data set is asked."""
    settings = {
        "num_workers": loader.num_workers and in_memory,
        "worker_init_fn": loader.worker_init_fn and (in_memory or not loader.num_workers),
        "pin_memory": loader.pin_memory,
        "generator": loader.generator and (in_memory or not loader.num_workers),
    }
    unused = [name for name, value in settings.items() if value]
    if unused:
        why = "its records are tensors in memory, " if in_memory else ""
        warnings.warn(
            f"of the DataLoader, {' and '.join(unused)} will not be used: {why}in batches that the mechanism's "
            "sampler draws",
            UserWarning,
            stacklevel=2,
        )


def _uneven(loader: Any) -> str:
    """That the size of the batches is why, if it is."""
    plain = type(loader.batch_sampler) is BatchSampler and not isinstance(
        loader.dataset, IterableDataset
    )
    uneven = plain and len(loader.dataset) % int(loader.batch_size)
    return (
        f" ({loader.batch_size} does not divide the number of records, so that one batch is smaller)"
        * bool(uneven)
    )


def described(loader: Any) -> Shuffle | Deterministic | None:
    """The sampler whose law one pass of a DataLoader follows, or None if none of ours is known to.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> described(DataLoader(TensorDataset(torch.zeros(12, 2)), batch_size=4, shuffle=True))
    Shuffle(batches=3, epochs=1, reshuffle=True)
    """
    batches, order = loader.batch_sampler, loader.sampler
    if type(batches) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        return None
    records, size = len(loader.dataset), int(loader.batch_size)
    if records == 0 or records % size:  # the last batch is smaller, or left out: ours are balanced
        return None
    if type(order) is SequentialSampler:
        return Deterministic(records // size)
    if type(order) is RandomSampler and not order.replacement and order.num_samples == records:
        return Shuffle(records // size)
    return None
