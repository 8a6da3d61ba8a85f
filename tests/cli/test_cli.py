"""The command line as a user meets it: by its entry point, in a new process for exit codes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from verax import Mechanism, Poisson, Shuffle, calibrate
from verax.cli import app, output

RUN = "account -z 1 --rate 0.01 --steps 100"
ACCOUNT = RUN.split()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from verax.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def report(*words: str) -> dict:
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_account_prints_the_same_bracket_as_python():
    answer = report(
        *ACCOUNT, "--delta", "1e-5", "--delta", "1e-8", "--epsilon", "1", "--group", "2"
    )
    guarantee = Mechanism(Poisson(0.01, 100), 1.0).guarantee(group=2)
    assert [row["delta"] for row in answer["epsilon"]] == [1e-5, 1e-8]
    assert answer["epsilon"][0]["upper"] == pytest.approx(guarantee.epsilon(1e-5).upper, rel=2e-3)
    assert answer["delta"][0]["lower"] == pytest.approx(guarantee.delta(1.0).lower, rel=2e-3)
    assert answer["relation"] == "add-remove"
    assert answer["group"] == 2
    assert answer["epsilon"][0]["evidence"] == "proved"


def test_records_batch_and_epochs_describe_the_same_run():
    same = report(
        "account",
        "-z",
        "1",
        "--records",
        "5000",
        "--batch",
        "50",
        "--epochs",
        "1",
        "--delta",
        "1e-5",
    )
    assert same["epsilon"] == report(*ACCOUNT, "--delta", "1e-5")["epsilon"]


def test_shuffled_batches():
    answer = report(
        "account", "-z", "0.7", "--sampler", "shuffle", "--batches", "1000", "--delta", "1e-5"
    )
    truth = Mechanism(Shuffle(1000), 0.7).guarantee().epsilon(1e-5)
    assert (answer["epsilon"][0]["lower"], answer["epsilon"][0]["upper"]) == (
        truth.lower,
        truth.upper,
    )


def test_without_noise_epsilon_is_infinite_not_an_error():
    answer = report("account", "-z", "0", "--rate", "0.01", "--steps", "100", "--delta", "1e-5")
    assert answer["epsilon"][0]["upper"] == "inf"


def test_people_get_a_table():
    result = CliRunner().invoke(app, [*ACCOUNT, "--delta", "1e-5"])
    assert "epsilon at delta = 1e-05" in result.stdout
    assert "at most" in result.stdout


def test_calibrate_solves_for_what_is_left_out():
    noise = report(
        "calibrate", "--epsilon", "1", "--delta", "1e-5", "--rate", "0.01", "--steps", "100"
    )
    assert noise["noise_multiplier"] == calibrate.noise_multiplier(Poisson(0.01, 100), 1.0, 1e-5)
    steps = report("calibrate", "--epsilon", "1", "--delta", "1e-5", "--rate", "0.01", "-z", "2")
    assert steps["steps"] == calibrate.steps(0.01, 2.0, 1.0, 1e-5)
    rate = report("calibrate", "--epsilon", "1", "--delta", "1e-5", "--steps", "100", "-z", "2")
    assert rate["rate"] == calibrate.rate(100, 2.0, 1.0, 1e-5)


def test_what_calibrate_prints_for_people_meets_the_target_too():
    target = ["calibrate", "--epsilon", "1", "--delta", "1e-5"]
    words = CliRunner().invoke(app, [*target, "--rate", "0.01", "--steps", "100"]).stdout.split()
    assert float(words[2]) >= calibrate.noise_multiplier(Poisson(0.01, 100), 1.0, 1e-5)
    words = CliRunner().invoke(app, [*target, "--steps", "100", "-z", "2"]).stdout.split()
    assert float(words[1]) <= calibrate.rate(100, 2.0, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (RUN, "give --delta or --epsilon"),
        (f"{RUN} --delta 0", "delta must lie strictly between 0 and 1, got 0.0"),
        (
            "account -z -1 --rate 0.01 --steps 10 --delta 1e-5",
            "noise_multiplier must be at least 0",
        ),
        ("account -z 1 --rate 1.2 --steps 10 --delta 1e-5", "rate must lie in (0, 1], got 1.2"),
        ("account -z 1 --rate 0.1 --delta 1e-5", "needs --steps or --epochs"),
        ("account -z 1 --steps 10 --delta 1e-5", "needs --rate, or --records and --batch"),
        ("account -z 1 --sampler shuffle --delta 1e-5", "--sampler shuffle needs --batches"),
        (f"{RUN} --group 0 --delta 1e-5", "group must be a whole number of at least 1, got 0"),
        (
            "account -z 1 --sampler shuffle --batches 9 --relation add-remove --delta 1e-5",
            "use relation='zero-out'",
        ),
        ("calibrate --epsilon 1 --delta 1e-5 -z 1", "give either the rate"),
        ("calibrate --epsilon -1 --delta 1e-5 --rate .1 --steps 9", "epsilon must be positive"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message):
    result = run(*words.split())
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_unknown_command_or_no_command_is_helped():
    wrong = run("acount")
    assert wrong.returncode == 2
    assert "account" in wrong.stderr
    assert "calibrate" in run("--help").stdout


def test_a_progress_bar_appears_only_after_a_second(monkeypatch):
    started = []
    monkeypatch.setattr(output.Progress, "start", lambda self: started.append(self))

    class Timer:
        """One whose second passes when the test says so."""

        def __init__(self, seconds, function):
            assert seconds == 1.0
            self.rings = function
            timers.append(self)

        def start(self):
            self.going = True

        def cancel(self):
            self.going = False

        def join(self):
            assert not self.going

    timers = []
    monkeypatch.setattr(output.threading, "Timer", Timer)
    with output.patience("not a terminal"):
        assert not timers
    monkeypatch.setattr(output.Console, "is_terminal", True)
    with output.patience("quick"):
        assert timers[0].going
    assert not timers[0].going
    assert not started
    with output.patience("slow"):
        timers[1].rings()
    assert len(started) == 1


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ("balls-in-bins --batches 10", "BallsInBins(bins=10, epochs=1)"),
        (
            "random-allocation --times 2 --batches 10 --epochs 2",
            "RandomAllocation(times=2, steps=10, epochs=2)",
        ),
        ("without-replacement --records 100 --batch 10 --epochs 1", "population=100, steps=10)"),
        (
            "truncated-poisson --rate 0.1 --records 100 --steps 5 --max-batch 30",
            "max_batch=30, population=100)",
        ),
        (
            "buffered-shuffle --batches 10 --buffer 3",
            "BufferedShuffle(batches=10, buffer=3, epochs=1)",
        ),
        (
            "persistent-shuffle --batches 10 --epochs 3",
            "Shuffle(batches=10, epochs=3, reshuffle=False)",
        ),
    ],
)
def test_every_sampler_has_a_name_on_the_command_line(options, sampler):
    assert (
        sampler
        in report("account", "-z", "1", "--delta", "1e-5", "--sampler", *options.split())[
            "mechanism"
        ]
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("random-allocation --batches 10", "needs --times"),
        ("buffered-shuffle --batches 10", "needs --buffer"),
        ("truncated-poisson --rate 0.1 --steps 5 --records 9", "needs --max-batch"),
        ("truncated-poisson --rate 0.1 --steps 5 --max-batch 9", "needs --records"),
        ("without-replacement --batch 5", "--batch 5 needs --records"),
        ("without-replacement --records 5", "needs --records and --batch"),
        ("shuffle --batches 10 --buffer 3", "--buffer is for --sampler buffered-shuffle"),
        ("balls-in-bins", "needs --batches"),
        ("balls-in-bins --batches 5 --epochs 0", "epochs must be"),
    ],
)
def test_a_missing_or_misplaced_option_is_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        CliRunner().invoke(
            app,
            ["account", "-z", "1", "--delta", "1e-5", "--sampler", *options.split()],
            catch_exceptions=False,
        )


@pytest.mark.parametrize(
    "command",
    [
        "audit sampler --sampler shuffle --claim poisson -z 1 --batches 100 --delta 1e-5 --trials "
        "10000000",
        "account -z 0.5 --sampler balls-in-bins --batches 300000 --epochs 7 --delta 1e-5",
    ],
)
def test_ctrl_c_is_one_line_and_exit_code_130(command):
    """It comes in the midst of the work, when the command first asks for a price."""
    code = (
        "import os, signal\n"
        "from verax.cli import main\n"
        "from verax.mechanism import Mechanism\n"
        "def guarantee(*_, **__): os.kill(os.getpid(), signal.SIGINT)\n"
        "Mechanism.guarantee = guarantee\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "verax: interrupted\n")


def test_help_is_plain_text():
    text = run("account", "--help").stdout
    assert "[required]" in text
    assert "\\" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--sampler shuffle --batches 7 --records 100 --batch 10",
            "make 10 batches, got --batches 7",
        ),
        ("--rate 0.2 --records 100 --batch 10 --steps 5", "make a rate of 0.1, got --rate 0.2"),
    ],
)
def test_options_that_contradict_each_other_are_not_silently_chosen_from(options, message):
    result = run("account", "-z", "1", "--delta", "1e-5", *options.split())
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_interrupt_while_the_commands_load_is_one_line_too():
    code = "import builtins, sys, signal, os; found = builtins.__import__\n"
    code += (
        "def slow(name, *rest):\n    if name == 'verax.cli': os.kill(os.getpid(), signal.SIGINT)\n"
    )
    code += "    return found(name, *rest)\n"
    code += "from verax.__main__ import main; builtins.__import__ = slow; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "verax: interrupted\n")
