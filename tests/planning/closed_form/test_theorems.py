"""Closed forms of 'Proactive DP' against the accountant, exact moments and the paper's numbers."""

import math

import numpy as np
import pytest
from scipy import optimize

from verax import Mechanism, Phases, Poisson
from verax.papers.proactive.varying_sizes import Moment, moment_bound, theorem_b2
from verax.planning.closed_form import theorems
from verax.planning.closed_form.theorems import SampleSizes, Work, theorem_31, theorem_b4
from verax.privacy.renyi import accountant

SETTINGS = 2000
ROWS = [
    (19.29962, 10_000, 5, 31, 31),
    (12.10881, 60_000, 6, 412, 414),
    (6.572, 50_000, 7, 800, 811),
]


def settings(count, seed):
    """Random runs, near enough to what the theorems ask for that about a third are granted."""
    rng = np.random.default_rng(seed)
    while count:
        population = int(10 ** rng.uniform(4.0, 6.0))
        readable = count % 3 == 0  # where theorem 3.1 applies
        epsilon = float(rng.uniform(0.2, 0.5)) if readable else float(10 ** rng.uniform(-1.5, 0.9))
        delta = float(10 ** rng.uniform(-1.0, 0.0)) / population
        epochs = float(rng.uniform(4.5, 10.0)) if readable else float(10 ** rng.uniform(0.0, 1.7))
        least = theorems.sigma(epsilon, delta)
        noise = least * float(rng.choice([0.99, 0.99, 1.0, 1.5]))
        sizes = rng.uniform(1.0, 3.0, int(rng.choice([1, 1, 2, 3])))
        theta = sizes.max() / sizes.mean()
        rounds = (
            theorems.gamma(least, epsilon, epochs)
            * (epochs * theta) ** 2
            / epsilon
            * rng.uniform(0.6, 1.2)
        )
        each = math.ceil(rounds / len(sizes))
        sizes *= epochs * population / each / sizes.sum()
        if each <= 1500 and sizes.max() < population:  # fewer rounds keep the accountant fast
            count -= 1
            yield (
                SampleSizes(population, tuple((float(size), each) for size in sizes)),
                noise,
                epsilon,
                delta,
            )


def test_the_accountant_agrees_with_every_grant():
    granted = dict.fromkeys(("theorem 3.1", "theorem B.4", "theorem B.2"), 0)
    for sizes, noise, epsilon, delta in settings(SETTINGS, seed=7):
        found = [
            theorem_31(sizes.work, noise, epsilon, delta),
            theorem_b4(sizes.work, noise, epsilon, delta),
            theorem_b2(sizes, noise, epsilon, delta),
        ]
        for verdict in filter(None, found):
            granted[verdict.theorem] += 1
            assert (verdict.epsilon, verdict.delta) == (epsilon, delta)
        if any(found):
            spent = sizes.mechanism(noise).guarantee().epsilon(delta, rtol=0.1).upper
            assert spent <= epsilon, (sizes, noise, epsilon, delta)
    assert granted["theorem 3.1"] > 90
    assert min(granted["theorem B.4"], granted["theorem B.2"]) > 200


def test_the_accountant_disagrees_with_a_quarter_of_the_noise():
    """The test above can fail: the theorems are not so loose that any epsilon would pass."""
    noise, epsilon, delta = 6.572 / 4.0, 0.5253, 1 / 50_000
    assert Mechanism(Poisson(800 / 50_000, 437), noise).guarantee().epsilon(delta).lower > epsilon
    assert not theorem_b4(Work(50_000, 437, 7.0), noise, epsilon, delta)


def test_what_b4_grants_b2_grants():
    """B.4 follows from B.2 by ever coarser bounds; here both are computed on their own."""
    both = 0
    for sizes, _, epsilon, delta in settings(600, seed=11):
        if verdict := theorem_b4(sizes.work, theorems.sigma(epsilon, delta), epsilon, delta):
            both += 1
            assert theorem_b2(sizes, verdict.sigma * (1 + 1e-9), epsilon, delta)
    assert both > 100


def test_what_31_grants_b4_grants():
    both = 0
    for sizes, noise, epsilon, delta in settings(2000, seed=13):
        if theorem_31(sizes.work, noise, epsilon, delta):
            both += 1
            assert theorem_b4(sizes.work, noise, epsilon, delta)
    assert both > 70


# --- the functions --------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [1.5, 2.5, 6.0, 50.0])
def test_h_and_g(x):
    a = theorems.h(x)
    assert 2.0 * math.e * math.sqrt(a) / (1.0 - a) == pytest.approx(x, rel=1e-9)
    assert theorems.g(x) == min(a, 1.0 / (math.e * x))


