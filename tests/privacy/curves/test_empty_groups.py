"""Clipped aggregates with few records: lower bounds against every attack on a line, written out."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import mpmath
import numpy as np
import pytest
from scipy import stats

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.privacy.curves.empty_groups import (
    RARE,
    AttackWithFailures,
    empty_group_probability,
    opposed_aggregate_pair,
)
from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import Composition
from verax.privacy.samplers.base import ProtectedGroup, analysis_of
from verax.privacy.strong.curve import strong_analysis, strong_tradeoff

X = np.linspace(-12.0, 12.0, 48_001)
EPSILONS = (0.0, 0.5, 1.0, 2.0)
LONG = 9.0  # outweighs all the others' gradients together


def coins(rate: float, count: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    for faces in itertools.product((0, 1), repeat=count):
        chance = math.prod(rate if face else 1.0 - rate for face in faces)
        yield chance, tuple(i for i, face in enumerate(faces) if face)


def batches(sampler, count: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """One round: every batch of so many records, and its probability."""
    match sampler:
        case TruncatedPoisson(rate=rate, max_batch=most):
            for chance, picked in coins(rate, count):
                kept = list(itertools.combinations(picked, min(most, len(picked))))
                yield from ((chance / len(kept), batch) for batch in kept)
        case WithoutReplacement(batch=size):
            kept = list(itertools.combinations(range(count), size))
            yield from ((1.0 / len(kept), batch) for batch in kept)
        case RandomParticipation(client_rate=p, record_rate=q):
            yield 1.0 - p, ()
            yield from ((p * chance, batch) for chance, batch in coins(q, count))


def density(
    drawn: Iterable[tuple[float, tuple[int, ...]]], gradients: tuple[float, ...], clip_groups: int
) -> np.ndarray:
    """Of the noisy sum of aggregates, each clipped to [-1, 1], noise 1."""
    means: dict[float, float] = defaultdict(float)
    for chance, batch in drawn:
        for labels in itertools.product(range(clip_groups), repeat=len(batch)):
            sums = np.zeros(clip_groups)
            for record, label in zip(batch, labels, strict=True):
                sums[label] += gradients[record]
            means[float(np.clip(sums, -1.0, 1.0).sum())] += chance / clip_groups ** len(batch)
    return sum(weight * stats.norm.pdf(X - mean) for mean, weight in means.items())


def best_attack(mechanism: Mechanism, count: int) -> np.ndarray:
    """The largest delta over all gradients in {-1, 0, LONG}: what two data sets of declared size
    achieve.
    """
    sampler, clip_groups = mechanism.sampler, getattr(mechanism.clipping, "groups", 1)
    best = np.zeros(len(EPSILONS))
    for others in itertools.combinations_with_replacement((-1.0, 0.0, LONG), count - 1):
        p = density(batches(sampler, count), (*others, LONG), clip_groups)
        if mechanism.relation == "add-remove":
            q = density(batches(sampler, count - 1), others, clip_groups)
        else:
            q = density(
                batches(sampler, count),
                (*others, 0.0 if mechanism.relation == "zero-out" else -LONG),
                clip_groups,
            )
        for i, epsilon in enumerate(EPSILONS):
            seen = [
                np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), X)
                for a, b in ((p, q), (q, p))
            ]
            best[i] = max(best[i], *seen)
    return best


def small(sampler, clipping, relation: str = "") -> Mechanism:
    return Mechanism(sampler, 1.0, clipping, relation)


@pytest.mark.parametrize(
    ("mechanism", "count", "at_one"),
    [
        (small(WithoutReplacement(1, 1, 1), Batch(), "zero-out"), 1, 0.12694),
        (small(WithoutReplacement(1, 2, 1), Batch(), "zero-out"), 2, 0.0587),
        (small(WithoutReplacement(2, 3, 1), Mixed(groups=2), "zero-out"), 3, 0.1936),
        (small(WithoutReplacement(2, 3, 1), Batch(), "zero-out"), 3, None),
        (small(WithoutReplacement(2, 3, 1), Mixed(groups=2), "replace"), 3, None),
        (small(WithoutReplacement(1, 2, 1), Batch(), "replace"), 2, 0.2105),
        (small(TruncatedPoisson(0.5, 1, 1, 1), Batch()), 1, 0.02887),
        (small(TruncatedPoisson(0.5, 1, 2, 3), Batch()), 3, None),
        (small(TruncatedPoisson(0.3, 1, 2, 4), Mixed(groups=2)), 4, None),
        (small(RandomParticipation(0.5, 0.5, 0, 1), Batch()), 1, 0.00454),
        (small(RandomParticipation(1.0, 0.5, 1, 1), Batch()), 2, 0.0737),
        (small(RandomParticipation(1.0, 0.5, 2, 1), Mixed(groups=3)), 3, None),
    ],
    ids=repr,
)
def test_no_lower_bound_above_every_attack(mechanism, count, at_one):
    """At most what the declared number of records achieves, and not far below it where one round is
    known exactly.
    """
    guarantee, best = mechanism.guarantee(), best_attack(mechanism, count)
    for epsilon, seen in zip(EPSILONS, best, strict=True):
        bracket = guarantee.delta(epsilon)
        assert bracket.lower <= seen * (1.0 + 1e-6)
        assert seen <= bracket.upper * (1.0 + 1e-6)
    if at_one is not None:
        assert guarantee.delta(1.0).lower == pytest.approx(at_one, rel=0.01)
    found = guarantee.epsilon(float(best[2]))
    assert found.lower <= 1.0 + 1e-6
    assert found.upper >= 1.0 - 1e-6


def test_the_round_as_it_is_has_the_laws_it_should():
    """An attack of its own: its curve is that of the written-out densities, in both directions, up
    to its bins.
    """
    mechanism, epsilons = small(TruncatedPoisson(0.4, 1, 2, 4), Mixed(groups=3)), (0.0, 0.4, 1.0)
    p, q = (density(batches(mechanism.sampler, n), (-1.0,) * 3 + (LONG,), 3) for n in (4, 3))
    table = opposed_aggregate_pair(mechanism, 4)
    for epsilon in epsilons:
        for seen, a, b in ((table, p, q), (table.reverse(), q, p)):
            exact = float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), X))
            assert exact * 0.999 <= seen.delta(epsilon)[0] <= exact * (1.0 + 1e-6)
    assert opposed_aggregate_pair(small(WithoutReplacement(1, 4, 1), Batch(), "replace"), 4) is None
    assert opposed_aggregate_pair(small(Shuffle(2), Batch()), 4) is None
    assert (
        opposed_aggregate_pair(
            small(TruncatedPoisson(1e-3, 1, 10**4, 10**6), Mixed(groups=4)), 10**6
        )
        is None
    )


def test_phases_share_the_declared_population():
    """One record in all, so that the Poisson phase has no company either: a Gaussian mechanism of
    two rounds.
    """
    both = small(WithoutReplacement(1, 1, 1), Batch(), "zero-out") + small(
        Poisson(1.0, 1), Batch(), "zero-out"
    )
    bracket = both.guarantee().delta(1.0)
    assert bracket.lower == pytest.approx(gaussian_delta(math.sqrt(2.0), 1.0), rel=1e-9)
    assert bracket.upper == pytest.approx(gaussian_delta(math.sqrt(8.0), 1.0), rel=1e-9)
    told = both.guarantee(adversary="A1").delta(1.0)
    assert told.lower == pytest.approx(gaussian_delta(math.sqrt(2.0), 1.0), rel=1e-6)
    bare = Mechanism(WithoutReplacement(1, 1, 1), 0.0, Batch(), "zero-out") + small(
        Poisson(0.5, 1), Batch(), "zero-out"
    )
    assert bare.guarantee().lowers[0].rest.delta(1.0, 1e-3)[0] == pytest.approx(0.02887, rel=1e-3)


def test_phases_with_and_without_company():
    """The first phase turns around, the second does not: both at once, and what the first may lack
    taken off.
    """
    crowd = small(TruncatedPoisson(0.5, 1, 100, 100), Batch())
    thin = small(TruncatedPoisson(0.01, 1, 60, 100), Batch())
    assert (
        0.0 < empty_group_probability(crowd, 1, 100) <= RARE < empty_group_probability(thin, 1, 100)
    )
    p, q = MixturePair.subsampled(0.5, 2.0), MixturePair.subsampled(0.01, 1.0)
    exact = Composition([(PricedRound(p), 1), (PricedRound(q), 1)]).delta(1.0, 1e-4)[0]
    assert (crowd + thin).guarantee().delta(1.0).lower >= exact * 0.99


# --- how often company is missing -----------------------------------------------------------------


def missing(
    drawn: Iterable[tuple[float, tuple[int, ...]]], clip_groups: int, group: frozenset[int]
) -> float:
    """The probability that some clip-group of a round holds nobody outside the group."""
    total = 0.0
    for chance, batch in drawn:
        others = [record for record in batch if record not in group]
        for labels in itertools.product(range(clip_groups), repeat=len(others)):
            total += chance / clip_groups ** len(others) * (len(set(labels)) < clip_groups)
    return total


@pytest.mark.parametrize("clip_groups", [1, 2])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "sampler",
    [
        TruncatedPoisson(0.5, 1, 3, 5),
        TruncatedPoisson(0.6, 1, 4, 5),
        WithoutReplacement(2, 5, 1),
        WithoutReplacement(4, 5, 1),
        RandomParticipation(1.0, 0.6, 4, 1),
    ],
    ids=repr,
)
def test_missing_company_is_never_more_likely_than_said(sampler, group, clip_groups):
    mechanism = Mechanism(sampler, 1.0, Mixed(groups=clip_groups), "add-remove")
    said = empty_group_probability(mechanism, group, 5)
    for present in (5, 5 - group) if not isinstance(sampler, WithoutReplacement) else (5,):
        there = missing(batches(sampler, present), clip_groups, frozenset(range(5 - group, 5)))
        assert there <= said * (1.0 + 1e-12)
    assert said <= max(10.0 * there, 0.1) or said == 1.0


@pytest.mark.parametrize(
    "sampler",
    [
        Shuffle(3, 2),
        Deterministic(3, 2),
        BufferedShuffle(3, 2, 2),
        BallsInBins(3, 2),
        RandomAllocation(2, 4),
    ],
)
@pytest.mark.parametrize("clipping", [Batch(), Mixed(groups=2)])
def test_missing_company_in_drawn_batches(sampler, clipping):
    """The sampler's own batches, clip-groups drawn: any round of the run."""
    rng, runs, people, clip_groups = (
        np.random.default_rng(3),
        4000,
        12,
        getattr(clipping, "groups", 1),
    )
    seen = 0
    for _ in range(runs):
        lack = False
        for batch in sampler.draw(people, rng):
            others = batch[batch != 7]
            lack |= len(set(rng.integers(clip_groups, size=len(others)).tolist())) < clip_groups
        seen += lack
    said = empty_group_probability(Mechanism(sampler, 1.0, clipping, "zero-out"), 1, people)
    assert seen / runs <= said + 4.0 * math.sqrt(0.25 / runs)


