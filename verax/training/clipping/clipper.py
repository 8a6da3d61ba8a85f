"""Clipped sums of a batch under each clipping, added to a flat buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from verax import checks
from verax.mechanism import Batch, Clipping, Individual, Mixed
from verax.training.checks.hidden_gradients import Aggregate, HiddenGradientCheck
from verax.training.checks.snapshot import Snapshot
from verax.training.checks.statefulness import StatefulnessCheck
from verax.training.checks.trial_runs import Losses, mean_loss, require_gradient, without_shortcuts
from verax.training.clipping.clip_groups import (
    GroupMeans,
    any_unformed,
    group_gradients,
    too_large_to_form,
)
from verax.training.clipping.flat_buffer import Flat
from verax.training.data.containers import has_target
from verax.training.data.microbatch import part, runs, slices
from verax.training.data.microbatch_size import MicroBatchSize
from verax.training.gradients.factors import ROOM, Clippable, row_norms
from verax.training.gradients.hooks import Layers
from verax.training.gradients.mlp import keeps_apart, linear_chain
from verax.training.gradients.per_example import PerExampleGradients
from verax.training.seeds import Draws, seeded

MICRO_BATCH = 1024
# records of a clip-group up to which a pass of its own is slower than gradients of its records
_SMALL_GROUP = 96
# the same for plain chains with a large weight, which have a pass for all groups anyway
_TINY_GROUP = 8
_FEW = 16  # numbers that are faster computed one after the other
_PASSES = 4  # so many groups at least must go through one pass
_AGGREGATE = "aggregate of a clip-group"
NORM_MARGIN = (
    1.0 - ROOM
)  # of the clip norm: what single precision may add to a norm stays within it


class NotFinite(ValueError):  # noqa: N818  it says what is wrong
    """A gradient is infinite or not a number, so it cannot be clipped."""


class Inner(Protocol):
    """What a clip-group computes before clipping: a gradient or a displacement.

    It may move weights and buffers: they are put back.
    """

    def __call__(
        self,
        model: nn.Module,
        losses: Losses,
        batch: Any,
        records: int,
        parameters: list[nn.Parameter],
    ) -> list[Tensor]:
        """From a clip-group to its aggregate."""


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
        """One backward pass."""
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
            float(kept.get("step", 0)) > 0 or "momentum_buffer" in kept
            for kept in local.state.values()
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
        if inner is not None and isinstance(clipping, Individual):
            raise ValueError(
                "inner is for batch and mixed clipping: individual clipping clips every record's "
                "gradient"
            )
        self.model, self.losses, self.clipping = model, losses, clipping
        self.micro_batch, self._draws = micro_batch, draws
        self._records = PerExampleGradients(model, losses)
        self._cuts = MicroBatchSize(model, losses, micro_batch)
        self._stateful_check = StatefulnessCheck(model, losses)
        self._inner: Inner = inner or MeanGradient()
        # and may do what it likes: that is undone
        self._custom_inner = not isinstance(self._inner, MeanGradient)
        self._means = GroupMeans(model, losses) if inner is None else None
        self._hidden_check = HiddenGradientCheck((model, losses, self._inner), self._computing)
        # told the norms before clipping, if somebody watches
        self.norms: Callable[[Tensor], None] | None = None

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
    def add(self, batch: Any, records: int, into: Flat, groups: list[int] | None = None) -> None:
        """Add the clipped sum, divided as ``into`` says.

        Args:
            batch: the records.
            records: how many they are.
            into: what to add to.
            groups: sizes of the clip-groups of mixed clipping, which lie one behind the other;
                without, there is one.
        """
        chain = linear_chain(self.model)
        known = getattr(self.losses, "apart", False) and (
            chain is not None or keeps_apart(self.model)
        )
        # model and loss keep records apart, and keep nothing of them
        known = known and not self._custom_inner
        if records == 0:
            if not (known or self._custom_inner):
                self._stateful_check.advance(batch)
        elif known:
            with nullcontext() if chain is not None else self._drawing():
                self._add(batch, records, chain, into, groups)
        else:
            with self._drawing():
                self._hidden_check.refuse(batch, records, into.parameters)
                with (
                    nullcontext()
                    if self._custom_inner
                    else self._stateful_check.watching(batch, records)
                ):
                    self._add(batch, records, chain, into, groups)

    def _drawing(self) -> AbstractContextManager[None]:
        """Dropout and the like under a seed of this batch."""
        return nullcontext() if self._draws is None else seeded(self.model, self._draws.next())

    def _add(
        self,
        batch: Any,
        records: int,
        chain: list[nn.Module] | None,
        into: Flat,
        groups: list[int] | None,
    ) -> None:
        match self.clipping:
            case Individual(norm=norm):
                layers = self._records.look()
                most = self._records.fitting(batch, records, layers, self.micro_batch)
                for piece, size in slices(batch, most, records):
                    self._add_records(piece, size, layers, norm, into)
            case Batch(norm=norm) | Mixed(norm=norm):
                self._add_groups(batch, groups or [records], chain, norm, into)

    def _add_records(
        self, batch: Any, records: int, layers: Layers, norm: float, into: Flat
    ) -> None:
        self._add_factors(
            self._records.factors(batch, records, layers), norm, into, "gradient of a record"
        )

    def _add_factors(
        self, factors: Mapping[nn.Parameter, Clippable], norm: float, into: Flat, what: str
    ) -> None:
        """Of records or of clip-groups: norms over all parameters, then the clipped sum."""
        with _in_single_precision(into.buffer.device.type):
            used = [(factor, into.views[p]) for p, factor in factors.items() if p in into.views]
            if not used:
                return
            squares = used[0][0].squares()
            for factor, _ in used[1:]:
                squares = squares + factor.squares()
            weights = self._weights(squares.sqrt(), norm, into.denominator, what)
            for factor, view in used:
                factor.add(weights, view)

    def _add_groups(
        self, batch: Any, sizes: list[int], chain: list[nn.Module] | None, norm: float, into: Flat
    ) -> None:
        """Clip-groups that lie one behind the other."""
        if self._means is not None:
            if self._add_small(batch, sizes, chain, norm, into):
                return
            means = None if chain is None else self._means.of(chain, batch, sizes, into.parameters)
            if means is not None:
                for columns, norms in means:
                    into.buffer.addmv_(
                        columns, self._weights(norms, norm, into.denominator, _AGGREGATE)
                    )
                return
        refuse_statistics(self.model)
        start, records = 0, sum(sizes)
        for size in sizes:
            group = batch if len(sizes) == 1 else part(batch, slice(start, start + size), records)
            start += size
            try:
                found = self._aggregate(group, size, into.parameters)
            except ValueError as error:
                if size > 1 or "more than 1 value per channel" not in str(error):
                    raise
                # batch norm of one value; such a group adds nothing, an aggregate like any other
                continue
            row = torch.cat([g.detach().to(into.buffer.dtype).reshape(1, -1) for g in found], dim=1)
            into.buffer.addmv_(
                row.t(), self._weights(row_norms(row), norm, into.denominator, _AGGREGATE)
            )

    def _add_small(
        self, batch: Any, sizes: list[int], chain: list[nn.Module] | None, norm: float, into: Flat
    ) -> bool:
        """Add small clip-groups through their records' gradients; False if it was not done.

        It is done only if no record can reach another's clip-group, whatever the weights: known
        layers one after the other, and a known loss. All others may mix the records of a
        clip-group, and each has a pass of its own.
        """
        small = _SMALL_GROUP if chain is None else _TINY_GROUP
        if len(sizes) == 1 or max(sizes) > small or not has_target(batch):
            return False
        if chain is not None and not any_unformed(into.parameters, sizes):
            return False
        if not self._records.known_independent:
            return False
        layers, start = self._records.look(), 0
        most = self._records.fitting(batch, sum(sizes), layers, self.micro_batch)
        # a group is enough for a pass
        few = layers.chain is None and _PASSES * sum(sizes) > most * len(sizes)
        if few or self._records.slow or too_large_to_form(into.parameters, sizes, most):
            return False
        for some in runs(sizes, most):
            records = sum(some)
            factors = self._records.factors(
                part(batch, slice(start, start + records)), records, layers
            )
            self._add_factors(group_gradients(factors, some), norm, into, _AGGREGATE)
            start += records
        return True

    @without_shortcuts()
    def aggregate(self, group: Any, size: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        """What a clip-group computes, before clipping; the model stays as it was."""
        with self._drawing():
            self._hidden_check.refuse(group, size, parameters)
            with (
                nullcontext() if self._custom_inner else self._stateful_check.watching(group, size)
            ):
                return self._aggregate(group, size, parameters)

    def _aggregate(self, group: Any, size: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        if not self._custom_inner:
            inner = MeanGradient(self._cuts.pieces(group, size))
            with torch.enable_grad():
                return self._records.channels.tried(
                    self.model,
                    group,
                    lambda laid: inner(self.model, self.losses, laid, size, parameters),
                )
        kept = Snapshot(self.model, weights=True)
        try:
            with torch.enable_grad():
                return [
                    g.detach().clone()
                    for g in self._inner(self.model, self.losses, group, size, parameters)
                ]
        finally:  # what it did to the model is released with noise or not at all
            kept.restore()
            for parameter in self.model.parameters():
                parameter.grad = None

    def _computing(self, model: nn.Module, losses: Losses, inner: Inner) -> Aggregate:
        """What computes aggregates with another model, loss and inner algorithm."""
        return Clipper(model, losses, Batch(1.0), inner, self.micro_batch)._aggregate

    def _weights(self, found: Tensor, norm: float, denominator: float, what: str) -> Tensor:
        """The clip factors of vectors with these norms, below ``NORM_MARGIN`` of the clip norm."""
        few = found.shape[0] <= _FEW
        norms = found.tolist() if few else [float(found.sum())]
        if not all(map(math.isfinite, norms)) and not bool(torch.isfinite(found).all()):
            raise NotFinite(
                f"the {what} is not finite: look for NaN, infinite or huge values in the data, and "
                "scale them by public constants"
            )
        if self.norms is not None:
            self.norms(found)
        most, whole = norm * NORM_MARGIN, 1.0 / denominator
        if few:
            weights = np.array(
                [whole if one <= most else most / one * whole for one in norms], dtype=np.float32
            )
            return torch.from_numpy(weights).to(found.device)
        return found.reciprocal().mul_(most * whole).clamp_(max=whole)  # that of 0


def _in_single_precision(device: str) -> AbstractContextManager[object]:
    """Norms are not for autocast, which somebody may have begun around the step."""
    return (
        torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device)
        else nullcontext()
    )


def refuse_statistics(model: nn.Module) -> None:
    """Refuse running statistics of a batch norm, which no clipping or noise protects."""
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.modules.batchnorm._NormBase)
            and module.training
            and module.track_running_stats
        ):
            raise ValueError(
                f"{name or 'the model'} ({type(module).__name__}) keeps running statistics of "
                "private data that no noise protects: set track_running_stats=False"
            )
