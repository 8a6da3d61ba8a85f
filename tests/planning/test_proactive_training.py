"""The whole flow on scikit-learn's digits: utility graph, private training, accuracy checks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from verax import (  # noqa: E402
    Mechanism,
    Poisson,
    ledger,
)
from verax.planning.proactive_training import calculate, proactive  # noqa: E402
from verax.planning.utility import Line, Point, UtilityGraph, utility_graph  # noqa: E402
from verax.privacy.renyi.filter import Budget  # noqa: E402
from verax.training.data.examples import accuracy, build, load  # noqa: E402

LOSS = torch.nn.CrossEntropyLoss()


@pytest.fixture(scope="module")
def digits():
    examples = load("digits")
    x, y = examples.train
    return examples, (x[:500], y[:500]), (x[500:], y[500:])


@pytest.fixture(scope="module")
def graph(digits):
    examples, public, _ = digits
    return utility_graph(
        lambda: build("logistic", examples),
        LOSS,
        public,
        lambda m: accuracy(m, examples.test),
        public=True,
        clip_norms=[1.0, 2.0],
        sigmas=[0.02, 0.05, 0.1, 0.2, 0.4],
        learning_rate=0.5,
        batch=100,
        epochs=8,
        draws=200,
        insecure_seed=1,
    )


def run(digits, graph, budget, goal, **change):
    examples, _, private = digits
    torch.manual_seed(0)
    model = build("logistic", examples)
    return proactive(
        model,
        LOSS,
        private,
        lambda m: accuracy(m, examples.test),
        goal=goal,
        graph=graph,
        budget=budget,
        records=len(private[1]),
        batch=300,
        epochs=12,
        insecure_seed=3,
        **change,
    )


def test_reaches_its_goal_and_stays_within_budget(digits, graph, tmp_path):
    budget = Budget(4.0, 1e-5, path=tmp_path / "run.budget")
    flow = run(digits, graph, budget, goal=0.85, ledgers=tmp_path)
    assert flow.ended == "goal"
    assert flow.accuracy >= 0.85
    assert 1 < len(flow.phases) == len(budget.phases)
    noises = [phase.mechanism.noise_multiplier for phase in flow.phases]
    assert noises == sorted(noises, reverse=True)  # less noise from phase to phase
    assert budget.used <= 4.0
    assert budget.static().upper < 4.0
    assert Budget.open(tmp_path / "run.budget").phases == tuple(
        phase.mechanism for phase in flow.phases
    )
    for number, phase in enumerate(flow.phases):
        assert ledger.read(tmp_path / f"phase-{number}.ledger").released == len(
            phase.mechanism.sampler
        )


def test_a_small_budget_cuts_the_last_phase_short(digits, graph):
    budget = Budget(0.8, 1e-5)
    flow = run(digits, graph, budget, goal=0.99)
    assert flow.ended == "budget"
    assert 0.76 < budget.used <= 0.8  # as full as whole rounds allow
    full = calculate(graph, flow.phases[-1].drop, len(digits[2][1]), 300, 12)[0]
    assert len(flow.phases[-1].mechanism.sampler) < len(full.sampler)


def test_a_spent_budget_runs_nothing(digits, graph):
    budget = Budget(0.5, 1e-5)
    tiny = Mechanism(Poisson(0.001, 1), 30.0)
    budget.spend(
        Mechanism(Poisson(0.5, budget.most_rounds(Mechanism(Poisson(0.5, 1), 30.0))), 30.0)
    )
    assert budget.fits(tiny)
    flow = run(digits, graph, budget, goal=0.99)
    assert (flow.ended, flow.phases, flow.accuracy) == ("budget", (), 0.0)


def test_a_goal_out_of_reach_ends_with_the_drops(digits, graph):
    flow = run(digits, graph, Budget(50.0, 1e-3), goal=1.1, drops=(0.2, 0.1))
    assert flow.ended == "drops"
    assert len(flow.phases) == 2


def test_the_calculator_gives_the_noise_that_adds_up_to_sigma():
    points = (Point(0.1, 0.99, 0.98, 1.0), Point(0.2, 0.95, 0.94, 0.96))
    graph = UtilityGraph((Line(0.5, 0.9, points),), 0.25, 40, 10, 0.95, True)
    phase, learning_rate = calculate(graph, 0.06, records=1000, batch=100, epochs=10)
    assert learning_rate * len(phase.sampler) == pytest.approx(graph.path)
    added = learning_rate * phase.noise_multiplier / 100 * len(phase.sampler) ** 0.5
    assert added == pytest.approx(0.2)
    assert calculate(graph, 0.001, 1000, 100, 10) is None
