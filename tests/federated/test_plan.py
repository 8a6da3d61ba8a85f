"""What a federation runs, and what each of its modes is priced as."""

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("cryptography")

from hypothesis import given, settings
from hypothesis import strategies as st

from verax import (
    BallsInBins,
    Batch,
    Budget,
    Individual,
    Mechanism,
    NoGuarantee,
    Poisson,
    RandomParticipation,
    ledger,
)
from verax.federated import Embedded, Plan
from verax.reporting.statement import Statement
from verax.training import Ledger

PLAN = Plan(
    clients=40,
    records=800,
    largest=30,
    client_rate=0.25,
    record_rate=0.2,
    rounds=20,
    noise_multiplier=1.5,
    clip_norm=2.0,
)


def upper(guarantee, delta=1e-5):
    return guarantee.epsilon(delta).upper


def test_sums_are_divided_by_what_is_expected():
    assert PLAN.expected == pytest.approx(0.25 * 0.2 * 800)
    assert replace(PLAN, unit="client").expected == pytest.approx(0.25 * 40)
    assert PLAN.sigma == 3.0


@pytest.mark.parametrize(
    ("change", "unit", "want"),
    [
        ({}, "record", Mechanism(RandomParticipation(0.25, 0.2, 30, 20), 1.5, Individual(2.0))),
        (
            {"noise": "local"},
            "record",
            Mechanism(RandomParticipation(0.25, 0.2, 30, 20), 1.5, Individual(2.0)),
        ),
        (
            {"noise": "visible"},
            "record",
            Mechanism(RandomParticipation(0.25, 0.2, 30, 20, revealed=True), 1.5, Individual(2.0)),
        ),
        ({"unit": "client"}, "client", Mechanism(Poisson(0.25, 20), 1.5, Individual(2.0))),
        (
            {"unit": "client"},
            "record",
            Mechanism(RandomParticipation(0.25, 0.2, 30, 20), 1.5, Batch(2.0)),
        ),
        (
            {"unit": "client", "noise": "local"},
            "client",
            Mechanism(Poisson(0.25, 20), 1.5, Individual(2.0), "zero-out"),
        ),
        (
            {"unit": "client", "noise": "visible"},
            "client",
            Mechanism(
                RandomParticipation(0.25, 1.0, 0, 20, revealed=True),
                1.5,
                Individual(2.0),
                "zero-out",
            ),
        ),
        (
            {"unit": "client", "bins": 4},
            "client",
            Mechanism(BallsInBins(4, 5), 1.5, Individual(2.0)),
        ),
        (
            {"unit": "client", "bins": 4},
            "record",
            Mechanism(BallsInBins(4, 5), 1.5, Individual(2.0), "replace"),
        ),
    ],
)
def test_every_mode_is_priced_as_what_it_is(change, unit, want):
    plan = replace(PLAN, **change)
    assert plan.mechanism(unit=unit) == want
    assert plan.guarantee(unit=unit).assuming.endswith(plan.assumed)


def test_seeing_who_takes_part_costs_more_and_revealed_clients_are_a_coin_away_from_always():
    sparse = replace(PLAN, client_rate=0.01, rounds=4)
    assert upper(sparse.guarantee()) <= upper(replace(sparse, noise="visible").guarantee())
    # One revealed round of a client: delta is client_rate times that of a Gaussian mechanism, a
    # closed form.
    one = replace(sparse, unit="client", noise="visible", rounds=1)
    always = Mechanism(Poisson(1.0, 1), 1.5, Individual(2.0)).guarantee().delta(0.5).upper
    assert one.guarantee().delta(0.5).upper == pytest.approx(0.01 * always, rel=2e-3)


def test_a_client_with_more_records_has_the_weaker_guarantee():
    found = [upper(PLAN.guarantee(records)) for records in (1, 5, 30)]
    assert found == sorted(found)
    assert found[0] < found[-1]
    assert upper(PLAN.guarantee()) == found[-1]


@settings(max_examples=5)
@given(
    st.sampled_from(("central", "visible")),
    st.sampled_from(("record", "client")),
    st.floats(0.05, 1.0),
    st.floats(0.05, 1.0),
    st.integers(0, 30),
    st.floats(0.1, 1.0),
    st.floats(0.1, 1.0),
)
def test_smaller_rates_are_covered_by_the_largest(noise, unit, p, q, records, less, fewer):
    """Theorem 5, one round: no smaller rate costs more, at small and at large losses."""
    plan = replace(PLAN, noise=noise, unit=unit, client_rate=p, record_rate=q, rounds=2)
    small = replace(plan, client_rate=less * p, record_rate=fewer * q)
    for delta in (1e-3, 1e-7):
        assert (
            upper(small.guarantee(records), delta)
            <= upper(plan.guarantee(), delta) * (1.0 + 2e-3) + 1e-9
        )


