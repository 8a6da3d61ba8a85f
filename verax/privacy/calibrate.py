"""Invert a guarantee: the smallest noise, the most steps, the largest rate whose upper bound meets a target.

Every function evaluates the proved upper bound just as ``Guarantee.epsilon(delta)`` does, and returns a value at
which it has seen the target met, together with having seen a value a hair further on fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from verax import checks
from verax.mechanism import Clipping, Individual, Mechanism
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson

_CLOSE = 1.0006  # ratio of a failing to a passing value at which a search over the reals ends
_LARGEST_NOISE = 1e7


def noise_multiplier(
    sampler: Sampler,
    epsilon: float,
    delta: float,
    *,
    clipping: Clipping | None = None,
    relation: str = "",
    group: int = 1,
) -> float:
    """The smallest noise multiplier whose upper bound is at most ``epsilon`` at ``delta``; 0.1 % less does not meet it.

    >>> from verax import Poisson, calibrate
    >>> round(calibrate.noise_multiplier(Poisson(rate=0.01, steps=1000), epsilon=1.0, delta=1e-5), 2)
    1.51
    """
    target = checks.positive("epsilon", epsilon)

    def spent(noise: float) -> float:
        mechanism = Mechanism(sampler, noise, clipping or Individual(), relation)
        return mechanism.guarantee(group).epsilon(delta).upper

    if spent(0.0) <= target:
        return 0.0
    good, bad = 1.0, 1.0
    while spent(good) > target:
        bad, good = good, 4.0 * good
        if good > _LARGEST_NOISE:
            raise ValueError(
                f"epsilon = {epsilon!r} at delta = {delta!r} needs noise_multiplier above {_LARGEST_NOISE:g}"
            )
    while bad == good or spent(bad) <= target:
        good, bad = bad, bad / 4.0
    return _search(spent, target, good, bad)


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
    mechanism = Mechanism(Poisson(rate, 1), noise_multiplier, clipping or Individual(), relation)

    def spent(count: float) -> float:
        return replace(mechanism, sampler=Poisson(rate, int(count))).guarantee(group).epsilon(delta).upper

    if spent(1.0) > target:
        raise ValueError(
            f"epsilon = {epsilon!r} at delta = {delta!r} does not allow one step: raise noise_multiplier "
            f"(now {noise_multiplier!r}) or epsilon"
        )
    good, bad = 1.0, 2.0
    while spent(bad) <= target:
        good, bad = bad, 4.0 * bad
        if bad > 1e12:
            raise ValueError(
                f"epsilon = {epsilon!r} at delta = {delta!r} allows more than 1e12 steps: lower noise_multiplier"
            )
    return int(_search(spent, target, good, bad, whole=True))


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
    mechanism = Mechanism(Poisson(1.0, steps), noise_multiplier, clipping or Individual(), relation)

    def spent(q: float) -> float:
        return replace(mechanism, sampler=Poisson(q, steps)).guarantee(group).epsilon(delta).upper

    if spent(1.0) <= target:
        return 1.0
    bad, good = 1.0, 0.1
    while spent(good) > target:
        bad, good = good, good / 8.0
        if good < 1e-12:
            raise ValueError(
                f"epsilon = {epsilon!r} at delta = {delta!r} allows no rate above 1e-12: raise noise_multiplier"
            )
    return _search(spent, target, good, bad)


def _search(spent: Callable[[float], float], target: float, good: float, bad: float, whole: bool = False) -> float:
    """Close in on the boundary between a value that meets the target and one that does not.

    Regula falsi on log epsilon against log of the parameter (nearly a straight line), with the stale end's weight
    halved (the Illinois rule) and a bisection whenever the interval fails to shrink.
    """

    def excess(value: float) -> float:
        bound = spent(value)
        return math.log(max(bound, 1e-12) / target) if math.isfinite(bound) else 50.0

    at_good, at_bad = excess(good), excess(bad)
    while (abs(bad - good) > 1.0) if whole else (max(good / bad, bad / good) > _CLOSE):
        share = at_good / (at_good - at_bad) if at_bad > at_good else 0.5
        share = min(max(share, 0.02), 0.98) if not whole else min(max(share, 0.01), 0.99)
        middle = good * (bad / good) ** share
        edge = math.sqrt(_CLOSE)
        if not whole:  # land just beyond the root on either side, so that the interval closes from both ends
            middle = min(max(middle, min(good, bad) * edge), max(good, bad) / edge)
        else:
            low, high = sorted((int(good), int(bad)))
            middle = float(min(max(round(middle), low + 1), high - 1))
        value = excess(middle)
        if value <= 0.0:
            good, at_good, at_bad = middle, value, at_bad / 2.0
        else:
            bad, at_bad, at_good = middle, value, at_good / 2.0
    return good
