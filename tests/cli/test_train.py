"""verax train on small data."""

import json
import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from typer.testing import CliRunner  # noqa: E402

from verax import (  # noqa: E402
    BallsInBins,
    Mechanism,
    Poisson,
    Shuffle,
    calibrate,
    ledger,
)
from verax.cli import app, main  # noqa: E402
from verax.cli.options import expected_batch  # noqa: E402
from verax.privacy.guarantee import format_bound  # noqa: E402
from verax.privacy.pld.composition import LOWER, UPPER  # noqa: E402
from verax.training import Ledger, PrivateTrainer, fit  # noqa: E402
from verax.training.data.examples import MODELS, load  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def table(tmp_path):
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (200,), generator=rng)
    x = torch.randn(200, 3, generator=rng) + 2.0 * y.unsqueeze(1)
    lines = ["a,b,c,class"] + [
        ",".join(f"{v:.3f}" for v in row) + f",{int(c)}" for row, c in zip(x, y, strict=True)
    ]
    path = tmp_path / "clouds.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def train(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)], catch_exceptions=False)


def test_plan_train_state(table, tmp_path):
    done = train(
        "--data",
        table,
        "--model",
        "logistic",
        "--epsilon",
        3,
        "--batch",
        32,
        "--epochs",
        8,
        "--lr",
        0.1,
        "--json",
        "--ledger",
        tmp_path / "run.ledger",
        "--out",
        tmp_path / "model.pt",
        "--report",
        tmp_path / "report.html",
        "--diagnostics",
        tmp_path / "run.private",
        "--insecure-seed",
        1,
        "--records",
        160,
    )
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["accuracy"] > 0.8
    note, *watched = map(json.loads, (tmp_path / "run.private").read_text().splitlines())
    assert "NOT covered" in note["note"]
    assert watched[-1]["loss"] < watched[0]["loss"]
    assert found["epsilon"]["upper"] <= 3.0
    assert not found["private"]
    assert found["noise_multiplier"] == pytest.approx(
        calibrate.noise_multiplier(Poisson(0.2, 40), 3.0, 1e-5), rel=1e-3
    )
    assert ledger.read(tmp_path / "run.ledger").complete
    assert "0.weight" not in (tmp_path / "report.html").read_text()
    assert "1.weight" in torch.load(tmp_path / "model.pt")


@pytest.mark.parametrize("sampler", ["balls-in-bins", "shuffle"])
def test_other_samplers_and_batch_clipping(table, sampler):
    done = train(
        "--data",
        table,
        "--model",
        "mlp",
        "-z",
        2,
        "--batch",
        40,
        "--epochs",
        2,
        "--sampler",
        sampler,
        "--clipping",
        "batch",
        "--clip-norm",
        0.5,
    )
    assert done.exit_code == 0
    assert "epsilon at most" in done.stdout
    assert "NOT private" not in done.stdout


def numbers(prose):
    """The proved sides of epsilon that a statement begins with, as printed."""
    return re.search(r"less than (\S+):", prose)[1], re.search(
        r"epsilon at most (\S+) at delta", prose
    )[1]


def sides(document):
    return document["epsilon"]["lower"], document["epsilon"]["upper"]


def shown_sides(document):
    lower, upper = sides(document)
    return format_bound(lower, LOWER), format_bound(upper, UPPER)


def say(*words):
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


SAMPLERS = ["poisson", "balls-in-bins", "shuffle"]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_training_the_statement_the_report_and_the_account_name_the_same_numbers(
    table, tmp_path, sampler
):
    run, stated = tmp_path / "run.ledger", tmp_path / "statement.json"
    done = train(
        "--data",
        table,
        "--model",
        "logistic",
        "--epsilon",
        3,
        "--batch",
        32,
        "--epochs",
        4,
        "--sampler",
        sampler,
        "--ledger",
        run,
        "--report",
        stated,
        "--records",
        160,
    )
    printed = numbers(done.stdout)
    statement, reported = json.loads(stated.read_text()), json.loads(say("report", run, "--json"))
    assert printed == shown_sides(statement) == numbers(say("report", run))
    assert sides(statement) == sides(reported)
    assert statement["curve"] == reported["curve"]
    phase = ledger.read(run).mechanism.mechanisms[0]
    priced = [
        "account",
        "-z",
        phase.noise_multiplier,
        "--sampler",
        sampler,
        "--records",
        160,
        "--batch",
        32,
        "--epochs",
        4,
        "--delta",
        1e-7,
        "--delta",
        1e-5,
        "--json",
    ]
    account = json.loads(say(*priced))
    assert account["mechanism"] == repr(phase)
    assert (account["epsilon"][1]["lower"], account["epsilon"][1]["upper"]) == sides(statement)


