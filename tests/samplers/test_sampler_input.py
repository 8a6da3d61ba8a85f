"""Bad input is refused by name; descriptions behave as values."""

from __future__ import annotations

import dataclasses
import json
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Poisson,
    RandomAllocation,
    Sampler,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)

GOOD: list[tuple[Sampler, str, int, float]] = [  # sampler, relation, rounds, expected batch of 20
    (Poisson(0.1, 7), "add-remove", 7, 2.0),
    (TruncatedPoisson(0.1, 7, 3, 20), "add-remove", 7, 2.0),
    (Deterministic(8, 2), "zero-out", 16, 2.5),
    (Shuffle(8, 2, False), "zero-out", 16, 2.5),
    (BufferedShuffle(8, 3, 2), "zero-out", 16, 2.5),
    (BallsInBins(40, 2), "add-remove", 80, 0.5),
    (RandomAllocation(2, 8, 3), "add-remove", 24, 5.0),
    (WithoutReplacement(3, 20, 4), "replace", 4, 3.0),
]


@pytest.mark.parametrize(("sampler", "relation", "rounds", "expected"), GOOD, ids=lambda x: repr(x))
def test_a_sampler_is_a_value(
    sampler: Sampler, relation: str, rounds: int, expected: float
) -> None:
    assert isinstance(sampler, Sampler)
    assert sampler.relation == relation
    assert len(sampler) == rounds
    assert sampler.expected_batch(20) == expected
    fields = dataclasses.asdict(sampler)
    same = [
        type(sampler)(**json.loads(json.dumps(fields))),
        pickle.loads(pickle.dumps(sampler)),
        dataclasses.replace(sampler),
        type(sampler)(*(np.float64(x) if type(x) is int else x for x in fields.values())),
        eval(repr(sampler)),
    ]
    for other in same:
        assert other == sampler
        assert hash(other) == hash(sampler)
        assert repr(other) == repr(sampler)
        drawn = [list(s.draw(20, np.random.default_rng(0))) for s in (sampler, other)]
        assert all(np.array_equal(a, b) for a, b in zip(*drawn, strict=True))
    for name in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(sampler, name, 1)


def test_batches_is_the_number_and_draws_them() -> None:
    sampler = Shuffle(batches=3)
    assert sampler.batches == 3
    assert f"{sampler.batches}" == "3"
    assert len(list(sampler.draw(10, np.random.default_rng(0)))) == 3
    with pytest.raises(TypeError):
        Shuffle()
    with pytest.raises(TypeError):
        BufferedShuffle(batches=3)


NOT_COUNTS = [0, -1, 1.5, float("nan"), float("inf"), True, "3", None, 2**60]
NOT_RATES = [0, -0.1, 1.1, float("nan"), float("inf"), True, "0.1", None]
MAKERS: list[tuple[str, Callable[[object], Sampler]]] = [
    ("steps", lambda x: Poisson(0.1, x)),
    ("steps", lambda x: TruncatedPoisson(0.1, x, 5, 20)),
    ("max_batch", lambda x: TruncatedPoisson(0.1, 5, x, 20)),
    ("population", lambda x: TruncatedPoisson(0.1, 5, 5, x)),
    ("batches", lambda x: Deterministic(x)),
    ("epochs", lambda x: Deterministic(3, x)),
    ("batches", lambda x: Shuffle(x)),
    ("epochs", lambda x: Shuffle(3, x)),
    ("batches", lambda x: BufferedShuffle(x, 1)),
    ("buffer", lambda x: BufferedShuffle(3, x)),
    ("epochs", lambda x: BufferedShuffle(3, 1, x)),
    ("bins", lambda x: BallsInBins(x)),
    ("epochs", lambda x: BallsInBins(3, x)),
    ("times", lambda x: RandomAllocation(x, 5)),
    ("steps", lambda x: RandomAllocation(1, x)),
    ("epochs", lambda x: RandomAllocation(1, 5, x)),
    ("batch", lambda x: WithoutReplacement(x, 20, 5)),
    ("population", lambda x: WithoutReplacement(1, x, 5)),
    ("steps", lambda x: WithoutReplacement(1, 20, x)),
]


