"""Exact pmfs of touched clip-groups: enumeration, inclusion-exclusion, published closed forms and
real samplers.
"""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from verax.papers.shuffling_and_batch_clipping import model as paper_000_model
from verax.privacy.numerics.distributions import binomial_pmf, hypergeometric_pmf
from verax.privacy.strong import occupancy
from verax.samplers import BallsInBins, Poisson, Shuffle, WithoutReplacement


def points(pmf):
    return {
        round(place): weight
        for place, weight in zip(pmf.lows, pmf.weights, strict=True)
        if weight > 0.0
    }


def agree(pmf, expected, rel=1e-13):
    assert pmf.spread == 0.0
    assert points(pmf) == pytest.approx({k: float(v) for k, v in expected.items() if v}, rel=rel)


def counted(values):
    found = Counter(values)
    total = sum(found.values())
    return {value: Fraction(count, total) for value, count in found.items()}


def sum_of_squares(labels):
    return sum(count * count for count in Counter(labels).values())


def inclusion_exclusion(batches, size, group):
    """q_j = C(B,j) sum_i (-1)^i C(j,i) C((j-i)s, g) / C(Bs, g), in whole numbers."""
    ways = math.comb(batches * size, group)
    return [
        Fraction(
            math.comb(batches, j)
            * sum(
                (-1) ** i * math.comb(j, i) * math.comb((j - i) * size, group) for i in range(j + 1)
            ),
            ways,
        )
        for j in range(group + 1)
    ]


@pytest.mark.parametrize(
    ("population", "marked", "drawn"), [(5, 2, 2), (60_000, 32, 64), (50, 40, 30), (9, 9, 4)]
)
def test_hypergeometric(population, marked, drawn):
    ours = hypergeometric_pmf(population, marked, drawn)
    exact = [
        Fraction(
            math.comb(marked, k) * math.comb(population - marked, drawn - k),
            math.comb(population, drawn),
        )
        for k in range(min(marked, drawn) + 1)
    ]
    assert len(ours) == len(exact)
    assert ours.tolist() == pytest.approx([float(p) for p in exact], rel=1e-12, abs=0.0)


@pytest.mark.parametrize(
    ("trials", "rate"), [(32, 1e-3), (32, 0.5), (200, 0.97), (1, 1e-9), (3, 1.0)]
)
def test_binomial(trials, rate):
    ours = binomial_pmf(trials, rate)
    exact = [
        math.comb(trials, k) * Fraction(rate) ** k * (1 - Fraction(rate)) ** (trials - k)
        for k in range(len(ours))
    ]
    assert ours.tolist() == pytest.approx([float(p) for p in exact], rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("batches", "size", "group"), [(10, 8, 4), (1000, 60, 32), (7, 3, 21), (4, 2, 5)]
)
def test_occupancy_is_inclusion_exclusion(batches, size, group):
    ours = next(itertools.islice(occupancy.occupied_bins_pmfs(batches, size), group, None))
    exact = inclusion_exclusion(batches, size, group)
    ours = ours.tolist() + [0.0] * (len(exact) - len(ours))
    assert ours == pytest.approx([float(p) for p in exact], rel=1e-12, abs=0.0)


def test_the_printed_occupancy_law_is_wrong():
    """Section F.3 prints stars and bars: .294 for four records in four of ten batches of eight; it
    is .544.
    """
    batches, size, group = 10, 8, 4
    exact = inclusion_exclusion(batches, size, group)
    printed = [
        Fraction(
            math.comb(batches, j) * math.comb(group - 1, max(j - 1, 0)),
            math.comb(batches - 1 + group, group),
        )
        for j in range(1, group + 1)
    ]
    assert sum(printed) == sum(exact) == 1
    assert float(printed[3]) == pytest.approx(0.2937, abs=1e-4)
    assert float(exact[4]) == pytest.approx(0.5439, abs=1e-4)
    agree(paper_000_model.shuffling(batches * size, size, 1, 1, group), dict(enumerate(exact)))


def test_independent_choices_are_stirling_numbers():
    pmf = next(itertools.islice(occupancy.occupied_bins_pmfs(6), 4, None))
    expected = counted(len(set(choice)) for choice in itertools.product(range(6), repeat=4))
    assert pmf.tolist() == pytest.approx([float(expected.get(k, 0)) for k in range(5)], rel=1e-14)


@pytest.mark.parametrize("sizes", [[(4, 3)], [(2, 4), (3, 3)], [(1, 2), (2, 1)]])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_shuffled_batches_by_enumeration(sizes, group):
    places = [
        label
        for label, size in enumerate(s for n, s in sizes for _ in range(n))
        for _ in range(size)
    ]
    chosen = [
        [places[i] for i in subset] for subset in itertools.combinations(range(len(places)), group)
    ]
    agree(
        occupancy.epoch_pmf(group, sizes, occupancy.one_group_per_record),
        counted(map(sum_of_squares, chosen)),
    )
    agree(occupancy.epoch_pmf(group, sizes, None), counted(len(set(labels)) for labels in chosen))


