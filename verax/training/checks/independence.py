"""Models and losses in which a record's loss depends on other records, or on how many they are.

Clipping each record's gradient would protect nobody there. Known layers are refused by name;
everything else by experiment, in rounds 1, 2, 4, 8 ... and whenever more records go together than
before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.checks.trial_runs import (
    Losses,
    copies,
    doubled,
    evaluating,
    nearby,
    of_each,
    one_each,
    only_one,
    repeatable,
    rounding_of,
    steady,
)
from verax.training.data.containers import has_column
from verax.training.data.microbatch import by_records, part
from verax.training.gradients.layer_rules import trainable
from verax.training.gradients.mlp import keeps_apart
from verax.training.performance.channels_last import bearing_channels_last

_AGAIN = 16  # records with which one looks again, where as many were looked at before
_WAYS = 3  # of looking
_ROUNDED = 1e-2  # of rounding's share: by how much weights move when asking what rounding can do
_FAILS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class MixedRecords(ValueError):  # noqa: N818  it says what is wrong
    """The model lets one record's loss depend on other records, so per-record clipping would not protect anybody."""


class Mixing:
    """Looks for it in one model under one loss."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self.model, self.losses = model, losses
        self._round = 0
        # by mode: records not seen to mix, rounds, the last of them
        self._apart: dict[bool, tuple[int, int, int]] = {}

    def begin(self) -> None:
        """Another round; all pieces of its batch are one to look at."""
        self._round += 1

    @property
    def known_apart(self) -> bool:
        """Whether no record can have a say in another's loss, whatever the weights are."""
        return getattr(self.losses, "apart", False) and keeps_apart(self.model)

    def refuse(self, batch: Any, records: int) -> None:
        """Look for mixing where more records go together than before, and after 1, 2, 4, 8 ... rounds."""
        mode = self.model.training
        seen, rounds, last = self._apart.get(mode, (0, 0, -1))
        if records > 1:
            another = last != self._round
            if not self.known_apart:
                if records > 2 * seen:
                    for way in range(_WAYS):
                        self._compare_in(way, batch, records)
                elif another and doubled(rounds):
                    self._compare_in(rounds.bit_length() % _WAYS, *_few_of(batch, records))
            self._apart[mode] = max(records, seen), rounds + another, self._round

    def _compare_in(self, way: int, batch: Any, records: int) -> None:
        """No record's loss may depend on the others, or on how many they are; ways take turns where one looks again.

        Neither with the weights as they are nor with weights nearby: a branch that begins at zero
        is closed so far.
        """
        if way == 0:
            self._compare(batch, records)
        elif way == 1:
            self._compare_parts(batch, records)
        else:
            with nearby(self.model):
                self._compare(batch, records)

    def _compare(self, batch: Any, records: int) -> None:
        """With the same randomness, a record's loss and gradient must not change when all others become copies of it.

        Gradients are compared, too, since in them mixing shows however small the losses are.
        """
        some = [*dict.fromkeys((0, records // 2, records - 1))]
        (usual, gradients), (again, _) = (
            self._seen(batch, records, some),
            self._seen(batch, records),
        )
        allowed = rounding_of([usual, *self.model.parameters()])
        if not torch.allclose(usual, again, rtol=allowed, atol=1e-5, equal_nan=True):
            raise MixedRecords(
                "a record's loss changes from one pass to the next although all seeds are set again, so that nobody "
                "can tell whether it depends on other records: let the model draw from torch's own generator, and "
                "keep nothing from pass to pass"
            )
        for record, mine in zip(some, gradients, strict=True):
            alone, (other,) = self._seen(
                of_each(batch, records, partial(copies, record=record)), records, [record]
            )
            first, second = float(usual[record]), float(alone[record])
            if (
                math.isfinite(first)
                and not abs(first - second) <= allowed * (abs(first) + abs(second)) + 1e-5
            ):
                raise MixedRecords(
                    "a record's loss depends on the other records of its batch (it is another one among copies of "
                    "itself): use layers that treat records one by one, or batch clipping (Batch or Mixed)"
                )
            if self._differs(mine, other, partial(self._seen, batch, records, [record]), allowed):
                raise MixedRecords(
                    "the gradient of a record's loss depends on the other records of its batch (it is another one "
                    "among copies of itself): use layers that treat records one by one, or batch clipping (Batch or "
                    "Mixed)"
                )

    def _compare_parts(self, batch: Any, records: int) -> None:
        """A record's gradient must not change when others are left out: half of them, or one, which changes parity.

        In eval mode, since what is drawn at random depends on shapes. Where that fails, or is
        random still, nothing can be told.
        """
        if not by_records(batch, records):
            return
        ends = 0, records - 1
        with evaluating(self.model):
            try:
                (usual, gradients), (again, _) = (
                    self._seen(batch, records, ends),
                    self._seen(batch, records, seed=1),
                )
            except _FAILS:
                return
            allowed = rounding_of([usual, *self.model.parameters()])
            if not torch.allclose(usual, again, rtol=allowed, atol=1e-5, equal_nan=True):
                return
            half = records // 2
            for start, few in dict.fromkeys([(0, half), (records - half, half), (1, records - 1)]):
                record, mine = (ends[0], gradients[0]) if start == 0 else (ends[1], gradients[1])
                try:
                    _, (other,) = self._seen(
                        part(batch, slice(start, start + few), records), few, [record - start]
                    )
                except _FAILS:
                    continue
                if self._differs(
                    mine, other, partial(self._seen, batch, records, [record]), allowed
                ):
                    raise MixedRecords(
                        "the gradient of a record's loss depends on how many records are in its batch (it is another "
                        "one among fewer): return every record's own loss, not divided by their number, or use batch "
                        "clipping (Batch or Mixed)"
                    )

    def _seen(
        self, batch: Any, records: int, asked: Sequence[int] = (), seed: int = 0
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """All losses, and the gradients of the records asked for, with the same randomness every time."""
        parameters = [p for p in self.model.parameters() if trainable(p)]

        def look() -> tuple[Tensor, list[list[Tensor]]]:
            with torch.set_grad_enabled(bool(asked)), bearing_channels_last(self.model):
                losses = one_each(self.losses(self.model, batch), records)
                return losses.detach(), [_gradient(losses, parameters, record) for record in asked]

        # texts are padded in the model, as the longest needs it: what is drawn would depend on that
        fixed = partial(steady, look) if has_column(batch) else look
        return repeatable(self.model, fixed, seed)

    def _differs(
        self,
        first: list[Tensor],
        second: list[Tensor],
        look: Callable[[], tuple[Tensor, list[list[Tensor]]]],
        allowed: float,
    ) -> bool:
        """Whether two gradients are not the same one, rounded; ``look`` takes the first again.

        Where parts cancel, as in a record that is fitted well, rounding is all that is left. So
        they must differ by more than the first does with weights that are moved by as little as
        rounding does.
        """
        if not first or not second:
            return False
        apart, sizes = _distance(first, second), (norm_of(first), norm_of(second))
        if not math.isfinite(sizes[0]) or apart <= allowed * sum(sizes):
            return False
        with nearby(self.model, _ROUNDED * allowed):
            _, (moved,) = look()
        return not moved or apart > 2.0 * _distance(first, moved)


def _few_of(batch: Any, records: int) -> tuple[Any, int]:
    """The first and the last records, and how many they are; the whole batch if it cannot be cut."""
    if records <= _AGAIN or not by_records(batch, records):
        return batch, records
    half = _AGAIN // 2
    places = [*range(half), *range(records - half, records)]
    return of_each(batch, records, lambda x: x[places]), _AGAIN


def _gradient(losses: Tensor, parameters: list[nn.Parameter], record: int) -> list[Tensor]:
    """That of one record's loss; nothing if it has none, or none that autograd can take."""
    if not losses.requires_grad or not parameters:
        return []
    try:
        return gradients_of(losses, parameters, only_one(losses, record))
    except RuntimeError:
        return []


def gradients_of(losses: Tensor, parameters: list[nn.Parameter], pick: Tensor) -> list[Tensor]:
    """Those of the losses, weighted; the graph is kept."""
    found = torch.autograd.grad(losses, parameters, pick, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(p) if g is None else g.to_dense()
        for g, p in zip(found, parameters, strict=True)
    ]


def norm_of(tensors: Iterable[Tensor]) -> float:
    """Of all together, in double precision: squares of small numbers vanish in single."""
    return math.hypot(*(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in tensors))


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    return norm_of(x - y for x, y in zip(first, second, strict=True))


_NORMS = nn.modules.batchnorm._NormBase


def refuse_mixing(model: nn.Module) -> None:
    """Refuse layers whose outputs for one record depend on the others in the batch, or that store batch statistics."""
    if not any(isinstance(module, _NORMS) for module in model.modules()):
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            raise MixedRecords(
                f"{name or 'the model'} ({type(module).__name__}) normalises over the batch, which mixes records: use "
                "nn.GroupNorm or nn.LayerNorm, put it in eval mode, or use batch clipping (Batch or Mixed)"
            )
        if (
            isinstance(module, nn.modules.instancenorm._InstanceNorm)
            and module.training
            and module.track_running_stats
        ):
            raise MixedRecords(
                f"{name or 'the model'} ({type(module).__name__}) keeps running statistics of the batch, which no "
                "noise protects: set track_running_stats=False"
            )