@pytest.mark.parametrize(
    "sampler", [Poisson(0.178, 57), BallsInBins(6, 10), Shuffle(6, 10)], ids=SAMPLERS
)
def test_questions_about_a_run_do_not_move_the_numbers_of_its_report(table, tmp_path, sampler):
    data = load(str(table)).train
    model, path = torch.nn.Linear(3, 2), tmp_path / "run.ledger"
    run = fit(
        model,
        torch.nn.CrossEntropyLoss(),
        data,
        Mechanism(sampler, 2.1414),
        lambda p: torch.optim.SGD(p, 0.1),
        ledger=path,
        progress=False,
    )
    run.guarantee.tradeoff()
    run.guarantee.epsilon(1e-6, rtol=1e-4)
    first = run.statement(tmp_path / "first.json")
    again = run.statement(tmp_path / "again.json")
    assert numbers(first) == numbers(again) == numbers(say("report", path))
    reported = json.loads(say("report", path, "--json"))
    for name in ("first.json", "again.json"):
        assert sides(json.loads((tmp_path / name).read_text())) == sides(reported)
    found = run.guarantee.epsilon(1e-5)
    assert (found.lower, found.upper) == sides(reported)


def test_batches_suit_small_data_unless_they_are_given(table):
    words = "--data", table, "--model", "logistic", "-z", 2, "--epochs", 1, "--records", 160
    done = train(*words, "--json")
    assert "Poisson(rate=0.25, steps=4)" in json.loads(done.stdout)["mechanism"]
    assert (
        "Poisson(rate=1.0, steps=1)"
        in json.loads(train(*words, "--json", "--batch", 160).stdout)["mechanism"]
    )
    for sampler in ("poisson", "shuffle"):
        with pytest.raises(ValueError, match=r"^--batch must be at most .* 160, got 161$"):
            train(*words, "--batch", 161, "--sampler", sampler)
    with pytest.raises(ValueError, match=r"--batch must be .* got 0"):
        train(*words, "--batch", 0)


@pytest.mark.parametrize(
    ("records", "batch"), [(1, 1), (5, 1), (160, 40), (1023, 255), (1024, 256), (60000, 256)]
)
def test_the_batch_size_for_so_many_records(records, batch):
    assert expected_batch(None, records) == batch


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--data", "digits"], "either --epsilon, or"),
        (["--data", "faces", "-z", "1"], "data must be digits"),
        (["--data", "none.csv", "-z", "1"], "readable CSV"),
        (
            ["-z", "1", "--clip-groups", "3"],
            "--clip-groups 3 is for --clipping mixed, got --clipping individual",
        ),
        (["-z", "1", "--clip-norm", "nan"], "--clip-norm must be"),
        (["-z", "1", "--lr", "nan"], "--learning-rate must be"),
        (
            ["--data", "none.csv", "-z", "1", "--report", "o.pdf"],
            r"path must end in \.html.*got 'o\.pdf'",
        ),
    ],
)
def test_bad_input_is_one_line(words, complaint):
    with pytest.raises(ValueError, match=complaint):
        train(*words)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "at least 5"),
        ("a,b\n" + "1,x\n" * 6, "line 2"),
        ("a,b\n" + "1,2,3\n" * 6, "line 2"),
        ("a,b\n1,2\n1,nan\n" + "1,2\n" * 6, "line 3: .*got 'nan' in column 'b'"),
        ("a,b\n1,2\n\n1e39,1\n" + "1,2\n" * 6, "line 4: .*got '1e39' in column 'a'"),
        ("1,2\n" * 8, "begin with a line of names"),
        ("\ufeff1,2\n" * 8, "begin with a line of names"),
        ("a;b\n" + "1;2\n" * 8, "commas between them, got one"),
        ("a,b\n" + "1,2\n" * 8, "got 1 different numbers"),
        ("a,b\n" + "1,0.5\n2,1\n" * 8, "whole numbers in the last column, 'b'"),
    ],
)
def test_a_bad_table_names_the_line(tmp_path, text, complaint):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        train("--data", path, "-z", "1")


def test_records_that_are_held_out_are_so_whoever_else_is_there(table):
    """Neighbouring files differ in one record to train on, or in none."""
    whole = load(str(table))
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], "16777217,0,0,1", *lines[1:], "", ""]))
    more = load(str(table))
    kept = {tuple(row) for part in (whole.train, whole.test) for row in part[0].tolist()}
    grown = [[tuple(row) for row in part[0].tolist()] for part in (more.train, more.test)]
    assert [len([row for row in rows if row in kept]) for rows in grown] == [
        len(whole.train[1]),
        len(whole.test[1]),
    ]
    assert 0.1 < len(whole.test[1]) / 200 < 0.3


