"""Simulation with a stated confidence: right where the truth is known, honest about what it cannot see."""

from __future__ import annotations

import math

import monte_carlo
import numpy as np
import pytest
from monte_carlo import estimate
from scipy import special, stats

from verax import BallsInBins, Batch, Individual, Mechanism, NoGuarantee, Poisson, RandomAllocation
from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon


def bins(count: int, noise: float, epochs: int = 1) -> Mechanism:
    return Mechanism(BallsInBins(count, epochs), noise)


# --- inside what is proved ------------------------------------------------------------------------

RUNS = [
    (bins(2, 2.0), 0.3),
    (bins(10, 1.0), 1.0),
    (bins(100, 1.0), 0.85),
    (bins(100, 0.5), 4.0),
    (bins(30, 20.0), 0.03),
    (bins(20, 1.0, epochs=3), 1.5),
    (Mechanism(RandomAllocation(3, 12), 2.0), 0.8),
    (Mechanism(BallsInBins(10), 2.0, Batch()), 1.0),
]


@pytest.mark.parametrize(("mechanism", "epsilon"), RUNS, ids=[repr(m.sampler) for m, _ in RUNS])
def test_delta_agrees_with_what_is_proved(mechanism, epsilon):
    seen = estimate(mechanism, epsilon=epsilon, trials=20_000, insecure_seed=1)
    proved = mechanism.guarantee().delta(epsilon)
    assert seen.lower <= proved.upper
    assert proved.lower <= seen.upper
    assert seen.lower > 0.0
    assert "Clopper-Pearson" in seen.upper_by


@pytest.mark.parametrize(
    ("bins_", "noise", "delta", "width"),
    [(100, 1.0, 1e-6, 0.2), (1000, 0.5, 1e-6, 0.05), (7, 5.0, 1e-9, 0.1)],
)
def test_epsilon_at_small_deltas(bins_, noise, delta, width):
    """Far below one over the number of trials: that is what the tilts are for."""
    seen = estimate(
        bins(bins_, noise), delta=delta, trials=10_000, directions=("remove",), insecure_seed=3
    )
    proved = bins(bins_, noise).guarantee().epsilon(delta)
    assert seen.lower <= proved.upper
    assert proved.lower <= seen.upper
    assert seen.width <= width * proved.upper


def test_absent_against_present_at_small_deltas():
    seen = estimate(bins(100, 1.0), delta=1e-9, trials=10_000, directions=("add",), insecure_seed=3)
    backwards = bins(100, 1.0).guarantee().uppers[1].epsilon(1e-9, 1e-3)
    assert seen.lower <= backwards[1]
    assert backwards[0] <= seen.upper
    assert seen.width <= 0.02 * seen.upper


@pytest.mark.parametrize("sampler", [BallsInBins(1, epochs=4), RandomAllocation(4, 4)])
def test_every_round_is_gaussian(sampler):
    mechanism = Mechanism(sampler, 2.0)
    for epsilon in (0.2, 1.0):
        seen = estimate(mechanism, epsilon=epsilon, trials=20_000, insecure_seed=4)
        assert seen.lower <= gaussian_delta(1.0, epsilon) <= seen.upper
        assert seen.width <= 0.1
    at = estimate(mechanism, delta=0.05, trials=20_000, insecure_seed=4)
    assert at.lower <= gaussian_epsilon(1.0, 0.05) <= at.upper


# --- the confidence -------------------------------------------------------------------------------


def test_the_interval_covers_as_often_as_it_says():
    """Low confidence and few trials, so that misses would show: 300 simulations of a known value."""
    truth = bins(5, 1.0).guarantee().delta(0.5)
    level = 0.5
    ends = [
        estimate(
            bins(5, 1.0),
            epsilon=0.5,
            trials=150,
            confidence=level,
            directions=("remove",),
            insecure_seed=seed,
        )
        for seed in range(300)
    ]
    hits = sum(end.lower <= truth.upper and truth.lower <= end.upper for end in ends)
    assert hits >= stats.binom.ppf(1e-4, 300, level)
    assert hits < 300  # and it is not vacuous
    spans = [
        estimate(
            bins(5, 1.0),
            delta=0.05,
            trials=150,
            confidence=level,
            directions=("remove",),
            insecure_seed=seed,
        )
        for seed in range(100)
    ]
    epsilon = bins(5, 1.0).guarantee().epsilon(0.05)
    hits = sum(span.lower <= epsilon.upper and epsilon.lower <= span.upper for span in spans)
    assert hits >= stats.binom.ppf(1e-4, 100, level)


def test_more_trials_narrow_the_bracket_and_more_confidence_widens_it():
    few, many = (
        estimate(bins(10, 1.0), epsilon=1.0, trials=n, insecure_seed=0).width
        for n in (2_000, 50_000)
    )
    assert many < 0.4 * few
    bold, timid = (
        estimate(bins(10, 1.0), epsilon=1.0, trials=5_000, confidence=c, insecure_seed=0).width
        for c in (0.5, 0.999999)
    )
    assert bold < 0.6 * timid
    assert (
        estimate(bins(10, 1.0), epsilon=1.0, trials=100, confidence=0.9).evidence
        == "monte-carlo, confidence 0.9"
    )


