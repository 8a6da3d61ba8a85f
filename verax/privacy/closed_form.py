"""Closed forms: the Gaussian mechanism, and black-box group privacy."""

from __future__ import annotations

import math

from scipy import special

from verax.privacy.pairs import UNIT
from verax.privacy.roots import crossing

_SQUARE = 1e4  # whatever the density of a point beyond its root is multiplied by, it is 0
_ULPS = 32.0  # allowance for erfcx, exp and ndtr in the Gaussian curve


def gaussian_delta(mu: float, epsilon: float, sign: int = 1) -> float:
    """delta(eps) of N(mu,1) against N(0,1), rounded up (``sign`` 1) or down (-1).

    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)  (Balle and Wang 2018, theorem 8), evaluated as a density
    times a difference of Mills ratios so that it keeps its digits when it is tiny.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    shift = epsilon / mu
    if math.isinf(shift):
        return 0.0  # as below
    shift = max(shift - sign * 4.0 * UNIT * (shift + mu / 2.0), 0.0)  # near and far round; an epsilon on the safe side
    near, far = shift - mu / 2.0, shift + mu / 2.0
    if near > 1e3:
        return 0.0  # below the smallest double
    density = math.exp(-near * near / 2.0)
    second = float(special.erfcx(far / math.sqrt(2.0))) / 2.0
    if near > 0.0:
        first = float(special.erfcx(near / math.sqrt(2.0))) / 2.0
        value, scale = density * (first - second), density * first * (1.0 + near * near)
    else:
        seen = float(special.ndtr(-near))
        value, scale = seen - density * second, seen + density * (1.0 + min(near * near, _SQUARE))
    error = UNIT * _ULPS * scale
    return min(max(value + sign * error, 0.0), 1.0)


def gaussian_epsilon(mu: float, delta: float, sign: int = 1) -> float:
    """The epsilon at which the curve above meets delta, rounded up (``sign`` 1) or down (-1)."""
    if math.isinf(mu):
        return math.inf

    def excess(epsilon: float) -> float:
        value = gaussian_delta(mu, epsilon, sign)
        return math.log(value / delta) if value > 0.0 else -1e4

    if excess(0.0) <= 0.0:
        return 0.0
    high = mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return crossing(excess, 0.0, high, sign)


def black_box_group(epsilon: float, delta: float, group: int) -> tuple[float, float]:
    """What (epsilon, delta) for one record implies for a group: (k eps, (e^{k eps}-1)/(e^eps-1) delta).

    This is the bound that the proof of theorem 4 in "optimal group privacy" shows; its statement carries a spurious
    factor k.

    >>> black_box_group(0.0, 1e-6, 4)
    (0.0, 4e-06)
    """
    if epsilon == 0.0:
        factor = float(group)
    else:
        log_factor = _log_expm1(group * epsilon) - _log_expm1(epsilon)
        factor = math.exp(log_factor) if log_factor < 700.0 else math.inf
    return group * epsilon, min(1.0, factor * delta)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
