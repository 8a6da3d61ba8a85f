"""Clipped sums of a batch under each clipping, added to a flat buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verax.mechanism import Batch, Clipping, Individual, Mixed
from verax.training.checks.hidden_gradients import Aggregate, HiddenGradientCheck
from verax.training.checks.snapshot import Snapshot
from verax.training.checks.statefulness import StatefulnessCheck
from verax.training.checks.trial_runs import Losses, without_shortcuts
from verax.training.checks.validators import refuse_inner_for, refuse_statistics
from verax.training.clipping.clip_groups import (
    GroupMeans,
    any_unformed,
    group_gradients,
    too_large_to_form,
)
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.clipping.local_update import Inner, MeanGradient
from verax.training.data.containers import has_target
from verax.training.data.microbatch import part, runs, slices
from verax.training.data.microbatch_size import MicroBatchSize
from verax.training.gradients.factors import Clippable
from verax.training.gradients.mlp import keeps_apart, linear_chain
from verax.training.gradients.norms import ROOM, row_norms
from verax.training.gradients.per_example import PerExampleGradients
from verax.training.seeds import Draws, seeded

MICRO_BATCH = 1024
# Records of a clip-group up to which a pass of its own is slower than gradients of its records.
_SMALL_GROUP = 96
# The same for plain chains with a large weight, which have a pass for all groups anyway.
_TINY_GROUP = 8
# Numbers that are faster computed one after the other.
_FEW = 16
# So many groups at least must go through one pass.
_PASSES = 4
_RECORD, _AGGREGATE = "gradient of a record", "aggregate of a clip-group"
# Of the clip norm: what single precision may add to a norm stays within it.
NORM_MARGIN = 1.0 - ROOM


class NotFiniteError(ValueError):
    """A gradient is infinite or not a number, so it cannot be clipped."""


@dataclass
class _ClippedSum:
    """Where a batch's gradients are added, and the norm that each is clipped to before."""

    into: FlatBuffer
    norm: float
    observe: Callable[[Tensor], None] | None
    """Told the norms before clipping."""

    def add_factors(self, factors: Mapping[nn.Parameter, Clippable], what: str) -> None:
        """Take norms over all parameters, then add the clipped sum."""
        with _in_single_precision(self.into.buffer.device.type):
            views = self.into.views
            used = [(factor, views[p]) for p, factor in factors.items() if p in views]
            if not used:
                return
            squares = used[0][0].squares()
            for factor, _ in used[1:]:
                squares = squares + factor.squares()
            weights = self._clip_factors(squares.sqrt(), what)
            for factor, view in used:
                factor.add(weights, view)

    def add_aggregates(self, columns: Tensor, norms: Tensor) -> None:
        """Add clip-groups' flat aggregates, one a column, with these norms."""
        self.into.buffer.addmv_(columns, self._clip_factors(norms, _AGGREGATE))

    def _clip_factors(self, norms: Tensor, what: str) -> Tensor:
        """The clip factors of vectors with these norms, below ``NORM_MARGIN`` of the clip norm."""
        few = norms.shape[0] <= _FEW
        values = norms.tolist() if few else [float(norms.sum())]
        if not all(map(math.isfinite, values)) and not bool(torch.isfinite(norms).all()):
            raise NotFiniteError(
                f"the {what} is not finite: look for NaN, infinite or huge values in the data, and "
                "scale them by public constants"
            )
        if self.observe is not None:
            self.observe(norms)
        most, whole = self.norm * NORM_MARGIN, 1.0 / self.into.denominator
        if few:
            factors = [whole if norm <= most else most / norm * whole for norm in values]
            return torch.from_numpy(np.array(factors, dtype=np.float32)).to(norms.device)
        return norms.reciprocal().mul_(most * whole).clamp_(max=whole)  # that of 0


def _in_single_precision(device: str) -> AbstractContextManager[object]:
    """Norms are not for autocast, which somebody may have begun around the step."""
    on: bool = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


