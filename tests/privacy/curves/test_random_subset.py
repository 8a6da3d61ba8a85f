"""k of T rounds through coins: the inequality behind it, and bounds between simulation and what
blocks give.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special

from verax import Mechanism, RandomAllocation
from verax.privacy.curves.random_subset import (
    RandomSubsetBound,
    _choices,
    _factor,
    _parts,
    _round,
    angles,
)
from verax.privacy.numerics.distributions import log_binomial_probability
from verax.privacy.pairs.some_of_many import some_of_many_attack
from verax.privacy.pld import composition
from verax.privacy.pld.composition import UPPER, Composition
from verax.privacy.pld.convolve import compose

RNG = np.random.default_rng(0)


def mean_over_subsets(y: np.ndarray, times: int) -> np.ndarray:
    """The likelihood ratio: the average over k-subsets of products, one round after the other."""
    mean = np.zeros((times + 1, len(y)))
    mean[0] = 1.0
    picks = np.arange(1, times + 1)[:, None]
    for t in range(1, y.shape[1] + 1):
        mean[1:] = (np.maximum(t - picks, 0) * mean[1:] + picks * y[:, t - 1] * mean[:-1]) / t
    return mean[-1]


def test_the_average_over_subsets_is_what_it_says():
    y = RNG.lognormal(size=(1, 6))
    each = [math.prod(y[0, list(places)]) for places in itertools.combinations(range(6), 3)]
    assert mean_over_subsets(y, 3)[0] == pytest.approx(np.mean(each))


# --- the theorem ----------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [0.0, 0.3, 2.0, 10.0, 90.0])
@pytest.mark.parametrize("planned", [0.2, 2.0, 15.0, 100.0])
def test_the_nodes_are_above_the_integral_for_every_variance(variance, planned):
    weights, nodes = angles(planned)
    total = float(weights @ np.exp(-nodes * variance))
    assert total >= special.i0e(variance) * (1.0 - 1e-12)
    assert weights.min() > 0.0
    assert weights.sum() == pytest.approx(1.0)
    if variance > 50.0 and planned == 100.0:
        assert total <= 1.05 * special.i0e(variance)


@pytest.mark.parametrize(
    ("times", "steps", "shift"), [(4, 9, 0.5), (5, 20, 1.0), (10, 20, 2.0), (4, 60, 1.5)]
)
@pytest.mark.parametrize("lean", [1.0, 0.6, 0.2])
def test_the_bound_holds_for_every_transcript(times, steps, shift, lean):
    """With the record and without, far out and in the middle: never below the likelihood ratio
    itself.
    """
    x = np.concatenate(
        [RNG.standard_normal((300, steps)) + where for where in (0.0, shift, -2.0, 3.0)]
    )
    chance = lean * times / steps
    rise, p = _factor(x, chance, shift)
    assert p == pytest.approx(special.expit(np.log(np.expm1(rise))), rel=1e-6)
    ratio = mean_over_subsets(np.exp(shift * x - shift**2 / 2.0), times)
    log_r = rise.sum(axis=1) + steps * math.log1p(-chance)
    variance = (p * (1.0 - p)).sum(axis=1)
    bound = np.exp(log_r - log_binomial_probability(steps, chance, times).upper) * special.i0e(
        variance
    )
    assert (bound >= ratio * (1.0 - 1e-9)).all()
    weights, nodes = angles(float(np.median(variance)))
    assert (
        weights @ np.exp(-nodes[:, None] * variance) >= special.i0e(variance) * (1.0 - 1e-12)
    ).all()


@pytest.mark.parametrize("node", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("chance", "shift"), [(0.01, 1.0), (0.4, 0.5), (0.2, 3.0)])
def test_a_round_is_rounded_up_in_convex_order(node, chance, shift):
    pmf = _round(chance, shift, node, log_scale=0.3)
    x = np.linspace(-12.0, 12.0 + 2 * shift, 400_001)
    density = np.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi) * (x[1] - x[0])
    rise, p = _factor(x, chance, shift)
    factor = np.exp(0.3 + rise + math.log1p(-chance) - node * p * (1.0 - p))
    for a in (0.0, 0.5, 0.9, 1.0, 1.1, 1.5, 3.0, 20.0):
        exact = float(density @ np.maximum(factor - a, 0.0))
        found = float(pmf.q @ np.maximum(pmf.places - a, 0.0)) + pmf.infinite
        assert exact - 1e-9 <= found <= exact * (1.0 + 3e-4) + 1e-5
    assert pmf.q.sum() == pytest.approx(1.0, abs=1e-9)


# --- against simulation ---------------------------------------------------------------------------


def simulated(
    times: int, steps: int, shift: float, epsilon: float, runs: int = 40_000
) -> tuple[float, float]:
    """delta(epsilon) with the record against without, and its standard error: the record's rounds
    pushed further.
    """
    push = 4.0 / math.sqrt(times)
    x = np.random.default_rng(1).standard_normal((runs, steps))
    x[:, :times] += shift + push
    weight = np.exp(-push * (x[:, :times] - shift).sum(axis=1) + times * push**2 / 2.0)
    ratio = mean_over_subsets(np.exp(shift * x - shift**2 / 2.0), times)
    values = weight * np.maximum(1.0 - math.exp(epsilon) / ratio, 0.0)
    return float(values.mean()), float(values.std()) / math.sqrt(runs)


@pytest.mark.parametrize(("times", "steps", "shift"), [(10, 20, 1.0), (5, 10, 2.0), (6, 30, 1.4)])
def test_delta_is_never_below_simulation_and_near_it(times, steps, shift):
    subset = RandomSubsetBound(times, steps, shift)
    epsilon = subset.epsilon(1e-6, 0.01)[1]
    found, error = simulated(times, steps, shift, epsilon)
    assert found <= 1e-6 + 4.0 * error
    closer, error = simulated(times, steps, shift, 0.93 * epsilon)
    assert closer >= 1e-6 - 4.0 * error


@pytest.mark.parametrize(("times", "steps", "noise"), [(10, 20, 1.0), (10, 100, 0.7)])
def test_brackets_are_two_percent_wide_where_blocks_gave_six_to_ten(times, steps, noise):
    guarantee = Mechanism(RandomAllocation(times, steps), noise).guarantee()
    bracket = guarantee.epsilon(1e-6)
    blocks, subset = guarantee.uppers[0].curves
    assert isinstance(blocks, Composition)
    assert isinstance(subset, RandomSubsetBound)
    assert bracket.upper <= 1.02 * bracket.lower
    assert blocks.epsilon(1e-6, 1e-3, (UPPER,))[1] > 1.06 * bracket.lower
    assert "theorem 10" in bracket.upper_by
    seen = some_of_many_attack(times, steps, 1.0 / noise, 1.0)
    for epsilon in (0.5 * bracket.upper, bracket.upper):
        assert seen.delta(epsilon)[0] <= subset.delta(epsilon, 1e-3)[1]


def test_delta_and_epsilon_agree_and_small_epsilons_say_nothing_wrong():
    subset = RandomSubsetBound(10, 100, 1.0)
    epsilon = subset.epsilon(1e-6, 1e-3)[1]
    assert subset.delta(epsilon, 1e-3)[1] == pytest.approx(1e-6, rel=0.1)
    assert subset.delta(0.0, 1e-3)[1] >= simulated(10, 100, 1.0, 0.0, 20_000)[0] - 0.02
    assert subset.estimate(1e-6) == pytest.approx(epsilon, rel=0.1)
    assert subset.delta(1.0, 1e-3)[1] >= subset.delta(3.0, 1e-3)[1]


def test_measures_with_too_much_mass_are_trivial_not_cut():
    coins = _choices(10, 100, 1.0)[-1]
    parts = _parts(10, 100, 1.0, coins.chance, coins.variance)
    assert math.fsum(share for share, _ in parts) == pytest.approx(1.0)
    assert max(float(c.rounds[0][0].pair.p.sum()) ** 100 for _, c in parts) > 1.0


def test_only_a_single_epoch_of_several_rounds_with_little_noise_is_worth_it():
    assert RandomSubsetBound.applies(10, 100, 1.0)
    assert not RandomSubsetBound.applies(3, 100, 1.0)
    assert not RandomSubsetBound.applies(98, 100, 1.0)
    assert not RandomSubsetBound.applies(10, 100, 0.2)
    assert (
        "theorem 10" not in Mechanism(RandomAllocation(10, 100, epochs=2), 1.0).guarantee().upper_by
    )


@pytest.mark.parametrize(
    ("times", "steps", "noise", "known"), [(30, 100, 0.29, 215.93), (10, 100, 0.3, 77.5)]
)
def test_tails_are_charged_for_the_mass_of_all_rounds(monkeypatch, times, steps, noise, known):
    """The measures have masses up to e^19 in all: what is cut off in one round weighs as much as
    all other rounds.
    """
    charges = []

    def watched(rounds, *more):
        found = compose(rounds, *more)
        ((pmf, count),) = rounds
        mass = float(np.exp(pmf.log_mass).sum()) + pmf.infinite
        # the share of at least one infinite loss
        rest = -math.expm1(count * math.log1p(-pmf.infinite / mass))
        charges.append((mass**count * rest, found.infinite, mass**count))
        return found

    monkeypatch.setattr(composition, "compose", watched)
    _parts.cache_clear()
    epsilon = RandomSubsetBound(times, steps, 1.0 / noise).epsilon(1e-6, 1e-3)[1]
    _parts.cache_clear()
    for exact, charged, _ in charges:
        assert exact <= charged * (1.0 + 1e-12)
    assert max(whole for _, _, whole in charges) > 50.0
    assert epsilon == pytest.approx(known, rel=2e-3)
