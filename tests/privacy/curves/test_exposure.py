"""A run without noise: epsilon is infinite unless delta allows for being sampled."""

from __future__ import annotations

import itertools
import math

import pytest

from verax import Batch, Deterministic, Mechanism, Poisson, Shuffle, TruncatedPoisson
from verax.privacy.curves.exposure import NoiselessRounds
from verax.privacy.curves.gaussian import gaussian_delta


def test_curve():
    curve = NoiselessRounds(0.1)
    assert curve.epsilon(0.05, 1e-3) == (math.inf, math.inf)
    assert curve.epsilon(0.1, 1e-3) == (0.0, 0.0)
    assert curve.delta(0.0, 1e-3) == curve.delta(100.0, 1e-3) == (0.1, 0.1)
    assert curve.estimate(0.05) == math.inf


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace"])
@pytest.mark.parametrize("group", [1, 3])
def test_poisson_exposes_whoever_is_sampled(relation, group):
    guarantee = Mechanism(Poisson(rate=0.01, steps=7), 0.0, relation=relation).guarantee(group)
    sampled = 1.0 - 0.99 ** (7 * group)
    for epsilon in (0.0, 1.0, 50.0):
        bracket = guarantee.delta(epsilon)
        assert bracket.lower == bracket.upper == pytest.approx(sampled, rel=1e-12)
    assert guarantee.epsilon(1e-5).upper == math.inf
    assert guarantee.epsilon(1e-5).lower == math.inf
    assert guarantee.epsilon(sampled * 1.001).upper == 0.0


@pytest.mark.parametrize("sampler", [Poisson(1.0, 3), Deterministic(10), Shuffle(10)])
def test_everyone_in_the_data_is_exposed_when_everyone_takes_part(sampler):
    guarantee = Mechanism(sampler, 0.0, Batch()).guarantee()
    assert guarantee.delta(5.0).upper == 1.0
    assert guarantee.epsilon(0.5).upper == math.inf


def test_a_noiseless_phase_does_not_make_the_noisy_ones_free():
    """Being seen in the noiseless phase is unlikely; the other phase still costs what it costs."""
    noisy = Mechanism(Poisson(1.0, 10), 1.0)
    seen = Mechanism(Poisson(1e-9, 1), 0.0)
    alone = noisy.guarantee()
    both = (seen + noisy).guarantee()
    assert both.epsilon(1e-5).upper >= alone.epsilon(1e-5).lower
    assert both.delta(1.0).upper >= alone.delta(1.0).lower


def test_a_noiseless_phase_beside_a_noisy_one_is_bracketed():
    """Seen with probability v, else the other phase at a shifted epsilon; worked out for both
    directions.
    """
    v, mu, epsilon = 0.01, 1.0, 1.0
    both = (
        (Mechanism(Poisson(v, 1), 0.0) + Mechanism(Poisson(1.0, 1), 1.0 / mu))
        .guarantee()
        .delta(epsilon)
    )
    shift = math.log1p(-v)
    remove = v + (1.0 - v) * gaussian_delta(mu, epsilon - shift)
    add = gaussian_delta(mu, epsilon + shift)
    assert both.upper >= max(remove, add) * (1.0 - 1e-12)
    assert both.lower <= max(remove, add) * (1.0 + 1e-12)


def test_two_noiseless_phases_are_seen_if_either_is():
    run = Mechanism(Poisson(0.1, 1), 0.0) + Mechanism(Poisson(0.2, 1), 0.0)
    assert run.guarantee().delta(1.0).upper == pytest.approx(1.0 - 0.9 * 0.8, rel=1e-12)


@pytest.mark.parametrize(
    ("rate", "most", "population", "steps"), [(0.5, 1, 2, 1), (0.5, 1, 2, 3), (0.3, 2, 4, 2)]
)
def test_truncation_hides_a_record_without_noise(rate, most, population, steps):
    """The others silent: the record shows if it is among those kept, all sets of coins
    written out.
    """
    inside = 0.0
    for coins in itertools.product((0, 1), repeat=population):
        size = sum(coins)
        chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
        inside += chance * coins[0] * min(1.0, most / max(size, 1))
    bracket = Mechanism(TruncatedPoisson(rate, steps, most, population), 0.0).guarantee().delta(1.0)
    truth = 1.0 - (1.0 - inside) ** steps
    assert truth * (1.0 - 1e-5) <= bracket.lower <= truth * (1.0 + 1e-12)
    assert truth < bracket.upper <= 1.0 - (1.0 - rate) ** steps + 1e-12
