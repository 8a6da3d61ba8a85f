"""The utility graph: measured, stored and read back, joined with the frontier."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from verax.planning import Target, frontier  # noqa: E402
from verax.planning.utility import (  # noqa: E402
    Line,
    Point,
    PrivateData,
    UtilityGraph,
    best_plan,
    expected,
    mean_band,
    read,
    utility_graph,
)

SIGMAS = (0.01, 0.1, 1.0, 10.0)


def blobs(seed=0, records=300):
    """Two Gaussian clouds that a line separates."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, records)
    x = rng.normal(size=(records, 4)) + 3.0 * (2 * y[:, None] - 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def accuracy(model):
    x, y = blobs(1)
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).float().mean())


def measured(public=True, **change):
    return utility_graph(
        lambda: torch.nn.Linear(4, 2),
        torch.nn.CrossEntropyLoss(),
        blobs(),
        accuracy,
        **(
            {
                "public": public,
                "clip_norms": [1.0, 0.5],
                "sigmas": SIGMAS,
                "learning_rate": 0.5,
                "batch": 100,
                "epochs": 3,
                "draws": 12,
                "insecure_seed": 3,
                "data": "blobs",
            }
            | change
        ),
    )


@pytest.fixture(scope="module")
def graph():
    return measured()


def test_more_noise_leaves_less(graph):
    assert [line.clip_norm for line in graph.lines] == [0.5, 1.0]
    for line in graph.lines:
        assert line.accuracy > 0.95
        fractions = [point.fraction for point in line.points]
        assert fractions[0] > 0.99
        assert fractions[-1] < 0.9
        assert all(p.low <= p.fraction <= p.high for p in line.points)


def test_noise_scales_with_the_clip_norm():
    """The same weights at twice the sigma and half the norm: the same noise, draw by draw."""
    # norms so large that nothing is clipped
    twice = measured(clip_norms=[1e3], sigmas=[2e-3]).lines[0].points[0]
    once = measured(clip_norms=[2e3], sigmas=[1e-3]).lines[0].points[0]
    assert twice.fraction == once.fraction
    assert twice.low == once.low


def test_bands_narrow_with_draws():
    few, many = (
        measured(clip_norms=[1.0], sigmas=[1.0], draws=n).lines[0].points[0] for n in (50, 400)
    )
    assert many.high - many.low < 0.5 * (few.high - few.low)
    assert few.low < many.fraction < few.high


def test_bands_hold_for_laws_that_are_all_or_nothing():
    """Accuracy 1 with probability .75, else 0: Student's interval misses three times too often."""
    rng = np.random.default_rng(7)
    miss = 0
    for _ in range(400):
        low, high = mean_band(np.where(rng.random(20) < 0.75, 0.97, 0.2), 0.05)
        miss += not low <= 0.75 * 0.97 + 0.25 * 0.2 <= high
    assert miss <= 20 + 3 * 4.4


def test_bands_are_narrow_where_values_agree():
    low, high = mean_band(np.full(50, 0.9), 0.05)
    assert 0.8 < low < 0.9 < high < 0.93


def test_rounds_and_path_are_those_of_the_clean_run(graph):
    assert graph.rounds == 9
    assert graph.path == pytest.approx(4.5)


def test_saved_and_read_back(graph, tmp_path):
    graph.save(tmp_path / "graph.json")
    assert read(tmp_path / "graph.json") == graph
    assert json.loads((tmp_path / "graph.json").read_text())["public"] is True


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"verax_utility": 1}', '{"verax_utility": 2, "lines": []}']
)
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "graph.json").write_text(content)
    with pytest.raises(ValueError, match="path must be a"):
        read(tmp_path / "graph.json")
    with pytest.raises(ValueError, match="can be read"):
        read(tmp_path / "none.json")


def test_private_data_are_warned_of(tmp_path):
    with pytest.warns(PrivateData, match="no guarantee covers"):
        graph = measured(public=False, clip_norms=[1.0], sigmas=[0.1], draws=2)
    graph.save(tmp_path / "graph.json")
    with pytest.warns(PrivateData, match="private data"):
        assert not read(tmp_path / "graph.json").public


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigmas": []}, "at least one value"),
        ({"clip_norms": []}, "at least one value"),
        ({"sigmas": [0.0]}, "sigmas must be positive"),
        ({"draws": 1}, "draws must be"),
        ({"confidence": 1.0}, "confidence must lie"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        measured(**change)


# --- choosing -------------------------------------------------------------------------------------


def line(norm, clean, *fractions):
    sigmas = (0.1, 0.2, 0.4, 0.8)
    return Line(
        norm,
        clean,
        tuple(Point(s, f, f - 0.01, f + 0.01) for s, f in zip(sigmas, fractions, strict=False)),
    )


def drawn(*lines):
    return UtilityGraph(lines, learning_rate=0.5, rounds=20, draws=10, confidence=0.95, public=True)


def test_largest_sigma_ends_at_the_first_failure():
    dipped = line(1.0, 0.9, 0.99, 0.8, 0.97, 0.5)
    assert 0.1 < dipped.largest_sigma(0.05) < 0.2
    assert line(1.0, 0.9, 0.99, 0.98).largest_sigma(0.1) == 0.2
    assert line(1.0, 0.9, 0.7).largest_sigma(0.1) is None


def test_pick_counts_what_clipping_alone_costs():
    good, hardy = line(1.0, 0.9, 0.98, 0.95, 0.8, 0.3), line(0.1, 0.5, 1.0, 1.0, 1.0, 1.0)
    chosen, sigma = drawn(good, hardy).pick(0.1)
    assert chosen is good  # the other bears more noise, and is bad without any
    assert 0.2 < sigma < 0.4
    assert drawn(good, hardy).pick(0.5)[0] is hardy
    assert drawn(good).pick(0.01) is None


def test_expected_accuracy_follows_the_signal_of_the_run():
    graph = drawn(line(1.0, 0.9, 0.98, 0.9, 0.7, 0.4))
    plans = frontier(Target(20_000, 1.0, 1e-5), batches=[200, 2000], epochs=[2, 10])
    choices = sorted(
        (expected(plan, graph) for plan in plans), key=lambda choice: choice.plan.signal_of_run
    )
    accuracies = [choice.accuracy for choice in choices]
    assert accuracies == sorted(accuracies)
    plan = choices[0].plan
    sigma = choices[0].learning_rate * math.sqrt(plan.rounds) * plan.noise_multiplier / plan.batch
    assert accuracies[0] == pytest.approx(0.9 * graph.lines[0].fraction(sigma), rel=1e-6)


def test_best_plan_saves_work_where_accuracy_is_the_same():
    flat, steep = (
        drawn(line(1.0, 0.9, 1.0, 1.0, 1.0, 1.0)),
        drawn(line(1.0, 0.9, 0.5, 0.3, 0.2, 0.1)),
    )
    plans = frontier(Target(20_000, 1.0, 1e-5), batches=[200, 1000], epochs=[2, 10])
    assert best_plan(plans, flat).plan.epochs == 2
    best = best_plan(plans, steep)
    assert best.plan.signal_of_run == max(plan.signal_of_run for plan in plans)
    with pytest.raises(ValueError, match="at least the 20 rounds"):
        best_plan([plan for plan in plans if plan.rounds < 20], flat)
