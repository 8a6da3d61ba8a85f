import json

import pytest
from typer.testing import CliRunner

from verax import Mechanism, Poisson
from verax.cli import app, main

WORDS = [
    "plan",
    "--records",
    "60000",
    "--epsilon",
    "1",
    "--delta",
    "1e-5",
    "--epochs",
    "5,10",
    "--batch",
    "600:1200",
]


def invoke(*words):
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_people_get_a_ranked_table_what_it_means_and_what_changes_cost():
    shown = invoke(*WORDS)
    assert "60000 records, epsilon 1.0, delta 1e-05: 4 plans, best signal first" in shown
    assert shown.index("│ 1200") < shown.index("│ 600 ")
    assert "sqrt(rounds) times that" in shown
    assert "twice the epochs: noise +" in shown
    assert "closed form" in shown


def test_machines_get_plans_that_the_accountant_confirms():
    answer = json.loads(invoke(*WORDS, "--rank", "noise", "--json"))
    plans = answer["plans"]
    assert [p["noise_multiplier"] for p in plans] == sorted(p["noise_multiplier"] for p in plans)
    assert any(p["undominated"] for p in plans)
    for p in plans:
        run = Mechanism(Poisson(p["batch"] / 60_000, p["rounds"]), p["noise_multiplier"])
        assert repr(run) == p["mechanism"]
        assert run.guarantee().epsilon(1e-5).upper <= 1.0
    assert {c["change"] for c in answer["changes_to_the_first"]} >= {
        "twice the epochs",
        "half the epsilon",
    }
    assert answer["full_batch_signal"] > max(p["signal_of_run"] for p in plans)


def test_the_browser_answers_the_same_question_with_the_same_noises():
    pytest.importorskip("pydantic")
    from verax.web import computations, requests

    words = "plan --records 60000 --epsilon 1 --delta 1e-5 --epochs 1:100:6 --batch 64:8192:5"
    words += " --sampler poisson,shuffle"
    plans = json.loads(invoke(*words.split(), "--json"))["plans"]
    printed = {(p["sampler"], p["batch"], p["rounds"]): p["noise_multiplier"] for p in plans}
    asked = requests.PlanRequest(
        epochs="1:100:6", batch="64:8192:5", sampler=["poisson", "shuffle"]
    )
    points = asked.grid().points()
    parts = computations.plans(asked.target(), points, asked.limits(), asked.rank)
    answered = [part["plan"] for part in parts if part.get("plan")]
    assert {
        (p["sampler"], p["batch"], p["rounds"]): p["noise_multiplier"] for p in answered
    } == printed
    assert len(printed) == 60


def test_several_samplers_and_clippings_limits_and_rows():
    words = [
        *WORDS,
        "--sampler",
        "poisson,shuffle",
        "--clipping",
        "individual,batch",
        "--rounds-at-most",
        "500",
    ]
    shown = invoke(*words, "--show", "2", "--noise-at-most", "30")
    assert "2 shown" in shown
    answer = json.loads(invoke(*words, "--json"))
    assert {p["sampler"] for p in answer["plans"]} == {"poisson", "shuffle"}
    assert {p["clipping"] for p in answer["plans"]} == {"individual", "batch"}
    assert max(p["rounds"] for p in answer["plans"]) <= 500


@pytest.mark.parametrize(
    ("words", "unknown", "check"),
    [
        (
            "--records 60000 --delta 1e-5 --epochs 10 --batch 600",
            "epsilon",
            lambda p: 1.82 < p["epsilon"] < 1.84,
        ),
        (
            "--records 60000 --epsilon 1.83 --epochs 10 --batch 600",
            "delta",
            lambda p: 9e-6 < p["delta"] < 1e-5,
        ),
        (
            "--epsilon 1.83 --delta 1e-5 --epochs 10 --batch 600",
            "records",
            lambda p: 59e3 < p["records"] <= 60e3,
        ),
        (
            "--records 60000 --epsilon 1.83 --delta 1e-5 --batch 600",
            "rounds",
            lambda p: 1000 <= p["rounds"] < 1010,
        ),
        (
            "--records 60000 --epsilon 1.83 --delta 1e-5 --epochs 10",
            "batch",
            lambda p: 600 <= p["batch"] < 610,
        ),
    ],
)
def test_any_one_quantity_can_be_the_unknown(words, unknown, check):
    answer = json.loads(invoke("plan", "-z", "1", *words.split(), "--json"))
    assert answer["unknown"] == unknown
    (plan,) = answer["plans"]
    assert check(plan)
    assert "noise" in invoke("plan", "-z", "1", *words.split())


