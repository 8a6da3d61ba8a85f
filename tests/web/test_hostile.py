"""Questions meant to hurt: every one is answered or refused in words, and the server goes on."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings

from verax import BallsInBins, Deterministic, Mechanism, Poisson, RandomAllocation
from verax.planning import plannable
from verax.training import Ledger

app = pytest.importorskip("verax.web.app", exc_type=ModuleNotFoundError)
schemathesis = pytest.importorskip("schemathesis")
Settings = app.Settings

TIGHT = Settings(seconds=0.5, stream_seconds=1.0, requests=4, upload=100_000, workers=2)
UPPER = Mechanism(Deterministic(100), 1.0).guarantee().epsilon(1e-5).upper


@pytest.fixture(scope="module")
def tight(serving):
    """A server with little patience."""
    with serving(TIGHT) as address:
        yield address


def alive(address):
    """It still answers, with the right number, once those who left have been noticed."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        answer = httpx.get(
            f"{address}/api/compare", params={"sampler": "deterministic", "epochs": 1}, timeout=600
        )
        if answer.status_code == 200:
            return answer.json()["rows"][0]["epsilon"]["upper"] == UPPER
        time.sleep(0.1)
    return False


api = schemathesis.openapi.from_dict(app.create_app().api.openapi())
api.config.phases.coverage.enabled = False  # thousands of requests, where a few of each kind do


@api.parametrize()
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_generated_requests_are_answered_as_documented(case, tight):
    response = case.call(base_url=tight, timeout=600)
    assert str(response.status_code) in case.operation.definition.raw["responses"], response.text
    assert response.status_code in (200, 404, 413, 422, 503), response.text
    assert "Traceback" not in response.text
    kind = response.headers["content-type"][0]
    if response.status_code != 200:
        assert isinstance(json.loads(response.text)["message"], str)
    if kind == "application/json" and "statement" not in case.path:
        case.validate_response(response, checks=[schemathesis.checks.response_schema_conformance])


EXTREMES = {
    "records": [1, 60_000, 10**9],
    "batch": [1, 999, 10**9],
    "epochs": [1, 7, 10_000],
    "noise_multiplier": [0.05, 1000.0],
    "delta": [1e-30, 0.5],
    "group": [1, 64],
}


def test_extreme_parameters_are_answered_or_refused(tight):
    """All corners of what is allowed, with every sampler; none may bring it down."""
    corners = [
        dict(zip(EXTREMES, values, strict=True)) for values in itertools.product(*EXTREMES.values())
    ]
    hard = [corner for corner in corners if corner["batch"] <= corner["records"]]
    ways = list(plannable())
    with httpx.Client(base_url=tight, timeout=600) as one:
        for i, corner in enumerate(hard[::7]):
            answer = one.get(
                "/api/compare", params=corner | {"sampler": [ways[i % 9], ways[(i + 4) % 9]]}
            )
            assert answer.status_code in (200, 422), answer.text
            for row in answer.json().get("rows", ()):
                assert row["epsilon"] or row["why_not"]
    assert alive(tight)


def test_hostile_ledgers_are_refused(tight, tmp_path):
    """A ledger may declare what no machine can price."""
    for i, mechanism in enumerate(
        [
            Mechanism(BallsInBins(bins=2**31, epochs=2**20), 0.01),
            Mechanism(RandomAllocation(times=7_919, steps=10**9), 1.0),
            Mechanism(Poisson(1e-9, 2**52), 1e-3),
        ]
    ):
        path = tmp_path / f"{i}.ledger"
        Ledger.create(path, mechanism).close()
        for where in ("/api/run", "/api/run/statement"):
            answer = httpx.post(tight + where, content=path.read_bytes(), timeout=600)
            assert answer.status_code in (200, 422), answer.text
    assert alive(tight)


def test_many_at_once_are_answered_or_sent_away(tight):
    slow = {"sampler": ["random-allocation", "balls-in-bins"], "batch": 61, "figure": "noise"}

    def ask(i):
        return httpx.get(
            f"{tight}/api/compare", params=slow | {"noise_multiplier": 0.5 + i / 100}, timeout=600
        )

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(ask, range(12)))
    assert {answer.status_code for answer in answers} <= {200, 422, 503}
    assert alive(tight)


def test_one_too_many_is_sent_away(serving, tmp_path):
    """All places are taken by readers of a run that lasts as long as the test."""
    with (
        Ledger.create(tmp_path / "live.ledger", Mechanism(Poisson(0.05, 6), 1.2)),
        serving(
            Settings(runs=tmp_path, requests=2, workers=2, seconds=600.0, stream_seconds=1e6)
        ) as full,
        ExitStack() as readers,
    ):
        lines = []
        for _ in range(2):
            one = readers.enter_context(httpx.Client(base_url=full, timeout=600))
            watch = one.stream("GET", "/api/run/stream", params={"name": "live.ledger"})
            # kept: without it the reader leaves
            lines.append(readers.enter_context(watch).iter_lines())
            next(lines[-1])
        answer = httpx.get(f"{full}/api/compare", params={"sampler": "deterministic"}, timeout=600)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "2 requests are being answered, the most at once" in answer.json()["message"]
        readers.close()
        assert alive(full)


def test_a_long_question_is_told_so(tight):
    params = {
        "records": 10**6,
        "epochs": "1:1000:6",
        "batch": "100:100000:8",
        "sampler": "balls-in-bins",
    }
    answer = httpx.get(f"{tight}/api/plan", params=params, timeout=600)
    assert answer.status_code == 422
    assert "seconds, the most that one" in answer.json()["message"]
    with httpx.stream("GET", f"{tight}/api/plan/stream", params=params, timeout=600) as response:
        text = response.read().decode()
    assert "event: error" in text
    assert alive(tight)


def test_readers_who_leave_free_their_place(tight):
    slow = {"sampler": "random-allocation", "batch": 67, "figure": "noise"}
    for i in range(3 * TIGHT.requests):
        params = slow | {"noise_multiplier": 0.4 + i / 100}
        with (
            httpx.Client(base_url=tight, timeout=600) as one,
            one.stream("GET", "/api/compare/stream", params=params) as response,
        ):
            if response.status_code == 200:
                next(response.iter_lines())
    assert alive(tight)
