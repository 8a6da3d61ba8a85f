"""Records by their numbers: tensors or arrays, dictionaries of them, map-style data sets, or streams read in order.

Batches are always the mechanism's: data never bring their own. Empty batches have the structure of the others.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
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
from verax.samplers import BufferedShuffle, Deterministic, Sampler, Shuffle
from verax.training.kept import alike
from verax.training.records import Losses, MixedRecords, _nearby, copies, doubled, of_each, repeatable, rounding_of

Chosen = slice | NDArray[np.int64] | None
"""Which of a batch's records are wanted: all, or a process's share of them."""

_FEW = 4  # records with which it is found out whether a batch is made of each by itself
_SEEDS = 4  # with so many, if random numbers are drawn on the way


class WrongLength(ValueError):  # noqa: N818  it says what is wrong
    """A stream does not have as many records as was declared."""


def taken_from(
    source: Any, sampler: Sampler, records: int | None = None, clipping: Clipping | None = None
) -> Data | Stream:  # fmt: skip
    """The records of whatever a caller calls a data set, or an error that says what to pass instead.

    Unless the whole batch is clipped at once, it is watched how batches are made (see ``Watched``).
    """
    collate: Callable[[list[Any]], Any] = default_collate
    loaded = isinstance(source, DataLoader)
    if loaded:
        refuse_other_batches(source, sampler)
        source, collate = source.dataset, source.collate_fn or default_collate
    if isinstance(source, IterableDataset):
        return Stream(source, sampler, records, collate)
    found = Data(source, collate, by_record=loaded)
    if clipping is not None and not isinstance(clipping, Batch):
        found.watch(in_order=isinstance(clipping, Mixed))
    return found


class Data:
    """A data set of known length from which batches are taken by index.

    Args:
        source: a tensor or numpy array, a tuple or dictionary of them with the records along the first dimension, or a
            map-style ``torch.utils.data.Dataset``; if it has ``__getitems__``, a batch is one call of it. A list is
            one of records, unless it holds tensors and arrays only.
        collate: from a list of records to a batch.
        by_record: whether the source gives a record for each number, whatever it is, as a loader takes it.
    """

    def __init__(
        self, source: Any, collate: Callable[[list[Any]], Any] = default_collate, *, by_record: bool = False
    ) -> None:
        self._whole: Any = None
        self._collate = collate
        self._make: Callable[[list[Any]], Any] = self._collated
        self._empty: Any = None
        self.watched: Watched | None = None
        if type(source) is TensorDataset and collate is default_collate:  # subclasses may change what they give
            source, by_record = source.tensors, False
        if not by_record and (found := columns(source)) is not None:
            self._whole = found
            sizes = {len(part) for part in pytree.tree_leaves(found)}
            if len(sizes) > 1:
                raise ValueError(f"dataset must hold tensors of equal length, got lengths {sorted(sizes)}")
            self._size = sizes.pop()
        elif isinstance(source, Dataset) or (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
            self._one, self._many = source.__getitem__, getattr(source, "__getitems__", None)
            self._at_once = _gives_many(source)
            self._size = len(source)
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
            self._make = self.watched = Watched(self._collated, in_order)
        elif self._collate is not default_collate:
            self._collate = self.watched = Watched(self._collate, in_order)

    def take(self, indices: NDArray[np.int64], number: int = 0, mine: Chosen = None) -> Any:
        """The records with these numbers, collated; an empty batch has the same structure and no records."""
        if mine is not None:
            indices = indices[mine]
        if self._whole is not None:
            chosen = torch.from_numpy(indices)
            return pytree.tree_map(lambda part: part[chosen], self._whole)
        if len(indices) == 0:
            if self._empty is None:
                self._empty = part(self._make([0]), slice(0))
            return self._empty
        return self._make(indices.tolist())

    def _collated(self, numbers: list[int]) -> Any:
        return self._collate([self._one(i) for i in numbers] if self._many is None else self._many(numbers))


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
    if isinstance(source, Mapping) and source:
        return {
            name: pytree.tree_map(partial(_tensor, where=f" in column {name!r}"), column)
            for name, column in source.items()
        }
    if not isinstance(source, tuple | list) or not source:
        return None
    if isinstance(source, list) and not all(isinstance(column, Tensor | np.ndarray) for column in source):
        return None
    found = [_tensor(column, f" in column {number}") for number, column in enumerate(source)]
    return pytree.tree_unflatten(found, pytree.tree_structure(source))


def _tensor(column: Any, where: str = "") -> Tensor:
    """A column as a tensor that shares its memory."""
    if isinstance(column, np.ma.MaskedArray) or (isinstance(column, Tensor) and column.layout is not torch.strided):
        raise ValueError(
            f"dataset must hold an entry for each record, got a masked array or a sparse tensor{where}: fill it in"
        )
    if isinstance(column, np.ndarray):
        straight = column if min(column.strides, default=0) >= 0 else column.copy()
        try:
            with warnings.catch_warnings():  # of arrays that cannot be written to: nobody does
                warnings.simplefilter("ignore", UserWarning)
                column = torch.from_numpy(straight)
        except (TypeError, ValueError):
            raise ValueError(
                f"dataset must hold arrays of numbers that torch knows, got {column.dtype}{where}: turn it into such, "
                "or leave it out"
            ) from None
    if not isinstance(column, Tensor):
        raise ValueError(
            f"dataset must hold tensors or numpy arrays with an entry for each record, got "
            f"{type(column).__name__}{where}: turn it into a tensor, leave it out, or pass a list of records"
        )
    if column.dim() == 0:
        raise ValueError(f"dataset must hold the records along the first dimension, got a single number{where}")
    return column


class Stream:
    """A stream read in its own order, once an epoch, keeping only the records that were read and not yet drawn.

    Two samplers draw from a stream as it passes: fixed batches in its order, and batches through a shuffle buffer,
    which keeps ``buffer`` batches at a time. All others may draw any record in any round.

    Args:
        source: yields the same records in the same order every time it is iterated over.
        sampler: who is in each batch.
        records: how many records the stream has, unless it has a length.
        collate: from a list of records to a batch.
    """

    def __init__(
        self, source: Any, sampler: Sampler, records: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:  # fmt: skip
        if type(sampler) not in (Deterministic, BufferedShuffle):
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
        self._source, self._collate = source, collate
        self.watched: Watched | None = None  # loaders of streams are refused, and so are their collate functions
        self._size, self._batches = checks.count("records", size), int(sampler.batches)  # type: ignore[call-overload]
        self._epoch = -1
        self._items: Iterator[Any] = iter(())
        self._read = 0
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._size

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
        return self._collate(found) if found else None


class Watched:
    """A function from records to a batch that must treat them one by one; it is looked at in batches 1, 2, 4, 8 ...

    A few records of such a batch are kept until the loss is known: with the same random numbers, a record must be worth
    the same among the others as among copies of itself. Padding may differ, if the loss does not see it.

    Args:
        make: from a list of records, or of their numbers, to a batch.
        in_order: whether the records must keep their places, because clip-groups are cut from the batch.
    """

    def __init__(self, make: Callable[[list[Any]], Any], in_order: bool) -> None:
        self._make, self._in_order = make, in_order
        self._batches = 0
        self._few: list[Any] = []

    def __call__(self, records: list[Any]) -> Any:
        """A batch of these records; of some batches, a few records are kept for a look."""
        self._batches += len(records) > 1
        looked_at = len(records) > 1 and doubled(self._batches)
        places = np.linspace(0, len(records) - 1, min(len(records), _FEW)).astype(int).tolist()
        self._few = _copied([records[place] for place in places]) if looked_at else []
        return self._make(records)

    def refuse_mixing(self, model: nn.Module, losses: Losses) -> None:
        """Refuse a function that lets a record's part of the batch depend on others; what was kept is let go."""
        few, self._few = self._few, []
        told = not few
        for seed in range(_SEEDS * self._batches, _SEEDS * (self._batches + 1)) if few else ():
            among, drawn = self._made(few, seed, model)
            again, _ = self._made(few, seed, model)
            if not _same(among, again):
                _refuse("changes from one call to the next although all seeds are set again")
            for place, record in enumerate(few):
                alone, theirs = self._made([record] * len(few), seed, model)
                stays = self._in_order or drawn != theirs
                if _agree([among, alone], len(few), place, stays, partial(_worth_the_same, model, losses)):
                    told = True
                elif drawn == theirs:  # else the record may have had other random numbers, which is no mixing
                    order = " or changes their order" if self._in_order else ""
                    _refuse(f"lets what a record becomes depend on the other records of its batch{order}")
            if drawn is None:
                break
        if not told:
            _refuse("draws as many random numbers as depends on the records: nobody can tell whether it mixes them")

    def _made(self, records: list[Any], seed: int, model: nn.Module) -> tuple[Any, Any]:
        """A batch of these records with fixed randomness, and how far that was used; None for not at all."""

        def made() -> tuple[Any, Any]:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002  that of whoever uses it
            before = _randomness()
            try:
                batch = self._make(_copied(records))
            except Exception as error:
                error.add_note(f"verax made a batch of {len(records)} records to see whether collate_fn mixes them")
                raise
            after = _randomness()
            return batch, None if after == before else after

        return repeatable(model, made)


