"""The JSON API: the same numbers as Python's, errors in words, streams."""

from __future__ import annotations

import json
import math

import httpx
import pytest

pytest.importorskip("fastapi")

from verax import Batch, Mechanism, Poisson, RandomParticipation
from verax.planning import Planner, Target, frontier, plannable, planned
from verax.planning import ranked as in_order
from verax.privacy.participation import BASELINES, OBSERVERS, Federation, baseline
from verax.web import service
from verax.web.plan_grid import MOST_PLANS, MOST_SLOW_PLANS, is_slow
from verax.web.requests import PlanRequest


def parts(client, path, **params):
    """Events of a stream, each with its place among them."""
    found = []
    with client.stream("GET", path, params=params) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: ")), len(found)))
    return found


def said(client, path, **params):
    response = client.get(path, params=params)
    assert response.status_code == 422, response.text
    return response.json()["message"]


class TestCompare:
    def test_clip_groups_that_nothing_has_are_refused(self, client):
        words = said(client, "/api/compare", clipping="batch", clip_groups=3)
        assert "clip_groups 3 is for clipping mixed, got clipping batch" in words

    def test_the_numbers_are_those_of_python(self, client):
        names = ["poisson", "deterministic", "without-replacement"]
        answer = client.get(
            "/api/compare", params={"sampler": names, "epochs": 3, "noise_multiplier": 0.9}
        ).json()
        assert {row["sampler"] for row in answer["rows"]} == set(names)
        for row in answer["rows"]:
            bracket = (
                Mechanism(planned(row["sampler"], 60000, 600, 3), 0.9).guarantee().epsilon(1e-5)
            )
            assert (row["epsilon"]["lower"], row["epsilon"]["upper"]) == (
                bracket.lower,
                bracket.upper,
            )
            assert (
                f"[{row['epsilon']['shown']['lower']}, {row['epsilon']['shown']['upper']}]"
                == str(bracket)
            )

    def test_groups_and_clipping_reach_the_analysis(self, client):
        params = {"sampler": "poisson", "group": 3, "clipping": "batch", "relation": "zero-out"}
        row = client.get("/api/compare", params=params).json()["rows"][0]
        bracket = (
            Mechanism(Poisson(0.01, 1000), 1.0, Batch(), "zero-out").guarantee(3).epsilon(1e-5)
        )
        assert row["epsilon"]["upper"] == bracket.upper
        assert "zero-out" in row["mechanism"]

    def test_without_a_guarantee_it_says_why(self, client):
        params = {"sampler": ["poisson", "without-replacement"], "relation": "add-remove"}
        rows = {
            row["sampler"]: row for row in client.get("/api/compare", params=params).json()["rows"]
        }
        assert rows["without-replacement"]["epsilon"] is None
        assert "replace" in rows["without-replacement"]["why_not"]
        assert rows["poisson"]["epsilon"] is not None

    def test_a_figure_against_noise_falls(self, client):
        answer = client.get("/api/compare", params={"sampler": "poisson", "figure": "noise"}).json()
        points = sorted(answer["points"], key=lambda point: point["x"])
        uppers = [point["epsilon"]["upper"] for point in points]
        assert [point["x"] for point in points] == list(service.AXES["noise"][1])
        assert uppers == sorted(uppers, reverse=True)
        at = points[8]
        bracket = Mechanism(Poisson(0.01, 1000), at["x"]).guarantee().epsilon(1e-5, 0.01)
        assert (at["epsilon"]["lower"], at["epsilon"]["upper"]) == (bracket.lower, bracket.upper)

    def test_a_curve_is_between_truths(self, client):
        answer = client.get(
            "/api/compare", params={"sampler": "poisson", "figure": "tradeoff"}
        ).json()
        curve = answer["curves"][0]
        exact = Mechanism(Poisson(0.01, 1000), 1.0).guarantee()
        for point in curve["deltas"][::6]:
            truth = exact.delta(point["epsilon"])
            assert point["lower"] <= truth.upper * (1 + 1e-9)
            assert point["upper"] >= truth.lower * (1 - 1e-9)
        certified, above = curve["tradeoff"]["certified"], curve["tradeoff"]["above"]
        finer = exact.tradeoff()
        for alpha, beta in zip(certified["alpha"], certified["beta"], strict=True):
            assert beta <= (finer.above or finer)(alpha) + 1e-9
        for alpha, beta in zip(above["alpha"], above["beta"], strict=True):
            assert beta >= finer(alpha) - 1e-9

    def test_quick_numbers_come_first(self, client):
        names = ["balls-in-bins", "shuffle", "poisson"]
        client.get("/api/compare", params={"sampler": names, "noise_multiplier": 1.0})
        events = parts(client, "/api/compare/stream", sampler=names, noise_multiplier=1.07)
        assert [name for name, _, _ in events][-1] == "end"
        rows = [(part, when) for _, part, when in events if part.get("kind") == "row"]
        first = {}
        for part, when in rows:
            first.setdefault(part["sampler"], when)
        assert first["poisson"] < max(
            when for part, when in rows if part["sampler"] == "balls-in-bins"
        )
        for name in names:
            told = [part for part, _ in rows if part["sampler"] == name]
            assert told[-1]["provisional"] is False
            for part in told[:-1]:  # what came first was true
                assert part["epsilon"]["upper"] >= told[-1]["epsilon"]["lower"]

    def test_what_was_asked_before_is_known(self, client):
        params = {"sampler": ["poisson", "shuffle"], "noise_multiplier": 1.234}
        first = client.get("/api/compare", params=params).json()
        assert client.get("/api/compare", params=params).json() == first

    def test_every_sampler_can_be_asked_for(self, client):
        schema = client.get("/api/openapi.json").json()
        assert all(name in json.dumps(schema) for name in plannable())

    @pytest.mark.parametrize(
        ("params", "words"),
        [
            ({"batch": 0}, "batch: input should be greater than or equal to 1, got '0'"),
            ({"batch": 100, "records": 10}, "batch must be at most records = 10, got 100"),
            ({"delta": "nan"}, "delta"),
            ({"noise_multiplier": "inf"}, "noise_multiplier"),
            ({"noise_multiplier": "many"}, "noise_multiplier: input should be a valid number"),
            ({"sampler": "dice"}, "sampler must be one of 'poisson'"),
            ({"group": 1000}, "group: input should be less than or equal to 64, got '1000'"),
            ({"colour": "red"}, "colour: extra inputs are not permitted"),
            (
                {"records": 10**9, "batch": 1},
                "must be at most 10000000 rounds here, got 10000000000",
            ),
        ],
    )
    def test_bad_input_is_refused_in_words(self, client, params, words):
        message = said(client, "/api/compare", **params)
        assert words in message
        assert "Traceback" not in message
        assert message == said(client, "/api/compare/stream", **params)


