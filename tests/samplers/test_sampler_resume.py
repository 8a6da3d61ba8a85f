"""A run saved after any round and resumed draws the very batches it would have drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Indices,
    Poisson,
    RandomAllocation,
    Sampler,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
    resume,
)

POPULATION = 23
SAMPLERS: list[Sampler] = [
    Poisson(0.2, 6),
    Poisson(0.7, 6),
    TruncatedPoisson(0.2, 6, 5, POPULATION),
    Deterministic(4, 2),
    Shuffle(4, 3),
    Shuffle(4, 3, reshuffle=False),
    BufferedShuffle(5, 2, 2),
    BallsInBins(4, 3),
    RandomAllocation(3, 8, 2),
    WithoutReplacement(5, POPULATION, 6),
]
GENERATORS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


def generator(kind: str, seed: int) -> np.random.Generator:
    return np.random.Generator(getattr(np.random, kind)(seed))


def lists(batches: Iterator[Indices]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_resumes_after_every_round(sampler: Sampler) -> None:
    for kind in GENERATORS:
        whole = lists(sampler.draw(POPULATION, generator(kind, 1)))
        assert len(whole) == len(sampler)
        run = sampler.draw(POPULATION, generator(kind, 1))
        for done in range(len(sampler) + 1):
            state = run.state()
            saved = json.loads(json.dumps(state))
            again = resume(sampler, saved, POPULATION)
            assert again.state() == saved
            assert lists(again) == whole[done:]
            assert run.state() == state, "taking the state changed the run"
            next(run, None)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(SAMPLERS), st.sampled_from(GENERATORS), st.integers(0, 2**32), st.data())
def test_resumes_with_a_generator_that_the_noise_shares(
    sampler: Sampler, kind: str, seed: int, data: st.DataObject
) -> None:
    def train(
        rng: np.random.Generator, run: Iterator[Indices], rounds: int
    ) -> list[tuple[list[int], float]]:
        taken = []
        for _ in range(rounds):
            batch = next(run)
            taken.append((batch.tolist(), float(rng.normal())))
            rng.integers(0, 5, dtype=np.uint32)  # leaves half a word in some bit generators
        return taken

    rounds = len(sampler)
    rng = generator(kind, seed)
    whole = train(rng, sampler.draw(POPULATION, rng), rounds)
    rng = generator(kind, seed)
    run = sampler.draw(POPULATION, rng)
    pieces: list[tuple[list[int], float]] = []
    while len(pieces) < rounds:  # interrupted again and again
        pieces += train(rng, run, data.draw(st.integers(1, rounds - len(pieces))))
        saved = json.dumps(run.state())
        rng = generator(kind, 0)
        run = resume(sampler, json.loads(saved), POPULATION, rng)
    assert pieces == whole
    assert next(run, None) is None


@pytest.mark.parametrize(
    "sampler", [Poisson(0.01, 5), Shuffle(10), BallsInBins(10), RandomAllocation(3, 30)], ids=repr
)
def test_state_stays_small(sampler: Sampler) -> None:
    run = sampler.draw(100_000, np.random.default_rng(0))
    for _ in run:
        assert len(json.dumps(run.state())) < 2000


def test_a_second_run_with_the_generator_is_fresh() -> None:
    rng = np.random.default_rng(0)
    assert lists(Shuffle(4).draw(40, rng)) != lists(Shuffle(4).draw(40, rng))


def test_batches_are_drawn_lazily() -> None:
    run = Poisson(0.5, 2**53).draw(10, np.random.default_rng(0))
    assert len(lists([next(run), next(run)])) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler": "Poisson(rate=0.2, steps=7)"}, "state must be of a run with sampler"),
        ({"population": 24}, "state must be of a run with population 23, got 24"),
        ({"passes": 7}, "state passes"),
        ({"taken": -1}, "state taken"),
        ({"more": 1}, "state must be what"),
        ({"now": {"bit_generator": "Secure"}}, "rng must be given"),
        ({"now": None}, "rng must be given"),
    ],
)
def test_refuses_a_state_of_another_run(change: dict[str, object], message: str) -> None:
    run = Poisson(0.2, 6).draw(POPULATION, np.random.default_rng(0))
    next(run)
    with pytest.raises(ValueError, match=message):
        resume(Poisson(0.2, 6), run.state() | change, POPULATION)


def test_refuses_a_generator_of_another_kind() -> None:
    run = Poisson(0.2, 6).draw(POPULATION, np.random.default_rng(0))
    with pytest.raises(ValueError, match="PCG64"):
        resume(
            Poisson(0.2, 6),
            run.state() | {"now": generator("SFC64", 0).bit_generator.state},
            POPULATION,
            rng=generator("PCG64", 0),
        )


def test_refuses_batches_that_cannot_resume() -> None:
    class Plain(Poisson):
        def draw(self, population: int, rng: np.random.Generator) -> Iterator[Indices]:  # type: ignore[override]
            return iter(())

    run = Poisson(0.2, 6).draw(POPULATION, np.random.default_rng(0))
    with pytest.raises(ValueError, match="resumable"):
        resume(Plain(0.2, 6), run.state(), POPULATION)
