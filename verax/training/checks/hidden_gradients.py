"""Checks that a batch's gradients depend on no earlier batch and do not need ``backward()``.

Otherwise neighbouring runs would differ in rounds that the record is not part of, for which no
noise is added. Both are found by experiment, with copies of the model, its loss and its inner
algorithm, in batches 1, 2, 4, 8 ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.checks.copies import independent_copies
from verax.training.checks.snapshot import Snapshot
from verax.training.checks.trial_runs import (
    MODEL_FAILURES,
    Entries,
    blank_records,
    check_is_due,
    graph_nodes,
    map_records,
    repeat_record,
    run_repeatably,
)
from verax.training.seeds import seeded

# Records of the batch that are tried.
_TRIED = 8
# Batches that come before the one that is compared.
_EARLIER = 4
# Relative change of a gradient that is still rounding, where only the earlier batches changed.
_ROUNDING = 1e-5

Aggregate = Callable[[Any, int, list[nn.Parameter]], list[Tensor]]
"""From a batch, the number of its records and the parameters to one tensor each."""


class HiddenGradientCheck:
    """Refuses gradients that depend on earlier batches or hide from all but ``backward()``.

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
        """Raise if the check fails; to be called before the batch goes through the model."""
        self._batches += 1
        if not check_is_due(self._batches):
            return
        for few in dict.fromkeys((min(records, _TRIED), records)):
            some = map_records(batch, records, partial(_rows, start=0, count=few))
            try:
                trouble = self._trouble(some, few, parameters)
            except MODEL_FAILURES:
                # The batch cannot be cut, say; what cannot be computed at all fails in the step.
                continue
            if trouble:
                raise ValueError(trouble)
            return

    def _trouble(self, batch: Any, records: int, parameters: list[nn.Parameter]) -> str:
        if self._reentrant(batch):
            return (
                "the model uses torch.utils.checkpoint with use_reentrant=True, which hides the "
                "layers inside from everything but backward(): they would get noise and no "
                "gradient; use use_reentrant=False"
            )
        if self._remembers(batch, records, parameters):
            return (
                "a batch's gradients depend on earlier batches, as far as can be told: the model, "
                "the loss or inner keeps something from one forward pass to the next outside the "
                "model's parameters and buffers, where no noise protects it; keep nothing of the "
                "data"
            )
        return ""

    def _reentrant(self, batch: Any) -> bool:
        """Whether the graph of the losses has a checkpoint that only ``backward()`` can enter."""
        model, losses, _ = independent_copies(self._things)
        with seeded(model, 0), torch.enable_grad():
            nodes = graph_nodes(losses(model, batch))
            return any(node.name() == "CheckpointFunctionBackward" for node in nodes)

    def _remembers(self, batch: Any, records: int, parameters: list[nn.Parameter]) -> bool:
        """Whether the batch's gradients change if other batches came before it."""
        whole = batch, records
        if records == 1:
            others = [(map_records(batch, 1, partial(blank_records, count=1)), 1)] * _EARLIER
        else:
            # Earlier batches with another first, last and mean record, and a smaller one.
            count, start = records // 2, max(records // 4, 1)
            some = map_records(batch, records, partial(_rows, start=start, count=count)), count
            repeated = map_records(batch, records, partial(repeat_record, record=start)), records
            others = [repeated, some] * (_EARLIER // 2)
        for copy in (independent_copies, tuple):
            usual, other = (
                self._after(earlier, whole, parameters, *copy(self._things))
                for earlier in ([whole] * _EARLIER, others)
            )
            # All zero: perhaps the loss uses another model than the copy that it is given.
            if any(bool(g.any()) for g in usual):
                break
        return any(_differ(x, y) for x, y in zip(usual, other, strict=True))

    def _after(
        self,
        earlier: Sequence[tuple[Any, int]],
        then: tuple[Any, int],
        parameters: list[nn.Parameter],
        model: nn.Module,
        losses: Any,
        inner: Any,
    ) -> list[Tensor]:
        """The aggregate of a batch after earlier ones."""
        aggregate = self._computing(model, losses, inner)
        theirs = dict(zip(self._things[0].parameters(), model.parameters(), strict=True))
        mine = [theirs[p] for p in parameters if p in theirs]
        # Weights and buffers are the statefulness check's.
        before = Snapshot(model, weights=True)

        def run(batch: Any, records: int) -> list[Tensor]:
            try:
                found = run_repeatably(model, partial(aggregate, batch, records, mine))
                return [g.clone() for g in found]
            finally:
                before.restore()

        for first in earlier:
            with suppress(*MODEL_FAILURES):  # the model may refuse a batch of copies
                run(*first)
        return run(*then)


def _rows(x: Entries, start: int, count: int) -> Entries:
    return x[start : start + count]


def _differ(usual: Tensor, other: Tensor) -> bool:
    """Whether they differ beyond rounding; clipping refuses what is not finite."""
    if not bool(torch.isfinite(usual).all()):
        return False
    return not bool((usual - other).norm() <= _ROUNDING * usual.norm())