def test_sigma_and_epsilon_are_inverse():
    for noise in (1.5, 6.572, 300.0):
        epsilon = theorems.epsilon_of(noise, 1e-5)
        assert theorems.sigma(epsilon, 1e-5) <= noise
        assert theorems.sigma(epsilon * (1 - 1e-10), 1e-5) > noise


@pytest.mark.parametrize("more", [1e-3, 1e-6, 1e-9, 2e-11])
def test_a_little_more_noise_than_the_square_root_of_two(more):
    noise = math.sqrt(2.0) + more
    epsilon = theorems.epsilon_of(noise, 1e-5)
    assert theorems.sigma(epsilon, 1e-5) <= noise
    assert epsilon == pytest.approx(
        math.log(1e5) / (math.sqrt(2.0) * more), rel=max(more, 0.2e-11 / more)
    )


def test_deltas_whose_inverse_is_too_large():
    assert theorems.sigma(1.0, 5e-324) == pytest.approx(
        math.sqrt(2.0 * (1.0 + 1074.0 * math.log(2.0)))
    )


@pytest.mark.parametrize(
    ("noise", "ratio"), [(19.3, 0.01), (6.0, 0.1), (3.0, 0.5), (2.0, 3.0), (1.5, 40.0)]
)
def test_gamma_is_the_fixed_point(noise, ratio):
    found = theorems.gamma(noise, ratio, 1.0)
    low = ratio / min(theorems.h(noise), theorems.LARGEST_ALPHA) * (1 + 1e-9)
    other = optimize.brentq(lambda x: x - theorems.gamma_at(ratio / x, noise), low, 1e6)
    assert found == pytest.approx(other, rel=1e-7)
    assert found >= theorems.gamma_at(ratio / found, noise)
    assert ratio <= found * theorems.h(noise)  # condition (33)


def test_gamma_starts_as_the_paper_says():
    noise, a = 10.0, 1e-10
    slope = 2.0 + 16.0 * (noise + math.e**3 / noise**2) * math.exp(3.0 / noise**2)
    assert (theorems.gamma_at(a, noise) - 2.0) / a == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize(("noise", "population", "epochs", "batch", "printed"), ROWS)
def test_the_largest_batches(noise, population, epochs, batch, printed):
    """The fixed point of the corrected gamma allows these; the printed one up to 1.4 % more."""
    epsilon = theorems.epsilon_of(noise, 1 / population)

    def largest(value):
        return math.floor(epsilon * population / (value * epochs))

    assert largest(theorems.gamma(noise, epsilon, epochs)) == batch
    top = theorems.h(noise) * (1 - 1e-9)
    wrong = optimize.brentq(
        lambda x: x - printed_gamma(epsilon / epochs / x, noise), epsilon / epochs / top, 1e4
    )
    assert largest(wrong) == printed


def printed_gamma(a, noise):
    tail = noise / (1 - math.sqrt(a)) ** 2 + math.e**3 / noise / (
        noise * (1 - a) - 2 * math.e * math.sqrt(a)
    )
    return 2 / (1 - a) + 16 * a / (1 - a) * tail * math.exp(3 / noise**2)


# --- errata ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1e-4, 0.01, 0.1])
def test_the_first_denominator_of_39(alpha):
    """Substitute r_0 = a sigma in (17): only 1 - a - 2 sqrt(a) gives the same r."""
    noise = 12.0
    u_0, u_1 = (
        2 * math.sqrt(alpha) / (1 - alpha),
        2 * math.e * math.sqrt(alpha) / (noise * (1 - alpha)),
    )
    r = (
        alpha
        * noise
        * 8
        * (1 / (1 - u_0) + math.e**3 / noise**3 / (1 - u_1))
        * math.exp(3 / noise**2)
    )
    right = 2 * r / (1 - alpha) ** 2 + 2 / (1 - alpha)
    assert theorems.gamma_at(alpha, noise) == pytest.approx(right, rel=1e-12)
    assert printed_gamma(alpha, noise) < right * (1 - alpha / 100)


def test_the_ratio_in_the_proof_of_lemma_b3_is_not_u_0():
    """The proof has 2 lambda q e^(lambda/2 sigma^2) / ((1-q) sigma) <= 2 sqrt(lambda q) / ((1-q)
    sigma).
    """
    noise, rate = 10.0, 0.01
    order = math.floor(noise**2 * math.log(1 / (rate * noise)))
    left = 2 * order * rate * math.exp(order / (2 * noise**2)) / ((1 - rate) * noise)
    right = 2 * math.sqrt(order * rate) / ((1 - rate) * noise)
    assert left > 1.4 > 0.4 > right
    assert moment_bound(rate, noise, order)  # what the lemma says is true all the same


