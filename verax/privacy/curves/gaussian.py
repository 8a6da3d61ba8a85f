"""Closed forms: the Gaussian mechanism, and black-box group privacy."""

from __future__ import annotations

import math

from scipy import special

from verax.privacy.numerics.roots import bracket, crossing
from verax.privacy.numerics.rounding import NORMAL_TAIL, PRODUCT_ULPS, UNIT, down, ulps, up

_SMALLEST = 5e-324  # what underflow may take from a density times a Mills ratio
_UNSEEN = 1e-307  # ndtr says 0 below the smallest normal double
_FAR = 40.0  # standard deviations beyond which a double holds no probability
_LINEAR = 0.01  # a relative error up to which its first order, doubled, is enough


def gaussian_delta(mu: float, epsilon: float, sign: int = 1) -> float:
    """delta(eps) of N(mu,1) against N(0,1), rounded up (``sign`` 1) or down (-1).

    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)  (Balle and Wang 2018, theorem 8),
    evaluated as a density times a difference of Mills ratios so that it keeps its digits when it is
    tiny.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    near, far = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    miss = ulps(4.0, of=far)  # near is a rounded difference: twice what it may be off by
    if math.isinf(far) or near - miss > _FAR:
        return _SMALLEST if sign > 0 else 0.0
    if near + miss < -_FAR:
        return 1.0 if sign > 0 else 1.0 - UNIT
    if miss * (1.0 + abs(near)) > _LINEAR:  # hardly any noise: the second term is below 1 / far
        if sign > 0:
            return min(up(float(special.ndtr(miss - near)), NORMAL_TAIL) + _UNSEEN, 1.0)
        return max(down(float(special.ndtr(-near - miss)), NORMAL_TAIL) - 1.0 / far, 0.0)
    density = math.exp(-near * near / 2.0)
    second = float(special.erfcx(far / math.sqrt(2.0))) / 2.0
    if near > 0.0:
        first = float(special.erfcx(near / math.sqrt(2.0))) / 2.0
        value, scale = density * (first - second), density * first
    else:
        scale = float(special.ndtr(-near))
        value = scale - density * second
    error = (
        ulps(PRODUCT_ULPS, of=1.0 + near * near) + miss * (1.0 + abs(near))
    ) * scale + _SMALLEST
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
    _, high = bracket(lambda epsilon: excess(epsilon) > 0.0, 0.0, high)
    return crossing(excess, 0.0, high, sign)


def black_box_group(epsilon: float, delta: float, group: int) -> tuple[float, float]:
    """(k eps, (e^{k eps}-1)/(e^eps-1) delta): what (eps, delta) for one record implies for k.

    This is the bound that the proof of theorem 4 in "optimal group privacy" shows; its statement
    carries a spurious factor k.

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
