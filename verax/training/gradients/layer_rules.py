"""Layer rules: per-example gradients from a layer's input and its output's gradient.

To teach verax a new layer, register a rule: a function of the module and its input that returns
what turns the gradient of the output into factors, one per trainable parameter. Layers without a
rule are differentiated by ``torch.func``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from verax.training.gradients.factors import (
    AnyFactor,
    ConvolutionGradients,
    EmbeddingRows,
    Explicit,
    OuterProduct,
    OuterProductSum,
    UnfoldedConvolution,
    ghost_is_cheaper,
    row_norms,
    single_precision,
)

Factors = Iterator[tuple[nn.Parameter, AnyFactor]]
Finish = Callable[[Tensor], Factors]
Rule = Callable[[nn.Module, Tensor], Finish]

_NEAR = 2**21  # bytes of patches made at once: they are written and read again while in the cache
# form no gradient that is this many times larger than what it is made of, for each place
_LARGE = 3.0
# channels of an output from which on its gradient is better the second matrix of a product
_WIDE = 32

RULES: dict[type[nn.Module], Rule] = {}


def rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register the rule of these layers."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a layer, unless a subclass has another forward pass."""
    for kind in type(module).__mro__:
        if kind in RULES:
            return RULES[kind] if type(module).forward is kind.forward else None
    return None


def trainable(parameter: Tensor | None) -> bool:
    """Whether a layer has this parameter and it is being trained."""
    return parameter is not None and parameter.requires_grad


def affine(weight: Tensor, bias: Tensor | None, x: Tensor, g: Tensor) -> Factors:
    """Factors of ``x @ weight.T + bias``, with x and g as (records, ..., width)."""
    single = x.dim() == 2
    if not single:
        x, g = x.flatten(1, -2), g.flatten(1, -2)
    summed = Explicit(g) if single else None
    if isinstance(weight, nn.Parameter) and weight.requires_grad:
        yield weight, OuterProductSum(x, g) if summed is None else OuterProduct(x, summed)
    if isinstance(bias, nn.Parameter) and bias.requires_grad:
        yield bias, summed or Explicit(g.sum(dim=1))


@rule(nn.Linear)
def _linear(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.Linear)  # noqa: S101
        return affine(module.weight, module.bias, x, g)

    return finish


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)  # noqa: S101
        # images of a record, which were folded into one dimension
        several = x.dim() > 2 + len(module.kernel_size)
        seen, g = (x.flatten(0, 1), g.flatten(0, 1)) if several else (x, g)
        g = single_precision(g).flatten(2)  # images, channels, places
        if trainable(module.weight):
            yield module.weight, _of_weight(module, single_precision(seen), g, len(x))
        if module.bias is not None and module.bias.requires_grad:
            summed = g.sum(dim=2)
            yield module.bias, Explicit(_added_up(summed, len(x)) if several else summed)

    return finish


def _of_weight(
    module: Convolution, x: Tensor, g: Tensor, records: int
) -> ConvolutionGradients | UnfoldedConvolution:
    """The gradients of the weight: formed, or what they are made of where that is much less."""
    out, looks = module.weight.shape[0], module.weight[0].numel()
    places = g.shape[2] * len(g) // records
    large = ghost_is_cheaper(places, looks, out, _LARGE)
    if large and module.groups == 1 and x.device.type != "mps":  # which has no double precision
        seen = patches(module, x, places_last=False, keep=True).transpose(1, 2)
        given = g.transpose(1, 2)
        lying = [*module.kernel_size, module.weight.shape[1], out]
        order = [len(lying) - 1, len(lying) - 2, *range(len(lying) - 2)]
        return UnfoldedConvolution(
            seen.reshape(records, places, -1), given.reshape(records, places, -1), lying, order
        )
    kernels = _per_record_kernels(module, x, g)
    return kernels if len(g) == records else kernels.of(_added_up(kernels.rows, records))


