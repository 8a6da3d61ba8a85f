"""Snapshots of a model's buffers, and of its weights if wanted: to compare with and to restore."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Snapshot:
    """The tensors of every module, by place and by value.

    Args:
        model: any module.
        weights: whether to include the parameters.

    >>> model = nn.BatchNorm1d(2)
    >>> before = Snapshot(model)
    >>> _ = model(torch.ones(3, 2))
    >>> sorted(before.changed())
    ['num_batches_tracked', 'running_mean', 'running_var']
    >>> before.restore()
    >>> model.running_mean
    tensor([0., 0.])
    """

    def __init__(self, model: nn.Module, weights: bool = False) -> None:
        self._model = model
        kinds = ("_buffers", "_parameters") if weights else ("_buffers",)
        self._places = [
            (module, kind, dict(getattr(module, kind).items()))
            for module in model.modules()
            for kind in kinds
        ]
        self._children = [
            (module, set(module._modules.keys()), dict(vars(module))) for module in model.modules()
        ]
        tensors = {id(x): x for _, _, held in self._places for x in held.values() if x is not None}
        self._values = {key: (x, x.requires_grad, x.detach().clone()) for key, x in tensors.items()}
        self._buffers = {name: id(x) for name, x in model.named_buffers()}

    def names(self) -> set[str]:
        """Names of the buffers."""
        return set(self._buffers)

    def holds(self, name: str, now: Tensor | None) -> bool:
        """Whether the buffer had this value."""
        value = self._values[self._buffers[name]][2] if name in self._buffers else None
        return tensors_equal(value, now)

    def changed(self) -> set[str]:
        """Names of the buffers that have another value now, are new, or are gone."""
        now = dict(self._model.named_buffers())
        return {name for name in self.names() | now.keys() if not self.holds(name, now.get(name))}

    @torch.no_grad()
    def restore(self, new: bool = True) -> None:
        """Restore the same tensors in the same places with the same values.

        With ``new``, what was added since is removed.
        """
        # .keys(): the containers of TorchScript cannot be iterated over
        for module, children, attributes in self._children if new else ():
            for key in set(module._modules.keys()) - children:
                del module._modules[key]
                # the attribute was no module, None say, until a forward pass made it one
                if key in attributes:
                    vars(module)[key] = attributes[key]
        for module, kind, held in self._places:
            now: Any = getattr(module, kind)
            for key in set(now.keys()) - set(held) if new else ():
                del now[key]
            for key, x in held.items():
                if key not in now or now[key] is not x:
                    now[key] = x
        for x, requires_grad, value in self._values.values():
            if not tensors_equal(x, value):
                x.copy_(value)
            if x.requires_grad is not requires_grad:
                x.requires_grad_(requires_grad)


def tensors_equal(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether shape, type, device and entries are the same; NaN equals NaN.

    >>> tensors_equal(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]))
    True
    """
    if first is None or second is None:
        return first is second
    if first.shape != second.shape or first.dtype != second.dtype or first.device != second.device:
        return False
    if first.is_meta or torch.equal(first, second):
        return True
    if not first.is_floating_point():
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())
