"""One epoch as pairs to compose."""

import math

import numpy as np
import pytest

from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.pairs.shuffled.epoch import Neighbours, attacked_epoch, dominating_epoch
from verax.privacy.pairs.shuffled.hub import Epoch, upper_delta

NEIGHBOURS = Neighbours(0.5, "zero-out", True)


@pytest.fixture(scope="module")
def tables():
    return dominating_epoch(NEIGHBOURS, Epoch(6000, 30)), attacked_epoch(NEIGHBOURS, 30)


def test_masses_are_those_of_two_laws(tables):
    upper, lower = tables
    assert upper.p.sum() + upper.infinite == pytest.approx(1.0, abs=1e-8)
    assert upper.q.sum() + upper.missing == pytest.approx(1.0, abs=1e-8)
    assert lower.p.sum() <= 1.0 + 1e-9
    assert lower.q.sum() <= 1.0 + 1e-9


def test_the_dominating_pair_is_above_the_attacks_and_below_fixed_batches(tables):
    upper, lower = tables
    for pair, other in ((upper, lower), (upper.reverse(), lower.reverse())):
        for epsilon in np.linspace(0.0, 3.0, 31):
            bound = pair.delta(epsilon)[1]
            assert other.delta(epsilon)[0] <= bound
            # a chord between knots is a little above the curve
            assert bound <= 1.15 * gaussian_delta(0.5, epsilon) + 1e-12


def test_chords_are_close_to_the_curve(tables):
    upper, _ = tables
    geometry = NEIGHBOURS.geometries[0]
    for epsilon in (0.0, 0.11, 0.33, 0.6):
        direct = upper_delta(geometry, epsilon, Epoch(6000, 30), upper.delta(epsilon)[1])
        assert upper.delta(epsilon)[1] == pytest.approx(direct, rel=0.12)


def test_the_curve_below_one_is_the_other_direction(tables):
    upper, _ = tables
    for epsilon in (0.1, 0.4):
        a = math.exp(epsilon)
        left = upper.delta(-epsilon)[1]
        assert left == pytest.approx(
            1.0 - 1.0 / a + upper.reverse().delta(epsilon)[1] / a, rel=1e-6
        )
