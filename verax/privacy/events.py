"""Lower bounds from one explicit test: what a single event proves about a mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from verax.privacy.composition import BOTH, Sides
from verax.privacy.pairs import Array

_ROUNDING = 1e-9  # relative allowance for the probabilities below


@dataclass(frozen=True)
class LargestBatch:
    """The test "some batch sum exceeds c" against shuffled batches ("how private is DP-SGD", theorem 4.2 and after).

    One of ``batches`` noisy sums is shifted by ``present`` with the record and by ``absent`` without it, in standard
    deviations of the noise; which one is hidden by the shuffle. Every threshold c gives a valid lower bound, in both
    directions.
    """

    batches: int
    present: float
    absent: float

    def _probabilities(self) -> tuple[Array, Array, Array, Array]:
        """P and Q of the event over many thresholds, and of its complement."""
        top = self.present + 10.0 + math.sqrt(2.0 * math.log(self.batches))
        c = np.linspace(-5.0, top, 20_001)
        rest = (self.batches - 1) * special.log_ndtr(c)
        with_record = special.log_ndtr(c - self.present) + rest
        without = special.log_ndtr(c - self.absent) + rest
        return -np.expm1(with_record), -np.expm1(without), np.exp(with_record), np.exp(without)

    def estimate(self, delta: float) -> float:
        """The bound itself."""
        return self.epsilon(delta, 1.0)[0]

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """The largest epsilon any threshold refutes; nothing is known from above."""
        p, q, p_not, q_not = self._probabilities()
        best = 0.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for high, low in ((p, q), (q_not, p_not)):
                gain = np.log((high * (1.0 - _ROUNDING) - delta) / (low * (1.0 + _ROUNDING)))
                best = max(best, float(np.max(gain, where=np.isfinite(gain), initial=0.0)))
        return best, math.inf

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """The largest delta any threshold refutes at this epsilon."""
        p, q, p_not, q_not = self._probabilities()
        factor = math.exp(min(epsilon, 700.0)) * (1.0 + _ROUNDING)
        gains = [np.max(high * (1.0 - _ROUNDING) - factor * low) for high, low in ((p, q), (q_not, p_not))]
        return max(0.0, *(float(g) for g in gains)), 1.0