def test_more_noise_than_35_asks_for_needs_another_argument_than_the_printed_one():
    """(37) wants a <= 1/(e sigma); from a <= 1/(e s) and sigma >= s it does not follow."""
    epsilon, delta = 2.0, 1e-5
    least = theorems.sigma(epsilon, delta)
    noise = 3.0 * least
    run = Work(100_000, rounds=400.0, epochs=0.95 * theorems.g(least) * 400.0)
    assert run.largest_rate > 1.0 / (math.e * noise)
    sizes = SampleSizes(100_000, ((run.largest_rate * 100_000, 400),))
    assert theorem_b2(sizes, noise, epsilon, delta).condition == "on r_0"


# --- lemma B.3 ------------------------------------------------------------------------------------


def test_the_moment_bound_holds():
    rng = np.random.default_rng(3)
    tightest, bounded = 0.0, 0
    for _ in range(400):
        noise = float(np.exp(rng.uniform(np.log(1.006), np.log(30.0))))
        rate = float(np.exp(rng.uniform(np.log(1e-6), np.log(0.9 / noise))))
        order = max(
            1, int(noise**2 * math.log(1 / (rate * noise)) * rng.choice([1.0, 0.5, rng.uniform()]))
        )
        found = moment_bound(rate, noise, order)
        if isinstance(found, Moment):
            bounded += 1
            exact = float(
                accountant.log_moment([1.0 - rate, rate], [0.0, 1.0 / noise], order + 1.0)[0]
            )
            assert exact <= found.bound
            tightest = max(tightest, exact / found.bound)
    assert bounded > 250
    assert tightest > 0.5  # so the test can fail


def test_the_series_by_adding_up():
    """What is said of both series without adding them up, for every order and rate that the
    theorems use them for.
    """
    for noise in (2.0, 3.3, 5.0, 8.0, 15.0):
        order = math.floor(noise**2) - 1
        for rate in (
            np.geomspace(1e-4, 1.0, 20) * min(theorems.g(noise), theorems.LARGEST_ALPHA) * 0.999
        ):
            u_1 = 2 * math.e * math.sqrt(rate) / (noise * (1 - rate))
            first = second = 0.0
            for t in range(3, order + 2):
                step = (2 * order * rate / ((1 - rate) * noise)) ** (t - 3) * math.exp(
                    (t - 3) * (t + 2) / 2 / noise**2
                )
                first += step / math.prod(range(t, 0, -2))
                second += step / noise ** (t - 3) * (t**t / math.factorial(t))
            share = max(first, second * (1 - u_1) / math.e**3)
            assert share <= theorems.series_share(float(rate), noise, order, u_1) <= 1.0


# --- sizes, refusals, input -----------------------------------------------------------------------


def test_sizes_that_vary():
    rng = np.random.default_rng(0)
    sizes = np.sort(rng.integers(1, 50, 40)).astype(float)
    grouped = SampleSizes.of(1000, sizes)
    assert sum(n for _, n in grouped.blocks) == 40
    for j in (1, 2, 3):
        assert grouped.moment(j) == pytest.approx(
            np.mean(sizes**j / (1000.0 * (1000.0 - sizes) ** (j - 1))), rel=1e-12
        )
    work = grouped.work
    assert work.epochs == pytest.approx(sizes.sum() / 1000.0)
    assert work.theta == pytest.approx(sizes.max() / sizes.mean())
    assert isinstance(grouped.mechanism(2.0), Phases)
    assert SampleSizes(1000, ((10, 5),)).mechanism(2.0) == Mechanism(Poisson(0.01, 5), 2.0)


def test_growing_sizes_have_theta_one_more_than_their_power():
    linear = SampleSizes.of(10**6, (float(i) for i in range(1, 2001)))
    assert linear.work.theta == pytest.approx(2.0, rel=1e-3)


WORK = Work(60_000, 4000, 10.0)


