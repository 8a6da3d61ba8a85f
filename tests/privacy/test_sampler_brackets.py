"""What is printed for every sampler: never below an attack written out, never above a simpler
proof.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    NoGuarantee,
    Poisson,
    RandomAllocation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
    calibrate,
)
from verax.privacy.curves.black_box import BlackBox
from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.guarantee import Guarantee
from verax.privacy.pairs.mixture_weights import truncated_rate, truncated_round_cases
from verax.privacy.tuning import PoissonTrials, tuned

WIDTH = 1e-3


def run(sampler, noise: float, clipping=None, relation: str = "", group: int = 1) -> Guarantee:
    return Mechanism(sampler, noise, clipping or Individual(), relation).guarantee(group)


# --- reference intervals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "noise", "delta", "low", "high", "width"),
    [
        (BallsInBins(100), 1.0, 1e-6, 0.8437, 0.8745, 0.003),
        (BallsInBins(1000), 1.0, 1e-6, 0.1687, 0.1757, 0.003),
        (BallsInBins(1000), 0.5, 1e-6, 4.098, 4.118, 0.003),
        (BallsInBins(100, epochs=10), 1.0, 1e-5, 1.664, 1.740, 0.003),
        (RandomAllocation(10, 1000), 1.0, 1e-6, 1.925, 2.006, 0.02),
    ],
)
def test_published_intervals_hold_ours(sampler, noise, delta, low, high, width):
    """Intervals by an independent accountant of random allocation."""
    bracket = run(sampler, noise).epsilon(delta)
    assert low <= bracket.lower <= bracket.upper <= high
    assert bracket.width <= width * bracket.upper


@pytest.mark.parametrize("bins", [100, 10**4])
def test_much_noise_has_a_finite_price(bins):
    """Tails that no single factor makes must not be sent to infinity."""
    for noise in (20.0, 1000.0):
        bracket = run(BallsInBins(bins), noise).epsilon(1e-8)
        assert 0.0 < bracket.lower <= bracket.upper <= bracket.lower * 1.01
    # nearly so, by the central limit theorem
    gaussian = gaussian_epsilon(1.0 / 20.0 / math.sqrt(bins), 1e-8)
    assert run(BallsInBins(bins), 20.0).epsilon(1e-8).upper == pytest.approx(gaussian, rel=0.03)


def test_a_million_bins_over_a_hundred_epochs():
    bracket = run(BallsInBins(10**6, epochs=100), 5.0).epsilon(1e-6, rtol=0.01)
    assert 0.0 < bracket.lower <= bracket.upper <= 1.03 * bracket.lower


# --- every sampler --------------------------------------------------------------------------------

SAMPLERS = [
    BallsInBins(30, epochs=2),
    RandomAllocation(3, 40),
    Shuffle(30, epochs=2),
    BufferedShuffle(30, buffer=4, epochs=2),
    WithoutReplacement(5, 100, steps=30),
    TruncatedPoisson(0.05, 30, max_batch=12, population=100),
]
IDS = [type(sampler).__name__ for sampler in SAMPLERS]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=IDS)
@pytest.mark.parametrize(
    "clipping", [Individual(), Batch(), Mixed(groups=3)], ids=["one by one", "batch", "mixed"]
)
def test_delta_and_epsilon_are_inverse_and_fall_with_the_noise(sampler, clipping):
    before = math.inf
    for noise in (1.0, 3.0):
        guarantee = run(sampler, noise, clipping)
        epsilon = guarantee.epsilon(1e-5)
        assert 0.0 <= epsilon.lower <= epsilon.upper < before
        assert guarantee.delta(epsilon.upper * (1.0 + 2 * WIDTH)).lower <= 1e-5
        assert guarantee.delta(epsilon.upper).upper <= 1e-5 * (1.0 + 20 * WIDTH)
        if epsilon.lower > 0.0:
            assert guarantee.delta(epsilon.lower * (1.0 - 2 * WIDTH)).upper >= 1e-5
        before = epsilon.upper
    assert epsilon.upper_by
    assert epsilon.lower_by
    assert epsilon.evidence == "proved"


@pytest.mark.parametrize("sampler", SAMPLERS, ids=IDS)
def test_without_noise_nothing_is_private(sampler):
    bracket = run(sampler, 0.0).epsilon(1e-6)
    assert bracket.upper == math.inf
    assert run(sampler, 0.0).delta(5.0).lower > 0.5


@pytest.mark.parametrize("sampler", SAMPLERS, ids=IDS)
@pytest.mark.parametrize("noise", [0.05, 1e5])
def test_extreme_noise_is_priced(sampler, noise):
    bracket = run(sampler, noise).epsilon(1e-6)
    assert 0.0 <= bracket.lower <= bracket.upper < math.inf
    assert bracket.upper > 200.0 if noise < 1.0 else bracket.upper < 1e-3


@pytest.mark.parametrize("sampler", SAMPLERS, ids=IDS)
def test_two_records_cost_more_than_one(sampler):
    one, two = (run(sampler, 2.0, group=k).delta(0.5) for k in (1, 2))
    assert one.upper < two.upper
    assert one.lower <= two.lower * (1.0 + 2 * WIDTH)


@pytest.mark.parametrize(
    ("sampler", "noise"),
    [
        (BallsInBins(5), 1.4),
        (RandomAllocation(2, 8), 3.0),
        (Shuffle(10), 4.225),
        (BufferedShuffle(10, 2), 4.225),
        (WithoutReplacement(5, 100, 10), 1.9),
        (TruncatedPoisson(0.05, 10, 20, 100), 1.3),
    ],
    ids=IDS,
)
def test_calibration_meets_its_target(sampler, noise):
    found = calibrate.noise_multiplier(sampler, epsilon=1.0, delta=1e-6)
    assert found == pytest.approx(noise, rel=0.5)
    assert run(sampler, found).epsilon(1e-6).upper <= 1.0
    assert run(sampler, found / 1.002).epsilon(1e-6).upper > 1.0


# --- balls in bins and random allocation ----------------------------------------------------------


def test_one_bin_and_every_round_are_gaussian():
    for sampler, mu in (
        (BallsInBins(1, epochs=4), 2.0),
        (RandomAllocation(9, 9), 3.0),
        (RandomAllocation(1, 1), 1.0),
    ):
        bracket = run(sampler, 1.0).epsilon(1e-6)
        assert bracket.upper == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-9)
        assert bracket.lower == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-9)


def test_one_of_many_is_balls_in_bins():
    one, other = (
        run(RandomAllocation(1, 50, epochs=2), 1.0).epsilon(1e-6),
        run(BallsInBins(50, 2), 1.0).epsilon(1e-6),
    )
    assert (one.lower, one.upper) == (other.lower, other.upper)


def test_zero_out_is_add_remove_and_batches_shift_by_two():
    a, b = (
        run(BallsInBins(50), 1.0, relation=relation).epsilon(1e-6)
        for relation in ("add-remove", "zero-out")
    )
    assert (a.lower, a.upper) == (b.lower, b.upper)
    for clipping in (Batch(), Mixed(groups=4)):
        c = run(BallsInBins(50), 2.0, clipping).epsilon(1e-6)
        assert (c.lower, c.upper) == (a.lower, a.upper)


@given(st.integers(1, 40), st.integers(1, 3), st.floats(0.5, 4.0))
@settings(max_examples=8)
def test_hiding_among_bins_never_costs_more_than_fixed_batches(bins, epochs, noise):
    hidden = run(BallsInBins(bins, epochs), noise).epsilon(1e-5)
    assert hidden.lower <= gaussian_epsilon(math.sqrt(epochs) / noise, 1e-5) * (1.0 + 1e-9)
    assert hidden.upper <= gaussian_epsilon(math.sqrt(epochs) / noise, 1e-5) * 1.01


def test_blocks_cost_less_than_telling_the_rounds_and_more_than_one():
    for times in (2, 5, 7):
        bracket = run(RandomAllocation(times, 21), 1.5).epsilon(1e-6)
        assert run(BallsInBins(21), 1.5).epsilon(1e-6).lower < bracket.upper
        assert bracket.upper < gaussian_epsilon(math.sqrt(times) / 1.5, 1e-6)
        assert bracket.width <= 0.2 * bracket.upper


EDGES = np.concatenate([[-np.inf], np.arange(-8.0, 9.01, 0.1), [np.inf]])


def line(points: dict[float, float]) -> np.ndarray:
    """The pmf of one noisy sum, seen in bins: weights by mean."""
    return sum(weight * np.diff(special.ndtr(EDGES - mean)) for mean, weight in points.items())


def delta(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def test_phases_of_different_samplers_multiply():
    """Two bins, then one Poisson round: three sums, both directions."""
    both = Mechanism(BallsInBins(2), 1.0) + Mechanism(Poisson(0.3, 1), 0.8)
    bins = 0.5 * (np.multiply.outer(line({1.0: 1.0}), line({0.0: 1.0})))
    bins = bins + bins.T
    empty = np.multiply.outer(line({0.0: 1.0}), line({0.0: 1.0}))
    p = np.multiply.outer(bins.reshape(-1), line({0.0: 0.7, 1.25: 0.3}))
    q = np.multiply.outer(empty.reshape(-1), line({0.0: 1.0}))
    for epsilon in (0.0, 0.5, 2.0):
        worst = max(delta(p, q, epsilon), delta(q, p, epsilon))
        bracket = both.guarantee().delta(epsilon)
        assert worst <= bracket.upper
        assert bracket.lower == pytest.approx(worst, rel=0.01)  # bins hide a little


@pytest.mark.parametrize(
    "phases",
    [
        Mechanism(BallsInBins(20), 2.0) + Mechanism(TruncatedPoisson(0.05, 10, 20, 100), 2.0),
        Mechanism(RandomAllocation(2, 20), 2.0) + Mechanism(Poisson(0.05, 20), 2.0),
        Mechanism(Shuffle(20), 2.0) + Mechanism(BallsInBins(20), 2.0, relation="zero-out"),
        Mechanism(WithoutReplacement(5, 50, 5), 4.0)
        + Mechanism(Deterministic(10), 4.0, relation="replace"),
        Mechanism(WithoutReplacement(5, 50, 5), 4.0, Batch())
        + Mechanism(Poisson(0.1, 5), 4.0, Batch(), "replace"),
        Mechanism(BufferedShuffle(20, 4), 2.0)
        + Mechanism(RandomAllocation(3, 9), 2.0, relation="zero-out"),
    ],
    ids=lambda phases: " then ".join(type(m.sampler).__name__ for m in phases.mechanisms),
)
def test_phases_cost_at_least_each_and_at_most_all(phases):
    together = phases.guarantee().epsilon(1e-5)
    alone = [m.guarantee() for m in phases.mechanisms]
    assert together.upper >= max(g.epsilon(1e-5).lower for g in alone)
    assert together.lower >= max(g.epsilon(1e-5).lower for g in alone) * (1.0 - 2 * WIDTH)
    assert together.lower <= sum(g.epsilon(5e-6).upper for g in alone)
    assert together.upper <= sum(g.epsilon(5e-6).upper for g in alone) * (1.0 + 2 * WIDTH)


def test_a_noiseless_phase_exposes_whom_it_samples():
    phases = Mechanism(WithoutReplacement(1, 100, 2), 0.0) + Mechanism(
        WithoutReplacement(5, 100, 2), 2.0
    )
    exposed = 1.0 - 0.99**2
    bracket = phases.guarantee().delta(3.0)
    assert exposed * (1.0 - 1e-12) <= bracket.lower <= bracket.upper < exposed + 1e-3


# --- shuffling ------------------------------------------------------------------------------------


def test_a_buffer_of_all_batches_is_a_shuffle_and_of_one_is_fixed_batches():
    for relation in ("zero-out", "replace"):
        whole, shuffle = (
            run(s, 1.0, relation=relation).epsilon(1e-5)
            for s in (BufferedShuffle(40, 40), Shuffle(40))
        )
        assert (whole.lower, whole.upper) == (shuffle.lower, shuffle.upper)
        single, fixed = (
            run(s, 1.0, relation=relation).epsilon(1e-5)
            for s in (BufferedShuffle(40, 1), Deterministic(40))
        )
        assert single.upper == fixed.upper
        assert single.lower == pytest.approx(fixed.lower, rel=1e-3)


def test_a_larger_buffer_shows_less_of_the_last_record():
    seen = [
        run(BufferedShuffle(100, buffer), 1.0).epsilon(1e-5).lower for buffer in (1, 3, 10, 30, 100)
    ]
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > 1.05 * seen[-1]


def test_the_last_record_of_the_stream_is_anywhere_in_the_last_batches():
    """What the lower bound rests on, from the sampler itself: equal chances, also at the ends."""
    rng = np.random.default_rng(5)
    counts = np.zeros(8)
    for _ in range(3000):
        for t, batch in enumerate(BufferedShuffle(8, buffer=3).draw(32, rng)):
            counts[t] += 31 in batch
    assert counts[:5].sum() == 0
    assert stats.chisquare(counts[5:]).pvalue > 1e-4


@pytest.mark.parametrize("sampler", [Shuffle(3), BufferedShuffle(3, buffer=3)])
def test_shuffling_three_batches_written_out(sampler):
    """The whole vector of sums, in bins: more than the largest sum shows, less than fixed
    batches.
    """
    edges = np.concatenate([[-np.inf], np.arange(-6.0, 8.0, 0.2), [np.inf]])
    mass = {m: np.diff(special.ndtr(edges - m)) for m in (0.0, 1.0, 2.0)}

    def pmf(shift: float) -> np.ndarray:
        parts = [[shift if i == t else 0.0 for i in range(3)] for t in range(3)]
        return sum(np.einsum("i,j,k->ijk", *(mass[m] for m in part)) for part in parts) / 3.0

    p, q, silent = pmf(2.0), pmf(1.0), pmf(0.0)
    guarantee = run(sampler, 1.0)
    for epsilon in (0.0, 0.5, 1.5):
        bracket = guarantee.delta(epsilon)
        seen = [delta(a, b, epsilon) for a, b in ((p, q), (q, p), (q, silent), (silent, q))]
        assert max(seen) <= bracket.upper
        assert bracket.lower <= 1.03 * max(seen)  # the bins here are coarser


# --- without replacement --------------------------------------------------------------------------


def subset_pmf(batch: int, gradients: tuple[int, ...], noise: float) -> np.ndarray:
    points: dict[float, float] = {}
    subsets = list(itertools.combinations(gradients, batch))
    for subset in subsets:
        points[sum(subset) / noise] = points.get(sum(subset) / noise, 0.0) + 1.0 / len(subsets)
    return line(points)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("relation", ["replace", "zero-out"])
def test_three_records_without_replacement(batch, relation):
    """Every choice of gradients in {-1, 0, 1}, one round and two, adaptive or not."""
    noise, epsilons = 1.0, (0.0, 0.3, 1.0, 2.5)
    pairs = []
    for others in itertools.combinations_with_replacement((-1, 0, 1), 2):
        for old, new in itertools.product(
            (-1, 0, 1), (0,) if relation == "zero-out" else (-1, 0, 1)
        ):
            pairs += [
                (subset_pmf(batch, (g, *others), noise), subset_pmf(batch, (h, *others), noise))
                for g, h in ((old, new), (new, old))
            ]
    once = [
        run(WithoutReplacement(batch, 3, 1), noise, relation=relation).delta(e) for e in epsilons
    ]
    twice = [
        run(WithoutReplacement(batch, 3, 2), noise, relation=relation).delta(e) for e in epsilons
    ]
    for p, q in pairs:
        assert all(
            delta(p, q, e) <= bound.upper * (1.0 + 1e-9) + 1e-13
            for e, bound in zip(epsilons, once, strict=True)
        )
    forth = pairs[::2]  # the same direction in both rounds, and the opposite one
    for first, second in itertools.product(forth[::2], pairs[::3]):
        p, q = (np.multiply.outer(a, b) for a, b in zip(first, second, strict=True))
        assert all(
            delta(p, q, e) <= b.upper * (1.0 + 1e-9) + 1e-13
            for e, b in zip(epsilons, twice, strict=True)
        )
    if relation == "replace":  # achieved, up to the bins
        for e, bound in zip(epsilons, once, strict=True):
            assert max(delta(p, q, e) for p, q in pairs) == pytest.approx(bound.lower, rel=0.02)


def test_without_replacement_has_a_price_per_relation():
    with pytest.raises(NoGuarantee, match="WithoutReplacement has fixed batch sizes"):
        run(WithoutReplacement(5, 100, 10), 1.0, relation="add-remove")
    replaced, zeroed = (
        run(WithoutReplacement(5, 100, 10), 1.0, relation=r).epsilon(1e-5)
        for r in ("replace", "zero-out")
    )
    assert zeroed.upper <= replaced.upper * (1.0 + WIDTH)
    assert zeroed.lower < replaced.lower


def test_a_record_of_a_subset_is_a_clipped_aggregate_sampled_at_its_rate():
    """Theorem 7 is theorem 3 with another sampler: either direction in every round."""
    subset = run(WithoutReplacement(5, 100, 30), 2.0, relation="replace").epsilon(1e-6)
    coins = run(Poisson(0.05, 30), 2.0, Batch(), "replace").epsilon(1e-6)
    assert subset.upper == pytest.approx(coins.upper, rel=1e-9)
    assert subset.upper > 1.02 * run(Poisson(0.05, 30), 2.0, Batch()).epsilon(1e-6).upper


def test_whole_batches_are_gaussian():
    for clipping, relation, shift in (
        (Individual(), "zero-out", 1.0),
        (Individual(), "replace", 2.0),
        (Batch(), "zero-out", 2.0),
    ):
        bracket = run(WithoutReplacement(7, 7, 4), 2.0, clipping, relation).epsilon(1e-6)
        assert bracket.upper == pytest.approx(gaussian_epsilon(shift, 1e-6), rel=1e-9)
        assert bracket.lower == pytest.approx(bracket.upper, rel=1e-9)


# --- truncated Poisson ----------------------------------------------------------------------------


def truncated_pmf(rate: float, most: int, gradients: tuple[int, ...], noise: float) -> np.ndarray:
    points: dict[float, float] = {}
    for coins in itertools.product((0, 1), repeat=len(gradients)):
        picked = [g for g, coin in zip(gradients, coins, strict=True) if coin]
        chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
        subsets = list(itertools.combinations(picked, min(most, len(picked))))
        for subset in subsets:
            points[sum(subset) / noise] = points.get(sum(subset) / noise, 0.0) + chance / len(
                subsets
            )
    return line(points)


@pytest.mark.parametrize(
    ("rate", "most", "population"), [(0.3, 1, 3), (0.05, 1, 3), (0.6, 2, 3), (0.4, 2, 4)]
)
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_few_records_truncated(rate, most, population, noise):
    """Every choice of the others' gradients; data sets of the declared size, one smaller and one
    larger.
    """
    guarantee = run(TruncatedPoisson(rate, 1, most, population), noise)
    epsilons = (0.0, 0.1, 0.5, 1.5, 3.0)
    bounds = [guarantee.delta(e) for e in epsilons]
    best = [0.0] * len(epsilons)
    for size in (population - 1, population):
        for others in itertools.combinations_with_replacement((-1, 0, 1), size):
            p = truncated_pmf(rate, most, (*others, 1), noise)
            q = truncated_pmf(rate, most, others, noise)
            for i, (epsilon, bound) in enumerate(zip(epsilons, bounds, strict=True)):
                attained = max(delta(p, q, epsilon), delta(q, p, epsilon))
                assert attained <= bound.upper * (1.0 + 1e-9) + 1e-13, (others, epsilon)
                best[i] = max(best[i], attained)
    for seen, bound in zip(best, bounds, strict=True):
        # silent others are among the choices, up to the bins
        assert bound.lower <= seen * 1.02 + 1e-12


def test_two_truncated_rounds():
    guarantee = run(TruncatedPoisson(0.3, 2, 1, 3), 0.8)
    pmfs = [
        (truncated_pmf(0.3, 1, (*others, 1), 0.8), truncated_pmf(0.3, 1, others, 0.8))
        for others in itertools.combinations_with_replacement((-1, 0, 1), 2)
    ]
    bounds = {epsilon: guarantee.delta(epsilon).upper for epsilon in (0.0, 0.5, 2.0)}
    for first, second in itertools.combinations_with_replacement(pmfs, 2):
        p, q = (np.multiply.outer(a, b) for a, b in zip(first, second, strict=True))
        for epsilon, bound in bounds.items():
            assert max(delta(p, q, epsilon), delta(q, p, epsilon)) <= bound * (1.0 + 1e-9)


@pytest.mark.parametrize(("max_batch", "rare"), [(20, False), (30, True), (40, True)])
def test_the_simple_penalty_is_never_undercut_from_below_nor_beaten_where_truncation_is_rare(
    max_batch, rare
):
    """delta_Poisson + (1 + e^eps) T P[Bin(n, q) > B]."""
    truncated, plain = (
        run(TruncatedPoisson(0.01, 50, max_batch, 1000), 1.0),
        run(Poisson(0.01, 50), 1.0),
    )
    tail = float(stats.binom.sf(max_batch - 1, 1000, 0.01))
    for epsilon in (0.2, 1.0, 2.0):
        bound = truncated.delta(epsilon)
        penalty = plain.delta(epsilon).upper + (1.0 + math.exp(epsilon)) * 50 * tail
        assert bound.lower <= penalty
        assert bound.lower <= plain.delta(epsilon).upper * (1.0 + 1e-9)
        if rare:
            assert bound.upper <= penalty * (1.0 + WIDTH)


def test_room_for_everybody_is_poisson():
    for clipping in (Individual(), Batch()):
        full, plain = (
            run(s, 1.0, clipping).epsilon(1e-6)
            for s in (TruncatedPoisson(0.01, 100, 51, 50), Poisson(0.01, 100))
        )
        assert full.upper == pytest.approx(plain.upper, rel=2 * WIDTH)
        # of fifty records, half of the time none would turn an aggregate around
        if clipping == Individual():
            assert full.lower == pytest.approx(plain.lower, rel=2 * WIDTH)


def test_truncation_has_a_price_for_add_remove_only():
    for relation in ("zero-out", "replace"):
        with pytest.raises(NoGuarantee, match=f"TruncatedPoisson under relation='{relation}'"):
            run(TruncatedPoisson(0.1, 10, 20, 100), 1.0, relation=relation)


@pytest.mark.parametrize(
    ("rate", "max_batch", "population"),
    [(0.3, 1, 3), (0.05, 12, 100), (0.01, 30, 2000), (0.5, 5, 9)],
)
def test_the_rate_of_a_truncated_record(rate, max_batch, population):
    sizes = np.arange(population + 1)
    exact = (
        float(stats.binom.pmf(sizes, population, rate) @ np.minimum(sizes, max_batch)) / population
    )
    found = truncated_rate(rate, max_batch, population)
    assert exact * (1.0 - 1e-5) <= found <= exact * (1.0 + 1e-12)
    assert truncated_rate(rate, population, population) == rate
    assert truncated_rate(1.0, 3, 10) == 0.3


@pytest.mark.parametrize(
    ("rate", "max_batch", "others"), [(0.3, 1, 3), (0.05, 12, 99), (0.01, 30, 2000)]
)
def test_a_crowd_is_at_least_as_likely_as_it_is(rate, max_batch, others):
    (room, first, one), (crowd, second, two) = truncated_round_cases(rate, max_batch, others)
    assert (first, one, second, two) == (rate, 1, rate, 2)
    exact = float(stats.binom.sf(max_batch - 1, others, rate))
    # scipy's own tail is off by a few units in the last place
    assert exact * (1.0 - 1e-14) <= crowd <= exact * 1.001
    assert room + crowd == pytest.approx(1.0, rel=1e-15)
    assert truncated_round_cases(rate, others + 1, others) == [(1.0, rate, 1)]
    assert truncated_round_cases(1.0, 1, 5) == [(1.0, 1.0, 2)]


def test_more_others_never_make_the_bound_smaller():
    """Truncation hides the record as well: with its true rate in a crowd the bound would not be
    monotone.
    """
    bounds = [run(TruncatedPoisson(0.3, 1, 1, n), 0.3).delta(0.0).upper for n in (1, 2, 3)]
    assert bounds == sorted(bounds)
    assert gaussian_delta(1.0 / 0.3, 0.0) * 0.219 < bounds[-1]


def test_groups_of_truncated_records_pass_through_larger_data_sets():
    """Two records of gradient -1, two of +1 added, three of the four used: 1/2 N(3) + 1/2 N(1)
    against N(0), exactly.

    One record's curve for the declared two others does not cover the step from three records to
    four.
    """
    sampler, epsilons = TruncatedPoisson(1.0, 1, 3, 2), (1.0, 2.0, 4.0)
    guarantee = run(sampler, 1.0, group=2)
    box = BlackBox(run(sampler, 1.0))
    x = np.linspace(-9.0, 13.0, 2_000_001)
    before, added = (-1.0, -1.0), (1.0, 1.0)
    p = np.mean(
        [stats.norm.pdf(x - sum(batch)) for batch in itertools.combinations(before + added, 3)],
        axis=0,
    )
    q = stats.norm.pdf(x - sum(before))
    for epsilon in epsilons:
        truth = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), x)
        assert truth <= guarantee.delta(epsilon).upper
        assert truth <= box.delta(2, epsilon, "any")
        assert truth <= box.delta(2, epsilon)
    assert guarantee.delta(4.0).upper < 1.0
    assert np.trapezoid(np.maximum(p - math.exp(4.0) * q, 0.0), x) == pytest.approx(
        0.18786, abs=1e-5
    )


def test_a_search_over_truncated_runs_says_nothing_about_groups_beyond_its_population():
    search = tuned(Mechanism(TruncatedPoisson(0.1, 5, 4, 20), 2.0), PoissonTrials(1.0))
    with pytest.raises(NoGuarantee, match="declared population"):
        BlackBox(search).delta(2, 1.0)


def test_a_bound_for_others_covers_a_record_alone():
    """Rate 1, one place: the record alone is N(1) against N(0), .3829; with B / (N + 1) it would be
    .3413.
    """
    upper = run(TruncatedPoisson(1.0, 1, 1, 1), 1.0).delta(0.0).upper
    assert 0.5 * gaussian_delta(2.0, 0.0) < 0.342 < 0.382 < gaussian_delta(1.0, 0.0) <= upper