class TestPlan:
    ASKED = {"records": 2000, "epsilon": 2.0, "epochs": "2,8", "batch": "50,200"}  # noqa: RUF012

    def test_the_plans_are_those_of_python(self, client):
        answer = client.get("/api/plan", params=self.ASKED).json()
        target = Target(2000, 2.0, 1e-5)
        expected = in_order(frontier(target, [50, 200], [2, 8]))
        assert [(p["batch"], p["passes"]) for p in answer["plans"]] == [
            (p.batch, p.epochs) for p in expected
        ]
        for plan, other in zip(answer["plans"], expected, strict=True):
            assert plan["noise_multiplier"] == other.noise_multiplier
            assert target.epsilon_at(other.sampler, plan["noise_multiplier"]) <= 2.0
        assert answer["plans"][0]["undominated"] is True

    def test_changes_cost(self, client):
        chosen = self.ASKED | {"epochs": "8", "batch": "200", "sampler": "poisson"}
        words = [
            change["words"] for change in client.get("/api/plan/changes", params=chosen).json()
        ]
        assert any(line.startswith("twice the epochs: noise +") for line in words)
        assert "give one batch" in said(client, "/api/plan/changes", **self.ASKED)

    def test_plans_come_one_by_one(self, client):
        events = parts(client, "/api/plan/stream", **self.ASKED)
        assert [name for name, _, _ in events][-1] == "end"
        assert sum(bool(part.get("plan")) for _, part, _ in events) == 4
        assert next(part["of"] for _, part, _ in events if "full_batch_signal" in part) == 4

    def test_limits_on_the_noise_leave_plans_out(self, client):
        free = client.get("/api/plan", params=self.ASKED).json()["plans"]
        noises = sorted(plan["noise_multiplier"] for plan in free)
        answer = client.get("/api/plan", params=self.ASKED | {"noise_at_most": noises[1]}).json()
        assert sorted(plan["noise_multiplier"] for plan in answer["plans"]) == noises[:2]
        assert len(answer["left_out"]) == 2
        assert all("noise_at_most" in why for why in answer["left_out"])
        ratio = min(plan["noise_to_batch"] for plan in free)
        answer = client.get("/api/plan", params=self.ASKED | {"ratio_at_most": ratio}).json()
        assert [plan["noise_to_batch"] for plan in answer["plans"]] == [ratio]
        message = said(client, "/api/plan", **self.ASKED, noise_at_most=0.1)
        assert "noise_at_most = 0.1 leaves no plan: the least is" in message

    def test_what_cannot_be_met_says_what_is_in_the_way(self, client):
        message = said(client, "/api/plan", **self.ASKED, rounds_at_most=3)
        assert "rounds_at_most = 3 leaves no plan" in message

    @pytest.mark.parametrize(
        ("params", "words"),
        [
            ({"epochs": "1:100:400", "batch": "1:1000:400"}, "pairs, at most 400 here"),
            (
                {"sampler": "balls-in-bins", "epochs": "1:100:20", "batch": "64,128,256,512"},
                "balls-in-bins",
            ),
            ({"records": ["5", "6"]}, "records must be given once, got 2 values"),
            ({"epochs": "5;6"}, "epochs"),
            ({"epochs": "1:2:3:4"}, "epochs must be such as"),
            ({"epochs": "99999999999"}, "at most 10 digits"),
            ({"batch": "0"}, "batch must be such as"),
            ({"batch": "70000"}, "batch must be at most records"),
            ({"epsilon": 0}, "epsilon"),
        ],
    )
    def test_bad_input_is_refused_in_words(self, client, params, words):
        assert words in said(client, "/api/plan", **params)

    @pytest.mark.parametrize(
        "ways", [[way] for way in plannable()] + [["poisson", "balls-in-bins"], list(plannable())]
    )
    def test_no_choice_of_samplers_is_too_much_at_the_defaults(self, ways):
        grid = PlanRequest(sampler=ways).grid()
        points = grid.points()
        assert {way for way, _, _ in points} == set(ways)
        assert len(points) <= MOST_PLANS
        assert sum(is_slow(way) for way, _, _ in points) <= MOST_SLOW_PLANS
        for way in ways:  # the ends of both ranges are among them
            pairs = {(batch, epochs) for one, batch, epochs in points if one == way}
            assert {(64, 1), (64, 100), (8192, 1), (8192, 100)} <= pairs
            assert (len(pairs) < 112) == any(way in note for note in grid.notes())

    def test_what_is_left_out_to_save_time_is_said(self, client):
        params = {"sampler": "balls-in-bins"}
        with client.stream("GET", "/api/plan/stream", params=params) as response:
            first = next(
                json.loads(line[6:]) for line in response.iter_lines() if '"notes"' in line
            )
        assert first["of"] == 40
        assert first["notes"] == [
            "balls-in-bins: 40 of 112 pairs of batch and epochs, evenly spread; "
            "shorter ranges show all"
        ]
        answer = client.get("/api/plan", params=self.ASKED).json()
        assert answer["notes"] == []


