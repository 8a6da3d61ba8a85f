"""A mechanism survives the trip through JSON; what is not exactly a description is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Phases,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.description import describe, restore
from verax.mechanism import RELATIONS
from verax.samplers import Sampler

counts = st.integers(1, 2**31)
few = st.integers(1, 1000)
rates = st.floats(1e-9, 1.0)
norms = st.floats(1e-9, 1e9)

samplers: st.SearchStrategy[Sampler] = st.one_of(
    st.builds(Poisson, rates, counts),
    st.builds(
        lambda n, rate, steps, room: TruncatedPoisson(rate, steps, n + room, n),
        few,
        rates,
        counts,
        few,
    ),
    st.builds(Deterministic, counts, counts),
    st.builds(Shuffle, counts, counts, st.booleans()),
    st.builds(lambda b, more, e: BufferedShuffle(b + more, b, e), few, few, counts),
    st.builds(BallsInBins, few, counts),
    st.builds(lambda times, more, e: RandomAllocation(times, times + more, e), few, few, counts),
    st.builds(lambda b, more, s: WithoutReplacement(b, b + more, s), few, few, counts),
    st.builds(RandomParticipation, rates, rates, few, counts, st.booleans()),
)
clippings = st.one_of(
    st.builds(Individual, norms), st.builds(Batch, norms), st.builds(Mixed, norms, few)
)
mechanisms = st.builds(
    Mechanism, samplers, st.floats(0.0, 1e6), clippings, st.sampled_from(["", *RELATIONS])
)
one_relation = st.sampled_from(RELATIONS).flatmap(
    lambda relation: st.lists(
        st.builds(Mechanism, samplers, st.floats(0.0, 1e6), clippings, st.just(relation)),
        min_size=2,
        max_size=4,
    )
)
RUN = Mechanism(Poisson(0.01, 1000), 1.0)


@given(mechanisms)
def test_a_mechanism_makes_the_trip_and_back(mechanism):
    again = restore(json.loads(json.dumps(describe(mechanism))))
    assert again == mechanism
    assert repr(again) == repr(mechanism)
    assert describe(again) == describe(mechanism)


@given(one_relation)
def test_phases_make_the_trip_and_back(phases):
    together = Phases(tuple(phases))
    assert restore(json.loads(json.dumps(describe(together)))) == together


def test_every_sampler_can_be_described():
    import verax.samplers as room

    drawn = {name for name in room.__all__ if isinstance(getattr(room, name), type)}
    assert set(room.registry.kinds()) == drawn - {"Batches", "Indices", "Sampler"}


def test_numbers_of_other_libraries_become_plain():
    run = Mechanism(
        Poisson(np.float64(0.5), np.int64(3)), np.float32(1.5), Mixed(np.float64(2.0), np.int32(4))
    )
    assert restore(json.loads(json.dumps(describe(run)))) == run


def test_one_phase_is_a_mechanism():
    assert restore(describe(Phases((RUN,)))) == RUN


def test_a_sampler_of_another_house_is_refused():
    @dataclass(frozen=True)
    class Mine(Poisson):
        pass

    with pytest.raises(
        ValueError, match=r"sampler must be one of Poisson, BallsInBins, .* to be described"
    ):
        describe(Mechanism(Mine(0.1, 10), 1.0))


def edits():
    def at(path, value):
        def edit(description):
            *way, last = path
            for step in way:
                description = description[step]
            if value is ...:
                del description[last]
            else:
                description[last] = value

        return edit

    phase = ("phases", 0)
    return {
        "another schema": at(("schema",), 2),
        "schema true": at(("schema",), True),
        "no schema": at(("schema",), ...),
        "unknown field": at(("comment",), "hello"),
        "no phases": at(("phases",), []),
        "phases not a list": at(("phases",), {}),
        "phase not an object": at(phase, 3),
        "unknown field of a phase": at((*phase, "seed"), 3),
        "missing relation": at((*phase, "relation"), ...),
        "empty relation": at((*phase, "relation"), ""),
        "unknown relation": at((*phase, "relation"), "add"),
        "unknown sampler": at((*phase, "sampler", "kind"), "Poison"),
        "sampler kind not a word": at((*phase, "sampler", "kind"), ["Poisson"]),
        "sampler not an object": at((*phase, "sampler"), "Poisson"),
        "unknown field of a sampler": at((*phase, "sampler", "seed"), 3),
        "missing field of a sampler": at((*phase, "sampler", "steps"), ...),
        "bad rate": at((*phase, "sampler", "rate"), 1.5),
        "steps in words": at((*phase, "sampler", "steps"), "1000"),
        "unknown clipping": at((*phase, "clipping", "kind"), "None"),
        "bad norm": at((*phase, "clipping", "norm"), -1),
        "nan noise": at((*phase, "noise_multiplier"), float("nan")),
        "noise in words": at((*phase, "noise_multiplier"), "1.0"),
    }


@pytest.mark.parametrize("name", edits())
def test_anything_else_is_refused(name):
    description = copy.deepcopy(describe(RUN))
    edits()[name](description)
    with pytest.raises(ValueError, match=r"must|phase"):
        restore(description)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_nonsense_is_refused(value):
    with pytest.raises(ValueError, match="description must have exactly the fields"):
        restore(value)
