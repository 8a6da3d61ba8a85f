"""Invert a guarantee: the least noise, most steps or largest rate that meets a target epsilon.

Every function evaluates the proved upper bound just as ``Guarantee.epsilon(delta)`` does, and
returns a value at which it has seen the target met, together with having seen a value a hair
further on fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from verax import checks
from verax.mechanism import Clipping, Individual, Mechanism
from verax.privacy.guarantee import Guarantee
from verax.privacy.numerics.roots import root
from verax.privacy.samplers.base import pricing_of
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson

_CLOSE = 1.0006  # ratio of a failing to a passing value at which a search over the reals ends
_SMALLEST_NOISE, _LARGEST_NOISE, _MOST_STEPS, _SMALLEST_RATE = 1e-3, 1e7, 1e12, 1e-12


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
    >>> round(
    ...     calibrate.noise_multiplier(Poisson(rate=0.01, steps=1000), epsilon=1.0, delta=1e-5), 2
    ... )
    1.42
    """
    target = checks.positive("epsilon", epsilon)

    def run(noise: float, batches: Sampler = sampler) -> Guarantee:
        return Mechanism(batches, noise, _default_clipping(clipping), relation).guarantee(group)

    if run(0.0).epsilon(delta).upper <= target:
        return 0.0
    start = _rough_solution(
        lambda noise: run(noise, pricing_of(sampler).similar()),
        target,
        delta,
        1.0,
        _SMALLEST_NOISE,
        _LARGEST_NOISE,
        rising=False,
    )
    found = _solve(
        run, target, delta, start, lowest=_SMALLEST_NOISE, highest=_LARGEST_NOISE, rising=False
    )
    if math.isinf(found):
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} needs "
            f"noise_multiplier above {_LARGEST_NOISE:g}: "
            "raise epsilon or delta"
        )
    return found


def _default_clipping(clipping: Clipping | None) -> Clipping:
    return Individual() if clipping is None else clipping


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
    target = checks.positive("epsilon", epsilon)
    mechanism = Mechanism(Poisson(rate, 1), noise_multiplier, _default_clipping(clipping), relation)

    def run(count: float) -> Guarantee:
        return replace(mechanism, sampler=Poisson(rate, int(count))).guarantee(group)

    if run(1.0).epsilon(delta).upper > target:
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} does not allow one step: "
            "raise noise_multiplier "
            f"(now {noise_multiplier!r}) or epsilon"
        )
    start = round(_rough_solution(run, target, delta, 1e3, 1.0, _MOST_STEPS, rising=True))
    found = _solve(
        run, target, delta, start, lowest=1.0, highest=_MOST_STEPS, rising=True, whole=True
    )
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
    target = checks.positive("epsilon", epsilon)
    mechanism = Mechanism(
        Poisson(1.0, steps), noise_multiplier, _default_clipping(clipping), relation
    )

    def run(q: float) -> Guarantee:
        return replace(mechanism, sampler=Poisson(q, steps)).guarantee(group)

    if run(1.0).epsilon(delta).upper <= target:
        return 1.0
    start = _rough_solution(run, target, delta, 0.01, _SMALLEST_RATE, 1.0, rising=True)
    found = _solve(run, target, delta, start, lowest=_SMALLEST_RATE, highest=1.0, rising=True)
    if math.isnan(found):
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} allows no rate above {_SMALLEST_RATE:g}: "
            "raise noise_multiplier"
        )
    return found


def _solve(
    run: Callable[[float], Guarantee],
    target: float,
    delta: float,
    start: float,
    lowest: float,
    highest: float,
    rising: bool,
    whole: bool = False,
) -> float:
    """The last value whose proved upper bound meets the target, searched from ``start`` outwards.

    ``rising`` says whether epsilon grows with the value. Infinite if the boundary lies beyond
    ``highest``, nan if it lies below ``lowest``.
    """
    known: dict[float, float] = {}

    def excess(value: float) -> float:
        if value not in known:
            bound = run(value).epsilon(delta).upper
            known[value] = math.log(max(bound, 1e-12) / target) if math.isfinite(bound) else 50.0
        return known[value]

    value = other = float(start)
    meets = excess(value) <= 0.0
    # a little further than a straight line says
    factor = math.exp(min(max(0.02, 1.5 * abs(excess(value))), 0.7))
    up = meets == rising  # which way the boundary lies
    end = highest if up else lowest
    while (excess(other) <= 0.0) == meets:
        if other == end:
            if meets:
                return math.inf if rising else end
            return math.nan if rising else math.inf
        value = other
        other = min(max(other * factor if up else other / factor, lowest), highest)
        other = float(math.ceil(other) if up else math.floor(other)) if whole else other
        factor = factor * factor
    good, bad = (value, other) if meets else (other, value)
    return _close_in(excess, good, bad, whole)


def _rough_solution(
    run: Callable[[float], Guarantee],
    target: float,
    delta: float,
    start: float,
    lowest: float,
    highest: float,
    rising: bool,
) -> float:
    """Where the estimated epsilon meets the target, to about a percent."""
    sign = 1.0 if rising else -1.0
    low = high = math.log(min(max(start, lowest), highest))

    def excess(log_value: float) -> float:
        value = math.exp(log_value)
        guess = max(curve.estimate(delta) for curve in run(value).uppers)
        return sign * math.log(max(guess, 1e-12) / target) if math.isfinite(guess) else 50.0 * sign

    while excess(low) > 0.0:
        if low <= math.log(lowest):
            return lowest
        low, high = max(low - math.log(4.0), math.log(lowest)), low
    while excess(high) < 0.0:
        if high >= math.log(highest):
            return highest
        low, high = high, min(high + math.log(4.0), math.log(highest))
    return math.exp(root(excess, low, high, xtol=0.01)) if low < high else math.exp(low)


def _close_in(excess: Callable[[float], float], good: float, bad: float, whole: bool) -> float:
    """Close in on the boundary between a value that meets the target and one that does not.

    Regula falsi on log epsilon against log of the parameter (nearly a straight line), with the
    stale end's weight halved (the Illinois rule).
    """
    at_good, at_bad = excess(good), excess(bad)
    while (abs(bad - good) > 1.0) if whole else (max(good / bad, bad / good) > _CLOSE):
        share = min(max(at_good / (at_good - at_bad), 0.02), 0.98) if at_bad > at_good else 0.5
        middle = good * (bad / good) ** share
        if whole:
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
