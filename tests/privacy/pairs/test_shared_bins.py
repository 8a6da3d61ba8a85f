"""Groups under balls-in-bins: the pair by quadrature, its bounds transcript by transcript, and
brackets.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import pytest
from scipy import special

from verax import BallsInBins, Batch, Mechanism, Poisson
from verax.privacy.curves.gaussian import gaussian_epsilon
from verax.privacy.curves.random_subset import angles
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pairs.shared_bins import SharedBins
from verax.privacy.pairs.shared_bins_attack import _scores, shared_bins_attack
from verax.privacy.pairs.shared_bins_bound import (
    _exponents,
    _kinds,
    _posterior,
    group_bounds,
    known_sharing_pair,
    presence_pair,
)
from verax.privacy.pld.composition import LOWER, UPPER, Composition

RNG = np.random.default_rng(5)


def likelihood_ratio(group: SharedBins, x: np.ndarray) -> np.ndarray:
    """The average over all ways of picking bins, one after the other; a column of x is a bin."""
    shifts = group.shifts(group.size)
    total = np.zeros(len(x))
    for picks in itertools.product(range(group.bins), repeat=group.size):
        moved = shifts[np.bincount(picks, minlength=group.bins)]
        total += np.exp(x @ moved - 0.5 * moved @ moved)
    return total / group.bins**group.size


@lru_cache
def ratios(group: SharedBins) -> tuple[np.ndarray, np.ndarray]:
    """Likelihood ratios and weights on a grid of all bins' noise."""
    step = 0.03 if group.bins == 2 else 0.2
    line = np.arange(-7.0, 7.0 + float(group.shifts(group.size)[-1]), step)
    weight = step * np.exp(-line * line / 2.0) / math.sqrt(2.0 * math.pi)
    grids = np.meshgrid(*[line] * group.bins, indexing="ij")
    weights = math.prod(np.meshgrid(*[weight] * group.bins, indexing="ij"))
    return likelihood_ratio(
        group, np.stack([grid.reshape(-1) for grid in grids], axis=1)
    ), weights.reshape(-1)


def true_delta(group: SharedBins, epsilon: float, back: bool) -> float:
    """By a sum over the grid."""
    ratio, weights = ratios(group)
    gain = 1.0 - math.exp(epsilon) * ratio if back else ratio - math.exp(epsilon)
    return float(weights @ np.maximum(gain, 0.0))


GROUPS = [
    SharedBins(2, 2, 0.7, adds_up=True),
    SharedBins(3, 2, 0.5, adds_up=True),
    SharedBins(2, 3, 1.0, adds_up=True),
    SharedBins(3, 3, 0.6, adds_up=True),
    SharedBins(3, 2, 1.0, adds_up=False),
    SharedBins(4, 3, 0.8, adds_up=False),
]


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("back", [False, True], ids=["remove", "add"])
def test_the_true_curve_lies_between_attack_and_bound(group, back):
    attack = shared_bins_attack(group, 0.8)
    told = known_sharing_pair(group, backwards=back)
    others = [] if back else [presence_pair(group, lean) for lean in (1.0, 0.87)]
    for epsilon in (0.0, 0.5, 1.5):
        truth = true_delta(group, epsilon, back)
        assert (attack.reverse() if back else attack).delta(epsilon)[0] <= truth * (1.0 + 5e-3)
        assert (attack.reverse() if back else attack).delta(epsilon)[0] >= 0.8 * truth
        for table in (told, *others):
            assert table.delta(epsilon)[1] >= truth * (1.0 - 5e-3)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("lean", [1.0, 0.6])
def test_the_bound_holds_for_every_transcript(group, lean):
    """With the group and without, far out and in the middle: never below the likelihood ratio
    itself.
    """
    rho = lean * group.size / group.bins
    log_weights, log_z = group.log_weights(rho, group.size)
    shifts = group.shifts(group.size)[:, None]
    weights, nodes = angles(0.7 * group.size)
    for where in (0.0, group.unit, -2.0, 3.0):
        x = RNG.standard_normal((100, group.bins)) + where
        flat = x.reshape(-1)
        log_r = special.logsumexp(log_weights[:, None] + shifts * flat - shifts**2 / 2.0, axis=0)
        bound = np.zeros(len(x))
        for weight, node, v in zip(
            weights, nodes, _exponents(_posterior(group, log_weights, flat), nodes), strict=True
        ):
            bound += weight * np.exp((log_r - node * v).reshape(x.shape).sum(axis=1))
        assert (
            bound * math.exp(-group.log_beta(rho, log_z))
            >= likelihood_ratio(group, x) * (1.0 - 1e-9)
        ).all()


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_ratio_is_a_coefficient_of_a_product(group):
    rho = 0.37
    log_weights, log_z = group.log_weights(rho, group.size)
    shifts = group.shifts(group.size)
    x = RNG.standard_normal((5, group.bins))
    for row, ratio in zip(x, likelihood_ratio(group, x), strict=True):
        product = np.ones(1)
        for noise in row:
            product = np.convolve(product, np.exp(log_weights + shifts * noise - shifts**2 / 2.0))
        assert product[group.size] / math.exp(group.log_beta(rho, log_z)) == pytest.approx(ratio)


