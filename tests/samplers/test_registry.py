"""Samplers by name, and from what people type."""

import pytest

from verax import (
    BallsInBins,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
)
from verax.privacy.numerics.distributions import binomial_at_least
from verax.samplers import registry
from verax.samplers.options import all_options, build, describe
from verax.samplers.truncated_poisson import rarely_exceeded_size


@pytest.mark.parametrize("records", [10, 1000, 60_000, 10**7, 10**9])
@pytest.mark.parametrize("rate", [1e-6, 0.001, 0.1, 0.9])
@pytest.mark.parametrize("rounds", [1, 10**4])
def test_a_planned_largest_batch_is_the_smallest_that_is_hardly_exceeded(records, rate, rounds):
    most = rarely_exceeded_size(records, rate, rounds)
    assert binomial_at_least(records, rate, most + 1).upper <= 1.001e-20 / rounds
    assert (
        most == 1
        or most <= rate * records + 1
        or binomial_at_least(records, rate, most).lower > 0.999e-20 / rounds
    )


def test_one_class_may_have_several_names():
    assert registry.entry_of(Shuffle(4, reshuffle=False)).name == "persistent-shuffle"
    assert registry.entry_of(Shuffle(4)).name == "shuffle"
    assert registry.planned("persistent-shuffle", 100, 10, 2) == Shuffle(10, 2, reshuffle=False)


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        ("poisson", {"--rate": 0.07, "--epochs": 7}, Poisson(0.07, 100)),
        ("poisson", {"--records": 49, "--batch": 7, "--epochs": 3}, Poisson(1 / 7, 21)),
        ("balls-in-bins", {"--records": 49, "--batch": 10}, BallsInBins(5)),
        (
            "truncated-poisson",
            {"--records": 100, "--batch": 7, "--steps": 3, "--max-batch": 20},
            TruncatedPoisson(0.07, 3, 20, 100),
        ),
        (
            "random-participation",
            {
                "--client-rate": 0.1,
                "--record-rate": 0.5,
                "--other-records": 9,
                "--rounds": 4,
                "--revealed": True,
            },
            RandomParticipation(0.1, 0.5, 9, 4, revealed=True),
        ),
    ],
)
def test_options_make_the_sampler(name, given, made):
    assert build(name, given) == made


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("poisson", {"--steps": 3}, "needs --rate, or --records and --batch"),
        ("poisson", {"--rate": 0.1}, "needs --steps or --epochs"),
        (
            "poisson",
            {"--rate": 0.1, "--steps": 9, "--epochs": 1},
            "--epochs 1 makes 10 steps, got --steps 9",
        ),
        ("shuffle", {}, "needs --batches, or --records and --batch"),
        ("shuffle", {"--batches": 3, "--rate": 0.5}, "--rate 0.5 is not for --sampler shuffle"),
        ("shuffle", {"--batches": 3, "--times": 2}, "--times is for --sampler random-allocation"),
        (
            "shuffle",
            {"--records": 9, "--batch": 3, "--batches": 4},
            "make 3 batches, got --batches 4",
        ),
        ("without-replacement", {"--records": 5, "--steps": 2}, "needs --records and --batch"),
        ("dice", {}, "sampler must be one of 'poisson'"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(name, given, words):
    with pytest.raises(ValueError, match=words):
        build(name, given)


def test_an_option_that_was_left_out_is_not_given():
    given = dict.fromkeys(all_options()) | {"--rate": 0.5, "--steps": 2}
    assert build("poisson", given) == Poisson(0.5, 2)


def test_a_flag_that_is_set_is_typed_alone():
    seen = RandomParticipation(0.1, 0.5, 9, 4, revealed=True)
    assert describe(seen)[-1] == "--revealed"


def test_the_simplest_sampler_of_the_same_law():
    assert RandomAllocation(1, 10, 2).simplest() == BallsInBins(10, 2)
    assert Shuffle(10, 1, reshuffle=False).simplest() == Shuffle(10, 1)
    for sampler in (RandomAllocation(2, 10), Shuffle(10, 2, reshuffle=False), Poisson(0.1, 10)):
        assert sampler.simplest() == sampler
