"""The layer rule of convolutions: patches of the input times the output's gradient."""

from __future__ import annotations

import math
import threading
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from verax.training.gradients.factors import (
    ConvolutionGradients,
    Explicit,
    UnfoldedConvolution,
    ghost_is_cheaper,
    trainable,
)
from verax.training.gradients.layer_rules.base import Factors, rule
from verax.training.gradients.norms import row_norms, single_precision

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d

# Bytes of patches made at once: they are written and read again while in the cache.
_PATCH_BYTES = 2**21
# No gradient is formed that is this many times larger than what it is made of, for each place.
_LARGE = 3.0
# Channels of an output from which on its gradient is better the second matrix of a product.
_WIDE = 32


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: Convolution, x: Tensor, g: Tensor) -> Factors:
    """Formed, or left as patches and gradients of the output where that is much less."""
    records = len(x)
    # images of a record, which were folded into one dimension
    several = x.dim() > 2 + len(module.kernel_size)
    if several:
        x, g = x.flatten(0, 1), g.flatten(0, 1)
    g = single_precision(g).flatten(2)  # images, channels, places
    if trainable(module.weight):
        yield module.weight, _weight_gradients(module, single_precision(x), g, records)
    if trainable(module.bias):
        summed = g.sum(dim=2)
        yield module.bias, Explicit(_sum_images(summed, records) if several else summed)


def _weight_gradients(
    module: Convolution, x: Tensor, g: Tensor, records: int
) -> ConvolutionGradients | UnfoldedConvolution:
    """The gradients of the weight: formed, or what they are made of where that is much less."""
    out, into, *kernel = module.weight.shape
    places = g.shape[2] * len(g) // records
    large = ghost_is_cheaper(places, into * math.prod(kernel), out, _LARGE)
    if large and module.groups == 1 and x.device.type != "mps":  # which has no double precision
        columns = patches(module, x, places_last=False, keep=True).transpose(1, 2)
        last = len(kernel)
        return UnfoldedConvolution(
            columns.reshape(records, places, -1),
            g.transpose(1, 2).reshape(records, places, -1),
            product_shape=[*kernel, into, out],
            order=[last + 1, last, *range(last)],
        )
    kernels = _per_example_kernels(module, x, g)
    return kernels if len(g) == records else kernels.with_rows(_sum_images(kernels.rows, records))


def _sum_images(images: Tensor, records: int) -> Tensor:
    """Over the images of each record, which lie one behind the other."""
    return images.unflatten(0, (records, -1)).sum(dim=1)


def _per_example_kernels(module: Convolution, x: Tensor, g: Tensor) -> ConvolutionGradients:
    """The weight's gradients and norms, a few records at a time to stay in the cache."""
    out, into, *kernel = shape = module.weight.shape
    places_last, wide = _places_last(module, x), module.groups == 1 and out >= _WIDE
    patch = [1, *range(2, len(shape))] if places_last else [*range(2, len(shape)), 1]
    # The weight's dimensions, as they come out of the product.
    dims = [*patch, 0] if wide else [0, *patch]
    rows, norms = g.new_empty(len(g), module.weight.numel()), g.new_empty(len(g))
    few = max(_PATCH_BYTES // (4 * g.shape[2] * into * math.prod(kernel) * module.groups), 1)
    for start in range(0, len(g), few):
        some = slice(start, start + few)
        products, columns = rows[some], patches(module, x[some], places_last)
        if wide:
            outputs = g[some].transpose(1, 2)
            torch.bmm(columns, outputs, out=products.view(len(columns), -1, out))
        else:
            columns = columns.unflatten(1, (module.groups, -1)).flatten(0, 1)
            outputs = g[some].reshape(len(columns), -1, g.shape[2])
            into_groups = products.view(len(columns), outputs.shape[1], -1)
            torch.bmm(outputs, columns.transpose(1, 2), out=into_groups)
        norms[some] = row_norms(products)
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return ConvolutionGradients(rows, norms, [shape[dim] for dim in dims], order)


def _places_last(module: Convolution, x: Tensor) -> bool:
    """Whether patches are copied in longer runs along the places than along the kernel.

    Groups of channels lie apart only with the places last.
    """
    run = x.shape[1] * (module.kernel_size[-1] if module.dilation[-1] == 1 else 1)
    return module.groups > 1 or bool(module.stride[-1] == 1 and x.shape[-1] > run)


def patches(module: Convolution, x: Tensor, places_last: bool, keep: bool = False) -> Tensor:
    """What the kernel sees at each place, (records, patch, places), as one strided copy.

    A patch is (in channels, *kernel) with the places last in memory, (*kernel, in channels) with
    the places first. Unless it is to be kept, it is a view of a buffer that the next call uses
    again.
    """
    if module.padding_mode != "zeros":
        x = functional.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    around = list(zip(_padding(module), x.shape[2:], strict=True))
    inner = [slice(before, before + size) for (before, _), size in around]
    sizes = [before + size + after for (before, after), size in around]
    channel = 1 if places_last else -1
    padded = x.movedim(1, channel)
    pads = any(before or after for (before, after), _ in around)
    if pads or not padded.is_contiguous():
        sides = [len(x), x.shape[1], *sizes] if places_last else [len(x), *sizes, x.shape[1]]
        padded = _SCRATCH.take("padded", sides, x)
        if pads:
            padded.zero_()
        padded.movedim(channel, 1)[(slice(None), slice(None), *inner)].copy_(x)
    spans = [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    places = [
        (size - span) // step + 1
        for size, span, step in zip(sizes, spans, module.stride, strict=True)
    ]
    record, within_channels, *along = padded.movedim(channel, 1).stride()
    place_strides = [s * step for s, step in zip(along, module.stride, strict=True)]
    kernel_strides = [s * d for s, d in zip(along, module.dilation, strict=True)]
    dims = [
        (places, place_strides),
        ([*module.kernel_size], kernel_strides),
        ([x.shape[1]], [within_channels]),
    ]
    if places_last:
        dims.reverse()
    shape = [len(x), *(size for some, _ in dims for size in some)]
    strides = [record, *(stride for _, some in dims for stride in some)]
    columns = x.new_empty(shape) if keep else _SCRATCH.take("columns", shape, x)
    columns.copy_(padded.as_strided(shape, strides))
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
