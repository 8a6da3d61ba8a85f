import json
import math

import pytest
import typer
from typer.testing import CliRunner

from verax import Mechanism, Poisson
from verax.cli.plan_closed_form import closed_form

app = typer.Typer()
app.command()(closed_form)
MNIST = ["--records", "60000", "-z", "12.10881", "--epochs", "6"]


def invoke(*words):
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_people_get_both_columns_and_the_accountant():
    shown = invoke(*MNIST)
    for word in (
        "T_min",
        "T_min_asym",
        "gamma",
        "412",
        "3042",
        "873",
        "theorem B.4 and theorem 3.1",
        "no theorem",
    ):
        assert word in shown
    assert "accountant's epsilon" in shown


def test_machines_get_every_quantity():
    answer = json.loads(invoke(*MNIST, "--json"))
    least = answer["T_min"]
    quantities = ["epsilon", "delta", "sigma", "gamma", "theta", "k", "N", "s", "T"]
    assert list(least) == [*quantities, "granted_by", "accountant_epsilon"]
    assert (least["s"], least["T"], answer["T_min_asym"]["s"]) == (412, 873, 3042)
    own = Mechanism(Poisson(412 / 60_000, 873), 12.10881).guarantee().epsilon(1 / 60_000)
    assert least["accountant_epsilon"]["upper"] == own.upper < least["epsilon"] / 3.0
    assert answer["T_min_asym"]["granted_by"] == []


def test_any_two_give_the_third():
    by_batch = json.loads(
        invoke("--records", "60000", "--epsilon", "0.5", "--batch", "100", "--json")
    )["T_min"]
    by_rounds = json.loads(
        invoke("--records", "60000", "--epsilon", "0.5", "--rounds", str(by_batch["T"]), "--json")
    )
    assert by_rounds["T_min"]["s"] == by_batch["s"] == 100
    words = ["--records", "60000", "--epsilon", "0.5", "-z", "7", "--epochs", "5", "--json"]
    assert json.loads(invoke(*words))["T_min"]["delta"] == pytest.approx(
        math.exp(-0.5 * (7.0**2 / 2.0 - 1.0)), rel=1e-9
    )


def test_sizes_that_vary():
    assert "largest batch in T / theta rounds" in invoke(
        "--records", "60000", "--epsilon", "1", "--epochs", "5", "--theta", "2"
    )


def test_the_next_phase():
    words = [
        "--records",
        "60000",
        "--epsilon",
        "0.3",
        "-z",
        "9",
        "--epochs",
        "2",
        "--after",
        "408:882",
    ]
    answer = json.loads(invoke(*words, "--json"))
    assert answer["phases"] == [[408, 882], [499, 240]]
    assert answer["accountant_epsilon"]["upper"] < answer["epsilon"] <= 0.3
    assert "needs a Rényi filter" in invoke(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--records", "100", "--epochs", "1"], "give epsilon or sigma"),
        (["--records", "100", "--epsilon", "1"], "give exactly one of them"),
        (
            ["--records", "100", "--epsilon", "0.01", "--epochs", "50"],
            "batches of one record are granted for at most",
        ),
        (
            ["--records", "100", "--epsilon", "1", "--epochs", "1", "--after", "5"],
            "must be BATCH:ROUNDS",
        ),
        (["--records", "100", "--epochs", "1", "--after", "5:5"], "--after needs --epsilon"),
        (
            [
                "--records",
                "100",
                "--epsilon",
                "1",
                "--epochs",
                "1",
                "--batch",
                "3",
                "--after",
                "5:5",
            ],
            "leave out --batch",
        ),
    ],
)
def test_bad_input(words, message):
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, words, catch_exceptions=False)
