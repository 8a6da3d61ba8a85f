"""Norms of per-example gradients, from rows and from Gram matrices, with their rounding bounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# More than single precision can make of a product of vectors, as a part of their norms' product.
ROUNDING = 2.0**-16
# Of the clip norm, left free for the rounding of norms, which are within half of it, and weights.
ROOM = ROUNDING / 2.0
# Numbers whose squares are added up in one go.
PIECE = 1024
# Numbers whose norms are taken with numpy, where it can reach them.
_MANY = 2**17
# More than the squares of 2^26 numbers can be of which each became zero.
_TINY = 2.0**-100
# Numbers of a product that single precision may add up within ROUNDING, with room to spare.
_WIDE = 2**12


def row_norms(rows: Tensor) -> Tensor:
    """The norm of each row."""
    return norm_function(rows)()


def norm_function(rows: Tensor) -> Callable[[], Tensor]:
    """What takes the norm of each row, now or whenever other numbers were written there.

    It is a norm of norms, since what single precision adds up in one go must be short: a plain norm
    of ten million numbers can be off by a hundredth, which is far more than ROUNDING.
    """
    size = rows.shape[1]
    if size <= 2 * PIECE:
        return partial(torch.linalg.vector_norm, rows, dim=1)
    rest = size % PIECE
    whole = (rows[:, : size - rest] if rest else rows).view(len(rows), size // PIECE, PIECE)
    many = rows.is_cpu and rows.numel() >= _MANY
    norms = (
        partial(_norms_by_numpy, whole.detach().numpy())
        if many
        else partial(_norms_by_pieces, whole)
    )
    if not rest:
        return norms
    last = partial(torch.linalg.vector_norm, rows[:, size - rest :], dim=1)
    return lambda: torch.hypot(norms(), last())


def _norms_by_pieces(rows: Tensor) -> Tensor:
    """The norm of each row, (rows, pieces, PIECE)."""
    return row_norms(torch.linalg.vector_norm(rows, dim=2))


def _norms_by_numpy(rows: NDArray[np.float32]) -> Tensor:
    """The same by numpy, which takes half the time for many numbers."""
    with np.errstate(all="ignore"):  # what is too large is infinite, and refused as that
        squares = np.vecdot(rows, rows).sum(axis=1, dtype=np.float64)
    return torch.from_numpy(np.sqrt(squares).astype(np.float32))


def row_squares(rows: Tensor) -> Tensor:
    """Squared norm of each row, never zero: underflow may meet large factors in a product."""
    norms = row_norms(rows)
    return torch.addcmul(constant(_TINY, norms.dtype, norms.device), norms, norms)


@cache
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor, made once."""
    return torch.tensor(value, dtype=dtype, device=device)


def gram(x: Tensor) -> Tensor:
    """The products of all pairs of rows; wide rows are added up in double precision."""
    if x.shape[-1] <= _WIDE:
        return x @ x.transpose(-1, -2)
    total = x.new_zeros(*x.shape[:-1], x.shape[-2], dtype=torch.float64)
    for piece in x.split(_WIDE, dim=-1):
        total += piece @ piece.transpose(-1, -2)
    return total.float()


def gram_squares(inputs: Tensor, outputs: Tensor, rounding: float = ROUNDING) -> Tensor:
    """Squared norms of sum_t g_t x_t^T, from the Gram matrices of x and g."""
    row_norms = (inputs.diagonal(dim1=-2, dim2=-1) * outputs.diagonal(dim1=-2, dim2=-1)).sqrt()
    return rounded_up(
        (inputs * outputs).sum(dim=(-2, -1)), row_norms.sum(dim=-1).square(), rounding
    )


def double_gram_squares(x: Tensor, g: Tensor) -> Tensor:
    """``gram_squares`` in double precision, with an error of 2^-53 for each number added."""
    inputs, outputs = x @ x.transpose(1, 2), g @ g.transpose(1, 2)
    added = x.shape[2] + g.shape[2] + x.shape[1] ** 2 + 8
    return gram_squares(inputs, outputs, added * 2.0**-53)


def rounded_up(squares: Tensor, most: Tensor, rounding: float = ROUNDING) -> Tensor:
    """Squared norms from Gram matrices plus their rounding; ``most`` if nothing cancels.

    Where the terms cancel, the sum of a Gram matrix is small and its rounding is not: that goes
    with ``most``. Without it a record whose parts are 10,000 clip norms long and cancel could pass
    with nine of them.
    """
    return squares.clamp_(min=0.0).add_(most, alpha=rounding)


def single_precision(x: Tensor) -> Tensor:
    """Half precision raised to single, for sums of many records; double lowered to it."""
    return x if x.dtype is torch.float32 else x.float()