def test_large_numbers_of_classes_are_told_apart(tmp_path):
    path = tmp_path / "large.csv"
    path.write_text("a,class\n" + "".join(f"{i},{16777216 + i % 2}\n" for i in range(50)))
    assert load(str(path)).classes == 2


@pytest.mark.parametrize("records", [[], ["--records", 200]])
def test_what_is_taken_to_be_public_is_said(table, tmp_path, records):
    words = ["--data", table, "--model", "logistic", "-z", 2, "--epochs", 1, *records]
    said = train(*words, "--ledger", tmp_path / "run.ledger").stdout
    assert ("that there are 154 records to train on" in said) is (
        "that the number of records is public" in said
    )
    assert ("that there are 154 records to train on" in said) is (not records)
    assert "that there are 2 classes" in said
    assert json.loads(train(*words, "--json").stdout)["taken_to_be_public"]
    assert json.loads(train("-z", 2, "--epochs", 1, "--json").stdout)["taken_to_be_public"] == ""


def test_a_large_delta_and_no_noise_are_warned_of():
    said = train("-z", 1, "--epochs", 1, "--delta", 0.5).stdout
    assert "Delta 0.5 is too large for 1,438 records." in said
    found = train("-z", 0, "--epochs", 1, "--json", "--model", "logistic")
    assert json.loads(found.stdout)["private"] is False


def interrupted(monkeypatch, capsys, at, *words):
    """What is said on standard error after Ctrl-C in this round."""
    step = PrivateTrainer.step

    def stopping(self, batch, loss):
        if batch.number == at:
            raise KeyboardInterrupt
        step(self, batch, loss)

    monkeypatch.setattr("sys.argv", ["verax", "train", *map(str, words)])
    with monkeypatch.context() as patch:
        patch.setattr(PrivateTrainer, "step", stopping)
        with pytest.raises(SystemExit, match="130"):
            main()
    return capsys.readouterr().err


PRICED = (
    r"(\d+) of (\d+) rounds were released\. They cost an epsilon between (\S+) and (\S+) at delta "
    r"1e-05 "
    r"if .* at most (\S+), "
)


@pytest.mark.parametrize("book", [True, False])
def test_after_an_interruption_it_is_said_what_was_spent_and_how_to_go_on(
    table, tmp_path, monkeypatch, capsys, book
):
    kept = ["--ledger", tmp_path / "book", "--records", 160] if book else []
    words = [
        "--data",
        table,
        "-z",
        2,
        "--batch",
        20,
        "--epochs",
        2,
        "--state",
        tmp_path / "state",
        *kept,
    ]
    said = interrupted(monkeypatch, capsys, 5, *words)
    released, declared, lower, upper, whole = re.search(PRICED, said).groups()
    assert (released, declared) == ("5", "16")
    sampler = Poisson(0.125 if book else 20 / 154, 16)
    so_far = Mechanism(replace(sampler, steps=5), 2.0).guarantee().epsilon(1e-5)
    assert (float(lower), float(upper)) == pytest.approx((so_far.lower, so_far.upper), rel=5e-3)
    assert float(whole) == pytest.approx(
        Mechanism(sampler, 2.0).guarantee().epsilon(1e-5).upper, rel=5e-3
    )
    assert f"The run is kept in {tmp_path / 'state'}: the same command goes on with it." in said
    assert "NOT private" not in said


def test_without_a_state_it_is_said_that_the_run_is_lost_and_spent(
    table, tmp_path, monkeypatch, capsys
):
    words = [
        "--data",
        table,
        "-z",
        2,
        "--batch",
        20,
        "--epochs",
        2,
        "--ledger",
        tmp_path / "book",
        "--insecure-seed",
        1,
    ]
    said = interrupted(monkeypatch, capsys, 5, *words)
    assert re.search(PRICED, said)
    assert (
        "Without --state nothing can go on with this run; another one costs its own epsilon on top"
        in said
    )
    assert f"verax report {tmp_path / 'book'} states what was released." in said
    assert "NOT private" in said


