"""Several phases by what each of them guarantees alone.

Whoever sees all phases may look at one only, so that an attack on one phase is an attack on all.
And epsilons and deltas of the phases add up (basic composition), which is loose, but finite where
each of them is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from verax.privacy.curves.base import Curve
from verax.privacy.numerics.rounding import OPS_8M, down, up
from verax.privacy.pld.composition import BOTH, LOWER, Bounds, Sides

_LEAST_DELTA = 1e-300  # below which no phase has an epsilon
_HOPELESS = 0.7  # of a bound that is known, an estimate that is not worth a computation


@dataclass(frozen=True)
class StrongestAttack:
    """Several attacks on the same run: the largest lower bound counts. Nothing from above.

    After the first, those that by their estimates are far below it are not looked at.
    """

    curves: tuple[Curve, ...]

    def estimate(self, delta: float) -> float:
        return max(curve.estimate(delta) for curve in self.curves)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        most = 0.0
        for curve in self.curves:
            if not 0.0 < most < 1.0 or curve.estimate(most) > _HOPELESS * epsilon:
                most = max(most, curve.delta(epsilon, rtol, (LOWER,))[0])
        return most, 1.0

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        most = 0.0
        for curve in self.curves:
            if most == 0.0 or curve.estimate(delta) > _HOPELESS * most:
                most = max(most, curve.epsilon(delta, rtol, (LOWER,))[0])
        return most, math.inf


@dataclass(frozen=True, eq=False)
class BasicComposition:
    """The sums of the phases' epsilons and deltas, for where nothing else is finite.

    ``phases`` give for each phase an upper bound on epsilon(delta), in every direction.
    """

    phases: tuple[Callable[[float], float], ...]

    def estimate(self, delta: float) -> float:
        return self.epsilon(delta, 1e-3)[1]

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        each = max(down(delta / len(self.phases), OPS_8M), _LEAST_DELTA)
        if each * len(self.phases) > delta:
            return 0.0, math.inf
        return 0.0, up(math.fsum(epsilon(each) for epsilon in self.phases), OPS_8M)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        return 0.0, 1.0
