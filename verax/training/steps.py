"""Who steps the optimizer: what somebody else lets it do between two rounds is not the mechanism's."""

from __future__ import annotations

import weakref
from typing import Any


class OwnSteps:
    """Steps an optimizer, and notices if somebody else does.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.1)
    >>> mine = OwnSteps(optimizer)
    >>> mine.step()
    >>> mine.others
    False
    >>> optimizer.step()
    >>> mine.others
    True
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._mine = optimizer, False
        self.others = False
        if hasattr(optimizer, "register_step_post_hook"):
            me = weakref.ref(self)
            hook = optimizer.register_step_post_hook(lambda *_: _stepped(me()))
            weakref.finalize(self, hook.remove)

    def step(self) -> None:
        """Let the optimizer step."""
        self._mine = True
        try:
            self._optimizer.step()
        finally:
            self._mine = False

    def noticed(self) -> None:
        """The optimizer stepped."""
        self.others = self.others or not self._mine


def _stepped(watching: OwnSteps | None) -> None:
    if watching is not None:
        watching.noticed()