def test_a_round_that_only_the_ledger_knows_is_counted(table, tmp_path, monkeypatch, capsys):
    """Ctrl-C between the ledger's line and all that comes after it."""
    release = Ledger.release

    def stopping(self, number, **what):
        release(self, number, **what)
        if number == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "release", stopping)
    words = ["--data", table, "-z", 2, "--batch", 20, "--epochs", 2, "--ledger", tmp_path / "book"]
    assert interrupted(monkeypatch, capsys, None, *words).startswith(
        "4 of 16 rounds were released."
    )
    assert ledger.read(tmp_path / "book").released == 4


def test_an_interruption_before_the_first_round_spends_nothing(table, monkeypatch, capsys):
    said = interrupted(monkeypatch, capsys, 0, "--data", table, "-z", 2)
    assert said.startswith("0 of ")
    assert said.endswith("rounds were released: nothing was spent.\nverax: interrupted\n")


def test_models_that_do_not_fit_the_data(table):
    for model in ("lenet", "cnn"):
        with pytest.raises(ValueError, match="use logistic or mlp"):
            train("--data", table, "--model", model, "-z", "1")
    with pytest.raises(ValueError, match="use cnn"):
        MODELS["lenet"]((3, 32, 32), 10)


def test_the_same_command_goes_on_after_an_interruption(table, tmp_path, monkeypatch):
    words = (
        "--data",
        table,
        "--model",
        "logistic",
        "-z",
        2,
        "--batch",
        20,
        "--epochs",
        2,
        "--json",
        "--ledger",
        tmp_path / "run.ledger",
        "--state",
        tmp_path / "state",
    )
    step = PrivateTrainer.step

    def stopping(self, batch, loss):
        if batch.number == 7:
            raise KeyboardInterrupt
        step(self, batch, loss)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateTrainer, "step", stopping)
        assert train(*words).exit_code == 130
    assert ledger.read(tmp_path / "run.ledger").released == 7
    done = train(*words)
    assert done.exit_code == 0
    assert ledger.read(tmp_path / "run.ledger").complete
    assert json.loads(done.stdout)["epsilon"]["upper"] < 20.0


@pytest.mark.parametrize("option", ["--out", "--report", "--state"])
def test_places_that_cannot_be_written_are_refused_before_anything_is_spent(tmp_path, option):
    book = tmp_path / "run.ledger"
    for place in (tmp_path / "none" / "file", tmp_path):
        with pytest.raises(ValueError, match=f"{option} must be a file in an existing folder"):
            train("--data", "digits", "-z", "1", option, place, "--ledger", book)
    assert not book.exists()


@pytest.mark.parametrize(
    "pair", [("--state", "--out"), ("--ledger", "--state"), ("--ledger", "--out")]
)
def test_one_file_is_not_two_things(tmp_path, pair):
    with pytest.raises(ValueError, match=f"{pair[0]} and {pair[1]} must be different files"):
        train(
            "--data",
            "digits",
            "-z",
            "1",
            pair[0],
            tmp_path / "file",
            pair[1],
            tmp_path / "." / "file",
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("default")
def test_a_finished_run_is_stated_and_saved_again(table, tmp_path, monkeypatch, capsys):
    """As after a crash between the last round and what comes after it."""
    words = [
        "--data",
        table,
        "--model",
        "logistic",
        "-z",
        2,
        "--batch",
        100,
        "--epochs",
        1,
        "--json",
        "--ledger",
        tmp_path / "book",
        "--state",
        tmp_path / "state",
        "--out",
        tmp_path / "weights",
    ]
    first = json.loads(train(*words).stdout)
    (tmp_path / "weights").rename(tmp_path / "before")
    monkeypatch.setattr("sys.argv", ["verax", "train", *map(str, words)])
    with pytest.raises(SystemExit, match="0"):
        main()
    printed = capsys.readouterr()
    assert json.loads(printed.out) == first
    assert printed.err.startswith(
        f"verax: the run in {tmp_path / 'state'} is over: nothing was trained, "
    )
    assert printed.err.count("\n") == 1
    then, now = (torch.load(tmp_path / name, weights_only=True) for name in ("before", "weights"))
    assert all(torch.equal(then[name], now[name]) for name in then)


def test_lenet_scales_small_images():
    done = train("--data", "digits", "--model", "lenet", "-z", "1", "--epochs", "1", "--json")
    found = json.loads(done.stdout)
    assert 0.0 <= found["accuracy"] <= 1.0


def test_mnist_needs_its_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("VERAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("verax.training.data.examples._MNIST_AT", "http://127.0.0.1:9/")
    with pytest.raises(ValueError, match="VERAX_DATA"):
        train("--data", "mnist", "-z", "1")
    monkeypatch.setenv("VERAX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="cannot be read"):
        train("--data", "mnist", "-z", "1")
