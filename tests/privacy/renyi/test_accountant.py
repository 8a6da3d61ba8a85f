"""Rényi moments: against closed forms, high-precision quadrature, dp-accounting, and the pmfs they
must obey.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax.privacy.renyi import accountant
from verax.privacy.renyi.accountant import (
    DEFAULT_ORDERS,
    Renyi,
    RenyiRound,
    delta_from_rdp,
    epsilon_from_rdp,
    log_moment,
    rdp_poisson,
)

DIRECTIONS = ("remove", "add")
rates = st.floats(-12.0, 0.0).map(lambda e: 10.0**e)
noises = st.floats(-0.7, 1.5).map(lambda e: 10.0**e)
orders = st.one_of(
    st.floats(-3.0, 2.5).map(lambda e: 1.0 + 10.0**e), st.integers(2, 300).map(float)
)
directions = st.sampled_from(DIRECTIONS)


def poisson(rate, noise, order, direction):
    """Bracket of the log-moment of a Poisson round."""
    return log_moment([1.0 - rate, rate], [0.0, 1.0 / noise], order, direction)


def binomial_moment(rate, noise, order):
    """log sum_j C(a,j) (1-q)^(a-j) q^j e^(j(j-1)/(2 z^2)): Mironov, Talwar and Zhang 2019, section
    3.3.
    """
    with mpmath.workdps(60):
        q, m = mpmath.mpf(rate), mpmath.mpf(1.0 / noise)
        factor, growth, term, total = (
            mpmath.exp(m * m),
            mpmath.mpf(1),
            (1 - q) ** order,
            mpmath.mpf(0),
        )
        power = 1 / factor  # growth is e^(j(j-1) m^2 / 2), power the next ratio of it
        for j in range(order + 1):
            total += term * (growth - 1)
            term *= (order - j) * q / ((j + 1) * (1 - q))
            power *= factor
            growth *= power
        return mpmath.log1p(total)


def quadrature(weights, shifts, order, direction):
    """The log-moment by mpmath's own quadrature of A^p, in 30 digits."""
    with mpmath.workdps(30):
        m = [mpmath.mpf(v) for v in shifts]
        w = [mpmath.mpf(v) for v in weights]
        w[0] = 1 - mpmath.fsum(w[1:])
        p = mpmath.mpf(order) if direction == "remove" else 1 - mpmath.mpf(order)

        def integrand(x):
            ratio = mpmath.fsum(
                a * mpmath.exp(b * x - b * b / 2) for a, b in zip(w, m, strict=True)
            )
            return ratio**p * mpmath.npdf(x)

        ends = sorted((mpmath.mpf(0), p * m[-1]))
        return mpmath.log(mpmath.quad(integrand, mpmath.linspace(ends[0] - 12, ends[1] + 12, 9)))


def assert_bracket(bracket, exact, width):
    lower, upper = map(float, bracket)
    assert lower <= exact <= upper
    assert upper - lower <= width * abs(exact)


class TestAgainstClosedForms:
    @pytest.mark.parametrize("rate", [1e-100, 1e-8, 1e-3, 0.01, 0.3, 0.999])
    @pytest.mark.parametrize("noise", [0.3, 1.0, 8.0])
    @pytest.mark.parametrize("order", [2, 3, 17, 256])
    def test_whole_orders(self, rate, noise, order):
        assert_bracket(
            poisson(rate, noise, order, "remove"), binomial_moment(rate, noise, order), 1e-12
        )

    def test_order_of_ten_thousand(self):
        exact = binomial_moment(1e-3, 2.0, 10_000)
        assert_bracket(poisson(1e-3, 2.0, 10_000, "remove"), exact, 1e-13)
        between = poisson(1e-3, 2.0, [9999.5, 10_000.5], "remove")
        assert between[1][0] < exact < between[0][1]

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("noise", [0.02, 1.0, 50.0])
    @pytest.mark.parametrize("order", [1.001, 2.5, 64, 1e4])
    def test_rate_one_is_the_gaussian(self, direction, noise, order):
        exact = order / (2 * noise**2)
        assert rdp_poisson(1.0, noise, order, direction=direction) == pytest.approx(
            exact, rel=1e-14
        )

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_equal_shifts_are_one_gaussian(self, direction):
        split = log_moment([0.2, 0.3, 0.5], [0.7, 0.7, 0.7], DEFAULT_ORDERS, direction)
        whole = log_moment([1.0], [0.7], DEFAULT_ORDERS, direction)
        np.testing.assert_allclose(split, whole, rtol=1e-14)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    def test_shift_by_a_common_amount_of_nearly_one_gaussian(self, direction):
        lower, upper = log_moment([1e-300, 1.0], [1.0, 1.5], [1.5, 2.0, 7.3], direction)
        exact = np.array([1.5, 2.0, 7.3]) * np.array([0.5, 1.0, 6.3]) * 1.5**2 / 2
        assert np.all(lower <= exact * (1 + 1e-14))
        np.testing.assert_allclose(upper, exact, rtol=1e-12)


