"""Adversary A1: closed forms where they are right, the standard adversary below it, and the errata
of the paper.
"""

import itertools
import math
from collections import Counter
from dataclasses import replace

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
)
from verax.mechanism import Phases
from verax.papers.shuffling_and_batch_clipping import model as paper_000_model
from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.guarantee import Guarantee
from verax.privacy.numerics.roots import CROSSING_TOLERANCE
from verax.privacy.samplers.base import ProtectedGroup, neighbour_shift, pricing_of
from verax.privacy.strong.curve import StrongCurve, strong_analysis, strong_tradeoff

DELTA = 1e-5
CLIPPINGS = [Individual(), Batch(), Mixed(groups=3)]


def epsilon(run, group=1, population=None, delta=DELTA, **more):
    low, high = strong_analysis(run, group, population, **more).curve.epsilon(delta, 1e-3)
    assert low <= high
    return low, high


# --- units and closed forms -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clipping", "relation", "unit"),
    [
        (Individual(), "zero-out", 1.0),
        (Individual(), "replace", 2.0),
        (Batch(), "zero-out", 2.0),
        (Batch(norm=3.0), "replace", 2.0),
        (Mixed(groups=4), "zero-out", 2.0),
        (Mixed(groups=4), "replace", 2.0),
    ],
)
@pytest.mark.parametrize("reshuffle", [True, False])
def test_one_shuffled_record_is_gaussian(clipping, relation, unit, reshuffle):
    """Lemma F.2: G_{sqrt(E)/sigma} exactly, where 1/sigma = unit/z: sigma is half the noise
    multiplier in the paper.
    """
    noise, epochs = 3.0, 7
    run = Mechanism(
        Shuffle(batches=40, epochs=epochs, reshuffle=reshuffle), noise, clipping, relation
    )
    mu = unit * math.sqrt(epochs) / noise
    pmf = strong_analysis(run).curve.pmf()
    assert pmf.highs.tolist() == pmf.lows.tolist() == pytest.approx([mu * mu], rel=1e-14)
    low, high = epsilon(run)
    assert low <= gaussian_epsilon(mu, DELTA) * (1 + 1e-12)
    assert high == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-11)
    alpha = np.array([1e-9, 0.01, 0.5, 0.99])
    below, above = strong_tradeoff(run, alpha)
    truth = special.ndtr(-special.ndtri(alpha) - mu)
    assert below.tolist() == pytest.approx(truth.tolist(), rel=1e-11)
    assert above.tolist() == pytest.approx(truth.tolist(), rel=1e-11)
    assert (below <= above).all()
    assert epsilon(run, 1, 1234) == (low, high)  # the population does not matter


def test_the_papers_unit_is_half_of_ours():
    """Noise 2 C sigma on 2 k C is noise z C on k units of 2: sigma = z / 2."""
    run = Mechanism(Shuffle(batches=10), 5.0, Batch())
    assert neighbour_shift(run) == 1.0 / (5.0 / 2.0)
    assert neighbour_shift(replace(run, clipping=Individual())) == 1.0 / 5.0
    assert neighbour_shift(replace(run, clipping=Individual(), relation="replace")) == 1.0 / 2.5


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_one_subsampled_record_is_a_binomial_mixture(clipping):
    sampler, noise = WithoutReplacement(batch=6, population=600, steps=300), 4.0
    curve = strong_analysis(Mechanism(sampler, noise, clipping)).curve
    chances = stats.binom(300, 0.01).pmf(np.arange(60))
    for eps in (0.5, 2.0, 10.0):
        exact = sum(
            p * gaussian_delta(2.0 * math.sqrt(k) / noise, eps) for k, p in enumerate(chances) if k
        )
        low, high = curve.delta(eps, 1e-3)
        assert low <= exact * (1 + 1e-10)
        assert exact <= high * (1 + 1e-10)
        assert high - low <= 1e-9 * high


@pytest.mark.parametrize("group", [2, 5, 9])
def test_batch_clipping_with_shuffling_is_at_least_the_gaussian(group):
    """Lemma F.4's lower bound G_{sqrt(gE)/sigma}, which is right."""
    run = Mechanism(Shuffle(batches=12, epochs=3), 6.0, Batch())
    mu = 2.0 * math.sqrt(group * 3) / 6.0
    assert epsilon(run, group, 120)[1] < gaussian_epsilon(mu, DELTA)
    if group <= 12:
        assert epsilon(run, group)[1] == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-10)
    alpha = np.linspace(0.01, 0.99, 9)
    assert (
        strong_tradeoff(run, alpha, group, 120)[0] > special.ndtr(-special.ndtri(alpha) - mu)
    ).all()


