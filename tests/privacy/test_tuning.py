"""The best of a random number of trials: against brute force, simulated pmfs, and Papernot and
Steinke.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax import Batch, Mechanism, NoGuarantee, Poisson, Shuffle
from verax.privacy.renyi.accountant import DEFAULT_ORDERS, Renyi, epsilon_from_rdp
from verax.privacy.tuning import PoissonTrials, TruncatedNegativeBinomial, _BestOfTrials, tuned

PMFS = [
    TruncatedNegativeBinomial(5.0),
    TruncatedNegativeBinomial(20.0),
    TruncatedNegativeBinomial(5.0, 1.0),
    TruncatedNegativeBinomial(8.0, 2.5),
    TruncatedNegativeBinomial(3.0, -0.5),
    PoissonTrials(0.4),
    PoissonTrials(4.0),
]


def pmf_of(trials, most=4000):
    """P[K = k], from the formulas of the pmf and not from its generating function."""
    k = np.arange(1, most)
    if isinstance(trials, PoissonTrials):
        logs = k * math.log(trials.mean) - trials.mean - np.array([math.lgamma(i + 1.0) for i in k])
        return np.concatenate([[math.exp(-trials.mean)], np.exp(logs)])
    if trials.shape == 0.0:
        weights = (1.0 - trials.gamma) ** k / k
    else:
        ratio = np.array([math.lgamma(i + trials.shape) - math.lgamma(i + 1.0) for i in k])
        weights = np.exp(k * math.log1p(-trials.gamma) + ratio)
    return np.concatenate([[0.0], weights / weights.sum()])


def best_of(q, chances):
    """The pmf of the best trial's output (later is better), and of nothing at all: summed over the
    number of trials.
    """
    below = np.concatenate([[0.0], np.cumsum(q)])
    k = np.arange(len(chances))
    powers = below[:, None] ** k
    return np.append(((powers[1:] - powers[:-1]) * (k > 0)) @ chances, chances[0])


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


class Exact:
    """What _Selected asks of a guarantee, exactly, for two pmfs on a finite set."""

    def __init__(self, p, q):
        self.p, self.q, self.uppers = p, q, []

    def delta(self, epsilon, rtol=0.0):
        worst = max(hockey_stick(self.p, self.q, epsilon), hockey_stick(self.q, self.p, epsilon))
        return SimpleNamespace(upper=worst)

    def epsilon(self, delta, rtol=0.0):
        low, high = 0.0, float(np.abs(np.log(self.p / self.q)).max())
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.delta(middle).upper <= delta else (middle, high)
        return SimpleNamespace(upper=high)


@pytest.mark.parametrize("trials", PMFS, ids=repr)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 6), spread=st.floats(0.1, 3.0))
@settings(deadline=None, max_examples=12)
def test_brute_force_stays_below(trials, seed, size, spread):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(size))
    q = p * np.exp(rng.uniform(-spread, spread, size))
    q /= q.sum()
    chances = pmf_of(trials)
    if chances.sum() < 1.0 - 1e-12:  # the tail that was left out
        chances[-1] += 1.0 - chances.sum()
    bound = _BestOfTrials(Exact(p, q), trials)
    for order, epsilon in itertools.product(
        itertools.islice(itertools.permutations(range(size)), 4), (0.1, 0.5, 1.0, 2.0)
    ):
        a, b = best_of(p[list(order)], chances), best_of(q[list(order)], chances)
        assert a.sum() == pytest.approx(1.0, abs=1e-9)
        assert (
            max(hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon))
            <= bound.delta(epsilon, 0.0)[1] + 1e-9
        )


def test_the_bound_is_not_vacuous():
    """Randomised response at epsilon 0.5: the best of a geometric number is at most 3 * 0.5, and
    above 1.0.
    """
    chance = math.exp(0.5) / (1.0 + math.exp(0.5))
    p, q = np.array([chance, 1.0 - chance]), np.array([1.0 - chance, chance])
    trials = TruncatedNegativeBinomial(1000.0, 1.0)
    bound = _BestOfTrials(Exact(p, q), trials)
    assert bound.shift == pytest.approx(2 * 0.5, abs=0.01)
    assert bound.delta(1.5 + 1e-3, 0.0)[1] < 1e-6
    a, b = best_of(p, pmf_of(trials, 40_000)), best_of(q, pmf_of(trials, 40_000))
    assert hockey_stick(a, b, 0.9) > 0.0 or hockey_stick(b, a, 0.9) > 0.0


@pytest.mark.parametrize("trials", PMFS, ids=repr)
def test_draws_follow_the_law(trials):
    chances = pmf_of(trials)
    assert float(np.arange(len(chances)) @ chances) == pytest.approx(trials.mean, rel=1e-6)
    assert 1.0 - chances[0] == pytest.approx(trials.some_probability, rel=1e-9)
    rng = np.random.default_rng(5)
    drawn = np.array([trials.draw(rng) for _ in range(4000)])
    for k in range(4):
        assert abs(np.mean(drawn == k) - chances[k]) < 5.0 * math.sqrt(chances[k] / 4000 + 1e-6)


def papernot_steinke(curve, trials, delta):
    """Theorems 2 and 6 of arXiv 2110.03620."""
    orders = np.array([order for order in DEFAULT_ORDERS if order > 1.05])
    rdp = curve.rdp(orders)
    total = rdp + math.log(trials.mean) / (orders - 1.0)
    if isinstance(trials, PoissonTrials):
        total += [trials.mean * curve.delta(math.log1p(1.0 / (order - 1.0))) for order in orders]
    else:
        total += (1.0 + trials.shape) * np.min(
            (1.0 - 1.0 / orders) * rdp - math.log(trials.gamma) / orders
        )
    return epsilon_from_rdp(orders, total, delta)


@pytest.mark.parametrize(
    ("noise", "trials", "peer"),
    [
        # peer: dp-accounting 0.6.0, RepeatAndSelectDpEvent of 1,000 Poisson rounds at rate .01,
        # delta 1e-5
        (1.0, TruncatedNegativeBinomial(10.0), 3.5226),
        (1.0, TruncatedNegativeBinomial(10.0, 1.0), 4.1033),
        (2.0, PoissonTrials(2.0), 0.8766),
        (2.0, PoissonTrials(5.0), 1.1567),
    ],
)
def test_tighter_than_papernot_and_steinke(noise, trials, peer):
    run = Mechanism(Poisson(0.01, 1000), noise)
    found = tuned(run, trials).epsilon(1e-5)
    theirs = papernot_steinke(Renyi.poisson(0.01, noise, 1000), trials, 1e-5)
    assert theirs == pytest.approx(peer, rel=0.02)
    assert found.lower <= run.guarantee().epsilon(1e-5).upper < found.upper < theirs


def test_more_trials_cost_more_and_a_single_one_hardly_anything():
    run = Mechanism(Poisson(0.05, 50), 2.0)
    one = run.guarantee().epsilon(1e-5)
    costs = [
        tuned(run, TruncatedNegativeBinomial(mean)).epsilon(1e-5).upper
        for mean in (1.001, 2.0, 10.0, 100.0)
    ]
    assert costs == sorted(costs)
    assert one.upper <= costs[0] < one.upper * 1.05
    assert costs[-1] < 3.0 * one.upper


def test_delta_and_epsilon_agree():
    for trials in (TruncatedNegativeBinomial(5.0), PoissonTrials(3.0)):
        found = tuned(Mechanism(Poisson(0.05, 50), 2.0), trials)
        epsilon = found.epsilon(1e-5).upper
        assert found.delta(epsilon).upper == pytest.approx(1e-5, rel=0.05)
        assert found.delta(epsilon).lower <= found.one.delta(epsilon).upper


def test_settings_are_as_bad_as_the_worst():
    quiet, loud = Mechanism(Poisson(0.05, 50), 2.0), Mechanism(Poisson(0.05, 100), 1.5, Batch())
    trials = TruncatedNegativeBinomial(4.0)
    both = tuned([quiet, loud], trials)
    assert both.epsilon(1e-5).upper == pytest.approx(
        tuned(loud, trials).epsilon(1e-5).upper, rel=0.01
    )
    assert repr(quiet) in both.statement(1e-5)
    assert "search for it" in both.statement(1e-5)
    assert both.epsilon(1e-5).lower == pytest.approx(
        tuned(loud, trials).epsilon(1e-5).lower, rel=0.01
    )
    # a pmf that picks the quiet one costs less than that
    assert "always picks the costliest" in both.lower_by
    assert tuned(quiet, trials).epsilon(1e-5).upper < both.epsilon(1e-5).lower
    assert "picks" not in tuned(quiet, trials).lower_by


def test_hardly_any_trial_costs_hardly_anything():
    found = tuned(Mechanism(Poisson(0.05, 50), 1.0), PoissonTrials(1e-6))
    assert found.epsilon(1e-5).upper == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedNegativeBinomial(1.0), "mean must lie above 1"),
        (lambda: TruncatedNegativeBinomial(5.0, -1.0), "shape must lie in"),
        (lambda: TruncatedNegativeBinomial(1e6, -0.99), "cannot be reached"),
        (lambda: PoissonTrials(0.0), "mean must be positive"),
        (lambda: tuned([], PoissonTrials(1.0)), "at least one"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_share_a_relation():
    with pytest.raises(NoGuarantee, match="share one neighbouring relation"):
        tuned([Mechanism(Poisson(0.1, 5), 2.0), Mechanism(Shuffle(10), 2.0)], PoissonTrials(2.0))
