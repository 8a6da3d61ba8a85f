"""Per-example gradients of models without layer rules: by ``torch.func``, or one by one."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax.training.checks.trial_runs import Losses, loss_per_record
from verax.training.data.containers import has_column
from verax.training.data.microbatch import has_entries, part
from verax.training.gradients.factors import AnyFactor, Explicit, trainable

FoundGradients = dict[nn.Parameter, AnyFactor]
"""The per-example gradients of every trainable parameter."""


class FunctionalGradients:
    """Differentiates the loss of one record at a time, whatever the model does."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self.not_vectorisable = False

    def factors(self, batch: Any, records: int) -> FoundGradients:
        """One record at a time, vectorised by torch.func if it can be."""
        if not self.not_vectorisable and not has_column(batch):
            try:
                return self._vectorised(batch, records)
            except (RuntimeError, NotImplementedError, ValueError):
                # data-dependent control flow, or an operation that cannot be vectorised
                self.not_vectorisable = True
        return self.one_by_one(batch, records)

    def _vectorised(self, batch: Any, records: int) -> FoundGradients:
        whole = _ModelWithLoss(self._model, self._losses)
        named = {name: p for name, p in whole.named_parameters() if p.requires_grad}

        def one(values: dict[str, Tensor], record: Any) -> Tensor:
            single = pytree.tree_map(
                lambda x, dim: x if dim is None else x.unsqueeze(0), record, dims
            )
            return loss_per_record(torch.func.functional_call(whole, values, (single,)), 1)[0]

        values = {name: p.detach() for name, p in named.items()}
        dims = pytree.tree_map(lambda x: 0 if has_entries(x, records) else None, batch)
        derivative = torch.func.grad(one)
        with warnings.catch_warnings():
            # that some operation is vectorised by a loop is no concern of the caller's
            warnings.simplefilter("ignore")
            gradients = torch.func.vmap(derivative, in_dims=(None, dims), randomness="different")(
                values, batch
            )
        return {named[name]: Explicit(g.detach()) for name, g in gradients.items()}

    def one_by_one(self, batch: Any, records: int) -> FoundGradients:
        """One backward pass for each record."""
        parameters = [p for p in self._model.parameters() if trainable(p)]
        rows: list[list[Tensor]] = [[] for _ in parameters]
        for i in range(records):
            single = part(batch, slice(i, i + 1), records)
            with torch.enable_grad():
                loss = loss_per_record(self._losses(self._model, single), 1)[0]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for row, g, parameter in zip(rows, gradients, parameters, strict=True):
                row.append(torch.zeros_like(parameter) if g is None else g.to_dense())
        return {p: Explicit(torch.stack(row)) for p, row in zip(parameters, rows, strict=True)}


class _ModelWithLoss(nn.Module):
    """The model and its loss as one module, for functional calls."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Tensor:
        return self._losses(self.model, batch)
