"""Attacks on one epoch: against quadrature, and the exact values of the conjectured pair."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from verax.privacy.pairs.shuffled.attack import event, ratios


@pytest.mark.parametrize("noise", [0.8, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_two_batches_are_attacked_as_well_as_can_be(noise, epsilon):
    s, a = 1.0 / noise, math.exp(epsilon)
    x = np.linspace(-11.0, 11.0, 1201)
    y, later = x[:, None], x[None, :]
    cell = (x[1] - x[0]) ** 2

    def mixture(shift):
        return 0.5 * (norm.pdf(y - shift) * norm.pdf(later) + norm.pdf(y) * norm.pdf(later - shift))

    for direction, (p, q) in enumerate(
        [(mixture(2 * s), mixture(s)), (mixture(s), mixture(2 * s))]
    ):
        exact = float(np.maximum(p - a * q, 0.0).sum() * cell)
        q_mass, p_mass = event(ratios(s, "zero-out", True)[direction][0], epsilon, 2)
        found = p_mass - a * q_mass
        assert found <= exact + 1e-6
        assert found >= 0.95 * exact - 1e-6


@pytest.mark.parametrize(
    ("noise", "batches", "epsilon", "delta"),
    [
        (2.0, 1000, 0.0938, 9.853e-6),
        (2.0, 10_000, 0.0233, 9.355e-6),
        (3.0, 1000, 0.0386, 9.748e-6),
        (1.0, 1000, 2.8836, 9.99e-6),
    ],
)
def test_the_conjectured_pair_is_met_to_half_a_percent(noise, batches, epsilon, delta):
    ratio = ratios(1.0 / noise, "zero-out", True)[0][0]
    q, p = event(ratio, epsilon, batches)
    assert p - math.exp(epsilon) * q == pytest.approx(delta, rel=5e-3)
    assert p - math.exp(epsilon) * q <= delta * 1.001


def test_one_batch_is_the_gaussian_mechanism():
    q, p = event(ratios(1.0, "zero-out", True)[0][0], 0.5, 1)
    exact = norm.cdf(0.0) - math.exp(0.5) * norm.cdf(-1.0)
    assert p - math.exp(0.5) * q == pytest.approx(exact, rel=1e-2)
    assert p - math.exp(0.5) * q <= exact
