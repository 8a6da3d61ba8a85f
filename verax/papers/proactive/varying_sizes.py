"""Lemma B.3 and theorem B.2 of "Proactive DP", for sample sizes that vary in any way.

No plan is made by them: theorem B.4 covers what :mod:`verax.planning.closed_form` plans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from verax import checks
from verax.planning.closed_form.theorems import (
    LEAST_NOISE,
    SAFE,
    FailedCondition,
    GrantedGuarantee,
    SampleSizes,
    largest_order,
    require_moderate,
    tail_failure,
)


@dataclass(frozen=True)
class Moment:
    """Lemma B.3: a bound on the logarithm of a moment of one round's privacy loss."""

    order: int
    bound: float

    def __bool__(self) -> bool:
        return True


def moment_bound(rate: float, noise_multiplier: float, order: int) -> Moment | FailedCondition:
    """Lemma B.3: the log-moment of one Poisson round in both directions, or what fails.

    >>> moment_bound(rate=0.001, noise_multiplier=5.0, order=10)
    Moment(order=10, bound=4.50...e-06)
    """
    q, z = (
        require_moderate("rate", checks.rate("rate", rate)),
        require_moderate("noise_multiplier", noise_multiplier),
    )
    order = checks.count("order", order)
    name = "lemma B.3"
    if z < LEAST_NOISE:
        return FailedCondition(name, "on sigma", "noise sigma", ">=", "216/215", z, LEAST_NOISE)
    if q * z * SAFE >= 1.0:
        return FailedCondition(name, "on r_0", "rate times sigma", "<", "1", q * z, 1.0)
    if order * SAFE > (most := -z * z * math.log(q * z)):
        return FailedCondition(
            name, "on lambda", "order", "<=", "sigma^2 ln(1 / (rate sigma))", order, most
        )
    u_0 = 2.0 * math.sqrt(order * q) / ((1.0 - q) * z)  # with r_0 = rate * sigma, the smallest
    u_1 = math.e * u_0 / z
    for label, value in (("U_0", u_0), ("U_1", u_1)):
        if value * SAFE >= 1.0:
            return FailedCondition(name, f"on {label}", label, "<", "1", value, 1.0)
    if (refused := tail_failure(name, q, z, order, u_1)) is not None:
        return refused
    spread = 8.0 * (1.0 / (1.0 - u_0) + (math.e / z) ** 3 / (1.0 - u_1)) * math.exp(3.0 / (z * z))
    square = q * q / (1.0 - q) * order * (order + 1.0) / (z * z)
    cube = spread * q**3 / (1.0 - q) ** 2 * order**2 * (order + 1.0) / z**3
    return Moment(order, (square + cube) * SAFE)


def theorem_b2(
    sizes: SampleSizes, noise_multiplier: float, epsilon: float, delta: float
) -> GrantedGuarantee | FailedCondition:
    """Theorem B.2, for sample sizes that vary in any way, with the smallest r_0, rho and rho-hat.

    >>> sizes = SampleSizes(50_000, ((200, 300), (400, 300)))
    >>> theorem_b2(sizes, 8.0, epsilon=0.5, delta=1e-5).epsilon
    0.5
    """
    z = require_moderate("noise_multiplier", noise_multiplier)
    epsilon, delta = require_moderate("epsilon", epsilon), checks.probability("delta", delta)
    name, q = "theorem B.2", sizes.largest_rate
    r_0 = q * z
    if z < LEAST_NOISE:
        return FailedCondition(name, "on sigma", "noise sigma", ">=", "216/215", z, LEAST_NOISE)
    if r_0 * SAFE > 1.0 / math.e:
        return FailedCondition(
            name, "on r_0", "largest rate times sigma", "<=", "1/e", r_0, 1.0 / math.e
        )
    u_0 = 2.0 * math.sqrt(q) / (1.0 - q)
    u_1 = math.e * u_0 / z
    for label, value in (("u_0", u_0), ("u_1", u_1)):
        if value * SAFE >= 1.0:
            return FailedCondition(name, f"on {label}", label, "<", "1", value, 1.0)
    if (refused := tail_failure(name, q, z, largest_order(z), u_1)) is not None:
        return refused
    r = r_0 * 8.0 * (1.0 / (1.0 - u_0) + (math.e / z) ** 3 / (1.0 - u_1)) * math.exp(3.0 / z**2)
    one, two, three = (sizes.moment(j) for j in (1, 2, 3))
    x = epsilon / (sizes.rounds * one**2)
    y = r * one * three / two**2 * x
    c_0 = min(2.0 / (math.sqrt(2.0 * y + 1.0) + 1.0), 2.0 * two / (one**2 * x))
    least = (
        2.0
        / math.sqrt(c_0)
        * math.sqrt(two * sizes.rounds * (epsilon - math.log(delta)))
        / epsilon
        * SAFE
    )
    if z < least:
        what = "2 sqrt(S_2 T (epsilon + ln(1/delta)) / c_0) / epsilon"
        return FailedCondition(name, "(31)", "noise sigma", ">=", what, z, least)
    order = math.floor(c_0 * epsilon * z * z / (2.0 * two * sizes.rounds)) - 1  # (30)
    return GrantedGuarantee(name, epsilon, delta, least, None, order)
