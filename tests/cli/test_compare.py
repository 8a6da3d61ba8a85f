import json

import pytest
from typer.testing import CliRunner

from verax import Batch
from verax.cli import app, main
from verax.reporting.comparison import compare

WORDS = ["compare", "-z", "0.7", "--batches", "1000", "--delta", "1e-5"]


def invoke(*words):
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_people_get_one_table_with_the_proofs_below():
    shown = invoke(*WORDS)
    assert "epsilon at delta = 1e-05: noise 0.7, 1000 batches, 1 epoch, 100000 records" in shown
    assert "│ 6.5286   │ 6.6525" in shown
    assert "how private is DP-SGD" in shown
    assert "1.00 to 1.00" in shown


def test_machines_get_the_same_numbers():
    answer = json.loads(invoke(*WORDS, "--epochs", "2", "--clipping", "batch", "--json"))
    rows = compare(0.7, 1000, 2, delta=1e-5, clipping=Batch())
    assert [row["name"] for row in answer["rows"]] == [row.name for row in rows]
    for row, printed in zip(rows, answer["rows"], strict=True):
        assert printed["sampler"] == repr(row.sampler)
        if row.bracket is None:
            assert printed["bracket"] is None
            assert printed["why_not"]
        else:
            assert printed["bracket"]["upper"] == row.bracket.upper
            assert printed["bracket"]["lower_by"]
            assert printed["why_not"] is None
    assert next(row for row in answer["rows"] if row["name"] == "Poisson")["against_poisson"] == [
        1.0,
        1.0,
    ]


def test_delta_at_an_epsilon():
    answer = json.loads(
        invoke("compare", "-z", "0.8", "--batches", "1000", "--epsilon", "1", "--json")
    )
    assert answer["quantity"] == "delta at epsilon = 1.0"
    fixed = next(row["bracket"] for row in answer["rows"] if row["name"] == "fixed")
    assert fixed["lower"] <= 0.22102 <= fixed["upper"] * 1.001


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_goes_where_it_is_wanted(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"samplers.{suffix}"
    assert f"samplers.{suffix}" in invoke(*WORDS, "--figure", str(path))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare -z 1 --batches 10", "give either --delta or --epsilon"),
        ("compare -z 1 --batches 10 --delta 1e-5 --epsilon 1", "give either --delta or --epsilon"),
        (
            "compare -z 1 --batches 0 --delta 1e-5",
            "batches must be a whole number of at least 1, got 0",
        ),
        (
            "compare -z 1 --batches 9 --epochs 0 --delta 1e-5",
            "epochs must be a whole number of at least 1, got 0",
        ),
        ("compare -z 1 --batches 10 --delta 2", "delta must lie strictly between 0 and 1, got 2.0"),
        ("compare -z -1 --batches 10 --delta 1e-5", "noise_multiplier must be at least 0"),
        (
            "compare -z 1 --batches 10 --records 5 --delta 1e-5",
            "records must be a whole number of at least 10, got 5",
        ),
        (
            "compare -z 1 --batches 10 --delta 1e-5 --figure a.doc",
            "must end in .png, .svg, .pdf, got 'a.doc'",
        ),
        (
            "compare -z 1 --batches 10 --delta 1e-5 --figure /dev/null/a.png",
            "--figure must name a place",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["verax", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
