"""Checks that no record's loss depends on other records, or on how many they are.

Clipping each record's gradient would protect nobody there. Known layers are refused by name;
everything else by experiment, in rounds 1, 2, 4, 8 ... and whenever more records go together than
before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.checks.trial_runs import (
    MODEL_FAILURES,
    Losses,
    check_is_due,
    eval_mode,
    loss_per_record,
    map_records,
    one_hot,
    perturbed_weights,
    repeat_record,
    rounding_tolerance,
    run_repeatably,
    run_without_randomness,
)
from verax.training.data.containers import has_column
from verax.training.data.microbatch import can_be_cut, part
from verax.training.gradients.factors import trainable
from verax.training.gradients.mlp import keeps_apart
from verax.training.performance.channels_last import contiguous_group_norms

# Records that are compared again, where as many were compared before.
_AGAIN = 16
# Comparisons: as it is, with fewer records, with perturbed weights.
_COMPARISONS = 3
# Weights move by this share of the rounding tolerance when asking what rounding can do.
_ROUNDED = 1e-2

Gradient = list[Tensor]
"""One tensor per trainable parameter; empty if the loss has no gradient."""


class MixedRecords(ValueError):
    """One record's loss depends on other records: per-record clipping would protect nobody."""


class IndependenceCheck:
    """Refuses one model under one loss if a record's loss depends on other records."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self.model, self.losses = model, losses
        self._round = 0
        # By mode: the most records that passed, the rounds, and the last of them.
        self._passed: dict[bool, tuple[int, int, int]] = {}

    def begin(self) -> None:
        """Begin another round; all pieces of its batch count as one."""
        self._round += 1

    @property
    def known_independent(self) -> bool:
        """Whether records are independent by construction, whatever the weights are."""
        return getattr(self.losses, "apart", False) and keeps_apart(self.model)

    def refuse(self, batch: Any, records: int) -> None:
        """Compare when more records go together than before, and in rounds 1, 2, 4, 8 ..."""
        mode = self.model.training
        most, rounds, last = self._passed.get(mode, (0, 0, -1))
        if records > 1:
            another = last != self._round
            if not self.known_independent:
                if records > 2 * most:
                    for way in range(_COMPARISONS):
                        self._compare_by(way, batch, records)
                elif another and check_is_due(rounds):
                    self._compare_by(rounds.bit_length() % _COMPARISONS, *_few_of(batch, records))
            self._passed[mode] = max(records, most), rounds + another, self._round

    def _compare_by(self, way: int, batch: Any, records: int) -> None:
        """One of the comparisons; later rounds take them in turn.

        Weights are perturbed, too: a branch whose weights begin at zero has no effect so far.
        """
        if way == 0:
            self._compare(batch, records)
        elif way == 1:
            self._compare_parts(batch, records)
        else:
            with perturbed_weights(self.model):
                self._compare(batch, records)

    def _compare(self, batch: Any, records: int) -> None:
        """Under one seed, a record's loss and gradient must not change among copies of itself.

        Gradients are compared, too, since in them mixing shows however small the losses are.
        """
        some = [*dict.fromkeys((0, records // 2, records - 1))]
        usual, gradients = self._losses_and_gradients(batch, records, some)
        again, _ = self._losses_and_gradients(batch, records)
        allowed = rounding_tolerance([usual, *self.model.parameters()])
        if not torch.allclose(usual, again, rtol=allowed, atol=1e-5, equal_nan=True):
            raise MixedRecords(
                "a record's loss changes from one pass to the next although all seeds are set "
                "again, so that nobody can tell whether it depends on other records: let the model "
                "draw from torch's own generator, and keep nothing from pass to pass"
            )
        for record, mine in zip(some, gradients, strict=True):
            repeated = map_records(batch, records, partial(repeat_record, record=record))
            alone, (other,) = self._losses_and_gradients(repeated, records, [record])
            first, second = float(usual[record]), float(alone[record])
            within = abs(first - second) <= allowed * (abs(first) + abs(second)) + 1e-5
            if math.isfinite(first) and not within:
                raise MixedRecords(
                    "a record's loss depends on the other records of its batch (it is another one "
                    "among copies of itself): use layers that treat records one by one, or batch "
                    "clipping (Batch or Mixed)"
                )
            if self._differs(mine, other, batch, records, record, allowed):
                raise MixedRecords(
                    "the gradient of a record's loss depends on the other records of its batch (it "
                    "is another one among copies of itself): use layers that treat records one by "
                    "one, or batch clipping (Batch or Mixed)"
                )

    def _compare_parts(self, batch: Any, records: int) -> None:
        """A record's gradient must not change without half of the others, or without one of them.

        Leaving out one changes parity. In eval mode, since what is drawn at random depends on
        shapes. Where that fails, or is random still, nothing can be told.
        """
        if not can_be_cut(batch, records):
            return
        ends = 0, records - 1
        with eval_mode(self.model):
            try:
                usual, gradients = self._losses_and_gradients(batch, records, ends)
                again, _ = self._losses_and_gradients(batch, records, seed=1)
            except MODEL_FAILURES:
                return
            allowed = rounding_tolerance([usual, *self.model.parameters()])
            if not torch.allclose(usual, again, rtol=allowed, atol=1e-5, equal_nan=True):
                return
            half = records // 2
            for start, few in dict.fromkeys([(0, half), (records - half, half), (1, records - 1)]):
                end = 0 if start == 0 else 1
                record, mine = ends[end], gradients[end]
                some = part(batch, slice(start, start + few), records)
                try:
                    _, (other,) = self._losses_and_gradients(some, few, [record - start])
                except MODEL_FAILURES:
                    continue
                if self._differs(mine, other, batch, records, record, allowed):
                    raise MixedRecords(
                        "the gradient of a record's loss depends on how many records are in its "
                        "batch (it is another one among fewer): return every record's own loss, "
                        "not divided by their number, or use batch clipping (Batch or Mixed)"
                    )

    def _losses_and_gradients(
        self, batch: Any, records: int, asked: Sequence[int] = (), seed: int = 0
    ) -> tuple[Tensor, list[Gradient]]:
        """All losses, and the gradients of the records asked for, under a fixed seed."""
        parameters = [p for p in self.model.parameters() if trainable(p)]

        def work() -> tuple[Tensor, list[Gradient]]:
            with torch.set_grad_enabled(bool(asked)), contiguous_group_norms(self.model):
                losses = loss_per_record(self.losses(self.model, batch), records)
                return losses.detach(), [_gradient(losses, parameters, record) for record in asked]

        # The model pads texts to the longest one: what is drawn would depend on that.
        fixed = partial(run_without_randomness, work) if has_column(batch) else work
        return run_repeatably(self.model, fixed, seed)

    def _differs(
        self,
        first: Gradient,
        second: Gradient,
        batch: Any,
        records: int,
        record: int,
        allowed: float,
    ) -> bool:
        """Whether two gradients differ beyond rounding; the first is the record's in this batch.

        Where terms cancel, as in a record that is fitted well, rounding is all that is left. So
        they must differ by more than the first does with weights that are moved by as little as
        rounding does.
        """
        if not first or not second:
            return False
        distance, sizes = _distance(first, second), (norm_of(first), norm_of(second))
        if not math.isfinite(sizes[0]) or distance <= allowed * sum(sizes):
            return False
        with perturbed_weights(self.model, _ROUNDED * allowed):
            _, (moved,) = self._losses_and_gradients(batch, records, [record])
        return not moved or distance > 2.0 * _distance(first, moved)


def _few_of(batch: Any, records: int) -> tuple[Any, int]:
    """The first and last records and their number; the whole batch if it cannot be cut."""
    if records <= _AGAIN or not can_be_cut(batch, records):
        return batch, records
    half = _AGAIN // 2
    places = [*range(half), *range(records - half, records)]
    return map_records(batch, records, lambda x: x[places]), _AGAIN


def _gradient(losses: Tensor, parameters: list[nn.Parameter], record: int) -> Gradient:
    """The gradient of one record's loss; empty if it has none that autograd can take."""
    if not losses.requires_grad or not parameters:
        return []
    try:
        return gradients_of(losses, parameters, one_hot(losses, record))
    except RuntimeError:
        return []


