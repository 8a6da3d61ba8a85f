"""The audit refutes lies, spares honest claims, and its parts do what they say."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from scipy import stats

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Mechanism,
    Mixed,
    NoGuarantee,
    Poisson,
    RandomAllocation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.auditing import SamplerAudit, audit_sampler
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import Composition

SAMPLERS = [
    Poisson(0.25, 8),
    TruncatedPoisson(0.25, 8, max_batch=4, population=8),
    WithoutReplacement(batch=2, population=8, steps=8),
    Shuffle(4, epochs=2),
    Shuffle(4, epochs=2, reshuffle=False),
    BufferedShuffle(4, buffer=2, epochs=2),
    BallsInBins(4, epochs=2),
    RandomAllocation(times=2, steps=4, epochs=2),
    Deterministic(4, epochs=2),
]


def name(value):
    return type(value).__name__ + ("Once" if getattr(value, "reshuffle", True) is False else "")


def shuffled_loader(records, batch, epochs=1):
    """What many training scripts do, without any library."""

    def run():
        for _ in range(epochs):
            order = random.sample(range(records), records)
            yield from (order[i : i + batch] for i in range(0, records, batch))

    return run


# --- lies -----------------------------------------------------------------------------------------


def test_shuffled_batches_claimed_as_poisson_are_refuted():
    claim = Mechanism(Poisson(0.01, 100), 1.0)
    result = audit_sampler(Shuffle(100), claim, trials=20_000, insecure_seed=0)
    assert result.refuted
    assert result.claim.upper == pytest.approx(0.718, abs=1e-3)
    assert result.lower > 1.0
    assert "others opposed" in result.attack
    assert result.participation == 1.0


@pytest.mark.slow
def test_shuffled_batches_claimed_as_poisson_are_shown_to_leak_more_than_two():
    claim = Mechanism(Poisson(0.01, 100), 1.0)
    result = audit_sampler(Shuffle(100), claim, insecure_seed=0)
    assert result.trials == 200_000
    assert 2.0 < result.lower < Mechanism(Shuffle(100), 1.0).guarantee().epsilon(1e-5).upper


@pytest.mark.parametrize(
    ("drawn", "claim"),
    [
        (Deterministic(50), Mechanism(Poisson(0.02, 50), 0.7)),
        (BufferedShuffle(50, buffer=5), Mechanism(Poisson(0.02, 50), 0.7)),
        (Deterministic(50), Mechanism(Poisson(0.02, 50), 1.4, Batch())),
        (Deterministic(50), Mechanism(Poisson(0.02, 50), 1.4, Mixed(groups=2))),
        (Shuffle(50), Mechanism(Poisson(0.02, 50), 0.7, relation="replace")),
        (Shuffle(50, epochs=8, reshuffle=False), Mechanism(Poisson(0.02, 400), 2.0)),
        (RandomAllocation(times=5, steps=20), Mechanism(Poisson(0.05, 20), 1.0)),
        (WithoutReplacement(batch=10, population=20, steps=20), Mechanism(Poisson(0.05, 20), 1.0)),
    ],
    ids=name,
)
def test_other_lies_are_refuted_too(drawn, claim):
    result = audit_sampler(drawn, claim, delta=1e-3, trials=2500, insecure_seed=1)
    assert result.refuted, result.statement()


@pytest.mark.parametrize(
    ("drawn", "claim", "target"),
    [
        (Shuffle(50, epochs=8, reshuffle=False), Mechanism(Poisson(0.02, 400), 2.5, Batch()), 0),
        (BufferedShuffle(50, buffer=3), Mechanism(Poisson(0.02, 50), 1.4, Batch()), 399),
    ],
    ids=name,
)
def test_with_clipped_aggregates_an_order_kept_or_hardly_mixed_is_refuted(drawn, claim, target):
    result = audit_sampler(drawn, claim, delta=1e-3, trials=2500, target=target, insecure_seed=1)
    assert result.refuted, result.statement()


@pytest.mark.parametrize(
    ("batches", "noise", "epochs"), [(100, 1.4, 1), (100, 2.0, 10), (1000, 1.0, 1)]
)
def test_with_clipped_aggregates_no_known_attack_contradicts_poisson_for_fresh_shuffles(
    batches, noise, epochs
):
    """The limit stated in docs/auditing.md: no number of trials lets the audit find anything.

    The ghost's seat is hidden by the clipping: at best, with one record a batch, it moves the sum
    by 1.
    """
    price = (
        Mechanism(Poisson(1.0 / batches, batches * epochs), noise, Batch())
        .guarantee()
        .epsilon(1e-5)
        .upper
    )
    known = Mechanism(Shuffle(batches, epochs), noise, Batch()).guarantee().epsilon(1e-5, rtol=0.01)
    assert known.lower < price < known.upper
    for size in (1, 2, 8):
        seen = PricedRound(largest_sum(batches, 2.0 / noise, 1.0 / (size * noise)))
        for attack in (seen, seen.reverse()):
            assert Composition([(attack, epochs)]).epsilon(1e-5, 0.01)[0] < price


def test_a_number_from_elsewhere_can_be_the_claim():
    mechanism = Mechanism(Deterministic(4), 1.0)
    assert audit_sampler(
        Deterministic(4), mechanism, epsilon=1.0, trials=2000, insecure_seed=0
    ).refuted
    honest = audit_sampler(Deterministic(4), mechanism, epsilon=9.0, trials=2000, insecure_seed=0)
    assert not honest.refuted
    assert honest.claim.evidence == "stated"


# --- honest claims --------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_no_sampler_refutes_its_own_price(sampler, noise):
    claim = Mechanism(sampler, noise)
    try:
        bracket = claim.guarantee().epsilon(1e-5)
    except NoGuarantee as missing:
        pytest.skip(f"not priced yet: {missing}")
    result = audit_sampler(sampler, claim, trials=1000, insecure_seed=7)
    assert not result.refuted, result.statement()
    assert result.claim == bracket
    if noise < 1.0:
        assert result.lower > 1.0  # the audit is awake


@pytest.mark.parametrize("clipping", [Batch(), Mixed(groups=3)], ids=name)
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize(
    "sampler", [Deterministic(4), Shuffle(4), BallsInBins(4), Poisson(0.25, 4)], ids=name
)
def test_honest_claims_about_clipped_aggregates_stand(sampler, relation, clipping):
    claim = Mechanism(sampler, 1.0, clipping, relation)
    result = audit_sampler(sampler, claim, trials=1000, insecure_seed=7)
    assert not result.refuted, result.statement()
    assert result.lower > 0.5


@pytest.mark.parametrize(
    ("sampler", "noise", "audits"),
    [(Deterministic(1), 1.0, 200), (Poisson(0.5, 1), 0.5, 100), (BallsInBins(2), 0.5, 100)],
    ids=name,
)
def test_false_alarms_are_as_rare_as_stated(sampler, noise, audits):
    """The attack is exact and delta large, so the bound is as close to the truth as possible."""
    claim, delta, confidence = Mechanism(sampler, noise), 0.1, 0.5
    truth = claim.guarantee().epsilon(delta).upper
    results = [
        audit_sampler(
            sampler,
            claim,
            epsilon=truth,
            delta=delta,
            confidence=confidence,
            trials=800,
            insecure_seed=seed,
        )
        for seed in range(audits)
    ]
    alarms = sum(result.refuted for result in results)
    assert stats.binomtest(alarms, audits, 1.0 - confidence, alternative="greater").pvalue > 1e-3
    assert alarms > 0  # not because the audit is asleep
    assert np.median([result.lower for result in results]) > 0.7 * truth


def test_a_claim_a_little_too_small_is_found_out():
    claim = Mechanism(Deterministic(1), 1.0)
    truth = claim.guarantee().epsilon(0.1).upper
    result = audit_sampler(
        Deterministic(1), claim, epsilon=0.9 * truth, delta=0.1, trials=60_000, insecure_seed=0
    )
    assert result.refuted
    assert result.lower < truth


# --- batches of one's own -------------------------------------------------------------------------


def test_a_shuffling_loader_claimed_as_poisson_is_refuted():
    random.seed(0)
    claim = Mechanism(Poisson(0.02, 100), 0.7)
    loader = shuffled_loader(100, 2, epochs=2)
    result = audit_sampler(loader, claim, delta=1e-3, trials=4000, population=100, insecure_seed=0)
    assert result.refuted
    assert result.drawn == "the function given"
    assert result.participation == 2.0


def test_a_torch_batch_sampler_claimed_as_poisson_is_refuted():
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")
    order = data.RandomSampler(range(100), generator=torch.Generator().manual_seed(0))
    loader = data.BatchSampler(order, batch_size=2, drop_last=False)
    claim = Mechanism(Poisson(0.02, 50), 0.7)
    assert audit_sampler(lambda: loader, claim, delta=1e-3, trials=4000, insecure_seed=0).refuted


def test_an_honest_poisson_loader_stands():
    rng = np.random.default_rng(0)
    result = audit_sampler(
        lambda: (np.flatnonzero(rng.random(8) < 0.25).tolist() for _ in range(8)),
        Mechanism(Poisson(0.25, 8), 0.7),
        trials=3000,
        insecure_seed=0,
    )
    assert not result.refuted
    assert result.lower > 0.5


def test_a_loader_that_drops_the_last_batch_is_audited_as_it_is():
    rng = np.random.default_rng(0)

    def loader():
        return rng.permutation(101)[:100].reshape(50, 2)

    claim = Mechanism(Poisson(0.02, 50), 0.7)
    result = audit_sampler(loader, claim, delta=1e-3, trials=4000, population=101, insecure_seed=0)
    assert result.refuted
    assert 0.98 < result.participation < 1.0


def test_a_record_drawn_twice_is_summed_twice():
    claim = Mechanism(Deterministic(2), 2.0)
    once = audit_sampler(lambda: [[0], [1]], claim, trials=4000, insecure_seed=0)
    twice = audit_sampler(
        lambda: [[0, 0], [1, 1]], claim, epsilon=99.0, trials=4000, insecure_seed=0
    )
    same = audit_sampler(
        Deterministic(2), Mechanism(Deterministic(2), 1.0), trials=4000, insecure_seed=0
    )
    assert once.lower < twice.lower
    assert twice.lower == pytest.approx(same.lower, rel=0.2)
    assert twice.participation == once.participation == 1.0


def test_empty_batches_are_rounds():
    result = audit_sampler(
        lambda: [[], [0], []], Mechanism(Deterministic(3), 1.0), trials=400, insecure_seed=0
    )
    assert result.participation == 1.0
    none = audit_sampler(
        lambda: [[], [], []], Mechanism(Deterministic(3), 1.0), trials=400, insecure_seed=0
    )
    assert (none.lower, none.participation) == (0.0, 0.0)


@pytest.mark.parametrize("noise", [0.01, 1e6])
@pytest.mark.parametrize(
    "sampler",
    [Shuffle(4, epochs=2), RandomAllocation(times=2, steps=4), Poisson(0.25, 4)],
    ids=name,
)
def test_extreme_noise_neither_warns_nor_overflows(sampler, noise):
    result = audit_sampler(
        sampler, Mechanism(sampler, noise), epsilon=0.0, trials=400, insecure_seed=0
    )
    assert result.refuted == (noise < 1.0)
    assert math.isfinite(result.lower)


@pytest.mark.parametrize(
    ("batches", "change", "message"),
    [
        (
            lambda: [[0]] * 3,
            {},
            "batches must yield 2 rounds a run, as the claim says, got more than 2",
        ),
        (lambda: [[0]], {}, "batches must yield 2 rounds a run, as the claim says, got 1"),
        (lambda: itertools.repeat([0]), {}, "got more than 2"),
        (lambda: [[0], [5]], {"population": 5}, "at least 0 and below the population, 5, got 5"),
        (lambda: [[0], [-1]], {}, "indices of at least 0, got -1"),
        (lambda: [[0.5], [1.0]], {}, "must hold record indices, whole numbers, got float64"),
        (lambda: [[True], [False]], {}, "must hold record indices, whole numbers, got bool"),
        (lambda: [[[0]], [[1]]], {}, "got int64 in 2 dimension"),
        (lambda: [0, 1], {}, "one list, array or tensor of indices per round, got 0"),
        ([[0], [1]], {}, "lambda: batch_sampler"),
        (
            Deterministic(2),
            {"target": 99},
            "target must be a whole number of at least 0 and at most 3, got 99",
        ),
        (Deterministic(2), {"claim": Deterministic(2)}, "claim must be a Mechanism"),
        (
            Deterministic(2),
            {"claim": Mechanism(Deterministic(2), 0.0)},
            "positive noise_multiplier, got 0",
        ),
        (
            Deterministic(2),
            {"claim": Mechanism(Deterministic(2), 1e-320)},
            "noise_multiplier from 1e-100 to 1e\\+100",
        ),
        (
            Deterministic(2),
            {"claim": Mechanism(Deterministic(2), 1e308)},
            "noise_multiplier from 1e-100 to 1e\\+100",
        ),
        (Deterministic(2), {"trials": 50}, "trials must be a whole number of at least 100, got 50"),
        (Deterministic(2), {"delta": 0.0}, "delta must lie strictly between 0 and 1"),
        (
            Deterministic(2),
            {"confidence": 95},
            "confidence must lie strictly between 0 and 1, got 95",
        ),
        (Deterministic(2), {"epsilon": -1.0}, "epsilon must be at least 0"),
        (
            Deterministic(2),
            {"insecure_seed": -1},
            "insecure_seed must be a whole number of at least 0, got -1",
        ),
        (Deterministic(2), {"population": 0}, "population must be a whole number of at least 1"),
        (
            Deterministic(2),
            {"population": 5, "claim": Mechanism(WithoutReplacement(1, 4, 2), 1.0), "epsilon": 1.0},
            "population must be the 4 that",
        ),
        (
            Deterministic(2),
            {"claim": Mechanism(Deterministic(2), 1.0, relation="add-remove")},
            "state it with epsilon=",
        ),
    ],
)
def test_bad_input_is_named(batches, change, message):
    options = {"claim": Mechanism(Deterministic(2), 1.0), "trials": 100, **change}
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        audit_sampler(batches, **options)


# --- the result -----------------------------------------------------------------------------------


def test_a_seed_repeats_an_audit_and_progress_is_told():
    claim = Mechanism(Shuffle(4), 1.0)
    told = []
    first = audit_sampler(
        Shuffle(4),
        claim,
        trials=2001,
        insecure_seed=3,
        progress=lambda done, total: told.append((done, total)),
    )
    assert first == audit_sampler(Shuffle(4), claim, trials=2001, insecure_seed=3)
    assert first != audit_sampler(Shuffle(4), claim, trials=2001, insecure_seed=4)
    assert told[-1] == (2001, 2001)
    assert told == sorted(told)
    assert (first.trials, first.tested) == (2001, 1501)


def test_the_statement_says_what_was_claimed_proved_meant_and_what_to_do():
    claim = Mechanism(Poisson(0.1, 10), 1.0)
    lie = audit_sampler(Deterministic(10), claim, delta=1e-2, trials=4000, insecure_seed=0)
    lines = lie.statement().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "Claimed",
        "Refuted",
        "Attack",
        "What it means",
        "What to do",
    ]
    assert "epsilon at least" in lines[1]
    assert "95 % confidence" in lines[1]
    assert "Poisson(rate=0.1, steps=10)" in lines[4]
    fair = audit_sampler(
        Deterministic(10), Mechanism(Deterministic(10), 0.5), trials=400, insecure_seed=0
    )
    assert fair.statement().splitlines()[1].startswith("Not refuted")
    assert "does not prove the claim" in fair.statement()
    with pytest.raises(dataclasses.FrozenInstanceError):
        lie.lower = 0.0
    assert isinstance(lie, SamplerAudit)
