"""Limits of a proportion: what they promise of binomial tails, and how near the best ones
they are.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from verax.privacy.numerics import proportions
from verax.privacy.numerics.distributions import binomial_at_least, binomial_at_most
from verax.privacy.numerics.proportions import (
    fewest_above,
    most_below,
    proportion_at_least,
    proportion_at_most,
)


@pytest.mark.parametrize(
    ("hits", "trials"), [(0, 10), (1, 10), (7, 10), (10, 10), (12, 150_000), (149_999, 150_000)]
)
def test_limits_are_clopper_and_pearsons(hits, trials):
    truth = stats.binomtest(hits, trials).proportion_ci(0.9, "exact")
    assert proportion_at_least(hits, trials, 0.05) == pytest.approx(truth.low, rel=1e-8)
    assert proportion_at_most(hits, trials, 0.05) == pytest.approx(truth.high, rel=1e-8)
    assert proportion_at_least(hits, trials, 0.05) <= truth.low
    assert proportion_at_most(hits, trials, 0.05) >= truth.high


@given(st.integers(1, 10**9), st.floats(0.0, 1.0), st.floats(1e-12, 0.5))
def test_limits_miss_as_rarely_as_they_say(trials, share, miss):
    hits = round(share * trials)
    low, high = proportion_at_least(hits, trials, miss), proportion_at_most(hits, trials, miss)
    assert 0.0 <= low <= high <= 1.0
    assert (low == 0.0) == (hits == 0)
    if low > 0.0:
        assert binomial_at_least(trials, low, hits).upper <= miss
        assert binomial_at_least(trials, min(low * (1.0 + 1e-6), 1.0), hits).lower > miss * (
            1.0 - 1e-12
        )
    if high < 1.0:
        assert binomial_at_most(trials, high, hits).upper <= miss
        assert binomial_at_most(trials, high * (1.0 - 1e-6), hits).lower > miss * (1.0 - 1e-12)


@pytest.mark.parametrize("proportion", [0.001, 0.03, 0.4, 0.9])
def test_limits_cover_exactly(proportion):
    weight = stats.binom.pmf(np.arange(61), 60, proportion)
    low = np.array([proportion_at_least(k, 60, 0.1) for k in range(61)])
    high = np.array([proportion_at_most(k, 60, 0.1) for k in range(61)])
    assert weight[low <= proportion].sum() >= 0.9
    assert weight[high >= proportion].sum() >= 0.9


@pytest.mark.parametrize("wrong", [float("nan"), 0.9, 0.0])
def test_a_wrong_guess_of_the_library_costs_width_and_not_the_promise(wrong, monkeypatch):
    for name in ("betaincinv", "betainccinv"):
        monkeypatch.setattr(proportions.special, name, lambda *_: wrong)
    low, high = proportion_at_least(30, 100, 0.05), proportion_at_most(30, 100, 0.05)
    assert low == 0.0 or binomial_at_least(100, low, 30).upper <= 0.05
    assert high == 1.0 or binomial_at_most(100, high, 30).upper <= 0.05


@given(st.integers(1, 3000), st.floats(1e-6, 1.0), st.floats(1e-9, 0.4))
def test_the_counts_that_show_a_proportion_are_the_first_and_the_last(trials, goal, miss):
    many, few = fewest_above(trials, goal, miss), most_below(trials, goal, miss)
    assert many == trials + 1 or binomial_at_least(trials, goal, many).upper <= miss
    assert binomial_at_least(trials, goal, many - 1).upper > miss
    assert few == -1 or goal == 1.0 or binomial_at_most(trials, goal, few).upper <= miss
    assert few == trials or binomial_at_most(trials, goal, few + 1).upper > miss
