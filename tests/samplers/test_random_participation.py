"""Random participation: distribution of a client's batches, resuming, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from verax.samplers import RandomParticipation, Sampler, resume

LEAST_P = 1e-4
SAMPLER = RandomParticipation(0.4, 0.3, 20, 7)


def law(population: int, p: float, q: float) -> dict[frozenset[int], float]:
    """One round, listed."""
    found: Counter[frozenset[int]] = Counter({frozenset(): 1.0 - p})
    for size in range(population + 1):
        for batch in itertools.combinations(range(population), size):
            found[frozenset(batch)] += p * q**size * (1.0 - q) ** (population - size)
    return dict(found)


@pytest.mark.parametrize(("p", "q"), [(0.4, 0.3), (0.7, 0.8), (1.0, 0.5), (0.5, 1.0)])
def test_two_rounds_have_the_joint_law(p, q):
    runs = 3000
    rounds = law(3, p, q)
    expected = {(a, b): rounds[a] * rounds[b] for a in rounds for b in rounds}
    sampler, rng = RandomParticipation(p, q, 2, 2), np.random.default_rng(1)
    seen = Counter(tuple(frozenset(b.tolist()) for b in sampler.draw(3, rng)) for _ in range(runs))
    assert all(expected[run] > 0.0 for run in seen)
    some = [run for run, chance in expected.items() if chance > 0.0]
    counts, chances = (
        np.array([seen[run] for run in some]),
        np.array([expected[run] for run in some]),
    )
    rare = chances * runs < 5.0
    counts = np.append(counts[~rare], counts[rare].sum())
    chances = np.append(chances[~rare], chances[rare].sum())
    kept = chances > 0.0
    assert (
        stats.chisquare(counts[kept], chances[kept] / chances[kept].sum() * runs).pvalue > LEAST_P
    )


def test_a_large_run_has_the_right_rates():
    p, q, population, rounds = 0.05, 0.01, 2000, 4000
    sizes = np.array(
        [
            b.size
            for b in RandomParticipation(p, q, population, rounds).draw(
                population, np.random.default_rng(2)
            )
        ]
    )
    there = np.count_nonzero(sizes)  # an empty batch of a client that takes part has chance 2e-9
    assert stats.binomtest(there, rounds, p).pvalue > LEAST_P
    assert stats.binomtest(int(sizes.sum()), there * population, q).pvalue > LEAST_P
    assert np.var(sizes[sizes > 0]) == pytest.approx(population * q * (1 - q), rel=0.3)


def test_it_is_a_value_and_a_sampler():
    assert isinstance(SAMPLER, Sampler)
    assert (SAMPLER.relation, len(SAMPLER), SAMPLER.expected_batch(20)) == (
        "add-remove",
        7,
        pytest.approx(2.4),
    )
    fields = dataclasses.asdict(SAMPLER)
    assert list(fields) == ["client_rate", "record_rate", "records", "rounds", "revealed"]
    for other in (
        RandomParticipation(**json.loads(json.dumps(fields))),
        pickle.loads(pickle.dumps(SAMPLER)),
        RandomParticipation(0.4, 0.3, np.float64(20), np.int64(7)),
        eval(repr(SAMPLER)),
    ):
        assert other == SAMPLER
        assert hash(other) == hash(SAMPLER)
        assert repr(other) == repr(SAMPLER)
    with pytest.raises(dataclasses.FrozenInstanceError):
        SAMPLER.rounds = 3  # type: ignore[misc]


def test_revealing_participation_does_not_change_the_draw():
    twin = dataclasses.replace(SAMPLER, revealed=True)
    both = [[b.tolist() for b in s.draw(20, np.random.default_rng(3))] for s in (SAMPLER, twin)]
    assert both[0] == both[1]
    assert twin != SAMPLER


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "SFC64"])
def test_resumes_after_every_round(kind):
    def generator(seed: int) -> np.random.Generator:
        return np.random.Generator(getattr(np.random, kind)(seed))

    whole = [b.tolist() for b in SAMPLER.draw(20, generator(5))]
    assert len(whole) == 7
    run = SAMPLER.draw(20, generator(5))
    for done in range(8):
        saved = json.loads(json.dumps(run.state()))
        assert [b.tolist() for b in resume(SAMPLER, saved, 20)] == whole[done:]
        next(run, None)


NOT_COUNTS = [-1, 1.5, math.nan, math.inf, True, "3", None, 2**60]
NOT_RATES = [0, -0.1, 1.1, math.nan, True, "0.1", None]


@pytest.mark.parametrize("value", NOT_COUNTS, ids=repr)
def test_counts_are_checked(value):
    with pytest.raises(ValueError, match=r"^records must be"):
        RandomParticipation(0.1, 0.1, value, 5)
    with pytest.raises(ValueError, match=r"^rounds must be"):
        RandomParticipation(0.1, 0.1, 5, value)


@pytest.mark.parametrize("value", NOT_RATES, ids=repr)
def test_rates_are_checked(value):
    with pytest.raises(ValueError, match=r"^client_rate must"):
        RandomParticipation(value, 0.1, 5, 5)
    with pytest.raises(ValueError, match=r"^record_rate must"):
        RandomParticipation(0.1, value, 5, 5)


def test_the_rest_is_checked():
    with pytest.raises(ValueError, match=r"^rounds must be"):
        RandomParticipation(0.1, 0.1, 5, 0)
    with pytest.raises(ValueError, match=r"^revealed must be True or False, got 1$"):
        RandomParticipation(0.1, 0.1, 5, 5, 1)
    assert RandomParticipation(0.1, 0.1, 0, 5).expected_batch(1) == pytest.approx(0.01)


def test_more_records_than_declared_are_refused():
    """Fewer are covered by the guarantee, more are not."""
    for ask in (lambda n: SAMPLER.draw(n, np.random.default_rng(0)), SAMPLER.expected_batch):
        ask(1)
        ask(21)
        with pytest.raises(
            ValueError,
            match=r"^population must be at most records \+ 1 = 21, got 22; raise records$",
        ):
            ask(22)
        with pytest.raises(ValueError, match=r"^population must be"):
            ask(0)