def test_fixed_batches_are_the_same_for_both_adversaries():
    for clipping in CLIPPINGS[:2]:
        for relation in ("zero-out", "replace"):
            run = Mechanism(Deterministic(batches=5, epochs=4), 3.0, clipping, relation)
            ours = epsilon(run, 7)
            standard = run.guarantee(group=7).epsilon(DELTA)
            assert ours == pytest.approx((standard.lower, standard.upper), rel=1e-9)


def test_random_allocation_of_one_record():
    run = Mechanism(RandomAllocation(times=3, steps=20, epochs=2), 2.0)
    assert epsilon(run)[1] == pytest.approx(gaussian_epsilon(math.sqrt(6) / 2, DELTA), rel=1e-10)
    assert epsilon(run, 4, orthogonal=True)[1] == pytest.approx(
        gaussian_epsilon(math.sqrt(24) / 2, DELTA), rel=1e-10
    )


# --- against a simulation and the standard adversary ----------------------------------------------


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_an_attack_that_sees_the_sampling(clipping):
    """The likelihood-ratio test at one threshold, simulated with real batches and real noise."""
    sampler, group, population, noise, threshold = Shuffle(batches=4, epochs=2), 3, 13, 4.0, 0.8
    run = Mechanism(sampler, noise, clipping)
    rng, runs, unit = np.random.default_rng(7), 4000, neighbour_shift(run)
    squares = []
    for _ in range(runs):
        total = 0
        for batch in sampler.draw(population, rng):
            hits = int((batch < group).sum())
            match clipping:
                case Batch():
                    hits = min(hits, 1)
                case Mixed(groups=groups):
                    hits = len(set(rng.integers(groups, size=hits).tolist()))
            total += hits * hits
        squares.append(total)
    mu = unit * np.sqrt(np.array(squares, dtype=float))
    scores = mu * rng.standard_normal(runs) - mu * mu / 2  # log likelihood ratio without the group
    alarms = float((scores > threshold).mean())
    misses = float((mu * rng.standard_normal(runs) + mu * mu / 2 <= threshold).mean())
    low, high = strong_analysis(run, group, population).curve.tradeoff(alarms)
    assert misses == pytest.approx(low, abs=6 * math.sqrt(0.25 / runs) * 2)
    assert high - low < 1e-9
    pmf = pricing_of(sampler).touched_clip_groups(run, ProtectedGroup(group, population=population))
    found = Counter(squares)
    for value, chance in zip(pmf.lows, pmf.weights, strict=True):
        assert (
            abs(found[round(value)] - runs * chance)
            <= 5 * math.sqrt(runs * chance * (1 - chance)) + 1e-6
        )


RUNS = [
    Mechanism(Poisson(rate=0.01, steps=400), 2.0),
    Mechanism(Poisson(rate=0.01, steps=400), 2.0, relation="replace"),
    Mechanism(Poisson(rate=0.01, steps=400), 2.0, Batch()),
    Mechanism(Poisson(rate=0.01, steps=400), 2.0, Mixed(groups=4)),
    Mechanism(Poisson(rate=1.0, steps=3), 2.0),
    Mechanism(WithoutReplacement(batch=10, population=1000, steps=300), 4.0),
    Mechanism(WithoutReplacement(batch=10, population=1000, steps=300), 4.0, Batch(), "zero-out"),
    Mechanism(Shuffle(batches=50, epochs=3), 2.0),
    Mechanism(Shuffle(batches=50, epochs=3), 2.0, Mixed(groups=2), "replace"),
    Mechanism(BallsInBins(bins=50, epochs=3), 2.0),
    Mechanism(Deterministic(batches=50, epochs=3), 2.0, Mixed(groups=3)),
]


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize(
    "run", RUNS, ids=lambda m: f"{type(m.sampler).__name__}-{type(m.clipping).__name__}"
)
def test_what_the_standard_adversary_achieves_the_strong_one_does_too(run, group):
    """Knowing more cannot hurt: A0's attacks stay below A1's upper bound, and exact A0 below A1."""
    ours = epsilon(run, group, 1000)
    standard = run.guarantee(group=group).epsilon(DELTA)
    assert standard.lower <= ours[1] * (1 + 1e-9)
    if isinstance(run.sampler, Poisson) or group == 1:
        assert standard.upper <= ours[1] * (1 + 2e-3)


