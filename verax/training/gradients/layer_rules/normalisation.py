"""The layer rules of layers that normalise each record by itself."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from verax.training.gradients.factors import Explicit, trainable
from verax.training.gradients.layer_rules.base import Factors, rule

InstanceNorm: TypeAlias = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


@rule(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, x: Tensor, g: Tensor) -> Factors:
    """Sums over the positions."""
    inner = len(module.normalized_shape)
    if trainable(module.weight):
        normalised = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
        yield module.weight, Explicit(_over_positions(g * normalised, inner))
    if trainable(module.bias):
        yield module.bias, Explicit(_over_positions(g, inner))


@rule(nn.RMSNorm)
def rms_norm(module: nn.RMSNorm, x: Tensor, g: Tensor) -> Factors:
    """Sums over the positions."""
    normalised = functional.rms_norm(x, module.normalized_shape, eps=module.eps)
    yield module.weight, Explicit(_over_positions(g * normalised, len(module.normalized_shape)))


def _over_positions(x: Tensor, inner: int) -> Tensor:
    """Sum over everything but the records and the last ``inner`` dimensions."""
    return x if x.dim() == inner + 1 else x.flatten(1, -1 - inner).sum(dim=1)


@rule(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, x: Tensor, g: Tensor) -> Factors:
    """Sums over the places of each channel."""
    return _per_channel(module, g, functional.group_norm(x, module.num_groups, eps=module.eps))


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(module: InstanceNorm, x: Tensor, g: Tensor) -> Factors:
    """Sums over the places of each channel."""
    return _per_channel(module, g, functional.instance_norm(x, eps=module.eps))


def _per_channel(module: nn.GroupNorm | InstanceNorm, g: Tensor, normalised: Tensor) -> Factors:
    if trainable(module.weight):
        product = g * normalised
        yield module.weight, Explicit(product if g.dim() == 2 else product.flatten(2).sum(dim=2))
    if trainable(module.bias):
        yield module.bias, Explicit(g if g.dim() == 2 else g.flatten(2).sum(dim=2))
