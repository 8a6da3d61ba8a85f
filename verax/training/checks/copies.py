"""Copies of a model, its loss and its inner algorithm that share no state with the originals.

Beyond what ``copy.deepcopy`` does, functions get copies of their defaults and of what they close
over, if that is of a type of torch, numpy or Python. Objects of other types (a trainer, with all
its data) are shared, and so are data sets and large arrays, wherever they are held, and what cannot
be copied (a lock, an open file, an activation with its graph).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Things = TypeVar("Things", bound=tuple[Any, ...])

_OF_MODULES = ("_parameters", "_buffers", "_modules")
# Arrays of more bytes and containers of more entries are shared.
_LARGE = 2**24
_MANY = 2**14
_FAMILIAR = ("builtins", "collections", "numpy", "random", "torch", "verax")


def independent_copies(things: Things) -> Things:
    """Copies of these that refer to each other as the originals do.

    >>> def remembering(seen):
    ...     return lambda model, batch: seen.append(batch)
    >>> seen = []
    >>> model, loss = independent_copies((nn.Linear(2, 1), remembering(seen)))
    >>> loss(model, 3)
    >>> seen
    []
    """
    with torch.enable_grad():  # copies of TorchScript would need no gradients otherwise
        try:
            return _copied(things, {})
        except Exception:  # noqa: BLE001  copying may raise anything
            failed = [value for value in _attributes(things) if _copy_of(value, {}) is value]
            shared = {id(value): value for value in failed}
        try:
            return _copied(things, shared)
        except Exception:  # noqa: BLE001  the same
            return things


def _copied(things: Things, memo: dict[int, Any]) -> Things:
    cells: list[tuple[CellType, CellType]] = []
    _share_data([*things, *_attributes(things)], memo)
    for value in [*things, *_attributes(things)]:
        if isinstance(value, MethodType) and not _familiar(value.__self__):
            memo[id(value.__self__)] = value.__self__
        _copy_function(value, memo, cells)
    found = copy.deepcopy(things, memo)
    while cells:  # what a function closes over may be another function
        old, new = cells.pop()
        value = old.cell_contents
        _share_data([value], memo)
        _copy_function(value, memo, cells)
        new.cell_contents = _copy_of(value, memo) if _familiar(value) else value
    return found


def _share_data(values: list[Any], memo: dict[int, Any]) -> None:
    """Share data sets and large arrays, also those inside of objects and short containers.

    State that is kept in them shows all the same: it is another one after other batches.
    """
    left_alone = nn.Module | nn.Parameter | type | FunctionType | MethodType
    waiting, visited = list(values), set[int]()
    while waiting and len(visited) < _MANY:
        value = waiting.pop()
        if id(value) in visited or isinstance(value, left_alone):
            continue
        visited.add(id(value))
        array = isinstance(value, Tensor | np.ndarray)
        large = (array and value.nbytes > _LARGE) or (
            isinstance(value, list | dict) and len(value) > _MANY
        )
        if large or isinstance(value, Dataset | DataLoader):
            memo[id(value)] = value
        elif not array:
            for held in (value, getattr(value, "__dict__", None)):
                if isinstance(held, dict):
                    waiting.extend(held.values())
                elif isinstance(held, list | tuple):
                    waiting.extend(held)


def _copy_function(
    value: Any, memo: dict[int, Any], cells: list[tuple[CellType, CellType]]
) -> None:
    """Copy a function with empty cells; deepcopy would share it."""
    if not isinstance(value, FunctionType) or id(value) in memo:
        return
    closed = value.__closure__ or ()
    filled = {id(cell): (cell, CellType()) for cell in closed if _filled(cell)}
    closure = tuple(filled[id(cell)][1] if id(cell) in filled else cell for cell in closed)
    defaults = _copy_of(value.__defaults__, memo)
    found = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, closure)
    found.__kwdefaults__ = _copy_of(value.__kwdefaults__, memo)
    found.__dict__.update(_copy_of(value.__dict__, memo))
    memo[id(value)] = found
    cells.extend(filled.values())


def _filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _attributes(things: tuple[Any, ...]) -> Iterator[Any]:
    """The attributes of the things and of all modules in them."""
    modules = [
        module for thing in things if isinstance(thing, nn.Module) for module in thing.modules()
    ]
    for holder in [*things, *modules]:
        for name, value in getattr(holder, "__dict__", {}).items():
            if not (isinstance(holder, nn.Module) and name in _OF_MODULES):
                yield value


def _familiar(value: Any) -> bool:
    """Whether it is a module, or of a type of torch, numpy or Python."""
    return isinstance(value, nn.Module) or type(value).__module__.partition(".")[0] in _FAMILIAR


def _copy_of(value: Any, memo: dict[int, Any]) -> Any:
    """A copy, or the value itself if it cannot be copied."""
    tried = dict(memo)  # a failure leaves half-made copies there
    try:
        found = copy.deepcopy(value, tried)
    except Exception:  # noqa: BLE001  the same
        return value
    memo.update(tried)
    return found