@pytest.mark.parametrize(
    ("theorem", "arguments", "condition", "value"),
    [
        (theorem_31, (WORK, 20.0, 0.6, 1e-5), "(6)", 0.6),
        (theorem_31, (WORK, 20.0, 0.2, 1e-4), "(6)", 1e-4),
        (theorem_31, (Work(9_999, 4000, 10.0), 20.0, 0.2, 1e-5), "on N", 9_999),
        (theorem_31, (Work(60_000, 4000, 10.0, 7.0), 20.0, 0.2, 1e-5), "on theta", 7.0),
        (theorem_31, (WORK, 5.0, 0.2, 1e-5), "(35)", 5.0),
        (theorem_31, (Work(60_000, 4000, 2.0), 20.0, 0.2, 1e-5), "(7)", (4 / math.e) ** 2),
        (theorem_31, (Work(60_000, 40, 10.0), 20.0, 0.2, 1e-5), "(8)", 40),
        (theorem_b4, (WORK, 1.5, 0.2, 1e-5), "(35)", 1.5),
        (theorem_b4, (Work(60_000, 40, 10.0), 20.0, 0.2, 1e-5), "(32)", 0.25),
        (theorem_b4, (Work(60_000, 500, 10.0), 20.0, 0.2, 1e-5), "(34)", 500),
        (theorem_b2, (SampleSizes(1000, ((10, 5),)), 1.0, 0.2, 1e-5), "on sigma", 1.0),
        (theorem_b2, (SampleSizes(1000, ((100, 5),)), 5.0, 0.2, 1e-5), "on r_0", 0.5),
        (
            theorem_b2,
            (SampleSizes(1000, ((180, 5),)), 1.9, 0.2, 1e-5),
            "on u_0",
            2 * math.sqrt(0.18) / 0.82,
        ),
        (
            theorem_b2,
            (SampleSizes(1000, ((50, 5),)), 1.1, 0.2, 1e-5),
            "on u_1",
            2 * math.e * math.sqrt(0.05) / 1.045,
        ),
        (theorem_b2, (SampleSizes(1000, ((10, 500),)), 5.0, 0.2, 1e-5), "(31)", 5.0),
        (moment_bound, (0.5, 2.5, 2), "on r_0", 1.25),
        (moment_bound, (0.01, 1.0, 2), "on sigma", 1.0),
        (moment_bound, (0.01, 2.0, 99), "on lambda", 99),
        (moment_bound, (0.3, 1.5, 1), "on U_0", 2 * math.sqrt(0.3) / 1.05),
    ],
)
def test_the_first_condition_that_fails(theorem, arguments, condition, value):
    refused = theorem(*arguments)
    assert not refused
    assert refused.condition == condition
    assert refused.value == pytest.approx(value)
    holds = {
        "<": refused.value < refused.bound,
        "<=": refused.value <= refused.bound,
        ">=": refused.value >= refused.bound,
    }
    assert not holds[refused.sense]
    assert f"condition {condition}: {refused.quantity} {refused.sense}" in str(refused)


def test_a_small_order_at_small_noise_that_is_not_proved():
    refused = moment_bound(1.04e-4, 1.2073, 13)
    assert (refused.condition, refused.value > 1.0) == ("(16)", True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SampleSizes(1000, ()), "blocks must hold at least one"),
        (
            lambda: SampleSizes(1000, ((1000, 1),)),
            "size must be below the population 1000, got 1000",
        ),
        (lambda: SampleSizes(1000, ((1, 0),)), "rounds of a block must be a whole number"),
        (lambda: Work(1000, 10, 1.0, theta=0.5), "theta must be at least 1, got 0.5"),
        (lambda: Work(1000, 10, 0.0), "epochs must be positive"),
        (lambda: SampleSizes(1000, (10, 5)), "blocks must hold pairs .*, got 10"),
        (
            lambda: SampleSizes(1000, ((1e-100, 5),)),
            "size must lie between 1e-50 and 1e[+]50, got 1e-100",
        ),
        (lambda: Work(1000, 10, 1e200), "epochs must lie between 1e-50 and 1e[+]50, got 1e[+]200"),
        (
            lambda: theorems.epsilon_of(1e200, 1e-5),
            "noise_multiplier must lie between 1e-50 and 1e[+]50",
        ),
        (
            lambda: theorem_b2(SampleSizes(10, ((1, 2),)), 5.0, 1e300, 0.1),
            "epsilon must lie between",
        ),
        (lambda: moment_bound(1e-300, 1000.0, 2**53), "rate must lie between"),
        (
            lambda: theorems.gamma(0.05, 1.0, 1.0),
            "noise_multiplier must be at least 216/215, got 0.05",
        ),
        (lambda: theorems.gamma_at(-1.0, 5.0), "alpha must lie in .0, 1., got -1.0"),
        (lambda: theorems.h(0.0), "x must be positive and finite, got 0.0"),
        (
            lambda: theorems.epsilon_of(math.nextafter(math.sqrt(2.0), 2.0), 1e-5),
            "noise_multiplier must exceed sqrt",
        ),
        (lambda: theorems.epsilon_of(1.4, 1e-5), "noise_multiplier must exceed sqrt"),
        (lambda: theorems.sigma(0.0, 1e-5), "epsilon must be positive"),
        (lambda: theorem_b4(WORK, 5.0, 1.0, 2.0), "delta must lie strictly between 0 and 1"),
        (lambda: moment_bound(0.1, 2.0, 0), "order must be a whole number"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
