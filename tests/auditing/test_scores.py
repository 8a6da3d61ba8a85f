"""How an attacker weighs what was released."""

import itertools

import numpy as np
import pytest
from scipy import stats

from verax import (
    Poisson,
    RandomAllocation,
    Shuffle,
)
from verax.auditing.runs import RunSource
from verax.auditing.scores import (
    Blocks,
    Subsets,
    SumDistribution,
    find_placements,
    shrunk_frequencies,
)


def test_a_distribution_gives_the_log_ratio_of_a_mixture():
    distribution = SumDistribution.of(np.array([2.0, 2.0, -1.0, 0.0]))
    x = np.array([[-0.5, 3.0]])
    density = (
        0.5 * stats.norm.pdf(x, 2, 0.7)
        + 0.25 * stats.norm.pdf(x, -1, 0.7)
        + 0.25 * stats.norm.pdf(x, 0, 0.7)
    )
    assert np.allclose(distribution.log_ratio(x, 0.49), np.log(density / stats.norm.pdf(x, 0, 0.7)))
    assert SumDistribution.of(np.empty(0)).is_zero()


def test_blocks_average_over_one_round_each():
    ratios = np.random.default_rng(0).normal(size=(4, 6))
    chances = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.3]])
    truth = np.log(np.exp(ratios[:, :3]) @ chances[0]) + np.log(
        0.5 + np.exp(ratios[:, 3:]) @ chances[1]
    )
    assert np.allclose(Blocks(chances).log_mixture(ratios), truth)
    coins = np.array([0.1, 0.9, 0.5, 0.0, 1.0, 0.2])
    truth = np.log(1 - coins + coins * np.exp(ratios)).sum(axis=1)
    assert np.allclose(Blocks(coins.reshape(6, 1)).log_mixture(ratios), truth)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_subsets_average_over_all_subsets(times):
    ratios = np.random.default_rng(0).normal(size=(3, 12)) * 3
    truth = np.zeros(3)
    for half in (ratios[:, :6], ratios[:, 6:]):
        subsets = itertools.combinations(range(6), times)
        truth += np.log(
            np.mean([np.exp(half[:, list(chosen)].sum(axis=1)) for chosen in subsets], axis=0)
        )
    assert np.allclose(Subsets(6, times).log_mixture(ratios), truth)


@pytest.mark.parametrize(
    ("sampler", "repeats", "names"),
    [
        (Poisson(0.25, 8), 1, ["scored round by round"]),
        (Shuffle(4, epochs=2), 1, ["scored round by round", "scored as in one of 4 rounds"]),
        (
            Shuffle(4, epochs=2, reshuffle=False),
            2,
            ["scored round by round", "scored as in one of 4 rounds"],
        ),
        (
            RandomAllocation(times=2, steps=4, epochs=2),
            1,
            ["scored round by round", "scored as in 2 of 4 rounds"],
        ),
    ],
    ids=repr,
)
def test_placements_are_recognised(sampler, repeats, names):
    rng = np.random.default_rng(0)
    runs = RunSource(lambda: sampler.draw(8, rng), len(sampler), 0, 8).draw(500, lambda done: None)
    found = find_placements(runs.present)
    assert (found[0], [placement.name for placement in found[1]]) == (repeats, names)


def test_chances_are_pooled_where_they_differ_by_chance_only():
    rng = np.random.default_rng(0)
    alike = shrunk_frequencies(rng.random((1000, 50)) < 0.2)
    assert np.ptp(alike) < 0.5 * np.ptp((rng.random((1000, 50)) < 0.2).mean(axis=0))
    fixed = np.zeros((1000, 50), dtype=bool)
    fixed[:, 3] = True
    assert shrunk_frequencies(fixed)[3] > 0.99
    assert shrunk_frequencies(fixed).sum() == pytest.approx(1.0)