def test_a1_is_a_better_bound_than_the_worst_places():
    """Shuffled groups: fixed batches put all eight records into one; A1's pmf knows that they are
    not.
    """
    run = Mechanism(Shuffle(batches=1000, epochs=10), 4.0)
    worst = gaussian_epsilon(8 * math.sqrt(10) / 4.0, DELTA)
    assert epsilon(run, 8)[1] < worst / 4


@pytest.mark.parametrize("reshuffle", [True, False])
@pytest.mark.parametrize("group", [2, 6, 11])
def test_without_a_population_the_answer_holds_for_all(group, reshuffle):
    """Individual clipping: balls in bins is the limit of large populations and the largest
    (docs).
    """
    run = Mechanism(Shuffle(batches=6, epochs=2, reshuffle=reshuffle), 3.0)
    for clipping in (Individual(), Batch(), Mixed(groups=2)):
        this = replace(run, clipping=clipping)
        most = epsilon(this, group)[1]
        found = [epsilon(this, group, people)[1] for people in (max(6, group), 12, 13, 50, 10**6)]
        assert max(found) <= most * (1 + 1e-9)
        if isinstance(clipping, Individual):
            # of 11 or of 12 records it is in the same batches: equal, up to a root's accuracy
            if group == 11:
                assert found[1] == pytest.approx(
                    found[0], rel=0.0, abs=CROSSING_TOLERANCE * (1 + 2 * found[0])
                )
                found = found[1:]
            assert all(a < b for a, b in itertools.pairwise(found))
            assert max(found) == pytest.approx(most, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(CLIPPINGS),
    st.integers(1, 6),
    st.floats(0.5, 8.0),
    st.integers(1, 4),
    st.sampled_from(["shuffle", "subset", "poisson", "bins"]),
)
def test_monotone(clipping, group, noise, epochs, kind):
    samplers = {
        "shuffle": lambda e: Shuffle(batches=9, epochs=e),
        "subset": lambda e: WithoutReplacement(batch=4, population=36, steps=9 * e),
        "poisson": lambda e: Poisson(rate=0.1, steps=9 * e),
        "bins": lambda e: BallsInBins(bins=9, epochs=e),
    }
    run = Mechanism(samplers[kind](epochs), noise, clipping)
    here = epsilon(run, group, 36)
    assert here[1] - here[0] <= 1e-6 * here[1]
    assert epsilon(run, group + 1, 36)[1] >= here[0]  # theorem 5.6: larger groups, less privacy
    assert epsilon(replace(run, noise_multiplier=1.1 * noise), group, 36)[0] < here[1]
    assert epsilon(replace(run, sampler=samplers[kind](epochs + 1)), group, 36)[1] > here[0]
    curve = strong_analysis(run, group, 36).curve
    low, high = curve.delta(here[1], 1e-3)
    assert low <= DELTA * (1 + 1e-9)
    assert high == pytest.approx(DELTA, rel=1e-6)


# --- several phases, no noise, orthogonal records, large groups -----------------------------------


def test_phases_add_up():
    first = Mechanism(Shuffle(batches=10, epochs=4), 3.0)
    second = Mechanism(Shuffle(batches=20, epochs=2), 2.0, Batch())
    mu = math.sqrt(4 / 9 + 4 * 2 / 4)
    low, high = epsilon(first + second)
    assert (low, high) == pytest.approx((gaussian_epsilon(mu, DELTA),) * 2, rel=1e-11)
    halves = (
        Mechanism(WithoutReplacement(6, 60, 50), 3.0),
        Mechanism(WithoutReplacement(6, 60, 70), 3.0),
    )
    whole = Mechanism(WithoutReplacement(6, 60, 120), 3.0)
    assert epsilon(halves[0] + halves[1], 3) == pytest.approx(epsilon(whole, 3), rel=1e-9)


