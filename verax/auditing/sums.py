"""The released sums before noise, for gradients on one line, in units of the clip norm.

The target's gradient is +1; in the other world its ghost, drawn by the sampler just the same, has 0
(or -1 when the relation is ``replace``). The other records are *silent* (0) or *opposed* (-1).
Aggregates that are clipped as a whole leave a record's own gradient unbounded: there the target
outweighs everybody, so its clip-group's aggregate is +1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verax.auditing.runs import SampledRuns
from verax.mechanism import Batch, Clipping, Mixed
from verax.samplers.base import Indices

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Clean sums of runs: without the target, and where it is, with it and with its ghost."""

    without: Floats
    """One row per run; in rounds that have the target, what the other records alone give."""
    target: Floats
    ghost: Floats


@dataclass(frozen=True)
class CraftedData:
    """A data set the attacker chose, and the ghost it is told apart from."""

    clipping: Clipping
    replaced: bool
    opposed: bool

    @property
    def name(self) -> str:
        """In words."""
        return "others opposed" if self.opposed else "others silent"

    def sums(self, runs: SampledRuns, rng: np.random.Generator) -> Sums:
        """The sums before noise; ``rng`` draws the clip-groups of mixed clipping."""
        groups = _clip_groups(self.clipping)
        copies = runs.copies.astype(float)
        ghost = -1.0 if self.replaced else 0.0
        if not self.opposed:
            weight = copies if groups is None else np.ones_like(copies)
            return Sums(np.zeros(runs.sizes.shape), weight, ghost * weight)
        others = runs.sizes.copy()
        others[runs.run, runs.round] -= runs.copies
        if groups is None:
            without = -others.astype(float)
            base = without[runs.run, runs.round]
            return Sums(without, base + copies, base + ghost * copies)
        without = -_occupied(others, groups, rng)
        base = without[runs.run, runs.round]
        # is the target's clip-group one that others are in?
        shared = rng.random(len(base)) * groups < -base
        rest = base + shared
        return Sums(without, rest + 1.0, rest - 1.0 if self.replaced else base)


def _clip_groups(clipping: Clipping) -> int | None:
    """How many aggregates are clipped; None where every record is clipped on its own."""
    match clipping:
        case Batch():
            return 1
        case Mixed(groups=groups):
            return groups
    return None


def _occupied(sizes: Indices, groups: int, rng: np.random.Generator) -> Floats:
    """How many clip-groups have a record, when each of ``sizes`` records picks one uniformly."""
    # With this many records a group stays empty with probability below e^-40.
    full = math.ceil(groups * (math.log(groups) + 40.0))
    if groups == 1:
        return np.minimum(sizes, 1).astype(float)
    balls = np.minimum(sizes, full)
    taken = np.zeros(sizes.shape)
    pmf = np.zeros(groups + 1)
    pmf[0] = 1.0
    counts = np.arange(groups + 1)
    for ball in range(int(balls.max()) + 1):
        here = balls == ball
        if here.any():
            uniform = rng.random(int(here.sum())) * pmf.sum()
            occupied = np.searchsorted(np.cumsum(pmf), uniform, side="right")
            taken[here] = np.minimum(occupied, groups)
        pmf[1:] = pmf[1:] * (counts[1:] / groups) + pmf[:-1] * ((groups - counts[:-1]) / groups)
        pmf[0] = 0.0
    return taken
