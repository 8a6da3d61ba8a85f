"""How many records of a clip-group go through the model together where the gradient of their mean loss is wanted.

A clip-group may be cut into pieces if no record's loss depends on the others. Only exactness is at
stake, since any function of a clip-group is protected by its clipping. Hence each is asked by
itself, not what an earlier one answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from verax.training.checks.independence import norm_of
from verax.training.checks.trial_runs import (
    Losses,
    graph_nodes,
    loss_per_record,
    perturbed_weights,
    rounding_tolerance,
    run_repeatably,
    run_without_randomness,
)
from verax.training.data.microbatch import has_entries, part
from verax.training.gradients.layer_rules import trainable

_FEWEST = 32  # records at once, whatever the model
_KEPT = 48.0 * 2**20  # bytes that those at once may keep for the backward pass
# so many times what may go at once may a clip-group have before asking is worth its time
_WORTH = 3
_ASKED = 4  # records that are asked, alone and among as many more and one
_AGREE = 0.1  # of the rounding that is allowed elsewhere: to stay whole is never wrong


@dataclass(frozen=True)
class _Seen:
    """What a forward pass shows: losses, bytes for the backward pass, and how many numbers were drawn at random."""

    losses: Tensor
    kept: float
    drawn: int
    written: bool
    """Whether a part of it has a derivative that was written by hand."""


class MicroBatchSize:
    """Decides for clip-groups of one model under one loss.

    Args:
        model: any module.
        losses: from the model and a batch to one loss per record.
        most: at most so many records at once, unless the clip-group must stay whole.
    """

    def __init__(self, model: nn.Module, losses: Losses, most: int) -> None:
        self.model, self.losses, self._most = model, losses, most
        self._bytes = 0.0  # that a record keeps for the backward pass, as far as is known

    def pieces(self, group: Any, size: int) -> int:
        """Records to take at once: what they keep stays near the cache."""
        if size <= min(_WORTH * (self._fitting() if self._bytes else _FEWEST), self._most):
            return size
        if not all(has_entries(x, size) for x in pytree.tree_leaves(group)):
            return size
        few = min(_ASKED, (size - 1) // 2, self._most)
        if few == 0 or has_batch_norm(self.model) or not self._apart(group, few):
            return size
        count = -(-size // self._fitting())
        return -(-size // count)

    def _fitting(self) -> int:
        return min(max(int(_KEPT / self._bytes), _FEWEST), self._most)

    def _apart(self, group: Any, few: int) -> bool:
        """Whether a few records' losses are the same alone and with others before and behind them, with weights nearby.

        Nearby, since a branch that begins at zero is closed so far. Where that fails because of
        what is drawn at random, once more with nothing drawn. A model that has something against so
        few records stays whole.
        """
        # in no row of 2, 3, 4 ... records
        count, places = 2 * few + 1, slice(max(few - 1, 1), max(few - 1, 1) + few)
        alone, among = part(group, places), part(group, slice(0, count))
        try:
            with perturbed_weights(self.model):
                for chance in (True, False):
                    first, second = (
                        self._seen(alone, few, chance, 0),
                        self._seen(among, count, chance, 1),
                    )
                    self._bytes = self._bytes or max(
                        (second.kept - first.kept) / (count - few), 1.0
                    )
                    allowed = _AGREE * rounding_tolerance([first.losses, *self.model.parameters()])
                    same = torch.allclose(
                        first.losses, second.losses[places], rtol=allowed, atol=1e-6
                    )
                    # numbers for all records would be others
                    if same and first.drawn * count == second.drawn * few:
                        return not first.written or self._add_up(among, count, few, chance, allowed)
        except Exception:  # noqa: BLE001  batch norm of one value, say, or a gradient inside, or whatever they may raise
            pass
        return False

    def _seen(self, piece: Any, records: int, chance: bool, seed: int) -> _Seen:
        """Of a forward pass, after which nothing is kept for a backward pass."""
        kept, drawn = 0.0, [0]

        def count(x: Tensor) -> None:
            nonlocal kept
            kept += float(x.numel() * x.element_size())

        def look() -> Tensor:
            with torch.enable_grad(), saved_tensors_hooks(count, lambda _: None):
                return loss_per_record(self.losses(self.model, piece), records)

        losses = run_repeatably(
            self.model, look if chance else lambda: run_without_randomness(look, drawn), seed
        )
        return _Seen(
            losses.detach(),
            kept,
            sum(drawn),
            any(isinstance(x, BackwardCFunction) for x in graph_nodes(losses)),
        )

    def _add_up(self, group: Any, records: int, few: int, chance: bool, allowed: float) -> bool:
        """Whether gradients of two pieces add up to that of both: a derivative written by hand may mix records, too."""
        parameters = [p for p in self.model.parameters() if trainable(p)]

        def gradients(places: slice, size: int) -> list[Tensor]:
            def look() -> list[Tensor]:
                with torch.enable_grad():
                    loss = loss_per_record(self.losses(self.model, part(group, places)), size).sum()
                found = torch.autograd.grad(
                    loss, parameters, allow_unused=True, materialize_grads=True
                )
                return [g.to_dense() for g in found]

            return run_repeatably(
                self.model, look if chance else lambda: run_without_randomness(look)
            )

        both = gradients(slice(0, records), records)
        pairs = zip(
            gradients(slice(0, few), few),
            gradients(slice(few, records), records - few),
            strict=True,
        )
        left = norm_of(g - x - y for g, (x, y) in zip(both, pairs, strict=True))
        return left <= allowed * norm_of(both)


def has_batch_norm(model: nn.Module) -> bool:
    """Whether there is a layer that normalises over its batch, known by name."""
    return any(
        isinstance(module, nn.modules.batchnorm._NormBase) and module.training
        for module in model.modules()
    )
