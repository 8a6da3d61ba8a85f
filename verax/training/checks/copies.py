"""Copies of a model, its loss and its inner algorithm that share nothing in which the originals could remember data.

Beyond what ``copy.deepcopy`` does, functions get copies of their defaults and of what they close
over, if that is of a type of torch, numpy or Python. Other people's objects (a trainer, with all
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
_LARGE = 2**24  # bytes that are not copied
_MANY = 2**14  # entries that are not copied
_FAMILIAR = ("builtins", "collections", "numpy", "random", "torch", "verax")


def twins_of(things: Things) -> Things:
    """Copies of these; what refers to each other among them does so among the copies.

    >>> def remembering(seen):
    ...     return lambda model, batch: seen.append(batch)
    >>> seen = []
    >>> model, loss = twins_of((nn.Linear(2, 1), remembering(seen)))
    >>> loss(model, 3)
    >>> seen
    []
    """
    with torch.enable_grad():  # copies of TorchScript would need no gradients otherwise
        try:
            return _copied(things, {})
        except Exception:  # noqa: BLE001  whatever copying somebody's objects may raise
            shared = {
                id(value): value for value in _attributes(things) if _copy_of(value, {}) is value
            }
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
    """Leave data sets and large arrays as they are, also those inside of objects and short containers.

    What is remembered in them shows all the same, since it is not the same after other batches.
    """
    waiting, seen = list(values), set[int]()
    while waiting and len(seen) < _MANY:
        value = waiting.pop()
        if id(value) in seen or isinstance(
            value, nn.Module | nn.Parameter | type | FunctionType | MethodType
        ):
            continue
        seen.add(id(value))
        large = isinstance(value, Tensor | np.ndarray) and value.nbytes > _LARGE
        if (
            large
            or isinstance(value, Dataset | DataLoader)
            or (isinstance(value, list | dict) and len(value) > _MANY)
        ):
            memo[id(value)] = value
        elif not isinstance(value, Tensor | np.ndarray):
            own = getattr(value, "__dict__", None)
            for held in (value, own):
                waiting.extend(
                    held.values()
                    if isinstance(held, dict)
                    else held
                    if isinstance(held, list | tuple)
                    else ()
                )


def _copy_function(
    value: Any, memo: dict[int, Any], cells: list[tuple[CellType, CellType]]
) -> None:
    """A copy whose cells are yet to be filled; deepcopy would leave functions as they are."""
    if not isinstance(value, FunctionType) or id(value) in memo:
        return
    filled = {id(cell): (cell, CellType()) for cell in value.__closure__ or () if _filled(cell)}
    closure = tuple(
        filled[id(cell)][1] if id(cell) in filled else cell for cell in value.__closure__ or ()
    )
    found = FunctionType(
        value.__code__,
        value.__globals__,
        value.__name__,
        _copy_of(value.__defaults__, memo),
        closure,
    )
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
    """What the things, and all modules in them, hold themselves."""
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
    """A copy, or the value itself if there can be none."""
    tried = dict(memo)  # what a failure leaves there is half made
    try:
        found = copy.deepcopy(value, tried)
    except Exception:  # noqa: BLE001  the same
        return value
    memo.update(tried)
    return found
