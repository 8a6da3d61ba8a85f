"""Attention and recurrent layers as products that are watched, with equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from verax.training.gradients.factors import Explicit, OuterProductSum
from verax.training.gradients.hooks import DECOMPOSED, Tape
from verax.training.gradients.layer_rules import Factors


def _product(
    tape: Tape,
    module: nn.Module,
    x: Tensor,
    weight: nn.Parameter,
    bias: nn.Parameter | None,
    rows: slice = slice(None),
) -> Tensor:
    """``x @ weight[rows].T + bias[rows]``, watched; x is (records, positions, width)."""
    y = functional.linear(x, weight[rows], None if bias is None else bias[rows])
    seen = x.detach()
    start, _, _ = rows.indices(len(weight))

    def finish(gradients: Sequence[Tensor], dim: int) -> Factors:
        g = gradients[0]
        if g.shape[-1] < len(weight):
            g = functional.pad(g, (start, len(weight) - start - g.shape[-1]))
        if weight.requires_grad:
            yield weight, OuterProductSum(seen, g)
        if bias is not None and bias.requires_grad:
            yield bias, Explicit(g.sum(dim=1))

    tape.watch(module, [x], [y], finish)
    return y


def attention(tape: Tape, module: nn.Module) -> Callable[..., Any] | None:
    """nn.MultiheadAttention; None for its rarer forms, which are left to torch.func."""
    if (
        not isinstance(module, nn.MultiheadAttention)
        or module.bias_k is not None
        or module.add_zero_attn
    ):
        return None
    plain = type(module).forward.__get__(module)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        if query.dim() != 3 or not torch.is_grad_enabled():
            return plain(
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        same = query is key and key is value
        if not module.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = _projections(tape, module, query, key, value, same)
        heads, width = module.num_heads, module.head_dim
        q, k, v = (x.unflatten(-1, (heads, width)).transpose(1, 2) for x in (q, k, v))
        mask = _mask(attn_mask, key_padding_mask, q)
        dropout = module.dropout if module.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(width)
            weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = functional.dropout(weights, dropout)
            mixed = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        mixed = mixed.transpose(1, 2).flatten(2)
        out = _product(tape, module, mixed, module.out_proj.weight, module.out_proj.bias)
        return (out if module.batch_first else out.transpose(0, 1)), weights

    return forward


def _projections(
    tape: Tape, module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, same: bool
) -> tuple[Tensor, Tensor, Tensor]:
    width, bias = module.embed_dim, module.in_proj_bias
    thirds = [slice(i * width, (i + 1) * width) for i in range(3)]
    if module._qkv_same_embed_dim:
        weight = module.in_proj_weight
        if same:
            q, k, v = _product(tape, module, query, weight, bias).chunk(3, dim=-1)
            return q, k, v
        q, k, v = (
            _product(tape, module, x, weight, bias, rows)
            for x, rows in zip((query, key, value), thirds, strict=True)
        )
        return q, k, v
    parts = []
    for x, weight, rows in zip(
        (query, key, value),
        (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight),
        thirds,
        strict=True,
    ):
        y = _product(tape, module, x, weight, None)
        parts.append(y if bias is None else _shifted(tape, module, y, bias, rows))
    return parts[0], parts[1], parts[2]


def _shifted(tape: Tape, module: nn.Module, x: Tensor, bias: nn.Parameter, rows: slice) -> Tensor:
    """``x + bias[rows]``, watched."""
    y = x + bias[rows]
    start, _, _ = rows.indices(len(bias))

    def finish(gradients: Sequence[Tensor], dim: int) -> Factors:
        g = gradients[0].sum(dim=1)
        if bias.requires_grad:
            yield bias, Explicit(functional.pad(g, (start, len(bias) - start - g.shape[-1])))

    tape.watch(module, [], [y], finish)
    return y


def _mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as one to be added to the scores, (records or 1, heads or 1, queries, keys)."""
    parts = []
    if attn_mask is not None:
        whole = _additive(attn_mask, q)
        parts.append(
            whole.view(q.shape[0], -1, *whole.shape[-2:]) if whole.dim() == 3 else whole[None, None]
        )
    if key_padding_mask is not None:
        parts.append(_additive(key_padding_mask, q)[:, None, None, :])
    return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def recurrent(tape: Tape, module: nn.Module) -> Callable[..., Any] | None:
    """nn.LSTM, nn.GRU and nn.RNN on padded batches, unrolled; None for projections."""
    if not isinstance(module, nn.RNNBase) or module.proj_size:
        return None
    plain = type(module).forward.__get__(module)

    def forward(input: Any, hx: Any = None) -> Any:
        if not isinstance(input, Tensor) or input.dim() != 3 or not torch.is_grad_enabled():
            return plain(input, hx)
        x = input if module.batch_first else input.transpose(0, 1)
        directions = 2 if module.bidirectional else 1
        layers = module.num_layers * directions
        cell = isinstance(module, nn.LSTM)
        if hx is None:
            zero = x.new_zeros(layers, len(x), module.hidden_size)
            hidden, cells = zero, zero
        else:
            hidden, cells = hx if cell else (hx, hx)
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
        return out, ((h, torch.stack(last_cells)) if cell else h)

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
    weights = [getattr(module, f"weight_{kind}_{suffix}") for kind in ("ih", "hh")]
    biases = [
        getattr(module, f"bias_{kind}_{suffix}") if module.bias else None for kind in ("ih", "hh")
    ]
    driven = _product(tape, module, x, weights[0], biases[0])
    order = range(x.shape[1] - 1, -1, -1) if direction else range(x.shape[1])
    h, c = state
    outputs: list[Tensor] = [h] * x.shape[1]
    before, recalled = [], []
    for t in order:
        before.append(h)
        recalled.append(functional.linear(h, weights[1], biases[1]))
        h, c = _cell(module, driven[:, t], recalled[-1], h, c)
        outputs[t] = h
    seen = [past.detach() for past in before]

    def finish(gradients: Sequence[Tensor], dim: int) -> Factors:
        g = torch.stack(list(gradients), dim=1)
        if weights[1].requires_grad:
            yield weights[1], OuterProductSum(torch.stack(seen, dim=1), g)
        if biases[1] is not None and biases[1].requires_grad:
            yield biases[1], Explicit(g.sum(dim=1))

    tape.watch(module, before, recalled, finish)
    return torch.stack(outputs, dim=1), (h, c)


def _cell(
    module: nn.RNNBase, driven: Tensor, recalled: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    if isinstance(module, nn.LSTM):
        into, forget, new, out = (driven + recalled).chunk(4, dim=-1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(into) * torch.tanh(new)
        return torch.sigmoid(out) * torch.tanh(c), c
    if isinstance(module, nn.GRU):
        (r0, z0, n0), (r1, z1, n1) = driven.chunk(3, dim=-1), recalled.chunk(3, dim=-1)
        new = torch.tanh(n0 + torch.sigmoid(r0 + r1) * n1)
        keep = torch.sigmoid(z0 + z1)
        return (1.0 - keep) * new + keep * h, c
    squash = torch.relu if module.mode == "RNN_RELU" else torch.tanh
    return squash(driven + recalled), c


DECOMPOSED.update(
    {nn.MultiheadAttention: attention, nn.LSTM: recurrent, nn.GRU: recurrent, nn.RNN: recurrent}
)
