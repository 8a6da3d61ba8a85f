"""Estimates for a composition before computing it: tilt, grid, and how far tails matter.

Everything here is an estimate by quadrature and saddle point. It steers the certified computation
and never enters a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect, bracket
from verax.privacy.pairs.base import DominatingPair
from verax.privacy.pld.discretise import Spacing

_TAIL = 1e-4  # share of delta that cut-off tails may cost, at most
# in units of 1/spread; beyond this nothing is gained: epsilon is at the end of the loss's range
_LARGEST_TILT = 1e4
_NODES, _FEWEST_NODES = 2**16, 500  # of all kinds of rounds together, and of one of very many kinds
_BLUR = 4.0  # estimates are shared between values of log delta this close


class SaddlePointEstimate:
    """Quadrature nodes of each kind of round, and cumulants of their composition under any tilt.

    A estimate is made for deltas of a certain size: losses so rare that they cannot matter at that
    delta are left out, for a tilt would blow them up out of proportion.
    """

    def __init__(
        self, rounds: Sequence[tuple[DominatingPair, int]], log_delta: float, tail: float
    ) -> None:
        pairs = [pair for pair, _ in rounds]
        self.counts = np.array([float(count) for _, count in rounds])[:, None]
        self._log_rounds = math.log(float(self.counts.sum()))
        self._log_tail = math.log(tail)
        self.key = (log_delta, tail)
        # of the composition, by which a tail cut off in one round counts
        log_total = max(math.fsum(n * math.log(pair.total_mass) for pair, n in rounds), 0.0)
        log_cut = log_delta + self._log_tail - self._log_rounds - log_total
        far = math.sqrt(-2.0 * log_cut) + 1.0
        left = -math.sqrt(2.0 * (self._log_rounds + 25.0))
        most = max(_NODES // len(pairs), _FEWEST_NODES)
        nodes = [_thinned(*pair.nodes(left, far), most) for pair in pairs]
        size = max(len(loss) for loss, _ in nodes)
        self.loss = np.stack(
            [np.pad(loss, (0, size - len(loss)), mode="edge") for loss, _ in nodes]
        )
        self._log_mass = np.stack(
            [np.pad(m, (0, size - len(m)), constant_values=-np.inf) for _, m in nodes]
        )
        self._bulk = np.array([[pair.bulk] for pair in pairs])
        beyond = np.cumsum(np.exp(self._log_mass)[:, ::-1], axis=1)[:, ::-1]
        self._log_mass[beyond < math.exp(max(log_cut, -740.0))] = -np.inf
        self._tilts: dict[float, float] = {}

    def _tilted(self, tilt: float) -> tuple[Array, Array]:
        """Tilted node masses of each kind of round, and the log normaliser."""
        logs = self._log_mass + tilt * self.loss
        top = logs.max(axis=1, keepdims=True)
        mass = np.exp(logs - top)
        norm = mass.sum(axis=1, keepdims=True)
        return mass / norm, top + np.log(norm)

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """K, K' and K'' of the composed loss at the tilt."""
        mass, log_norm = self._tilted(tilt)
        first = (mass * self.loss).sum(axis=1, keepdims=True)
        second = (mass * (self.loss - first) ** 2).sum(axis=1, keepdims=True)
        return (
            float((self.counts * log_norm).sum()),
            float((self.counts * first).sum()),
            float((self.counts * second).sum()),
        )

    def is_regular(self, tilt: float) -> bool:
        """Whether the tilted PLD is near a Gaussian, and epsilon far enough from 0."""
        _, mean, variance = self.cumulants(tilt)
        mass, _ = self._tilted(tilt)
        first = (mass * self.loss).sum(axis=1, keepdims=True)
        fourth = float((self.counts * mass * (self.loss - first) ** 4).sum())
        return tilt > 0.0 and mean > 0.1 * math.sqrt(variance) and fourth < 6.0 * variance**2

    def log_delta(self, tilt: float) -> float:
        """Saddle-point estimate of log delta at eps = K'(tilt)."""
        value, first, second = self.cumulants(tilt)
        return (
            value
            - tilt * first
            - math.log1p(tilt * (tilt + 1.0) * math.sqrt(2.0 * math.pi * second))
        )

    def tilt_for_delta(self, delta: float) -> float:
        """The tilt whose saddle point has this delta; 0 for deltas that need none."""
        goal = math.log(delta)
        if goal not in self._tilts:
            self._tilts[goal] = self._solve(lambda tilt: goal - self.log_delta(tilt))
        return self._tilts[goal]

    def tilt_for_epsilon(self, epsilon: float) -> float:
        """The tilt that moves the mean of the loss to epsilon; 0 if it is there already."""
        return self._solve(lambda tilt: self.cumulants(tilt)[1] - epsilon)

    def _solve(self, excess: Callable[[float], float]) -> float:
        """Root of an increasing function of the tilt, to a percent."""
        unit = 1.0 / math.sqrt(max(self.cumulants(0.0)[2], 1e-24))
        low, high = 1e-4 * unit, unit
        if excess(low) >= 0.0:
            return 0.0
        low, high = bracket(lambda t: excess(t) < 0.0, low, high, 4.0, _LARGEST_TILT * unit)
        if high > _LARGEST_TILT * unit:
            return high
        return bisect(lambda t: excess(t) < 0.0, low, high, rtol=0.01, geometric=True)[1]

    def spacings(self, tilt: float, width: float) -> list[Spacing]:
        """For each kind of round, points that put upper and lower log delta ``width`` apart."""
        mass, log_norm = self._tilted(tilt)
        distance = np.abs(self.loss - self._bulk)
        scales = np.sqrt(np.maximum((mass * distance**2).sum(axis=1), 1e-200))
        step = self._step(tilt, width, mass, distance, scales[:, None])
        # what lies left of the first point is moved up to it, so it must be negligible there
        with np.errstate(divide="ignore"):
            head = np.log(np.cumsum(np.exp(self._log_mass), axis=1)) + tilt * self.loss - log_norm
        result = []
        for row, scale in enumerate(scales.tolist()):
            last = int(np.flatnonzero(self._log_mass[row] > -np.inf)[-1]) + 1
            first = max(
                int(np.count_nonzero(head[row] < self._log_tail - 3.0 - self._log_rounds)) - 1, 0
            )
            low, high = (
                float(self.loss[row, first]),
                float(self.loss[row, min(last, self.loss.shape[1] - 1)]),
            )
            result.append(Spacing(step, low, high, scale))
        return result

    def _step(
        self, tilt: float, width: float, mass: Array, distance: Array, scales: Array
    ) -> float:
        mean = (mass * self.loss).sum(axis=1, keepdims=True)
        weight = mass * self.counts
        variance = max(float((weight * (self.loss - mean) ** 2).sum()), 1e-200)
        factor = max(tilt * (tilt + 1.0), 1.0 / variance) / 2.0

        def cost(step: float) -> float:
            gap = step * np.maximum(1.0, 0.5 * distance / scales)
            above = np.where(distance < step, distance * (step - distance), gap * gap / 6.0)
            below = np.where(distance < step / 2.0, distance * distance, gap * gap / 12.0)
            return float((weight * (above + below)).sum()) * factor

        start = math.sqrt(width / (factor * float(self.counts.sum())))
        low, high = bracket(lambda step: cost(step) < width, start, start, limit=1e6)
        return bisect(lambda step: cost(step) < width, low, high, rtol=0.05, geometric=True)[0]


