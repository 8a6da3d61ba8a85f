"""Runs with hardly any noise: closed forms that meet the usual computation, at any noise that a double can hold."""

import math

import pytest

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Mechanism,
    Mixed,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.mechanism import Phases
from verax.privacy import low_noise

SAMPLERS = [
    Poisson(0.01, 1000),
    BallsInBins(100, 3),
    RandomAllocation(3, 100),
    Shuffle(100, 3),
    Deterministic(100, 3),
    BufferedShuffle(100, 10, 3),
    WithoutReplacement(10, 1000, 3),
    TruncatedPoisson(0.01, 100, 20, 1000),
    RandomParticipation(0.1, 0.1, 10, 100),
]


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("clipping", [None, Batch(), Mixed(groups=3)])
@pytest.mark.parametrize("group", [1, 3])
def test_the_closed_forms_agree_with_the_convolution_where_both_can_be_had(noise, clipping, group):
    run = Mechanism(Poisson(0.02, 200), noise) if clipping is None else Mechanism(Poisson(0.02, 200), noise, clipping)
    found = run.guarantee(group=group)
    uppers, (search,), _, _ = low_noise.bounds(Phases((run,)), group, orthogonal=False)
    for delta in (0.1, 1e-3, 1e-6):
        bracket = found.epsilon(delta)
        assert search.epsilon(delta, 1e-3)[0] <= bracket.upper
        assert max(curve.epsilon(delta, 1e-3)[1] for curve in uppers) >= bracket.lower
    for epsilon in (1.0, 100.0, 0.5 / noise**2, 2.0 / noise**2):
        bracket = found.delta(epsilon)
        assert search.delta(epsilon, 1e-3)[0] <= bracket.upper
        assert max(curve.delta(epsilon, 1e-3)[1] for curve in uppers) >= bracket.lower


def test_replacing_a_record_agrees_with_the_convolution():
    run = Mechanism(Poisson(0.02, 200), 0.05, relation="replace")
    uppers, (search,), _, _ = low_noise.bounds(Phases((run,)), 1, orthogonal=False)
    for delta in (0.1, 1e-3, 1e-6):
        bracket = run.guarantee().epsilon(delta)
        assert search.epsilon(delta, 1e-3)[0] <= bracket.upper
        assert uppers[0].epsilon(delta, 1e-3)[1] >= bracket.lower


@pytest.mark.parametrize("noise", [0.0099, 1e-3, 1e-6, 1e-50, 1e-139])
def test_poisson_is_known_to_half_a_percent_at_any_noise(noise):
    found = Mechanism(Poisson(0.01, 1000), noise).guarantee().epsilon(1e-5)
    truth = 26 / noise**2 / 2  # P[Bin(1000, .01) >= 26] > 1e-5 > P[Bin(1000, .01) >= 27], each seen
    assert found.upper < 1.005 * found.lower
    assert found.lower < 1.01 * truth
    assert found.upper > truth


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize("relation", ["default", "replace"])
@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-100, 1e-200, 5e-324])
def test_every_sampler_has_a_bracket_at_any_noise(sampler, relation, noise):
    if relation == "replace" and isinstance(sampler, TruncatedPoisson):
        pytest.skip("it has no analysis of replacement at any noise")
    run = Mechanism(sampler, noise) if relation == "default" else Mechanism(sampler, noise, relation=relation)
    found, seen = run.guarantee().epsilon(1e-5), run.guarantee().delta(10.0)
    assert 1e4 < found.lower <= found.upper
    assert found.upper < 5 * found.lower if noise > 1e-140 else found.lower > 1e279
    assert 0.0 < seen.lower <= seen.upper <= 1.0


@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-160])
def test_groups_cost_more(noise):
    for sampler in (Poisson(0.01, 1000), BallsInBins(100, 3), RandomAllocation(3, 100)):
        run = Mechanism(sampler, noise)
        assert run.guarantee(group=2).epsilon(1e-5).upper >= run.guarantee().epsilon(1e-5).upper


def test_phases_with_and_without_much_noise_compose():
    low, usual = Mechanism(Poisson(0.01, 100), 1e-4), Mechanism(Poisson(0.01, 100), 1.0)
    alone, both = low.guarantee().epsilon(1e-5), (low + usual).guarantee().epsilon(1e-5)
    assert both.upper >= alone.lower
    assert both.upper < 1.01 * both.lower


@pytest.mark.parametrize("noise", [1e10, 1e100, 1e300])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_no_noise_is_too_large(sampler, noise):
    found = Mechanism(sampler, noise).guarantee()
    assert found.epsilon(1e-5).upper == 0.0
    assert found.delta(0.0).upper < 1e-7


def test_the_number_of_vectors_is_never_counted_too_low():
    for places in (1, 2, 5, 12):
        for most in range(places + 1):
            number = sum(math.comb(places, j) for j in range(most + 1))
            assert low_noise._log_subsets(places, most) >= math.log(number) - 1e-12


def test_a_clients_aggregate_need_not_turn_around():
    """Nobody says that its other records are there: the sum may go from 0 to the clip norm, and no further."""
    run = Mechanism(RandomParticipation(0.5, 0.5, 3, 10), 1e-3, Batch())
    alone = Mechanism(Poisson(0.25, 10), 1e-3)
    assert run.guarantee().epsilon(1e-5).lower <= alone.guarantee().epsilon(1e-5).upper
    assert run.guarantee().epsilon(1e-5).upper >= 3.9 * alone.guarantee().epsilon(1e-5).lower
