"""Several phases by what each of them guarantees alone.

Whoever sees all phases may look at one only, so that an attack on one phase is an attack on all.
And epsilons and deltas of the phases add up (basic composition), which is loose, but finite where
each of them is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verax.privacy.curves.base import Curve
from verax.privacy.numerics.rounding import OPS_8M, down, up
from verax.privacy.pld.composition import BOTH, LOWER, UPPER, Bounds, Sides

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

    ``phases`` gives for each phase its curves, one per direction, all of which hold. They are made
    when first asked for. The estimate is infinite: whatever is finite is better.
    """

    phases: Callable[[], Sequence[Sequence[Curve]]]

    def estimate(self, delta: float) -> float:
        return math.inf

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        phases = self.phases()
        each = down(delta / len(phases), OPS_8M)
        found = [
            max(curve.epsilon(each, rtol, (UPPER,))[1] for curve in curves) for curves in phases
        ]
        return 0.0, up(math.fsum(found), OPS_8M)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        phases = self.phases()
        costs = [
            max([curve.estimate(_TYPICAL_DELTA) for curve in curves] + [_LEAST_COST])
            for curves in phases
        ]
        costs = [min(cost, _LARGEST_COST) for cost in costs]
        found = 0.0
        for curves, cost in zip(phases, costs, strict=True):
            share = down(epsilon * (cost / math.fsum(costs)), OPS_8M)
            found += max(curve.delta(share, rtol, (UPPER,))[1] for curve in curves)
        return 0.0, min(up(found, OPS_8M), 1.0)


_TYPICAL_DELTA = 1e-6  # where epsilon is divided among the phases; any division is valid
_LEAST_COST, _LARGEST_COST = 1e-12, 1e12
