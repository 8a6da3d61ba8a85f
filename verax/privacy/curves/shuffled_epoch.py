"""One epoch of shuffled batches, asked directly: no chord between the question and the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.numerics.roots import bisect
from verax.privacy.pairs.shuffled.epoch import LEAST_DELTA, Neighbours, epoch_delta
from verax.privacy.pairs.shuffled.hub import Epoch, ideal_delta
from verax.privacy.pld.composition import BOTH, Bounds, Sides

_CLOSE = 1e-3  # of epsilon, how close to the smallest one found a search ends
_ROUGH = 0.02


@dataclass(frozen=True)
class ShuffledEpoch:
    """An upper bound on one direction's curve of one epoch (docs/shuffle.md, theorem S1)."""

    neighbours: Neighbours
    epoch: Epoch
    direction: int

    def estimate(self, delta: float) -> float:
        """Where the bound would be if the hub told nothing."""
        geometry = self.neighbours.geometries[self.direction]
        return self._epsilon(lambda e: ideal_delta(geometry, e, self.epoch) <= delta, delta, _ROUGH)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        known = gaussian_delta(self.neighbours.fixed_shift, epsilon)
        if known <= LEAST_DELTA:  # fixed batches say enough
            return 0.0, known
        goal = ideal_delta(self.neighbours.geometries[self.direction], epsilon, self.epoch)
        return 0.0, epoch_delta(self.neighbours, self.direction, self.epoch, epsilon, goal)

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        def meets(epsilon: float) -> bool:
            found = epoch_delta(self.neighbours, self.direction, self.epoch, epsilon, delta)
            return found <= delta

        return 0.0, self._epsilon(meets, delta, _CLOSE)

    def _epsilon(self, meets: Callable[[float], bool], delta: float, rtol: float) -> float:
        most = gaussian_epsilon(self.neighbours.fixed_shift, delta)
        if most == 0.0 or meets(0.0):
            return 0.0
        return bisect(meets, most, 0.0, rtol=rtol)[0]
