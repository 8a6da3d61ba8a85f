"""verax plan utility, as a command of its own."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from verax.cli.plan_utility import utility
from verax.planning.utility import PrivateData, read

QUICK = [
    "--clip-norms",
    "1,2",
    "--sigmas",
    "0.02:1",
    "--points",
    "4",
    "--epochs",
    "2",
    "--draws",
    "3",
    "--insecure-seed",
    "1",
]


def invoke(*arguments):
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(utility)
    return CliRunner().invoke(app, [*arguments])


def test_table_file_and_figure(tmp_path):
    pytest.importorskip("matplotlib")
    out, drawn = tmp_path / "graph.json", tmp_path / "graph.svg"
    done = invoke(
        "--public",
        *QUICK,
        "--out",
        str(out),
        "--figure",
        str(drawn),
        "--drop",
        "0.3",
        "--draws",
        "150",
    )
    assert done.exit_code == 0, done.output
    assert "most noise within a drop of 0.3: sigma" in done.output
    assert "WARNING" not in done.output
    assert len(read(out).lines) == 2
    assert drawn.read_text().startswith("<?xml")


def test_private_data_are_warned_of_in_words_and_in_the_file(tmp_path):
    out = tmp_path / "graph.json"
    done = invoke("--private", *QUICK, "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["public"] is False
    assert "private data" in found["warning"]
    with pytest.warns(PrivateData):
        read(out)


def test_nothing_within_the_drop():
    done = invoke("--private", *QUICK, "--sigmas", "5:50", "--drop", "0.01")
    assert "no sigma that was tried" in done.output
    assert "WARNING" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say --public"),
        (["--public", "--clip-norms", "1,x"], "--clip-norms must be"),
        (["--public", "--sigmas", "1"], "--sigmas must be two"),
        (["--public", "--sigmas", "1:0.1"], "from a smaller"),
        (["--public", "--points", "1"], "--points must be"),
        (["--public", "--figure", "graph.txt"], "must end in"),
        (["--public", "--data", "none.csv"], "none.csv"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    done = invoke(*arguments)
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