def test_who_needs_no_company():
    assert empty_group_probability(small(TruncatedPoisson(0.5, 1, 2, 3), Individual()), 1, 3) == 0.0
    assert empty_group_probability(small(Poisson(0.5, 1), Batch()), 1, None) == 0.0
    assert (
        empty_group_probability(small(WithoutReplacement(1, 5, 1), Batch(), "replace"), 1, 5) == 0.0
    )
    assert (
        empty_group_probability(small(RandomParticipation(0.5, 0.5, 3, 1), Batch()), 1, None) == 0.0
    )


def test_with_many_records_nothing_changes():
    big = Mechanism(TruncatedPoisson(0.01, 100, 900, 60_000), 1.0, Batch())
    assert 0.0 < empty_group_probability(big, 1, 60_000) < 1e-200
    found, plain = big.guarantee(), Mechanism(Poisson(0.01, 100), 1.0, Batch()).guarantee()
    assert found.uppers is found.lowers
    for at in (1e-6, 1e-3):
        assert found.epsilon(at).lower == pytest.approx(plain.epsilon(at).lower, rel=1e-4)
        assert found.epsilon(at).upper == pytest.approx(plain.epsilon(at).upper, rel=1e-4)


# --- attacks that count on something --------------------------------------------------------------


@pytest.mark.parametrize("chance", [1e-30, 1e-9, 1e-4, 0.2])
def test_a_charged_curve_is_inverse_to_itself(chance):
    curve = AttackWithFailures(Composition([(PricedRound(MixturePair.gaussian(1.5)), 1)]), chance)
    for delta in (1e-6, 1e-2, 0.2):
        lower, upper = curve.epsilon(delta, 1e-3)
        assert upper == pytest.approx(gaussian_epsilon(1.5, delta), rel=1e-9)
        if lower == 0.0:
            assert curve.delta(0.0, 1e-3)[0] <= delta
        else:
            assert curve.delta(lower, 1e-3)[0] >= delta * (1.0 - 1e-9)
            assert curve.delta(lower * 1.01, 1e-3)[0] < delta
        exact = gaussian_delta(1.5, 1.0) - (1.0 + math.e) * chance
        assert curve.delta(1.0, 1e-3)[0] == pytest.approx(max(exact, 0.0), rel=1e-9)
    assert curve.epsilon(1e-3, 1e-3, (1,))[0] == 0.0


