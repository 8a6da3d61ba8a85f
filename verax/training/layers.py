"""How each kind of layer leaves its per-record gradients behind: from its input, and the gradient of its output.

To teach verax a new layer, register a rule: a function of the module and its input that returns what turns the gradient
of the output into factors, one per trainable parameter. Layers without a rule are differentiated by ``torch.func``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from verax.training.factors import Explicit, Kind, Outer, Rows

Factors = Iterator[tuple[nn.Parameter, Kind]]
Finish = Callable[[Tensor], Factors]
Rule = Callable[[nn.Module, Tensor], Finish]

RULES: dict[type[nn.Module], Rule] = {}


def rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register the rule of these layers."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a layer whose forward pass is the one the rule was written for; subclasses may have changed it."""
    for kind in type(module).__mro__:
        if kind in RULES:
            return RULES[kind] if type(module).forward is kind.forward else None
    return None


def trainable(parameter: Tensor | None) -> bool:
    """Whether a layer has this parameter and it is being trained."""
    return parameter is not None and parameter.requires_grad


def positions(x: Tensor) -> Tensor:
    """(records, ..., width) as (records, positions, width)."""
    return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)


def affine(weight: Tensor, bias: Tensor | None, x: Tensor, g: Tensor) -> Factors:
    """Factors of ``x @ weight.T + bias``, x and g already as (records, positions, width)."""
    if isinstance(weight, nn.Parameter) and weight.requires_grad:
        yield weight, Outer(x, g, weight.shape)
    if isinstance(bias, nn.Parameter) and bias.requires_grad:
        yield bias, Explicit(g[:, 0] if g.shape[1] == 1 else g.sum(dim=1))


@rule(nn.Linear)
def _linear(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.Linear)  # noqa: S101
        return affine(module.weight, module.bias, positions(x), positions(g))

    return finish


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)  # noqa: S101
        outputs = g.flatten(2).transpose(1, 2)  # records, places, channels
        if trainable(module.weight):
            if module.groups == 1:
                columns = patches(module, x, channels_last=True)
                yield module.weight, Outer(columns, outputs, module.weight.shape, channels_last=True)
            else:
                columns = patches(module, x)
                each = torch.bmm(_by_group(outputs, module.groups).transpose(1, 2), _by_group(columns, module.groups))
                yield module.weight, Explicit(each.view(len(x), *module.weight.shape))
        if module.bias is not None and module.bias.requires_grad:
            yield module.bias, Explicit(g.flatten(2).sum(dim=2))

    return finish


def _by_group(x: Tensor, groups: int) -> Tensor:
    """(records, places, channels) as (records * groups, places, channels / groups)."""
    records, places, width = x.shape
    return x.view(records, places, groups, width // groups).transpose(1, 2).reshape(-1, places, width // groups)


def patches(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, channels_last: bool = False) -> Tensor:
    """What each place of the output looks at: (records, places, in channels * kernel), as one strided copy.

    With the channels last its inner runs are longer, which makes the copy faster.
    """
    if module.padding_mode != "zeros":
        x = functional.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    elif isinstance(module.padding, str):
        x = functional.pad(x, module._reversed_padding_repeated_twice)
    elif any(module.padding):
        x = functional.pad(x, [size for size in reversed(module.padding) for _ in range(2)])
    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x.contiguous()
    reach = [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    places = [
        (size - span) // step + 1 for size, span, step in zip(x.shape[2:], reach, module.stride, strict=True)
    ]  # fmt: skip
    strides = x.stride()
    moves = [s * step for s, step in zip(strides[2:], module.stride, strict=True)]
    inner = [s * d for s, d in zip(strides[2:], module.dilation, strict=True)]
    channel, kernel = ([x.shape[1]], [strides[1]]), (list(module.kernel_size), inner)
    first, second = (kernel, channel) if channels_last else (channel, kernel)
    view = x.as_strided([x.shape[0], *places, *first[0], *second[0]], [strides[0], *moves, *first[1], *second[1]])
    return view.reshape(x.shape[0], math.prod(places), -1)


@rule(nn.Embedding)
def _embedding(module: nn.Module, x: Tensor) -> Finish:
    def finish(g: Tensor) -> Factors:
        assert isinstance(module, nn.Embedding)  # noqa: S101
        g = g.reshape(len(x), -1, g.shape[-1])
        index = x.reshape(len(x), -1)
        if module.padding_idx is not None:
            g = g * (index != module.padding_idx).unsqueeze(-1)
        yield module.weight, Rows(index, g, module.weight.shape)

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
        return _per_channel(module.weight, module.bias, g, functional.instance_norm(x, eps=module.eps))

    return finish


def _per_channel(weight: nn.Parameter | None, bias: nn.Parameter | None, g: Tensor, straight: Tensor) -> Factors:
    if weight is not None and weight.requires_grad:
        product = g * straight
        yield weight, Explicit(product if g.dim() == 2 else product.flatten(2).sum(dim=2))
    if bias is not None and bias.requires_grad:
        yield bias, Explicit(g if g.dim() == 2 else g.flatten(2).sum(dim=2))
