"""Gradients of all clip-groups of a batch from one pass, for models that keep records apart.

A clip-group's gradient may depend on the records of that group only. Chains of linear layers and activations treat
records one by one, and so do the losses whose gradients are known in closed form; then one forward and one backward
pass serve all groups, and only the last product of each layer is taken group by group. Small groups of other models
that keep records apart come from the gradients of their records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verax.training.chain import NotAChain, Pass, chain_of
from verax.training.data import runs
from verax.training.factors import Clippable, Explicit, Factor, Kernels, Outer, Single, never_short, single_precision
from verax.training.flat import same
from verax.training.records import Losses, one_each, rounding_of

_TOGETHER = 2**20  # numbers of the gradients that are held at once, unless one alone has more
_FORMED = 2**24  # numbers that may be formed for small groups
_NEIGHBOURS = 64  # records between which Gram matrices are taken at once


class GroupMeans:
    """The gradient of every clip-group's mean loss; to be used where autograd is off."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self._rows: _Rows | None = None
        self._checked: set[tuple[nn.Module | nn.Parameter, ...]] = set()
        self._knotted = False

    def of(self, batch: Any, sizes: list[int], parameters: list[nn.Parameter]) -> Iterator[Tensor] | None:
        """Flat gradients, some groups at a time in memory that is used again; None if the model is no plain chain.

        The first ``sizes[0]`` records of the batch are the first group, and so on.
        """
        layers, closed = chain_of(self._model), getattr(self._losses, "gradient", None)
        if self._knotted or layers is None or closed is None:
            return None
        records = sum(sizes)
        passed = Pass(layers, records, closed=True)
        try:
            g = closed(passed, batch)
        except NotAChain:
            g = None
        if g is None:
            return None
        if self._rows is None or not same(parameters, self._rows.parameters):
            self._rows = _Rows(parameters)
        key = *layers, *parameters
        if key not in self._checked:
            whole = next(self._rows.gradients(passed, g, [records]))
            if not self._agrees(batch, records, parameters, whole[0]):
                self._knotted = True
                return None
            self._checked.add(key)
        return self._rows.gradients(passed, g, sizes)

    def _agrees(self, batch: Any, records: int, parameters: list[nn.Parameter], whole: Tensor) -> bool:
        """Whether the gradient of the whole batch's mean loss is what plain autograd says."""
        with torch.enable_grad():
            loss = one_each(self._losses(self._model, batch), records).mean()
        truth = torch.autograd.grad(loss, parameters, allow_unused=True)
        full = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, truth, strict=True)]
        exact = torch.cat([g.float().flatten() for g in full])
        return bool((whole - exact).norm() <= rounding_of(parameters) * (exact.norm() + 1e-12))


