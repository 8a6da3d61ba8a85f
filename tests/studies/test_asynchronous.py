"""The study of asynchronous clients, on a small table."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax import Mechanism, Poisson  # noqa: E402
from verax.training.data.examples import Examples  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "studies" / "asynchronous.py"
if not SCRIPT.exists():  # as in a source distribution
    pytest.skip("needs the folder studies", allow_module_level=True)


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec = importlib.util.spec_from_file_location("asynchronous_study", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        patch.setitem(importlib.import_module("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def table():
    mixed = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=mixed)
    y = (x[:, :1] - x[:, 1:2] > 0).float()
    return Examples((x[:200], y[:200]), (x[200:], y[200:]), 2)


def run(study, **changes):
    usual = study.Run("a9a", "split", 5, 40, 10, 12, 0.0, 1.0, 0.05, 0, "inf")
    return replace(usual, **changes)


def test_clients_of_all_speeds_finish_and_learn(study, table):
    found = study.measure(run(study), study.PROBLEM["a9a"], table, table.train)
    assert float(found["accuracy"]) > 85.0
    assert found["epsilon upper"] == "inf"
    assert 0.0 < float(found["behind"]) <= 1.0
    assert set(found) == set(study.COLUMNS)


def test_one_client_walks_down_the_clipped_gradient(study, table):
    alone = run(study, holding="one", clients=1, records=200, batch=200, rounds=5)
    problem = study.PROBLEM["a9a"]
    model, _, world = study.train(alone, problem, table, table.train)
    by_hand = problem.model(table, 0)
    x, y = table.train
    for i in range(5):
        step = alone.step / (1.0 + problem.beta * (200 * i) ** 0.5)
        with torch.no_grad():
            wrong = torch.sigmoid(by_hand(x)) - y
            each = torch.cat([wrong * x, wrong], dim=1)
            total = (each / each.norm(dim=1, keepdim=True).clamp(min=alone.norm)).sum(0)
            by_hand.weight -= step * total[:4]
            by_hand.bias -= step * total[4:]
    assert torch.allclose(model.weight, by_hand.weight, atol=1e-4)
    assert world.server.done


def test_the_price_is_that_of_each_client_alone_and_of_all_for_a_shared_record(study, table):
    noisy = run(study, holding="drawn", noise=3.0)
    found = study.measure(noisy, study.PROBLEM["a9a"], table, table.train)
    own = Mechanism(Poisson(0.25, 12), 3.0).guarantee().epsilon(1 / 40)
    assert own.lower <= float(found["epsilon upper"]) <= 1.001 * own.upper
    shared = Mechanism(Poisson(0.25, 60), 3.0).guarantee().epsilon(1 / 40)
    assert shared.lower <= float(found["epsilon of all upper"]) <= 1.001 * shared.upper


def test_what_clients_hold(study, table):
    parts = list(study.shares(run(study), table, table.train))
    assert [len(y) for _, y in parts] == [40] * 5
    together = torch.cat([x for x, _ in parts])
    assert len(torch.unique(together, dim=0)) == 200
    drawn = list(study.shares(run(study, holding="drawn", records=150), table, table.train))
    assert [len(torch.unique(x, dim=0)) for x, _ in drawn] == [150] * 5
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_what_is_written_is_read_again(study, table, tmp_path):
    out = tmp_path / "found.csv"
    study.add(
        out, study.COLUMNS, [study.measure(run(study), study.PROBLEM["a9a"], table, table.train)]
    )
    again = study.rows(out)
    assert tuple(again[0][name] for name in study.COLUMNS[:11]) == run(study).key
    assert "| 5, split | 40 | 10 | 12 | 0.0 | inf |" in "\n".join(study.tables(again))
