"""What a batch's gradients must not do: depend on earlier batches, or hide from everything but ``backward()``.

Neighbouring runs would differ in rounds that the record is not part of, for which nobody adds
noise. One looks for both by experiment, with copies of the model, its loss and its inner algorithm,
in batches 1, 2, 4, 8 ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.checks.copies import twins_of
from verax.training.checks.snapshot import Kept
from verax.training.checks.trial_runs import (
    Entries,
    blanks,
    copies,
    doubled,
    nodes,
    of_each,
    repeatable,
)
from verax.training.seeds import seeded

_LOOKED_AT = 8  # records with which one looks
_BACK = 4  # batches that are thought of as remembered
# relative change of a gradient that is still rounding, where nothing but the past changed
_REMEMBERED = 1e-5

Aggregate = Callable[[Any, int, list[nn.Parameter]], list[Tensor]]
"""From a batch, the number of its records and the parameters to one tensor each."""


class Tricks:
    """Looks for them.

    Args:
        things: the model, its loss and its inner algorithm.
        computing: from copies of these to what computes aggregates with them.
    """

    def __init__(
        self, things: tuple[nn.Module, Any, Any], computing: Callable[..., Aggregate]
    ) -> None:
        self._things, self._computing = things, computing
        self._batches = 0

    def refuse(self, batch: Any, records: int, parameters: list[nn.Parameter]) -> None:
        """Raise if there are any, as far as can be told; to be called before the batch goes through the model."""
        self._batches += 1
        if not doubled(self._batches):
            return
        for few in dict.fromkeys((min(records, _LOOKED_AT), records)):
            some = of_each(batch, records, partial(_from, start=0, count=few))
            try:
                trouble = self._trouble(some, few, parameters)
            except Exception:  # noqa: BLE001  it cannot be cut, say; what cannot be computed at all will say so itself
                continue
            if trouble:
                raise ValueError(trouble)
            return

    def _trouble(self, batch: Any, records: int, parameters: list[nn.Parameter]) -> str:
        if self._reentrant(batch):
            return (
                "the model uses torch.utils.checkpoint with use_reentrant=True, which hides the layers inside from "
                "everything but backward(): they would get noise and no gradient; use use_reentrant=False"
            )
        if self._remembers(batch, records, parameters):
            return (
                "a batch's gradients depend on earlier batches, as far as can be told: the model, the loss or inner "
                "keeps something from one forward pass to the next outside the model's parameters and buffers, where "
                "no noise protects it; keep nothing of the data"
            )
        return ""

    def _reentrant(self, batch: Any) -> bool:
        """Whether the losses come by way of a checkpoint that only ``backward()`` understands."""
        model, losses, _ = twins_of(self._things)
        with seeded(model, 0), torch.enable_grad():
            return any(
                node.name() == "CheckpointFunctionBackward" for node in nodes(losses(model, batch))
            )

    def _remembers(self, batch: Any, records: int, parameters: list[nn.Parameter]) -> bool:
        """Whether it makes a difference to a batch what came before it: the same batch four times, or others."""
        whole = batch, records
        if records == 1:
            others = [(of_each(batch, 1, partial(blanks, count=1)), 1)] * _BACK
        else:  # with another first, last and mean record; and fewer
            count, start = records // 2, max(records // 4, 1)
            some = of_each(batch, records, partial(_from, start=start, count=count)), count
            others = [(of_each(batch, records, partial(copies, record=start)), records), some] * (
                _BACK // 2
            )
        for copy in (twins_of, tuple):
            usual, other = (
                self._after(firsts, whole, parameters, *copy(self._things))
                for firsts in ([whole] * _BACK, others)
            )
            # else it may be that the loss uses another model than it is given
            if any(bool(g.any()) for g in usual):
                break
        return any(_differ(x, y) for x, y in zip(usual, other, strict=True))

    def _after(
        self,
        firsts: Sequence[tuple[Any, int]],
        then: tuple[Any, int],
        parameters: list[nn.Parameter],
        model: nn.Module,
        losses: Any,
        inner: Any,
    ) -> list[Tensor]:
        """What a batch gives after others."""
        aggregate = self._computing(model, losses, inner)
        theirs = dict(zip(self._things[0].parameters(), model.parameters(), strict=True))
        mine = [theirs[p] for p in parameters if p in theirs]
        kept = Kept(model, weights=True)  # weights and buffers have a look of their own

        def run(batch: Any, records: int) -> list[Tensor]:
            try:
                return [
                    g.clone() for g in repeatable(model, partial(aggregate, batch, records, mine))
                ]
            finally:
                kept.restore()

        for first in firsts:
            with suppress(Exception):  # a batch of copies may be too much to ask
                run(*first)
        return run(*then)


def _from(x: Entries, start: int, count: int) -> Entries:
    return x[start : start + count]


def _differ(usual: Tensor, other: Tensor) -> bool:
    """Beyond rounding; what is not finite without any memory is clipping's to refuse."""
    return bool(torch.isfinite(usual).all()) and not bool(
        (usual - other).norm() <= _REMEMBERED * usual.norm()
    )