class TestFederated:
    def test_the_numbers_are_those_of_python_and_in_order(self, client):
        answer = client.get("/api/federated", params={"rounds": 20, "records": 50}).json()
        sampler = RandomParticipation(0.1, 0.1, 50, 20)
        rows = {row["sampler"]: row["epsilon"] for row in answer["rows"]}
        assert (
            rows["participation"]["upper"]
            == Mechanism(sampler, 1.0).guarantee().epsilon(1e-5).upper
        )
        for name in BASELINES:
            assert (
                rows[name]["upper"] == baseline(name, sampler, 1.0).guarantee().epsilon(1e-5).upper
            )
        uppers = [rows[name]["upper"] for name in service.MODELS]
        assert uppers == sorted(uppers)
        assert set(service.MODELS) == {"participation", *BASELINES}

    def test_observers_are_those_of_python(self, client):
        params = {"rounds": 5, "records": 10, "senders": 20, "colluding": 3, "always_send": False}
        answer = client.get("/api/federated", params=params).json()
        sampler = RandomParticipation(0.1, 0.1, 10, 5)
        how = {"senders": 20, "colluding": 3, "always_send": False}
        kinds = {
            True: Federation(sampler, central_noise=1.0, **how),
            False: Federation(sampler, local_noise=1.0 / math.sqrt(20), **how),
        }
        assert len(answer["observers"]) == 2 * len(OBSERVERS)
        for row in answer["observers"]:
            seen = kinds[row["trusted"]].against(row["observer"])
            upper = seen.guarantee().epsilon(1e-5).upper
            assert row["epsilon"]["upper"] == ("inf" if math.isinf(upper) else upper)
            assert row["words"] == seen.words
        assert "senders: input should be greater" in said(client, "/api/federated", senders=0)

    @pytest.mark.parametrize("figure", ["client-rate", "delta"])
    def test_figures(self, client, figure):
        params = {"rounds": 5, "records": 10, "figure": figure}
        answer = client.get("/api/federated", params=params).json()
        assert answer["points" if figure == "client-rate" else "curves"]

    def test_bad_input_is_refused_in_words(self, client):
        assert "client_rate: input should be less than or equal to 1" in said(
            client, "/api/federated", client_rate=2
        )


