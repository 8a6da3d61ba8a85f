"""One epoch asked directly, and what a mechanism makes of it."""

import pytest

from verax import Batch, Deterministic, Mechanism, Shuffle
from verax.privacy.curves.shuffled_epoch import ShuffledEpoch
from verax.privacy.pairs.shuffled.epoch import Neighbours
from verax.privacy.pairs.shuffled.hub import Epoch


def test_epsilon_and_delta_are_inverse_to_each_other():
    curve = ShuffledEpoch(Neighbours(0.5, "zero-out", True), Epoch(6400, 100), 0)
    epsilon = curve.epsilon(1e-5, 1e-3)[1]
    assert curve.delta(epsilon, 1e-3)[1] <= 1.3e-5
    assert curve.delta(0.98 * epsilon, 1e-3)[1] > 1e-5
    assert 0.5 * epsilon < curve.estimate(1e-5) <= epsilon


def test_a_delta_that_fixed_batches_meet_costs_nothing():
    curve = ShuffledEpoch(Neighbours(0.01, "zero-out", True), Epoch(640, 10), 1)
    assert curve.epsilon(0.5, 1e-3) == (0.0, 0.0)


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("clipping", [None, Batch()])
def test_known_sizes_cost_less_and_no_less_than_attacks(relation, clipping):
    def price(sampler):
        more = {} if clipping is None else {"clipping": clipping}
        return Mechanism(sampler, 3.0, relation=relation, **more).guarantee().epsilon(1e-5)

    known = price(Shuffle(20, 2, population=20 * 500))
    unknown, fixed = price(Shuffle(20, 2)), price(Deterministic(20, 2))
    assert known.lower >= unknown.lower * (1.0 - 1e-3)
    assert known.lower <= known.upper < 0.7 * unknown.upper
    assert unknown.upper == pytest.approx(fixed.upper)
    assert "docs/shuffle.md" in known.upper_by


def test_what_is_not_covered_is_priced_as_fixed_batches():
    for sampler, group in (
        (Shuffle(5, 2, reshuffle=False, population=500), 1),
        (Shuffle(5, 1, population=500), 2),
    ):
        fixed = Mechanism(Deterministic(5, sampler.epochs), 2.0).guarantee(group).epsilon(1e-5)
        found = Mechanism(sampler, 2.0).guarantee(group).epsilon(1e-5)
        assert found.upper <= fixed.upper * (1.0 + 1e-3)


def test_a_population_is_what_is_drawn_from():
    import numpy as np

    sampler = Shuffle(3, population=7)
    assert sampler.declared_population == 7
    assert sampler == eval(repr(sampler))
    with pytest.raises(ValueError, match="population must be the declared 7, got 8"):
        sampler.draw(8, np.random.default_rng(0))
    with pytest.raises(
        ValueError, match="population must be at least the number of batches, 3, got 2"
    ):
        Shuffle(3, population=2)


def test_descriptions_say_a_population_that_is_known():
    from verax.description import describe, restore

    for sampler in (Shuffle(3), Shuffle(3, population=7)):
        run = Mechanism(sampler, 1.0)
        assert restore(describe(run)) == run
        named = describe(run)["phases"][0]["sampler"]
        assert ("population" in named) == (sampler.population is not None)


@pytest.mark.parametrize("noise", [1e-6, 2.0, 1e6])
def test_the_ends_of_noise_and_epsilon_are_answered(noise):
    run = Mechanism(Shuffle(4, population=40), noise).guarantee()
    deltas = [run.delta(epsilon).upper for epsilon in (0.0, 1.0, 1e3, 1e300)]
    assert deltas == sorted(deltas, reverse=True)
