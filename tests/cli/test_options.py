"""What is typed is never ignored: options that contradict each other, words no command knows."""

import pytest
import typer.main
from typer import core

from verax.cli import app, main
from verax.cli.commands import Command, Group

RUN = "account -z 1 --delta 1e-5"
GROUP = "group -z 1 --delta 1e-5 --rate .1 --steps 9"
TARGET = "--epsilon 1 --delta 1e-5"


def refused(words, monkeypatch, capsys):
    """The one line with which bad input is refused."""
    monkeypatch.setattr("sys.argv", ["verax", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("verax: ")
    return err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            f"{RUN} --rate .01 --steps 1000 --epochs 5",
            "--epochs 5 makes 500 steps, got --steps 1000",
        ),
        (
            f"{RUN} --records 600 --batch 6 --steps 7 --epochs 5",
            "--epochs 5 makes 500 steps, got --steps 7",
        ),
        (
            f"{RUN} --sampler shuffle --batches 100 --rate .5 --steps 7",
            "--rate 0.5 is not for --sampler shuffle",
        ),
        (
            f"{RUN} --sampler balls-in-bins --batches 100 --steps 7",
            "--steps 7 is not for --sampler balls-in-bins",
        ),
        (
            f"{RUN} --rate .01 --steps 10 --batches 100",
            "--batches 100 is not for --sampler poisson",
        ),
        (f"{RUN} --rate .01 --steps 10 --batch 6", "--batch 6 needs --records"),
        (f"{RUN} --sampler deterministic --batches 10 --batch 6", "--batch 6 needs --records"),
        (f"{RUN} --rate .01 --steps 10 --records 60", "--records 60 needs --batch"),
        (f"{RUN} --rate .01 --steps 10 --records -5", "--records -5 needs --batch"),
        (f"{RUN} --sampler shuffle --batches 10 --records 5", "--records 5 needs --batch"),
        (f"calibrate {TARGET} -z 1 --steps 5 --records 60", "--records 60 needs --batch"),
        (
            f"{RUN} --sampler without-replacement --records 60 --batch 6 --steps 5 --epochs 9",
            "makes 90 steps, got",
        ),
        (
            f"{RUN} --sampler without-replacement --records 60 --batch 6 --steps 5 --rate .1",
            "--rate 0.1 is not for",
        ),
        (
            f"{RUN} --sampler without-replacement --records 60 --batch 6 --steps 5 --batches 9",
            "--batches 9 is not for",
        ),
        (
            f"{RUN} --rate .01 --steps 10 --clip-groups 4",
            "--clip-groups 4 is for --clipping mixed, got --clipping ind",
        ),
        (f"{RUN} --rate .01 --rate .02 --steps 10", "--rate must be given once, got it 2 times"),
        (
            f"calibrate {TARGET} --rate .01 --steps 1000 --epochs 5",
            "--epochs 5 makes 500 steps, got --steps 1000",
        ),
        (
            f"calibrate {TARGET} --rate .01 --steps 10 --batches 9",
            "--batches 9 is not for --sampler poisson",
        ),
        (
            f"calibrate {TARGET} -z 1 --epochs 5",
            "--epochs 5 with --noise-multiplier needs the rate",
        ),
        (f"calibrate {TARGET} -z 1 --steps 5 --batch 6", "--batch 6 needs --records"),
        (
            "group -z 1 --delta 1e-5 --rate .01 --steps 9 --epochs 5",
            "--epochs 5 makes 500 steps, got --steps 9",
        ),
        (
            "group -z 1 --delta 1e-5 --rate .1 --steps 9 --clippings batch --clipping batch",
            "--clipping cannot be given",
        ),
        (f"{GROUP} --clippings batch --samples 9", "--samples cannot be given with"),
        (f"{GROUP} --clippings batch --clip-groups 2", "is for --clipping mixed"),
        (
            "group -z 1 --delta 1e-5 --rate .1 --steps 9 --samples 0 --confidence .9",
            "--confidence cannot be given with",
        ),
        (
            "compare -z 1 --batches 10 --delta 1e-5 --epsilon 1",
            "either --delta or --epsilon, got both",
        ),
        (
            "compare -z 1 --batches 10 --delta 1e-5 --clip-groups 3",
            "--clip-groups 3 is for --clipping mixed",
        ),
        (
            f"plan {TARGET} --records 600 --epochs 1 --clip-groups 3",
            "--clip-groups 3 is for --clipping mixed",
        ),
        (
            f"plan {TARGET} --records 600 --epochs 1 --batch 9 -z 1 --noise-at-most 2",
            "limits on rounds, noise and ratio",
        ),
        (
            "plan --records 5 closed-form --records 60000 -z 12 --epochs 6",
            "--records cannot be given with the command",
        ),
        ("plan closed-form --records 60000 -z 12 --epochs 6 --batch 9", "give exactly one of them"),
        (
            "audit sampler --sampler shuffle -z 1 --batches 10 --times 3",
            "--times 3 is not for --sampler shuffle",
        ),
        (
            "audit sampler --sampler shuffle -z 1 --batches 10 --buffer 3",
            "--buffer 3 is not for --sampler shuffle, but for buffered-shuffle",
        ),
        ("train --epsilon 1 -z 1", "either --epsilon, or --noise-multiplier"),
        ("train --epsilon 1 --clip-groups 3", "--clip-groups 3 is for --clipping mixed"),
        ("federate --epsilon 1 -z 1", "either --epsilon, or --noise-multiplier"),
        ("federate --epsilon 1 --ledger a --log a", "--ledger and --log must be different files"),
        ("federate --epsilon 1 --clients 3 --data heart", "clients and by must not be given"),
        ("demo --out /dev/null/here", "/dev/null/here"),
    ],
)
def test_options_that_contradict_each_other_are_named(words, message, monkeypatch, capsys):
    if words.startswith("federate"):
        pytest.importorskip("torch")
    assert message in refused(words.split(), monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("--rate .01 --steps 500 --epochs 5", "--rate .01 --steps 500"),
        ("--records 49 --batch 7 --epochs 3", "--rate .14285714285714285 --steps 21"),
        ("--rate .07 --epochs 7", "--rate .07 --steps 100"),
        ("--rate .01 --records 600 --batch 6 --steps 9", "--rate .01 --steps 9"),
        (
            "--sampler shuffle --batches 10 --records 60 --batch 6",
            "--sampler shuffle --batches 10 --epochs 1",
        ),
    ],
)
def test_options_that_say_the_same_twice_are_fine(words, same, monkeypatch, capsys):
    said = []
    for options in (words, same):
        monkeypatch.setattr("sys.argv", ["verax", *RUN.split(), *options.split(), "--json"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def commands(command, path=()):
    """All commands by the words that call them."""
    found = {" ".join(path): command}
    for name, inner in getattr(command, "commands", {}).items():
        found |= commands(inner, (*path, name))
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize("name", COMMANDS)
def test_words_that_no_command_knows_are_one_line(name, monkeypatch, capsys):
    path, command = name.split(), COMMANDS[name]
    assert isinstance(command, Command | Group)
    assert "No such option: --nonsense" in refused([*path, "--nonsense"], monkeypatch, capsys)
    if isinstance(command, Group):
        assert "No such command 'nonsense'" in refused([*path, "nonsense"], monkeypatch, capsys)
    options = [p for p in command.params if isinstance(p, core.TyperOption) and not p.is_flag]
    for option in {option.type.name: option for option in options}.values():  # one of each kind
        typed = option.opts[0]
        assert f"'{typed}' requires an argument" in refused([*path, typed], monkeypatch, capsys)
        if option.type.name in ("integer", "float", "choice", "integer range", "float range"):
            said = refused([*path, typed, "nonsense"], monkeypatch, capsys)
            assert "Invalid value for" in said
            assert typed in said
        if not option.multiple:
            twice = refused([*path, typed, "1", typed, "2"], monkeypatch, capsys)
            assert f"{typed} must be given once" in twice
    if any(p.required for p in command.params):
        assert "Missing " in refused(path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["serve", "--runs", ""], "--runs"),  # it was the current folder
        (["train", "-z", "1", "--ledger", ""], "--ledger"),
        (["train", "-z", "1", "--data="], "--data"),
        (["report", "run.ledger", "--head", ""], "--head"),
        ([*RUN.split(), "--rate", "", "--steps", "9"], "--rate"),
    ],
)
def test_an_empty_word_is_refused(words, option, monkeypatch, capsys):
    assert refused(words, monkeypatch, capsys) == f"verax: {option} must not be empty\n"
