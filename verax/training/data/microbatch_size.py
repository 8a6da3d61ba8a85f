"""The micro-batch size for the gradient of a clip-group's mean loss.

A clip-group may be cut into pieces if no record's loss depends on the others. Only exactness is at
stake, since any function of a clip-group is protected by its clipping. Hence every clip-group is
tried by itself, whatever was found for an earlier one.
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
    MODEL_FAILURES,
    Losses,
    graph_nodes,
    loss_per_record,
    perturbed_weights,
    rounding_tolerance,
    run_repeatably,
    run_without_randomness,
)
from verax.training.data.microbatch import has_entries, part
from verax.training.gradients.factors import trainable

# Records of a piece at least, whatever the model.
_FEWEST = 32
# Bytes that a piece may hold for the backward pass.
_HELD_BYTES = 48.0 * 2**20
# Smaller clip-groups than this many pieces are not worth a trial.
_WORTH = 3
# Records that are tried, alone and among as many more and one.
_TRIED = 4
# Share of the usual rounding tolerance: to stay whole is never wrong.
_AGREE = 0.1


@dataclass(frozen=True)
class _ForwardPass:
    """Losses, bytes held for the backward pass, and how many numbers were drawn at random."""

    losses: Tensor
    held: float
    drawn: int
    custom_backward: bool
    """Whether a part of it has a custom derivative."""


class MicroBatchSize:
    """Chooses the size of pieces for clip-groups of one model under one loss.

    Args:
        model: any module.
        losses: from the model and a batch to one loss per record.
        most: records at once at most, unless the clip-group must stay whole.
    """

    def __init__(self, model: nn.Module, losses: Losses, most: int) -> None:
        self.model, self.losses, self._most = model, losses, most
        # Bytes that a record holds for the backward pass; 0 if not known yet.
        self._bytes = 0.0

    def pieces(self, group: Any, size: int) -> int:
        """Records to take at once: what they hold stays near the cache."""
        if size <= min(_WORTH * (self._piece_size() if self._bytes else _FEWEST), self._most):
            return size
        if not all(has_entries(x, size) for x in pytree.tree_leaves(group)):
            return size
        few = min(_TRIED, (size - 1) // 2, self._most)
        if few == 0 or has_batch_norm(self.model) or not self._records_independent(group, few):
            return size
        count = -(-size // self._piece_size())
        return -(-size // count)

    def _piece_size(self) -> int:
        return min(max(int(_HELD_BYTES / self._bytes), _FEWEST), self._most)

    def _records_independent(self, group: Any, few: int) -> bool:
        """Whether a few records' losses are the same alone and among others.

        With perturbed weights, since a branch that begins at zero has no effect so far. Where that
        fails because of what is drawn at random, once more with nothing drawn. A clip-group of a
        model that refuses so few records stays whole.
        """
        # Places that are in no row of 2, 3, 4 ... records.
        count, places = 2 * few + 1, slice(max(few - 1, 1), max(few - 1, 1) + few)
        alone, among = part(group, places), part(group, slice(0, count))
        try:
            with perturbed_weights(self.model):
                for chance in (True, False):
                    first = self._forward(alone, few, chance, 0)
                    second = self._forward(among, count, chance, 1)
                    each = (second.held - first.held) / (count - few)
                    self._bytes = self._bytes or max(each, 1.0)
                    allowed = _AGREE * rounding_tolerance([first.losses, *self.model.parameters()])
                    mine = second.losses[places]
                    same = torch.allclose(first.losses, mine, rtol=allowed, atol=1e-6)
                    # Numbers that are drawn for the whole batch would be others.
                    if same and first.drawn * count == second.drawn * few:
                        return not first.custom_backward or self._gradients_add_up(
                            among, count, few, chance, allowed
                        )
        except MODEL_FAILURES:  # on so few records
            return False
        return False

    def _forward(self, piece: Any, records: int, chance: bool, seed: int) -> _ForwardPass:
        """A trial forward pass, after which nothing is held for a backward pass."""
        held, drawn = 0.0, [0]

        def count(x: Tensor) -> None:
            nonlocal held
            held += float(x.numel() * x.element_size())

        def forward() -> Tensor:
            with torch.enable_grad(), saved_tensors_hooks(count, lambda _: None):
                return loss_per_record(self.losses(self.model, piece), records)

        losses = run_repeatably(
            self.model, forward if chance else lambda: run_without_randomness(forward, drawn), seed
        )
        custom = any(isinstance(x, BackwardCFunction) for x in graph_nodes(losses))
        return _ForwardPass(losses.detach(), held, sum(drawn), custom)

    def _gradients_add_up(
        self, group: Any, records: int, few: int, chance: bool, allowed: float
    ) -> bool:
        """Whether two pieces' gradients add up: a custom derivative may mix records."""
        parameters = [p for p in self.model.parameters() if trainable(p)]

        def gradients(places: slice, size: int) -> list[Tensor]:
            def forward() -> list[Tensor]:
                with torch.enable_grad():
                    loss = loss_per_record(self.losses(self.model, part(group, places)), size).sum()
                grad = torch.autograd.grad
                found = grad(loss, parameters, allow_unused=True, materialize_grads=True)
                return [g.to_dense() for g in found]

            return run_repeatably(
                self.model, forward if chance else lambda: run_without_randomness(forward)
            )

        both = gradients(slice(0, records), records)
        first = gradients(slice(0, few), few)
        second = gradients(slice(few, records), records - few)
        left = norm_of(g - x - y for g, x, y in zip(both, first, second, strict=True))
        return left <= allowed * norm_of(both)


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a known layer of the model normalises over its batch."""
    return any(
        isinstance(module, nn.modules.batchnorm._NormBase) and module.training
        for module in model.modules()
    )
