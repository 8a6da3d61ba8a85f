"""Recurrent layers as products that are noted on the tape, with equal numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from verax.training.gradients.factors import Explicit, OuterProductSum
from verax.training.gradients.layer_rules.base import Factors, Tape, decomposition


@decomposition(nn.LSTM, nn.GRU, nn.RNN)
def recurrent(tape: Tape, module: nn.RNNBase) -> Callable[..., Any] | None:
    """nn.LSTM, nn.GRU and nn.RNN on padded batches, unrolled; None for projections."""
    if module.proj_size:
        return None
    plain = type(module).forward.__get__(module)

    def forward(input: Any, hx: Any = None) -> Any:
        if not isinstance(input, Tensor) or input.dim() != 3 or not torch.is_grad_enabled():
            return plain(input, hx)
        x = input if module.batch_first else input.transpose(0, 1)
        directions = 2 if module.bidirectional else 1
        layers = module.num_layers * directions
        has_cell = isinstance(module, nn.LSTM)
        if hx is None:
            zero = x.new_zeros(layers, len(x), module.hidden_size)
            hidden, cells = zero, zero
        else:
            hidden, cells = hx if has_cell else (hx, hx)
        last_hidden, last_cells = [], []
        for layer in range(module.num_layers):
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                state = (hidden[index], cells[index])
                steps, final = _unrolled(tape, module, x, state, layer, direction)
                outputs.append(steps)
                last_hidden.append(final[0])
                last_cells.append(final[1])
            x = torch.cat(outputs, dim=-1) if directions == 2 else outputs[0]
            if layer < module.num_layers - 1:
                x = functional.dropout(x, module.dropout, module.training)
        out = x if module.batch_first else x.transpose(0, 1)
        h = torch.stack(last_hidden)
        return out, ((h, torch.stack(last_cells)) if has_cell else h)

    return forward


def _unrolled(
    tape: Tape,
    module: nn.RNNBase,
    x: Tensor,
    state: tuple[Tensor, Tensor],
    layer: int,
    direction: int,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer in one direction: the outputs at all positions, and the final state."""
    suffix = f"l{layer}" + ("_reverse" if direction else "")
    input_weight, hidden_weight = (getattr(module, f"weight_{kind}_{suffix}") for kind in _KINDS)
    input_bias, hidden_bias = (
        getattr(module, f"bias_{kind}_{suffix}") if module.bias else None for kind in _KINDS
    )
    from_input = tape.linear(module, x, input_weight, input_bias)
    positions = range(x.shape[1])
    h, c = state
    outputs: list[Tensor] = [h] * x.shape[1]
    states, from_hidden = [], []
    for t in reversed(positions) if direction else positions:
        states.append(h)
        from_hidden.append(functional.linear(h, hidden_weight, hidden_bias))
        h, c = _cell(module, from_input[:, t], from_hidden[-1], h, c)
        outputs[t] = h
    detached = [state.detach() for state in states]

    def backward(gradients: Sequence[Tensor], dim: int) -> Factors:
        g = torch.stack(list(gradients), dim=1)
        if hidden_weight.requires_grad:
            yield hidden_weight, OuterProductSum(torch.stack(detached, dim=1), g)
        if hidden_bias is not None and hidden_bias.requires_grad:
            yield hidden_bias, Explicit(g.sum(dim=1))

    tape.record(module, states, from_hidden, backward)
    return torch.stack(outputs, dim=1), (h, c)


_KINDS = ("ih", "hh")


def _cell(
    module: nn.RNNBase, from_input: Tensor, from_hidden: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """The next hidden state, and the next cell of an LSTM."""
    if isinstance(module, nn.LSTM):
        into, forget, new, out = (from_input + from_hidden).chunk(4, dim=-1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(into) * torch.tanh(new)
        return torch.sigmoid(out) * torch.tanh(c), c
    if isinstance(module, nn.GRU):
        (r0, z0, n0), (r1, z1, n1) = from_input.chunk(3, dim=-1), from_hidden.chunk(3, dim=-1)
        new = torch.tanh(n0 + torch.sigmoid(r0 + r1) * n1)
        update = torch.sigmoid(z0 + z1)
        return (1.0 - update) * new + update * h, c
    activation = torch.relu if module.mode == "RNN_RELU" else torch.tanh
    return activation(from_input + from_hidden), c
