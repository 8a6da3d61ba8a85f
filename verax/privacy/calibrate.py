"""Invert a guarantee: the least noise, most steps or largest rate that meets a target epsilon.

Every function evaluates the proved upper bound just as ``Guarantee.epsilon(delta)`` does, and
returns a value at which it has seen the target met, together with having seen a value a hair
further on fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from verax import checks
from verax.mechanism import Clipping, Individual, Mechanism
from verax.privacy.guarantee import Guarantee
from verax.privacy.numerics.roots import root
from verax.privacy.samplers.base import pricing_of
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson

_CLOSE = 1.0006  # ratio of a failing to a passing value at which a search over the reals ends
_SMALLEST_NOISE, _LARGEST_NOISE, _MOST_STEPS, _SMALLEST_RATE = 1e-3, 1e7, 1e12, 1e-12
_NO_EPSILON = 1e-12  # an epsilon that is as good as 0
_INFINITE = 50.0  # the log of how far an infinite epsilon exceeds its target


def noise_multiplier(
    sampler: Sampler,
    epsilon: float,
    delta: float,
    *,
    clipping: Clipping | None = None,
    relation: str = "",
    group: int = 1,
) -> float:
    """The smallest noise multiplier whose upper bound is at most ``epsilon``, to 0.1 %.

    Zero if that needs none; otherwise nothing below 0.001 is tried. A planner's noise for the same
    run may be larger by a part in a thousand: it stops sooner (docs/planning.md).

    >>> from verax import Poisson, calibrate
    >>> sampler = Poisson(rate=0.01, steps=1000)
    >>> round(calibrate.noise_multiplier(sampler, epsilon=1.0, delta=1e-5), 2)
    1.42
    """
    search = _Search(epsilon, delta, _SMALLEST_NOISE, _LARGEST_NOISE, rising=False)
    mechanism = _mechanism(sampler, 0.0, clipping, relation)
    similar = replace(mechanism, sampler=pricing_of(sampler).similar())
    if mechanism.guarantee(group).epsilon(delta).upper <= epsilon:
        return 0.0
    start = search.rough(lambda noise: replace(similar, noise_multiplier=noise).guarantee(group), 1)
    found = search.solve(
        lambda noise: replace(mechanism, noise_multiplier=noise).guarantee(group), start
    )
    if math.isinf(found):
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} needs "
            f"noise_multiplier above {_LARGEST_NOISE:g}: "
            "raise epsilon or delta"
        )
    return found


def _mechanism(
    sampler: Sampler, noise_multiplier: float, clipping: Clipping | None, relation: str
) -> Mechanism:
    clipped = Individual() if clipping is None else clipping
    return Mechanism(sampler, noise_multiplier, clipped, relation)


def steps(
    rate: float,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    *,
    clipping: Clipping | None = None,
    relation: str = "",
    group: int = 1,
) -> int:
    """The most Poisson steps whose upper bound is at most ``epsilon``; one more does not meet it.

    >>> from verax import calibrate
    >>> 900 < calibrate.steps(rate=0.01, noise_multiplier=1.0, epsilon=1.8, delta=1e-5) < 1000
    True
    """
    search = _Search(epsilon, delta, 1.0, _MOST_STEPS, rising=True, whole=True)
    mechanism = _mechanism(Poisson(rate, 1), noise_multiplier, clipping, relation)

    def run(count: float) -> Guarantee:
        return replace(mechanism, sampler=Poisson(rate, int(count))).guarantee(group)

    if run(1.0).epsilon(delta).upper > epsilon:
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} does not allow one step: "
            f"raise noise_multiplier (now {noise_multiplier!r}) or epsilon"
        )
    found = search.solve(run, round(search.rough(run, 1e3)))
    if math.isinf(found):
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} allows more than {_MOST_STEPS:g} steps: "
            "lower noise_multiplier"
        )
    return int(found)


def rate(
    steps: int,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    *,
    clipping: Clipping | None = None,
    relation: str = "",
    group: int = 1,
) -> float:
    """The largest Poisson rate whose upper bound is at most ``epsilon``.

    >>> from verax import calibrate
    >>> 0.009 < calibrate.rate(steps=1000, noise_multiplier=1.0, epsilon=1.8, delta=1e-5) < 0.01
    True
    """
    search = _Search(epsilon, delta, _SMALLEST_RATE, 1.0, rising=True)
    mechanism = _mechanism(Poisson(1.0, steps), noise_multiplier, clipping, relation)

    def run(q: float) -> Guarantee:
        return replace(mechanism, sampler=Poisson(q, steps)).guarantee(group)

    if run(1.0).epsilon(delta).upper <= epsilon:
        return 1.0
    found = search.solve(run, search.rough(run, 0.01))
    if math.isnan(found):
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} allows no rate above {_SMALLEST_RATE:g}: "
            "raise noise_multiplier"
        )
    return found


@dataclass(frozen=True)
class _Search:
    """A search between ``lowest`` and ``highest`` for the last value that meets the target.

    ``rising`` says whether epsilon grows with the value, ``whole`` that it is a whole number.
    """

    target: float
    delta: float
    lowest: float
    highest: float
    rising: bool
    whole: bool = False

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.target)

    def rough(self, run: Callable[[float], Guarantee], start: float) -> float:
        """Where the estimated epsilon meets the target, to about a percent."""
        sign = 1.0 if self.rising else -1.0
        lowest, highest = math.log(self.lowest), math.log(self.highest)
        low = high = math.log(min(max(start, self.lowest), self.highest))

        def excess(log_value: float) -> float:
            guess = max(curve.estimate(self.delta) for curve in run(math.exp(log_value)).uppers)
            return sign * self._log_excess(guess)

        while excess(low) > 0.0:
            if low <= lowest:
                return self.lowest
            low, high = max(low - math.log(4.0), lowest), low
        while excess(high) < 0.0:
            if high >= highest:
                return self.highest
            low, high = high, min(high + math.log(4.0), highest)
        return math.exp(root(excess, low, high, xtol=0.01)) if low < high else math.exp(low)

    def solve(self, run: Callable[[float], Guarantee], start: float) -> float:
        """The last value whose proved upper bound meets the target, from ``start`` outwards.

        Infinite if the boundary lies beyond ``highest``, nan if it lies below ``lowest``.
        """
        known: dict[float, float] = {}

        def excess(value: float) -> float:
            if value not in known:
                known[value] = self._log_excess(run(value).epsilon(self.delta).upper)
            return known[value]

        value = other = float(start)
        meets = excess(value) <= 0.0
        # a little further than a straight line says
        factor = math.exp(min(max(0.02, 1.5 * abs(excess(value))), 0.7))
        up = meets == self.rising  # which way the boundary lies
        end = self.highest if up else self.lowest
        while (excess(other) <= 0.0) == meets:
            if other == end:
                if meets:
                    return math.inf if self.rising else end
                return math.nan if self.rising else math.inf
            value = other
            other = min(max(other * factor if up else other / factor, self.lowest), self.highest)
            other = float(math.ceil(other) if up else math.floor(other)) if self.whole else other
            factor = factor * factor
        good, bad = (value, other) if meets else (other, value)
        return self._close_in(excess, good, bad)

    def _log_excess(self, epsilon: float) -> float:
        if math.isinf(epsilon):
            return _INFINITE
        return math.log(max(epsilon, _NO_EPSILON) / self.target)

    def _close_in(self, excess: Callable[[float], float], good: float, bad: float) -> float:
        """Close in on the boundary between a value that meets the target and one that does not.

        Regula falsi on log epsilon against log of the parameter (nearly a straight line), with the
        stale end's weight halved (the Illinois rule).
        """
        at_good, at_bad = excess(good), excess(bad)
        while (abs(bad - good) > 1.0) if self.whole else (max(good / bad, bad / good) > _CLOSE):
            share = min(max(at_good / (at_good - at_bad), 0.02), 0.98) if at_bad > at_good else 0.5
            middle = good * (bad / good) ** share
            if self.whole:
                low, high = sorted((good, bad))
                middle = min(max(float(round(middle)), low + 1.0), high - 1.0)
            else:  # land a little inside either end, so that the interval closes from both sides
                edge = math.sqrt(_CLOSE)
                middle = min(max(middle, min(good, bad) * edge), max(good, bad) / edge)
            value = excess(middle)
            if value <= 0.0:
                good, at_good, at_bad = middle, value, at_bad / 2.0
            else:
                bad, at_bad, at_good = middle, value, at_good / 2.0
        return good
