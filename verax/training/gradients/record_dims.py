"""Along which dimension of a layer's output the records are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from verax.training.checks.trial_runs import one_hot
from verax.training.gradients.layer_rules.base import LayerCall

# Records are blocks of dimension 0.
_FOLDED = -1
# Records at most whose gradients are looked at to find where layers have them.
_ASKED = 8


class RecordDims:
    """The record dimension of each layer, found from the gradients of single records."""

    def __init__(self) -> None:
        self._found: dict[nn.Module, int] = {}

    def of(self, module: nn.Module) -> int | None:
        """The dimension; negative if records are blocks of dimension 0, None if not known yet."""
        return self._found.get(module)

    def find(self, calls: Sequence[LayerCall], losses: Tensor) -> bool:
        """Find each layer's record dimension, from one record's gradient; False if none.

        A layer in which no record that is asked has any gradient remains to be found.
        """
        asked = list(dict.fromkeys((len(losses) - 1, 0, len(losses) // 2)))
        for turn in range(_ASKED):
            some = [call for call in calls if call.module not in self._found]
            if not some:
                return True
            edges = [call.edges[0] for call in some]
            if turn >= len(asked):  # most records are dead there: ask one that is not
                all_of = torch.ones_like(losses)
                whole = torch.autograd.grad(
                    losses, edges, all_of, allow_unused=True, retain_graph=True
                )
                found = _record_with_gradient(whole, len(losses))
                if found is None:
                    return True
                asked.append(found)
            record = asked[turn]
            pick = one_hot(losses, record)
            gradients = torch.autograd.grad(
                losses, edges, pick, allow_unused=True, retain_graph=True
            )
            for call, g in zip(some, gradients, strict=True):
                if g is None or not bool(g.any()):
                    continue
                dim = _record_dim(g, record, len(losses))
                if dim is None:
                    return False
                self._found[call.module] = dim
        return True


def _record_dim(g: Tensor, record: int, records: int) -> int | None:
    """Where the records are: dimension 0 or 1, or _FOLDED if they are blocks of dimension 0."""
    for dim in range(min(g.dim(), 2)):
        if g.shape[dim] == records and _vanishes_elsewhere(g, dim, record):
            return dim
    if g.shape[0] % records == 0 and _vanishes_elsewhere(g.unflatten(0, (records, -1)), 0, record):
        return _FOLDED
    return None


def _record_with_gradient(gradients: Sequence[Tensor | None], records: int) -> int | None:
    """A record that has a gradient in one of these, if there is one."""
    for g in gradients:
        if g is None or not bool(g.any()):
            continue
        if g.shape[0] % records == 0:
            return int(g.reshape(records, -1).any(dim=1).nonzero()[0])
        if g.dim() > 1 and g.shape[1] == records:
            return int(g.movedim(1, 0).reshape(records, -1).any(dim=1).nonzero()[0])
    return None


def _vanishes_elsewhere(g: Tensor, dim: int, record: int) -> bool:
    """Whether the gradient vanishes for all records but one."""
    rest = g.detach().clone()
    rest.select(dim, record).zero_()
    return not bool(rest.any())
