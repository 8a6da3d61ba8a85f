"""What batches are made of: plain containers, in which every record's entries can be exchanged.

Whether a model mixes or stores records is found out by giving it other records. A tensor inside an
opaque object would stay the same in all these trials, and nothing would be found. Hence batches are
rebuilt from their leaves first, and leaves that cannot be opened are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from enum import Enum
from numbers import Number
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

# Types of values that hold nothing else, and can be compared.
_ATOMS = (
    *(str, bytes, Number, type(None), np.generic, Enum, date, time, timedelta),
    *(torch.dtype, torch.device),
)


class Fields(dict[Any, Any]):
    """A dictionary whose entries are attributes, too: what other mappings and dataclasses become.

    >>> batch = Fields(x=1, y=2)
    >>> batch.x, batch["y"], {**batch}
    (1, 2, {'x': 1, 'y': 2})
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the batch has no {name!r}, only the fields {', '.join(map(repr, self))}: verax "
                "hands on what is in a batch, not the methods of its type"
            ) from None


pytree.register_pytree_node(
    Fields,
    lambda held: (list(held.values()), list(held)),
    lambda values, names: Fields(zip(names, values, strict=True)),
)


class Column(list[Any]):
    """One entry for each record of what torch does not hold, such as texts; cut as a tensor is.

    >>> texts = Column(["one", "two", "three"])
    >>> texts[1:], texts[[0, 0]]
    (['two', 'three'], ['one', 'one'])
    """

    def __init__(self, entries: Iterable[Any] = (), blank: Any = None) -> None:
        super().__init__(entries)
        self.blank = _blank_like(self[0]) if self else blank
        """In place of an entry where there is none."""

    @overload
    def __getitem__(self, places: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, places: slice | list[int]) -> Column: ...
    def __getitem__(self, places: SupportsIndex | slice | list[int]) -> Any:
        if isinstance(places, list):
            return Column([self[place] for place in places], self.blank)
        found = super().__getitem__(places)
        return Column(found, self.blank) if isinstance(places, slice) else found


def _blank_like(entry: Any) -> Any:
    known = isinstance(entry, str | bytes | int | float) and not isinstance(entry, Enum)
    return type(entry)() if known else entry


def plain_containers(batch: Any, records: int) -> Any:
    """The same batch in dictionaries, lists, tuples, ``Fields`` and ``Column``; arrays are tensors.

    >>> from collections import UserDict
    >>> plain_containers(UserDict(x=np.zeros((2, 3)), text=["a", "b"]), 2)["x"].shape
    torch.Size([2, 3])
    """
    return map_leaves(batch, lambda leaf, where: _plain_leaf(leaf, where, records), records)


def map_leaves(
    value: Any, leaf: Callable[[Any, str], Any], records: int | None = None, where: str = ""
) -> Any:
    """Plain containers with ``leaf`` applied to each leaf and its place in words.

    With ``records``, a list of as many texts or numbers has one for each record.
    """

    def within(inner: Any, place: str) -> Any:
        return map_leaves(inner, leaf, records, where + place)

    if isinstance(value, Tensor | PackedSequence):
        return leaf(value, where)
    if isinstance(value, Mapping):
        made = {name: within(inner, f"[{name!r}]") for name, inner in value.items()}
        return made if type(value) is dict else Fields(made)
    if is_dataclass(value) and not isinstance(value, type):
        return Fields({f.name: within(getattr(value, f.name), f".{f.name}") for f in fields(value)})
    if isinstance(value, tuple | list):
        entries = [within(inner, f"[{place}]") for place, inner in enumerate(value)]
        if records and len(entries) == records and all(isinstance(x, _ATOMS) for x in entries):
            return Column(entries)
        if pytree.is_namedtuple_instance(value):
            return _plain_namedtuple(type(value))(*entries)
        return tuple(entries) if isinstance(value, tuple) else entries
    return leaf(value, where)


def _plain_namedtuple(kind: type) -> Callable[..., Any]:
    """The base class that ``namedtuple`` made, which holds nothing but its fields."""
    return next(base for base in reversed(kind.__mro__) if "_fields" in vars(base))


def _plain_leaf(value: Any, where: str, records: int) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":  # texts, say
        return map_leaves(
            value.tolist(), lambda leaf, place: _plain_leaf(leaf, place, records), records, where
        )
    if isinstance(value, np.ndarray):
        return from_array(value, what=f"batch{where}")
    if isinstance(value, (Tensor, *_ATOMS)):
        return value
    if isinstance(value, PackedSequence):
        raise ValueError(
            f"batch{where} must have an entry for each record, got a PackedSequence, in which "
            "their parts lie among each other: pad in collate_fn, and let the model pack "
            "(nn.utils.rnn.pack_padded_sequence)"
        )
    raise ValueError(
        f"batch{where} must be tensors, arrays, texts or numbers, in lists, tuples, dictionaries "
        f"or dataclasses, got {type(value).__name__}: nobody can look into it to see whether "
        "records are kept apart; let collate_fn return what is in it"
    )


def from_array(array: np.ndarray[Any, Any], what: str, where: str = "") -> Tensor:
    """An array as a tensor that shares its memory; errors say what it is, and where."""
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError(
            f"{what} must hold an entry for each record, got a masked array{where}: fill in what "
            "is missing"
        )
    straight = array if min(array.strides, default=0) >= 0 else array.copy()
    try:
        with warnings.catch_warnings():  # of read-only arrays, which nobody writes to
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(straight)
    except (TypeError, ValueError):
        raise ValueError(
            f"{what} must hold arrays of numbers that torch knows, got {array.dtype}{where}: turn "
            "it into such, or leave it out"
        ) from None


def has_column(batch: Any) -> bool:
    """Whether there are texts, or other entries that torch does not hold."""
    return any(isinstance(leaf, Column) for leaf in pytree.tree_leaves(batch))


def has_target(batch: Any) -> bool:
    """Whether it is inputs and a target, and no dictionary, tensor or column of texts.

    >>> has_target((torch.zeros(2), torch.zeros(2))), has_target(Column(["a", "b"]))
    (True, False)
    """
    return isinstance(batch, tuple | list) and not isinstance(batch, Column)
