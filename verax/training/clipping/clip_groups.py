"""Gradients of all clip-groups of a batch from one pass, for models that keep records apart.

A clip-group's gradient may depend on the records of that group only. Chains of linear layers and
activations treat records one by one, and so do the losses whose gradients are known in closed form;
then one forward and one backward pass serve all groups, and only the last product of each layer is
taken group by group. Small groups of other models that keep records apart come from the gradients
of their records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verax.training.checks.trial_runs import Losses, loss_per_record, rounding_tolerance
from verax.training.clipping.flat_buffer import same_parameters
from verax.training.data.microbatch import runs
from verax.training.gradients.factors import (
    Clippable,
    ConvolutionGradients,
    Explicit,
    Factor,
    OuterProduct,
    OuterProductSum,
    UnfoldedConvolution,
)
from verax.training.gradients.mlp import ChainPass, NotAChainError
from verax.training.gradients.norms import (
    PIECE,
    gram,
    norm_function,
    rounded_up,
    row_norms,
    single_precision,
)

# Numbers of the gradients that are held at once, unless one alone has more.
_TOGETHER = 2**20
# Gradients that are held at once, however small.
_MOST = 256
# Numbers of a cache line: a product is a fifth slower where its result begins within one.
_LINE = 16
# Numbers that may be formed for small groups.
_FORMED = 2**24
# Records between which Gram matrices are taken at once.
_NEIGHBOURS = 64


class GroupMeans:
    """The gradient of every clip-group's mean loss; to be used where autograd is off."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self._rows: _GradientRows | None = None
        self._checked: set[tuple[nn.Module | nn.Parameter, ...]] = set()
        self._not_a_chain = False

    def of(
        self, layers: list[nn.Module], batch: Any, sizes: list[int], parameters: list[nn.Parameter]
    ) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Flat gradients, one a column, and their norms, a few groups at a time.

        The first ``sizes[0]`` records of the batch are the first group, and so on. None if the loss
        uses the model in another way than as the chain that its ``layers`` are.
        """
        closed = getattr(self._losses, "gradient", None)
        if self._not_a_chain or closed is None:
            return None
        records = sum(sizes)
        passed = ChainPass(layers, records, closed=True)
        try:
            g = closed(passed, batch)
        except NotAChainError:
            g = None
        if g is None:
            return None
        if self._rows is None or not same_parameters(parameters, self._rows.parameters):
            self._rows = _GradientRows(parameters)
        key = *layers, *parameters
        if key not in self._checked:
            whole, _ = next(self._rows.gradients(passed, g, [records]))
            if not self._agrees(batch, records, parameters, whole[:, 0]):
                self._not_a_chain = True
                return None
            self._checked.add(key)
        return self._rows.gradients(passed, g, sizes)

    def _agrees(
        self, batch: Any, records: int, parameters: list[nn.Parameter], whole: Tensor
    ) -> bool:
        """Whether the gradient of the whole batch's mean loss is what plain autograd says."""
        with torch.enable_grad():
            loss = loss_per_record(self._losses(self._model, batch), records).mean()
        truth = torch.autograd.grad(loss, parameters, allow_unused=True)
        full = [
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, truth, strict=True)
        ]
        exact = torch.cat([g.float().flatten() for g in full])
        return bool(
            (whole - exact).norm() <= rounding_tolerance(parameters) * (exact.norm() + 1e-12)
        )


class _GradientRows:
    """Flat gradients of a few groups, one a row, with a view of each parameter in each row."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        sizes = [p.numel() for p in parameters]
        self._size = sum(sizes)
        self._most = min(max(_TOGETHER // self._size, 1), _MOST)
        padded = -(-self._size // PIECE) * PIECE if self._size > PIECE else self._size
        # not a multiple of a page: rows would share places in the cache
        between = -(-padded // _LINE) * _LINE + _LINE
        self._rows = torch.zeros(self._most, between, device=parameters[0].device)[:, :padded]
        self._ones = self._rows.new_ones(0)
        self._reached: list[int] = []
        self._firsts: dict[int, tuple[Tensor, Callable[[], Tensor]]] = {}
        self._views = {
            p: [row.view_as(p) for row in columns]
            for p, columns in zip(
                parameters, self._rows[:, : self._size].split(sizes, dim=1), strict=True
            )
        }

    def gradients(
        self, passed: ChainPass, g: Tensor, sizes: list[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Some at a time, with their norms; parameters that no layer uses have zeros."""
        cut: list[tuple[Any, ...]] = [
            (
                self._views.get(layer.weight),
                self._views.get(layer.bias),
                *self._cut(sizes, _flat_positions(x), _flat_positions(g)),
            )
            for layer, x, g in passed.backward(g)
        ]
        reached = [id(views) for use in cut for views in use[:2]]
        # what was reached before, and is not any more, holds another batch's gradients
        if reached != self._reached:
            self._rows.zero_()
            self._reached = reached
        for first in range(0, len(sizes), self._most):
            some = sizes[first : first + self._most]
            begun: set[int] = set()
            for weight, bias, xs, outs, ones in cut:
                old = float(id(weight) in begun), float(id(bias) in begun)
                for row, size in enumerate(some):
                    group, share = first + row, 1.0 / size
                    if weight is not None:
                        weight[row].addmm_(outs[group], xs[group], beta=old[0], alpha=share)
                    if bias is not None:
                        bias[row].addmv_(outs[group], ones[group], beta=old[1], alpha=share)
                begun.update((id(weight), id(bias)))
            columns, norms = self._columns_and_norms(len(some))
            yield columns, norms()

    def _columns_and_norms(self, count: int) -> tuple[Tensor, Callable[[], Tensor]]:
        """So many rows as columns, and what takes their norms."""
        if count not in self._firsts:
            rows = self._rows[:count]
            self._firsts[count] = rows[:, : self._size].t(), norm_function(rows)
        return self._firsts[count]

    def _cut(self, sizes: list[int], x: Tensor, g: Tensor) -> tuple[Sequence[Tensor], ...]:
        """The inputs, the gradients of the outputs and a vector of ones for every group."""
        if self._ones.shape[0] < x.shape[0]:
            self._ones = self._rows.new_ones(x.shape[0])
        if len(sizes) == 1:
            return (x,), (g.t(),), (self._ones[: x.shape[0]],)
        each = x.shape[0] // sum(sizes)
        cuts = sizes if each == 1 else [each * size for size in sizes]
        ones = {size: self._ones[:size] for size in set(cuts)}
        return (
            torch.split_with_sizes(x, cuts),
            torch.split_with_sizes(g.t(), cuts, 1),
            [ones[size] for size in cuts],
        )