def test_the_figure_goes_where_it_is_wanted(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "plans.png"
    assert "plans.png" in invoke(*WORDS, "--figure", str(path))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("public", [True, False])
def test_a_utility_graph_chooses_among_the_plans(tmp_path, public):
    from verax.planning.utility import Line, Point, UtilityGraph

    line = Line(0.5, 0.9, (Point(1e-4, 0.99, 0.98, 1.0), Point(1e-2, 0.5, 0.49, 0.51)))
    path = tmp_path / "graph.json"
    UtilityGraph(
        (line,), learning_rate=0.5, rounds=20, draws=20, confidence=0.95, public=public
    ).save(path)
    shown = invoke(*WORDS, "--utility", str(path))
    assert "Best by the utility graph: poisson, batch" in shown
    assert ("made from private data" in shown) != public
    answer = json.loads(invoke(*WORDS, "--utility", str(path), "--json"))
    assert answer["utility"]["clip_norm"] == 0.5
    accuracies = [p["expected_accuracy"] for p in answer["plans"]]
    assert accuracies[0] == answer["utility"]["expected_accuracy"] >= max(accuracies) - 0.002


def test_other_ways_of_planning_are_subcommands():
    assert "closed-form" in invoke("plan", "--help")
    assert "closed form" in invoke("plan", "closed-form", "--help")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--records 9 --epsilon 1 --delta 1e-5", "--epochs must be given to solve for the noise"),
        ("--delta 1e-5", "--records and --epsilon and --epochs must be given"),
        ("-z 1 --records 9 --epsilon 1", "--delta and --epochs are both missing"),
        ("-z 1 --delta 1e-5 --epsilon 1 --epochs 1", "--records and --batch are both missing"),
        ("-z 1 --records 9 --epsilon 1 --delta 1e-5 --epochs 1 --batch 1", "all are given"),
        (
            "-z 1 --records 9 --epsilon 1 --delta 1e-5 --epochs 1 --rounds-at-most 9",
            "leave out --noise-multiplier",
        ),
        ("-z 0 --records 9 --delta 1e-5 --epochs 1 --batch 1", "noise_multiplier must be positive"),
        (
            "--records 9 --epsilon 1 --delta 1e-5 --epochs 1 --batch 10",
            "batch must be a whole number",
        ),
        (
            "--records 9 --epsilon 1 --delta 1e-5 --epochs x",
            "--epochs must be such as 10, 5,10,20, 1:100 or 1:100:50",
        ),
        ("--records 9 --epsilon 1 --delta 1e-5 --epochs 9:3", "the end of a range must be"),
        ("--records 9 --epsilon 1 --delta 1e-5 --epochs 1:2:3:4", "too many parts"),
        (
            "--records 9 --epsilon 1 --delta 1e-5 --epochs 1 --sampler dice",
            "--sampler must be one of 'poisson'",
        ),
        (
            "--records 9 --epsilon 1 --delta 1e-5 --epochs 1 --clipping none",
            "--clipping must be one of",
        ),
        ("--records 9 --epsilon 1 --delta 1e-5 --epochs 1 --figure a.doc", "must end in .png"),
        ("--records 9 --epsilon -1 --delta 1e-5 --epochs 1", "epsilon must be positive"),
        (
            "--records 900 --epsilon 1 --delta 1e-5 --epochs 9 --rounds-at-most 2",
            "rounds_at_most = 2 leaves no plan",
        ),
        (
            "--records 900 --epsilon 1 --delta 1e-5 --epochs 9 --noise-at-most .2",
            "noise_at_most = 0.2 leaves no plan",
        ),
        (
            "--records 9 --epsilon 1 --delta 1e-5 --epochs 1 --show 0",
            "show must be a whole number of at least 1",
        ),
        (
            "-z 1 --records 9 --delta 1e-5 --epochs 1 --utility graph.json",
            "--utility is for choosing the noise",
        ),
        (
            "--records 9 --epsilon 1 --delta 1e-5 --epochs 1 --utility none.json",
            "utility graph that can be read",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["verax", "plan", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