class Clipper:
    """Adds a batch's clipped sum to a buffer.

    Args:
        model: any module; it is not changed.
        losses: from the model and a batch to one loss per record.
        clipping: individual, batch or mixed.
        inner: what a clip-group computes, for batch and mixed clipping.
        micro_batch: at most how many records to work on at once, where each has a gradient; fewer
            for large models.
        draws: seeds for dropout and the like; by default torch's generators are left as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        clipping: Clipping,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        draws: Draws | None = None,
    ) -> None:
        refuse_inner_for(clipping, inner)
        self.model, self.losses, self.clipping = model, losses, clipping
        self.micro_batch, self._draws = micro_batch, draws
        self._gradients = PerExampleGradients(model, losses)
        self._pieces = MicroBatchSize(model, losses, micro_batch)
        self._stateful_check = StatefulnessCheck(model, losses)
        self._inner: Inner = inner or MeanGradient()
        # One of the user's may do to the model what it likes: that is undone.
        self._custom_inner = not isinstance(self._inner, MeanGradient)
        self._means = GroupMeans(model, losses) if inner is None else None
        self._hidden_check = HiddenGradientCheck((model, losses, self._inner), self._computing)

    def denominator(self, expected_batch: float) -> float:
        """What sum and noise are divided by: the expected batch, or the clip-groups."""
        match self.clipping:
            case Individual():
                return expected_batch
            case Batch():
                return 1.0
            case Mixed(groups=groups):
                return float(groups)

    @without_shortcuts()
    @torch.no_grad()
    def add(
        self,
        batch: Any,
        records: int,
        into: FlatBuffer,
        groups: list[int] | None = None,
        norm: float | None = None,
        observe: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Add the clipped sum, divided as ``into`` says.

        Args:
            batch: the records.
            records: how many they are.
            into: what to add to.
            groups: sizes of the clip-groups of mixed clipping, which lie one behind the other;
                without, there is one.
            norm: the clip norm, if it is not that of the clipping.
            observe: told the norms before clipping, some at a time.
        """
        chain = linear_chain(self.model)
        # Model and loss keep records apart, and keep nothing of them.
        stateless = (
            not self._custom_inner
            and getattr(self.losses, "apart", False)
            and (chain is not None or keeps_apart(self.model))
        )
        if records == 0:
            if not (stateless or self._custom_inner):
                self._stateful_check.advance(batch)
            return
        total = _ClippedSum(into, self.clipping.norm if norm is None else norm, observe)
        if stateless:
            with self._seeded() if chain is None else nullcontext():
                self._add(batch, records, chain, total, groups)
            return
        with self._seeded():
            self._hidden_check.refuse(batch, records, into.parameters)
            with self._state_watched(batch, records):
                self._add(batch, records, chain, total, groups)

    @without_shortcuts()
    def aggregate(self, group: Any, size: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        """What a clip-group computes, before clipping; the model stays as it was."""
        with self._seeded():
            self._hidden_check.refuse(group, size, parameters)
            with self._state_watched(group, size):
                return self._aggregate(group, size, parameters)

    def _seeded(self) -> AbstractContextManager[None]:
        """Dropout and the like under a seed of this batch."""
        return nullcontext() if self._draws is None else seeded(self.model, self._draws.next())

    def _state_watched(self, batch: Any, records: int) -> AbstractContextManager[None]:
        """Refuse what the model keeps of the batch, unless the model is restored anyway."""
        return (
            nullcontext() if self._custom_inner else self._stateful_check.watching(batch, records)
        )

    def _add(
        self,
        batch: Any,
        records: int,
        chain: list[nn.Module] | None,
        total: _ClippedSum,
        groups: list[int] | None,
    ) -> None:
        if not isinstance(self.clipping, Individual):
            self._add_groups(batch, groups or [records], chain, total)
            return
        layers = self._gradients.find_layers()
        most = self._gradients.records_at_once(batch, records, layers, self.micro_batch)
        for piece, size in slices(batch, most, records):
            total.add_factors(self._gradients.factors(piece, size, layers), _RECORD)

    def _add_groups(
        self, batch: Any, sizes: list[int], chain: list[nn.Module] | None, total: _ClippedSum
    ) -> None:
        """Clip-groups that lie one behind the other."""
        parameters = total.into.parameters
        if self._means is not None:
            if self._add_small_groups(batch, sizes, chain, total):
                return
            means = None if chain is None else self._means.of(chain, batch, sizes, parameters)
            if means is not None:
                for columns, norms in means:
                    total.add_aggregates(columns, norms)
                return
        refuse_statistics(self.model)
        start, records = 0, sum(sizes)
        for size in sizes:
            group = batch if len(sizes) == 1 else part(batch, slice(start, start + size), records)
            start += size
            try:
                found = self._aggregate(group, size, parameters)
            except ValueError as error:
                if size > 1 or "more than 1 value per channel" not in str(error):
                    raise
                # Batch norm of one value: such a group adds nothing, an aggregate like any other.
                continue
            flat = [g.detach().to(total.into.buffer.dtype).reshape(1, -1) for g in found]
            row = torch.cat(flat, dim=1)
            total.add_aggregates(row.t(), row_norms(row))

    def _add_small_groups(
        self, batch: Any, sizes: list[int], chain: list[nn.Module] | None, total: _ClippedSum
    ) -> bool:
        """Add small clip-groups through their records' gradients; False if it was not done.

        It is done only if no record can reach another's clip-group, whatever the weights: known
        layers one after the other, and a known loss. All others may mix the records of a
        clip-group, and each has a pass of its own.
        """
        parameters = total.into.parameters
        small = _SMALL_GROUP if chain is None else _TINY_GROUP
        if len(sizes) == 1 or max(sizes) > small or not has_target(batch):
            return False
        if chain is not None and not any_unformed(parameters, sizes):
            return False
        if not self._gradients.known_independent:
            return False
        layers, start = self._gradients.find_layers(), 0
        most = self._gradients.records_at_once(batch, sum(sizes), layers, self.micro_batch)
        # A group is enough for a pass.
        few = layers.chain is None and _PASSES * sum(sizes) > most * len(sizes)
        if few or self._gradients.slow or too_large_to_form(parameters, sizes, most):
            return False
        for some in runs(sizes, most):
            records = sum(some)
            piece = part(batch, slice(start, start + records))
            factors = self._gradients.factors(piece, records, layers)
            total.add_factors(group_gradients(factors, some), _AGGREGATE)
            start += records
        return True

    def _aggregate(self, group: Any, size: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        if not self._custom_inner:
            inner = MeanGradient(self._pieces.pieces(group, size))
            with torch.enable_grad():
                return self._gradients.channels.run(
                    self.model,
                    group,
                    lambda laid: inner(self.model, self.losses, laid, size, parameters),
                )
        before = Snapshot(self.model, weights=True)
        try:
            with torch.enable_grad():
                found = self._inner(self.model, self.losses, group, size, parameters)
                return [g.detach().clone() for g in found]
        finally:  # what it did to the model is released with noise or not at all
            before.restore()
            for parameter in self.model.parameters():
                parameter.grad = None

    def _computing(self, model: nn.Module, losses: Losses, inner: Inner) -> Aggregate:
        """What computes aggregates with another model, loss and inner algorithm."""
        return Clipper(model, losses, Batch(1.0), inner, self.micro_batch)._aggregate