class _Rows:
    """Flat gradients of a few groups, one a row, with a view of each parameter in each row."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        sizes = [p.numel() for p in parameters]
        self._most = max(_TOGETHER // sum(sizes), 1)
        self._rows = torch.zeros(self._most, sum(sizes), device=parameters[0].device)
        self._ones = self._rows.new_ones(0)
        self._views = {
            p: [row.view_as(p) for row in columns]
            for p, columns in zip(parameters, self._rows.split(sizes, dim=1), strict=True)
        }

    def gradients(self, passed: Pass, g: Tensor, sizes: list[int]) -> Iterator[Tensor]:
        """Some rows at a time; parameters that no layer uses keep the zeros they were made with."""
        uses = [(layer, _flat(x), _flat(g)) for layer, x, g in passed.backward(g)]
        ones = max((x.shape[0] for _, x, _ in uses), default=0)
        if self._ones.shape[0] < ones:
            self._ones = self._rows.new_ones(ones)
        cut = [(layer, *_cut(sizes, x, out.t(), self._ones[: x.shape[0]])) for layer, x, out in uses]
        for first in range(0, len(sizes), self._most):
            these = range(first, min(first + self._most, len(sizes)))
            begun: set[Tensor | None] = set()
            for layer, xs, outs, ones in cut:
                weight, bias = self._views.get(layer.weight), self._views.get(layer.bias)
                old = float(layer.weight in begun), float(layer.bias in begun)
                for row, group in enumerate(these):
                    share = 1.0 / sizes[group]
                    if weight is not None:
                        weight[row].addmm_(outs[group], xs[group], beta=old[0], alpha=share)
                    if bias is not None:
                        bias[row].addmv_(outs[group], ones[group], beta=old[1], alpha=share)
                begun.update((layer.weight, layer.bias))
            yield self._rows[: len(these)]


def of_groups(records: Mapping[nn.Parameter, Factor], sizes: list[int]) -> dict[nn.Parameter, Clippable]:
    """The mean gradients of small groups from their records' gradients, for models that keep records apart.

    The first ``sizes[0]`` records are the first group, and so on.
    """
    inverse = np.diag(1.0 / np.asarray(sizes, dtype=np.float32))
    shares = torch.from_numpy(np.repeat(inverse, sizes, axis=1))
    return {p: _of_groups(p, factor, sizes, shares.to(p.device)) for p, factor in records.items()}


def too_many(parameters: list[nn.Parameter], sizes: list[int], most: int) -> bool:
    """Whether the gradients of so many groups, ``most`` records at a time, are too much to form."""
    formed = sum(p.numel() for p in parameters if p.dim() != 2 or not _unformed(p, sizes))
    return bool(formed * min(len(sizes), most) > _FORMED)


def _unformed(weight: nn.Parameter, sizes: list[int]) -> bool:
    """Whether Gram matrices of neighbours are less work than the gradients of all groups."""
    return max(sizes) <= _NEIGHBOURS and _NEIGHBOURS * (weight.shape[0] + weight.shape[1]) <= weight.numel() / 2


def _of_groups(parameter: nn.Parameter, factor: Factor, sizes: list[int], shares: Tensor) -> Clippable:
    match factor:
        case Kernels():
            return factor.of(shares @ factor.rows)
        case Single() if _unformed(parameter, sizes):
            return _Means(factor, sizes, shares)
        case Single() | Outer():
            x, g = (factor.x, factor.g.gradients) if isinstance(factor, Single) else (factor.x, factor.g)
            pairs = zip(x.split(sizes), g.split(sizes), sizes, strict=True)
            return Explicit(torch.stack([_flat(gs).t() @ _flat(xs) / size for xs, gs, size in pairs]))
        case _:
            rows = factor.explicit()
            return Explicit((shares @ rows.flatten(1)).view(len(sizes), *rows.shape[1:]))


@dataclass
class _Means:
    """Mean gradients of a weight over groups, none of which is formed; ``shares`` are (groups, records)."""

    each: Single
    sizes: list[int]
    shares: Tensor

    def squares(self) -> Tensor:
        """From Gram matrices of the records of some groups at a time."""
        found, group, record = [], 0, 0
        for some in runs(self.sizes, _NEIGHBOURS):
            rows = slice(record, record + sum(some))
            x, g, share = self.each.x[rows], self.each.g.gradients[rows], self.shares[group : group + len(some), rows]
            gram = (x @ x.t()).mul_(g @ g.t())
            each = gram.diagonal().sqrt()
            found.append(never_short((share @ gram).mul_(share).sum(dim=1), (share @ each).square_()))
            group, record = group + len(some), rows.stop
        return torch.cat(found)

    def add(self, weights: Tensor, total: Tensor) -> None:
        """The usual product of a backward pass, every record weighted as its group."""
        self.each.add(weights @ self.shares, total)


def _cut(sizes: list[int], x: Tensor, out: Tensor, ones: Tensor) -> tuple[Sequence[Tensor], ...]:
    """The rows of every group; each record has as many as any other."""
    if len(sizes) == 1:
        return (x,), (out,), (ones,)
    rows = x.shape[0] // sum(sizes)
    cuts = [rows * size for size in sizes]
    return torch.split_with_sizes(x, cuts), torch.split_with_sizes(out, cuts, 1), torch.split_with_sizes(ones, cuts)


def _flat(x: Tensor) -> Tensor:
    x = single_precision(x)
    return x if x.dim() == 2 else x.flatten(0, -2)
