"""Hooks on a forward pass: the inputs of each layer, and the edges of its outputs.

Nothing of the model is changed for longer than the forward pass: hooks are put on layers that have
a rule, and layers that compute with their parameters inside one opaque call (attention, recurrent
layers) run an equal computation made of watched products instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.gradients.layer_rules import DECOMPOSITIONS, rule_for
from verax.training.gradients.layer_rules.base import Decomposition, Factors, Rule, Tape


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Trainable parameters of the module itself, without its children."""
    return [p for p in module._parameters.values() if p is not None and p.requires_grad]


@dataclass(frozen=True)
class WatchedLayers:
    """The layers of a model that have trainable parameters, by how they are watched."""

    with_rules: list[tuple[nn.Module, Rule]]
    decomposed: list[tuple[nn.Module, Decomposition]]
    covered: bool
    """Whether every trainable parameter belongs to one of them."""
    trained: list[nn.Parameter]
    chain: list[nn.Module] | None = None
    """All layers in order, if the model is taken as a plain chain."""

    @classmethod
    def of_chain(cls, chain: list[nn.Module]) -> WatchedLayers:
        """Those of a plain chain, which need no watching."""
        return cls(
            [],
            [],
            True,
            list(dict.fromkeys(p for layer in chain for p in own_parameters(layer))),
            chain,
        )

    @classmethod
    def of(cls, model: nn.Module) -> WatchedLayers:
        """The layers of a model as it is now: anything may be frozen between batches."""
        with_rules: list[tuple[nn.Module, Rule]] = []
        decomposed: list[tuple[nn.Module, Decomposition]] = []
        trained: dict[nn.Parameter, None] = {}
        inside: set[nn.Module] = set()
        covered = True
        for module in model.modules():
            watched, own = DECOMPOSITIONS.get(type(module)), own_parameters(module)
            trained.update(dict.fromkeys(own))
            if watched is not None:
                inside.update(child for child in module.modules() if child is not module)
                if any(p.requires_grad for p in module.parameters()):
                    decomposed.append((module, watched))
            elif own:
                rule = rule_for(module)
                if rule is not None:
                    with_rules.append((module, rule))
                elif module not in inside:
                    covered = False
        return cls(with_rules, decomposed, covered, list(trained))


@contextmanager
def record_calls(layers: WatchedLayers, copies: bool = False) -> Iterator[Tape]:
    """Watch these layers until the block ends.

    With ``copies`` outputs that are views are copied first: changing a view in place would cut its
    edge.
    """
    tape = Tape()
    handles, patched = [], []
    inside: set[nn.Module] = set()
    try:
        for module, watched in layers.decomposed:
            forward = watched(tape, module)
            if forward is not None:
                module.forward = forward
                patched.append(module)
                inside.update(module.children())
        for module, rule in layers.with_rules:
            if module not in inside:
                handles.append(
                    module.register_forward_hook(_hook(tape, rule, copies), with_kwargs=True)
                )
        yield tape
    finally:
        for handle in handles:
            handle.remove()
        for module in patched:
            del module.forward


def records_first(x: Tensor, dim: int) -> Tensor:
    """Records first: from dimension ``dim``, or from -dim blocks of the first one."""
    if dim == 0:
        return x
    return x.movedim(dim, 0) if dim > 0 else x.unflatten(0, (-dim, -1))


def _hook(tape: Tape, rule: Rule, copies: bool) -> Callable[..., Tensor | None]:
    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if torch.is_grad_enabled() and output.requires_grad:
            x = args[0] if args else next(iter(kwargs.values()))

            def backward(gradients: Sequence[Tensor], dim: int) -> Factors:
                return rule(module, records_first(inputs, dim), records_first(gradients[0], dim))

            inputs = x.detach()
            result = output.clone() if copies and output._is_view() else output
            tape.record(module, [x], [result], backward)
            return result
        return None

    return hook