def test_zero_out_of_a_clipped_subset_has_no_turns():
    """In a reversed round every batch without the record would have to sum to u, and every one with
    it to -u.
    """
    names = [
        set(analysis_of(m, ProtectedGroup()).lowers or ())
        for m in (
            small(WithoutReplacement(5, 100, 4), Batch(), relation)
            for relation in ("zero-out", "replace")
        )
    ]
    assert [("alternate" in found) for found in names] == [False, True]


# --- the strong adversary -------------------------------------------------------------------------


def test_shuffled_batches_of_one_record_each_against_a1():
    run = small(Shuffle(3, 1), Batch(), "zero-out")
    bracket = run.guarantee(adversary="A1", population=3).delta(1.0)
    assert bracket.lower == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-6)
    assert bracket.upper == pytest.approx(gaussian_delta(2.0, 1.0), rel=1e-6)
    low, high = strong_tradeoff(run, [0.05, 0.3], population=3)
    assert high.tolist() == pytest.approx(
        stats.norm.cdf(stats.norm.isf([0.05, 0.3]) - 1.0).tolist(), rel=1e-9
    )
    assert (low < high).all()
    replaced = (
        small(Shuffle(3, 1), Batch(), "replace").guarantee(adversary="A1", population=3).delta(1.0)
    )
    assert replaced.lower == pytest.approx(gaussian_delta(2.0, 1.0), rel=1e-6)


