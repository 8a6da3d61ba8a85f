"""What counts of hits prove: limits that cover, and the better of two directions."""

import math

import numpy as np
import pytest
from scipy import stats

from verax.auditing.confidence import (
    best_threshold,
    epsilon_at_least,
    proportion_at_least,
    proportion_at_most,
)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (7, 10), (10, 10), (12, 150_000), (149_999, 150_000)])
def test_limits_of_a_proportion_are_clopper_and_pearsons(hits, trials):
    truth = stats.binomtest(hits, trials).proportion_ci(0.9, "exact")
    assert float(proportion_at_least(hits, trials, 0.05)) == pytest.approx(truth.low, rel=1e-8)
    assert float(proportion_at_most(hits, trials, 0.05)) == pytest.approx(truth.high, rel=1e-8)
    assert float(proportion_at_least(hits, trials, 0.05)) <= truth.low
    assert float(proportion_at_most(hits, trials, 0.05)) >= truth.high


@pytest.mark.parametrize("proportion", [0.001, 0.03, 0.4, 0.9])
def test_limits_cover_exactly(proportion):
    counts = np.arange(61)
    weight = stats.binom.pmf(counts, 60, proportion)
    assert weight[proportion_at_least(counts, 60, 0.1) <= proportion].sum() >= 0.9
    assert weight[proportion_at_most(counts, 60, 0.1) >= proportion].sum() >= 0.9


def test_epsilon_from_counts():
    low, high = proportion_at_least(80, 100, 0.05), proportion_at_most(5, 100, 0.05)
    assert float(epsilon_at_least(80, 5, 100, 0.01, 0.1)) == pytest.approx(math.log((low - 0.01) / high))
    assert float(epsilon_at_least(5, 80, 100, 0.01, 0.1)) == 0.0
    assert float(epsilon_at_least(0, 0, 100, 0.01, 0.1)) == 0.0


def test_the_threshold_takes_the_better_direction():
    rng = np.random.default_rng(0)
    target, ghost = rng.exponential(size=4000), rng.random(4000)
    upward = best_threshold(target, ghost, 4000, 1e-5, 0.05)
    downward = best_threshold(-ghost, -target, 4000, 1e-5, 0.05)
    assert (upward.reverse, downward.reverse) == (False, True)
    assert upward.hits(target, ghost) == downward.hits(-ghost, -target)