class TestAgainstQuadrature:
    CASES = (
        # dp-accounting 0.6.0 says 0.0074825 times 0.5 here, twice too much
        ((0.8, 0.2), (0.0, 1 / 3), 1.5),
        ((0.99, 0.01), (0.0, 1.0), 2.75),
        ((0.99, 0.01), (0.0, 1.0), 33.3),
        ((0.999, 0.001), (0.0, 2.5), 1.05),
        ((0.3, 0.7), (0.0, 0.2), 40.5),
        ((0.625, 0.25, 0.125), (0.0, 1.0, 2.0), 4.5),
        ((0.25, 0.5, 0.25), (0.5, 1.0, 3.0), 2.2),
    )

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize(("weights", "shifts", "order"), CASES)
    def test_fractional_orders(self, weights, shifts, order, direction):
        exact = quadrature(weights, shifts, order, direction)
        assert_bracket(log_moment(weights, shifts, order, direction), exact, 1e-12)

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("rate", [1e-8, 1e-100])
    @pytest.mark.parametrize("order", [1.0 + 1e-9, 1.5, 8.0])
    def test_tiny_rates_follow_the_leading_term(self, direction, rate, order):
        leading = order * (order - 1.0) / 2 * rate**2 * math.expm1(1.0)
        lower, upper = poisson(rate, 1.0, order, direction)
        assert upper - lower <= 1e-12 * upper
        assert upper == pytest.approx(leading, rel=1e3 * rate + 1e-12)


# rdp of one round, printed by dp-accounting 0.6.0:
# RdpAccountant([order], ADD_OR_REMOVE_ONE).compose(PoissonSampledDpEvent(rate,
# GaussianDpEvent(noise)))._rdp[0]
DP_ACCOUNTING = (
    (0.01, 1.0, 8, 0.000893643907606041),
    (0.01, 1.0, 33.3, 11.902254885654104),
    (0.01, 1.0, 256, 123.37677032308648),
    (0.001, 0.6, 8, 3.216537751710345),
    (0.001, 0.6, 33.3, 39.12838232847972),
    (0.2, 3.0, 8, 0.021264013759834454),
    (0.2, 3.0, 33.3, 0.3316904219823868),
    (0.2, 3.0, 256, 12.606472788564881),
    (1e-6, 1.0, 33.3, 2.4067646666317297),
)
# .get_epsilon(delta) and .get_delta(2.0) of its RdpAccountant() with default orders
DP_ACCOUNTING_COMPOSED = (
    (0.01, 1.0, 1000, 1e-5, 2.101366525420273, 1.9812564713985378e-05),
    (0.001, 0.6, 10_000, 1e-6, 3.9991858528326922, 0.0007988764507970684),
    (0.02, 2.0, 5000, 1e-5, 3.4833999410907106, 0.007856280663674163),
)