@pytest.mark.parametrize(("name", "make"), MAKERS)
@pytest.mark.parametrize("value", NOT_COUNTS, ids=repr)
def test_counts_are_checked(name: str, make: Callable[[object], Sampler], value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        make(value)


@pytest.mark.parametrize("value", NOT_RATES, ids=repr)
@pytest.mark.parametrize(
    "make", [lambda x: Poisson(x, 5), lambda x: TruncatedPoisson(x, 5, 20, 20)]
)
def test_rates_are_checked(make: Callable[[object], Sampler], value: object) -> None:
    with pytest.raises(ValueError, match=r"^rate must"):
        make(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TruncatedPoisson(0.1, 5, 9, 100),
            r"^max_batch must be at least rate \* population = 10, got 9$",
        ),
        (
            lambda: BufferedShuffle(5, 6),
            "^buffer must be a whole number of at least 1 and at most 5, got 6$",
        ),
        (
            lambda: RandomAllocation(6, 5),
            "^times must be a whole number of at least 1 and at most 5, got 6$",
        ),
        (
            lambda: WithoutReplacement(21, 20, 5),
            "^batch must be a whole number of at least 1 and at most 20, got 21$",
        ),
        (lambda: Shuffle(5, 1, 1), "^reshuffle must be True or False, got 1$"),
    ],
)
def test_fields_are_checked_against_each_other(make: Callable[[], Sampler], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_truncation_at_the_mean_is_allowed_whatever_the_rounding() -> None:
    assert 0.07 * 100 > 7
    TruncatedPoisson(rate=0.07, steps=1, max_batch=7, population=100)


@pytest.mark.parametrize("sampler", [row[0] for row in GOOD], ids=repr)
@pytest.mark.parametrize("population", [0, -1, 2.5, float("nan"), True, None, "20"], ids=repr)
def test_populations_are_checked_before_the_first_batch(
    sampler: Sampler, population: object
) -> None:
    with pytest.raises(ValueError, match=r"^population must be"):
        sampler.draw(population, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^population must be"):
        sampler.expected_batch(population)


@pytest.mark.parametrize(
    ("sampler", "population", "message"),
    [
        (Deterministic(8), 7, "^population must be at least the number of batches, 8, got 7$"),
        (Shuffle(8), 7, "^population must be at least the number of batches, 8, got 7$"),
        (BufferedShuffle(8, 2), 7, "^population must be at least the number of batches, 8, got 7$"),
        (TruncatedPoisson(0.1, 5, 3, 20), 21, "^population must be the declared 20, got 21$"),
        (WithoutReplacement(3, 20, 5), 19, "^population must be the declared 20, got 19$"),
    ],
)
def test_populations_that_do_not_fit(sampler: Sampler, population: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler.draw(population, np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        sampler.expected_batch(population)


@pytest.mark.parametrize("sampler", [row[0] for row in GOOD], ids=repr)
@pytest.mark.parametrize(
    "rng", [None, 0, np.random.RandomState(0), np.random.PCG64(0)], ids=lambda x: type(x).__name__
)
def test_the_generator_is_checked(sampler: Sampler, rng: object) -> None:
    with pytest.raises(ValueError, match=r"^rng must be a numpy"):
        sampler.draw(20, rng)


def test_empty_batches_are_rounds() -> None:
    assert [len(batch) for batch in Poisson(1e-9, 50).draw(3, np.random.default_rng(0))] == [0] * 50
    sizes = [len(batch) for batch in BallsInBins(50).draw(3, np.random.default_rng(0))]
    assert len(sizes) == 50
    assert sum(sizes) == 3
    sizes = [len(batch) for batch in RandomAllocation(2, 50).draw(1, np.random.default_rng(0))]
    assert sorted(sizes) == [0] * 48 + [1] * 2


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "sampling.py"
    runpy.run_path(str(script))["main"](
        ["--records", "5000", "--repeats", "1", "--opacus-rounds", "1", "--json"]
    )
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 10
    assert all(row["seconds"] > 0 for row in rows)
