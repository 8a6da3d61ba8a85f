"""Calibration: the value returned meets the target, and the next one does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax import (
    Batch,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    NoGuarantee,
    Poisson,
    Shuffle,
    calibrate,
)
from verax.privacy.curves.gaussian import gaussian_epsilon

DELTA = 1e-5


def spent(
    sampler, noise: float, delta: float = DELTA, clipping=None, relation: str = "", group: int = 1
) -> float:
    return (
        Mechanism(sampler, noise, clipping or Individual(), relation)
        .guarantee(group)
        .epsilon(delta)
        .upper
    )


SAMPLERS = [
    (Poisson(0.01, 1000), 1.0, {}),
    (Poisson(0.01, 1000), 8.0, {}),
    (Poisson(0.2, 50), 0.3, {}),
    (Poisson(0.02, 100), 1.0, {"clipping": Batch()}),
    (Poisson(0.02, 100), 2.0, {"clipping": Mixed(groups=4), "group": 3}),
    (Poisson(0.02, 100), 2.0, {"group": 4}),
    (Poisson(0.02, 100), 2.0, {"relation": "replace"}),
    (Poisson(1.0, 10), 2.0, {}),
    (Deterministic(100, epochs=5), 2.0, {}),
    (Shuffle(100, epochs=5), 2.0, {"relation": "replace", "clipping": Batch()}),
]


@pytest.mark.parametrize(("sampler", "epsilon", "options"), SAMPLERS)
def test_noise_is_the_least_that_meets_the_target(sampler, epsilon, options):
    noise = calibrate.noise_multiplier(sampler, epsilon, DELTA, **options)
    assert spent(sampler, noise, **options) <= epsilon
    assert spent(sampler, 0.999 * noise, **options) > epsilon


def test_gaussian_noise_is_known():
    """mu = sqrt(E) / z, so z solves the closed form."""
    noise = calibrate.noise_multiplier(Deterministic(10, epochs=4), 1.0, DELTA)
    assert (
        gaussian_epsilon(2.0 / noise, DELTA) <= 1.0 < gaussian_epsilon(2.0 / (0.999 * noise), DELTA)
    )


def test_no_noise_is_needed_when_hardly_anyone_is_sampled():
    assert calibrate.noise_multiplier(Poisson(1e-9, 10), 1.0, DELTA) == 0.0


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "options"),
    [
        (0.01, 1.0, 1.8, {}),
        (0.1, 4.0, 1.0, {}),
        (0.02, 4.0, 1.0, {"clipping": Batch()}),
        (0.02, 4.0, 2.0, {"group": 2}),
        (1.0, 10.0, 1.0, {}),
    ],
)
def test_one_more_step_would_be_too_many(rate, noise, epsilon, options):
    count = calibrate.steps(rate, noise, epsilon, DELTA, **options)
    assert isinstance(count, int)
    assert spent(Poisson(rate, count), noise, **options) <= epsilon
    assert spent(Poisson(rate, count + 1), noise, **options) > epsilon


@pytest.mark.parametrize(
    ("count", "noise", "epsilon", "options"),
    [
        (1000, 1.0, 1.8, {}),
        (100, 4.0, 1.0, {}),
        (100, 4.0, 1.0, {"clipping": Mixed(groups=3)}),
        (100, 4.0, 2.0, {"group": 2}),
    ],
)
def test_a_slightly_higher_rate_would_be_too_high(count, noise, epsilon, options):
    rate = calibrate.rate(count, noise, epsilon, DELTA, **options)
    assert spent(Poisson(rate, count), noise, **options) <= epsilon
    assert spent(Poisson(min(1.001 * rate, 1.0), count), noise, **options) > epsilon


def test_a_rate_of_one_if_everything_is_allowed():
    assert calibrate.rate(2, 50.0, 3.0, DELTA) == 1.0


@given(st.floats(0.3, 5.0), st.floats(0.01, 0.5), st.integers(1, 200))
@settings(max_examples=6)
def test_noise_for_any_target(epsilon, rate, count):
    sampler = Poisson(rate, count)
    noise = calibrate.noise_multiplier(sampler, epsilon, DELTA)
    assert spent(sampler, noise) <= epsilon < spent(sampler, 0.999 * noise)


def test_a_group_needs_more_noise_and_batch_clipping_too():
    sampler = Poisson(0.02, 100)
    plain = calibrate.noise_multiplier(sampler, 1.0, DELTA)
    assert calibrate.noise_multiplier(sampler, 1.0, DELTA, group=3) > 1.5 * plain
    assert calibrate.noise_multiplier(sampler, 1.0, DELTA, clipping=Batch()) == pytest.approx(
        2 * plain, rel=2e-3
    )


def test_targets_out_of_reach_say_what_to_do():
    with pytest.raises(
        ValueError, match=r"epsilon = 1e-12 .*noise_multiplier above .*raise epsilon or delta"
    ):
        calibrate.noise_multiplier(Poisson(1.0, 1000), 1e-12, 1e-12)
    with pytest.raises(
        ValueError, match=r"does not allow one step: raise noise_multiplier \(now 0\.3\) or epsilon"
    ):
        calibrate.steps(0.5, 0.3, 0.1, DELTA)
    with pytest.raises(ValueError, match=r"allows no rate above .*raise noise_multiplier"):
        calibrate.rate(10**6, 0.0, 0.1, 1e-9)


def test_no_analysis_no_calibration():
    with pytest.raises(NoGuarantee):
        calibrate.noise_multiplier(Shuffle(10), 1.0, DELTA, relation="add-remove")


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "a"])
def test_bad_targets_name_themselves(epsilon):
    for ask in (
        lambda: calibrate.noise_multiplier(Poisson(0.1, 10), epsilon, DELTA),
        lambda: calibrate.steps(0.1, 1.0, epsilon, DELTA),
        lambda: calibrate.rate(10, 1.0, epsilon, DELTA),
    ):
        with pytest.raises(ValueError, match="epsilon must") as refusal:
            ask()
        assert repr(epsilon) in str(refusal.value)


@pytest.mark.parametrize("clipping", [0, "", (), "batch"])
def test_bad_clippings_name_themselves(clipping):
    for ask in (
        lambda: calibrate.noise_multiplier(Poisson(0.1, 10), 1.0, DELTA, clipping=clipping),
        lambda: calibrate.steps(0.1, 1.0, 1.0, DELTA, clipping=clipping),
        lambda: calibrate.rate(10, 1.0, 1.0, DELTA, clipping=clipping),
    ):
        with pytest.raises(ValueError, match="clipping must be Individual, Batch or Mixed"):
            ask()


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan])
def test_bad_deltas_name_themselves(delta):
    with pytest.raises(ValueError, match="delta must"):
        calibrate.noise_multiplier(Poisson(0.1, 10), 1.0, delta)
    with pytest.raises(ValueError, match="delta must"):
        calibrate.steps(0.1, 1.0, 1.0, delta)
    with pytest.raises(ValueError, match="delta must"):
        calibrate.rate(10, 1.0, 1.0, delta)
