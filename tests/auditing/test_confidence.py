"""What counts of hits prove: limits that cover, and the better of two directions."""

import math

import numpy as np
import pytest

from verax.auditing.confidence import best_threshold, epsilon_at_least, forecast_epsilon
from verax.privacy.numerics.proportions import proportion_at_least, proportion_at_most


def test_epsilon_from_counts():
    low, high = proportion_at_least(80, 100, 0.05), proportion_at_most(5, 100, 0.05)
    assert epsilon_at_least(80, 5, 100, 0.01, 0.1) == pytest.approx(math.log((low - 0.01) / high))
    assert epsilon_at_least(5, 80, 100, 0.01, 0.1) == 0.0
    assert epsilon_at_least(0, 0, 100, 0.01, 0.1) == 0.0


def test_the_forecast_of_a_bound_is_about_the_bound():
    hits, false = np.array([80.0, 5.0, 0.0, 100.0]), np.array([5.0, 80.0, 0.0, 100.0])
    found = forecast_epsilon(hits, false, 100.0, 0.01, 0.1)
    proved = [
        epsilon_at_least(int(h), int(f), 100, 0.01, 0.1) for h, f in zip(hits, false, strict=True)
    ]
    assert found == pytest.approx(proved, rel=1e-7)


def test_the_threshold_takes_the_better_direction():
    rng = np.random.default_rng(0)
    target, ghost = rng.exponential(size=4000), rng.random(4000)
    upward = best_threshold(target, ghost, 4000, 1e-5, 0.05)
    downward = best_threshold(-ghost, -target, 4000, 1e-5, 0.05)
    assert (upward.reverse, downward.reverse) == (False, True)
    assert upward.hits(target, ghost) == downward.hits(-ghost, -target)
