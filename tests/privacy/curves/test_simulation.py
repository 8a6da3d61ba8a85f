"""The simulation of groups: what it draws, that its intervals hold, and that line 21 as printed
does not.
"""

import math

import numpy as np
import pytest
from scipy import stats

from verax import Batch, Deterministic, Mechanism, Mixed, NoGuarantee, Poisson
from verax.privacy.curves import simulation
from verax.privacy.curves.simulation import default_samples, simulate

ONE_STEP = Mechanism(Poisson(0.1, 1), 1.0)


def ratio(x, group=4, rate=0.1, noise=1.0):
    """nu / mu of one step, as algorithm 2 computes it."""
    weights = stats.binom.pmf(np.arange(group + 1), group, rate)
    parts = [w * stats.norm.pdf(x, j, noise) for j, w in enumerate(weights)]
    return sum(parts) / stats.norm.pdf(x, 0.0, noise)


def printed(absent, epsilon):
    """Lines 12, 15, 21 and 24 of algorithm 2 with mu / nu, as printed."""
    scale = math.exp(epsilon)
    return 1.0 - scale + scale * np.mean(np.maximum(1.0 - np.exp(-epsilon - absent), 0.0))


def test_line_21_as_printed_estimates_something_else():
    """One step, rate .1, noise 1, 4 records, epsilon 1: delta is .02833; with the ratio upside down
    it is -.124.
    """
    truth = ONE_STEP.guarantee(4).delta(1.0)
    found = simulate(ONE_STEP, 4, samples=400_000, sampling="paper", insecure_seed=3)
    assert truth.lower < 0.028332
    assert truth.upper > 0.028331
    assert found.estimate(1.0) == pytest.approx(0.02833, abs=0.003)
    assert printed(found.absent, 1.0) == pytest.approx(-0.1242, abs=0.005)
    x = np.linspace(-14.0, 18.0, 400_001)
    density = stats.norm.pdf(x) * (x[1] - x[0])
    upside_down = (
        1.0 - math.e + math.e * np.sum(density * np.maximum(1.0 - 1.0 / (math.e * ratio(x)), 0.0))
    )
    corrected = 1.0 - math.e + math.e * np.sum(density * np.maximum(1.0 - ratio(x) / math.e, 0.0))
    assert upside_down == pytest.approx(-0.12422, abs=1e-4)
    assert corrected == pytest.approx(0.028331, abs=1e-5)


def test_the_ratios_are_those_of_the_algorithm():
    rng = np.random.default_rng(5)
    rounds, mixture = simulation._rounds(ONE_STEP, 4, "any")
    table = simulation._Table(mixture)
    x = rng.normal(0.0, 3.0, 5000)
    assert rounds == 1
    assert table(x) == pytest.approx(np.log(ratio(x)), abs=1e-9)
    assert np.abs(table(x) - mixture.log_likelihood(x)).max() <= table.error + 1e-13 < 1e-8


@pytest.mark.parametrize(
    ("group", "rate", "noise"), [(64, 0.5, 2.0), (200, 0.01, 0.5), (1, 1e-4, 0.3)]
)
def test_the_error_of_the_table_is_bounded(group, rate, noise):
    _, mixture = simulation._rounds(Mechanism(Poisson(rate, 1), noise), group, "any")
    table = simulation._Table(mixture)
    x = np.random.default_rng(1).uniform(-11.0, max(mixture.shifts) + 11.0, 4000)
    with np.errstate(divide="ignore"):
        exact = mixture.log_likelihood(x)
    assert np.abs(table(x) - exact).max() <= table.error + 1e-11 * group


@pytest.mark.parametrize(
    ("run", "group", "geometry"),
    [
        (Mechanism(Poisson(0.01, 10), 1.0), 8, "any"),
        (Mechanism(Poisson(0.2, 20), 3.0), 3, "any"),
        (Mechanism(Poisson(0.2, 20), 3.0), 3, "orthogonal"),
        (Mechanism(Poisson(0.2, 20), 3.0, Batch()), 3, "any"),
        (Mechanism(Poisson(0.2, 20), 3.0, Mixed(groups=3)), 5, "any"),
        (Mechanism(Poisson(1.0, 4), 4.0, relation="zero-out"), 2, "any"),
    ],
)
def test_intervals_hold_what_is_proved(run, group, geometry):
    proved = run.guarantee(group, geometry)
    found = simulate(
        run, group, samples=50_000, geometry=geometry, confidence=0.999, insecure_seed=11
    )
    for epsilon in (0.0, 0.5, 1.5):
        inside = found.delta(epsilon)
        assert inside.lower <= proved.delta(epsilon).upper
        assert proved.delta(epsilon).lower <= inside.upper
        assert inside.width < 0.03
        assert inside.lower <= found.estimate(epsilon) <= inside.upper
    inside, truth = found.epsilon(0.02), proved.epsilon(0.02)
    assert inside.lower <= truth.upper
    assert truth.lower <= inside.upper
    assert inside.width < 0.4 * truth.upper + 0.1
    assert inside.evidence == "monte-carlo, confidence 0.999"
    assert inside.lower_by == "50000 simulated runs"


@pytest.mark.parametrize("sampling", ["both", "paper"])
def test_intervals_hold_as_often_as_they_say(sampling):
    truth = ONE_STEP.guarantee(4).delta(1.0)
    hits = 0
    for seed in range(200):
        found = simulate(
            ONE_STEP, 4, samples=300, sampling=sampling, confidence=0.8, insecure_seed=seed
        ).delta(1.0)
        hits += found.lower <= truth.upper and truth.lower <= found.upper
    assert hits >= 160 - 3 * math.sqrt(200 * 0.8 * 0.2)


