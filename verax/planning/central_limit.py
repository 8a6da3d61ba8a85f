"""Where to begin a search for the noise, by the central limit theorem. Never a bound."""

from __future__ import annotations

import math

from verax.privacy.curves import gaussian
from verax.privacy.numerics.roots import root

_LEAST_FALL, _MOST_FALL = 0.3, 30.0
_STEP = 1e-3  # of log mu, between the two points from which a slope is read


def gaussian_shift(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon at this delta.

    >>> round(gaussian_shift(1.0, 1e-5), 3)
    0.268
    """

    def excess(log_mu: float) -> float:
        value = gaussian.gaussian_delta(math.exp(log_mu), epsilon)
        return math.log(value / delta) if value > 0.0 else -1e4

    return math.exp(root(excess, math.log(1e-12), math.log(1e6), xtol=1e-6))


def gaussian_growth(mu: float, delta: float) -> float:
    """How fast log epsilon of the Gaussian mechanism grows in log mu.

    >>> round(gaussian_growth(0.268, 1e-5), 2)
    1.1
    """
    low = gaussian.gaussian_epsilon(mu * math.exp(-_STEP), delta)
    high = gaussian.gaussian_epsilon(mu * math.exp(_STEP), delta)
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
