"""One direction of a run: rounds in, certified bounds on delta(eps) and epsilon(delta) out, as narrow as asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import optimize

from verax.privacy import closed_form, loss
from verax.privacy.compose import Composed, compose
from verax.privacy.pairs import Pair
from verax.privacy.sketch import Sketch

UPPER, LOWER = 1, -1
Sides = tuple[int, ...]
BOTH: Sides = (LOWER, UPPER)
_ATTEMPTS = 10
_FLOOR = 1e-9  # an epsilon below this need not be bracketed more narrowly than this
_SHARE = 0.6  # of the width allowed, what the grid is planned to use
_REACH = 4.5  # standard deviations around its mean within which a composed law is used again


@dataclass(frozen=True)
class Round:
    """A dominating pair; ``dominated`` is a pair that an attack achieves, if it is not the same.

    ``symmetric`` rounds are dominated by the pair in either direction, as the attacker may choose round by round.
    """

    pair: Pair
    dominated: Pair | None = None
    symmetric: bool = False

    def reverse(self) -> Round:
        """The other direction."""
        return Round(self.pair.reverse(), self.dominated and self.dominated.reverse(), self.symmetric)


class Composition:
    """A product of rounds, each repeated. Equal rounds, and all Gaussian ones, are merged first.

    Composed laws are kept: further questions nearby cost a dot product, not a new composition.
    """

    def __init__(self, rounds: Sequence[tuple[Round, int]]) -> None:
        self.rounds = _merge(rounds)
        self._laws: dict[int, list[Composed]] = {UPPER: [], LOWER: []}
        self._sketch: Sketch | None = None

    @property
    def gaussian_mu(self) -> float | None:
        """mu if the whole run is one Gaussian mechanism, for which everything is in closed form; else None."""
        (rnd, count), *more = self.rounds
        return rnd.pair.gaussian_shift * math.sqrt(count) if not more and rnd.pair.is_gaussian else None

    @property
    def _supremum(self) -> float:
        """The largest loss there can be, but for mass lost to infinity."""
        return math.fsum([count * (math.inf if rnd.symmetric else rnd.pair.supremum) for rnd, count in self.rounds])

    @property
    def sketch(self) -> Sketch:
        """The estimates that steer the computation."""
        self._sketch = self._sketch or Sketch([(rnd.pair, count) for rnd, count in self.rounds])
        return self._sketch

    def estimate(self, delta: float) -> float:
        """A rough epsilon, to choose among directions by; never a bound."""
        if (mu := self.gaussian_mu) is not None:
            return closed_form.gaussian_epsilon(mu, delta)
        return self.sketch.cumulants(self.sketch.tilt_for_delta(delta))[1]

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on epsilon(delta); a side not asked for may be trivial.

        If only the upper side is asked for, a value of ``enough`` will do.
        """
        if (mu := self.gaussian_mu) is not None:
            return closed_form.gaussian_epsilon(mu, delta, LOWER), closed_form.gaussian_epsilon(mu, delta, UPPER)
        tilt = self.sketch.tilt_for_delta(delta)
        near = max(self.sketch.cumulants(tilt)[1], _FLOOR)
        plan = _Plan(tilt, math.log(delta), tilt * rtol * near)
        return self._narrow(
            plan, sides, enough, lambda law: _solve_epsilon(law, delta),
            lambda low, high: (high - low) / max(rtol * high, _FLOOR), lambda upper: upper,
        )  # fmt: skip

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on delta(epsilon); a side not asked for may be trivial."""
        if (mu := self.gaussian_mu) is not None:
            return closed_form.gaussian_delta(mu, epsilon, LOWER), closed_form.gaussian_delta(mu, epsilon, UPPER)
        if epsilon > self._supremum * (1.0 + 1e-9):
            return 0.0, min(math.fsum([count * rnd.pair.up.lost for rnd, count in self.rounds]), 1.0)
        tilt = self.sketch.tilt_for_epsilon(epsilon)
        value, first, _ = self.sketch.cumulants(tilt)
        plan = _Plan(tilt, min(value - tilt * max(first, epsilon), 0.0) - 7.0, rtol)
        lower, upper = self._narrow(
            plan, sides, enough, lambda law: law.delta(epsilon),
            lambda low, high: (high - low) / (rtol * high) if high > 0.0 else 0.0, lambda upper: epsilon,
        )  # fmt: skip
        return lower, min(upper, 1.0)

    def _narrow(
        self,
        plan: _Plan,
        sides: Sides,
        enough: float,
        read: Callable[[Composed], float],
        excess: Callable[[float, float], float],
        place: Callable[[float], float],
    ) -> tuple[float, float]:
        """Compose ever more finely until the bounds are as close as asked (``excess`` at most 1)."""
        width = _SHARE * max(plan.width, 1e-9)
        lower, upper = 0.0, math.inf
        for attempt in range(_ATTEMPTS):
            upper = min((read(law) for law in self._laws[UPPER]), default=math.inf)
            lower = max((read(law) for law in self._laws[LOWER]), default=0.0)
            ratio = excess(lower, upper)
            if sides == BOTH:
                if ratio <= 1.0:
                    break
            elif attempt > 0 or upper <= enough or self._reusable(sides[0], place(upper), plan.tilt, width):
                break
            if attempt > 0:
                width *= min(0.5, 0.7 / ratio if math.isfinite(ratio) else 0.1)
            try:
                fresh = {side: self._compose(side, plan, width) for side in sides}
            except FloatingPointError:  # a grid too coarse for a lower bound
                continue
            for side, law in fresh.items():
                self._laws[side].append(law)
        return lower, upper

    def _reusable(self, side: int, place: float, tilt: float, width: float) -> bool:
        """Whether a law at hand is fine enough here and centred near enough; a matter of width, never of soundness."""
        fine = [law for law in self._laws[side] if law.step <= 1.2 * self.sketch.step(tilt, width)]
        return any(abs(place - law.mean) <= _REACH * law.spread for law in fine)

    def _compose(self, side: int, plan: _Plan, width: float) -> Composed:
        step = self.sketch.step(plan.tilt, width)
        ranges = self.sketch.range(plan.tilt, plan.log_delta)
        laws = [
            (_discretise(rnd, side, step, low, high), count)
            for (rnd, count), (low, high) in zip(self.rounds, ranges, strict=True)
        ]
        return compose(laws, plan.tilt, side)


@dataclass(frozen=True)
class _Plan:
    """Where to tilt, how small a delta must still be seen, and how far apart in log delta the two sides may be."""

    tilt: float
    log_delta: float
    width: float


def _discretise(rnd: Round, side: int, step: float, low: float, high: float) -> loss.Discrete:
    if side == LOWER:
        if rnd.symmetric:
            raise ValueError("a symmetric round has no lower law of its own; compose its attacks instead")
        return loss.lower(rnd.dominated or rnd.pair, step, low, high)
    if rnd.symmetric:
        return loss.upper_symmetric(rnd.pair, step, max(high, -low))
    return loss.upper(rnd.pair, step, low, high)


def _merge(rounds: Sequence[tuple[Round, int]]) -> list[tuple[Round, int]]:
    """Add up equal rounds; all Gaussian ones together are one Gaussian with the root of the summed squares."""
    counts: dict[Round, int] = {}
    for rnd, count in rounds:
        counts[rnd] = counts.get(rnd, 0) + count
    gaussian = math.fsum([r.pair.gaussian_shift**2 * n for r, n in counts.items() if r.pair.is_gaussian])
    merged = [(r, n) for r, n in counts.items() if not r.pair.is_gaussian]
    return merged + ([(Round(Pair.gaussian(math.sqrt(gaussian))), 1)] if gaussian > 0.0 or not merged else [])


def _solve_epsilon(law: Composed, delta: float) -> float:
    """Where the law's bound on delta(eps) crosses delta, on the safe side of the crossing."""

    def excess(epsilon: float) -> float:
        value = law.delta(epsilon)
        return math.log(value / delta) if value > 0.0 else -1e3

    low, high = 0.0, max(law.stop, law.step)
    if excess(high) > 0.0:
        return math.inf if law.sign > 0 else high
    if excess(low) <= 0.0:
        if law.sign > 0:
            return 0.0
        # far left of its window a lower law proves nothing: walk in from the right to where it does
        for place in (max(law.mean + k * law.spread, 0.0) for k in range(6, -7, -1)):
            if excess(place) > 0.0:
                low = place
                break
            high = place
        else:
            return 0.0
    root = float(optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-12))
    nudge = 1e-12 * (1.0 + root)
    while law.sign * excess(root) > 0.0 and root > 0.0:
        root, nudge = max(root + law.sign * nudge, 0.0), 2.0 * nudge
    return root