def test_phases_of_incommensurable_noise():
    """c^2/9 + c'^2 pi: two binomial pmfs on lattices that share no step, against the double sum."""
    first = Mechanism(WithoutReplacement(6, 60, 30), 6.0)
    second = Mechanism(WithoutReplacement(6, 60, 20), 2.0 / math.sqrt(math.pi))
    low, high = strong_analysis(first + second).curve.delta(30.0, 1e-3)
    a, b = stats.binom(30, 0.1).pmf(np.arange(31)), stats.binom(20, 0.1).pmf(np.arange(21))
    exact = sum(
        p * q * gaussian_delta(math.sqrt(i / 9 + j * math.pi), 30.0)
        for i, p in enumerate(a)
        for j, q in enumerate(b)
    )
    assert low <= exact <= high
    assert high - low < 5e-3 * high


def test_without_noise_whoever_is_sampled_is_seen():
    bare = Mechanism(WithoutReplacement(batch=2, population=10, steps=3), 0.0)
    seen = 1 - 0.8**3
    low, high = strong_analysis(bare).curve.delta(5.0, 1e-3)
    assert low <= seen <= high
    assert high - low < 1e-9
    assert strong_analysis(bare).curve.epsilon(0.4, 1e-3) == (math.inf, math.inf)
    assert strong_analysis(bare).curve.estimate(0.4) == math.inf
    assert strong_analysis(bare).curve.epsilon(0.5, 1e-3) == (0.0, 0.0)
    assert strong_analysis(bare).curve.tradeoff(0.0) == pytest.approx((1 - seen, 1 - seen))
    assert strong_analysis(bare).curve.tradeoff(0.256) == pytest.approx((1 - seen - 0.256,) * 2)
    both = bare + Mechanism(Shuffle(batches=3), 2.0, relation="replace")
    low, high = strong_analysis(both).curve.delta(1.0, 1e-3)
    exact = seen + (1 - seen) * gaussian_delta(1.0, 1.0)
    assert low <= exact <= high
    assert high == pytest.approx(exact, rel=1e-9)
    always = Mechanism(Shuffle(batches=3), 0.0)
    assert strong_analysis(always).curve.delta(9.0, 1e-3) == (pytest.approx(1.0), 1.0)
    assert strong_analysis(always).curve.tradeoff(0.3) == (
        pytest.approx(0.0, abs=1e-12),
        pytest.approx(0.0, abs=1e-12),
    )


def test_orthogonal_records_count_once():
    shuffled = Mechanism(Shuffle(batches=4, epochs=3), 5.0)
    assert epsilon(shuffled, 6, 40, orthogonal=True)[1] == pytest.approx(
        gaussian_epsilon(math.sqrt(18) / 5, DELTA), rel=1e-10
    )
    drawn = Mechanism(Poisson(rate=0.1, steps=50), 5.0)
    alone = Mechanism(Poisson(rate=0.1, steps=300), 5.0)
    assert epsilon(drawn, 6, orthogonal=True) == pytest.approx(epsilon(alone), rel=1e-9)
    assert epsilon(drawn, 6, orthogonal=True)[1] < epsilon(drawn, 6)[0]
    clipped = replace(drawn, clipping=Batch())
    assert epsilon(clipped, 6, orthogonal=True) == epsilon(clipped, 6)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_groups_too_large_to_follow_get_a_range(clipping, monkeypatch):
    run = Mechanism(Shuffle(batches=5, epochs=2), 40.0, clipping)
    exact = epsilon(run, 7, 50)
    monkeypatch.setattr("verax.privacy.strong.curve.MOST_TOGETHER", 3)
    monkeypatch.setattr("verax.privacy.strong.curve.MOST_IN_BATCHES", 3)
    low, high = epsilon(run, 7, 50)
    assert low <= exact[0]
    assert exact[1] <= high
    assert low < high


def test_buffers():
    run = Mechanism(BufferedShuffle(batches=6, buffer=2, epochs=2), 4.0)
    assert epsilon(run)[1] == pytest.approx(gaussian_epsilon(math.sqrt(2) / 4, DELTA), rel=1e-10)
    low, high = epsilon(run, 3)
    assert low == pytest.approx(gaussian_epsilon(math.sqrt(6) / 4, DELTA), rel=1e-10)
    assert high == pytest.approx(gaussian_epsilon(3 * math.sqrt(2) / 4, DELTA), rel=1e-10)


