"""The Gaussian curve against 60-digit arithmetic, and the black-box group bound against what
attains it.
"""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.privacy.curves.gaussian import black_box_group, gaussian_delta, gaussian_epsilon
from verax.privacy.strong.random_mu import gaussian_deltas

DELTAS = [0.3, 1e-2, 1e-5, 1e-10, 1e-20, 1e-30]


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Balle and Wang 2018, theorem 8; 60 digits leave enough after the cancellation."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def exact_delta_within(mu: float, epsilon: float) -> tuple[float, float, float]:
    truth = exact_delta(mu, epsilon)
    down, up = gaussian_delta(mu, epsilon, -1), gaussian_delta(mu, epsilon, 1)
    assert mpmath.mpf(down) <= truth <= mpmath.mpf(up), (mu, epsilon, down, float(truth), up)
    return down, float(truth), up


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_gaussian_delta_is_bracketed_and_accurate(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    down, truth, up = exact_delta_within(mu, epsilon)
    assert (down + up) / 2 == pytest.approx(truth, rel=1e-12)
    assert up - down <= 1e-8 * truth


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.01])
@pytest.mark.parametrize("delta", DELTAS)
def test_small_mu_is_bracketed(mu, delta):
    epsilon = gaussian_epsilon(mu, min(delta, mu / 10.0))
    exact_delta_within(mu, epsilon)


@pytest.mark.parametrize("mu", [100.0, 317.0, 1000.0, 3162.3])
@pytest.mark.parametrize("where", [-3.3, -1.1, -0.31, 0.07, 0.9, 2.3, 7.7])
def test_large_mu_is_bracketed(mu, where):
    """Many full-batch steps, or a large group: epsilon / mu - mu / 2 cancels."""
    for epsilon in (mu * (mu / 2.0 + where) * (1.0 + k * 1e-9) for k in range(8)):
        exact_delta_within(mu, epsilon)


def test_ends_of_the_range():
    assert gaussian_delta(0.0, 1.0) == 0.0
    assert gaussian_delta(math.inf, 1.0) == 1.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_delta(1.0, 1e4) == 0.0 or gaussian_delta(1.0, 1e4) < 1e-300


def test_at_epsilon_zero_it_is_the_total_variation():
    for mu in (0.01, 1.0, 4.0):
        tv = math.erf(mu / math.sqrt(8.0))
        assert gaussian_delta(mu, 0.0, -1) <= tv <= gaussian_delta(mu, 0.0, 1)
        assert gaussian_delta(mu, 0.0, 1) == pytest.approx(tv, rel=1e-12)


@given(st.floats(-3, 2).map(lambda e: 10.0**e), st.floats(-30, -0.5).map(lambda e: 10.0**e))
def test_gaussian_epsilon_inverts_the_curve_on_the_safe_sides(mu, delta):
    low, high = gaussian_epsilon(mu, delta, -1), gaussian_epsilon(mu, delta, 1)
    assert 0.0 <= low <= high
    assert gaussian_delta(mu, high, 1) <= delta
    assert low == 0.0 or gaussian_delta(mu, low, -1) >= delta
    assert high - low <= 1e-7 * high + 1e-12
    if high > 0.0:
        assert gaussian_delta(mu, high * (1.0 - 1e-6), -1) > delta * (1.0 - 1e-12)


def test_epsilon_of_the_plain_mechanism_matches_high_precision():
    with mpmath.workdps(40):
        for mu, delta in ((1.0, 1e-5), (10.0, 1e-6), (0.2, 1e-12)):
            guess = gaussian_epsilon(mu, delta)
            truth = mpmath.findroot(
                lambda e, m=mu, d=delta: mpmath.log(exact_delta(m, e) / d), guess
            )
            assert gaussian_epsilon(mu, delta, -1) <= truth <= gaussian_epsilon(mu, delta, 1)


def printed_black_box(epsilon: float, delta: float, group: int) -> float:
    """Theorem 4 of "optimal group privacy" as printed, with its spurious factor k."""
    return group * math.expm1(group * epsilon) / math.expm1(epsilon) * delta


def randomised_response(epsilon: float, delta: float, group: int) -> list[float]:
    """Probability of saying yes when j of a group's records say yes: as steep as (epsilon, delta)
    allows.
    """
    yes = [0.0]
    for _ in range(group):
        yes.append(math.exp(epsilon) * yes[-1] + delta)
    return yes


