"""A finished run that is called again: the same is said of it, and nothing is trained."""

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402

from verax import (  # noqa: E402
    Individual,
    Mechanism,
    Poisson,
    ledger,
)
from verax.training import PrivateTrainer, fit  # noqa: E402

torch.set_num_threads(1)
X, Y = torch.randn(60, 5), torch.randint(0, 3, (60,))
MECHANISM = Mechanism(Poisson(0.3, 8), 1.0, Individual(0.5))
LOSS = nn.CrossEntropyLoss()
OVER = "is over: nothing was trained, the last weights that it kept were loaded"


@pytest.fixture(autouse=True)
def _every_round(monkeypatch):
    monkeypatch.setattr("verax.training.checkpoint_file._SHARE", 1e9)


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(5, 3)


def run(folder, book=None, seed=0, model=None, stop=None, lr=0.1, **more):
    """The model and the run, or Ctrl-C in a round."""
    model = model or make(seed)
    step = PrivateTrainer.step

    def stopping(self, batch, loss):
        if batch.number == stop:
            raise KeyboardInterrupt
        step(self, batch, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateTrainer, "step", stopping)
        return model, fit(
            model,
            LOSS,
            (X, Y),
            MECHANISM,
            lambda p: torch.optim.Adam(p, lr),
            state=folder / "state",
            ledger=book and folder / book,
            **more,
        )


def interrupted(folder, **more):
    with pytest.raises(KeyboardInterrupt):
        run(folder, stop=4, **more)


BOOKS = pytest.mark.parametrize("book", ["run.ledger", None])


@BOOKS
@pytest.mark.parametrize("broken", [False, True])
def test_weights_and_statement_are_given_again(tmp_path, book, broken):
    if broken:
        interrupted(tmp_path, book=book)
    model, first = run(tmp_path, book)
    noted = (tmp_path / book).read_bytes() if book else b""
    for seed in (3, 4):
        with pytest.warns(UserWarning, match=OVER):
            again, same = run(tmp_path, book, seed=seed)
        assert torch.equal(again.weight, model.weight)
        assert same.trainer.rounds == 8
        assert str(same.statement()) == str(first.statement())
    assert ("that nobody saw a round" in same.guarantee.assuming) == (broken and book is None)
    with pytest.raises(ledger.LeftMechanism):
        same.trainer.step(None, LOSS)
    assert ((tmp_path / book).read_bytes() if book else b"") == noted


@BOOKS
@pytest.mark.parametrize("broken", [False, True])
def test_a_seed_is_never_forgotten(tmp_path, book, broken):
    """Also by a program that does not give it any more, and before its first batch."""
    (interrupted if broken else run)(tmp_path, book=book, insecure_seed=5)
    model = make()
    trainer = PrivateTrainer(
        model,
        torch.optim.Adam(model.parameters(), 0.1),
        MECHANISM,
        state=tmp_path / "state",
        ledger=book and tmp_path / book,
    )
    assert trainer.rounds == (4 if broken else 8)
    assert not trainer.statement(1e-5).facts.private
    trainer.close()


def test_its_state_is_read_and_not_written(tmp_path, monkeypatch):
    model, _ = run(tmp_path)
    held = (tmp_path / "state").stat()
    with pytest.raises(
        ValueError,
        match=r"model must be that of the saved run, got torch.bfloat16 for torch.float32",
    ):
        run(tmp_path, model=make(5).bfloat16())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.warns(UserWarning, match=OVER):
        again, _ = run(tmp_path, seed=2)
    assert torch.equal(again.weight, model.weight)
    assert (tmp_path / "state").stat() == held


def test_it_does_not_take_an_older_state_or_another_runs_for_its_end(tmp_path):
    interrupted(tmp_path, book="run.ledger")
    old = (tmp_path / "state").read_bytes()
    run(tmp_path, "run.ledger")
    end = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(old)
    with pytest.raises(
        ValueError, match="must hold the end of the run, which is over, got 4 of 8 rounds"
    ):
        run(tmp_path, "run.ledger")
    (tmp_path / "other").mkdir()
    interrupted(tmp_path / "other", book="run.ledger")
    (tmp_path / "state").write_bytes((tmp_path / "other" / "state").read_bytes())
    with pytest.raises(ValueError, match="got one of another run"):
        run(tmp_path, "run.ledger")
    (tmp_path / "state").write_bytes(end)
    with pytest.warns(UserWarning, match=OVER):
        run(tmp_path, "run.ledger")


@BOOKS
@pytest.mark.parametrize("broken", [False, True])
def test_it_keeps_the_public_number_of_records(tmp_path, book, broken):
    (interrupted if broken else run)(tmp_path, book=book, records=1000)
    for other in (None, 60):
        with pytest.raises(ValueError, match=f"records must be.* 1000 .*, got {other}"):
            run(tmp_path, book, records=other)


@BOOKS
@pytest.mark.parametrize("broken", [False, True])
def test_another_learning_rate_is_not_ignored(tmp_path, book, broken):
    (interrupted if broken else run)(tmp_path, book=book)
    with pytest.raises(
        ValueError, match=r"optimizer must have the lr 0\.1 that the run began with, got 0\.3"
    ):
        run(tmp_path, book, lr=0.3)


def test_other_parameters_are_refused_in_words(tmp_path):
    interrupted(tmp_path)
    other = make()
    other.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="optimizer must be over the parameters of the saved run"):
        run(tmp_path, model=other)


def test_a_ledger_that_the_run_never_had_is_refused_in_words(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(ValueError, match="leave it out if that run had none"):
        run(tmp_path, "run.ledger")


@pytest.mark.skipif(sys.platform == "win32", reason="files are not held there")
def test_an_empty_file_that_was_there_stays(tmp_path):
    (tmp_path / "state").touch()
    (tmp_path / "run.ledger").write_text("something else\n")
    with pytest.raises(ledger.LedgerError):
        run(tmp_path, "run.ledger")
    assert (tmp_path / "state").exists()
