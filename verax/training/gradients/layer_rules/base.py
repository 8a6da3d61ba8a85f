"""The registries of layer rules and decompositions, and the tape that layer calls are noted on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from verax.training.gradients.factors import AnyFactor, Explicit, OuterProductSum

Factors: TypeAlias = Iterator[tuple[nn.Parameter, AnyFactor]]
"""The factored per-example gradients of a layer's trainable parameters."""
Rule = Callable[[Any, Tensor, Tensor], Factors]
"""From a layer, its input and the gradient of its output, records first."""
Backward = Callable[[Sequence[Tensor], int], Factors]
"""From the gradients of a call's outputs and the dimension of the records."""

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


@dataclass
class LayerCall:
    """One call of a layer: where its outputs' gradients arrive, and how they become factors.

    ``inputs`` must not be changed in place before that; ``versions`` tell.
    """

    module: nn.Module
    edges: list[GradientEdge]
    inputs: list[Tensor]
    backward: Backward
    versions: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = [x._version for x in self.inputs]

    @property
    def intact(self) -> bool:
        """Whether the inputs are still what the layer saw."""
        return self.versions == [x._version for x in self.inputs]


@dataclass
class Tape:
    """The layer calls of one forward pass."""

    calls: list[LayerCall] = field(default_factory=list)

    def record(
        self,
        module: nn.Module,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        backward: Backward,
    ) -> None:
        """Note a call, if gradients will come by."""
        if all(output.requires_grad for output in outputs):
            edges = [get_gradient_edge(output) for output in outputs]
            self.calls.append(LayerCall(module, edges, [x.detach() for x in inputs], backward))

    def linear(
        self,
        module: nn.Module,
        x: Tensor,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        rows: slice = slice(None),
    ) -> Tensor:
        """``x @ weight[rows].T + bias[rows]``, noted; x is (records, positions, width)."""
        y = functional.linear(x, weight[rows], None if bias is None else bias[rows])
        inputs = x.detach()

        def backward(gradients: Sequence[Tensor], dim: int) -> Factors:
            g = pad_rows(gradients[0], rows, len(weight))
            if weight.requires_grad:
                yield weight, OuterProductSum(inputs, g)
            if bias is not None and bias.requires_grad:
                yield bias, Explicit(g.sum(dim=1))

        self.record(module, [x], [y], backward)
        return y


def pad_rows(g: Tensor, rows: slice, size: int) -> Tensor:
    """Gradients of the outputs in ``rows``, with zeros for the rest of all ``size``."""
    start, _, _ = rows.indices(size)
    rest = size - start - g.shape[-1]
    return functional.pad(g, (start, rest)) if start or rest else g


Decomposition = Callable[[Tape, Any], Callable[..., Any] | None]
"""From a tape and a layer to an equal forward pass made of products that are noted on the tape.

None for the layer's rarer forms, which are left to ``torch.func``.
"""
DECOMPOSITIONS: dict[type[nn.Module], Decomposition] = {}


def decomposition(*kinds: type[nn.Module]) -> Callable[[Decomposition], Decomposition]:
    """Register the decomposition of layers that compute inside one opaque call."""

    def register(function: Decomposition) -> Decomposition:
        DECOMPOSITIONS.update(dict.fromkeys(kinds, function))
        return function

    return register