def test_epsilon_is_where_the_limits_on_delta_meet_it():
    found = simulate(ONE_STEP, 4, samples=20_000, insecure_seed=2)
    bracket = found.epsilon(0.02)
    assert found.delta(bracket.upper).upper <= 0.02 < found.delta(bracket.upper - 1e-3).upper
    assert found.delta(bracket.lower).lower > 0.02 >= found.delta(bracket.lower + 1e-3).lower
    assert found.epsilon(0.9) == found.epsilon(0.9)
    assert (found.epsilon(0.9).lower, found.epsilon(0.9).upper) == (0.0, 0.0)


def test_what_is_too_rare_to_be_seen_has_no_upper_end():
    found = simulate(ONE_STEP, 1, samples=1000, insecure_seed=2)
    assert found.epsilon(1e-9).upper == math.inf
    assert found.delta(30.0).lower == 0.0
    # nothing seen in 1000 runs
    assert found.delta(30.0).upper == pytest.approx(1.0 - 0.0025 ** (1 / 1000), rel=1e-6)


@pytest.mark.parametrize("sampling", ["both", "paper"])
@pytest.mark.parametrize("epsilon", [45.0, 800.0, 1e300])
def test_epsilons_whose_exponential_is_too_large(sampling, epsilon):
    found = simulate(ONE_STEP, 4, samples=1000, sampling=sampling, insecure_seed=2)
    assert found.delta(epsilon).lower == 0.0
    assert found.delta(epsilon).upper <= 1.0
    assert 0.0 <= found.estimate(epsilon) < 0.5


def test_drawing_only_without_the_group_is_much_worse_at_large_epsilons():
    """Its second direction is a difference of numbers of size e^eps."""
    run = Mechanism(Poisson(0.2, 20), 3.0)
    both, paper = (
        simulate(run, 8, samples=20_000, sampling=s, insecure_seed=1).delta(4.0)
        for s in ("both", "paper")
    )
    truth = run.guarantee(8).delta(4.0)
    assert both.lower <= truth.upper
    assert truth.lower <= both.upper
    assert paper.lower <= truth.upper
    assert truth.lower <= paper.upper
    assert paper.width > 3.0 * both.width


def test_a_seed_repeats_a_simulation_and_its_absence_does_not():
    first, second = (simulate(ONE_STEP, 2, samples=100, insecure_seed=4) for _ in range(2))
    assert (first.absent == second.absent).all()
    assert (first.present == second.present).all()
    fresh = [simulate(ONE_STEP, 2, samples=100).absent for _ in range(2)]
    assert (fresh[0] != fresh[1]).any()


def test_blocks_of_runs_and_rounds_add_up(monkeypatch):
    run = Mechanism(Poisson(0.3, 7), 1.0)
    monkeypatch.setattr(simulation, "_BLOCK", 5)  # fewer than the rounds of a run
    found = simulate(run, 2, samples=3000, insecure_seed=1)
    assert len(found.absent) == len(found.present) == 3000
    assert np.mean(np.exp(found.absent)) == pytest.approx(1.0, abs=0.2)  # E_X dY/dX
    assert np.mean(np.exp(-found.present)) == pytest.approx(1.0, abs=0.05)


def test_the_default_is_quick():
    assert default_samples(Mechanism(Poisson(0.1, 1), 1.0)) == 200_000
    assert default_samples(Mechanism(Poisson(0.1, 1000), 1.0)) == 5000
    assert default_samples(Mechanism(Poisson(0.1, 10**9), 1.0)) == 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 0}, "group must be a whole number of at least 1 and at most 1000000, got 0"),
        ({"samples": 1}, "samples must be a whole number of at least 2, got 1"),
        ({"confidence": 1.0}, "confidence must lie strictly between 0 and 1, got 1.0"),
        ({"sampling": "some"}, "sampling must be one of 'both', 'paper', got 'some'"),
        ({"geometry": "flat"}, "geometry must be one of 'any', 'orthogonal', got 'flat'"),
        (
            {"group": 10**7},
            "group must be a whole number of at least 1 and at most 1000000, got 10000000",
        ),
        ({"insecure_seed": -1}, "insecure_seed must be a whole number of at least 0, got -1"),
        ({"mechanism": ONE_STEP + ONE_STEP}, "mechanism must be a Mechanism, got Phases"),
        (
            {"mechanism": Mechanism(Poisson(0.1, 1), 1e-160)},
            "noise_multiplier must be at least 1e-12 to be simulated",
        ),
        ({"mechanism": Mechanism(Poisson(0.1, 1), 0.0)}, "needs a noise_multiplier above 0, got 0"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(**({"mechanism": ONE_STEP} | change))


@pytest.mark.parametrize(
    "run", [Mechanism(Deterministic(4), 1.0), Mechanism(Poisson(0.1, 1), 1.0, relation="replace")]
)
def test_other_runs_are_not_simulated(run):
    with pytest.raises(
        NoGuarantee, match=r"the simulation is of Poisson batches under relation .*; use Mechanism"
    ):
        simulate(run)


def test_no_epsilon_from_runs_without_the_group_alone():
    found = simulate(ONE_STEP, samples=10, sampling="paper")
    with pytest.raises(ValueError, match="an interval for epsilon needs sampling='both'"):
        found.epsilon(0.1)