def group_gradients(
    records: Mapping[nn.Parameter, Factor], sizes: list[int]
) -> dict[nn.Parameter, Clippable]:
    """The mean gradients of small groups of independent records, from their gradients.

    The first ``sizes[0]`` records are the first group, and so on.
    """
    inverse = np.diag(1.0 / np.asarray(sizes, dtype=np.float32))
    shares = torch.from_numpy(np.repeat(inverse, sizes, axis=1))
    return {
        p: _group_gradient(p, factor, sizes, shares.to(p.device)) for p, factor in records.items()
    }


def too_large_to_form(parameters: list[nn.Parameter], sizes: list[int], most: int) -> bool:
    """Whether the gradients of so many groups, ``most`` records at a time, are too much to form."""
    numbers_formed = sum(p.numel() for p in parameters if not _unformed(p, sizes))
    return bool(numbers_formed * min(len(sizes), most) > _FORMED)


def any_unformed(parameters: list[nn.Parameter], sizes: list[int]) -> bool:
    """Whether there is a weight whose gradients of groups need not be formed."""
    return any(_unformed(p, sizes) for p in parameters)


def _unformed(parameter: nn.Parameter, sizes: list[int]) -> bool:
    """Whether Gram matrices of neighbours are less work than this weight's gradients."""
    if parameter.dim() != 2 or max(sizes) > _NEIGHBOURS:
        return False
    return bool(_NEIGHBOURS * sum(parameter.shape) <= parameter.numel() / 2)


def _group_gradient(
    parameter: nn.Parameter, factor: Factor, sizes: list[int], shares: Tensor
) -> Clippable:
    match factor:
        case ConvolutionGradients():
            return factor.with_rows(shares @ factor.rows)
        case OuterProduct() if _unformed(parameter, sizes):
            return _UnformedMeans(factor, sizes, shares)
        case UnfoldedConvolution():
            rows = _products(factor.x, factor.g, sizes).flatten(1)
            return ConvolutionGradients(rows, row_norms(rows), factor.product_shape, factor.order)
        case OuterProduct():
            return Explicit(_products(factor.g.gradients, factor.x, sizes))
        case OuterProductSum():
            return Explicit(_products(factor.g, factor.x, sizes))
        case _:
            rows = factor.explicit()
            return Explicit((shares @ rows.flatten(1)).view(len(sizes), *rows.shape[1:]))


def _products(left: Tensor, right: Tensor, sizes: list[int]) -> Tensor:
    """For each group the mean over its records of left^T right."""
    found = left.new_empty(len(sizes), left.shape[-1], right.shape[-1])
    for row, a, b, size in zip(found, left.split(sizes), right.split(sizes), sizes, strict=True):
        torch.addmm(
            row, _flat_positions(a).t(), _flat_positions(b), beta=0.0, alpha=1.0 / size, out=row
        )
    return found


@dataclass
class _UnformedMeans:
    """Mean gradients of a weight over groups, not formed; ``shares`` are (groups, records)."""

    each: OuterProduct
    sizes: list[int]
    shares: Tensor

    def squares(self) -> Tensor:
        """From Gram matrices of the records of some groups at a time."""
        found, group, record = [], 0, 0
        for some in runs(self.sizes, _NEIGHBOURS):
            rows = slice(record, record + sum(some))
            x, g, share = (
                self.each.x[rows],
                self.each.g.gradients[rows],
                self.shares[group : group + len(some), rows],
            )
            products = gram(x).mul_(gram(g))
            each = products.diagonal().sqrt()
            found.append(
                rounded_up((share @ products).mul_(share).sum(dim=1), (share @ each).square_())
            )
            group, record = group + len(some), rows.stop
        return torch.cat(found)

    def add(self, weights: Tensor, total: Tensor) -> None:
        """The usual product of a backward pass, every record weighted as its group."""
        self.each.add(weights @ self.shares, total)


def _flat_positions(x: Tensor) -> Tensor:
    x = single_precision(x)
    return x if x.dim() == 2 else x.flatten(0, -2)