class TestAgainstDpAccounting:
    @pytest.mark.parametrize(("rate", "noise", "order", "theirs"), DP_ACCOUNTING)
    def test_one_round(self, rate, noise, order, theirs):
        assert rdp_poisson(rate, noise, order) == pytest.approx(theirs, rel=1e-12)

    @pytest.mark.parametrize(
        ("rate", "noise", "order"), [(0.2, 3.0, 1.5), (0.001, 0.6, 1.5), (0.01, 1.0, 1.5)]
    )
    def test_its_small_fractional_orders_are_loose(self, rate, noise, order):
        theirs = {
            0.2: 0.0074825153121196855,
            0.001: 1.1570604583323508e-05,
            0.01: 0.00013236850293993048,
        }[rate]
        assert 1.04 * rdp_poisson(rate, noise, order) < theirs

    @pytest.mark.parametrize(
        ("rate", "noise", "steps", "delta", "epsilon", "delta_at_two"), DP_ACCOUNTING_COMPOSED
    )
    def test_composed(self, rate, noise, steps, delta, epsilon, delta_at_two):
        curve = Renyi.poisson(rate, noise, steps)
        # any order, not only the listed ones: never worse
        assert 0.999 * epsilon < curve.epsilon(delta) <= epsilon
        assert 0.99 * delta_at_two < curve.delta(2.0) <= delta_at_two


class TestLaws:
    @given(rates, noises, orders, directions)
    @settings(max_examples=150, deadline=None)
    def test_bracket_is_ordered_and_narrow(self, rate, noise, order, direction):
        lower, upper = poisson(rate, noise, order, direction)
        assert 0.0 <= lower <= upper
        assert upper - lower <= 1e-8 * upper

    @given(
        st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 4.0)), min_size=1, max_size=5),
        orders,
        directions,
    )
    @settings(max_examples=80, deadline=None)
    def test_mixtures(self, components, order, direction):
        weights = np.array([w for w, _ in components]) / math.fsum(w for w, _ in components)
        shifts = [m for _, m in components]
        lower, upper = log_moment(weights.tolist(), shifts, order, direction)
        gaussian = order * (order - 1.0) * max(shifts) ** 2 / 2
        assert 0.0 <= lower <= upper <= gaussian * (1 + 1e-14) + 1e-300
        assert upper - lower <= 1e-10 * upper + 1e-299

    @given(rates, noises, st.tuples(orders, orders), directions)
    @settings(max_examples=60, deadline=None)
    def test_divergence_grows_with_the_order(self, rate, noise, pair, direction):
        a, b = sorted(pair)
        lower, upper = poisson(rate, noise, [a, b], direction)
        assert lower[0] / (a - 1.0) <= upper[1] / (b - 1.0) * (1 + 1e-15)

    @given(st.tuples(rates, rates), noises, orders, directions)
    @settings(max_examples=60, deadline=None)
    def test_moment_grows_with_the_rate(self, pair, noise, order, direction):
        a, b = sorted(pair)
        assert poisson(a, noise, order, direction)[0] <= poisson(b, noise, order, direction)[1]

    @given(rates, st.tuples(noises, noises), orders, directions)
    @settings(max_examples=60, deadline=None)
    def test_moment_falls_with_the_noise(self, rate, pair, order, direction):
        a, b = sorted(pair)
        assert poisson(rate, b, order, direction)[0] <= poisson(rate, a, order, direction)[1]

    @given(rates, noises, st.tuples(orders, orders), directions)
    @settings(max_examples=60, deadline=None)
    def test_moment_is_convex_in_the_order(self, rate, noise, pair, direction):
        a, b = pair
        lower, upper = poisson(rate, noise, [a, (a + b) / 2, b], direction)
        assert lower[1] <= (upper[0] + upper[2]) / 2 * (1 + 1e-15)

    def test_orders_together_agree_with_orders_alone(self):
        for direction in DIRECTIONS:
            lower, upper = poisson(0.02, 0.7, DEFAULT_ORDERS, direction)
            alone = np.array([poisson(0.02, 0.7, a, direction) for a in DEFAULT_ORDERS])
            assert np.all(lower <= alone[:, 1])
            assert np.all(alone[:, 0] <= upper)

    def test_both_is_the_worse_direction(self):
        each = [poisson(0.1, 1.0, DEFAULT_ORDERS, d)[1] for d in DIRECTIONS]
        np.testing.assert_array_equal(
            poisson(0.1, 1.0, DEFAULT_ORDERS, "both")[1], np.maximum(*each)
        )


