"""The calculator of 'Proactive DP' against brute force and against the accountant."""

import math

import pytest

from verax import NoGuarantee, Poisson
from verax.planning.closed_form import theorems
from verax.planning.closed_form.calculator import budget, next_phase, simple
from verax.planning.closed_form.theorems import SampleSizes, Work, theorem_b4

ROWS = [
    (10_000, 5, 19.29962, 31, 198),
    (60_000, 6, 12.10881, 412, 3042),
    (50_000, 7, 6.572, 800, 7504),
]


@pytest.mark.parametrize(("population", "epochs", "sigma", "batch", "asymptotic"), ROWS)
def test_the_papers_settings(population, epochs, sigma, batch, asymptotic):
    target = budget(population, sigma=sigma)
    answer = simple(population, target, epochs=epochs)
    assert (answer.minimum.batch, answer.asymptotic.batch) == (batch, asymptotic)
    assert answer.minimum.rounds == epochs * population // batch
    assert "theorem B.4" in answer.minimum.granted_by
    assert answer.asymptotic.granted_by == ()
    brute = [
        s
        for s in range(1, 2 * batch)
        if theorem_b4(
            Work(population, epochs * population / s, epochs), sigma, target.epsilon, target.delta
        )
    ]
    assert brute == list(range(1, batch + 1))
    tight = answer.minimum.mechanism().guarantee().epsilon(target.delta).upper
    assert 3.0 < target.epsilon / tight < 5.5


def test_each_of_the_three_from_the_other_two():
    target = budget(50_000, epsilon=0.4, delta=1e-5)
    by_batch = simple(50_000, target, batch=120).minimum
    above = Work(50_000, by_batch.rounds + 1, 120 * (by_batch.rounds + 1) / 50_000)
    assert not theorem_b4(above, target.sigma, target.epsilon, target.delta)
    by_rounds = simple(50_000, target, rounds=by_batch.rounds).minimum
    assert by_rounds.batch == 120
    by_epochs = simple(50_000, target, epochs=by_batch.epochs).minimum
    assert (by_epochs.batch, by_epochs.rounds) == (120, by_batch.rounds)


def test_budgets():
    two = budget(10_000, epsilon=0.5)
    assert (two.delta, two.sigma) == (1e-4, theorems.sigma(0.5, 1e-4))
    back = budget(10_000, epsilon=0.5, sigma=two.sigma)
    assert back.delta == pytest.approx(1e-4, rel=1e-9)
    assert theorems.sigma(0.5, back.delta) <= two.sigma
    assert budget(10_000, sigma=two.sigma).epsilon == pytest.approx(0.5)


def test_theta_costs_its_square():
    target = budget(10**6, epsilon=0.5)
    one, two = (simple(10**6, target, epochs=20, theta=theta).minimum for theta in (1.0, 2.0))
    assert two.rounds / one.rounds == pytest.approx(4.0, rel=0.01)
    run = two.mechanism()
    assert isinstance(run.sampler, Poisson)
    assert run.sampler.rate == 2.0 * two.batch / 10**6
    assert run.sampler.steps == math.ceil(two.rounds / 2.0)
    assert run.guarantee().epsilon(target.delta).upper < 0.5


def test_the_first_phase_spends_what_its_batch_needs():
    phase = next_phase(60_000, (), epochs=6, epsilon=0.15)
    assert 0.149 < phase.epsilon <= 0.15
    assert phase.sigma == theorems.sigma(phase.epsilon, phase.delta)
    assert not theorem_b4(phase.sizes.work, 99.0, phase.epsilon * (1 - 1e-6), phase.delta)
    assert phase.rounds == 360_000 // phase.batch


def test_a_second_phase_by_brute_force():
    done, sigma, delta = ((408, 882),), 9.0, 1 / 60_000
    phase = next_phase(60_000, done, epochs=2, epsilon=0.3, sigma=sigma)
    granted = [
        s
        for s in range(1, 700)
        if theorem_b4(SampleSizes(60_000, (*done, (s, 120_000 // s))).work, sigma, 0.3, delta)
    ]
    assert max(granted) == phase.batch
    assert phase.epsilon <= 0.3
    assert theorem_b4(phase.sizes.work, sigma, phase.epsilon, delta)
    assert phase.sizes.mechanism(sigma).guarantee().epsilon(delta).upper < phase.epsilon


def test_a_batch_of_one_is_where_e1_starts_and_stops():
    """Appendix E.1 tries s = 1, 2, ... until one fails; s = 1 fails after larger batches."""
    delta = 1 / 60_000
    small, same = (
        theorem_b4(SampleSizes(60_000, ((408, 882), (s, 120_000 // s))).work, 9.0, 0.3, delta)
        for s in (1, 408)
    )
    assert (bool(small), bool(same)) == (False, True)
    assert small.condition == "(34)"


def test_the_noise_of_a_phase_sets_the_least_epsilon():
    phase = next_phase(60_000, ((100, 600),), epochs=1, epsilon=5.0, sigma=9.0)
    assert phase.epsilon >= theorems.epsilon_of(9.0, 1 / 60_000)
    quiet = next_phase(60_000, (), epochs=0.5, epsilon=0.3, sigma=9.0)
    assert quiet.epsilon <= 0.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: budget(1000), "give epsilon or sigma"),
        (lambda: budget(1000, epsilon=1.0, delta=1e-5, sigma=3.0), "give two of them"),
        (lambda: budget(1000, epsilon=1.0, sigma=1.4), "sigma must exceed"),
        (lambda: simple(1000, budget(1000, epsilon=1.0)), "give exactly one of them"),
        (
            lambda: simple(1000, budget(1000, epsilon=1.0), epochs=1, batch=3),
            "give exactly one of them",
        ),
        (
            lambda: simple(1000, budget(1000, epsilon=1.0), epochs=1, theta=0.9),
            "theta must be at least 1",
        ),
        (
            lambda: simple(1000, budget(1000, epsilon=1.0), epochs=1e-4),
            "epochs must be at least 1/population",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: simple(1000, budget(1000, epsilon=0.01), epochs=100),
            r"condition \(34\).*at most 3787 rounds",
        ),
        (lambda: simple(1000, budget(1000, epsilon=0.5), batch=900), r"condition \(32\)"),
        (lambda: simple(1000, budget(1000, epsilon=0.01), rounds=10**7), r"condition \(34\)"),
        (lambda: next_phase(1000, ((10, 1000),), 5, 0.1), "no batch is granted for 5 more epochs"),
        (lambda: next_phase(1000, (), 5, 0.1, sigma=2.0), "sigma 2 is too small for epsilon 0.1"),
    ],
)
def test_the_binding_condition_is_named(call, message):
    with pytest.raises(NoGuarantee, match=message):
        call()
