"""How records of a group share rounds, by enumeration, and groups of random allocation."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from verax import BallsInBins, Batch, Mechanism, RandomAllocation
from verax.privacy.pairs.sharing import (
    _one_pick_each,
    _quantile,
    _record_by_record,
    records_per_round,
    sharings,
)


def enumerated(size, times, rounds):
    sets = list(itertools.combinations(range(rounds), times))
    pmf = Counter()
    for picked in itertools.product(sets, repeat=size):
        held = Counter(t for chosen in picked for t in chosen).values()
        pmf[tuple(sum(h >= level for h in held) for level in range(1, max(held) + 1))] += 1
    return {sharing: count / len(sets) ** size for sharing, count in pmf.items()}


@pytest.mark.parametrize("case", [(2, 1, 10), (3, 2, 4), (3, 3, 5), (4, 1, 3), (7, 1, 2)])
def test_the_law_of_sharings_is_that_of_all_picks(case):
    found, left = sharings(*case)
    assert {sharing: chance for chance, sharing in found} == pytest.approx(
        enumerated(*case), rel=1e-9
    )
    assert left < 1e-11


@pytest.mark.parametrize(("size", "rounds"), [(1, 1), (5, 3), (8, 4), (8, 100), (12, 40)])
def test_counting_ways_agrees_with_picking_one_record_after_the_other(size, rounds):
    counted, picked = _one_pick_each(size, rounds), _record_by_record(size, 1, rounds)
    for sharing in counted.keys() | picked.keys():
        assert counted.get(sharing, 0.0) == pytest.approx(
            picked.get(sharing, 0.0), rel=1e-9, abs=1e-11
        )


@pytest.mark.parametrize("rounds", [1, 2, 10, 1000, 10**6])
def test_the_sharings_of_32_records_leave_hardly_anything_out(rounds):
    found, left = sharings(32, 1, rounds)
    assert math.fsum(chance for chance, _ in found) == pytest.approx(1.0, abs=1e-10)
    assert 0.0 <= left < 1e-10


def test_parts_are_what_the_rounds_hold():
    assert records_per_round((4, 2, 1)) == (3, 2, 1, 1)


def test_unlikely_sharings_are_rounded_up():
    """Every number is exceeded no less often than it truly is."""
    rng = np.random.default_rng(7)
    found, left = sharings(8, 3, 100)
    assert math.fsum(chance for chance, _ in found) + left >= 1.0
    held = np.zeros((20_000, 100), dtype=int)
    for _ in range(8):
        held[np.arange(20_000)[:, None], np.argsort(rng.random((20_000, 100)), axis=1)[:, :3]] += 1
    for level, most in ((1, 20), (1, 23), (2, 2), (2, 4), (3, 0), (3, 1)):
        seen = float(np.mean((held >= level).sum(axis=1) > most))
        bound = math.fsum(c for c, s in found if len(s) >= level and s[level - 1] > most)
        assert seen <= bound + left + 5.0 * math.sqrt(seen / 20_000)


@pytest.mark.parametrize(
    ("count", "chance"), [(100, 0.3), (1000, 1e-6), (50, 0.99), (10, 1.0), (10**4, 0.01)]
)
def test_numbers_of_rounds_are_hardly_ever_exceeded(count, chance):
    assert stats.binom.sf(_quantile(count, chance), count, chance) <= 1e-12


@pytest.mark.parametrize(("times", "steps", "noise"), [(2, 4, 2.0), (2, 3, 2.0), (3, 4, 3.0)])
@pytest.mark.parametrize("size", [2, 3])
def test_groups_of_random_allocation_hold_what_simulation_finds(times, steps, noise, size):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((100_000, steps))
    sets = list(itertools.combinations(range(steps), times))
    ratio = np.zeros(len(x))
    for picked in itertools.product(sets, repeat=size):
        shift = np.bincount([t for chosen in picked for t in chosen], minlength=steps) / noise
        ratio += np.exp(x @ shift - shift @ shift / 2.0) / len(sets) ** size
    g = Mechanism(RandomAllocation(times, steps), noise).guarantee(group=size)
    for epsilon in (0.5, 1.0, 2.0):
        bracket = g.delta(epsilon)
        for excess in (
            np.maximum(ratio - math.exp(epsilon), 0.0),
            np.maximum(1.0 - math.exp(epsilon) * ratio, 0.0),
        ):
            assert excess.mean() <= bracket.upper + 5.0 * excess.std() / math.sqrt(len(x))
        with_group = np.maximum(ratio - math.exp(epsilon), 0.0)
        assert bracket.lower <= with_group.mean() + 5.0 * with_group.std() / math.sqrt(len(x))


def test_groups_of_random_allocation_are_finite_and_grow():
    found = [
        Mechanism(RandomAllocation(3, 100, 10), 1.0).guarantee(group=k).epsilon(1e-5)
        for k in (1, 2, 8, 64)
    ]
    assert found[2].lower > 60.0
    assert found[2].upper < 112.0
    for fewer, more in itertools.pairwise(found):
        assert fewer.lower < more.lower <= more.upper < math.inf
        assert fewer.upper < more.upper


def test_most_rounds_leave_little_to_guess():
    bracket = Mechanism(RandomAllocation(98, 100), 4.0).guarantee(group=8).epsilon(1e-5)
    assert 274.0 < bracket.lower <= bracket.upper < 1.001 * bracket.lower


def test_clipped_batches_are_priced_too():
    bracket = (
        Mechanism(RandomAllocation(3, 100, 10), 2.0, clipping=Batch())
        .guarantee(group=8)
        .epsilon(1e-5)
    )
    assert 5.0 < bracket.lower <= bracket.upper < 72.0


@pytest.mark.parametrize(
    ("bins", "epochs", "delta"), [(2, 1, 1e-2), (100, 10, 1e-5), (1000, 1, 1e-10)]
)
def test_groups_in_bins_grow_with_size_and_fall_with_noise(bins, epochs, delta):
    def bracket(size, noise):
        return Mechanism(BallsInBins(bins, epochs), noise).guarantee(group=size).epsilon(delta)

    by_size = [bracket(size, 1.0) for size in (1, 4, 32, 33, 64)]
    by_noise = [bracket(4, noise) for noise in (10.0, 1.0, 0.3)]
    for ascending in (by_size, by_noise):
        for less, more in itertools.pairwise(ascending):
            assert less.lower <= more.lower <= more.upper < math.inf
            assert less.upper <= more.upper


def test_equal_phases_are_one_longer_phase():
    once = Mechanism(BallsInBins(50, 2), 1.5)
    longer = Mechanism(BallsInBins(50, 6), 1.5)
    both = [run.guarantee(group=3).epsilon(1e-5) for run in (once + once + once, longer)]
    assert both[0].lower == pytest.approx(both[1].lower, rel=2e-3)
    assert both[0].upper == pytest.approx(both[1].upper, rel=0.05)
