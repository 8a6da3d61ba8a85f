"""Per-example gradients in factored form, from which norms and clipped sums are taken.

A layer's backward pass would contract its inputs with the gradients of its outputs over records and
positions at once. Here the contraction over records comes last: first over positions, which leaves
one gradient per record; then their norms; then one product with the clip factors. That is the same
work in another order, plus the norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from verax.training.gradients.norms import (
    double_gram_squares,
    gram,
    gram_squares,
    rounded_up,
    row_norms,
    row_squares,
    single_precision,
)

# Bytes of numbers raised to double precision at once: they are used while in the cache.
_NEAR = 2**21
# No per-example gradient is formed that is this many times larger than the Gram matrices it saves.
_GHOST = 4.0


def trainable(parameter: Tensor | None) -> bool:
    """Whether a layer has this parameter and it is being trained."""
    return parameter is not None and parameter.requires_grad


def ghost_is_cheaper(positions: int, rows: int, columns: int, times: float) -> bool:
    """Whether a product over positions is ``times`` larger than its Gram matrices."""
    return rows * columns > times * positions * (positions + rows + columns)


class Clippable(Protocol):
    """The gradients of one parameter, of records or of clip-groups, in some form."""

    def squares(self) -> Tensor:
        """Squared norm of each gradient."""

    def add(self, weights: Tensor, total: Tensor) -> None:
        """Add the weighted sum of the gradients to ``total``, which has the parameter's shape."""


class Factor(Clippable, Protocol):
    """The per-record gradients of one parameter, as a layer leaves them behind."""

    def explicit(self) -> Tensor:
        """The gradients themselves, (records, *parameter)."""

    def numbers_formed(self) -> int:
        """How many numbers it makes beyond those the layer left behind."""


@dataclass
class Explicit:
    """One gradient per record: shape (records, *parameter)."""

    gradients: Tensor

    def __post_init__(self) -> None:
        self.gradients = single_precision(self.gradients)
        self._squares: Tensor | None = None

    def squares(self) -> Tensor:
        """Squared norms, kept: a bias shares them with the weight beside it."""
        if self._squares is None:
            self._squares = row_squares(_flat_rows(self.gradients))
        return self._squares

    def add(self, weights: Tensor, total: Tensor) -> None:
        """A matrix-vector product."""
        total.view(-1).addmv_(_flat_rows(self.gradients).t(), weights)

    def numbers_formed(self) -> int:
        return int(self.gradients.numel())

    def explicit(self) -> Tensor:
        return self.gradients


@dataclass
class ConvolutionGradients:
    """Gradients of a convolution's weight and their norms, in an order of their own."""

    rows: Tensor
    norms: Tensor
    product_shape: list[int]
    order: list[int]
    """Where in a row the weight's own dimensions lie."""

    def with_rows(self, rows: Tensor) -> ConvolutionGradients:
        """Other gradients of the same weight."""
        return ConvolutionGradients(rows, row_norms(rows), self.product_shape, self.order)

    def squares(self) -> Tensor:
        return self.norms.square()

    def add(self, weights: Tensor, total: Tensor) -> None:
        """A matrix-vector product, put in the weight's own order."""
        total.add_((weights @ self.rows).view(self.product_shape).permute(self.order))

    def numbers_formed(self) -> int:
        return int(self.rows.numel())

    def explicit(self) -> Tensor:
        return self.rows.view(-1, *self.product_shape).permute(0, *(1 + at for at in self.order))


