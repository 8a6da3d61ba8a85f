"""verax report: the statement of what ran, for people and for machines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verax import Mechanism, Poisson, Shuffle
from verax.cli import app, main
from verax.durable import FIRST_HASH, chain_line, encode
from verax.training import Ledger

RUN = Mechanism(Poisson(0.01, 20), 1.0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def written(path, rounds, mechanism=RUN, reason="", private=False, **facts):
    with Ledger.create(path, mechanism, **facts) as book:
        for number in range(rounds):
            book.release(number, clip_norm=1.0, noise_multiplier=mechanism.noise_multiplier)
        if reason:
            book.stop(reason, private=private)
        elif rounds == len(mechanism.sampler):
            book.finish()
    return str(path)


@pytest.fixture
def whole(tmp_path):
    return written(tmp_path / "whole.ledger", 20)


@pytest.fixture
def part(tmp_path):
    return written(tmp_path / "part.ledger", 5)


def said(*words):
    result = CliRunner().invoke(app, ["report", *words, "--delta", "1e-5"], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_delta_is_that_of_fit_and_of_verax_train_if_none_is_given(whole):
    result = CliRunner().invoke(app, ["report", whole], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == said(whole)


def facts(*words):
    return json.loads(said(*words, "--json"))


@pytest.fixture
def failed(monkeypatch, capsys):
    """The one line of an error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["verax", "report", *words, "--delta", "1e-5"])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    return run


def test_a_whole_run(whole):
    lines, alone = said(whole).splitlines(), RUN.guarantee().statement(1e-5).splitlines()
    assert (
        lines[0]
        == f"{alone[0]} Assuming that the number of records is public (records= gives another)."
    )
    assert lines[1:3] == alone[1:3]
    assert lines[3] == alone[3].replace("What runs", "What ran, by its ledger")
    assert lines[4] == f"{whole}: all 20 declared rounds were released."
    assert "head " in lines[5]
    assert lines[6:-1] == alone[4:-1]
    assert lines[-1].startswith("Stated by: verax ")


def test_a_part_of_a_run_has_two_numbers(part):
    text = said(part, "--group", "2")
    assert "5 of the 20 declared rounds were released." in text
    assert "The run is not over, or broke off." in text
    assert RUN.guarantee(group=2).statement(1e-5).splitlines()[0] in text
    less = Mechanism(Poisson(0.01, 5), 1.0).guarantee(group=2).epsilon(1e-5)
    tighter = next(line for line in text.splitlines() if "had no say" in line)
    assert tighter.endswith(f"epsilon is at most {str(less)[1:-1].split(', ')[1]}.")


def test_for_machines(part):
    answer = facts(part)
    (run,) = answer["runs"]
    assert (run["declared"], run["released"], run["resumed"], run["ended"]) == (20, 5, 0, None)
    assert run["phases"][0]["sampler"] == {"kind": "Poisson", "rate": 0.01, "steps": 20}
    assert (answer["relation"]["name"], answer["protected"]["group"], answer["delta"]) == (
        "add-remove",
        1,
        1e-5,
    )
    truth = RUN.guarantee().epsilon(1e-5)
    assert answer["epsilon"]["upper"] == pytest.approx(truth.upper, rel=2e-3)
    less = Mechanism(Poisson(0.01, 5), 1.0).guarantee().epsilon(1e-5)
    assert answer["if_stopping_is_independent"]["upper"] == less.upper
    assert answer["epsilon"]["lower"] == pytest.approx(less.lower, rel=2e-3)


def test_a_resumed_run_says_so(part):
    for _ in range(2):
        Ledger.open(part).close()
    assert "were released, resumed 2 times." in said(part)
    assert facts(part)["runs"][0]["resumed"] == 2


def test_several_runs_are_taken_together(whole, part):
    answer = facts(whole, part)
    assert len(answer["runs"]) == 2
    assert answer["epsilon"]["upper"] == pytest.approx(
        (RUN + RUN).guarantee().epsilon(1e-5).upper, rel=2e-3
    )
    assert "no run was described after looking at the results of another" in answer["assuming"]
    text = said(whole, part)
    assert (
        text.index("Any 1 record")
        < text.index("whole.ledger: all")
        < text.index("part.ledger: 5 of")
    )


