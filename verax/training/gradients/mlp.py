"""Chains of linear layers and activations, differentiated without a graph.

In small models most of a step is the bookkeeping of autograd. A chain of linear layers and simple
activations needs none: its backward pass is a product and a mask per layer. Only the loss is left
to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks

from verax.training.gradients.factors import AnyFactor
from verax.training.gradients.layer_rules.linear import affine

Activation = tuple[
    Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]
]
"""The function, the same in place, and from its value and the gradient of that to the gradient of
its argument.
"""

_aten = torch.ops.aten
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (torch.relu, torch.relu_, lambda y, g: _aten.threshold_backward(g, y, 0)),
    nn.Tanh: (torch.tanh, torch.tanh_, lambda y, g: _aten.tanh_backward(g, y)),
    nn.Sigmoid: (torch.sigmoid, torch.sigmoid_, lambda y, g: _aten.sigmoid_backward(g, y)),
}


# Methods of layers that somebody may have replaced.
_PATCHED = frozenset({"forward", "_conv_forward"})


class NotAChainError(Exception):
    """The loss used the model in another way than calling it once on a tensor of records."""


def linear_chain(model: nn.Module) -> list[nn.Module] | None:
    """The layers in order, if the model is a chain of linear layers and activations."""
    layers = layers_in_order(model)
    if layers is None or not all(
        type(one) is nn.Linear or type(one) in ACTIVATIONS or _flattens_records(one)
        for one in layers
    ):
        return None
    return layers


def layers_in_order(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a model that calls one after the other, without hooks."""
    if module_hooks._has_any_global_hook():
        return None
    layers: list[nn.Module] = []
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or not _PATCHED.isdisjoint(module.__dict__)
        ):
            return None
        kind = type(module)
        if kind is nn.Sequential:
            waiting.extend(reversed(list(module._modules.values())))
        elif kind is not nn.Identity:
            layers.append(module)
    return layers


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOLINGS = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
_POINTWISE = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus),
    *(nn.Hardtanh, nn.Dropout),
)
_OTHER_LAYERS = (nn.Linear, nn.GroupNorm, nn.Upsample, nn.ZeroPad2d)
_RECORD_BY_RECORD = frozenset((*_CONVOLUTIONS, *_POOLINGS, *_POINTWISE, *_OTHER_LAYERS))


def keeps_apart(model: nn.Module) -> bool:
    """Whether the model cannot mix records: a chain of layers known to keep them apart.

    No experiment can tell this of a model that computes as it likes: it may begin to mix later.

    >>> keeps_apart(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)))
    True
    >>> keeps_apart(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    False
    """
    layers = layers_in_order(model)
    return layers is not None and all(
        type(layer) in _RECORD_BY_RECORD or _flattens_records(layer) for layer in layers
    )


def _flattens_records(module: nn.Module) -> bool:
    """Whether it flattens each record by itself."""
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


class ChainPass:
    """One pass of a batch through a chain, in place of the model while the loss is taken."""

    def __init__(self, layers: list[nn.Module], records: int, closed: bool = False) -> None:
        self._layers, self._records, self._closed = layers, records, closed
        self._values: list[Tensor] = []
        self.output: Tensor | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The model's output, a leaf unless the loss has its gradient in closed form."""
        if (
            self.output is not None
            or len(inputs) != 1
            or inputs[0].dim() < 2
            or inputs[0].shape[0] != self._records
        ):
            raise NotAChainError
        if torch.is_grad_enabled():
            with torch.no_grad():
                value = self._forward(inputs[0].detach())
        else:
            value = self._forward(inputs[0].detach())
        self.output = value if self._closed else value.detach().requires_grad_()
        return self.output

    def _forward(self, value: Tensor) -> Tensor:
        once = False  # whether nobody asks for the value again
        for layer in self._layers:
            self._values.append(value)
            if isinstance(layer, nn.Linear):
                value, once = functional.linear(value, layer.weight, layer.bias), True
            elif isinstance(layer, nn.Flatten):
                value = value.flatten(1)
            else:
                anew, in_place, _ = ACTIVATIONS[type(layer)]
                value, once = (in_place if once else anew)(value), False
        self._values.append(value)
        return value

    def factors(self, g: Tensor) -> dict[nn.Parameter, list[AnyFactor]]:
        """From the gradient of the output to the factors of all parameters."""
        found: dict[nn.Parameter, list[AnyFactor]] = {}
        for layer, x, at_output in self.backward(g):
            for parameter, factor in affine(layer.weight, layer.bias, x, at_output):
                found.setdefault(parameter, []).append(factor)
        return found

    def backward(self, g: Tensor) -> Iterator[tuple[nn.Linear, Tensor, Tensor]]:
        """Every linear layer back to the first trained one: input and output's gradient."""
        first, last = 0, len(self._layers) - 1
        while first <= last and not any(
            p is not None and p.requires_grad for p in self._layers[first]._parameters.values()
        ):
            first += 1
        for at in range(last, first - 1, -1):
            layer, before, after = self._layers[at], self._values[at], self._values[at + 1]
            if isinstance(layer, nn.Linear):
                yield layer, before, g
                g = g @ layer.weight if at > first else g
            elif isinstance(layer, nn.Flatten):
                g = g.view(before.shape)
            else:
                g = ACTIVATIONS[type(layer)][2](after, g)
