"""Running a model on trial: with fixed randomness, other weights, in another mode or on other records, and put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from verax.training.checks.snapshot import Kept
from verax.training.data.containers import Column
from verax.training.data.microbatch import has_entries
from verax.training.gradients.factors import HALF
from verax.training.gradients.layer_rules import trainable
from verax.training.seeds import seeded

Losses = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch to one loss per record."""

Result = TypeVar("Result")

_AGREE = 1e-3  # relative difference from plain autograd that is still rounding
_AGREE_HALF = 5e-2  # the same in half precision
_DRAWN = {
    "bernoulli",
    "bernoulli_",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "uniform_",
}
# weights that can be moved a little
_MOVED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def doubled(count: int) -> bool:
    """Whether it is 0, 1, 2, 4, 8 ...: when to look again at what is looked at less and less."""
    return count & (count - 1) == 0


@contextmanager
def nearby(model: nn.Module, share: float = 0.1) -> Iterator[None]:
    """The model with all weights moved by a share of their size, until the block ends.

    Their memory and versions stay as they are.
    """
    kept = [(p, p.data) for p in model.parameters() if trainable(p) and p.dtype in _MOVED]
    made = torch.Generator().manual_seed(0)
    try:
        for parameter, value in kept:
            size = float(value.detach().float().square().mean().sqrt()) if value.numel() else 0.0
            noise = torch.randn(value.shape, generator=made).to(value)
            parameter.data = value + (share * size if size > 0.0 else share) * noise
        yield
    finally:
        for parameter, value in kept:
            parameter.data = value


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model and all within in eval mode, until the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def without_shortcuts() -> Iterator[None]:
    """Torch takes no shortcuts of a forward pass, until the block ends.

    Weights that autocast keeps are of an earlier step, of weights nearby, or have no gradient. And
    the fused kernel of a transformer's layer, taken in eval mode without gradients, knows no
    autocast on a processor: it fails, or reads numbers of one precision as those of another.
    """
    cached, fused = torch.is_autocast_cache_enabled(), torch.backends.mha.get_fastpath_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        torch.backends.mha.set_fastpath_enabled(fused)


def repeatable(model: nn.Module, work: Callable[[], Result], seed: int = 0) -> Result:
    """What the work gives with fixed randomness and without gradients; randomness and buffers are left as they were."""
    kept = Kept(model)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  that of whoever uses it
    with torch.no_grad(), seeded(model, seed), without_shortcuts():
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            return work()
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            kept.restore()


def steady(work: Callable[[], Result], drawn: list[int] | None = None) -> Result:
    """What the work gives if nothing is drawn at random: numbers that would be are one constant, dropout drops nothing.

    What is drawn depends on shapes, so that nothing could be told of work on fewer records. Whole
    numbers, such as a random order, and what other operations draw inside remain random.

    Args:
        work: what to do.
        drawn: takes down how many numbers each draw would have been.

    >>> steady(lambda: nn.Dropout(0.2)(torch.ones(3)))
    tensor([1., 1., 1.])
    """
    with _Steady([] if drawn is None else drawn):
        return work()


class _Steady(TorchDispatchMode):
    def __init__(self, drawn: list[int]) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_dropout.default:
            self._drawn.append(args[0].numel())
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _DRAWN:
            self._drawn.append(found.numel())
            # p of bernoulli_, mean of normal_
            found.fill_(next((x for x in args[1:] if isinstance(x, float)), 0.5))
        return found


def nodes(losses: Tensor) -> Iterator[Any]:
    """All that autograd would go back through."""
    waiting, seen = [losses.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(before for before, _ in node.next_functions)
            yield node


Entries: TypeAlias = Tensor | Column
"""A leaf of a batch with one entry for each record."""


def copies(x: Entries, record: int) -> Entries:
    """As many copies of one record as there are records."""
    if isinstance(x, Column):
        return x[[record] * len(x)]
    return x[record : record + 1].expand_as(x).contiguous()


def blanks(x: Entries, count: int) -> Entries:
    """So many records of zeros, or of empty texts, in place of those that are there."""
    if isinstance(x, Column):
        return Column([x.blank] * count, x.blank)
    return x.new_zeros(count, *x.shape[1:])


def of_each(batch: Any, records: int, change: Callable[[Any], Any]) -> Any:
    """The batch with a change of what has one entry for each record; all else is left as it is."""
    return pytree.tree_map(lambda x: change(x) if has_entries(x, records) else x, batch)


def rounding_of(tensors: Sequence[Tensor]) -> float:
    """Up to which relative difference two ways to compute with these tensors agree."""
    return _AGREE_HALF if any(x.dtype in HALF for x in tensors) else _AGREE


def one_each(losses: Tensor, records: int) -> Tensor:
    """One loss per record, or an error that says what to do; how many records there are is a secret."""
    if losses.dim() == 2 and losses.shape[1] == 1:
        losses = losses[:, 0]
    if losses.dim() != 1 or len(losses) != records:
        raise ValueError(
            f"loss must return one value per record, shape (records,), got {_form(losses, records)}; use "
            "reduction='none' and average over everything but the first dimension"
            + " (the mean of a batch is enough under batch clipping, Batch or Mixed)"
            * (losses.dim() == 0)
        )
    return losses


def mean_loss(losses: Tensor, records: int) -> Tensor:
    """Of a clip-group, whose mean one number is taken to be: it may be any function of the group.

    >>> mean_loss(torch.tensor([1.0, 3.0]), 2), mean_loss(torch.tensor(2.0), 2)
    (tensor(2.), tensor(2.))
    """
    return losses if losses.dim() == 0 else one_each(losses, records).mean()


def with_gradient(loss: Tensor) -> Tensor:
    """The same, if it has a gradient: a run would be charged and train on nothing but noise."""
    if not loss.requires_grad:
        cause = (
            "torch.inference_mode is on"
            if torch.is_inference_mode_enabled()
            else "it is detached, or counts errors"
        )
        raise ValueError(
            f"loss must have a gradient in the model's parameters, got one that has none: {cause}"
        )
    return loss


def _form(losses: Tensor, records: int) -> str:
    if losses.dim() == 0:
        return "one value for all"
    first = "records" if len(losses) == records else "another number"
    return f"shape ({', '.join([first, *map(str, losses.shape[1:])])}{',' * (losses.dim() == 1)})"


def only_one(losses: Tensor, record: int) -> Tensor:
    """One for this record, and zero for all others."""
    picked = torch.zeros_like(losses)
    picked[record] = 1.0
    return picked