def gradients_of(losses: Tensor, parameters: list[nn.Parameter], weights: Tensor) -> Gradient:
    """The gradient of the weighted sum of the losses; the graph is retained."""
    found = torch.autograd.grad(losses, parameters, weights, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(p) if g is None else g.to_dense()
        for g, p in zip(found, parameters, strict=True)
    ]


def norm_of(tensors: Iterable[Tensor]) -> float:
    """The joint norm, in double precision: squares of small numbers vanish in single."""
    return math.hypot(*(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in tensors))


def _distance(first: Gradient, second: Gradient) -> float:
    return norm_of(x - y for x, y in zip(first, second, strict=True))


def refuse_mixing(model: nn.Module) -> None:
    """Refuse layers that normalise over the batch or store statistics of it."""
    norms = nn.modules.batchnorm._NormBase
    if not any(isinstance(module, norms) for module in model.modules()):
        return
    for name, module in model.named_modules():
        if not isinstance(module, norms):
            continue
        layer = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training or module.running_mean is None:
                raise MixedRecords(
                    f"{layer} normalises over the batch, which mixes records: use nn.GroupNorm or "
                    "nn.LayerNorm, put it in eval mode, or use batch clipping (Batch or Mixed)"
                )
        elif module.training and module.track_running_stats:
            raise MixedRecords(
                f"{layer} keeps running statistics of the batch, which no noise protects: set "
                "track_running_stats=False"
            )
