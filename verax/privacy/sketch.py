"""A cheap look at a composition before computing it: where to tilt, how fine a grid, how far the tails matter.

Everything here is an estimate by quadrature and saddle point. It steers the certified computation and never enters a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from verax.privacy.pairs import Array, Pair

_NODES = 20_000
_LARGEST_TILT = 1e5  # beyond this nothing is gained: epsilon is at the end of the loss's range
_TAIL = 1e-7  # share of delta that cut-off tails may cost


class Sketch:
    """Nodes, losses and P-masses of each kind of round, and cumulants of their composition under any tilt."""

    def __init__(self, rounds: Sequence[tuple[Pair, int]]) -> None:
        self._pairs = [pair for pair, _ in rounds]
        self.counts = np.array([float(count) for _, count in rounds])[:, None]
        self._tilts: dict[float, float] = {}
        self._tilt_cap = 0.0
        self._log_tail = 0.0
        self._cover(8.0, -60.0)

    def _cover(self, tilt_cap: float, log_tail: float) -> None:
        """Lay nodes that hold the mass of the law under all tilts up to a cap, and its tail down to a probability."""
        self._tilt_cap, self._log_tail = max(tilt_cap, self._tilt_cap), min(log_tail, self._log_tail)
        far = math.sqrt(-2.0 * self._log_tail) + 1.0
        x = []
        for pair in self._pairs:
            up, down = max(pair.up.shifts), max(pair.down.shifts)
            pull = down * self._tilt_cap
            if down > 0.0 and 0.0 in pair.down.shifts:  # Q's likelihood levels off to the right, and with it the pull
                pull = min(pull, (math.log1p(pull * down) + 20.0) / down)
            right = max(up * (self._tilt_cap + 1.0) + pull + 9.0, up + far)
            x.append((-max(9.0, far), right, min(0.125, 0.5 / pair.max_shift)))
        size = min(max(math.ceil((high - low) / dx) for low, high, dx in x), _NODES)
        nodes = np.stack([np.linspace(low, high, size) for low, high, _ in x])
        self.nodes = nodes
        up = np.stack([pair.up.log_likelihood(row) for pair, row in zip(self._pairs, nodes, strict=True)])
        down = np.stack([pair.down.log_likelihood(-row) for pair, row in zip(self._pairs, nodes, strict=True)])
        spacing = nodes[:, 1:2] - nodes[:, 0:1]
        self.loss = up - down
        self.log_mass = up - nodes * nodes / 2.0 + np.log(spacing / math.sqrt(2.0 * math.pi))

    def _tilted(self, tilt: float) -> tuple[Array, Array]:
        """Tilted node masses of each kind of round, and the log normaliser."""
        logs = self.log_mass + tilt * self.loss
        top = logs.max(axis=1, keepdims=True)
        mass = np.exp(logs - top)
        norm = mass.sum(axis=1, keepdims=True)
        return mass / norm, top + np.log(norm)

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """K, K' and K'' of the composed loss at the tilt."""
        while tilt > self._tilt_cap:
            self._cover(2.0 * tilt, self._log_tail)
        mass, log_norm = self._tilted(tilt)
        first = (mass * self.loss).sum(axis=1, keepdims=True)
        second = (mass * (self.loss - first) ** 2).sum(axis=1, keepdims=True)
        return (
            float((self.counts * log_norm).sum()),
            float((self.counts * first).sum()),
            float((self.counts * second).sum()),
        )

    def is_regular(self, tilt: float) -> bool:
        """Whether the tilted law is so near a Gaussian, and epsilon so far from 0, that the saddle point can be trusted."""
        _, mean, variance = self.cumulants(tilt)
        mass, _ = self._tilted(tilt)
        first = (mass * self.loss).sum(axis=1, keepdims=True)
        fourth = float((self.counts * mass * (self.loss - first) ** 4).sum())
        return tilt > 0.0 and mean > 0.1 * math.sqrt(variance) and fourth < 0.5 * variance**2

    def log_delta(self, tilt: float) -> float:
        """Saddle-point estimate of log delta at eps = K'(tilt)."""
        value, first, second = self.cumulants(tilt)
        return value - tilt * first - _log_width(tilt, second)

    def tilt_for_delta(self, delta: float) -> float:
        """The tilt whose saddle point has the given delta; 0 if delta is so large that none is needed."""
        goal = math.log(delta)
        if goal not in self._tilts:
            self._tilts[goal] = self._solve(lambda tilt: goal - self.log_delta(tilt))
        return self._tilts[goal]

    def tilt_for_epsilon(self, epsilon: float) -> float:
        """The tilt that moves the mean of the loss to epsilon; 0 if it is there already."""
        return self._solve(lambda tilt: self.cumulants(tilt)[1] - epsilon)

    def _solve(self, excess: Callable[[float], float]) -> float:
        """Root of an increasing function of the tilt, to a part in a thousand."""
        low, high = 1e-6, 1.0
        if excess(low) >= 0.0:
            return 0.0
        while excess(high) < 0.0:
            low, high = high, high * 4.0
            if high > _LARGEST_TILT:
                return high
        while high > 1.003 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
        return high

    def step(self, tilt: float, width: float) -> float:
        """The grid step at which upper and lower log delta differ by about ``width``."""
        mass, _ = self._tilted(tilt)
        bulk = np.stack([pair.loss(np.zeros(1)) for pair in self._pairs])
        distance = np.abs(self.loss - bulk)
        mean = (mass * self.loss).sum(axis=1, keepdims=True)
        variance = float((self.counts * mass * (self.loss - mean) ** 2).sum())
        factor = max(tilt * (tilt + 1.0), 1.0 / variance) / 2.0

        def cost(step: float) -> float:
            above = np.where(distance < step, distance * (step - distance), step * step / 6.0)
            below = np.where(distance < step / 2.0, distance * distance, step * step / 12.0)
            return float((self.counts * mass * (above + below)).sum()) * factor

        low, high = 1e-12, 1e6
        while high > 1.05 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if cost(middle) < width else (low, middle)
        return low

    def range(self, tilt: float, log_delta: float) -> list[tuple[float, float]]:
        """For each kind of round, the losses between which mass matters at this delta and tilt."""
        log_rounds = math.log(float(self.counts.sum()))
        log_cut = log_delta + math.log(_TAIL) - log_rounds
        if log_cut < self._log_tail:
            self._cover(self._tilt_cap, log_cut - 1.0)
        tail = np.cumsum(np.exp(self.log_mass)[:, ::-1], axis=1)[:, ::-1]
        head = np.cumsum(self._tilted(tilt)[0], axis=1)
        result = []
        for row in range(len(self._pairs)):
            last = min(int(np.searchsorted(-tail[row], -math.exp(log_cut))), tail.shape[1] - 1)
            first = max(int(np.searchsorted(head[row], _TAIL / 10.0 * math.exp(-log_rounds))) - 1, 0)
            result.append((float(self.loss[row, first]), float(self.loss[row, last])))
        return result


def _log_width(tilt: float, variance: float) -> float:
    """log of the factor by which exp(K - t K') overestimates delta, a smooth guess that is 0 at tilt 0."""
    return math.log1p(tilt * (tilt + 1.0) * math.sqrt(2.0 * math.pi * variance))
