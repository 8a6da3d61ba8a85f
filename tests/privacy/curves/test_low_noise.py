"""Runs with hardly any noise: closed forms that meet the usual computation, at any noise that a
double can hold.
"""

import math

import mpmath
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
from verax.privacy.curves import low_noise
from verax.privacy.samplers.base import ProtectedGroup

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
    run = (
        Mechanism(Poisson(0.02, 200), noise)
        if clipping is None
        else Mechanism(Poisson(0.02, 200), noise, clipping)
    )
    found = run.guarantee(group=group)
    uppers, (search,), _, _ = low_noise.bounds(Phases((run,)), ProtectedGroup(group))
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
    uppers, (search,), _, _ = low_noise.bounds(Phases((run,)), ProtectedGroup())
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
    run = (
        Mechanism(sampler, noise)
        if relation == "default"
        else Mechanism(sampler, noise, relation=relation)
    )
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
    """Nobody says that its other records are there: the sum may go from 0 to the clip norm, and no
    further.
    """
    run = Mechanism(RandomParticipation(0.5, 0.5, 3, 10), 1e-3, Batch())
    alone = Mechanism(Poisson(0.25, 10), 1e-3)
    assert run.guarantee().epsilon(1e-5).lower <= alone.guarantee().epsilon(1e-5).upper
    assert run.guarantee().epsilon(1e-5).upper >= 3.9 * alone.guarantee().epsilon(1e-5).lower


@pytest.mark.parametrize("clipping", [Batch(), Mixed(groups=3)])
def test_records_allocated_to_different_rounds_turn_more_aggregates_around_than_in_the_same(
    clipping,
):
    """Two records, three rounds each of a hundred: with probability .91 six rounds move by 2, and
    that can be seen.
    """
    noise = 1e-3
    found = Mechanism(RandomAllocation(3, 100), noise, clipping).guarantee(group=2)
    assert found.epsilon(0.5).upper > 0.99 * 6 * (2 / noise) ** 2 / 2


def test_a_group_allocated_at_random_is_known_at_least_as_if_it_were_spread_out():
    noise = 1e-3
    found = Mechanism(RandomAllocation(3, 100), noise).guarantee(group=4).epsilon(1e-5)
    assert found.lower > 0.98 * 12 / noise**2 / 2
    assert 4**2 * 3 / noise**2 / 2 < found.upper < 1.01 * 4**2 * 3 / noise**2 / 2


def test_no_more_of_a_group_is_in_a_batch_than_fits():
    """One place: whoever is in it moves the sum by 2 at most, however large the group."""
    noise = 1e-3
    found = Mechanism(TruncatedPoisson(0.1, 1, 1, 10), noise).guarantee(group=5).epsilon(1e-7)
    truth = Mechanism(Poisson(1.0, 1), noise / 2).guarantee().epsilon(1e-7)
    assert found.lower <= truth.upper
    assert found.upper <= 1.001 * truth.upper


def test_orthogonal_records_may_take_the_places_of_aligned_ones():
    """Four orthogonal ones in place of four that point the other way move the sum by 2 + 4, with
    probability .21.
    """
    noise = 1e-3
    found = Mechanism(TruncatedPoisson(1.0, 1, 10, 10), noise).guarantee(
        group=4, geometry="orthogonal"
    )
    assert found.epsilon(1e-6).upper > 6**2 / noise**2 / 2


@pytest.mark.parametrize(
    ("client", "record"), [(0.5, 0.99), (0.1, 0.9), (0.01, 0.999), (1e-3, 1 - 1e-9)]
)
@pytest.mark.parametrize("epsilon", [4900.0, 5100.0, 5300.0])
def test_a_client_that_is_seen_taking_part_hides_a_replaced_record_by_its_own_coin_alone(
    client, record, epsilon
):
    """One round, the client's other records plain to see: q N(m) + (1-q) N(0) against q N(-m) +
    (1-q) N(0).
    """
    noise = 0.0099
    run = Mechanism(
        RandomParticipation(client, record, 10**4, 1, revealed=True), noise, relation="replace"
    )
    with mpmath.workdps(50):
        m, q = 1 / mpmath.mpf(noise), mpmath.mpf(record)
        c = (epsilon + mpmath.log((1 - q) / q)) / m + m / 2  # any event will do
        there = q * mpmath.ncdf(m - c) + (1 - q) * mpmath.ncdf(-c)
        other = q * mpmath.ncdf(-m - c) + (1 - q) * mpmath.ncdf(-c)
        attack = mpmath.mpf(client) * (there - mpmath.exp(epsilon) * other)
        assert attack <= run.guarantee().delta(epsilon).upper <= 1.01 * attack


@pytest.mark.parametrize(
    ("rate", "most", "people"), [(0.3, 4, 10), (0.3, 10, 10), (0.05, 3, 20), (1.0, 5, 5)]
)
def test_a_truncated_batch_moves_by_two_only_where_it_is_full(rate, most, people):
    """One round: a shift of 2 with the chance of at least ``most`` others, else of 1; seen with the
    record's rate.
    """
    noise, epsilon = 0.004, 1.2 / 0.004**2
    found = Mechanism(TruncatedPoisson(rate, 1, most, people), noise).guarantee().delta(epsilon)
    with mpmath.workdps(50):
        q = mpmath.mpf(rate)
        full = sum(
            mpmath.binomial(people, k) * q**k * (1 - q) ** (people - k)
            for k in range(most, people + 1)
        )
        shifts = {1: q * (1 - full), 2: q * full}
        truth = mpmath.mpf(0)
        for shift, chance in shifts.items():
            mu = shift / mpmath.mpf(noise)
            near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
            truth += chance * (mpmath.ncdf(-near) - mpmath.exp(epsilon) * mpmath.ncdf(-far))
        assert truth <= found.upper <= truth * (1 + 1e-9) + 1e-290


def test_truncated_batches_that_are_hardly_ever_full_cost_as_much_as_poisson_batches():
    noise = 1e-3
    cut = Mechanism(TruncatedPoisson(0.01, 1000, 40, 1000), noise).guarantee().epsilon(1e-5)
    free = Mechanism(Poisson(0.01, 1000), noise).guarantee().epsilon(1e-5)
    assert free.upper <= cut.upper < 1.001 * free.upper
    assert cut.upper < 1.01 * cut.lower


def test_replacement_takes_the_better_of_one_step_and_two():
    """Ten million rounds of much noise make the second step dear, and add nothing to the first."""
    low = Mechanism(Poisson(0.5, 1), 1e-3, relation="replace")
    usual = Mechanism(Poisson(0.5, 10**7), 1e4, relation="replace")
    found = (low + usual).guarantee().epsilon(0.1)
    assert found.upper < 1.1 * 2 / 1e-3**2