class TestExtremes:
    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("rate", [1e-300, 1e-200, 1e-160, 5e-324])
    def test_moments_below_the_floats_are_bracketed(self, direction, rate):
        lower, upper = poisson(rate, 1.0, [1.5, 2.0, 30.0], direction)
        assert np.all((lower <= 1e-290) & (upper > 0.0) & (upper <= 1e-290))

    @pytest.mark.parametrize("direction", DIRECTIONS)
    @pytest.mark.parametrize("shift", [1e-200, 1e-8, 30.0, 300.0, 1e6, 1e200])
    @pytest.mark.parametrize("order", [1.5, 2.0, 1e4])
    def test_any_shift_gives_an_ordered_bracket(self, direction, shift, order):
        lower, upper = log_moment([0.99, 0.01], [0.0, shift], order, direction)
        assert 0.0 <= lower <= upper
        if direction == "add":  # A >= 0.99
            assert upper <= -(order - 1.0) * math.log(0.99) * (1 + 1e-14)

    def test_a_weight_of_1e_300_matters_in_the_add_direction(self):
        with_floor = log_moment([1e-300, 1.0], [0.0, 1.0], 5000.5, "add")[1]
        assert with_floor <= 4999.5 * 300 * math.log(10.0)
        assert with_floor < log_moment([1.0], [1.0], 5000.5, "add")[0]

    def test_the_work_is_bounded(self, monkeypatch):
        monkeypatch.setattr(accountant, "_MAX_WORK", 64)
        lower, upper = poisson(0.01, 0.05, 40.5, "remove")
        assert (lower, upper) == (0.0, pytest.approx(39.5 * 40.5 * 200.0, rel=1e-14))


class TestConversion:
    def test_formula_at_one_order(self):
        a, rdp, delta = 6.0, 0.3, 1e-6
        expected = rdp + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        assert epsilon_from_rdp([a], [rdp], delta) == pytest.approx(expected, rel=1e-14)
        assert delta_from_rdp([a], [rdp], expected) == pytest.approx(delta, rel=1e-12)

    def test_a_list_is_minimised_and_real_orders_do_better(self):
        coarse, curve = [2.0, 12.0, 24.0, 90.0], Renyi(((RenyiRound((1.0,), (0.3,)), 1),))
        each = [epsilon_from_rdp([a], [a * 0.045], 1e-5) for a in coarse]
        assert (
            curve.epsilon(1e-5)
            < epsilon_from_rdp(coarse, [a * 0.045 for a in coarse], 1e-5)
            == min(each)
        )

    def test_above_the_exact_gaussian(self):
        curve = Renyi(((RenyiRound((1.0,), (1.0,)), 1),))
        for epsilon in (0.5, 1.0, 3.0):
            exact = 0.5 * (
                math.erfc((epsilon - 0.5) / math.sqrt(2))
                - math.exp(epsilon) * math.erfc((epsilon + 0.5) / math.sqrt(2))
            )
            assert exact < curve.delta(epsilon) < 10 * exact

    def test_unknown_orders(self):
        assert epsilon_from_rdp([2.0, 3.0], [math.inf, math.inf], 1e-5) == math.inf
        assert delta_from_rdp([2.0, 3.0], [math.inf, math.inf], 1.0) == 1.0
        assert epsilon_from_rdp([2.0, 3.0], [math.inf, 0.1], 1e-5) == epsilon_from_rdp(
            [3.0], [0.1], 1e-5
        )

    def test_nothing_spent_costs_nothing(self):
        assert epsilon_from_rdp([1e6], [0.0], 1e-5) == 0.0
        assert delta_from_rdp([2.0], [1e6], 0.0) == 1.0


