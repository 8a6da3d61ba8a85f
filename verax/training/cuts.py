"""How many records of a clip-group go through the model together where the gradient of their mean loss is wanted.

A clip-group may be cut into pieces if no record's loss depends on the others. Only exactness is at stake, since any
function of a clip-group is protected by its clipping. Hence each is asked by itself, not what an earlier one answered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from verax.training.pieces import part
from verax.training.trials import Losses, nearby, one_each, repeatable, rounding_of, steady

_FEWEST = 32  # records at once, whatever the model
_KEPT = 48.0 * 2**20  # bytes that those at once may keep for the backward pass
_WORTH = 3  # so many times what may go at once may a clip-group have before asking is worth its time
_ASKED = 4  # records that are asked, alone and among as many more


class Cuts:
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
        if not all(isinstance(x, Tensor) and x.dim() and len(x) == size for x in pytree.tree_leaves(group)):
            return size
        if normalises(self.model) or not self._apart(group, min(_ASKED, size // 2, self._most)):
            return size
        count = -(-size // self._fitting())
        return -(-size // count)

    def _fitting(self) -> int:
        return min(max(int(_KEPT / self._bytes), _FEWEST), self._most)

    def _apart(self, group: Any, few: int) -> bool:
        """Whether a few records' losses are the same alone and among others, with weights nearby.

        Nearby, since a branch that begins at zero is closed so far. Where that fails because of what is drawn at
        random, which depends on shapes, once more with nothing drawn.
        """
        alone, among = (part(group, slice(0, most)) for most in (few, 2 * few))
        allowed = rounding_of(list(self.model.parameters()))
        with nearby(self.model):
            for chance in (True, False):
                try:
                    first, kept = self._seen(alone, few, chance)
                    second, more = self._seen(among, 2 * few, chance)
                except (ValueError, RuntimeError, TypeError):  # batch norm of one value, or a gradient inside, say
                    return False
                self._bytes = self._bytes or max((more - kept) / few, 1.0)
                if torch.allclose(first, second[:few], rtol=allowed, atol=1e-6):
                    return True
        return False

    def _seen(self, piece: Any, records: int, chance: bool) -> tuple[Tensor, float]:
        """Losses, and the bytes that would be kept for a backward pass, which are not kept here."""
        kept = 0.0

        def count(x: Tensor) -> None:
            nonlocal kept
            kept += float(x.numel() * x.element_size())

        def look() -> Tensor:
            with torch.enable_grad(), saved_tensors_hooks(count, lambda _: None):
                return one_each(self.losses(self.model, piece), records).detach()

        return repeatable(self.model, look if chance else lambda: steady(look)), kept


def normalises(model: nn.Module) -> bool:
    """Whether there is a layer that normalises over its batch, known by name."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) and module.training for module in model.modules())
