"""The largest-batch test against shuffled batches, and the reference values of "how private is DP-SGD"."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from verax import Batch, Deterministic, Mechanism, Mixed, Shuffle
from verax.privacy.closed_form import gaussian_delta
from verax.privacy.events import LargestBatch


def event(noise: float, batches: int, threshold: float) -> tuple[float, float]:
    """P and Q of {max_t w_t >= c} as MATH section 4 writes them, c in units of the clip norm."""
    rest = special.ndtr(threshold / noise) ** (batches - 1)
    return tuple(1.0 - special.ndtr((threshold - shift) / noise) * rest for shift in (2.0, 1.0))


def shuffle(noise: float, batches: int, **kwargs):
    return Mechanism(Shuffle(batches=batches), noise_multiplier=noise, **kwargs).guarantee()


# noise, batches, epsilon, printed lower bound on delta
DELTAS = [
    (0.4, 10000, 4.0, 0.2260),
    (0.4, 10000, 12.0, 7.47e-5),
    (0.8, 1000, 1.0, 0.01794),
    (0.8, 1000, 4.0, 1.5956e-4),
    (1.0, 1000, 4.0, 4.380e-7),
]


@pytest.mark.parametrize(("noise", "batches", "epsilon", "printed"), DELTAS)
def test_reference_deltas(noise, batches, epsilon, printed):
    bracket = shuffle(noise, batches).delta(epsilon)
    assert bracket.lower == pytest.approx(printed, rel=5e-4)
    assert bracket.upper == pytest.approx(gaussian_delta(1.0 / noise, epsilon), rel=1e-12)


def test_reference_epsilons():
    low = shuffle(0.5, 10000).epsilon(1e-6)
    assert 10.994 <= low.lower < 10.995
    assert low.upper == pytest.approx(10.997, abs=6e-4)
    high = shuffle(0.7, 1000).epsilon(1e-5)
    assert 6.5285 <= high.lower < 6.529
    assert high.upper == pytest.approx(6.6525, abs=6e-5)


def test_deterministic_reference():
    assert Mechanism(Deterministic(10000), 0.4).guarantee().delta(4.0).upper == pytest.approx(0.2438, abs=6e-5)


def test_erratum_the_paper_prints_four_times_too_much_at_noise_one():
    """ "How private is DP-SGD" prints delta(1) >= .004 for 1000 batches; its own formula gives .000999."""
    bound = shuffle(1.0, 1000).delta(1.0).lower
    assert bound == pytest.approx(0.000999, abs=6e-7)
    best = max(p - math.e * q for p, q in (event(1.0, 1000, c / 1000.0) for c in range(-3000, 12000)))
    assert best == pytest.approx(0.000999, abs=6e-7)
    assert bound < 0.004 / 3.9


@given(st.floats(0.4, 3.0), st.integers(1, 20000), st.floats(0.0, 6.0))
@settings(max_examples=30)
def test_never_below_a_brute_force_threshold_nor_above_the_proved_bound(noise, batches, epsilon):
    bracket = shuffle(noise, batches).delta(epsilon)
    assert 0.0 <= bracket.lower <= bracket.upper
    factor = math.exp(epsilon)
    for c in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0):
        p, q = event(noise, batches, c)
        for attained in (p - factor * q, (1.0 - q) - factor * (1.0 - p)):
            assert attained <= bracket.upper + 1e-12
            assert attained <= bracket.lower * 1.001 + 1e-6  # the search over thresholds misses little


def test_epsilon_and_delta_of_the_test_agree():
    test = LargestBatch(1000, 2.5, 1.25)
    for delta in (1e-6, 1e-3, 0.1):
        epsilon = test.epsilon(delta, 1e-3)[0]
        assert test.delta(epsilon, 1e-3)[0] == pytest.approx(delta, rel=1e-3)
        assert test.estimate(delta) == epsilon
    assert test.epsilon(1e-6, 1e-3)[1] == math.inf
    assert test.delta(1.0, 1e-3)[1] == 1.0


def test_one_batch_is_the_deterministic_mechanism():
    """With a single batch there is nothing to hide; the event is a half line and the bound is exact."""
    bracket = shuffle(1.0, 1).delta(1.0)
    assert bracket.lower == pytest.approx(bracket.upper, rel=1e-6)


def test_a_persistent_order_is_one_epoch_with_less_noise():
    kept = Mechanism(Shuffle(1000, epochs=4, reshuffle=False), 2.0).guarantee()
    once = Mechanism(Shuffle(1000), 1.0).guarantee()
    for epsilon in (0.5, 2.0):
        assert kept.delta(epsilon).lower == pytest.approx(once.delta(epsilon).lower, rel=1e-9)
        assert kept.delta(epsilon).upper == pytest.approx(once.delta(epsilon).upper, rel=1e-9)


def test_fresh_orders_cost_between_one_epoch_and_fixed_batches():
    one, four = Mechanism(Shuffle(100), 1.0).guarantee(), Mechanism(Shuffle(100, epochs=4), 1.0).guarantee()
    fixed = Mechanism(Deterministic(100, epochs=4), 1.0).guarantee()
    for epsilon in (0.5, 2.0):
        assert four.delta(epsilon).lower >= one.delta(epsilon).lower
        assert four.delta(epsilon).upper == fixed.delta(epsilon).upper


@pytest.mark.parametrize("clipping", [Batch(), Mixed(groups=4)])
def test_other_clippings_are_ordered(clipping):
    bracket = shuffle(2.0, 100, clipping=clipping).delta(1.0)
    assert 0.0 < bracket.lower <= bracket.upper
    assert bracket.upper == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-12)
