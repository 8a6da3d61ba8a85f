"""Phases: what they declare of one client, in any order, and what each of them alone proves."""

import math

import pytest

from verax import (
    BallsInBins,
    Batch,
    Deterministic,
    Individual,
    Mechanism,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    TruncatedPoisson,
    WithoutReplacement,
)


def client(records, rounds, noise, relation="add-remove", clipping=None):
    sampler = RandomParticipation(0.1, 0.9, records, rounds)
    return Mechanism(sampler, noise, clipping or Individual(), relation)


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace"])
@pytest.mark.parametrize("fewest", [0, 1])
def test_one_client_has_the_least_records_that_any_phase_declares(fewest, relation):
    """A client of so many records satisfies both descriptions, so no attack proves more than it costs."""
    declared = client(fewest, 1, 50.0, relation) + client(1000, 100, 1.0, relation)
    consistent = client(fewest, 1, 50.0, relation) + client(fewest, 100, 1.0, relation)
    found, truth = (run.guarantee().epsilon(1e-5) for run in (declared, consistent))
    assert 0.0 < found.lower <= truth.upper
    assert truth.lower <= found.upper


def test_records_without_noise_count_too():
    found = (client(0, 1, 0.0) + client(1000, 100, 1.0)).guarantee().epsilon(0.3)
    assert (
        0.0
        < found.lower
        <= (client(0, 1, 0.0) + client(0, 100, 1.0)).guarantee().epsilon(0.3).upper
    )


def test_a_client_has_no_more_records_than_the_data():
    few = Mechanism(TruncatedPoisson(0.9, 1, 2, 2), 50.0)
    found = (few + client(1000, 100, 1.0)).guarantee().epsilon(1e-5)
    assert 0.0 < found.lower <= (few + client(1, 100, 1.0)).guarantee().epsilon(1e-5).upper


PHASES = [  # two samplers, clipping, relation, group
    (Deterministic(10, 2), RandomParticipation(0.5, 0.5, 3, 20), Batch(), "zero-out", 1),
    (RandomParticipation(0.5, 0.5, 3, 20), RandomAllocation(3, 10, 2), Individual(), "", 1),
    (RandomParticipation(0.5, 0.5, 3, 20), Deterministic(10, 2), Individual(), "zero-out", 2),
    (BallsInBins(10, 2), Deterministic(10, 2), Individual(), "replace", 1),
    (Deterministic(10, 2), WithoutReplacement(6, 60, 20), Individual(), "zero-out", 2),
    (RandomAllocation(3, 10, 2), WithoutReplacement(6, 60, 20), Individual(), "replace", 2),
]


@pytest.mark.parametrize("phases", PHASES, ids=lambda phases: "-".join(map(str, phases[3:])))
def test_phases_prove_in_any_order_what_each_proves_alone_and_stay_finite(phases):
    *samplers, clipping, relation, group = phases
    first, second = (
        Mechanism(sampler, 1.0, clipping, relation or "zero-out") for sampler in samplers
    )
    found = (first + second).guarantee(group).epsilon(1e-3)
    assert found == (second + first).guarantee(group).epsilon(1e-3)
    alone = [phase.guarantee(group).epsilon(1e-3) for phase in (first, second)]
    assert found.lower >= 0.999 * max(bracket.lower for bracket in alone)
    assert math.isfinite(found.upper) or any(math.isinf(bracket.upper) for bracket in alone)


@pytest.mark.parametrize("noise", [1e-200, 1e-3, 1e11])
def test_a_phase_of_extreme_noise_leaves_the_attack_on_the_other(noise):
    usual, extreme = Mechanism(Poisson(0.1, 20), 1.0), Mechanism(Poisson(0.01, 2), noise)
    assert (usual + extreme).guarantee().epsilon(0.3).lower >= 0.999 * (
        usual.guarantee().epsilon(0.3).lower
    )


def test_company_that_one_phase_lacks_costs_the_others_nothing():
    usual = Mechanism(RandomAllocation(3, 10, 2), 1.0, Batch())
    lonely = Mechanism(TruncatedPoisson(0.1, 20, 10, 60), 1.0, Batch())
    found = (usual + lonely).guarantee()
    people = found.delta(3.0), found.epsilon(1e-3)
    assert people[1].lower <= people[1].upper
    assert found.epsilon(1e-3).lower >= lonely.guarantee().epsilon(1e-3).lower
