"""From a batch to a step of the optimizer: the clipped sum, which gets noise, is the gradient."""

from __future__ import annotations

from torch import nn, optim

from verax.training.checkpoint import RunDeclaration, Schedule
from verax.training.checks.collate import CollateCheck
from verax.training.checks.validators import refuse_flat, refuse_loss
from verax.training.clipping.clipper import Clipper, NotFiniteError
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.clipping.local_update import Inner
from verax.training.data.round import DrawnBatch
from verax.training.diagnostics import Diagnostics
from verax.training.distributed import LeavingMechanismError, add_share
from verax.training.gradients.loss import Criterion, PerExampleLoss, same_loss
from verax.training.seeds import Draws
from verax.training.step_guard import StepGuard


class GradientStep:
    """Clips batches into one buffer, and lets the optimizer step on it once it has noise.

    Args:
        model: any module.
        optimizer: over the model's parameters.
        schedule: of the optimizer's step sizes, stepped once a round.
        run: the clipping and its norms.
        inner: for batch and mixed clipping, what a clip-group computes.
        micro_batch: at most how many records are worked on at once.
        draws: seeds for dropout and the like.
        diagnostics: where to write numbers of the batches.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        schedule: Schedule | None,
        run: RunDeclaration,
        inner: Inner | None,
        micro_batch: int,
        draws: Draws,
        diagnostics: Diagnostics | None,
    ) -> None:
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self._run, self._inner, self._micro_batch = run, inner, micro_batch
        self._draws, self._diagnostics = draws, diagnostics
        self._guard = StepGuard(optimizer)
        self._clipper: tuple[Criterion, Clipper] | None = None
        self._total: FlatBuffer | None = None
        # Without a gradient a run would be charged and train on noise only.
        self._has_gradient = inner is not None

    def clipped_sum(
        self,
        batch: DrawnBatch,
        loss: Criterion,
        expected_batch: float,
        collate_check: CollateCheck | None,
    ) -> FlatBuffer:
        """The clipped sum of the batch, or of this process's share, divided as it is added."""
        parameters = [
            p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        if (violation := self._guard.violation()) is not None:
            raise LeavingMechanismError(violation)
        if batch.records:
            refuse_loss(loss, batch.data)
        clipper = self.clipper(loss)
        if collate_check is not None:
            collate_check.refuse_mixing(self._model, clipper.losses)
        total = self._empty_total(parameters, clipper.denominator(expected_batch))
        norm = self._run.clip_norm(batch.number)
        try:
            if batch.share is not None:
                add_share(clipper, batch.data, batch.records, batch.share, total)
            elif self._diagnostics is not None:
                self._diagnostics.add(clipper, batch, total, norm)
            else:
                clipper.add(batch.data, batch.records, total, batch.groups, norm)
        except NotFiniteError as error:
            raise LeavingMechanismError(str(error), private=True) from None
        if batch.records and not self._has_gradient:
            self._has_gradient = bool(total.buffer.any())
            if not self._has_gradient:
                refuse_flat(self._model, clipper.losses, batch.data, batch.records)
        return total

    def _empty_total(self, parameters: list[nn.Parameter], denominator: float) -> FlatBuffer:
        if self._total is None:
            self._total = FlatBuffer(parameters, denominator)
        else:
            self._total = self._total.reset_for(parameters, denominator)
        return self._total

    def clipper(self, loss: Criterion) -> Clipper:
        """The clipper of this loss, made anew if the loss is another one than before."""
        if self._clipper is None or not same_loss(self._clipper[0], loss):
            losses, clipping = PerExampleLoss(loss), self._run.mechanism.clipping
            made = Clipper(
                self._model, losses, clipping, self._inner, self._micro_batch, self._draws
            )
            self._clipper = loss, made
        return self._clipper[1]

    def apply(self, total: FlatBuffer) -> None:
        """Let the optimizer step on the noisy sum, and the schedule after it."""
        total.put_gradients()
        self._guard.step()
        for parameter in total.parameters:
            parameter.grad = None
        if self._schedule is not None:
            self._schedule.step()