def test_a_seed_repeats_and_its_absence_does_not():
    a, b = (estimate(bins(10, 1.0), epsilon=1.0, trials=5_000, insecure_seed=7) for _ in range(2))
    assert (a.lower, a.upper) == (b.lower, b.upper)
    fresh = {estimate(bins(10, 1.0), epsilon=1.0, trials=5_000).lower for _ in range(4)}
    assert len(fresh) > 1


# --- the tilts ------------------------------------------------------------------------------------


def test_moments_of_the_average_against_enumeration():
    """E S^k over all k-tuples of three rounds."""
    shift = 0.9
    for power in (1, 2, 3, 4):
        total = 0.0
        for index in np.ndindex(*([3] * power)):
            hits = np.bincount(index, minlength=3)
            total += math.exp(0.5 * shift**2 * float((hits * (hits - 1)).sum()))
        law = monte_carlo._Powers(monte_carlo._Race(1, 3, 2, shift), power)
        assert law.log_moment == pytest.approx(2.0 * math.log(total / 3**power), abs=1e-12)


def test_tuples_are_drawn_with_their_weights():
    """Three entries over four rounds: all apart, two alike, all alike."""
    shift = 0.8
    law = monte_carlo._Powers(monte_carlo._Race(1, 4, 1, shift), 3)
    hits = law._hits(40_000, np.random.default_rng(0))
    assert (hits.sum(axis=1) == 3).all()
    most = np.bincount(hits.max(axis=1), minlength=4)[1:] / 40_000
    weights = np.array([24.0, 36.0 * math.exp(shift**2), 4.0 * math.exp(3.0 * shift**2)])
    assert most == pytest.approx(weights / weights.sum(), abs=0.012)


def test_fading_scores_have_their_density():
    law = monte_carlo._Fading(monte_carlo._Race(1, 5, 1, 1.0), math.log(40.0))
    scores = law._scores((20_000, 1), np.random.default_rng(0)).reshape(-1)
    x = np.linspace(-8.0, 5.0, 20_001)
    density = np.exp(-x * x / 2.0 - 8.0 * np.exp(x - 0.5))
    cdf = np.cumsum(density) / density.sum()
    assert stats.kstest(scores, lambda s: np.interp(s, x, cdf)).pvalue > 1e-4
    assert law.log_norm == pytest.approx(
        5.0 * math.log(density.sum() * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)), abs=1e-9
    )


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_no_outcome_exceeds_its_bound(direction):
    """What turns to a coin must lie in [0, 1]: evaluated on a fine grid of ratios."""
    for epsilon in (0.1, 0.7, 2.0):
        law = monte_carlo._tilted(monte_carlo._Race(1, 50, 1, 1.0), direction, epsilon)
        s, a = np.exp(np.linspace(-8.0, 8.0, 4001)), math.exp(epsilon)
        if direction == "remove":
            values = np.exp(law.log_moment) * np.maximum(s - a, 0.0) / s**law.power
        else:
            values = np.maximum(1.0 - a * s, 0.0) * np.exp(
                law.log_norm + math.exp(law.log_rate) * np.minimum(s, 1.0 / a)
            )
        bound = math.exp(law.log_bound(epsilon))
        assert values.max() <= bound * (1.0 + 1e-12)
        assert values.max() >= 0.9 * bound


def test_the_ratio_is_the_average_over_sets():
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((50, 6))
    y = np.exp(0.7 * scores - 0.245)
    for times in (1, 2, 4, 6):
        found = monte_carlo._log_ratio(monte_carlo._Race(times, 6, 1, 0.7), scores)
        # the coefficients of prod (1 + Y_t z)
        exact = [np.poly(-row)[times] / special.comb(6, times) for row in y]
        assert np.exp(found) == pytest.approx(exact, rel=1e-10)


def test_nothing_is_claimed_below_the_epsilon_where_the_bound_holds(monkeypatch):
    """Coins are made for a start and above; told to start too high, the answer must not reach below it."""
    true = bins(10, 1.0).guarantee().epsilon(1e-3).upper
    monkeypatch.setattr(monte_carlo, "_place", lambda *_: 1.1 * true)
    seen = estimate(
        bins(10, 1.0), delta=1e-3, trials=5_000, directions=("remove",), insecure_seed=0
    )
    assert seen.lower == 0.0
    assert seen.upper == 1.1 * true


