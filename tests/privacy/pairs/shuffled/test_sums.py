"""Sums over batches: against enumeration and quadrature, and lemma S3 by counting all subsets."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from verax.privacy.pairs.shuffled.ratios import Atoms, geometries, largest_ratio
from verax.privacy.pairs.shuffled.sums import UNIT_WEIGHT, Batches, PositivePart, batch_weights


def expected(values, masses, count, y):
    """E(y + sum)^+ for few atoms, by enumerating multinomial counts of sums."""
    sums, weights = np.zeros(1), np.ones(1)
    for _ in range(count):
        sums = np.add.outer(sums, values).reshape(-1)
        weights = np.multiply.outer(weights, masses).reshape(-1)
    return float(np.maximum(sums + y, 0.0) @ weights)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("y", [0.0, 0.3, 4.0])
def test_few_atoms_are_summed_up_as_by_enumeration(count, y):
    values, masses = np.array([-1.0, 0.0, 0.7, 2.0]), np.array([0.5, 0.3, 0.15, 0.05])
    part = PositivePart(Atoms(values, masses), [(Batches(count, 1, 1.0), UNIT_WEIGHT)])
    exact = expected(values, masses, count, y)
    assert exact <= part.at(y) <= 1.01 * exact + 1e-3


def test_batches_of_two_kinds_and_their_weights_are_multiplied():
    ratio = Atoms(np.array([-1.0, 1.5]), np.array([0.7, 0.3]))
    weights = Atoms(np.array([0.5, 1.5]), np.array([0.5, 0.5]))
    part = PositivePart(ratio, [(Batches(1, 2, 1.0), weights), (Batches(1, 1, 0.5), weights)])
    products = np.multiply.outer(weights.values, ratio.values).reshape(-1)
    masses = np.multiply.outer(weights.masses, ratio.masses).reshape(-1)
    sums = np.add.outer(products, 0.5 * products).reshape(-1)
    exact = float(np.maximum(sums, 0.0) @ np.multiply.outer(masses, masses).reshape(-1))
    assert exact <= part.at(0.0) <= 1.01 * exact


@pytest.mark.parametrize("log_a", [0.05, 0.5])
def test_many_batches_agree_with_simulation(log_a):
    ratio = largest_ratio(geometries(0.5, "zero-out", True)[0], log_a)
    part = PositivePart(ratio, [(Batches(20, 1, 1.0), UNIT_WEIGHT)])
    rng = np.random.default_rng(1)
    draws = rng.choice(ratio.values, (200_000, 20), p=ratio.masses / ratio.masses.sum())
    positive = np.maximum(draws.sum(axis=1), 0.0)
    slack = 5.0 * positive.std() / math.sqrt(len(positive))
    assert positive.mean() - slack <= part.at(0.0) <= positive.mean() + slack + 0.01 * part.at(0.0)


def test_tiny_values_keep_their_digits():
    # by the large deviations of a binomial: 200 fair coins of -1 and 1, all but a few heads
    ratio = Atoms(np.array([-1.0, 1.0]), np.array([0.9, 0.1]))
    part = PositivePart(ratio, [(Batches(200, 1, 1.0), UNIT_WEIGHT)])
    hits = np.arange(201)
    exact = float(np.maximum(2.0 * hits - 200.0, 0.0) @ binom.pmf(hits, 200, 0.1))
    assert exact < 1e-40
    assert exact <= part.at(0.0) <= 1.05 * exact


@pytest.mark.parametrize(
    ("size", "rate", "contrast"),
    [(1, 0.3, 1.0), (5, 0.1, 0.7), (3000, 0.05, 0.99), (10**6, 0.4, 1.0)],
)
def test_weights_of_a_batch_are_above_the_binomial_s(size, rate, contrast):
    law = batch_weights(size, rate, contrast)
    assert law.masses.sum() == pytest.approx(1.0, abs=1e-8)
    assert float(law.values @ law.masses) == pytest.approx(1.0, abs=1e-8)
    hits = np.arange(min(size, 20_000) + 1)
    count = min(size, 2**14)
    values = 1.0 + (hits / (count * rate) - 1.0) / contrast
    masses = binom.pmf(hits, count, rate)
    for k in np.linspace(0.5, 1.5, 11):
        exact = float(np.maximum(values - k, 0.0) @ masses)
        assert exact <= float(np.maximum(law.values - k, 0.0) @ law.masses) + 1e-9


def test_subsets_are_below_independent_draws():
    """Lemma S3: for vectors, with the contrast that makes up for the subset's fixed size."""
    rng = np.random.default_rng(2)
    for places in range(2, 7):
        cube = np.array(list(itertools.product([0.0, 1.0], repeat=places)))
        for chosen in range(1, places):
            rate = chosen / places
            contrast = 1.0 - binom.pmf(chosen, places, rate)
            drawn = rate + (cube - rate) / contrast
            chance = rate ** cube.sum(axis=1) * (1.0 - rate) ** (places - cube.sum(axis=1))
            subsets = cube[cube.sum(axis=1) == chosen]
            for _ in range(60):
                planes = rng.normal(size=(4, places)) * rng.choice([0.0, 1.0], (4, places))
                offsets = rng.normal(size=4)
                left = np.max(subsets @ planes.T + offsets, axis=1).mean()
                right = float(np.max(drawn @ planes.T + offsets, axis=1) @ chance)
                assert left <= right + 1e-12


def test_without_the_contrast_subsets_are_not_below_independent_draws():
    cube = np.array(list(itertools.product([0.0, 1.0], repeat=2)))
    spread = np.abs(cube[:, 0] - cube[:, 1])
    assert spread[cube.sum(axis=1) == 1.0].mean() == 1.0
    assert spread.mean() == 0.5


def test_the_mean_is_that_of_normal_ratios():
    ratio = largest_ratio(geometries(0.5, "zero-out", True)[0], 1.0)
    alone = float(np.maximum(ratio.values, 0.0) @ ratio.masses)
    delta = norm.cdf(0.25 - 2.0) - math.e * norm.cdf(-0.25 - 2.0)
    assert delta <= alone <= 1.01 * delta


def test_negative_weights_of_raised_ratios_are_charged():
    # the weight is -1 or 2, and the ratio was raised from -3 to -1 in a thousandth of cases
    true = Atoms(np.array([-3.0, -1.0, 1.0]), np.array([1e-3, 0.799, 0.2]))
    raised = Atoms(np.array([-1.0, 1.0]), np.array([0.8, 0.2]), raised=2e-3)
    weights = Atoms(np.array([-1.0, 2.0]), np.array([0.3, 0.7]))
    part = PositivePart(raised, [(Batches(1, 1, 1.0), weights)])
    products = np.multiply.outer(weights.values, true.values)
    exact = float(
        np.maximum(products, 0.0).reshape(-1)
        @ np.multiply.outer(weights.masses, true.masses).reshape(-1)
    )
    assert part.at(0.0) >= exact
