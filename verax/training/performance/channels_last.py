"""Images with their channels last in memory, where convolutions are faster, and what that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax.training.performance.pooling import pool_by_slices

Result = TypeVar("Result")


class ChannelsLast:
    """Tries images with channels last in memory, and pooling by slices: both are faster.

    The values are the same; a model that takes a ``view`` of an activation may refuse their order:
    it gets its own.
    """

    def __init__(self) -> None:
        self._accepted = True

    def run(self, model: nn.Module, batch: Any, work: Callable[[Any], Result]) -> Result:
        """What the work makes of the batch."""
        with contiguous_group_norms(model):
            if not self._accepted or not any(
                isinstance(module, nn.Conv2d) for module in model.modules()
            ):
                return work(batch)
            try:
                with pool_by_slices(model):
                    return work(pytree.tree_map(_channels_last, batch))
            except RuntimeError:
                self._accepted = False
                return work(batch)


@contextmanager
def contiguous_group_norms(model: nn.Module) -> Iterator[None]:
    """Group norms get what needs no gradient in the usual order, until the block ends.

    On a processor torch's derivative of a group norm reads memory that is not there if its input
    has the channels last and needs no gradient, and takes the process with it.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    handles = [
        norm.register_forward_pre_hook(_contiguous_inputs, with_kwargs=True) for norm in norms
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _contiguous_inputs(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    def usual(x: Any) -> Any:
        return x.contiguous() if isinstance(x, Tensor) and not x.requires_grad else x

    return tuple(map(usual, args)), {name: usual(x) for name, x in kwargs.items()}


def _channels_last(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
        return x
    return x.contiguous(memory_format=torch.channels_last)