def test_rates_declared_for_every_round_become_phases():
    rates = [0.1] * 5 + [0.3] * 15
    phases = PLAN.phases(12, rates)
    assert [(m.sampler.record_rate, len(m.sampler)) for m in phases.mechanisms] == [
        (0.1, 5),
        (0.3, 15),
    ]
    assert {m.sampler.records for m in phases.mechanisms} == {12}
    with pytest.raises(
        ValueError, match="record_rates must have one rate for each of the 20 rounds, got 3"
    ):
        PLAN.phases(12, [0.1] * 3)
    both = PLAN.phases(12, rates, [0.25] * 10 + [0.125] * 10).mechanisms
    found = [(m.sampler.client_rate, m.sampler.record_rate, len(m.sampler)) for m in both]
    assert found == [(0.25, 0.1, 5), (0.25, 0.3, 5), (0.125, 0.3, 10)]
    with pytest.raises(
        ValueError, match="client_rates must have one rate for each of the 20 rounds, got 2"
    ):
        PLAN.phases(12, rates, [0.25] * 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client_rate": 0.0}, "client_rate must lie in"),
        ({"record_rate": 1e-30}, "record_rate must be at least 2\\^-70"),
        ({"unit": "group"}, "unit must be one of 'record', 'client'"),
        ({"noise": "none"}, "noise must be one of 'central', 'local', 'visible'"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be at least 0"),
        ({"bins": 4}, "bins is for unit='client'"),
        ({"bins": 4, "unit": "client", "noise": "visible"}, "bins is for unit='client'"),
        ({"bins": 5, "unit": "client"}, "client_rate must be 1 / bins"),
        ({"bins": 4, "unit": "client", "rounds": 21}, "rounds must be a multiple of bins, 4"),
    ],
)
def test_bad_plans_are_refused_in_words(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **change)


def test_clients_are_not_protected_by_clipping_their_records():
    with pytest.raises(NoGuarantee, match="a client's sum is not clipped"):
        PLAN.guarantee(unit="client")


@settings(max_examples=12)
@given(st.integers(1, 40), st.floats(0.05, 1.0), st.integers(0, 20))
def test_ledgers_of_clients_count_rounds(tmp_path_factory, records, rate, spent):
    path = tmp_path_factory.mktemp("ledger") / "client.ledger"
    plan = replace(PLAN, record_rate=rate)
    run = plan.mechanism(records)
    with Ledger.create(path, run) as book:
        for number in range(spent):
            book.release(number, clip_norm=2.0, noise_multiplier=1.5)
    found = ledger.read(path)
    assert found.mechanism.mechanisms == (run,)
    if spent:
        early = found.guarantee(stopping="independent").mechanism.mechanisms[0].sampler
        assert early == replace(run.sampler, rounds=spent)


def test_the_largest_honest_message():
    assert PLAN.longest(100) == pytest.approx(60.0, rel=1e-4)
    assert replace(PLAN, unit="client").longest(100) == pytest.approx(2.0, rel=1e-4)
    local = replace(PLAN, unit="client", noise="local").longest(100)
    assert 2.0 + 3.0 * math.sqrt(100) < local < 2.0 + 3.0 * (math.sqrt(100) + 8.0)


@pytest.mark.parametrize("noise", ["central", "local", "visible"])
def test_every_statement_of_a_plan_for_clients_protects_clients(world, tmp_path, noise):
    run = world.plan(unit="client", noise=noise, client_rate=0.1)
    assert run.guarantee().unit == "client"
    assert run.guarantee(unit="record").unit == "record"
    head = world.server(run, ledger=tmp_path / "server.ledger")
    client = world.client(0, run, ledger=tmp_path / "client.ledger")
    budgeted = world.client(1, run, budget=Budget(9.0, 1e-5, relation=run.mechanism().relation))
    whole = Embedded(
        run, world.make(), world.loss, (world.x, world.y), world.sizes, world.sgd, insecure_seed=5
    )
    found = [
        run.guarantee().statement(1e-5),
        head.statement(1e-5),
        client.statement(1e-5),
        budgeted.statement(1e-5),
        whole.statement(1e-5),
        *(guarantee.statement(1e-5) for guarantee in whole.guarantees()),
        whole.guarantee_of(3).statement(1e-5),
        *(
            Statement.of_runs([ledger.read(tmp_path / f"{who}.ledger")], 1e-5)
            for who in ("server", "client")
        ),
    ]
    assert {statement.content()["protected"]["unit"] for statement in found} == {"client"}
    assert world.server(world.plan()).statement(1e-5).content()["protected"]["unit"] == "record"
    same = Ledger.create(tmp_path / "record.ledger", run.mechanism(), insecure_seed=True)
    with pytest.raises(ValueError, match=r"protecting one client, got .*, protecting one record"):
        world.server(run, ledger=same)