@pytest.mark.parametrize(
    ("epsilon", "delta", "group"),
    [(0.1, 1e-3, 2), (0.5, 1e-4, 4), (1.0, 1e-6, 8), (0.01, 1e-5, 50)],
)
def test_black_box_group_is_attained_and_the_printed_factor_is_spurious(epsilon, delta, group):
    yes = randomised_response(epsilon, delta, group)
    assert yes[-1] < 0.5
    # every event, in both directions, is (epsilon, delta)-private
    for p, q in itertools.pairwise(yes):
        for a, b in ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p)):
            assert a <= math.exp(epsilon) * b + delta + 1e-15
    group_epsilon, group_delta = black_box_group(epsilon, delta, group)
    attained = yes[-1] - math.exp(group_epsilon) * yes[0]
    assert group_epsilon == pytest.approx(group * epsilon)
    assert group_delta == pytest.approx(attained, rel=1e-10)
    assert printed_black_box(epsilon, delta, group) == pytest.approx(group * attained, rel=1e-10)


def test_black_box_group_edges():
    assert black_box_group(0.0, 1e-6, 4) == (0.0, 4e-6)
    assert black_box_group(0.7, 1e-6, 1) == (0.7, pytest.approx(1e-6, rel=1e-12))
    assert black_box_group(5.0, 1e-3, 100) == (500.0, 1.0)
    assert black_box_group(50.0, 1e-300, 100) == (5000.0, 1.0)
    assert black_box_group(1e-12, 1e-6, 3)[1] == pytest.approx(3e-6, rel=1e-9)


# --- both ends of the doubles ---------------------------------------------------------------------


def delta_far_out(mu: float, epsilon: float) -> mpmath.mpf:
    """The curve where e^epsilon leaves every range: a tail less a density times a Mills ratio, by
    its series.
    """
    with mpmath.workdps(700):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        near, far = e / m - m / 2, e / m + m / 2
        if abs(near) > 60:
            return mpmath.mpf("1e-400") if near > 0 else 1 - mpmath.mpf("1e-400")
        if far < 1e6:
            return (
                exact_delta(mu, epsilon)
                if far < 8
                else mpmath.ncdf(-near) - mpmath.exp(e) * mpmath.ncdf(-far)
            )
        mills = (1 - far**-2 + 3 * far**-4 - 15 * far**-6 + 105 * far**-8) / far
        return mpmath.ncdf(-near) - mpmath.npdf(near) * mills


@given(st.floats(-150.0, 150.0), st.floats(-45.0, 45.0))
def test_the_curve_is_bracketed_whatever_the_noise(log_mu, near):
    """With noise below 1e-12 the distance from the bulk is a difference of numbers that agree in
    all their digits.
    """
    mu = 10.0**log_mu
    epsilon = max(mu * (near + mu / 2.0), 0.0)
    truth = delta_far_out(mu, epsilon)
    assert gaussian_delta(mu, epsilon, -1) <= truth <= gaussian_delta(mu, epsilon, 1)
    down, up = (float(gaussian_deltas(np.array([mu]), epsilon, side)[0]) for side in (-1, 1))
    assert down <= truth <= up


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(1.1044955911381096e16, 6.099552554217646e31), (1.5e13, 1.125e26)]
)
def test_the_curve_is_bracketed_where_the_distance_has_no_digits_left(mu, epsilon):
    truth = delta_far_out(mu, epsilon)
    assert gaussian_delta(mu, epsilon, -1) <= truth <= gaussian_delta(mu, epsilon, 1)


@pytest.mark.parametrize("mu", [5e-324, 1e-300, 1.0, 1e150, 1e308])
@pytest.mark.parametrize("epsilon", [0.0, 5e-324, 1.0, 1e300, 1.7e308])
def test_nothing_overflows_at_the_ends_of_the_doubles(mu, epsilon):
    down, up = gaussian_delta(mu, epsilon, -1), gaussian_delta(mu, epsilon, 1)
    assert 0.0 <= down <= up <= 1.0
    assert up > 0.0
    assert gaussian_epsilon(mu, 5e-324) >= 0.0