def test_stopping_to_listen_ends_the_computation(server):
    """A slow question whose reader goes away leaves its process to others."""
    slow = {"sampler": ["balls-in-bins", "random-allocation"], "batch": 61, "figure": "noise"}
    for i in range(3):
        params = slow | {"noise_multiplier": 0.71 + i / 100}
        with (
            httpx.Client(base_url=server) as one,
            one.stream("GET", "/api/compare/stream", params=params) as response,
        ):
            next(response.iter_lines())
    answer = httpx.get(
        f"{server}/api/compare",
        params={"sampler": "poisson", "noise_multiplier": 1.41},
        timeout=600,
    )
    assert answer.status_code == 200


def test_planner_and_page_agree_on_the_order_of_points():
    asked = list(service.coarse_first(list(range(10))))
    assert asked[:2] == [0, 9]
    assert sorted(asked) == list(range(10))


def test_a_plan_is_seen_to_meet_its_target(client):
    """The noise that the API gives is the planner's, at the digits given."""
    params = {"records": 1000, "epsilon": 1.5, "epochs": "4", "batch": "100"}
    plan = client.get("/api/plan", params=params).json()["plans"][0]
    assert (
        plan["noise_multiplier"]
        == Planner(Target(1000, 1.5, 1e-5)).plan("poisson", 100, 4).noise_multiplier
    )


class TestDiagnostics:
    def test_they_are_not_shown_unless_the_server_was_told_to(self, client, open_server):
        hidden = client.get("/api/run", params={"name": "part.ledger"}).json()
        assert hidden["diagnostics"] is None
        assert [series["name"] for series in hidden["log"]] == ["accuracy"]
        assert "0.875" not in client.get("/api/run", params={"name": "part.ledger"}).text
        shown = httpx.get(
            f"{open_server}/api/run", params={"name": "part.ledger"}, timeout=600
        ).json()
        found = {series["name"]: series["points"] for series in shown["diagnostics"]}
        assert found["accuracy"][-1] == [10, 0.875]
        assert set(found) >= {"loss", "clipped", "signal_to_noise", "norm_50", "clip_norm"}
        none = httpx.get(
            f"{open_server}/api/run", params={"name": "whole.ledger"}, timeout=600
        ).json()
        assert none["diagnostics"] == []

    def test_they_are_in_no_statement(self, open_server):
        for kind in ("html", "json", "txt"):
            params = {"name": "part.ledger", "format": kind}
            assert (
                "0.875"
                not in httpx.get(
                    f"{open_server}/api/run/statement", params=params, timeout=600
                ).text
            )

    def test_signal_by_plan(self, client, folder):
        told = client.get("/api/run", params={"name": "part.ledger"}).json()["signal"]
        assert told == [{"each": 1 / 1.2, "round": None, "rounds": 40}]
