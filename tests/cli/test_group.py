import json

import pytest
from typer.testing import CliRunner

from verax import Mechanism, Poisson
from verax.cli import app, main
from verax.privacy.curves.gaussian import gaussian_epsilon

PLAIN = ["group", "-z", "20", "--rate", "1", "--steps", "4"]
GAUSSIAN = [*PLAIN, "--insecure-seed", "1", "--samples", "2000"]


def invoke(*words):
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_people_get_one_table_with_everything():
    shown = invoke(*GAUSSIAN, "--delta", "1e-2", "--epsilon", "0.5", "--groups", "1,2,16")
    assert "Poisson(rate=1.0, steps=4), noise 20, individual clipping, add-remove" in shown
    assert "epsilon at delta = 0.01; delta at epsilon = 0.5" in shown
    for column in ("records", "at least", "at most", "black box", "f-DP black box", "Monte Carlo"):
        assert column in shown
    exact = gaussian_epsilon(16 * 2 / 20, 0.01)  # 4.39361
    assert f"│ 16      │ {exact:.4f}" in shown
    assert "algorithm 2 of 'optimal group privacy', corrected; 2000 runs a group" in shown
    assert "each interval holds with confidence 0.99" in shown
    assert "theorem 18 of 'optimal group privacy'" in shown


def test_machines_get_the_same_numbers():
    words = [*GAUSSIAN, "--delta", "1e-2", "--epsilon", "0.5", "--groups", "16,2,2", "--json"]
    answer = json.loads(invoke(*words))
    run = Mechanism(Poisson(1.0, 4), 20.0)
    assert answer["mechanism"] == repr(run)
    assert answer["monte_carlo"] == {
        "samples": 2000,
        "sampling": "both",
        "confidence": 0.99,
        "why_not": None,
    }
    for block, at in zip(answer["blocks"], (0.01, 0.5), strict=True):
        assert block["at"] == at
        assert [row["group"] for row in block["rows"]] == [2, 16]
        for row in block["rows"]:
            own = run.guarantee(row["group"])
            bracket = own.epsilon(at) if block["quantity"] == "epsilon" else own.delta(at)
            assert (row["tight"]["lower"], row["tight"]["upper"]) == (bracket.lower, bracket.upper)
            assert row["tight"]["upper"] <= row["f_dp_black_box"] <= row["black_box"]
            assert row["monte_carlo"]["evidence"] == "monte-carlo, confidence 0.99"


def test_the_papers_way_of_sampling_and_none_at_all():
    words = ["--epsilon", "0.5", "--groups", "2", "--json"]
    paper = json.loads(invoke(*GAUSSIAN, "--sampling", "paper", *words))
    assert paper["monte_carlo"]["sampling"] == "paper"
    assert paper["blocks"][0]["rows"][0]["monte_carlo"]["upper"] > 0.0
    none = json.loads(invoke(*PLAIN, "--samples", "0", *words))
    assert none["blocks"][0]["rows"][0]["monte_carlo"] is None


def test_runs_that_are_not_simulated_say_so():
    words = [
        "group",
        "-z",
        "1",
        "--sampler",
        "shuffle",
        "--batches",
        "10",
        "--delta",
        "1e-5",
        "--groups",
        "1,2",
    ]
    assert "not simulated: the simulation is of Poisson batches" in invoke(*words)
    assert "Poisson batches" in json.loads(invoke(*words, "--json"))["monte_carlo"]["why_not"]


def test_orthogonal_gradients():
    words = [*GAUSSIAN, "--delta", "1e-5", "--groups", "4", "--geometry", "orthogonal"]
    assert "orthogonal gradients" in invoke(*words)
    row = json.loads(invoke(*words, "--json"))["blocks"][0]["rows"][0]
    assert (
        row["tight"]["upper"]
        == Mechanism(Poisson(1.0, 4), 20.0).guarantee(4, "orthogonal").epsilon(1e-5).upper
    )


