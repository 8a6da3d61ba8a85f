"""Per-record gradients in factored form: what a layer leaves behind, from which norms and clipped sums are taken.

A layer's backward pass would contract its inputs with the gradients of its outputs over records and positions at once.
Here the contraction over records comes last: first over positions, which leaves one gradient per record; then their
norms; then one product with the clip factors. That is the same work in another order, plus the norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_GHOST = 4.0  # form no per-record gradient that is this many times larger than the Gram matrices it would save


class Factor(Protocol):
    """The per-record gradients of one parameter, in some form."""

    def squares(self) -> Tensor:
        """Squared norm of each record's gradient."""

    def add(self, weights: Tensor, total: Tensor) -> None:
        """Add the weighted sum of the records' gradients to ``total``, which has the parameter's shape."""


@dataclass
class Explicit:
    """One gradient per record: shape (records, *parameter)."""

    gradients: Tensor

    def __post_init__(self) -> None:
        self.gradients = _single_precision(self.gradients)

    def squares(self) -> Tensor:
        """Squared norms."""
        return _squares(self.gradients.flatten(1))

    def add(self, weights: Tensor, total: Tensor) -> None:
        """A matrix-vector product."""
        total.view(-1).addmv_(self.gradients.flatten(1).t(), weights.to(self.gradients.dtype))

    def explicit(self) -> Tensor:
        """The gradients themselves."""
        return self.gradients


@dataclass
class Outer:
    """Gradients sum_t g[:, t] x[:, t]^T of a weight: x (records, positions, in), g (records, positions, out)."""

    x: Tensor
    g: Tensor
    shape: torch.Size
    channels_last: bool = False
    """Whether x lists the channels of a kernel last: the weight's dimensions are then (out, *kernel, in)."""

    def __post_init__(self) -> None:
        self.x, self.g = _single_precision(self.x), _single_precision(self.g)
        self._formed: Tensor | None = None

    @property
    def _single(self) -> bool:
        return int(self.x.shape[1]) == 1

    @property
    def _ghost(self) -> bool:
        positions, rows, columns = self.x.shape[1], self.x.shape[2], self.g.shape[2]
        return not self.channels_last and bool(rows * columns > _GHOST * positions * (positions + rows + columns))

    def _form(self) -> Tensor:
        """The product over positions, one row per record, kept for the weighted sum."""
        if self._formed is None:
            self._formed = torch.bmm(self.g.transpose(1, 2), self.x).flatten(1)
        return self._formed

    def explicit(self) -> Tensor:
        """The gradients themselves."""
        if self.channels_last:
            return self._form().view(-1, self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 2)
        return self._form().view(-1, *self.shape)

    def squares(self) -> Tensor:
        """Norms factorise over a single position; else from the product, or from Gram matrices where that is less."""
        if self._single:
            return _squares(self.x[:, 0]) * _squares(self.g[:, 0])
        if self._ghost:
            inputs, outputs = torch.bmm(self.x, self.x.transpose(1, 2)), torch.bmm(self.g, self.g.transpose(1, 2))
            return (inputs * outputs).sum(dim=(1, 2))
        return _squares(self._form())

    def add(self, weights: Tensor, total: Tensor) -> None:
        """The usual product of a backward pass, weighted; or a matrix-vector product of what was kept."""
        weights = weights.to(self.g.dtype)
        if self.channels_last:
            whole = weights @ self._form()
            total.add_(whole.view(self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 1))
            return
        if self._formed is not None:
            total.view(-1).addmv_(self._formed.t(), weights)
            return
        scaled = self.g * weights.view(-1, 1, 1)
        total.view(self.g.shape[2], -1).addmm_(scaled.flatten(0, 1).t(), self.x.flatten(0, 1))


@dataclass
class Rows:
    """Gradients of an embedding: row index[:, t] receives g[:, t]; index (records, positions), g (..., width)."""

    index: Tensor
    g: Tensor
    shape: torch.Size

    def __post_init__(self) -> None:
        self.g = _single_precision(self.g)

    def explicit(self) -> Tensor:
        """Scattered into full tables; for the rare case that the table is used in other ways too."""
        tables = self.g.new_zeros(len(self.g), *self.shape)
        index = self.index.unsqueeze(-1).expand_as(self.g)
        return tables.scatter_add_(1, index, self.g)

    def squares(self) -> Tensor:
        """Positions with the same row add up: the Gram matrix of g where indices agree."""
        same = (self.index.unsqueeze(1) == self.index.unsqueeze(2)).to(self.g.dtype)
        return (torch.bmm(self.g, self.g.transpose(1, 2)) * same).sum(dim=(1, 2))

    def add(self, weights: Tensor, total: Tensor) -> None:
        """Scatter the weighted gradients."""
        scaled = self.g * weights.to(self.g.dtype).view(-1, 1, 1)
        total.index_add_(0, self.index.reshape(-1), scaled.flatten(0, 1))


Kind = Explicit | Outer | Rows


def merged(uses: Sequence[Kind]) -> Kind:
    """All uses of one parameter as one factor: products are laid end to end, anything else is added up."""
    if len(uses) == 1:
        return uses[0]
    products = [use for use in uses if isinstance(use, Outer)]
    if len(products) == len(uses):
        x, g = torch.cat([use.x for use in products], dim=1), torch.cat([use.g for use in products], dim=1)
        return Outer(x, g, products[0].shape, products[0].channels_last)
    total = uses[0].explicit()
    for use in uses[1:]:
        total = total + use.explicit()
    return Explicit(total)


def _squares(rows: Tensor) -> Tensor:
    """Squared norm of each row."""
    return torch.linalg.vector_norm(rows, dim=1).square()


def _single_precision(x: Tensor) -> Tensor:
    """Half precision raised to single: sums of many records need the digits."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
