"""verax audit as a user meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from verax import cli
from verax.cli import app
from verax.samplers import registry

FIXED = "audit sampler --sampler deterministic -z 1 --batches 20 --insecure-seed 1"
LIE = f"{FIXED} --claim poisson --delta 1e-3 --trials 2000"
TRUTH = f"{FIXED} --trials 400"


def invoke(words):
    return CliRunner().invoke(app, words.split(), catch_exceptions=False)


@pytest.fixture
def main(monkeypatch, capsys):
    """The entry point: exit code, standard output, standard error."""

    def run(words):
        monkeypatch.setattr(sys, "argv", ["verax", *words.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capsys.readouterr()

    return run


def test_a_lie_is_refuted_with_exit_code_1():
    result = subprocess.run(
        [sys.executable, "-c", "from verax.cli import main; main()", *LIE.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "Refuted: the batches drawn by Deterministic(batches=20, epochs=1)" in result.stdout
    assert "What to do: draw the batches with Poisson(rate=0.05, steps=20)" in result.stdout
    assert result.stderr == ""


def test_the_truth_passes_with_exit_code_0(main):
    code, out, err = main(TRUTH)
    assert code == 0
    assert "Not refuted" in out
    assert err == ""


def test_a_terminal_sees_progress(main, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = main(TRUTH)
    assert code == 0
    assert "auditing" in err
    assert "auditing" not in out


def test_an_interrupted_audit_prints_no_verdict(main, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["verax.cli.audit"], "audit_sampler", interrupt)
    code, out, _ = main(TRUTH)
    assert (code, out) == (130, "")


def test_json_has_the_whole_result():
    result = invoke(f"{LIE} --json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["refuted"] is True
    assert answer["lower"] > answer["claim"]["upper"]
    assert (answer["trials"], answer["tested"], answer["confidence"], answer["delta"]) == (
        2000,
        1500,
        0.95,
        1e-3,
    )
    assert (answer["evidence"], answer["relation"]) == ("monte-carlo", "add-remove")
    assert answer["hits"] > answer["false_hits"]
    assert answer["statement"].startswith("Claimed: ")
    assert json.loads(invoke(f"{LIE} --json").stdout) == answer


def test_a_stated_epsilon_is_the_claim():
    answer = json.loads(invoke(f"{TRUTH} --epsilon 0.1 --json").stdout)
    assert answer["refuted"] is True
    assert answer["claim"]["upper"] == 0.1
    assert answer["claim"]["evidence"] == "stated"


@pytest.mark.parametrize(
    ("sampler", "options", "drawn"),
    [
        ("poisson", "", "Poisson(rate=0.25, steps=8)"),
        ("poisson", "--times 2", "Poisson(rate=0.5, steps=8)"),
        (
            "truncated-poisson",
            "--max-batch 6",
            "TruncatedPoisson(rate=0.25, steps=8, max_batch=6, population=8)",
        ),
        (
            "without-replacement",
            "--records 12",
            "WithoutReplacement(batch=3, population=12, steps=8)",
        ),
        ("shuffle", "", "Shuffle(batches=4, epochs=2, reshuffle=True)"),
        ("persistent-shuffle", "", "Shuffle(batches=4, epochs=2, reshuffle=False)"),
        ("buffered-shuffle", "--buffer 2", "BufferedShuffle(batches=4, buffer=2, epochs=2)"),
        ("balls-in-bins", "", "BallsInBins(bins=4, epochs=2)"),
        ("random-allocation", "--times 2", "RandomAllocation(times=2, steps=4, epochs=2)"),
        ("deterministic", "", "Deterministic(batches=4, epochs=2)"),
    ],
)
def test_every_sampler_can_be_drawn_and_claimed(sampler, options, drawn):
    shape = f"-z 2 --batches 4 --epochs 2 {options} --epsilon 50 --trials 200 --json"
    answer = json.loads(invoke(f"audit sampler --sampler {sampler} {shape}").stdout)
    assert answer["drawn"] == drawn
    assert f"sampler={drawn}" in answer["mechanism"]
    answer = json.loads(invoke(f"audit sampler --sampler shuffle --claim {sampler} {shape}").stdout)
    assert answer["drawn"] == "Shuffle(batches=4, epochs=2, reshuffle=True)"
    assert f"sampler={drawn}" in answer["mechanism"]


def test_no_sampler_is_left_out():
    words = "".join(invoke("audit sampler --help").stdout.split())  # names may be broken over lines
    assert all(name in words for name in registry.names())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sampler shuffle -z 1 --batches 0", "--batches must be a whole number of at least 1"),
        (
            "--sampler shuffle -z 1 --batches 9 --records 5",
            "population must be at least the number of batches, 9",
        ),
        (
            "--sampler shuffle -z 1 --batches 9 --target 18",
            "target must be a whole number of at least 0 and at most 17",
        ),
        ("--sampler shuffle -z 0 --batches 9", "positive noise_multiplier"),
        ("--sampler shuffle -z 1 --batches 9 --relation add-remove", "use relation='zero-out'"),
        (
            "--sampler shuffle -z 1 --batches 9 --confidence 95",
            "confidence must lie strictly between 0 and 1",
        ),
        (
            "--sampler shuffle -z 1 --batches 9 --trials 9",
            "trials must be a whole number of at least 100",
        ),
        ("--sampler buffered-shuffle -z 1 --batches 9", "buffered-shuffle needs --buffer"),
        ("--sampler truncated-poisson -z 1 --batches 9", "truncated-poisson needs --max-batch"),
        (
            "--sampler random-allocation -z 1 --batches 9 --times 10",
            "--times must be a whole number of at least 1",
        ),
        (
            "--sampler shuffle -z 1 --batches 9 --buffer 2",
            "--buffer 2 is not for --sampler shuffle, but for buffered-shuffle",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(main, words, message):
    code, out, err = main(f"audit sampler {words}")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


def test_help_lists_the_audit():
    assert "audit" in invoke("--help").stdout
    assert "sampler" in invoke("audit --help").stdout
