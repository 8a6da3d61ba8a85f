"""verax federate on small data."""

import json
import os
import re
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

import numpy as np  # noqa: E402
import typer  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from verax import ledger  # noqa: E402
from verax.cli import app as whole_app  # noqa: E402
from verax.cli.federate import federate  # noqa: E402
from verax.federated.splits import dealt, owned, split  # noqa: E402
from verax.privacy.guarantee import Bracket  # noqa: E402
from verax.training.data.examples import Examples  # noqa: E402

torch.set_num_threads(1)
federate_module = sys.modules["verax.cli.federate"]  # the package has the command under this name
app = typer.Typer()
app.command()(federate)
FEW = ("--client-rate", 1, "--record-rate", 0.3, "--rounds", 12, "--model", "logistic", "--lr", 0.1)


@pytest.fixture
def table(tmp_path):
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (300,), generator=rng)
    x = torch.randn(300, 2, generator=rng) + 2.0 * y.unsqueeze(1)
    shop = torch.randint(0, 6, (300,), generator=rng)
    lines = ["a,shop,b,class"]
    lines += [
        f"{u:.3f},{int(s)},{v:.3f},{int(c)}"
        for (u, v), s, c in zip(x.tolist(), shop, y, strict=True)
    ]
    path = tmp_path / "shops.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_plan_train_state(table, tmp_path):
    done = run(
        "--data",
        table,
        "--by",
        "shop",
        "--epsilon",
        6,
        *FEW,
        "--json",
        "--ledger",
        tmp_path / "run.ledger",
        "--log",
        tmp_path / "run.log",
        "--out",
        tmp_path / "model.pt",
        "--report",
        tmp_path / "report.html",
        "--insecure-seed",
        1,
    )
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["accuracy"] > 0.85
    assert found["plan"]["clients"] == 6
    assert found["plan"]["records"] == 240
    assert found["epsilon"]["upper"] <= 6.0
    assert found["epsilon_of_smallest_client"]["upper"] <= found["epsilon"]["upper"] * (1 + 1e-6)
    assert not found["private"]
    assert ledger.read(tmp_path / "run.ledger").complete
    entries = [json.loads(line) for line in (tmp_path / "run.log").read_text().splitlines()]
    assert entries == found["log"]
    assert [entry["round"] for entry in entries] == list(range(1, 13))
    so_far = [entry["epsilon_so_far"][1] for entry in entries]
    assert so_far == sorted(so_far)
    assert so_far[-1] == pytest.approx(found["epsilon"]["upper"], rel=0.01)
    assert "NOT private" in (tmp_path / "report.html").read_text()
    # the column of clients is no feature
    assert torch.load(tmp_path / "model.pt")["1.weight"].shape == (2, 2)


@pytest.mark.parametrize("budget", ["4", "2.3456", "1.9999999"])
def test_no_printed_epsilon_is_above_the_budget_nor_the_fewest_above_the_most(table, budget):
    done = run("--data", table, "--by", "shop", "--epsilon", budget, *FEW)
    ranges = re.findall(r"so far (\S+) to (\S+)", done.stdout)
    ranges += re.findall(r"epsilon from (\S+) \(fewest records\) to (\S+) \(most\)", done.stdout)
    assert len(ranges) == 13
    for low, high in ranges:
        assert float(low) <= float(high) <= float(budget)
    assert [float(high) for _, high in ranges] == sorted(float(high) for _, high in ranges)
    assert float(ranges[-1][1]) > 0.99 * float(budget)


def test_a_rough_epsilon_so_far_is_never_above_that_of_the_whole_run():
    """Two upper bounds of nearly the same number, each rounded up by itself: 4.01 of 4, and 2.321
    of 2.320.
    """

    class Rough:
        plan = SimpleNamespace(rounds=20, bins=None)
        sizes = np.array([3, 9])
        round = 19

        def epsilons(self, delta):
            return Bracket(2.0, 2.31, "", "", ""), Bracket(2.0, 2.32, "", "", "")

    class RoughPlan:
        def guarantee(self, size):
            return SimpleNamespace(
                epsilon=lambda delta, rtol: Bracket(2.0, 2.40 - 0.01 * size, "", "", "")
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federate_module, "replace", lambda plan, rounds: RoughPlan())
        spent = federate_module._Spent(Rough(), 1e-5, 2.32)
        assert spent.so_far() == [2.31, 2.31]
        Rough.round = 20
        assert spent.so_far() == [2.31, 2.32]
    assert (spent.shown(2.31999), spent.shown(2.3199999), spent.shown(2.5)) == (
        "2.3200",
        "2.3200",
        "2.5000",
    )
    assert federate_module._Spent(Rough(), 1e-5, 2.345678).shown(2.345672) == "2.345672"
    assert federate_module._Spent(Rough(), 1e-5, None).shown(2.345672) == "2.3457"


