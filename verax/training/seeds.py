"""Secret sources of a run's randomness: sampling, noise, and a model's own, such as dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


class RunSources:
    """The secret sources of a run, one for each use; the same seed repeats them all.

    Args:
        insecure_seed: None for fresh entropy, without which nothing is private.
    """

    def __init__(self, insecure_seed: int | None) -> None:
        source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self.noise = source.spawn("noise")
        self.groups = source.spawn("clip-groups")
        self.sampling = source.spawn("sampling")
        self.draws = Draws(source.spawn("draws"))

    def state(self, running: bool) -> dict[str, Any]:
        """What a checkpoint holds of them: no secret noise outlives its process."""
        uses = {"noise": self.noise, "clip-groups": self.groups, "draws": self.draws.source}
        seeded = {use: source.state() for use, source in uses.items() if not source.secure}
        return {
            "sampling": self.sampling.state() if running else None,
            "seeded": seeded or None,
        }

    def renew(self, seeded: dict[str, Any] | None) -> None:
        """Resume with fresh noise, clip-groups and dropout, or as a seeded run saved them."""
        if seeded is None:
            fresh = Source.system()
            sources = {use: fresh.spawn(use) for use in ("noise", "clip-groups", "draws")}
        else:
            sources = {use: Source.restore(state) for use, state in seeded.items()}
        self.noise, self.groups = sources["noise"], sources["clip-groups"]
        self.draws.source = sources["draws"]

    def shared_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What all processes of a run must know: who is in which batch and clip-group."""
        return self.groups.state(), self.sampling.state()

    def restore_shared(self, groups: dict[str, Any], sampling: dict[str, Any] | None) -> None:
        """Draw clip-groups and batches from these states; without one, sampling is over."""
        self.groups = Source.restore(groups)
        if sampling is not None:
            self.sampling = Source.restore(sampling)
