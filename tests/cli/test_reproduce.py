import json

import pytest
from typer.testing import CliRunner

from verax.cli import app, main
from verax.papers import PAPERS, Row
from verax.papers.how_private import figures

pytest.importorskip("matplotlib")


def test_people_get_the_paper_next_to_ours(tmp_path, monkeypatch):
    monkeypatch.setitem(
        PAPERS, "002", lambda folder, progress: figures.reproduce(folder, progress, every=1000)
    )
    monkeypatch.setattr(figures, "SETTINGS", figures.SETTINGS[3::3])  # figures 4 and 7 will do
    result = CliRunner().invoke(
        app, ["reproduce", "002", "--out", str(tmp_path / "new")], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "in the paper" in result.stdout
    assert ">= 10.994" in result.stdout
    assert "erratum" in result.stdout
    assert "figure 7, delta_S(1): printed for 1, it is the number at 0.5" in result.stdout
    assert "7 files in" in result.stdout


def test_machines_get_the_rows_and_the_names_of_the_files(tmp_path, monkeypatch):
    def small(folder, progress):
        with progress("a part"):
            (folder / "data.csv").write_text("x")
        return [Row("figure 1", "epsilon", ">= 1", ">= 2", "agrees")]

    monkeypatch.setitem(PAPERS, "002", small)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "002", "--json"], catch_exceptions=False)
    answer = json.loads(result.stdout)
    assert answer["folder"] == "verax-002"
    assert answer["files"] == ["data.csv"]
    row = {
        "where": "figure 1",
        "what": "epsilon",
        "paper": ">= 1",
        "here": ">= 2",
        "verdict": "agrees",
        "remark": "",
    }
    assert answer["rows"] == [row]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "reproduce 1984",
            "paper must be one of '000-tables', '001', '002', '003', '004-tables', got '1984'",
        ),
        ("reproduce 002 --out /dev/null/folder", "--out must be a folder that can be written"),
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
