"""Bounds that need no convolution: on the right side of certified ones, and close where rounds rarely matter."""

import math

import pytest

from verax import Mechanism, Poisson, RandomParticipation, TruncatedPoisson
from verax.privacy.composition import Composition, Round
from verax.privacy.pairs import Pair

RUNS = [(0.01, 1000, 1.0), (0.001, 1000, 0.8), (0.1, 100, 0.6), (1e-4, 10**5, 2.0), (0.5, 10, 3.0)]


def curve(rate, steps, noise, reverse=False):
    pair = Pair.subsampled(rate, 1.0 / noise)
    return Composition([(Round(pair.reverse() if reverse else pair), steps)])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("rate", "steps", "noise"), RUNS)
def test_both_sides_are_on_their_side_of_the_convolution(rate, steps, noise, reverse):
    run = curve(rate, steps, noise, reverse)
    for delta in (1e-2, 1e-5, 1e-9):
        lower, upper = run.epsilon(delta, 1e-3)
        assert run._chernoff(math.log(delta)).epsilon(delta) >= lower
        assert run._one_round(math.log(delta)).epsilon(delta) <= upper
    for epsilon in (0.05, 0.5, 2.0):
        lower, upper = run.delta(epsilon, 1e-3)
        assert run._chernoff(math.log(max(lower, 1e-200))).delta(epsilon) >= lower
        assert run._one_round(math.log(max(lower, 1e-200))).delta(epsilon) <= upper


def test_one_round_is_the_curve_of_one_round():
    """With a single round the attack is the best one, up to how finely thresholds are tried."""
    pair = Pair.subsampled(1e-3, 2.0)
    run = Composition([(Round(pair), 2)])
    for epsilon in (0.5, 1.0, 3.0):
        once, attack = pair.delta(epsilon), run._one_round(-40.0).delta(epsilon)
        assert 1.9 * once[0] < attack < 2.0 * once[1]


def test_rates_too_small_for_a_grid_are_known_within_ten_percent():
    """1e7 rounds at rate 1e-12: the convolution would take billions of points, and one round decides."""
    guarantee = Mechanism(Poisson(1e-12, 10**7), 0.3).guarantee()
    for found in (guarantee.delta(1.0), guarantee.delta(0.01), guarantee.epsilon(1e-13)):
        assert 0.0 < found.lower <= found.upper < 1.1 * found.lower


def test_a_delta_below_ten_to_the_minus_eighty_is_bounded_away_from_one():
    found = Mechanism(Poisson(1e-4, 10**5), 2.0).guarantee().delta(1.0)
    assert 1e-84 < found.lower <= found.upper < 1e-70


def test_rare_and_visible_participation_shows_with_its_own_probability():
    """1e7 rounds at rate 1e-7 and noise .05: whoever is sampled at all, with probability 1 - 1/e, is seen."""
    found = Mechanism(Poisson(1e-7, 10**7), 0.05).guarantee().delta(1.0)
    assert 0.63212 < found.lower <= found.upper < 0.63213


@pytest.mark.parametrize(
    "sampler", [TruncatedPoisson(1e-7, 10**6, 5, 10**7), RandomParticipation(1e-7, 1e-3, 1000, 10**6)]
)
def test_rare_rounds_of_several_kinds_have_a_small_epsilon(sampler):
    assert Mechanism(sampler, 1.0).guarantee().epsilon(1e-5).upper < 2e-4


def test_a_million_rounds_of_random_participation_cost_less_than_if_it_were_known():
    run = Mechanism(RandomParticipation(0.1, 0.01, 1000, 10**6), 5.0)
    known = Mechanism(RandomParticipation(0.1, 0.01, 1000, 10**6, revealed=True), 5.0)
    assert 1.7 < run.guarantee().epsilon(1e-5).lower <= run.guarantee().epsilon(1e-5).upper < 2.4
    assert known.guarantee().epsilon(1e-5).lower > 2.6
