"""Each sampler's distribution: the joint pmf of memberships if small, else statistics of runs.

Seeds are fixed, so the tests are deterministic; the p-values would fail by chance once in ten
thousand seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from scipy import stats

from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Poisson,
    RandomAllocation,
    Sampler,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
    bernoulli,
    buffered_shuffle,
    sorting,
)

LEAST_P = 1e-4
RUNS = 2000
Run = tuple[frozenset[int], ...]
Law = dict[Run, float]


def independent(*rounds: dict[frozenset[int], float]) -> Law:
    """The law of independent rounds."""
    return {
        tuple(batch for batch, _ in run): math.prod(chance for _, chance in run)
        for run in product(*(law.items() for law in rounds))
    }


def twice(law: Law) -> Law:
    """The law of two independent epochs."""
    return {a + b: law[a] * law[b] for a, b in product(law, law)}


def subsets(population: int, size: int) -> list[frozenset[int]]:
    return [frozenset(batch) for batch in combinations(range(population), size)]


def poisson_round(
    population: int, rate: float, most: int | None = None
) -> dict[frozenset[int], float]:
    law: Counter[frozenset[int]] = Counter()
    for size in range(population + 1):
        kept = size if most is None else min(size, most)
        for batch in subsets(population, kept):
            law[batch] += stats.binom.pmf(size, population, rate) / math.comb(population, kept)
    return dict(law)


def partitions(population: int, sizes: list[int]) -> Law:
    """Uniform over the ordered partitions with these sizes."""
    if len(sizes) == 1:
        return {(frozenset(range(population)),): 1.0}
    runs = []

    def extend(run: Run, left: frozenset[int]) -> None:
        if len(run) == len(sizes):
            runs.append(run)
            return
        for batch in combinations(sorted(left), sizes[len(run)]):
            extend((*run, frozenset(batch)), left - set(batch))

    extend((), frozenset(range(population)))
    return dict.fromkeys(runs, 1 / len(runs))


def independent_records(choices: list[tuple[int, ...]], population: int, rounds: int) -> Law:
    """Each record independently takes a uniform one of ``choices``, a set of rounds."""
    law: Counter[Run] = Counter()
    for taken in product(choices, repeat=population):
        run = tuple(frozenset(i for i in range(population) if t in taken[i]) for t in range(rounds))
        law[run] += len(choices) ** -population
    return dict(law)


def buffered_law(population: int, sizes: list[int], places: int) -> Law:
    """By following the buffer through all its random choices."""
    law: Counter[Run] = Counter()

    def leave(
        out: tuple[int, ...], buffer: tuple[int, ...], entering: int, chance: Fraction
    ) -> None:
        if not buffer:
            ends = np.cumsum([0, *sizes])
            law[tuple(frozenset(out[a:b]) for a, b in pairwise(ends))] += float(chance)
            return
        for i, record in enumerate(buffer):
            refill = (entering,) if entering < population else ()
            leave(
                (*out, record),
                buffer[:i] + refill + buffer[i + 1 :],
                entering + 1,
                chance / len(buffer),
            )

    leave((), tuple(range(places)), places, Fraction(1))
    return dict(law)


CASES: list[tuple[Sampler, int, Law]] = [
    (Poisson(0.3, 2), 3, independent(*[poisson_round(3, 0.3)] * 2)),
    (Poisson(0.8, 2), 3, independent(*[poisson_round(3, 0.8)] * 2)),
    (TruncatedPoisson(0.4, 2, 2, 4), 4, independent(*[poisson_round(4, 0.4, 2)] * 2)),
    (TruncatedPoisson(0.6, 1, 3, 5), 5, independent(poisson_round(5, 0.6, 3))),
    (Deterministic(3), 5, {(frozenset({0, 1}), frozenset({2, 3}), frozenset({4})): 1.0}),
    (Shuffle(3), 5, partitions(5, [2, 2, 1])),
    (Shuffle(2, epochs=2), 4, twice(partitions(4, [2, 2]))),
    (
        Shuffle(2, epochs=2, reshuffle=False),
        5,
        {a + a: p for a, p in partitions(5, [3, 2]).items()},
    ),
    (BufferedShuffle(3, 1), 5, buffered_law(5, [2, 2, 1], 2)),
    (BufferedShuffle(4, 2), 5, buffered_law(5, [2, 1, 1, 1], 3)),
    (BufferedShuffle(3, 3), 5, partitions(5, [2, 2, 1])),
    (BufferedShuffle(3, 2, epochs=2), 3, twice(buffered_law(3, [1, 1, 1], 2))),
    (BallsInBins(3), 4, independent_records([(0,), (1,), (2,)], 4, 3)),
    (BallsInBins(2, epochs=2), 3, twice(independent_records([(0,), (1,)], 3, 2))),
    (RandomAllocation(2, 4), 2, independent_records(list(combinations(range(4), 2)), 2, 4)),
    (RandomAllocation(1, 3, epochs=2), 2, twice(independent_records([(0,), (1,), (2,)], 2, 3))),
    (RandomAllocation(3, 3), 2, independent_records([(0, 1, 2)], 2, 3)),
    (WithoutReplacement(2, 4, 2), 4, independent(*[dict.fromkeys(subsets(4, 2), 1 / 6)] * 2)),
    (WithoutReplacement(3, 3, 2), 3, independent(*[{frozenset({0, 1, 2}): 1.0}] * 2)),
]


def draw(sampler: Sampler, population: int, rng: np.random.Generator) -> Run:
    run = []
    for batch in sampler.draw(population, rng):
        assert batch.dtype == np.int64
        assert batch.ndim == 1
        run.append(frozenset(batch.tolist()))
        assert len(run[-1]) == len(batch), "a record twice in a batch"
    assert len(run) == len(sampler)
    return tuple(run)


def assert_law(sampler: Sampler, population: int, law: Law, seed: int, runs: int) -> None:
    assert sum(law.values()) == pytest.approx(1)
    rng = np.random.default_rng(seed)
    seen = Counter(draw(sampler, population, rng) for _ in range(runs))
    assert set(seen) <= set(law), "an outcome of probability zero"
    if len(law) == 1:
        return
    expected = np.array([law[run] * runs for run in law])
    observed = np.array([seen[run] for run in law])
    rare = expected < 5  # outcomes too rare for the approximation are counted together
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    assert stats.chisquare(observed, expected).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("sampler", "population", "law"), CASES, ids=lambda x: repr(x) if hasattr(x, "relation") else ""
)
def test_joint_law_of_all_memberships(sampler: Sampler, population: int, law: Law) -> None:
    assert_law(sampler, population, law, seed=1, runs=RUNS)


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_poisson_drawn_in_chunks_has_the_same_law(
    chunk: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bernoulli, "CHUNK", chunk)
    assert_law(Poisson(rate, 1), 4, independent(poisson_round(4, rate)), seed=15, runs=RUNS)


@pytest.mark.parametrize("digit", [1, 2])
def test_shuffle_by_sorted_keys_has_the_same_law(
    digit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that five records already take the path of 65536
    monkeypatch.setattr(sorting, "DIGIT", digit)
    assert_law(Shuffle(3), 5, partitions(5, [2, 2, 1]), seed=2, runs=RUNS)
    assert_law(Shuffle(5), 5, partitions(5, [1] * 5), seed=3, runs=RUNS)
    assert_law(BufferedShuffle(5, 4), 5, buffered_law(5, [1] * 5, 4), seed=4, runs=RUNS)


def test_buffer_followed_in_blocks_is_the_buffer_followed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffered_shuffle, "BLOCK", 7)
    rng = np.random.default_rng(5)
    for places in (1, 2, 5, 300, 70_000):
        chosen = sorting.uniform_labels(rng, 100, places)
        buffer, out = list(range(places)), []
        for t, place in enumerate(chosen.tolist()):
            out.append(buffer[place])
            buffer[place] = places + t
        left, kept = buffered_shuffle.stream_through(chosen, places)
        assert left.tolist() == out
        assert kept.tolist() == buffer


def test_buffered_position_law_of_one_record() -> None:
    population, batches, buffer, record, runs = 60, 6, 2, 25, 4000
    places, entry = 20, 25 - 20 + 1
    position = np.zeros(population)
    times = np.arange(entry, population - places)
    position[times] = (1 - 1 / places) ** (times - entry) / places
    position[population - places :] = (1 - position.sum()) / places
    law = position.reshape(batches, -1).sum(axis=1)
    rng, seen = np.random.default_rng(6), np.zeros(batches)
    for _ in range(runs):
        drawn = BufferedShuffle(batches, buffer).draw(population, rng)
        seen[next(t for t, batch in enumerate(drawn) if record in batch)] += 1
    possible = law > 0
    assert not seen[~possible].any()
    assert stats.chisquare(seen[possible], law[possible] * runs).pvalue > LEAST_P


def matrix(sampler: Sampler, population: int, seed: int) -> np.ndarray:
    """Memberships: one row per round."""
    rows = np.zeros((len(sampler), population), dtype=bool)
    for row, batch in zip(rows, sampler.draw(population, np.random.default_rng(seed)), strict=True):
        row[batch] = True
        assert row.sum() == len(batch)
    return rows


def assert_binomial(counts: np.ndarray, trials: int, chance: float) -> None:
    """Independent counts are Binomial(trials, chance): chi-square on about equal bins."""
    parts = min(20, len(counts) // 5)
    bins = np.unique(stats.binom.ppf(np.linspace(0, 1, parts + 1)[1:-1], trials, chance))
    observed = np.bincount(np.searchsorted(bins, counts), minlength=len(bins) + 1)
    expected = np.diff(stats.binom.cdf(bins, trials, chance), prepend=0, append=1) * len(counts)
    kept = expected > 2
    if kept.sum() < 2:  # too few for a test of the shape: test the sum
        assert stats.binomtest(int(counts.sum()), trials * len(counts), chance).pvalue > LEAST_P
        return
    if not kept.all():
        observed = np.append(observed[kept], observed[~kept].sum())
        expected = np.append(expected[kept], expected[~kept].sum())
    assert stats.chisquare(observed, expected).pvalue > LEAST_P


@pytest.mark.parametrize("rate", [0.003, 0.04, 0.3, 0.5, 0.7])
def test_poisson_in_the_large(rate: float) -> None:
    population, steps = 20_000, 400
    member = matrix(Poisson(rate, steps), population, seed=7)
    assert_binomial(member.sum(axis=1), population, rate)  # sizes of batches
    assert_binomial(member.sum(axis=0), steps, rate)  # how often each record is in
    for lag in (1, 2, 17):  # neighbours in one batch, and one record in successive batches
        pairs = (member[:, :-lag] & member[:, lag:])[:, :: 2 * lag + 1]
        assert_binomial(pairs.sum(axis=0), steps, rate**2)
        assert_binomial(
            (member[:-lag] & member[lag:])[:: 2 * lag + 1].sum(axis=1), population, rate**2
        )


def test_poisson_of_every_record() -> None:
    for batch in Poisson(1.0, 3).draw(70_000, np.random.default_rng(0)):
        assert np.array_equal(batch, np.arange(70_000))


def test_truncated_poisson_in_the_large() -> None:
    sampler = TruncatedPoisson(0.05, 2000, 55, 1000)
    member = matrix(sampler, 1000, seed=8)
    sizes = member.sum(axis=1)
    assert sizes.max() == 55
    full = stats.binom.sf(54, 1000, 0.05)
    assert stats.binomtest(int((sizes == 55).sum()), 2000, full).pvalue > LEAST_P
    mean = stats.binom.expect(lambda size: np.minimum(size, 55), (1000, 0.05)) / 1000
    inclusion = member.sum(axis=0)
    assert stats.chisquare(inclusion).pvalue > LEAST_P
    assert inclusion.mean() / 2000 == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(
    "sampler", [Shuffle(30, 4), BallsInBins(30, 4), BufferedShuffle(30, 30, 4), BallsInBins(300, 4)]
)
@pytest.mark.parametrize("population", [1_000, 100_003])
def test_epochs_are_partitions(sampler: Sampler, population: int) -> None:
    drawn = list(sampler.draw(population, np.random.default_rng(9)))
    rounds = len(sampler) // 4
    where = np.empty((4, population), dtype=int)
    for epoch in range(4):
        batches = drawn[epoch * rounds : (epoch + 1) * rounds]
        assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(population))
        for t, batch in enumerate(batches):
            where[epoch, batch] = t
        # Records of any one stretch of the data are spread evenly over the batches.
        first = np.bincount(where[epoch, : population // 3], minlength=rounds)
        assert stats.chisquare(first).pvalue > LEAST_P
        if not isinstance(sampler, BallsInBins):
            assert [len(batch) for batch in batches] == [
                population // rounds + (t < population % rounds) for t in range(rounds)
            ]
        else:
            assert stats.chisquare([len(batch) for batch in batches]).pvalue > LEAST_P
        # Records next to each other share a batch as often as any two records do.
        together = sum(len(batch) * (len(batch) - 1) for batch in batches) / (
            population * (population - 1)
        )
        pairs = where[epoch, 0 : population - 1 : 2] == where[epoch, 1::2][: population // 2]
        assert stats.binomtest(int(pairs.sum()), len(pairs), together).pvalue > LEAST_P
    # Successive epochs are independent: a record keeps its batch with probability 1 / rounds.
    for a, b in combinations(range(4), 2):
        same = int((where[a] == where[b]).sum())
        assert stats.binomtest(same, population, 1 / rounds).pvalue > LEAST_P


def test_persistent_shuffle_repeats_itself() -> None:
    drawn = list(Shuffle(7, epochs=3, reshuffle=False).draw(100, np.random.default_rng(10)))
    for t in range(7):
        assert np.array_equal(drawn[t], drawn[t + 7])
        assert np.array_equal(drawn[t], drawn[t + 14])


@pytest.mark.parametrize(("times", "steps"), [(1, 5), (2, 5), (3, 5), (4, 9), (5, 9), (11, 13)])
def test_random_allocation_picks_uniform_subsets_independently(times: int, steps: int) -> None:
    population = 20_000
    member = matrix(RandomAllocation(times, steps), population, seed=14)
    codes, kinds = 2 ** np.arange(steps) @ member, math.comb(steps, times)
    _, subset, seen = np.unique(codes, return_inverse=True, return_counts=True)
    assert len(seen) == kinds
    assert stats.chisquare(seen).pvalue > LEAST_P
    if kinds < 20:  # the two records of a pair choose independently
        pairs = np.bincount(subset[::2] * kinds + subset[1::2], minlength=kinds**2)
        assert stats.chisquare(pairs).pvalue > LEAST_P


@pytest.mark.parametrize(("times", "steps"), [(1, 40), (4, 40), (13, 40), (40, 40), (3, 700)])
def test_random_allocation_in_the_large(times: int, steps: int) -> None:
    population = 5_000
    member = matrix(RandomAllocation(times, steps), population, seed=11)
    assert (member.sum(axis=0) == times).all()
    if times == steps:
        return
    sizes = member.sum(axis=1)
    # Each record adds to the sizes a vector with this variance on sums of zero, whence the scale of
    # chi-square.
    scale = population * times * (steps - times) / (steps * (steps - 1))
    assert (
        stats.chi2.sf(((sizes - population * times / steps) ** 2).sum() / scale, steps - 1)
        > LEAST_P
    )
    if times > 1:  # joint inclusion of two rounds, inside a window and across windows
        for other in (1, steps // 2, steps - 1):
            both = int((member[0] & member[other]).sum())
            chance = times * (times - 1) / (steps * (steps - 1))
            assert stats.binomtest(both, population, chance).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("batch", "population"), [(20, 400), (150, 400), (30, 20_000), (4_000, 20_000)]
)
def test_without_replacement_in_the_large(batch: int, population: int) -> None:
    steps = 300
    member = matrix(WithoutReplacement(batch, population, steps), population, seed=12)
    assert (member.sum(axis=1) == batch).all()
    inclusion = member.sum(axis=0)
    scale = steps * batch * (population - batch) / (population * (population - 1))
    statistic = ((inclusion - steps * batch / population) ** 2).sum() / scale
    assert (
        2 * min(stats.chi2.sf(statistic, population - 1), stats.chi2.cdf(statistic, population - 1))
        > LEAST_P
    )
    both = int((member[:, :-1:2] & member[:, 1::2]).sum())
    trials = steps * (population // 2)
    chance = batch * (batch - 1) / (population * (population - 1))
    assert stats.poisson.sf(both - 1, trials * chance) > LEAST_P
    assert stats.poisson.cdf(both, trials * chance) > LEAST_P
    shared = (member[:-1] & member[1:]).sum(axis=1)[::2]  # successive batches are independent
    law = stats.hypergeom(population, batch, batch)
    z = (shared.sum() - len(shared) * law.mean()) / (len(shared) * law.var()) ** 0.5
    assert 2 * stats.norm.sf(abs(z)) > LEAST_P


@pytest.mark.parametrize(
    ("sampler", "ordered"),
    [
        (Poisson(0.3, 4), True),
        (Poisson(0.8, 4), True),
        (TruncatedPoisson(0.3, 4, 300, 1000), True),
        (Deterministic(7), True),
        (BallsInBins(7), True),
        (WithoutReplacement(30, 1000, 4), True),
    ],
)
def test_documented_order(sampler: Sampler, ordered: bool) -> None:
    for batch in sampler.draw(1000, np.random.default_rng(13)):
        assert (np.diff(batch) > 0).all() == ordered