def _thinned(loss: Array, log_mass: Array, most: int) -> tuple[Array, Array]:
    """At most ``most`` nodes: neighbours merged in their middle, the last at the largest loss."""
    if len(loss) <= most:
        return loss, log_mass
    every = -(-len(loss) // most)
    starts = np.arange(0, len(loss), every)
    ends = np.append(starts[1:], len(loss)) - 1
    middle = 0.5 * (loss[starts] + loss[ends])
    middle[-1] = loss[-1]
    return middle, np.logaddexp.reduceat(log_mass, starts)


class SaddlePointEstimates:
    """Estimates of one composition for deltas of any size, made when first needed."""

    def __init__(self, rounds: Sequence[tuple[DominatingPair, int]]) -> None:
        self._rounds = rounds
        self._made: dict[tuple[int, float], SaddlePointEstimate] = {}

    def at(self, log_delta: float, rtol: float) -> SaddlePointEstimate:
        """The estimate for deltas of this size, tails cut that do not matter at this accuracy."""
        size = math.floor(max(log_delta, -3e4) / _BLUR)
        tail = min(_TAIL, 0.1 * 10.0 ** math.floor(math.log10(rtol)))
        if (size, tail) not in self._made:
            self._made[size, tail] = SaddlePointEstimate(self._rounds, size * _BLUR, tail)
        return self._made[size, tail]

    def log_delta(self, epsilon: float, rtol: float) -> float:
        """A guess from above at the log delta at this epsilon."""
        log_delta = 0.0
        for _ in range(3):
            estimate = self.at(log_delta, rtol)
            tilt = estimate.tilt_for_epsilon(epsilon)
            value, first, _ = estimate.cumulants(tilt)
            log_delta = min(value - tilt * max(first, epsilon), 0.0)
        return log_delta
