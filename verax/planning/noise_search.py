"""The smallest noise proved to meet a target, from one or two evaluations near a good start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.guarantee import format_bound
from verax.privacy.numerics.roots import root
from verax.privacy.pld.composition import UPPER

LARGEST_NOISE = 1e7
CLOSE = 1e-3  # how far above the boundary, as a ratio of noises, a search may end
_AIM = 0.4 * CLOSE  # how far above the guess it looks
_DIGITS = 6  # significant digits of a noise: what is printed is what was seen to meet the target
_LOOKS = 60
_WIDEST = math.log(4.0)  # how far one step may move
_FAR = 50.0  # log of the excess where epsilon is infinite
_LEAST_FALL, _MOST_FALL = 0.3, 30.0  # of log epsilon in log noise
_STEP = 1e-3  # of log mu, between the two points from which a slope is read


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
    return min(max((before[1] - now[1]) / math.log(now[0] / before[0]), _LEAST_FALL), _MOST_FALL)


def rounded_up(noise: float) -> float:
    """The next number of few digits, so that a table can show it in full.

    >>> rounded_up(1.41213562)
    1.41214
    """
    return float(format_bound(noise, UPPER, _DIGITS))


# --- where to begin: the central limit theorem, never a bound -------------------------------------


def gaussian_shift(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon at this delta.

    >>> round(gaussian_shift(1.0, 1e-5), 3)
    0.268
    """

    def excess(log_mu: float) -> float:
        value = gaussian_delta(math.exp(log_mu), epsilon)
        return math.log(value / delta) if value > 0.0 else -1e4

    return math.exp(root(excess, math.log(1e-12), math.log(1e6), xtol=1e-6))


def gaussian_growth(mu: float, delta: float) -> float:
    """How fast log epsilon of the Gaussian mechanism grows in log mu.

    >>> round(gaussian_growth(0.268, 1e-5), 2)
    1.1
    """
    low = gaussian_epsilon(mu * math.exp(-_STEP), delta)
    high = gaussian_epsilon(mu * math.exp(_STEP), delta)
    return math.log(high / low) / (2.0 * _STEP) if 0.0 < low < high else 1.0


def gaussian_limit(mu: float, rate: float, rounds: float) -> float:
    """The noise whose run of many Poisson rounds is nearly a Gaussian mechanism with this mu.

    Solves mu = rate sqrt(rounds (e^(1/z^2) - 1)), the central limit of Bu, Dong, Long and Su
    (2020).
    """
    return 1.0 / math.sqrt(math.log1p((mu / rate) ** 2 / rounds))


def gaussian_fall(growth: float, noise: float) -> float:
    """How fast log epsilon falls in log noise: the central limit's slope, clamped.

    d log mu / d log z = -(1/z^2) / (1 - e^(-1/z^2)), times ``growth``, that of log epsilon in log
    mu.

    >>> round(gaussian_fall(1.0, noise=100.0), 3), round(gaussian_fall(1.0, noise=0.5), 2)
    (1.0, 4.07)
    """
    inverse = 1.0 / (noise * noise)
    return min(max(growth * inverse / -math.expm1(-inverse), _LEAST_FALL), _MOST_FALL)
