"""The layer rule of linear layers."""

from __future__ import annotations

from torch import Tensor, nn

from verax.training.gradients.factors import Explicit, OuterProduct, OuterProductSum
from verax.training.gradients.layer_rules.base import Factors, rule


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
def linear(module: nn.Linear, x: Tensor, g: Tensor) -> Factors:
    """A product with the input."""
    return affine(module.weight, module.bias, x, g)