@pytest.mark.parametrize(
    ("population", "size", "groups", "group"),
    [(12, 2, 3, 4), (16, 2, 2, 5), (12, 1, 4, 4), (12, 3, 2, 12)],
)
def test_equal_clip_groups_by_enumeration(population, size, groups, group):
    expected = counted(
        sum_of_squares(clip // groups for clip in {place // size for place in subset})
        for subset in itertools.combinations(range(population), group)
    )
    agree(paper_000_model.shuffling(population, size, groups, 1, group), expected)


@pytest.mark.parametrize("repeats", [1, 2])
def test_clip_groups_picked_at_random_by_enumeration(repeats):
    """Batches of 2 and 1; the same in every repetition, while clip-groups are redrawn."""
    places, groups, group = [0, 0, 1], 2, 2
    expected = counted(
        sum(
            sum_of_squares(
                batch
                for batch, _ in {(places[i], pick) for i, pick in zip(subset, picks, strict=True)}
            )
            for picks in repeated
        )
        for subset in itertools.combinations(range(3), group)
        for repeated in itertools.product(
            itertools.product(range(groups), repeat=group), repeat=repeats
        )
    )
    pmf = occupancy.epoch_pmf(
        group, [(1, 2), (1, 1)], lambda: occupancy.occupied_bins_pmfs(groups), repeats=repeats
    )
    agree(pmf, expected)


def test_balls_in_bins_by_enumeration():
    expected = counted(map(sum_of_squares, itertools.product(range(5), repeat=4)))
    agree(occupancy.epoch_pmf(4, [(5, None)], occupancy.one_group_per_record), expected)
    expected = counted(len(set(labels)) for labels in itertools.product(range(5), repeat=4))
    agree(occupancy.epoch_pmf(4, [(5, None)], None), expected)


@pytest.mark.parametrize("sizes", [[(4, 2)], [(1, 3), (3, 2)], [(4, 7)], [(4, 1000)]])
def test_balls_in_bins_have_the_largest_squares(sizes):
    """Stochastically, whatever the population (docs/strong-adversary.md)."""
    group = 6
    bins, batches = (
        occupancy.epoch_pmf(group, [(4, None)], occupancy.one_group_per_record),
        occupancy.epoch_pmf(group, sizes, occupancy.one_group_per_record),
    )
    for value in range(group * group):
        assert bins.above(value)[1] >= batches.above(value)[0]
    assert bins.mean > batches.mean


def test_subsampling_by_enumeration():
    """Two rounds of three out of six, a group of two."""
    batches = list(itertools.combinations(range(6), 3))
    hits = [len({0, 1} & set(batch)) for batch in batches]
    agree(
        paper_000_model.subsampling(6, 1, 3, 2, 2),
        counted(a * a + b * b for a in hits for b in hits),
    )
    agree(
        paper_000_model.subsampling(6, 3, 1, 2, 2),
        counted(bool(a) + bool(b) for a in hits for b in hits),
    )


def test_the_general_formula_of_section_e1():
    """q_k of E.1 for clip-groups of more than one record, which the recursion replaces."""
    population, groups, size, group = 12, 3, 2, 4

    def ways(total, parts):
        return math.factorial(total) // math.prod(map(math.factorial, parts))

    expected = Counter()
    for parts in itertools.product(range(size + 1), repeat=groups):
        hits, batch = sum(parts), groups * size
        if hits <= group:
            expected[sum(1 for part in parts if part) ** 2] += Fraction(
                math.comb(population - group, batch - hits)
                * math.comb(group, hits)
                * ways(hits, parts)
                * ways(batch - hits, [size - part for part in parts]),
                math.comb(population, batch) * ways(batch, [size] * groups),
            )
    assert sum(expected.values()) == 1
    agree(paper_000_model.subsampling(population, size, groups, 1, group), expected)


@pytest.mark.parametrize("clipping", ["individual", "batch"])
def test_filtering_keeps_each_clip_group_with_its_probability(clipping):
    """Appendix D on a small shuffle, the coins enumerated."""
    places, group = [0, 0, 1, 1, 2, 2], 3
    expected = Counter()
    for subset in itertools.combinations(range(6), group):
        clips = [(places[i], i if clipping == "individual" else 0) for i in subset]
        for coins in itertools.product([0, 1], repeat=len(set(clips))):
            kept = {clip for clip, coin in zip(sorted(set(clips)), coins, strict=True) if coin}
            expected[sum_of_squares(batch for batch, _ in kept)] += Fraction(
                1, 2 ** len(coins) * math.comb(6, 3)
            )
    size, groups = (1, 2) if clipping == "individual" else (2, 1)
    agree(paper_000_model.shuffling(6, size, groups, 1, group, keep=0.5), expected)


def test_filtering_halves_the_square_of_c_for_one_record():
    """So mu falls by sqrt(2), not by the 2 that appendix D hopes for."""
    pmf = paper_000_model.shuffling(60_000, 1, 60, 100, 1, keep=0.5)
    binomial = stats.binom(100, 0.5)
    assert pmf.weights.tolist() == pytest.approx(binomial.pmf(pmf.lows).tolist(), rel=1e-11)
    assert pmf.mean == pytest.approx(50.0)


@pytest.mark.parametrize("group", [2, 32, 48])
def test_the_mean_at_full_size(group):
    """E[c^2] = g + g(g-1) P[two given records share a batch]."""
    population = 60_000
    together = (906 * 64 * 63 + 32 * 63 * 62) / (population * (population - 1))
    pmf = occupancy.epoch_pmf(group, [(906, 64), (32, 63)], occupancy.one_group_per_record)
    assert pmf.mean == pytest.approx(group + group * (group - 1) * together, rel=1e-12)
    assert pmf.weights.sum() == pytest.approx(1.0, rel=1e-12)
    assert pmf.lost < 1e-40
    assert pmf.error < 1e-8


def test_hoeffding_without_its_n():
    """Sections E.2 and E.5 claim tails e^-E; they are .21 to .26 for every E."""
    population, batch = 60_000, 64
    for epochs in (5, 10, 20, 50, 100):
        steps = round(population * epochs / batch)
        edge = math.sqrt(epochs / 2)
        pmf = paper_000_model.subsampling(population, 1, batch, steps, 1)
        exact = stats.binom(steps, batch / population)
        above, below = pmf.above(epochs + edge), pmf.below(epochs - edge)
        assert above[0] <= exact.sf(epochs + edge) <= above[1] < above[0] * (1 + 1e-7)
        assert 0.2 < above[0] < 0.27
        assert 0.2 < below[0] < 0.27
        assert above[0] > 30 * math.exp(-epochs)


@pytest.mark.parametrize(
    ("group", "epochs", "gamma"), [(1, 2, 0.5), (2, 1, 0.2), (4, 2, 0.1), (60, 1, 0.01)]
)
def test_lemma_e4_holds(group, epochs, gamma):
    """Its tail bound e^{-gamma g E} is right, by a wide margin."""
    population, batch = 600, 10
    beta = math.exp(population / (population - group - batch)) + gamma
    pmf = paper_000_model.subsampling(population, 1, batch, population // batch * epochs, group)
    cut = beta * min(batch, group) * group * epochs
    assert pmf.above(cut)[1] <= math.exp(-gamma * group * epochs)


@pytest.mark.parametrize(
    ("sampler", "population", "pmf"),
    [
        (
            Shuffle(batches=7, epochs=2),
            30,
            lambda: occupancy.epoch_pmf(6, [(2, 5), (5, 4)], occupancy.one_group_per_record).times(
                2
            ),
        ),
        (
            WithoutReplacement(batch=8, population=30, steps=4),
            30,
            lambda: occupancy.independent_rounds_pmf(hypergeometric_pmf(30, 6, 8), None, 4),
        ),
        (
            Poisson(rate=0.2, steps=5),
            30,
            lambda: occupancy.independent_rounds_pmf(binomial_pmf(6, 0.2), None, 5),
        ),
        (
            BallsInBins(bins=5, epochs=2),
            30,
            lambda: occupancy.epoch_pmf(6, [(5, None)], occupancy.one_group_per_record).times(2),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_samplers_draw(sampler, population, pmf):
    """The first six records of the data, in batches that the samplers themselves draw."""
    rng, runs = np.random.default_rng(1), 2000
    squares = [
        sum(int((batch < 6).sum()) ** 2 for batch in sampler.draw(population, rng))
        for _ in range(runs)
    ]
    found, expected = Counter(squares), points(pmf())
    assert set(found) <= set(expected)
    likely = {value: p for value, p in expected.items() if p * runs > 20}
    for value, p in likely.items():
        assert abs(found[value] - p * runs) < 5 * math.sqrt(runs * p * (1 - p))
    assert np.mean(squares) == pytest.approx(pmf().mean, rel=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: paper_000_model.shuffling(61, 6, 1, 1, 2),
            "population must be a multiple of size \\* groups, 6, got 61",
        ),
        (
            lambda: paper_000_model.subsampling(10, 6, 2, 1, 2),
            "population must be a whole number of at least 12, got 10",
        ),
        (
            lambda: paper_000_model.subsampling(10, 1, 2, 1, 11),
            "group must be a whole number .* at most 10, got 11",
        ),
        (
            lambda: paper_000_model.subsampling(10, 1, 2, 1, 1, keep=0.0),
            "keep must lie in \\(0, 1\\], got 0.0",
        ),
        (
            lambda: paper_000_model.shuffling(10, 1, 2, 0, 1),
            "epochs must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