@pytest.mark.parametrize(("rounds", "noise"), [(10, 1.0 / 15.0), (100, 0.25)])
@pytest.mark.filterwarnings("error")
def test_products_that_leave_the_range_of_doubles(rounds, noise):
    """Every round is hit, so the truth is a Gaussian mechanism, of epsilon 1185 and 850."""
    truth = gaussian_epsilon(math.sqrt(rounds) / noise, 0.1)
    for directions in (("remove",), ("add",)):
        run = Mechanism(RandomAllocation(rounds, rounds), noise)
        seen = estimate(run, delta=0.1, trials=2_000, directions=directions, insecure_seed=1)
        assert seen.lower <= truth <= seen.upper
        assert seen.width <= 0.02 * truth


def test_the_ratio_in_logarithms_is_the_same():
    scores = np.random.default_rng(3).standard_normal((20, 9))
    for times in (2, 5, 9):
        logs = 0.8 * scores - 0.32
        found = monte_carlo._log_average(logs, np.arange(1.0, times + 1.0))
        assert found == pytest.approx(
            monte_carlo._log_ratio(monte_carlo._Race(times, 9, 1, 0.8), scores), abs=1e-12
        )


@pytest.mark.parametrize("epsilon", [50.0, 700.0, 720.0, 1e5, 1e300])
@pytest.mark.filterwarnings("error")
def test_deltas_too_small_for_doubles_are_not_said_to_be_zero(epsilon):
    seen = estimate(bins(10, 1.0), epsilon=epsilon, trials=1_000, insecure_seed=1)
    assert (seen.lower, seen.upper) == (0.0, 1e-300)


@pytest.mark.filterwarnings("error")
def test_little_noise_and_large_epsilons():
    mechanism = bins(1, 0.025)  # a Gaussian of epsilon 880 at delta 0.02
    for directions in (("remove",), ("add",)):
        seen = estimate(mechanism, delta=0.02, trials=5_000, directions=directions, insecure_seed=2)
        assert seen.lower <= gaussian_epsilon(40.0, 0.02) <= seen.upper < math.inf
        at = estimate(
            mechanism, epsilon=850.0, trials=5_000, directions=directions, insecure_seed=2
        )
        assert at.lower <= gaussian_delta(40.0, 850.0) <= at.upper <= 1.5 * at.lower


# --- what it cannot see, and what it refuses ------------------------------------------------------


def test_what_is_out_of_sight_is_said_to_be():
    allocation = Mechanism(RandomAllocation(3, 30), 2.0)
    assert estimate(allocation, delta=1e-9, trials=1_000, insecure_seed=0).upper == math.inf
    assert estimate(allocation, epsilon=20.0, trials=1_000, insecure_seed=0).lower == 0.0


def test_refusals_name_what_is_wrong():
    run = bins(10, 1.0)
    with pytest.raises(NoGuarantee, match=r"BallsInBins and RandomAllocation.*got Poisson"):
        estimate(Mechanism(Poisson(0.1, 5), 1.0), epsilon=1.0)
    with pytest.raises(NoGuarantee, match="relation='replace'"):
        estimate(Mechanism(BallsInBins(5), 1.0, relation="replace"), epsilon=1.0)
    with pytest.raises(ValueError, match="noise_multiplier must be positive"):
        estimate(bins(10, 0.0), epsilon=1.0)
    with pytest.raises(ValueError, match="either epsilon or delta"):
        estimate(run)
    with pytest.raises(ValueError, match="either epsilon or delta"):
        estimate(run, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="trials must be"):
        estimate(run, epsilon=1.0, trials=0)
    with pytest.raises(ValueError, match="confidence must lie"):
        estimate(run, epsilon=1.0, confidence=1.0)
    with pytest.raises(ValueError, match="at most 10000000 rounds"):
        estimate(bins(10**8, 1.0), epsilon=1.0)
    with pytest.raises(ValueError, match="directions must be"):
        estimate(run, epsilon=1.0, directions=("sideways",))
    with pytest.raises(ValueError, match=r"directions must be .*, got 5"):
        estimate(run, epsilon=1.0, directions=5)
    with pytest.raises(
        ValueError, match="insecure_seed must be a whole number of at least 0, got -1"
    ):
        estimate(run, epsilon=1.0, insecure_seed=-1)
    with pytest.raises(
        ValueError, match=r"mechanism must be a Mechanism, got Phases.*use guarantee\(\)"
    ):
        estimate(run + run, epsilon=1.0)


@pytest.mark.parametrize(
    ("noise", "clipping", "ends"),
    [
        (1e14, Individual(), "0.02 and 1e.06"),
        (1e-3, Individual(), "0.02 and 1e.06"),
        (0.03, Batch(), "0.04 and 2e.06"),
    ],
)
def test_noise_out_of_range_is_refused(noise, clipping, ends):
    """At noise 1e14 and epsilon 0 rounding once put the upper end 12 % below the truth, .399e-14."""
    with pytest.raises(
        ValueError, match=rf"noise_multiplier must lie between {ends} .*use guarantee\(\)"
    ):
        estimate(Mechanism(BallsInBins(1), noise, clipping), epsilon=0.0)