def test_flower_ends_with_the_weights_of_the_embedded_engine(table, tmp_path):
    pytest.importorskip("flwr", reason="the engine needs flwr: pip install 'verax[federated]'")
    words = ("--data", table, "--clients", 2, "-z", 4, *FEW, "--rounds", 2, "--insecure-seed", 7)
    found = {}
    for engine in ("embedded", "flower"):
        book, out = tmp_path / f"{engine}.ledger", tmp_path / f"{engine}.pt"
        done = run(*words, "--engine", engine, "--ledger", book, "--out", out, "--json")
        assert done.exit_code == 0
        assert ledger.read(book).complete
        found[engine] = json.loads(done.stdout), torch.load(out)
    (one, weights), (other, same) = found.values()
    assert [entry["round"] for entry in other["log"]] == [1, 2]
    assert other["epsilon"] == one["epsilon"]
    for name, values in weights.items():
        torch.testing.assert_close(same[name], values, rtol=2e-5, atol=2e-6)


def test_progress_never_tells_who_or_how_many_took_part(table):
    words = (
        "--data",
        table,
        "--clients",
        8,
        "-z",
        4,
        *FEW,
        "--client-rate",
        0.5,
        "--rounds",
        2,
        "--noise",
        "visible",
    )
    log = json.loads(run(*words, "--json").stdout)["log"]
    assert {entry["participants_expected"] for entry in log} == {4.0}
    assert set(log[0]) == {
        "round",
        "rounds",
        "participants_expected",
        "accuracy",
        "epsilon_so_far",
        "delta",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--noise", "local"), "holds more than noise"),
        (("--noise", "visible"), "may see who takes part"),
        (("--unit", "client"), "Any 1 client with all its records is protected"),
        (("--unit", "client", "--client-rate", 0.25, "--bins", 4), "BallsInBins"),
    ],
)
def test_modes(table, words, said):
    done = run("--data", table, "--clients", 8, "-z", 4, *FEW, *words)
    assert done.exit_code == 0
    assert "round 12 of 12" in done.stdout
    assert "epsilon at most" in done.stdout
    assert said in done.stdout


def test_clients_are_what_is_protected_here_and_in_the_report_of_the_ledger(table, tmp_path):
    words = (
        "--data",
        table,
        "--clients",
        8,
        "-z",
        4,
        *FEW,
        "--unit",
        "client",
        "--ledger",
        tmp_path / "run.ledger",
    )
    assert json.loads(run(*words, "--json").stdout)["statement"]["protected"]["unit"] == "client"
    told = CliRunner().invoke(
        whole_app, ["report", str(tmp_path / "run.ledger"), "--json"], catch_exceptions=False
    )
    assert json.loads(told.stdout)["protected"] == {
        "unit": "client",
        "group": 1,
        "words": "any 1 client with all its records",
    }