def _added_up(images: Tensor, records: int) -> Tensor:
    """Over the images of each record, which lie one behind the other."""
    return images.unflatten(0, (records, -1)).sum(dim=1)


Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _per_record_kernels(module: Convolution, x: Tensor, g: Tensor) -> ConvolutionGradients:
    """The weight's gradients and norms, a few records at a time to stay in the cache."""
    out, into, *kernel = shape = module.weight.shape
    places_last, wide = _places_last(module, x), module.groups == 1 and out >= _WIDE
    looks = [1, *range(2, len(shape))] if places_last else [*range(2, len(shape)), 1]
    # the weight's dimensions, as they come out of the product
    lying = [*looks, 0] if wide else [0, *looks]
    rows, norms = g.new_empty(len(g), module.weight.numel()), g.new_empty(len(g))
    few = max(_NEAR // (4 * g.shape[2] * into * math.prod(kernel) * module.groups), 1)
    for start in range(0, len(g), few):
        some = slice(start, start + few)
        mine, seen = rows[some], patches(module, x[some], places_last)
        if wide:
            torch.bmm(seen, g[some].transpose(1, 2), out=mine.view(len(seen), -1, out))
        else:
            seen = seen.unflatten(1, (module.groups, -1)).flatten(0, 1)
            given = g[some].reshape(len(seen), -1, g.shape[2])
            torch.bmm(given, seen.transpose(1, 2), out=mine.view(len(seen), given.shape[1], -1))
        norms[some] = row_norms(mine)
    return ConvolutionGradients(
        rows, norms, [shape[dim] for dim in lying], sorted(range(len(lying)), key=lying.__getitem__)
    )


def _places_last(module: Convolution, x: Tensor) -> bool:
    """Whether patches are copied in longer runs along the places than along the kernel.

    Groups of channels lie apart only with the places last.
    """
    run = x.shape[1] * (module.kernel_size[-1] if module.dilation[-1] == 1 else 1)
    return module.groups > 1 or bool(module.stride[-1] == 1 and x.shape[-1] > run)


def patches(module: Convolution, x: Tensor, places_last: bool, keep: bool = False) -> Tensor:
    """What each place of the output looks at, (records, looks, places), as one strided copy.

    Looks are in the order (in channels, *kernel) with the places last in memory, (*kernel, in
    channels) with the places first. Unless it is to be kept, it is a view of a buffer that the next
    call uses again.
    """
    if module.padding_mode != "zeros":
        x = functional.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    around = _padding(module)
    inner = [
        slice(before, before + size) for (before, _), size in zip(around, x.shape[2:], strict=True)
    ]
    sizes = [
        before + size + after for (before, after), size in zip(around, x.shape[2:], strict=True)
    ]
    channel = 1 if places_last else -1
    padded = x.movedim(1, channel)
    within = any(before or after for before, after in around)
    if within or not padded.is_contiguous():
        sides = [len(x), x.shape[1], *sizes] if places_last else [len(x), *sizes, x.shape[1]]
        padded = _SCRATCH.take("padded", sides, x)
        if within:
            padded.zero_()
        padded.movedim(channel, 1)[(slice(None), slice(None), *inner)].copy_(x)
    reach = [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    places = [
        (size - span) // step + 1
        for size, span, step in zip(sizes, reach, module.stride, strict=True)
    ]
    record, within_channels, *along = padded.movedim(channel, 1).stride()
    moves = [s * step for s, step in zip(along, module.stride, strict=True)]
    looks = [s * d for s, d in zip(along, module.dilation, strict=True)]
    dims = [(places, moves), ([*module.kernel_size], looks), ([x.shape[1]], [within_channels])]
    if places_last:
        dims.reverse()
    shape = [len(x), *(size for some, _ in dims for size in some)]
    columns = x.new_empty(shape) if keep else _SCRATCH.take("columns", shape, x)
    columns.copy_(
        padded.as_strided(shape, [record, *(stride for _, some in dims for stride in some)])
    )
    if places_last:
        return columns.view(len(x), -1, math.prod(places))
    return columns.view(len(x), math.prod(places), -1).transpose(1, 2)


def _padding(module: Convolution) -> list[tuple[int, int]]:
    """Zeros before and after, along each dimension."""
    if module.padding_mode != "zeros":
        return [(0, 0)] * len(module.kernel_size)
    if not isinstance(module.padding, str):
        return [(size, size) for size in module.padding]
    both = module._reversed_padding_repeated_twice
    return [(both[2 * i], both[2 * i + 1]) for i in reversed(range(len(module.kernel_size)))]


class _Scratch(threading.local):
    """Buffers used again and again: in a fresh large block every page costs a fault."""

    def __init__(self) -> None:
        self._blocks: dict[Any, Tensor] = {}

    def take(self, name: str, shape: list[int], like: Tensor) -> Tensor:
        key, size = (name, like.dtype, like.device), math.prod(shape)
        block = self._blocks.get(key)
        if block is None or len(block) < size:
            block = self._blocks[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return block[:size].view(shape)


_SCRATCH = _Scratch()


@rule(nn.Embedding)
def _embedding(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.Embedding)  # noqa: S101
        g = g.reshape(len(x), -1, g.shape[-1])
        index = x.reshape(len(x), -1)
        if module.padding_idx is not None:
            g = g * (index != module.padding_idx).unsqueeze(-1)
        yield module.weight, EmbeddingRows(index, g, module.weight.shape)

    return finish


@rule(nn.LayerNorm)
def _layer_norm(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.LayerNorm)  # noqa: S101
        inner = len(module.normalized_shape)
        if trainable(module.weight):
            straight = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
            yield module.weight, Explicit(_over_positions(g * straight, inner))
        if trainable(module.bias):
            yield module.bias, Explicit(_over_positions(g, inner))

    return finish


@rule(nn.RMSNorm)
def _rms_norm(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.RMSNorm)  # noqa: S101
        straight = functional.rms_norm(x, module.normalized_shape, eps=module.eps)
        yield module.weight, Explicit(_over_positions(g * straight, len(module.normalized_shape)))

    return finish


def _over_positions(x: Tensor, inner: int) -> Tensor:
    """Sum over everything but the records and the last ``inner`` dimensions."""
    return x if x.dim() == inner + 1 else x.flatten(1, -1 - inner).sum(dim=1)


@rule(nn.GroupNorm)
def _group_norm(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.GroupNorm)  # noqa: S101
        straight = functional.group_norm(x, module.num_groups, eps=module.eps)
        return _per_channel(module.weight, module.bias, g, straight)

    return finish


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def _instance_norm(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)  # noqa: S101
        return _per_channel(
            module.weight, module.bias, g, functional.instance_norm(x, eps=module.eps)
        )

    return finish


def _per_channel(
    weight: nn.Parameter | None, bias: nn.Parameter | None, g: Tensor, straight: Tensor
) -> Factors:
    if weight is not None and weight.requires_grad:
        product = g * straight
        yield weight, Explicit(product if g.dim() == 2 else product.flatten(2).sum(dim=2))
    if bias is not None and bias.requires_grad:
        yield bias, Explicit(g if g.dim() == 2 else g.flatten(2).sum(dim=2))
