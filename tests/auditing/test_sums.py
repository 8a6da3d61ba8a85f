"""What the sums of a run are before noise."""

import numpy as np
import pytest

from verax import (
    Batch,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    RandomAllocation,
    Shuffle,
    TruncatedPoisson,
)
from verax.auditing.runs import RunSource, SampledRuns
from verax.auditing.sums import CraftedData
from verax.auditing.transcript import data_sets, few_records


def one_run(sizes, rounds, copies):
    return SampledRuns(
        np.array([sizes]), np.zeros(len(rounds), dtype=int), np.array(rounds), np.array(copies)
    )


@pytest.mark.parametrize(
    ("clipping", "replaced", "opposed", "without", "target", "ghost"),
    [
        (Individual(), False, False, [0, 0, 0], [1, 2], [0, 0]),
        (Individual(), True, False, [0, 0, 0], [1, 2], [-1, -2]),
        (Individual(), False, True, [-2, -3, -2], [-1, 0], [-2, -2]),
        (Individual(), True, True, [-2, -3, -2], [-1, 0], [-3, -4]),
        (Batch(), False, False, [0, 0, 0], [1, 1], [0, 0]),
        (Batch(), False, True, [-1, -1, -1], [1, 1], [-1, -1]),
        (Batch(), True, True, [-1, -1, -1], [1, 1], [-1, -1]),
        (Mixed(groups=1), True, True, [-1, -1, -1], [1, 1], [-1, -1]),
    ],
)
def test_sums_of_fixed_vectors(clipping, replaced, opposed, without, target, ghost):
    # the target in the first batch, and twice in the last
    runs = one_run([3, 3, 4], [0, 2], [1, 2])
    sums = CraftedData(clipping, replaced, opposed).sums(runs, np.random.default_rng(0))
    assert sums.without.tolist() == [without]
    assert (sums.target.tolist(), sums.ghost.tolist()) == (target, ghost)


@pytest.mark.parametrize("replaced", [False, True])
def test_sums_of_clip_groups_follow_a_direct_simulation(replaced):
    groups, others, count = 3, 2, 40_000
    rng = np.random.default_rng(0)
    picks = rng.integers(0, groups, (count, others + 1))
    mine = picks[:, -1]
    occupied = (picks[:, :-1, None] == np.arange(groups)).any(axis=1)
    rest = occupied.sum(axis=1) - occupied[np.arange(count), mine]
    truth = {
        "without": -occupied.sum(axis=1),
        "target": 1 - rest,
        "ghost": -1 - rest if replaced else -occupied.sum(axis=1),
    }
    runs = SampledRuns(
        np.full((count, 1), others + 1), np.arange(count), np.zeros(count, int), np.ones(count, int)
    )
    sums = CraftedData(Mixed(groups=groups), replaced, True).sums(runs, rng)
    for part, expected in truth.items():
        values = getattr(sums, part).ravel()
        for value in range(-groups, 2):
            assert (values == value).mean() == pytest.approx((expected == value).mean(), abs=0.015)


def test_others_stay_silent_where_removing_a_record_moves_them():
    truncated = Mechanism(TruncatedPoisson(0.25, 8, 4, 8), 1.0)
    assert [data.opposed for data in data_sets(truncated)] == [False]
    assert [data.opposed for data in data_sets(Mechanism(Poisson(0.25, 8), 1.0))] == [False, True]
    assert [
        data.replaced for data in data_sets(Mechanism(Shuffle(4), 1.0, relation="replace"))
    ] == [True, True]


def test_a_few_records_fill_the_batches():
    assert few_records(Shuffle(100), Individual()) == 200
    assert few_records(Poisson(0.07, 3), Individual()) == 29
    assert few_records(RandomAllocation(times=3, steps=9), Batch()) == 24
    assert few_records(Deterministic(5), Mixed(groups=4)) == 160


def test_runs_find_the_target_across_many_blocks():
    rng = np.random.default_rng(0)
    truth = [[rng.integers(0, 300, rng.integers(0, 200)) for _ in range(3)] for _ in range(200)]
    feed = iter(truth)
    heard = []
    runs = RunSource(lambda: next(feed), rounds=3, target=5, population=300).draw(200, heard.append)
    assert sum(heard) == 200
    assert len(heard) > 1
    assert runs.sizes.tolist() == [[len(batch) for batch in run] for run in truth]
    copies = np.array([[(batch == 5).sum() for batch in run] for run in truth])
    assert np.array_equal(runs.present, copies > 0)
    assert np.array_equal(runs.copies, copies[copies > 0])
