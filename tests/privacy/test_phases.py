"""Phases: what they declare of one client, in any order, and what each of them alone proves."""

import pytest

from verax import Individual, Mechanism, RandomParticipation, TruncatedPoisson


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
