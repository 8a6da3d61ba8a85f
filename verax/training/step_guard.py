"""Who steps: one thread at a time, and the trainer alone lets the optimizer step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class SingleCaller:
    """Lets one call in at a time; whoever comes meanwhile is refused, and changes nothing.

    >>> turn = SingleCaller()
    >>> with turn.hold("step"), turn.hold("save"):
    ...     pass
    Traceback (most recent call last):
    RuntimeError: save was called while the trainer is in step, by another thread...
    """

    def __init__(self) -> None:
        self._lock, self._doing = threading.Lock(), ""

    @contextmanager
    def hold(self, call: str) -> Iterator[None]:
        """Take the turn until the block ends."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"{call} was called while the trainer is in {self._doing or 'another call'}, by "
                "another thread or from within it: rounds are drawn, counted and released one "
                "after the other. Let one thread draw and step; for another model, make another "
                "trainer"
            )
        try:
            self._doing = call
            yield
        finally:
            self._doing = ""
            self._lock.release()


class StepGuard:
    """Steps an optimizer, and notices if somebody else does.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.1)
    >>> mine = StepGuard(optimizer)
    >>> mine.step()
    >>> mine.violation() is None
    True
    >>> optimizer.step()
    >>> mine.violation()
    'the optimizer was stepped by something else; only the trainer does, with...
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._mine, self._others = optimizer, False, False
        if hasattr(optimizer, "register_step_post_hook"):
            me = weakref.ref(self)
            hook = optimizer.register_step_post_hook(lambda *_: _note_step(me()))
            weakref.finalize(self, hook.remove)

    def step(self) -> None:
        """Let the optimizer step."""
        self._mine = True
        try:
            self._optimizer.step()
        finally:
            self._mine = False

    def note_step(self) -> None:
        """The optimizer stepped."""
        self._others = self._others or not self._mine

    def violation(self) -> str | None:
        """What somebody else did since the last step, in words."""
        # of frozen ones, too
        held = (p.grad for group in self._optimizer.param_groups for p in group["params"])
        if any(g is not None and bool(g.any()) for g in held):
            return (
                "gradients that were not clipped were found in the model; call backward() nowhere "
                "else"
            )
        if self._others:
            return (
                "the optimizer was stepped by something else; only the trainer does, with "
                "gradients that are noisy"
            )
        return None


def _note_step(watching: StepGuard | None) -> None:
    if watching is not None:
        watching.note_step()
