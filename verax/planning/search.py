"""The smallest noise proved to meet a target, from one or two evaluations near a good start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import UPPER

LARGEST_NOISE = 1e7
CLOSE = 1e-3  # how far above the boundary, as a ratio of noises, a search may end
_AIM = 0.4 * CLOSE  # how far above the guess it looks
_DIGITS = 6  # significant digits of a noise: what is printed is what was seen to meet the target
_LOOKS = 60
_WIDEST = math.log(4.0)  # how far one step may move
_FAR = 50.0  # log of the excess where epsilon is infinite


@dataclass(frozen=True)
class Found:
    """A noise, its proved upper bound on epsilon, and the slope of log epsilon in log noise."""

    noise_multiplier: float
    epsilon: float
    fall: float
    looks: int


def smallest_noise(
    look: Callable[[float], float], target: float, guess: float, fall: float
) -> Found | None:
    """The least noise, to a part in a thousand, whose evaluated bound is at most ``target``.

    ``look`` is the upper bound on epsilon as a function of the noise, which falls (more noise is
    post-processing). Steps are Newton's with the slope that neighbours had, then secants, kept
    inside the bracket once there is one. The search ends at a value that meets the target when the
    slope says that little is left to gain, or when a value that much smaller was seen to fail. None
    if the noise would have to exceed ``LARGEST_NOISE``.

    >>> found = smallest_noise(lambda noise: 2.0 / noise, target=1.0, guess=1.0, fall=3.0)
    >>> 2.0 <= found.noise_multiplier <= 2.002
    True
    """
    good, bad = Found(math.inf, 0.0, fall, 0), 0.0
    noise = rounded_up(min(guess, LARGEST_NOISE))
    before: tuple[float, float] | None = None
    for looks in range(1, _LOOKS + 1):
        epsilon = look(noise)
        if epsilon == 0.0 and look(0.0) <= target:  # delta covers being sampled at all
            return Found(0.0, look(0.0), fall, looks)
        excess = math.log(max(epsilon, 1e-12) / target) if math.isfinite(epsilon) else _FAR
        fall = _secant(fall, before, (noise, excess))
        before = (noise, excess)
        if excess <= 0.0:
            good = Found(noise, epsilon, fall, looks)
            if -excess <= CLOSE * fall:
                return good
        else:
            bad = noise
            if bad >= LARGEST_NOISE:
                return None
        step = min(max(excess / fall, -_WIDEST), _WIDEST) + _AIM
        noise = min(rounded_up(noise * math.exp(step)), LARGEST_NOISE)
        if not bad < noise < good.noise_multiplier:
            noise = rounded_up(math.sqrt(bad * good.noise_multiplier))
        if good.noise_multiplier <= bad * (1.0 + CLOSE) or noise >= good.noise_multiplier:
            return replace(good, fall=fall, looks=looks)
    raise ArithmeticError(f"no noise found in {_LOOKS} looks around {noise!r}: please report this")


def _secant(fall: float, before: tuple[float, float] | None, now: tuple[float, float]) -> float:
    """The slope through the last two points if both are near the target; else unchanged."""
    if (
        before is None
        or abs(math.log(now[0] / before[0])) < 0.3 * CLOSE
        or max(abs(now[1]), abs(before[1])) > 2.0
    ):
        return fall
    return min(max((before[1] - now[1]) / math.log(now[0] / before[0]), 0.3), 30.0)


def rounded_up(noise: float) -> float:
    """The next number of few digits, so that a table can show it in full.

    >>> rounded_up(1.41213562)
    1.41214
    """
    return float(format_bound(noise, UPPER, _DIGITS))
