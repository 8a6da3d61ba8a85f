"""Trial runs of a model: under a fixed seed, with other weights or records, in another mode."""

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

from verax.training.checks.snapshot import Snapshot
from verax.training.data.containers import Column
from verax.training.data.microbatch import has_entries
from verax.training.gradients.factors import trainable
from verax.training.seeds import seeded

Losses = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch to one loss per record."""

Result = TypeVar("Result")

_HALF = (torch.bfloat16, torch.float16)

# What a model may raise on other records than it was given.
MODEL_FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)

# Relative difference from plain autograd that is still rounding, in single and in half precision.
_AGREE = 1e-3
_AGREE_HALF = 5e-2
# Operations that draw real numbers at random.
_RANDOM = {"bernoulli", "bernoulli_", "normal", "normal_", "uniform_"}
_RANDOM |= {"rand", "rand_like", "randn", "randn_like"}
# Types of weights that can be perturbed.
_PERTURBED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_is_due(count: int) -> bool:
    """Whether the count is 0, 1, 2, 4, 8 ...: checks become rarer as a run goes on."""
    return count & (count - 1) == 0


@contextmanager
def perturbed_weights(model: nn.Module, share: float = 0.1) -> Iterator[None]:
    """Move all weights by a share of their size until the block ends, versions unchanged."""
    kept = [(p, p.data) for p in model.parameters() if trainable(p) and p.dtype in _PERTURBED]
    rng = torch.Generator().manual_seed(0)
    try:
        for parameter, value in kept:
            size = float(value.detach().float().square().mean().sqrt()) if value.numel() else 0.0
            noise = torch.randn(value.shape, generator=rng).to(value)
            parameter.data = value + (share * size if size > 0.0 else share) * noise
        yield
    finally:
        for parameter, value in kept:
            parameter.data = value


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model and all its modules in eval mode until the block ends."""
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
    """Switch off autocast's cache and fused transformer layers until the block ends.

    Cached weights may be those of an earlier step, perturbed, or without a gradient. The fused
    kernel of a transformer's layer, taken in eval mode without gradients, knows no autocast on a
    CPU: it fails, or reads numbers of one precision as those of another.
    """
    cached, fused = torch.is_autocast_cache_enabled(), torch.backends.mha.get_fastpath_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        torch.backends.mha.set_fastpath_enabled(fused)


def run_repeatably(model: nn.Module, work: Callable[[], Result], seed: int = 0) -> Result:
    """The result of the work under a fixed seed, without gradients; generators and buffers stay."""
    before = Snapshot(model)
    # The model may draw from the global generators.
    python, numpy = random.getstate(), np.random.get_state()
    with torch.no_grad(), seeded(model, seed), without_shortcuts():
        try:
            random.seed(seed)
            np.random.seed(seed)
            return work()
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            before.restore()


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def generator_states() -> tuple[Any, ...]:
    """The states of the global generators, to be compared."""
    _, keys, *rest = np.random.get_state()
    torch_state = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), np.asarray(keys).tobytes(), rest, torch_state


def run_without_randomness(work: Callable[[], Result], drawn: list[int] | None = None) -> Result:
    """The result of the work with random real numbers replaced by a constant, dropout by none.

    What is drawn depends on shapes, so that nothing could be told of work on fewer records. Whole
    numbers, such as a random order, and what other operations draw inside remain random.

    Args:
        work: what to do.
        drawn: a list to which the size of each draw is appended.

    >>> run_without_randomness(lambda: nn.Dropout(0.2)(torch.ones(3)))
    tensor([1., 1., 1.])
    """
    with _ConstantDraws([] if drawn is None else drawn):
        return work()


class _ConstantDraws(TorchDispatchMode):
    def __init__(self, drawn: list[int]) -> None:
        super().__init__()
        self._sequence = drawn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_dropout.default:
            self._sequence.append(args[0].numel())
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _RANDOM:
            self._sequence.append(found.numel())
            # The probability of bernoulli_, the mean of normal_.
            found.fill_(next((x for x in args[1:] if isinstance(x, float)), 0.5))
        return found


def graph_nodes(losses: Tensor) -> Iterator[Any]:
    """All nodes of the losses' autograd graph."""
    waiting, seen = [losses.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(before for before, _ in node.next_functions)
            yield node


Entries: TypeAlias = Tensor | Column
"""A leaf of a batch with one entry for each record."""


def repeat_record(x: Entries, record: int) -> Entries:
    """As many copies of one record as there are records."""
    if isinstance(x, Column):
        return x[[record] * len(x)]
    return x[record : record + 1].expand_as(x).contiguous()


def blank_records(x: Entries, count: int) -> Entries:
    """This many records of zeros, or of empty texts."""
    if isinstance(x, Column):
        return Column([x.blank] * count, x.blank)
    return x.new_zeros(count, *x.shape[1:])


def map_records(batch: Any, records: int, change: Callable[[Any], Any]) -> Any:
    """The batch with every leaf changed that has one entry for each record."""
    return pytree.tree_map(lambda x: change(x) if has_entries(x, records) else x, batch)


def rounding_tolerance(tensors: Sequence[Tensor]) -> float:
    """The relative difference that rounding may cause in computations with these tensors."""
    return _AGREE_HALF if any(x.dtype in _HALF for x in tensors) else _AGREE


def loss_per_record(losses: Tensor, records: int) -> Tensor:
    """One loss per record; the error does not tell how many records there are, which is secret."""
    if losses.dim() == 2 and losses.shape[1] == 1:
        losses = losses[:, 0]
    if losses.dim() != 1 or len(losses) != records:
        raise ValueError(
            "loss must return one value per record, shape (records,), got "
            f"{_shape(losses, records)}; use reduction='none' and average over everything but the "
            "first dimension"
            + " (the mean of a batch is enough under batch clipping, Batch or Mixed)"
            * (losses.dim() == 0)
        )
    return losses


def mean_loss(losses: Tensor, records: int) -> Tensor:
    """The mean loss of a clip-group; one number is taken to be its mean.

    >>> mean_loss(torch.tensor([1.0, 3.0]), 2), mean_loss(torch.tensor(2.0), 2)
    (tensor(2.), tensor(2.))
    """
    return losses if losses.dim() == 0 else loss_per_record(losses, records).mean()


def require_gradient(loss: Tensor) -> Tensor:
    """The loss, if it has a gradient; without, a run would be charged and train on noise only."""
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


def _shape(losses: Tensor, records: int) -> str:
    if losses.dim() == 0:
        return "one value for all"
    first = "records" if len(losses) == records else "another number"
    return f"shape ({', '.join([first, *map(str, losses.shape[1:])])}{',' * (losses.dim() == 1)})"


def one_hot(losses: Tensor, record: int) -> Tensor:
    """One for this record and zero for all others."""
    picked = torch.zeros_like(losses)
    picked[record] = 1.0
    return picked
