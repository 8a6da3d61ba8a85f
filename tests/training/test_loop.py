"""fit: the whole run in one call."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from rich.console import Console  # noqa: E402
from torch import nn  # noqa: E402

from verax import BallsInBins, Mechanism, Poisson  # noqa: E402
from verax.training import fit, ledger, loop  # noqa: E402

torch.set_num_threads(1)


def clouds(size=400):
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (size,), generator=rng)
    return torch.randn(size, 5, generator=rng) + 2.0 * y.unsqueeze(1), y


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.5)


@pytest.mark.parametrize("sampler", [Poisson(0.1, 40), BallsInBins(10, 4)])
def test_it_learns_and_says_what_it_cost(tmp_path, sampler):
    x, y = clouds()
    torch.manual_seed(0)
    model, mechanism = nn.Linear(5, 2), Mechanism(sampler, 1.0)
    run = fit(model, nn.CrossEntropyLoss(), (x, y), mechanism, sgd, ledger=tmp_path / "run.ledger", insecure_seed=4)
    assert float((model(x).argmax(1) == y).float().mean()) > 0.9
    assert run.guarantee.epsilon(1e-5) == mechanism.guarantee().epsilon(1e-5)
    assert ledger.read(tmp_path / "run.ledger").complete
    assert "NOT private" in run.statement()
    assert run.statement(tmp_path / "report.html", delta=1e-3) == run.statement(delta=1e-3)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_bar_shows_the_epsilon_so_far(monkeypatch):
    shown = []
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(loop.Progress, "update", lambda self, task, **more: shown.append(more.get("description", "")))
    fit(nn.Linear(5, 2), nn.CrossEntropyLoss(), clouds(40), Mechanism(Poisson(0.2, 10), 1.0), sgd, insecure_seed=4)
    assert len(shown) == 10
    assert "epsilon" in shown[0]
    assert shown[0] != shown[-1]


def test_delta_must_be_a_probability():
    with pytest.raises(ValueError, match="delta must"):
        fit(nn.Linear(5, 2), nn.CrossEntropyLoss(), clouds(40), Mechanism(Poisson(0.2, 10), 1.0), sgd, delta=0.0)
