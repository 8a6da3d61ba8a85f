"""Curves fall and noise helps, at both ends of the doubles; and an answer depends on its question
alone.

Lower bounds of the larger quantity never exceed upper bounds of the smaller, as both are proved.
Upper bounds alone are computed on grids of their own and need not be ordered more closely than
brackets are narrow.
"""

import itertools
import warnings

import mpmath
import pytest

from verax import (
    BallsInBins,
    Batch,
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

EPSILONS = [0.0, 5e-324, 1e-12, 0.1, 1.0, 10.0, 1e4, 1e8, 1e300, 1.7e308]
DELTAS = [1e-300, 1e-20, 1e-5, 0.3, 0.99]
RUNS = [  # rate, steps, noise, group
    (0.01, 1000, 1.0, 1),
    (0.1, 10, 0.5, 5),
    (0.9, 1, 1.0, 5),
    (0.9, 10, 0.05, 1),
    (1.0, 1000, 1e3, 5),
    (1.0, 1, 1.7e308, 5),
    (0.001, 1, 1.7e308, 2),
    (0.001, 10**6, 5.0, 1),
    (1e-7, 10, 5e-324, 2),
    (1e-12, 10**6, 0.005, 1),
    (0.9, 1000, 1e-100, 1),
    (0.1, 1000, 1e-6, 5),
    (1e-3, 10**6, 1e12, 2),
    (1e-7, 10, 0.3, 5),
    (1e-7, 1000, 0.3, 1),
    (1e-7, 10**6, 1.0, 5),
    (1e-12, 10**7, 0.3, 1),
    (1e-3, 10, 0.02, 2),
    (0.1, 10, 0.02, 5),
    (0.1, 10**6, 1.0, 5),
    (0.9, 10**6, 10.0, 2),
]
WIDTH = 1.0011  # of a bracket, as a ratio: what a printed bound may rise by where the truth stays


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_delta_falls_in_epsilon_and_epsilon_in_delta(run):
    rate, steps, noise, group = run
    guarantee = Mechanism(Poisson(rate, steps), noise).guarantee(group=group)
    deltas = [guarantee.delta(epsilon) for epsilon in EPSILONS]
    for earlier, later in itertools.pairwise(deltas):
        assert 0.0 <= later.lower <= earlier.upper <= 1.0
        assert later.upper <= earlier.upper * WIDTH
    epsilons = [guarantee.epsilon(delta) for delta in DELTAS]
    for earlier, later in itertools.pairwise(epsilons):
        assert 0.0 <= later.lower <= earlier.upper
        assert later.upper <= earlier.upper * WIDTH


@pytest.mark.parametrize(
    ("rate", "steps"),
    [(1e-7, 10), (1e-7, 10**6), (0.001, 100), (0.1, 100), (0.1, 10**5), (1.0, 10)],
)
@pytest.mark.parametrize("delta", [1e-300, 1e-20, 1e-5])
def test_noise_helps_and_rates_rounds_and_groups_hurt(rate, steps, delta):
    def cost(noise=1.0, times=1, group=1, less=1.0):
        return (
            Mechanism(Poisson(rate * less, steps * times), noise)
            .guarantee(group=group)
            .epsilon(delta)
        )

    def rises(*costs):
        for smaller, larger in itertools.pairwise(costs):
            assert 0.0 <= smaller.lower <= larger.upper
            assert smaller.upper <= larger.upper * WIDTH + 1e-9

    rises(
        *(cost(noise) for noise in (1e308, 1e11, 1e9, 10.0, 1.0, 0.3, 0.009, 1e-5, 1e-200, 5e-324))
    )
    once = cost()
    rises(cost(less=0.5), once, cost(times=2))
    rises(once, cost(group=2), cost(group=5))


@pytest.mark.parametrize(
    "sampler",
    [
        Poisson(0.01, 1000),
        BallsInBins(100, 3),
        Shuffle(100, 2),
        TruncatedPoisson(0.01, 100, 20, 1000),
        RandomParticipation(0.1, 0.1, 10, 100),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_an_answer_depends_on_its_question_alone(sampler):
    def fresh():
        return Mechanism(sampler, 1.0).guarantee()

    asked = fresh()
    asked.delta(1.0), asked.delta(0.1), asked.epsilon(1e-9), asked.epsilon(1e-5, rtol=1e-2)
    assert asked.epsilon(1e-5) == fresh().epsilon(1e-5)
    assert asked.delta(0.5) == fresh().delta(0.5)


def test_no_delta_is_left_far_out():
    guarantee = Mechanism(Poisson(0.01, 1000), 1.0).guarantee()
    assert guarantee.delta(1e300).upper <= 1.1e-300
    assert guarantee.delta(1e4).upper <= 1.1e-300


def test_a_client_has_no_more_records_than_it_says():
    run = Mechanism(RandomParticipation(0.1, 0.9, 0, 100), 1.0)
    with pytest.raises(
        ValueError,
        match="group must be at most 1, got 2: RandomParticipation protects records of one",
    ):
        run.guarantee(group=2)
    run = Mechanism(RandomParticipation(0.1, 0.9, 1, 100), 1.0, Batch())
    assert run.guarantee(group=2).delta(5.0).upper > 0.3


def seen_rounds(rate: float, steps: int, noise: float, epsilon: float) -> float:
    """delta of a run with so little noise that the number of rounds joined is seen, in 40-digit
    arithmetic.

    Given that number n, the loss is n log(rate) + (steps - n) log(1 - rate) + n u^2 / 2 and a
    normal of variance n u^2, u = 1 / noise, but for chances far below e^(-u^2 / 8).
    """
    with mpmath.workdps(40):
        rate, u, epsilon = mpmath.mpf(rate), 1 / mpmath.mpf(noise), mpmath.mpf(epsilon)
        total = mpmath.mpf(0)
        for n in range(1, steps + 1):
            chance = mpmath.binomial(steps, n) * rate**n * (1 - rate) ** (steps - n)
            known = n * mpmath.log(rate) + (steps - n) * mpmath.log(1 - rate)
            spread = u * mpmath.sqrt(n)
            far = (known + n * u * u / 2 - epsilon) / spread
            if far > -60:
                total += chance * (
                    mpmath.ncdf(far) - mpmath.exp(epsilon - known) * mpmath.ncdf(far - spread)
                )
        return float(total)


@pytest.mark.parametrize(
    ("rate", "steps", "noise", "epsilon"),
    [
        (0.02, 200, 0.02, 1300.0),
        (0.02, 200, 0.02, 2500.0),
        (0.02, 200, 0.02, 3000.0),
        (0.02, 200, 0.05, 500.0),
        (0.02, 200, 0.01, 20000.0),
        (0.1, 50, 0.012, 30000.0),
        (1e-4, 100, 0.03, 500.0),
    ],
)
def test_low_noise_is_priced_from_both_sides(rate, steps, noise, epsilon):
    truth = seen_rounds(rate, steps, noise, epsilon)
    bracket = Mechanism(Poisson(rate, steps), noise).guarantee().delta(epsilon)
    assert bracket.lower <= truth <= bracket.upper <= bracket.lower * 1.002


EXTREMES = [  # sampler, noise, clipping, relation, group, and epsilon or delta
    (TruncatedPoisson(0.1, 2, 1, 2), 1e-12, Batch(), "add-remove", 1, 1.0),
    (TruncatedPoisson(0.1, 2, 1, 2), 1e-5, Batch(), "add-remove", 1, 1.0),
    (TruncatedPoisson(0.1, 2, 1, 2), 0.1, Batch(), "add-remove", 1, 1e-5),
    (TruncatedPoisson(1e-16, 2, 1, 2), 1e-30, Batch(), "add-remove", 1, 1.0),
    (TruncatedPoisson(0.1, 10, 20, 100), 1.0, Individual(), "add-remove", 2, 1.7e308),
    (WithoutReplacement(1, 4, 1), 1e-9, Batch(), "zero-out", 1, 1e-5),
    (WithoutReplacement(1, 4, 1), 1e-5, Batch(), "zero-out", 1, 1e-5),
    (WithoutReplacement(5, 50, 10), 1.0, Individual(), "replace", 5, 1.7e308),
    (WithoutReplacement(2, 10, 10**7), 0.1, Batch(), "zero-out", 1, 1e-3),
    (RandomParticipation(1e-3, 0.5, 0, 1000), 1e-6, Batch(), "add-remove", 1, 1e-5),
    (RandomParticipation(1e-12, 0.99, 0, 1000), 1e-10, Mixed(1.0, 4), "zero-out", 1, 1e-50),
    (RandomParticipation(0.1, 0.5, 1, 10), 1.0, Individual(), "add-remove", 2, 1e308),
    (RandomAllocation(3, 10, 2), 2.0, Individual(), "zero-out", 2, 1.7e308),
    (Poisson(1e-300, 10**7), 2.0, Individual(), "add-remove", 1, 1.0),
    (Poisson(1e-30, 2), 0.0101, Individual(), "replace", 1, 1e-30),
    (Poisson(1e-30, 10), 0.02, Batch(), "add-remove", 1, 1e-50),
    (Poisson(1e-16, 3), 0.0101, Batch(), "add-remove", 1, 1e-16),
    (Poisson(0.1, 2), 0.01, Mixed(1.0, 4), "replace", 5, 10.0),
    (Deterministic(2, 1), 5e-324, Individual(), "replace", 2, 0.9),
    (Deterministic(1, 1), 5e-324, Batch(), "zero-out", 2, 0.9),
    (Deterministic(1, 10), 1e-310, Batch(), "zero-out", 2, 1e-16),
]


@pytest.mark.parametrize("run", EXTREMES, ids=lambda run: f"{run[0]}-{run[1]}-{run[3]}-{run[4]}")
def test_extremes_are_priced_without_a_warning(run):
    """Many of these took terabytes or hours, or ended in an error of arithmetic."""
    sampler, noise, clipping, relation, group, asked = run
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guarantee = Mechanism(sampler, noise, clipping, relation).guarantee(group)
        found = guarantee.epsilon(asked) if asked < 1.0 else guarantee.delta(asked)
    assert 0.0 <= found.lower <= found.upper
    assert asked < 1.0 or found.upper <= 1.0


@pytest.mark.parametrize("sampler", [Deterministic(1, 10), BallsInBins(3)], ids=str)
def test_adversary_a1_is_priced_at_any_noise(sampler):
    run = Mechanism(sampler, 1e-310, relation="zero-out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run.guarantee(2, adversary="A1").epsilon(1e-16)
    assert 1e270 < found.lower <= found.upper


NOISES = [1e300, 1e9, 5.0, 0.05, 0.02, 0.005, 1e-200]
SETTINGS = [  # sampler, clipping, relation
    (BallsInBins(100, 10), Individual(), "replace"),
    (BallsInBins(2, 2), Mixed(1.0, 4), "add-remove"),
    (BallsInBins(100, 2), Batch(), "zero-out"),
    (RandomAllocation(1, 2, 2), Individual(), "zero-out"),
    (RandomAllocation(3, 10, 1), Individual(), "add-remove"),
    (Shuffle(10, 2), Individual(), "zero-out"),
    (TruncatedPoisson(0.1, 10, 20, 100), Batch(), "add-remove"),
    (WithoutReplacement(5, 50, 10), Individual(), "replace"),
    (RandomParticipation(0.1, 0.5, 3, 10), Batch(), "zero-out"),
    (Poisson(0.01, 1000), Mixed(1.0, 4), "replace"),
    (Poisson(1e-7, 2), Individual(), "replace"),
    (Deterministic(2, 3), Mixed(1.0, 4), "zero-out"),
]
LOOSE = 1.01  # of bounds by different theorems


def rises(brackets):
    for smaller, larger in itertools.pairwise(brackets):
        assert 0.0 <= smaller.lower <= larger.upper
        assert smaller.upper <= larger.upper * LOOSE + 1e-9


@pytest.mark.parametrize("run", SETTINGS, ids=lambda run: f"{run[0]}-{type(run[1]).__name__}")
@pytest.mark.parametrize("delta", [1e-50, 0.9])
def test_noise_helps_under_every_sampler_and_clipping(run, delta):
    sampler, clipping, relation = run
    rises(
        Mechanism(sampler, noise, clipping, relation).guarantee().epsilon(delta) for noise in NOISES
    )


@pytest.mark.parametrize("run", SETTINGS, ids=lambda run: f"{run[0]}-{type(run[1]).__name__}")
@pytest.mark.parametrize("noise", [0.02, 1e9])
def test_curves_fall_under_every_sampler_and_clipping(run, noise):
    sampler, clipping, relation = run
    guarantee = Mechanism(sampler, noise, clipping, relation).guarantee()
    rises(guarantee.delta(epsilon) for epsilon in (1.7e308, 1e4, 30.0, 1.0, 1e-8))
    rises(guarantee.epsilon(delta) for delta in (1 - 1e-9, 0.99, 0.9, 0.1, 1e-5, 1e-50, 1e-300))


@pytest.mark.parametrize(("noise", "delta"), [(1.0, 1e-5), (1e9, 1e-5), (1e9, 1e-100)])
def test_two_records_cost_no_less_than_one(noise, delta):
    run = Mechanism(BallsInBins(10**4, 10), noise, Mixed(1.0, 4))
    rises(run.guarantee(group).epsilon(delta) for group in (1, 2))


@pytest.mark.parametrize(
    ("run", "most"),
    [
        (Mechanism(BallsInBins(10_000, 10), 0.02, relation="replace"), 61_800.0),
        (Mechanism(BallsInBins(2, 2), 0.5, Mixed(1.0, 4)), 1e4),
        (Mechanism(RandomAllocation(1, 2, 2), 5.0, relation="zero-out"), 700.0),
    ],
    ids=str,
)
def test_epsilon_is_finite_wherever_there_is_noise(run, most):
    assert run.guarantee().epsilon(1e-300).upper < most