def test_the_statement_is_saved_as_its_suffix_says(whole, part, tmp_path):
    text = said(whole, part, "--out", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    heads = [
        run["head"] for run in facts(whole, part, "--out", str(tmp_path / "report.json"))["runs"]
    ]
    assert len(heads) == 2
    assert all(head in page and head in text for head in heads)
    assert json.loads((tmp_path / "report.json").read_text())["runs"][1]["head"] == heads[1]


def test_a_place_that_cannot_be_written_is_one_line(whole, tmp_path, failed):
    assert "path must be one that can be written" in failed(
        whole, "--out", str(tmp_path / "no" / "report.html")
    )


def test_a_statement_is_not_saved_as_something_else(whole, tmp_path, failed):
    assert "path must end in .html" in failed(whole, "--out", str(tmp_path / "report.pdf"))


def test_a_run_that_left_its_mechanism_says_so(tmp_path):
    path = written(
        tmp_path / "left.ledger", 5, reason="round 5 has a clip norm of 2.0, declared is 1.0"
    )
    assert "Stopped: round 5 has a clip norm of 2.0, declared is 1.0." in said(path)
    assert facts(path)["runs"][0]["ended"]["how"] == "stopped"


def test_a_run_that_the_data_stopped_says_so(tmp_path):
    path = written(
        tmp_path / "left.ledger", 5, reason="gradients of round 5 are not finite", private=True
    )
    text = said(path)
    assert (
        "That it stopped there shows something of the data, without noise: this is not covered."
        in text
    )
    assert "had no say" not in text
    assert facts(path)["if_stopping_is_independent"] is None


def test_a_seed_that_somebody_chose_is_not_private(tmp_path):
    path = written(tmp_path / "seeded.ledger", 20, insecure_seed=True)
    text = said(path)
    assert text.splitlines()[0].endswith("it is NOT private.")
    assert facts(path)["private"] is False
    assert "Assuming that nobody can guess the seed" in text
    assert facts(path)["runs"][0]["insecure_seed"] is True


def test_a_torn_entry_is_mentioned(tmp_path):
    path = tmp_path / "torn.ledger"
    written(path, 5)
    path.write_bytes(path.read_bytes()[:-10])
    text = said(str(path))
    assert "5 of the 20" in text
    assert "A crash cut the last entry short" in text


def test_a_noted_head_must_be_there(whole, part, failed):
    answer = facts(whole, part)
    for run in answer["runs"]:
        facts(whole, part, "--head", run["head"])
    assert "no line has the hash" in failed(whole, "--head", answer["runs"][1]["head"])
    assert "head must be a hash" in failed(whole, "--head", "abc")


def test_damage_is_one_line_and_exit_code_2(tmp_path, whole, failed):
    path = tmp_path / "damaged.ledger"
    with open(whole, "rb") as file:
        path.write_bytes(file.read().replace(b'"round":7', b'"round":6'))
    line = failed(str(path))
    assert line.startswith(f"verax: {path}, line 9: its hash does not fit")
    assert failed(str(tmp_path / "nowhere.ledger")).endswith("No such file or directory")
    assert "is not a verax ledger" in failed(__file__)


def test_runs_that_cannot_be_taken_together(tmp_path, whole, failed):
    other = written(tmp_path / "other.ledger", 1, Mechanism(Shuffle(4), 1.0))
    assert "phases must share one neighbouring relation" in failed(whole, other)
    assert "are copies of one run" in failed(whole, whole)


HOSTILE = "\x1b[2J\x1b]0;mine\x07\u202e\u2066\u200f\x9b31m\r"


def unseen(text):
    """Characters that a terminal or a page would obey."""
    return {c for c in text if not c.isprintable() and c != "\n"}


@pytest.mark.parametrize("field", ["verax", "run", "time"])
def test_a_hostile_header_says_nothing_to_the_terminal(tmp_path, whole, failed, field):
    header = json.loads(Path(whole).read_bytes().splitlines()[0])
    for value in (HOSTILE, header[field] + HOSTILE, header[field] + "\n", "", 3, None):
        content = {
            key: value if key == field else kept for key, kept in header.items() if key != "hash"
        }
        path = tmp_path / "hostile.ledger"
        path.write_bytes(chain_line(encode(content), FIRST_HASH)[0])
        line = failed(str(path))
        assert f"line 1: {field} must be as verax writes it, got {value!r}" in line
        assert not unseen(line)


@pytest.mark.parametrize(
    "field",
    ["mechanism", "population", "clip_norms", "verax_ledger", pytest.param(HOSTILE, id="unknown")],
)
def test_hostile_values_say_nothing_to_the_terminal(tmp_path, whole, failed, field):
    header = json.loads(Path(whole).read_bytes().splitlines()[0])
    del header["hash"]
    for value in (HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}):
        path = tmp_path / "hostile.ledger"
        path.write_bytes(chain_line(encode(header | {field: value}), FIRST_HASH)[0])
        assert not unseen(failed(str(path)))


def test_a_hostile_name_of_a_file_says_nothing_to_the_terminal_or_on_the_page(tmp_path, failed):
    path = written(
        tmp_path / f"run{HOSTILE}.ledger",
        5,
        reason="the data were not finite",
        private=True,
        population=9,
    )
    text = said(path, "--out", str(tmp_path / "report.html"))
    assert "run\\x1b[2J" in text
    assert not unseen(text)
    assert not unseen((tmp_path / "report.html").read_text())
    assert facts(path)["runs"][0]["ledger"] == path
    for words in ((path, path), (path + "x",)):
        assert not unseen(failed(*words))
    with open(path, "ab") as file:
        file.write(b"damage\n")
    assert not unseen(failed(path))


def test_a_name_that_is_not_utf_8_can_be_shown(tmp_path):
    path = written(os.fsdecode(bytes(tmp_path) + b"/run\xff.ledger"), 20)
    assert "run\\udcff.ledger: all 20" in said(path)