class TestRenyi:
    def test_phases_add(self):
        a, b = Renyi.poisson(0.01, 1.0, 300), Renyi.poisson(0.05, 2.0, 50)
        np.testing.assert_allclose(
            (a + b).rdp(DEFAULT_ORDERS), a.rdp(DEFAULT_ORDERS) + b.rdp(DEFAULT_ORDERS), rtol=1e-12
        )
        np.testing.assert_allclose((a * 3).rdp(8.0), 3 * a.rdp(8.0), rtol=1e-12)

    def test_directions_are_added_before_the_worse_is_taken(self):
        a, b = RenyiRound((0.5, 0.5), (0.0, 1.0)), RenyiRound.poisson(0.1, 1.0)
        for order in (1.5, 4.0):
            sums = [
                sum(float(log_moment(r.weights, r.shifts, order, d)[1]) for r in (a, b))
                for d in DIRECTIONS
            ]
            assert Renyi(((a, 1), (b, 1))).rdp(order) == pytest.approx(
                max(sums) / (order - 1.0), rel=1e-13
            )

    @pytest.mark.parametrize(
        ("rate", "noise", "steps"),
        [(0.01, 1.0, 1000), (1e-4, 0.5, 10**6), (1.0, 0.01, 1), (0.5, 60.0, 10)],
    )
    def test_best_order_is_found(self, rate, noise, steps):
        curve = Renyi.poisson(rate, noise, steps)
        s = np.geomspace(1e-4, 3000.0, 1500)
        best = epsilon_from_rdp(1.0 + s, curve.rdp(1.0 + s), 1e-6)
        assert curve.epsilon(1e-6) <= best * (1 + 1e-5)

    def test_epsilon_and_delta_are_inverse(self):
        curve = Renyi.poisson(0.01, 1.0, 1000)
        assert curve.delta(curve.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-5)

    def test_batch_clipping_doubles_the_shift(self):
        assert Renyi.poisson(0.01, 2.0, 100, shift=2.0).epsilon(1e-5) == Renyi.poisson(
            0.01, 1.0, 100
        ).epsilon(1e-5)

    def test_weights_are_normalised(self):
        assert RenyiRound((0.25, 0.0, 0.5, 0.25), (1.0, 9.0, 0.0, 1.0)) == RenyiRound(
            (0.5, 0.5), (0.0, 1.0)
        )


class TestBadInput:
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: rdp_poisson(0.0, 1.0, 2.0), r"rate must lie in \(0, 1\], got 0.0"),
            (
                lambda: rdp_poisson(0.1, 0.0, 2.0),
                "noise_multiplier must be positive and finite, got 0.0",
            ),
            (lambda: rdp_poisson(0.1, 1.0, 1.0), "order must be finite and above 1, got 1.0"),
            (
                lambda: rdp_poisson(0.1, 1.0, [2.0, math.inf]),
                "order must be finite and above 1, got inf",
            ),
            (lambda: rdp_poisson(0.1, 1.0, "two"), "order must be a number, got 'two'"),
            (
                lambda: rdp_poisson(0.1, 1.0, 2.0, shift=-1.0),
                "shift must be at least 0 and finite, got -1.0",
            ),
            (
                lambda: rdp_poisson(0.1, 1.0, 2.0, direction="up"),
                "direction must be one of .*, got 'up'",
            ),
            (lambda: log_moment([0.5, 0.4], [0.0, 1.0], 2.0), "weights must sum to 1, got 0.9"),
            (lambda: log_moment([], [], 2.0), "weights must sum to 1, got 0"),
            (
                lambda: log_moment([1.0], [0.0, 1.0], 2.0),
                "weights and shifts must have one length, got 1 and 2",
            ),
            (
                lambda: log_moment([1.5, -0.5], [0.0, 1.0], 2.0),
                "weights must be at least 0 and finite, got -0.5",
            ),
            (lambda: log_moment([1.0], [math.nan], 2.0), "shifts must be a number, got nan"),
            (
                lambda: epsilon_from_rdp([2.0], [0.1], 0.0),
                "delta must lie strictly between 0 and 1, got 0.0",
            ),
            (
                lambda: epsilon_from_rdp([2.0, 3.0], [0.1], 0.1),
                "orders and rdp must have one length .*, got 2 and 1",
            ),
            (lambda: epsilon_from_rdp([2.0], [-0.1], 0.1), "rdp must be at least 0, got -0.1"),
            (lambda: delta_from_rdp([2.0], [math.nan], 1.0), "rdp must be a number, got nan"),
            (
                lambda: delta_from_rdp([2.0], [0.1], -1.0),
                "epsilon must be at least 0 and finite, got -1.0",
            ),
            (
                lambda: Renyi.poisson(0.1, 1.0, 0),
                "steps must be a whole number of at least 1, got 0",
            ),
            (
                lambda: Renyi.poisson(0.1, 1.0, 1) * 0,
                "times must be a whole number of at least 1, got 0",
            ),
            (
                lambda: Renyi(((RenyiRound.poisson(0.1, 1.0), 1.5),)),
                "times must be a whole number of at least 1, got 1.5",
            ),
        ],
    )
    def test_message(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()
