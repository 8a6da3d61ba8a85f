"""Attention as products that are noted on the tape, with equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from verax.training.gradients.factors import Explicit
from verax.training.gradients.layer_rules.base import Factors, Tape, decomposition, pad_rows


@decomposition(nn.MultiheadAttention)
def attention(tape: Tape, module: nn.MultiheadAttention) -> Callable[..., Any] | None:
    """nn.MultiheadAttention; None for its rarer forms, which are left to torch.func."""
    if module.bias_k is not None or module.add_zero_attn:
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
            context = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            context = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        context = context.transpose(1, 2).flatten(2)
        out = tape.linear(module, context, module.out_proj.weight, module.out_proj.bias)
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
            q, k, v = tape.linear(module, query, weight, bias).chunk(3, dim=-1)
            return q, k, v
        q, k, v = (
            tape.linear(module, x, weight, bias, rows)
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
        y = tape.linear(module, x, weight, None)
        parts.append(y if bias is None else _add_bias(tape, module, y, bias, rows))
    return parts[0], parts[1], parts[2]


def _add_bias(tape: Tape, module: nn.Module, x: Tensor, bias: nn.Parameter, rows: slice) -> Tensor:
    """``x + bias[rows]``, noted on the tape."""
    y = x + bias[rows]

    def backward(gradients: Sequence[Tensor], dim: int) -> Factors:
        if bias.requires_grad:
            yield bias, Explicit(pad_rows(gradients[0].sum(dim=1), rows, len(bias)))

    tape.record(module, [], [y], backward)
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
