"""Checks that a forward pass changes no weights and stores nothing of the data in a buffer.

Both would be released with the model, without noise. A buffer may change if it does so in the same
way whatever the data are: a counter, or the power iteration of a spectral norm, which depends on
the weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.checks.snapshot import Snapshot, tensors_equal
from verax.training.checks.trial_runs import (
    MODEL_FAILURES,
    Entries,
    Losses,
    blank_records,
    check_is_due,
    map_records,
    repeat_record,
    run_repeatably,
)

# Records of zeros that stand in for an empty batch.
_STAND_INS = 2


@dataclass(frozen=True)
class _ModelBefore:
    """A model before a batch."""

    buffers: Snapshot
    weights: dict[str, tuple[Tensor, int, Tensor | None]]
    """Every parameter, its version and, sometimes, its value."""


class StatefulnessCheck:
    """Compares a model's weights and buffers before and after a batch went through it.

    Buffers are compared by value in every batch. Weights are compared by their versions, and by
    value in batches 1, 2, 4, 8 ..., since what is written through ``.data`` moves no version.
    """

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self._batches = 0
        self._changes: dict[str, int] = {}

    def _before(self) -> _ModelBefore:
        for name, module in self._model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
                raise ValueError(
                    f"{name or 'the model'} ({type(module).__name__}) has max_norm="
                    f"{module.max_norm!r}: it shortens the rows of the tokens that occur, in place "
                    "and without noise, and so shows which do; use max_norm=None"
                )
        self._batches += 1
        by_value = check_is_due(self._batches)
        weights = {
            name: (
                p,
                0 if p.is_inference() else p._version,
                p.detach().clone() if by_value else None,
            )
            for name, p in self._model.named_parameters()
        }
        return _ModelBefore(Snapshot(self._model), weights)

    @contextmanager
    def watching(self, batch: Any, records: int) -> Iterator[None]:
        """Refuse what changes according to the data while the batch goes through the model.

        Every forward pass begins with the buffers from before. A counter then counts batches; it
        would count pieces and clip-groups otherwise, whose number is a secret.
        """
        before = self._before()

        def restore(*_: Any) -> None:
            # torch.func forbids writing to tensors that it does not wrap.
            with torch._C._DisableFuncTorch():
                before.buffers.restore(new=False)

        handle = self._model.register_forward_pre_hook(restore) if before.buffers.names() else None
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()
        self._refuse_changes(before, batch, records)

    def _refuse_changes(self, before: _ModelBefore, batch: Any, records: int) -> None:
        now = dict(self._model.named_parameters())
        for name, (parameter, version, value) in before.weights.items():
            moved = not parameter.is_inference() and parameter._version != version
            rewritten = value is not None and not tensors_equal(parameter, value)
            if now.get(name) is not parameter or moved or rewritten:
                raise ValueError(
                    f"{name} was changed by the model's forward pass, where no noise is added: "
                    "leave weights to the optimizer. This copy of the model must not be released"
                )
        asked = set()
        for name in before.buffers.changed():
            self._changes[name] = self._changes.get(name, 0) + 1
            if check_is_due(self._changes[name]):
                asked.add(name)
        found = asked & self._data_dependent(before.buffers, batch, records) if asked else ()
        for name in sorted(found):
            raise ValueError(
                f"the buffer {name} is changed by the model's forward pass according to the data, "
                "as far as can be told, and no noise protects it: keep such statistics out of the "
                "model. This copy of it must not be released"
            )

    def advance(self, empty: Any) -> None:
        """Change the buffers for an empty batch as for any other: that it is empty is secret."""
        if not any(True for _ in self._model.buffers()):
            return
        some = map_records(empty, 0, partial(blank_records, count=_STAND_INS))
        # A model that cannot take zeros has no such buffers.
        with torch.no_grad(), suppress(*MODEL_FAILURES):
            self._losses(self._model, some)

    def _data_dependent(self, before: Snapshot, batch: Any, records: int) -> set[str]:
        """Names of the buffers that other data change differently, or that change irregularly.

        The model is left as it was found.
        """
        others: list[Callable[[Entries], Entries]] = [partial(blank_records, count=1)]
        if records > 1:
            others = [partial(repeat_record, record=record) for record in (0, records - 1)]
            others.append(lambda x: x[: records // 2])
        found = Snapshot(self._model)
        try:
            usual = self._buffers_after(before, batch)
            names = before.names() | usual.keys()
            dependent = {name for name in names if before.holds(name, usual.get(name))}
            for change in others:
                try:
                    other = self._buffers_after(before, map_records(batch, records, change))
                except MODEL_FAILURES:  # the model may refuse copies, or half a batch
                    continue
                dependent |= {
                    name
                    for name in usual.keys() | other.keys()
                    if not tensors_equal(usual.get(name), other.get(name))
                }
        finally:
            found.restore()
        return dependent

    def _buffers_after(self, before: Snapshot, batch: Any) -> dict[str, Tensor]:
        """The buffers after this batch, had it come in place of the one that did."""

        def buffers() -> dict[str, Tensor]:
            self._losses(self._model, batch)
            return {name: x.clone() for name, x in self._model.named_buffers()}

        before.restore()
        return run_repeatably(self._model, buffers)