def _agree(batches: list[Any], records: int, place: int, stays: bool, same_worth: Callable[[Any, Any], bool]) -> bool:
    """Whether a record became the same in two batches: entry by entry, or in the eyes of the loss.

    If it does not stay in its place, any record of the one may be worth the same as any of the other.
    """
    first, second = (_row(batch, records, place) for batch in batches)
    if _same(first, second):
        return True
    if stays:
        tensors = _tensors(first), _tensors(second)
        if [x.shape for x in tensors[0]] == [x.shape for x in tensors[1]] and not _same(*tensors):
            return False  # no padding; layers that normalise over a clip-group would hide it from the loss
        batches = [of_each(batch, records, partial(copies, record=place)) for batch in batches]
    return same_worth(*batches)


def _worth_the_same(model: nn.Module, losses: Losses, first: Any, second: Any) -> bool:
    """Whether a loss in one batch is one in the other, too, with weights nearby: those that are zero hide the rest."""
    with _evaluating(model), _nearby(model):
        x, y = (repeatable(model, partial(losses, model, batch)).reshape(-1) for batch in (first, second))
    allowed = rounding_of([x, y, *model.parameters()])
    return bool(torch.isclose(x[:, None], y, rtol=allowed, atol=1e-5, equal_nan=True).any())


