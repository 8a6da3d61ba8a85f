"""Secret seeds for a model's own randomness, such as dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from verax.randomness import Source


@contextmanager
def seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Torch's generators under this seed until the block ends, then as they were.

    >>> model = nn.Dropout(0.5)
    >>> with seeded(model, 7):
    ...     first = model(torch.ones(100))
    >>> with seeded(model, 7):
    ...     second = model(torch.ones(100))
    >>> torch.equal(first, second)
    True
    """
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    if devices:
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            yield
        return
    generator = torch.default_generator  # the same by hand, in a fifth of the time
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


class Draws:
    """Seeds for a model's passes over the data, each used once.

    They must be secret: under a seed that everybody knows, such as ``torch.manual_seed(0)`` at the
    top of a script, one record more moves all other records' dropout masks, and with them the whole
    sum. Under a secret one masks are independent, and those of the others can be taken to stay.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def next(self) -> int:
        """A new seed."""
        return int(self.source.generator().integers(0, 2**63))