def test_a_run_that_broke_off_goes_on(table, tmp_path, monkeypatch):
    from verax.federated import Embedded

    words = (
        "--data",
        table,
        "--clients",
        8,
        "-z",
        4,
        *FEW,
        "--ledger",
        tmp_path / "l",
        "--state",
        tmp_path / "s",
    )
    step = Embedded.step

    def power_cut(self):
        step(self)
        if self.round == 5:
            self.server.close()
            raise KeyboardInterrupt

    monkeypatch.setattr(Embedded, "step", power_cut)
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code != 0
    monkeypatch.setattr(Embedded, "step", step)
    assert ledger.read(tmp_path / "l").released == 5
    whole = (tmp_path / "l").read_bytes()
    (tmp_path / "l").write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    with pytest.raises(ValueError, match="state must not be ahead of the ledger, got 5 rounds"):
        run(*words, "--resume")
    (tmp_path / "l").write_bytes(whole)
    (tmp_path / "bad").write_bytes(b"no state")
    with pytest.raises(ValueError, match="state must be a file that this kind of server wrote"):
        run(*words, "--resume", "--state", tmp_path / "bad")
    done = run(*words, "--resume")
    assert done.exit_code == 0
    assert "round 6 of 12" in done.stdout
    assert ledger.read(tmp_path / "l").complete


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "either --epsilon, or --noise-multiplier"),
        (("-z", 1, "--resume"), "--resume needs --ledger and --state"),
        (("-z", 1, "--report", "o.pdf"), "path must end in .html"),
        (("-z", 1, "--by", "town"), "by must be one of the columns 'a', 'shop', 'b', got 'town'"),
        (("-z", 1, "--by", "shop", "--clients", 3), "clients must not be given with by='shop'"),
        (("-z", 1, "--clients", 1000), "clients must be at most the number of records, 240"),
        (("-z", 1, "--client-rate", 2), "client_rate must lie in"),
        (("-z", 1, "--data", "digits", "--by", "shop"), "where nothing names a client"),
        (("-z", 1, "--data", "heart", "--clients", 3), "whose clients are four hospitals"),
    ],
)
def test_bad_input_is_said_in_words(table, words, message):
    with pytest.raises(ValueError, match=message):
        run("--data", table, *words)


def test_names_of_columns_are_shown_and_not_obeyed(table):
    table.write_text("\ufeff" + table.read_text().replace("a,shop", "\x1b[2Ja\u202e,shop"))
    with pytest.raises(ValueError, match="by must be one of the columns") as error:
        run("--data", table, "-z", 1, "--by", "town")
    assert str(error.value).isprintable()
    # the mark at the file's beginning is no part of it
    assert len(split(str(table), by="\x1b[2Ja\u202e").sizes) > 1


def test_splits_keep_every_record_with_its_class():
    x = torch.arange(10.0).unsqueeze(1)
    data = Examples((x, torch.arange(10) % 2), (x[:1], torch.zeros(1).long()), 2)
    for found in (dealt(data, 3), owned(data, (x[:, 0] // 4).numpy())):
        rows = found.examples.train[0][:, 0]
        assert sorted(rows.tolist()) == list(range(10))
        assert torch.equal(found.examples.train[1], rows.long() % 2)
    assert dealt(data, 3).sizes.tolist() == [4, 3, 3]
    assert dealt(data, 3).examples.train[0][:4, 0].tolist() == [0.0, 3.0, 6.0, 9.0]


def test_real_clients_need_their_files(monkeypatch, tmp_path):
    monkeypatch.delenv("VERAX_DATA", raising=False)
    with pytest.raises(ValueError, match="VERAX_DATA, which is not set"):
        split("heart")
    monkeypatch.setenv("VERAX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="which cannot be read"):
        split("heart")


@pytest.mark.slow
@pytest.mark.skipif("VERAX_DATA" not in os.environ, reason="needs the data sets")
def test_writers_and_hospitals():
    writers = split("mnist", by="writer")
    assert (len(writers.sizes), int(writers.sizes.sum())) == (539, 60_000)
    hospitals = split("heart")
    assert len(hospitals.sizes) == 4
    assert int(hospitals.sizes.sum()) == 736


def test_bins_say_how_often_a_client_takes_part(table):
    words = ("--data", table, "--clients", 8, "-z", 4, "--rounds", 4, "--model", "logistic")
    done = run(*words, "--unit", "client", "--bins", 4)
    assert done.exit_code == 0
    assert "BallsInBins" in done.stdout
    with pytest.raises(ValueError, match=r"client_rate must be 1 / bins = 0.25, got 0.5"):
        run(*words, "--unit", "client", "--bins", 4, "--client-rate", 0.5)


def test_the_example_of_the_help_can_be_copied():
    text = run("--help").stdout
    assert "verax federate --data digits --clients 36 --rounds 100 --epsilon 4" in " ".join(
        text.split()
    )
