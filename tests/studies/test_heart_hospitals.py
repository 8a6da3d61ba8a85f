"""The example of four hospitals, on made-up patients."""

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax import Mechanism, Poisson  # noqa: E402
from verax.training.data.examples import Examples, accuracy  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "studies" / "heart_hospitals.py"
if not SCRIPT.exists():  # as in a source distribution
    pytest.skip("needs the folder studies", allow_module_level=True)
NAMES, RATES = ("north", "south"), (0.5, 0.1)


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("heart_hospitals", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def data():
    mixed = torch.Generator().manual_seed(0)
    x = torch.rand(200, 3, generator=mixed)
    y = (x[:, 0] > x[:, 1]).long()
    held = torch.arange(200) % 5 == 4
    return Examples((x[~held], y[~held]), (x[held], y[held]), 2)


@pytest.mark.parametrize("who", ["central", "local"])
def test_each_hospital_pays_for_its_own_rate(example, data, who):
    shares = example.shares_of(data, [100, 60])
    _, clients = example.federation(shares, RATES, 4.0, who, data, seed=0, rounds=10)
    assert [client.records for client in clients] == [100, 60]
    for client, rate in zip(clients, RATES, strict=True):
        alone = Mechanism(Poisson(rate, 10), 4.0).guarantee().epsilon(1e-3)
        found = client.guarantee.epsilon(1e-3)
        assert alone.lower <= found.upper <= 1.001 * alone.upper
    lines = list(example.prices(clients, NAMES, 1e-3))
    assert lines[1].startswith("| north | 100 | 0.5 | ")
    assert float(lines[2].split()[-2]) < float(lines[1].split()[-2])


def test_hospitals_learn_together(example, data):
    model, _ = example.federation(
        example.shares_of(data, [100, 60]), RATES, 0.0, "central", data, seed=0, rounds=200
    )
    assert accuracy(model, data.test) > 0.85


def test_held_out_patients_belong_to_their_hospital(example, data):
    north, south = example.held_out(data, (126, 74))
    assert len(north[1]) == 25
    assert torch.equal(torch.cat([north[0], south[0]]), data.test[0])


def test_the_table_has_a_line_for_every_arm(example, data):
    shares = example.shares_of(data, [100, 60])
    lines = list(
        example.scores(
            data, shares, example.held_out(data, (126, 74)), RATES, 2.0, NAMES, 2, rounds=3
        )
    )
    assert len(lines) == 1 + 4 + 2 * 2
    assert lines[0].startswith("| | all 40 | north | south |")
    assert all(line.count("|") == 5 for line in lines[1:])
