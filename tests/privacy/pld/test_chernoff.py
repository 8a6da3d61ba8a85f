"""Bounds that need no convolution: on the right side of certified ones, and close where rounds
rarely matter.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest

from verax import Mechanism, Poisson, RandomParticipation, TruncatedPoisson
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.chernoff import ChernoffBound, OneRoundAttack
from verax.privacy.pld.composition import Composition
from verax.privacy.pld.convolve import infinite_mass
from verax.privacy.pld.discretise import DiscretePld

RUNS = [(0.01, 1000, 1.0), (0.001, 1000, 0.8), (0.1, 100, 0.6), (1e-4, 10**5, 2.0), (0.5, 10, 3.0)]


def curve(rate, steps, noise, reverse=False):
    pair = MixturePair.subsampled(rate, 1.0 / noise)
    return Composition([(PricedRound(pair.reverse() if reverse else pair), steps)])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("rate", "steps", "noise"), RUNS)
def test_both_sides_are_on_their_side_of_the_convolution(rate, steps, noise, reverse):
    run = curve(rate, steps, noise, reverse)
    for delta in (1e-2, 1e-5, 1e-9):
        lower, upper = run.epsilon(delta, 1e-3)
        assert run._chernoff(run._spacings(math.log(delta))).epsilon(delta) >= lower
        assert run._one_round(run._spacings(math.log(delta))).epsilon(delta) <= upper
    for epsilon in (0.05, 0.5, 2.0):
        lower, upper = run.delta(epsilon, 1e-3)
        spacings = run._spacings(math.log(max(lower, 1e-200)))
        assert run._chernoff(spacings).delta(epsilon) >= lower
        assert run._one_round(spacings).delta(epsilon) <= upper


def test_one_round_is_the_curve_of_one_round():
    """With a single round the attack is the best one, up to how finely thresholds are tried."""
    pair = MixturePair.subsampled(1e-3, 2.0)
    run = Composition([(PricedRound(pair), 2)])
    for epsilon in (0.5, 1.0, 3.0):
        once, attack = pair.delta(epsilon), run._one_round(run._spacings(-40.0)).delta(epsilon)
        assert 1.9 * once[0] < attack < 2.0 * once[1]


def test_rates_too_small_for_a_grid_are_known_within_ten_percent():
    """1e7 rounds at rate 1e-12: the convolution would take billions of points, and one round
    decides.
    """
    guarantee = Mechanism(Poisson(1e-12, 10**7), 0.3).guarantee()
    for found in (guarantee.delta(1.0), guarantee.delta(0.01), guarantee.epsilon(1e-13)):
        assert 0.0 < found.lower <= found.upper < 1.1 * found.lower


def test_a_delta_below_ten_to_the_minus_eighty_is_bounded_away_from_one():
    found = Mechanism(Poisson(1e-4, 10**5), 2.0).guarantee().delta(1.0)
    assert 1e-84 < found.lower <= found.upper < 1e-70


def test_rare_and_visible_participation_shows_with_its_own_probability():
    """1e7 rounds at rate 1e-7 and noise .05: whoever is sampled at all, with probability 1 - 1/e,
    is seen.
    """
    found = Mechanism(Poisson(1e-7, 10**7), 0.05).guarantee().delta(1.0)
    assert 0.63212 < found.lower <= found.upper < 0.63213


@pytest.mark.parametrize(
    "sampler",
    [TruncatedPoisson(1e-7, 10**6, 5, 10**7), RandomParticipation(1e-7, 1e-3, 1000, 10**6)],
)
def test_rare_rounds_of_several_kinds_have_a_small_epsilon(sampler):
    assert Mechanism(sampler, 1.0).guarantee().epsilon(1e-5).upper < 2e-4


def test_a_million_rounds_of_random_participation_cost_less_than_if_it_were_known():
    run = Mechanism(RandomParticipation(0.1, 0.01, 1000, 10**6), 5.0)
    known = Mechanism(RandomParticipation(0.1, 0.01, 1000, 10**6, revealed=True), 5.0)
    assert 1.7 < run.guarantee().epsilon(1e-5).lower <= run.guarantee().epsilon(1e-5).upper < 2.4
    assert known.guarantee().epsilon(1e-5).lower > 2.6


def products(atoms, count):
    """Loss and mass of every outcome of ``count`` rounds, in 50 digits."""
    for outcome in itertools.product(atoms, repeat=count):
        yield mpmath.fsum(loss for loss, _ in outcome), mpmath.fprod(mass for _, mass in outcome)


def curve_of(outcomes, epsilon):
    return mpmath.fsum(
        mass * (1 - mpmath.exp(epsilon - loss)) for loss, mass in outcomes if loss > epsilon
    )


@pytest.mark.parametrize("infinite", [0.0, 1e-6])
@pytest.mark.parametrize("total", [1.0, 1.0 + 1e-9, 1.02])
@pytest.mark.parametrize(
    ("losses", "shares"),
    [
        ((-0.1, 0.1), (0.5, 0.5)),
        ((-1e-3, 8.0), (0.999, 1e-3)),
        ((-0.3, 0.0, 3.0), (0.6, 0.3, 0.1)),
        ((-1e-6, 300.0), (1.0 - 1e-9, 1e-9)),
        ((0.5, 2.0, 40.0), (0.9, 0.1, 1e-12)),
    ],
)
def test_upper_bounds_hold_for_every_outcome_of_a_few_rounds(losses, shares, total, infinite):
    step = 1e-6
    index = np.round(np.array(losses) / step).astype(np.int64)
    pld = DiscretePld(0.0, step, index, np.log(np.array(shares) * total), infinite, 0.0)
    with mpmath.workdps(50):
        atoms = [
            (mpmath.mpf(float(x)), mpmath.exp(mpmath.mpf(float(m))))
            for x, m in zip(pld.losses, pld.log_mass, strict=True)
        ]
        outcomes = list(products(atoms, 4))
        mass = max(mpmath.fsum(m for _, m in atoms) + infinite, 1)
        charge = mass**4 - (mass - infinite) ** 4
        bound = ChernoffBound([(pld, 4)], infinite_mass([(pld, 4)]))
        for epsilon in (1e-3, 0.1, 1.0, 5.0, 30.0, 290.0):
            truth = min(curve_of(outcomes, epsilon) + charge, 1)
            assert bound.delta(epsilon) >= truth
            assert bound._one_large(epsilon) + bound._infinite >= truth
        for delta in (0.1, 1e-4, 1e-10):
            epsilon = bound.epsilon(delta)
            assert math.isinf(epsilon) or curve_of(outcomes, epsilon) + charge <= delta


def test_rounds_that_have_no_small_losses_leave_the_others_as_they_are():
    """The one with the first large loss may be the only one of its kind: then any number of the
    others is left.
    """
    large = DiscretePld(0.0, 1.0, np.array([50]), np.array([0.0]), 0.0, 0.0)
    small = DiscretePld(0.0, 1.0, np.array([-1, 1]), np.log(np.array([0.3, 0.7])), 0.0, 0.0)
    both, alone = ChernoffBound([(large, 1), (small, 3)], 0.0), ChernoffBound([(small, 3)], 0.0)
    assert (
        both._small(1.0, most=10.0, any_number=True)
        == alone._small(1.0, most=10.0, any_number=True)
        > 0.0
    )
    assert both._small(1.0, most=10.0) == 0.0


def test_divergences_of_measures_with_more_mass_than_one_may_exceed_one():
    """Two rounds of mass 1.02, nearly all of it at a loss of 20: one loss of 35 leaves more than 1
    to the other.
    """
    pld = DiscretePld(0.0, 5.0, np.array([4, 7]), np.log(np.array([1.02, 2.8e-5])), 0.0, 0.0)
    truth = 2 * 1.02 * 2.8e-5 * -math.expm1(-5.0)
    assert ChernoffBound([(pld, 2)], 0.0)._one_large(50.0) >= truth


def test_grids_that_may_be_off_have_more_mass():
    pld = DiscretePld(0.0, 1.0, np.array([-1, 1]), np.log(np.array([0.25, 0.75])), 0.0, 1e-9)
    sure = DiscretePld(0.0, 1.0, np.array([-1, 1]), np.log(np.array([0.25, 0.75])), 0.0, 0.0)
    apart = ChernoffBound([(pld, 10**6)], 0.0)._mass / ChernoffBound([(sure, 10**6)], 0.0)._mass
    assert apart >= math.exp(1e-3) * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ((0.5, 0.5), (0.9, 0.1)),
        ((0.999, 1e-3), (1.0 - 1e-9, 1e-9)),
        ((0.2, 0.3, 0.5), (0.6, 0.3, 0.1)),
        ((0.9, 0.1, 1e-5), (0.9, 0.1, 1e-60)),
    ],
)
def test_the_attack_finds_no_more_than_there_is(p, q):
    attack = OneRoundAttack(
        [(DiscretePair.from_masses(np.array(p), np.array(q)), 4)],
        [math.log(max(a / b for a, b in zip(p, q, strict=True)))],
    )
    with mpmath.workdps(50):
        atoms = [
            (mpmath.log(mpmath.mpf(a) / mpmath.mpf(b)), mpmath.mpf(a))
            for a, b in zip(p, q, strict=True)
        ]
        outcomes = list(products(atoms, 4))
        for epsilon in (0.0, 0.1, 1.0, 5.0, 100.0):
            assert attack.delta(epsilon) <= curve_of(outcomes, epsilon)
        for delta in (0.1, 1e-4, 1e-10):
            if (epsilon := attack.epsilon(delta)) > 0.0:
                assert curve_of(outcomes, epsilon) >= delta
