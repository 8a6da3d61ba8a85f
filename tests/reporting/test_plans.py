import math

import pytest

from verax import Batch, Individual
from verax.planning import Planner, Target, changes, frontier, full_batch_signal
from verax.planning.utility import Line, Point, UtilityGraph
from verax.reporting.plans import (
    EXPLAINED,
    change_values,
    describe,
    plan_values,
    plans_figure,
    table,
    utility_figure,
)

TARGET = Target(records=60_000, epsilon=1.0, delta=1e-5)


@pytest.fixture(scope="module")
def plans():
    return frontier(TARGET, [600, 6000], [1, 10], ["poisson", "shuffle"])


def test_a_row_says_what_the_plan_says_rounded_to_the_safe_side(plans):
    rows = table(plans, full_batch_signal(TARGET))
    for plan, row in zip(plans, rows, strict=True):
        assert float(row["noise"]) == plan.noise_multiplier
        assert float(row["noise/batch"]) >= plan.ratio
        assert float(row["signal of a round"]) <= plan.signal
        assert float(row["signal of the run"]) <= plan.signal_of_run
        assert int(row["rounds"]) == plan.rounds
        assert row["relation"] == plan.mechanism.relation
        share = 100.0 * plan.signal_of_run / full_batch_signal(TARGET)
        assert row["of full batch"] == f"{share:.1f} %"
    assert {
        row["closed form"] for row, plan in zip(rows, plans, strict=True) if plan.way == "shuffle"
    } == {"-"}


def test_columns_come_when_they_matter(plans):
    assert "relation" not in table(plans[:4])[0]
    assert "clipping" not in table(plans)[0]
    other = Planner(Target(60_000, 1.0, 1e-5, Batch())).plan("poisson", 600, 10)
    assert [row["clipping"] for row in table([plans[0], other])] == ["individual", "batch"]
    assert "epsilon" in table(plans, unknown="epsilon")[0]
    assert "records" in table(plans, unknown="records")[0]
    assert "delta" in table(plans, unknown="delta")[0]
    assert set(EXPLAINED) & set(table(plans, 1.0)[0]) == {
        "noise",
        "noise/batch",
        "of full batch",
        "records touched",
        "closed form",
    }
    assert describe(Individual()) == "individual"


def test_machines_get_everything(plans):
    found = plan_values(plans[0], starred=True)
    assert found["noise_multiplier"] == plans[0].noise_multiplier
    assert found["epsilon"] <= 1.0
    assert found["undominated"] is True
    assert found["closed_form"]["why_not"] is None or "theorem" in found["closed_form"]["why_not"]
    assert plan_values(plans[-1])["closed_form"] is None
    change = changes(plans[0])[0]
    assert change_values(change)["noise"] == change.noise


def test_the_figure_is_drawn_and_the_same_twice(plans, tmp_path):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        plans_figure(plans, "some plans", path, full_batch_signal(TARGET))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    text = paths[0].read_text()
    assert "dashed: shuffle" in text
    assert "every record in every round" in text


def test_a_figure_of_many_batches_and_of_no_noise(tmp_path):
    pytest.importorskip("matplotlib")
    many = frontier(TARGET, range(100, 2000, 100), [3], ["deterministic"])
    plans_figure(many, "many", tmp_path / "many.png")
    free = frontier(Target(1000, 1.0, 0.7), [1], [1])
    assert free[0].signal == math.inf
    assert table(free)[0]["signal of the run"] == "inf"
    with pytest.raises(ValueError, match="no plan needs noise"):
        plans_figure(free, "free", tmp_path / "free.png")
    assert (tmp_path / "many.png").stat().st_size > 5000


def test_a_utility_graph_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    points = tuple(Point(sigma, 1.0 - sigma, 0.9 - sigma, 1.0) for sigma in (0.01, 0.1, 0.5))
    graph = UtilityGraph((Line(1.0, 0.9, points),), 0.5, 20, 20, 0.95, public=False)
    assert utility_figure(graph, tmp_path / "graph.png", 0.1).stat().st_size > 5_000
    with pytest.raises(ValueError, match="must end in"):
        utility_figure(graph, tmp_path / "graph.txt")