def test_company_that_is_hardly_ever_missing_against_a1():
    run = small(Shuffle(2, 1), Mixed(groups=2), "zero-out")
    bracket, plain = (run.guarantee(adversary="A1", population=n).delta(1.0) for n in (100, None))
    assert 0.0 < strong_analysis(run, population=100).chance < 1e-13
    assert bracket.lower == pytest.approx(plain.lower, rel=1e-9)
    low, high = strong_tradeoff(run, 0.1, population=100)
    assert high == pytest.approx(float(low), rel=1e-9)


def told(people: int, epsilon: float) -> float:
    """Two records of two shuffled batches, clipped as a whole, zeroed: exactly, for one who sees
    the batches.
    """
    total = 0.0
    placed = list(itertools.combinations(range(people), 2))
    first = people - people // 2
    for pair in placed:
        squared = 0.0
        for size, batch in ((first, range(first)), (people - first, range(first, people))):
            mine = sum(record in batch for record in pair)
            squared += (4.0 if size > mine else 1.0) * (mine > 0)
        total += gaussian_delta(math.sqrt(squared), epsilon) / len(placed)
    return total


def test_a_group_in_shuffled_batches_of_any_population_against_a1():
    """The largest over all populations: a few, and the limit of large ones."""
    limit = 0.5 * gaussian_delta(2.0, 1.0) + 0.5 * gaussian_delta(math.sqrt(8.0), 1.0)
    sup = max(limit, *(told(people, 1.0) for people in range(2, 13)))
    bracket = small(Shuffle(2, 1), Batch(), "zero-out").guarantee(2, adversary="A1").delta(1.0)
    assert bracket.lower <= sup <= bracket.upper
    assert told(4, 1.0) < gaussian_delta(math.sqrt(8.0), 1.0)  # what the lower bound was once


@pytest.mark.parametrize(
    "sampler",
    [
        WithoutReplacement(batch=7 * 10**11, population=10**12, steps=1),
        TruncatedPoisson(rate=0.6, steps=1, max_batch=7 * 10**11, population=10**12),
        Shuffle(batches=1),
    ],
)
def test_missing_company_is_not_understated_with_very_many_clip_groups(sampler):
    """1 - 1/m, rounded and raised to a power like 1e12, would be off by 2e-5 here."""
    groups, size = 7 * 10**9, getattr(sampler, "batch", getattr(sampler, "max_batch", 10**12))
    relation = "add-remove" if isinstance(sampler, TruncatedPoisson) else "zero-out"
    found = empty_group_probability(
        Mechanism(sampler, 1.0, Mixed(groups=groups), relation), 1, 10**12
    )
    with mpmath.workdps(40):
        empty = mpmath.exp((size - 1) * mpmath.log1p(-mpmath.mpf(1) / groups))
        if isinstance(sampler, TruncatedPoisson):
            empty += mpmath.exp((10**12 - 1) * mpmath.log1p(-mpmath.mpf(sampler.rate) / groups))
        else:
            share = mpmath.mpf(size) / 10**12
            empty *= share + (1 - share) * (1 - mpmath.mpf(1) / groups)
    assert groups * empty <= found <= groups * empty * 1.00001