def test_persistent_mixed_batches_with_many_repeats_get_a_range():
    run = Mechanism(Shuffle(batches=30, epochs=200, reshuffle=False), 90.0, Mixed(groups=4))
    low, high = epsilon(run, 4, 300)
    # the same mu
    few = Mechanism(Shuffle(batches=30, epochs=50, reshuffle=False), 45.0, Mixed(groups=4))
    inside = epsilon(few, 4, 300)
    assert low < inside[0] <= inside[1] < high


# --- numerics -------------------------------------------------------------------------------------


def test_many_rounds_in_few_cells():
    """Merged cells keep a bracket that refines itself when more is asked for."""
    run = Mechanism(Poisson(rate=0.3, steps=3_000_000), 900.0)
    curve = strong_analysis(run).curve
    low, high = curve.epsilon(DELTA, 1e-3)
    finer = curve.epsilon(DELTA, 1e-6)
    assert low <= finer[0] <= finer[1] <= high
    assert finer[1] - finer[0] < (high - low) / 4
    normal = gaussian_epsilon(math.sqrt(0.9e6) / 900.0, DELTA)
    assert finer == pytest.approx((normal, normal), rel=1e-3)


@pytest.mark.parametrize("delta", [0.3, 1e-12, 1e-40, 1e-100])
def test_all_deltas(delta):
    run = Mechanism(WithoutReplacement(batch=10, population=1000, steps=1000), 5.0)
    low, high = epsilon(run, 3, delta=delta)
    assert 0.0 <= low <= high < math.inf
    if delta >= 1e-40:
        assert high - low <= 1e-3 * high


def test_tiny_deltas_keep_their_digits():
    """delta(40) of a binomial mixture in 40 digits."""
    import mpmath

    curve = strong_analysis(
        Mechanism(WithoutReplacement(batch=1, population=10, steps=12), 3.0)
    ).curve
    with mpmath.workdps(40):
        total = mpmath.mpf(0)
        for k in range(1, 13):
            mu = mpmath.mpf(2) * mpmath.sqrt(k) / 3
            gain = mpmath.ncdf(mu / 2 - 40 / mu) - mpmath.exp(40) * mpmath.ncdf(-mu / 2 - 40 / mu)
            total += (
                mpmath.binomial(12, k)
                * mpmath.mpf("0.1") ** k
                * mpmath.mpf("0.9") ** (12 - k)
                * gain
            )
    low, high = curve.delta(40.0, 1e-3)
    assert low <= total <= high
    assert high < 1e-50
    assert high - low < 1e-9 * high


def test_large_runs_are_narrow():
    """60000 records, batches of 64, 100 epochs, groups of 32."""
    for sampler in (Shuffle(batches=938, epochs=100), WithoutReplacement(64, 60_000, 93_750)):
        low, high = epsilon(Mechanism(sampler, 4.0, Individual(), "replace"), 32, 60_000)
        assert high - low <= 1e-6 * high
    assert (low, high) == pytest.approx((540.2934, 540.2934), rel=1e-6)


def test_it_fits_a_guarantee():
    phases = Phases((Mechanism(Shuffle(batches=20, epochs=2), 3.0),))
    found = strong_analysis(phases, 3, 100)
    curves = [found.curve]
    guarantee = Guarantee(phases, 3, curves, curves, found.upper_by, found.lower_by)
    bracket = guarantee.epsilon(DELTA)
    assert (bracket.lower, bracket.upper) == epsilon(phases, 3, 100)
    assert "A1" in bracket.upper_by
    assert "A1" in guarantee.statement(DELTA)
    drawn = guarantee.tradeoff()
    low, high = strong_tradeoff(phases, [0.05, 0.3], 3, 100)
    assert (drawn([0.05, 0.3]) <= high).all()
    assert drawn([0.05, 0.3]).tolist() == pytest.approx(low.tolist(), abs=2e-3)


