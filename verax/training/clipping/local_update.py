"""What a clip-group computes before clipping: a gradient, or the displacement of local steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verax import checks
from verax.training.checks.trial_runs import Losses, mean_loss, require_gradient
from verax.training.data.microbatch import slices

Inner = Callable[[nn.Module, Losses, Any, int, list[nn.Parameter]], list[Tensor]]
"""From the model, the losses, a clip-group, the number of its records and the parameters to its
aggregate.

It may move weights and buffers: they are put back.
"""


@dataclass(frozen=True)
class MeanGradient:
    """The gradient of the clip-group's mean loss, in micro-batches or (None) all at once."""

    micro_batch: int | None = None

    def __call__(
        self,
        model: nn.Module,
        losses: Losses,
        batch: Any,
        records: int,
        parameters: list[nn.Parameter],
    ) -> list[Tensor]:
        """One backward pass for each micro-batch."""
        total: list[Tensor | None] = [None] * len(parameters)
        for piece, size in slices(batch, self.micro_batch or records, records):
            with torch.enable_grad():
                loss = require_gradient(mean_loss(losses(model, piece), size) * (size / records))
            found = [
                g.to_dense() if g is not None and g.is_sparse else g
                for g in torch.autograd.grad(loss, parameters, allow_unused=True)
            ]
            total = [
                g if old is None else old if g is None else old + g
                for old, g in zip(total, found, strict=True)
            ]
        return [
            torch.zeros_like(p) if g is None else g for g, p in zip(total, parameters, strict=True)
        ]


@dataclass(frozen=True)
class LocalSteps:
    """Steps of a local optimiser on the clip-group, whose displacement is clipped.

    Args:
        optimizer: from parameters to a fresh ``torch.optim`` optimiser, such as ``lambda p: Adam(p,
            0.01)``.
        steps: how many steps, each on the whole clip-group.
    """

    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    steps: int = 1

    def __post_init__(self) -> None:
        checks.count("steps", self.steps)

    def __call__(
        self,
        model: nn.Module,
        losses: Losses,
        batch: Any,
        records: int,
        parameters: list[nn.Parameter],
    ) -> list[Tensor]:
        """Weights before minus weights after; the clipper puts them back."""
        before = [p.detach().clone() for p in parameters]
        local = self.optimizer(parameters)
        if local is self.optimizer(parameters) or any(
            float(state.get("step", 0)) > 0 or "momentum_buffer" in state
            for state in local.state.values()
        ):
            raise ValueError(
                "optimizer must be made anew for every clip-group, got one "
                f"({type(local).__name__}) for several: what it remembers of other records would "
                "not be protected; use a function such as lambda p: torch.optim.Adam(p, 0.01)"
            )
        for _ in range(self.steps):
            local.zero_grad()
            with torch.enable_grad():
                require_gradient(mean_loss(losses(model, batch), records)).backward()
            local.step()
        return [old - p.detach() for old, p in zip(before, parameters, strict=True)]