@dataclass
class UnfoldedConvolution:
    """Gradients of a convolution's weight, not formed: patches and output gradients.

    x is (records, places, looks), g (records, places, out); the order is the product's.
    """

    x: Tensor
    g: Tensor
    product_shape: list[int]
    order: list[int]

    def squares(self) -> Tensor:
        """From Gram matrices in double precision, in which cancelling places lose nothing."""
        few = max(_NEAR // (8 * self.x.shape[1] * (self.x.shape[2] + self.g.shape[2])), 1)
        found = [
            double_gram_squares(x.double(), g.double())
            for x, g in zip(self.x.split(few), self.g.split(few), strict=True)
        ]
        return torch.cat(found).float()

    def add(self, weights: Tensor, total: Tensor) -> None:
        """The usual product of a backward pass, weighted, put in the weight's own order."""
        scaled = self.g * weights.view(-1, 1, 1)
        summed = self.x.flatten(0, 1).t() @ scaled.flatten(0, 1)
        total.add_(summed.view(self.product_shape).permute(self.order))

    def numbers_formed(self) -> int:
        """What places look at."""
        return int(self.x.numel())

    def explicit(self) -> Tensor:
        rows = torch.bmm(self.x.transpose(1, 2), self.g)
        return rows.view(-1, *self.product_shape).permute(0, *(1 + at for at in self.order))


@dataclass
class OuterProduct:
    """Gradients g x^T of a weight: x (records, in), g (records, out)."""

    x: Tensor
    g: Explicit

    def __post_init__(self) -> None:
        self.x = single_precision(self.x)

    def squares(self) -> Tensor:
        """The norm factorises."""
        return row_squares(self.x).mul_(self.g.squares())

    def add(self, weights: Tensor, total: Tensor) -> None:
        """The usual product of a backward pass, weighted."""
        total.addmm_((self.g.gradients * weights.unsqueeze(1)).t(), self.x)

    def numbers_formed(self) -> int:
        return 0

    def explicit(self) -> Tensor:
        return self.g.gradients.unsqueeze(2) * self.x.unsqueeze(1)


@dataclass
class OuterProductSum:
    """Gradients sum_t g[:, t] x[:, t]^T; x and g are (records, positions, in or out)."""

    x: Tensor
    g: Tensor

    def __post_init__(self) -> None:
        self.x, self.g = single_precision(self.x), single_precision(self.g)
        self._formed: Tensor | None = None

    @property
    def _ghost(self) -> bool:
        return ghost_is_cheaper(self.x.shape[1], self.x.shape[2], self.g.shape[2], _GHOST)

    @property
    def _input_first(self) -> bool:
        """Whether the product is (in, out): 10 to 15 % faster with the longer side last."""
        return bool(self.g.shape[2] > self.x.shape[2])

    def _form_gradients(self) -> Tensor:
        """The product over positions, kept for the weighted sum."""
        if self._formed is None:
            left, right = (self.x, self.g) if self._input_first else (self.g, self.x)
            self._formed = torch.bmm(left.transpose(1, 2), right)
        return self._formed

    def numbers_formed(self) -> int:
        """The product over positions, if it is formed."""
        return 0 if self._ghost else len(self.x) * self.x.shape[2] * self.g.shape[2]

    def explicit(self) -> Tensor:
        return (
            self._form_gradients().transpose(1, 2) if self._input_first else self._form_gradients()
        )

    def squares(self) -> Tensor:
        """From the product over positions, or from Gram matrices where that is less."""
        if self._ghost:
            return gram_squares(gram(self.x), gram(self.g))
        return row_squares(self._form_gradients().flatten(1))

    def add(self, weights: Tensor, total: Tensor) -> None:
        """A matrix-vector product if gradients were formed, else a weighted backward product."""
        if self._formed is not None and self._input_first:
            total.add_(
                (weights @ self._formed.flatten(1)).view(self._formed.shape[1:]).t().contiguous()
            )
            return
        if self._formed is not None:
            total.view(-1).addmv_(self._formed.flatten(1).t(), weights)
            return
        scaled = self.g * weights.view(-1, 1, 1)
        total.addmm_(scaled.flatten(0, 1).t(), self.x.flatten(0, 1))


@dataclass
class EmbeddingRows:
    """Gradients of an embedding: row index[:, t] receives g[:, t].

    index is (records, positions), g (records, positions, width).
    """

    index: Tensor
    g: Tensor
    shape: torch.Size

    def __post_init__(self) -> None:
        self.g = single_precision(self.g)

    def numbers_formed(self) -> int:
        """A Gram matrix per record."""
        return int(self.index.numel() * self.index.shape[1])

    def explicit(self) -> Tensor:
        """Full tables, for the rare case that the table is used in other ways, too."""
        tables = self.g.new_zeros(len(self.g), *self.shape)
        index = self.index.unsqueeze(-1).expand_as(self.g)
        return tables.scatter_add_(1, index, self.g)

    def squares(self) -> Tensor:
        """Positions with the same row add up: the Gram matrix of g where indices agree."""
        same = (self.index.unsqueeze(1) == self.index.unsqueeze(2)).to(self.g.dtype)
        squares = (gram(self.g) * same).sum(dim=(1, 2))
        each = row_norms(self.g.flatten(0, 1)).view(*self.index.shape, 1)
        return rounded_up(squares, (torch.bmm(same, each) * each).sum(dim=(1, 2)))

    def add(self, weights: Tensor, total: Tensor) -> None:
        """Scatter the weighted gradients."""
        scaled = self.g * weights.view(-1, 1, 1)
        total.index_add_(0, self.index.reshape(-1), scaled.flatten(0, 1))


AnyFactor = (
    Explicit
    | ConvolutionGradients
    | UnfoldedConvolution
    | OuterProduct
    | OuterProductSum
    | EmbeddingRows
)


def record_count(factor: AnyFactor) -> int:
    """How many records it has gradients of."""
    match factor:
        case Explicit(gradients=rows) | ConvolutionGradients(rows=rows) | EmbeddingRows(index=rows):
            return len(rows)
        case UnfoldedConvolution(x=x) | OuterProduct(x=x) | OuterProductSum(x=x):
            return len(x)


def merge_uses(uses: Sequence[AnyFactor]) -> AnyFactor:
    """All uses of one parameter as one factor: concatenated products, or a sum."""
    if len(uses) == 1:
        return uses[0]
    products = [
        OuterProductSum(use.x.unsqueeze(1), use.g.gradients.unsqueeze(1))
        if isinstance(use, OuterProduct)
        else use
        for use in uses
        if isinstance(use, OuterProduct | OuterProductSum)
    ]
    if len(products) == len(uses):
        return OuterProductSum(
            torch.cat([use.x for use in products], dim=1),
            torch.cat([use.g for use in products], dim=1),
        )
    total = uses[0].explicit()
    for use in uses[1:]:
        total = total + use.explicit()
    return Explicit(total)


def _flat_rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(len(x), -1)