def test_clippings_and_where_they_cross():
    words = [
        "group",
        "-z",
        "2",
        "--rate",
        "0.5",
        "--steps",
        "10",
        "--delta",
        "1e-5",
        "--groups",
        "1,8",
        "--clippings",
        "individual,batch",
    ]
    shown = invoke(*words)
    assert "batch costs less than individual from a group of 4 on, more up to 3" in shown
    answer = json.loads(invoke(*words, "--json"))
    assert answer["clippings"] == ["individual", "batch"]
    assert answer["crossovers"] == [
        {"from": "individual", "to": "batch", "last_dearer": 3, "first_cheaper": 4}
    ]
    first, last = (row["brackets"] for row in answer["blocks"][0]["rows"])
    assert first[0]["upper"] < first[1]["lower"]
    assert last[0]["lower"] > last[1]["upper"]
    assert "no crossing is proved" in invoke(*words[:-1], "batch,individual")


def test_mixed_clipping_takes_its_clip_groups():
    words = [
        "group",
        "-z",
        "9",
        "--rate",
        "0.5",
        "--steps",
        "4",
        "--epsilon",
        "1",
        "--groups",
        "2",
        "--clippings",
        "batch,mixed",
        "--clip-groups",
        "3",
        "--json",
    ]
    answer = json.loads(invoke(*words))
    assert answer["clippings"] == ["batch", "mixed, 3 clip-groups"]
    assert answer["crossovers"] == []  # they are searched for at a delta


@pytest.mark.parametrize("more", [["--samples", "2000"], ["--clippings", "individual,batch"]])
def test_the_figure_goes_where_it_is_wanted(tmp_path, more):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "groups.png"
    shown = invoke(*PLAIN, "--delta", "1e-5", "--groups", "1,2", "--figure", str(path), *more)
    assert "Figure saved" in shown
    assert path.read_bytes().startswith(b"\x89PNG")


POISSON = "group -z 1 --rate 0.1 --steps 10 --delta 1e-5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("group -z 1 --rate 0.1 --steps 10", "nothing to report: give --delta, --epsilon or both"),
        (f"{POISSON} --groups 0", "group must be a whole number of at least 1, got 0"),
        (f"{POISSON} --groups 4,-2", "group must be a whole number of at least 1, got -2"),
        (
            f"{POISSON} --groups 1,two",
            "--groups must be whole numbers with commas, such as 1,2,4, got '1,two'",
        ),
        (
            f"{POISSON} --groups 1,,2",
            "--groups must be whole numbers with commas, such as 1,2,4, got '1,,2'",
        ),
        (
            f"{POISSON} --groups 2.5",
            "--groups must be whole numbers with commas, such as 1,2,4, got '2.5'",
        ),
        (f"{POISSON} --groups 10000000", "group must be at most 1000000, got 10000000"),
        (
            "group -z 1 --records 50 --batch 5 --epochs 1 --delta 1e-5 --groups 51",
            "group must be at most 50, the number of --records, got 51",
        ),
        (
            "group -z 1 --sampler without-replacement --records 50 --batch 5 --steps 3 --delta "
            "1e-5 --groups 1,60",
            "group must be at most 50, the number of --records, got 60",
        ),
        (f"{POISSON} --samples -1", "samples must be a whole number of at least 0, got -1"),
        (f"{POISSON} --samples 1", "samples must be a whole number of at least 2, got 1"),
        (f"{POISSON} --confidence 1", "confidence must lie strictly between 0 and 1, got 1.0"),
        (f"{POISSON} --sampling paper", "sampling must be 'both' where epsilon is asked for"),
        (
            f"{POISSON} --clippings batch,none",
            "clippings must be one of 'individual', 'batch', 'mixed', got 'none'",
        ),
        (f"{POISSON} --figure groups.txt", "must end in .png, .svg, .pdf, got 'groups.txt'"),
        (f"{POISSON} --figure /dev/null/a.png", "--figure must name a place that can be written"),
        ("group -z -1 --rate 0.1 --steps 10 --delta 1e-5", "noise_multiplier must be at least 0"),
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


@pytest.mark.parametrize("group", ["0", "-3", "60"])
def test_account_refuses_the_same_groups(group, monkeypatch, capsys):
    run = "--sampler without-replacement --records 50 --batch 5 --steps 3"
    words = f"account -z 1 {run} --delta 1e-5 --group {group}"
    monkeypatch.setattr("sys.argv", ["verax", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("verax: group must be")
    assert err.count("\n") == 1
