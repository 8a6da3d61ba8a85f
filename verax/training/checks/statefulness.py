"""What a forward pass must not do: change weights, or keep something of the data in a buffer, where no noise hides it.

Both would be released with the model. A buffer may change if it does so in the same way whatever
the data are: a counter, or the power iteration of a spectral norm, which depends on the weights
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.checks.snapshot import Kept, alike
from verax.training.checks.trial_runs import (
    Entries,
    Losses,
    blanks,
    copies,
    doubled,
    of_each,
    repeatable,
)

_STAND_INS = 2  # records of zeros in place of none


@dataclass(frozen=True)
class Before:
    """A model before a batch."""

    buffers: Kept
    weights: dict[str, tuple[Tensor, int, Tensor | None]]
    """Every parameter, its version and, sometimes, its value."""


class Unchanged:
    """Compares a model's weights and buffers before and after a batch went through it.

    Buffers are compared by value in every batch. Weights are compared by their versions, and by
    value in batches 1, 2, 4, 8 ..., since what is written through ``.data`` moves no version.
    """

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self._looks = 0
        self._changes: dict[str, int] = {}

    def look(self) -> Before:
        """The model as it is now."""
        for name, module in self._model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
                raise ValueError(
                    f"{name or 'the model'} ({type(module).__name__}) has max_norm={module.max_norm!r}: it shortens "
                    "the rows of the tokens that occur, in place and without noise, and so shows which do; use "
                    "max_norm=None"
                )
        self._looks += 1
        whole = doubled(self._looks)
        weights = {
            name: (p, 0 if p.is_inference() else p._version, p.detach().clone() if whole else None)
            for name, p in self._model.named_parameters()
        }
        return Before(Kept(self._model), weights)

    @contextmanager
    def watching(self, batch: Any, records: int) -> Iterator[None]:
        """While the batch goes through the model: refuse what changes according to it.

        Every forward pass begins with the buffers from before. A counter then counts batches; it
        would count pieces and clip-groups otherwise, whose number is a secret.
        """
        before = self.look()

        def back(*_: Any) -> None:
            # torch.func lets nobody write to what it does not know
            with torch._C._DisableFuncTorch():
                before.buffers.restore(new=False)

        handle = self._model.register_forward_pre_hook(back) if before.buffers.names() else None
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()
        self.check(before, batch, records)

    def check(self, before: Before, batch: Any, records: int) -> None:
        """Refuse what changed since."""
        now = dict(self._model.named_parameters())
        for name, (parameter, version, value) in before.weights.items():
            moved = not parameter.is_inference() and parameter._version != version
            if (
                now.get(name) is not parameter
                or moved
                or (value is not None and not alike(parameter, value))
            ):
                raise ValueError(
                    f"{name} was changed by the model's forward pass, where no noise is added: leave weights to the "
                    "optimizer. This copy of the model must not be released"
                )
        asked = set()
        for name in before.buffers.changed():
            self._changes[name] = self._changes.get(name, 0) + 1
            if doubled(self._changes[name]):
                asked.add(name)
        for name in (
            sorted(asked & self._following(before.buffers, batch, records)) if asked else ()
        ):
            raise ValueError(
                f"the buffer {name} is changed by the model's forward pass according to the data, as far as can be "
                "told, and no noise protects it: keep such statistics out of the model. This copy of it must not be "
                "released"
            )

    def advance(self, empty: Any) -> None:
        """Change the buffers for an empty batch as any other batch would: whether one is empty is a secret."""
        if not any(True for _ in self._model.buffers()):
            return
        some = of_each(empty, 0, partial(blanks, count=_STAND_INS))
        # a model that cannot take zeros has no such buffers
        with torch.no_grad(), suppress(Exception):
            self._losses(self._model, some)

    def _following(self, before: Kept, batch: Any, records: int) -> set[str]:
        """Names of the buffers that other data change in another way, or that do not change again as they did.

        The model is left as it was found.
        """
        others: list[Callable[[Entries], Entries]] = [partial(blanks, count=1)]
        if records > 1:
            others = [partial(copies, record=record) for record in (0, records - 1)]
            others.append(lambda x: x[: records // 2])
        found = Kept(self._model)
        try:
            usual = self._after(before, batch)
            follow = {
                name
                for name in before.names() | usual.keys()
                if before.holds(name, usual.get(name))
            }
            for change in others:
                try:
                    other = self._after(before, of_each(batch, records, change))
                except Exception:  # noqa: BLE001  copies, or half a batch, may be too much to ask
                    continue
                names = usual.keys() | other.keys()
                follow |= {name for name in names if not alike(usual.get(name), other.get(name))}
        finally:
            found.restore()
        return follow

    def _after(self, before: Kept, batch: Any) -> dict[str, Tensor]:
        """The buffers after this batch, if it had come in place of the one that did."""

        def buffers() -> dict[str, Tensor]:
            self._losses(self._model, batch)
            return {name: x.clone() for name, x in self._model.named_buffers()}

        before.restore()
        return repeatable(self._model, buffers)
