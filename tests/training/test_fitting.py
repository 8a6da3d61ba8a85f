"""fit: the whole run in one call."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from rich.console import Console  # noqa: E402
from torch import nn  # noqa: E402

from verax import (  # noqa: E402
    BallsInBins,
    Mechanism,
    Poisson,
    calibrate,
    ledger,
)
from verax.privacy.guarantee import Bracket, Guarantee  # noqa: E402
from verax.training import Interrupted, Ledger, PrivateTrainer, RunOver, fit, fitting  # noqa: E402

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
    run = fit(
        model,
        nn.CrossEntropyLoss(),
        (x, y),
        mechanism,
        sgd,
        ledger=tmp_path / "run.ledger",
        insecure_seed=4,
    )
    assert float((model(x).argmax(1) == y).float().mean()) > 0.9
    assert run.guarantee.epsilon(1e-5) == mechanism.guarantee().epsilon(1e-5)
    assert ledger.read(tmp_path / "run.ledger").complete
    assert "NOT private" in run.statement()
    assert run.statement(tmp_path / "report.html", delta=1e-3) == run.statement(delta=1e-3)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.fixture
def shown(monkeypatch):
    shown = []

    def update(self, task, description="", **more):
        if description:
            shown.append(description)

    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(fitting.Progress, "update", update)
    return shown


def test_the_bar_shows_the_epsilon_so_far(shown):
    fit(
        nn.Linear(5, 2),
        nn.CrossEntropyLoss(),
        clouds(40),
        Mechanism(Poisson(0.2, 10), 1.0),
        sgd,
        insecure_seed=4,
    )
    assert len(shown) == 10
    assert "epsilon" in shown[0]
    assert shown[0] != shown[-1]


def test_the_bar_ends_on_the_number_of_the_statement(shown):
    sampler = Poisson(0.2, 45)  # the bar is told every second round, and the last one
    mechanism = Mechanism(sampler, calibrate.noise_multiplier(sampler, 3.0, 1e-5))
    fit(nn.Linear(5, 2), nn.CrossEntropyLoss(), clouds(40), mechanism, sgd, insecure_seed=4)
    assert len(shown) == 23
    assert shown[-1] == "training, epsilon 3.0000 so far"


def test_the_bar_never_shows_more_than_the_statement_will(shown, monkeypatch):
    """The epsilon so far is computed roughly, and may exceed the price of the whole run."""
    mechanism = Mechanism(Poisson(0.2, 6), 1.0)

    def epsilon(guarantee, delta, rtol=1e-3):
        return Bracket(1.0, 2.31901 if rtol < 0.02 else 2.33)

    monkeypatch.setattr(Guarantee, "epsilon", epsilon)
    run = fit(nn.Linear(5, 2), nn.CrossEntropyLoss(), clouds(40), mechanism, sgd, insecure_seed=4)
    assert shown == ["training, epsilon 2.3191 so far"] * 6
    assert "2.3191" in str(run.guarantee.epsilon(1e-5))


def test_delta_must_be_a_probability():
    with pytest.raises(ValueError, match="delta must"):
        fit(
            nn.Linear(5, 2),
            nn.CrossEntropyLoss(),
            clouds(40),
            Mechanism(Poisson(0.2, 10), 1.0),
            sgd,
            delta=0.0,
        )


def test_step_sizes_follow_a_schedule():
    sizes = []

    def schedule(optimizer):
        found = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.register_step_post_hook(lambda *_: sizes.append(optimizer.param_groups[0]["lr"]))
        return found

    fit(
        nn.Linear(5, 2),
        nn.CrossEntropyLoss(),
        clouds(40),
        Mechanism(Poisson(0.2, 4), 1.0),
        sgd,
        schedule=schedule,
    )
    assert sizes == [0.5, 0.25, 0.125, 0.0625]


def test_a_schedule_that_looks_at_a_loss_is_refused():
    with pytest.raises(ValueError, match="ReduceLROnPlateau"):
        fit(
            nn.Linear(5, 2),
            nn.CrossEntropyLoss(),
            clouds(40),
            Mechanism(Poisson(0.2, 4), 1.0),
            sgd,
            schedule=torch.optim.lr_scheduler.ReduceLROnPlateau,
        )


def test_options_reach_the_trainer(tmp_path):
    run = fit(
        nn.Linear(5, 2),
        nn.CrossEntropyLoss(),
        clouds(40),
        Mechanism(Poisson(0.2, 4), 1.0),
        sgd,
        records=50,
        clip_norms=lambda t: 1.0 + t,
        ledger=tmp_path / "run.ledger",
    )
    assert run.guarantee.assuming == ""
    assert ledger.read(tmp_path / "run.ledger").clip_norms == (
        (1.0, 1),
        (2.0, 1),
        (3.0, 1),
        (4.0, 1),
    )


def test_the_examples_of_the_guide_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in guide.split("```python\n")[1:]]
    names = {"print": lambda *words: None}
    ran = [exec(block, names) for block in blocks if not block.startswith("# train.py")]
    assert len(ran) == len(blocks) - 1
    assert ledger.read("long.ledger").complete
    assert ledger.read("schedule.ledger").clip_norms is not None


def test_a_fit_that_fails_lets_go_of_its_ledger(tmp_path):
    """In a notebook the traceback keeps everything alive."""
    model, path = nn.Linear(3, 2), tmp_path / "run.ledger"
    mechanism = Mechanism(Poisson(0.5, 4), 1.0)
    data = torch.randn(20, 3), torch.rand(20)  # targets that are no classes
    with pytest.raises(RuntimeError) as kept:
        fit(
            model,
            nn.CrossEntropyLoss(),
            data,
            mechanism,
            lambda p: torch.optim.SGD(p, 0.1),
            ledger=path,
        )
    assert kept.value.__traceback__ is not None
    with Ledger.open(path, mechanism) as book:
        assert book.released == 0


def test_a_finished_run_lets_go_of_its_ledger_too(tmp_path):
    path = tmp_path / "run.ledger"
    run = fit(
        nn.Linear(3, 2),
        nn.CrossEntropyLoss(),
        (torch.randn(20, 3), torch.randint(0, 2, (20,))),
        Mechanism(Poisson(0.5, 4), 1.0),
        lambda p: torch.optim.SGD(p, 0.1),
        ledger=path,
    )
    with pytest.raises(RunOver):
        Ledger.open(path)
    assert "epsilon" in run.statement()


@pytest.mark.parametrize(
    ("sampler", "least", "most"),
    [
        (Poisson(0.1, 8), Poisson(0.1, 5), Poisson(0.1, 5)),
        (BallsInBins(4, 2), BallsInBins(4, 1), BallsInBins(4, 2)),
    ],
)
def test_an_interruption_tells_what_was_released_and_cost(
    monkeypatch, tmp_path, sampler, least, most
):
    """A part of an epoch is charged as a whole one, and attacked as none."""
    step = PrivateTrainer.step

    def stopping(self, batch, loss):
        if batch.number == 5:
            raise KeyboardInterrupt
        step(self, batch, loss)

    monkeypatch.setattr(PrivateTrainer, "step", stopping)
    path, mechanism = tmp_path / "run.ledger", Mechanism(sampler, 1.0)
    with pytest.raises(
        Interrupted, match=r"^5 of 8 rounds were released, and are spent; with state="
    ) as stopped:
        fit(
            nn.Linear(5, 2),
            nn.CrossEntropyLoss(),
            clouds(),
            mechanism,
            sgd,
            ledger=path,
            progress=False,
        )
    assert isinstance(stopped.value, KeyboardInterrupt)
    found = stopped.value.trainer.so_far.epsilon(1e-5)
    assert found.lower == pytest.approx(
        Mechanism(least, 1.0).guarantee().epsilon(1e-5).lower, rel=5e-3
    )
    assert found.upper == pytest.approx(
        Mechanism(most, 1.0).guarantee().epsilon(1e-5).upper, rel=5e-3
    )
    with Ledger.open(path, mechanism) as book:
        assert book.released == 5