# --- the paper's ranges ---------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "sigma"), [(20, 2.0), (50, 2.0), (20, 1.0), (100, 2.0)])
def test_lemma_e2_is_no_bound(epochs, sigma):
    """E = 20, sigma = 2: it allows epsilon 12.586 at delta 1e-5; the run has 13.187. Its upper end
    survived.
    """
    population, batch = 60_000, 64
    pmf = paper_000_model.subsampling(population, 1, batch, population * epochs // batch, 1).scaled(
        sigma**-2
    )
    curve, spread = StrongCurve(lambda _: pmf), math.sqrt(epochs / 2)
    tail = math.exp(-epochs)
    claimed = gaussian_epsilon(math.sqrt(epochs + spread) / sigma, DELTA - tail)
    assert curve.epsilon(DELTA, 1e-6)[0] > claimed * 1.005
    if (epochs, sigma) == (20, 2.0):
        assert claimed == pytest.approx(12.586, abs=1e-3)
        assert curve.epsilon(DELTA, 1e-6)[0] == pytest.approx(13.1875, abs=1e-3)
    mild = math.sqrt(epochs - spread) / sigma
    for alpha in (1e-12, 1e-6, 1e-3, 0.05, 0.3, 0.7):
        assert curve.tradeoff(alpha)[1] < tail + (1 - tail) * special.ndtr(
            -special.ndtri(alpha) - mild
        )


def test_a_curve_from_the_printed_occupancy_law_promises_too_much():
    """Lemma F.4 for ten batches of eight and g = 4, sigma = 1: f(.05) = .462 from the printed pmf,
    .415 in truth.
    """
    from verax.papers.shuffling_and_batch_clipping.errata import printed_occupancy

    wrong = StrongCurve(lambda _: printed_occupancy(10, 4))
    run = Mechanism(Shuffle(batches=10), 2.0, Batch())
    right = strong_analysis(run, 4, 80).curve
    assert wrong.tradeoff(0.05)[0] == pytest.approx(0.4622, abs=1e-4)
    assert right.tradeoff(0.05)[1] == pytest.approx(0.4147, abs=1e-4)
    assert right.epsilon(DELTA, 1e-6)[0] > wrong.epsilon(DELTA, 1e-6)[1]


def test_the_tail_of_theorem_f1_needs_a_condition():
    """u = g^2 / (N/s - g - g^2) is -8.64 for 32 records in batches of 64; where it is a probability
    it is right.
    """
    assert pytest.approx(-8.64, abs=0.01) == 32**2 / (60_000 / 64 - 32 - 32**2)
    for group in (2, 8, 20):
        tail = group**2 / (1000 - group - group**2)
        assert paper_000_model.shuffling(60_000, 60, 1, 1, group).below(group)[1] <= tail


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "group", "population", "message"),
    [
        (
            Mechanism(TruncatedPoisson(0.1, 5, 4, 30), 1.0),
            1,
            None,
            "no analysis for TruncatedPoisson",
        ),
        (
            Mechanism(RandomAllocation(2, 8), 1.0),
            2,
            None,
            "no analysis of RandomAllocation for groups, got group=2",
        ),
        (
            Mechanism(Shuffle(3), 1.0, relation="add-remove"),
            1,
            None,
            "use relation='zero-out' or 'replace'",
        ),
        (
            Mechanism(WithoutReplacement(2, 9, 1), 1.0, relation="add-remove"),
            1,
            None,
            "fixed batch sizes",
        ),
        (Mechanism(Deterministic(3), 1.0, relation="add-remove"), 1, None, "fixed batch sizes"),
        (
            Mechanism(BufferedShuffle(3, 2), 1.0, relation="add-remove"),
            1,
            None,
            "fixed batch sizes",
        ),
    ],
)
def test_no_guarantee(run, group, population, message):
    with pytest.raises(NoGuarantee, match=message):
        strong_analysis(run, group, population)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": 0}, "group must be a whole number of at least 1, got 0"),
        ({"population": 0}, "population must be a whole number of at least 1, got 0"),
        ({"population": 2}, "population must be at least the number of batches, 3, got 2"),
        ({"group": 9, "population": 8}, "group must be at most the population, 8, got 9"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        strong_analysis(Mechanism(Shuffle(3), 1.0), **arguments)


def test_bad_false_alarm_rates():
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\], got 1.5"):
        strong_tradeoff(Mechanism(Shuffle(3), 1.0), [0.5, 1.5])
    with pytest.raises(ValueError, match="group must be at most the population, 5, got 6"):
        strong_analysis(Mechanism(WithoutReplacement(2, 5, 1), 1.0), 6)