def test_the_attackers_laws_are_convolutions_over_all_ways_of_sharing_bins():
    group = SharedBins(3, 3, 0.9, adds_up=True)
    table = shared_bins_attack(group, 0.8)
    pmfs = _scores(group, 0.8, 0.15)
    total = np.zeros(3 * len(pmfs[0].index) - 2)
    for picks in itertools.product(range(3), repeat=3):
        part = np.ones(1)
        for held in np.bincount(picks, minlength=3):
            part = np.convolve(part, np.exp(pmfs[held].log_mass))
        total += part / 27.0
    absent = np.exp(pmfs[0].log_mass)
    absent = np.convolve(np.convolve(absent, absent), absent)
    for epsilon in (0.0, 1.0, 3.0):
        for there, back, seen in ((total, absent, table), (absent, total, table.reverse())):
            known = float(np.maximum(there - math.exp(epsilon) * back, 0.0).sum())
            assert seen.delta(epsilon)[0] <= known * (1.0 + 1e-9)
            assert seen.delta(epsilon)[0] >= 0.999 * known - 1e-9


def test_kinds_are_probabilities():
    for group in (SharedBins(6, 10, 1.0, adds_up=True), SharedBins(6, 10, 1.0, adds_up=False)):
        kinds, left = _kinds(group)
        assert 1.0 - 1e-9 <= math.fsum(chance for chance, _ in kinds) <= 1.0 + 1e-12
        assert 0.0 <= left < 1e-9
    picks = [np.bincount(picked) for picked in itertools.product(range(4), repeat=3)]
    counts = [tuple(sorted(held[held > 0].tolist(), reverse=True)) for held in picks]
    for chance, parts in _kinds(SharedBins(3, 4, 1.0, adds_up=True))[0]:
        assert chance == pytest.approx(counts.count(parts) / 64.0)


# --- brackets -------------------------------------------------------------------------------------


def test_sixteen_records_in_a_hundred_bins_are_known_to_a_tenth():
    """One record's attack and the triangle inequality said between 1.7 and 91.7."""
    bracket = Mechanism(BallsInBins(100, 10), 1.0).guarantee(group=16).epsilon(1e-5)
    assert 47.5 < bracket.lower <= bracket.upper < 53.5
    poisson = Mechanism(Poisson(0.01, 1000), 1.0).guarantee(group=16).epsilon(1e-5)
    assert bracket.lower < poisson.upper  # fixed numbers of places show less than coins
    assert "theorem" in bracket.lower_by
    assert "share rounds" in bracket.upper_by  # the smallest, not all of them


@pytest.mark.parametrize(
    ("size", "bins", "epochs", "noise", "width"),
    [
        (2, 100, 10, 1.0, 0.03),
        (4, 100, 10, 2.0, 0.01),
        (16, 1000, 1, 1.0, 0.05),
        (4, 100, 10, 0.2, 0.12),
    ],
)
def test_groups_are_known_to_a_few_percent(size, bins, epochs, noise, width):
    bracket = Mechanism(BallsInBins(bins, epochs), noise).guarantee(group=size).epsilon(1e-5)
    assert bracket.upper <= bracket.lower / (1.0 - width)


def test_groups_of_one_are_one_record_and_larger_groups_cost_more():
    run = Mechanism(BallsInBins(20, 2), 1.5)
    brackets = [run.guarantee(group=size).epsilon(1e-5) for size in (1, 2, 3, 6, 40)]
    for less, more in itertools.pairwise(brackets):
        assert less.lower <= more.lower
        assert less.upper <= more.upper
    alone = shared_bins_attack(SharedBins(1, 20, 1.0, adds_up=True), 1.0).delta(0.5)[0]
    truth = Mechanism(BallsInBins(20), 1.0).guarantee().delta(0.5)
    assert 0.9 * truth.lower <= alone <= truth.upper


def test_phases_of_groups_are_composed():
    one, other = Mechanism(BallsInBins(20, 2), 1.0), Mechanism(Poisson(0.05, 40), 1.0)
    both = (one + other).guarantee(group=4).epsilon(1e-5)
    for alone in (one, other):
        assert alone.guarantee(group=4).epsilon(1e-5).lower <= both.upper
    assert both.upper <= 1.25 * both.lower


def test_batch_clipping_counts_bins_not_records():
    batch = Mechanism(BallsInBins(50), 2.0, Batch()).guarantee(group=5).epsilon(1e-5)
    alone = Mechanism(BallsInBins(50), 1.0).guarantee(group=5).epsilon(1e-5)
    assert batch.upper <= 1.2 * batch.lower
    # half the noise for shifts twice as long; two in one bin count once
    assert batch.upper <= alone.upper


def test_extremes_stay_finite_and_in_order():
    for bins, noise, size in (
        (1, 1.0, 3),
        (2, 0.01, 2),
        (3, 1e3, 5),
        (10**6, 0.5, 3),
        (4, 1.0, 100),
        (5, 0.05, 40),
    ):
        bracket = Mechanism(BallsInBins(bins), noise).guarantee(group=size).epsilon(1e-6)
        assert 0.0 <= bracket.lower <= bracket.upper < math.inf


def test_bounds_of_large_groups_are_below_those_of_known_places():
    together = SharedBins(33, 10, 1.0, adds_up=True)
    assert together.reach == 33.0
    for bound in group_bounds(together, 1):
        assert Composition([(PricedRound(bound), 1)]).epsilon(1e-6, 1e-3, (UPPER,))[
            1
        ] < gaussian_epsilon(33.0, 1e-6)
    assert SharedBins(33, 10, 1.0, adds_up=False).reach == math.sqrt(10.0)


def test_composed_attack_stays_below_composed_bound():
    group = SharedBins(3, 12, 1.0, adds_up=True)
    attack, bound = shared_bins_attack(group, 0.8), presence_pair(group, 1.0)
    for epochs in (2, 5):
        low = Composition([(PricedRound(attack), epochs)]).epsilon(1e-6, 1e-3, (LOWER,))[0]
        high = Composition([(PricedRound(bound), epochs)]).epsilon(1e-6, 1e-3, (UPPER,))[1]
        assert low < high
