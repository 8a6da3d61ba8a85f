"""A worker: clipped sums of records at given weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verax.federated.coins import Numbers
from verax.federated.messages import Values
from verax.federated.plan import Plan
from verax.mechanism import Clipping, Mixed
from verax.training.checks.validators import refuse_inner, refuse_loss, refuse_model
from verax.training.clipping.clipper import MICRO_BATCH, Clipper, NotFiniteError
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.clipping.local_update import Inner
from verax.training.data.dataset import Data
from verax.training.data.microbatch import part, runs
from verax.training.gradients.loss import Criterion, PerExampleLoss
from verax.training.seeds import Draws


def weights_of(model: nn.Module) -> Values:
    """The trained parameters of a model, one after the other.

    >>> weights_of(torch.nn.Linear(3, 2)).shape
    (8,)
    """
    found: Values = torch.cat([p.detach().reshape(-1) for p in _trained(model)]).numpy()
    return found


def put_weights(model: nn.Module, weights: Values) -> None:
    """The inverse of :func:`weights_of`."""
    parameters = _trained(model)
    flat = torch.from_numpy(np.array(weights, dtype=np.float32))
    with torch.no_grad():
        for parameter, piece in zip(
            parameters, flat.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.copy_(piece.view_as(parameter))


class Worker:
    """A model whose clipped sums are wanted.

    Args:
        model: any module; its parameters become views of one flat tensor.
        loss: a torch criterion of outputs and targets, or for dictionaries of data a function of
            model and batch.
        plan: says what is clipped, and to which norm.
        inner: where a client's aggregate is clipped, what it is: by default the gradient of the
            mean loss, or ``LocalSteps`` for several steps of a local optimiser.
        micro_batch: how many records are worked on at once.
        weights: a flat tensor that is to be the model's memory; by default a new one.
        draws: seeds for dropout and the like.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Criterion,
        plan: Plan,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        weights: Tensor | None = None,
        draws: Draws | None = None,
    ) -> None:
        refuse_model(model)
        refuse_inner(inner)
        self.model, self._loss = model, loss
        parameters = _trained(model)
        now = torch.from_numpy(weights_of(model))
        self.weights = now if weights is None else weights
        self.weights.copy_(now)
        for parameter, piece in zip(
            parameters, self.weights.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.data = piece.view_as(parameter)
        # Clip-groups are clients: many of them can go through one pass.
        clipping: Clipping = Mixed(plan.clip_norm) if plan.unit == "client" else plan.clipping
        self._clipper = Clipper(model, PerExampleLoss(loss), clipping, inner, micro_batch, draws)
        self._micro_batch = micro_batch
        self._flat = FlatBuffer(parameters)

    @property
    def dimension(self) -> int:
        """Number of trained parameters."""
        return len(self.weights)

    def load(self, weights: Values) -> None:
        """Work at these weights from now on."""
        self.weights.copy_(torch.from_numpy(np.array(weights)))

    def take(self, data: Data, chosen: Numbers) -> Any:
        """These records as a batch; refused if making it mixes records (``Data.watch``)."""
        batch = data.take(chosen)
        if data.collate_check is not None:
            data.collate_check.refuse_mixing(self.model, self._clipper.losses)
        return batch

    def total(self, batch: Any, records: int) -> Values:
        """The clipped sum, or the batch's clipped aggregate; valid until the next call."""
        refuse_loss(self._loss, batch)
        self._flat.buffer.zero_()
        try:
            self._clipper.add(batch, records, self._flat)
        except NotFiniteError:
            self._flat.buffer.zero_()
            self._add_finite(
                batch, [records] if isinstance(self._clipper.clipping, Mixed) else [1] * records
            )
        found: Values = self._flat.buffer.numpy()
        return found

    def totals(self, batch: Any, sizes: list[int]) -> Values:
        """The sum of clients' clipped aggregates, their records in order; valid as long."""
        refuse_loss(self._loss, batch)
        self._flat.buffer.zero_()
        start = 0
        for some in runs(sizes, self._micro_batch):
            end = start + sum(some)
            self._add_finite(part(batch, slice(start, end)), some)
            start = end
        found: Values = self._flat.buffer.numpy()
        return found

    def _add_finite(self, batch: Any, sizes: list[int]) -> None:
        """Count a gradient or a client's aggregate that is not finite as 0.

        The clipper may have added some of a batch when it finds one; that is taken back before the
        halves are tried.
        """
        before, records = self._flat.buffer.clone(), sum(sizes)
        try:
            self._clipper.add(batch, records, self._flat, sizes)
        except NotFiniteError:
            self._flat.buffer.copy_(before)
            if len(sizes) > 1:
                half = len(sizes) // 2
                middle = sum(sizes[:half])
                self._add_finite(part(batch, slice(0, middle)), sizes[:half])
                self._add_finite(part(batch, slice(middle, records)), sizes[half:])


def _trained(model: nn.Module) -> list[nn.Parameter]:
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise ValueError("model must have at least one trainable parameter, got none")
    for parameter in found:
        if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
            raise ValueError(
                f"model must have float32 parameters on the CPU, "
                f"got {parameter.dtype} on {parameter.device}; "
                "messages are in single precision"
            )
    return found