def _refuse(what: str) -> NoReturn:
    raise MixedRecords(
        f"what makes batches of records (the loader's collate_fn, or the data set's __getitems__) {what}, so that "
        "clipping would protect nobody: change each record by itself in the data set's __getitem__, drawing from "
        "the generators of torch, numpy or Python, or use batch clipping (Batch)"
    )


def _copied(records: list[Any]) -> list[Any]:
    """Copies, each of its own, of records that may be taken to pieces; what cannot be copied is left as it is."""
    try:
        return [copy.deepcopy(record) for record in records]
    except (RuntimeError, TypeError):
        return records


def _randomness() -> tuple[Any, ...]:
    """Where the generators are that everybody draws from."""
    _, keys, *rest = np.random.get_state()  # noqa: NPY002  that of whoever uses it
    return random.getstate(), np.asarray(keys).tobytes(), rest, torch.get_rng_state().numpy().tobytes()


def _row(batch: Any, records: int, place: int) -> Any:
    """One record's part of a batch, and what belongs to all."""
    return of_each(batch, records, lambda x: x[place : place + 1])


def _same(first: Any, second: Any) -> bool:
    """Whether two batches have the same entries."""
    both = [pytree.tree_leaves(batch) for batch in (first, second)]
    if len(both[0]) != len(both[1]):
        return False
    return all(
        alike(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else np.array_equal(x, y)
        for x, y in zip(*both, strict=True)
    )


def _tensors(batch: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model as it is without dropout, until the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def refuse_other_batches(loader: Any, sampler: Sampler) -> None:
    """Let a loader pass only if its batches follow the mechanism's law; then the mechanism draws them in its place."""
    found = described(loader)
    if found is None:
        raise ValueError(
            f"dataset must not bring batches of its own, got a DataLoader with {type(loader.batch_sampler).__name__} "
            f"of {type(loader.sampler).__name__}: nobody can price batches that are not described. Pass "
            "loader.dataset, and let the mechanism's sampler draw the batches"
        )
    same = type(found) is type(sampler) and found.batches == getattr(sampler, "batches", None)
    if not same or not getattr(sampler, "reshuffle", True):
        raise ValueError(
            f"dataset must not bring batches of its own, got a DataLoader whose batches are those of {found!r} while "
            f"the mechanism has {sampler!r}. Pass loader.dataset, and let the mechanism's sampler draw the batches, or "
            f"use the sampler {type(found).__name__}(batches={int(found.batches)}, epochs=...)"
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


def part(batch: Any, chosen: slice | Tensor) -> Any:
    """Some of the records of a batch."""
    return pytree.tree_map(lambda x: x[chosen] if isinstance(x, Tensor) else x, batch)
