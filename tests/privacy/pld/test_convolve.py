"""Composition by tilted FFT: against direct convolution, the Gaussian closed form, and the limits
it states.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pld import convolve as module
from verax.privacy.pld import discretise
from verax.privacy.pld.convolve import compose
from verax.privacy.pld.discretise import DiscretePld, Spacing


def random_pmf(
    rng: np.random.Generator, size: int, step: float, infinite: float = 0.0
) -> DiscretePld:
    """Any masses on a sparse set of grid points."""
    mass = rng.dirichlet(np.full(size, 0.5)) * (1.0 - infinite)
    index = np.cumsum(rng.integers(1, 4, size))
    index -= index[0]
    with np.errstate(divide="ignore"):
        return DiscretePld(
            float(rng.uniform(-1.0, 0.0)), step, index.astype(np.int64), np.log(mass), infinite, 0.0
        )


def direct(rounds: list[tuple[DiscretePld, int]]) -> tuple[float, float, np.ndarray, float]:
    """Start, step, masses and mass at infinity of the sum of all losses, by plain convolution."""
    total, start, finite = np.ones(1), 0.0, 1.0
    for pmf, count in rounds:
        dense = np.zeros(int(pmf.index[-1]) + 1)
        dense[pmf.index] = np.exp(pmf.log_mass)
        for _ in range(count):
            total = np.convolve(total, dense)
            start += pmf.start
            finite *= 1.0 - pmf.infinite
    return start, rounds[0][0].step, total, 1.0 - finite


def direct_delta(rounds: list[tuple[DiscretePld, int]], epsilon: float) -> float:
    start, step, mass, infinite = direct(rounds)
    losses = start + step * np.arange(len(mass))
    above = losses > epsilon
    return infinite + math.fsum((mass[above] * -np.expm1(epsilon - losses[above])).tolist())


@given(st.integers(0, 10**6), st.floats(0.0, 8.0), st.integers(1, 9), st.integers(0, 4))
@settings(max_examples=60)
def test_bounds_direct_convolution_at_any_tilt(seed, tilt, count, other):
    rng = np.random.default_rng(seed)
    rounds = [(random_pmf(rng, 12, 0.07), count)]
    if other:
        rounds.append((random_pmf(rng, 7, 0.07), other))
    above, below = compose(rounds, tilt, 1), compose(rounds, tilt, -1)
    for epsilon in np.linspace(0.0, 8.0, 17).tolist():
        truth = direct_delta(rounds, epsilon)
        assert below.delta(epsilon) <= truth * (1.0 + 1e-12) + 1e-300
        assert above.delta(epsilon) >= truth * (1.0 - 1e-12)
        if tilt <= 1.0 and truth > 1e-3:  # not too far from where the tilted pmf has its mass
            assert above.delta(epsilon) - below.delta(epsilon) <= 1e-6 * truth


def test_mass_at_infinity_composes_and_belongs_to_the_upper_side_only():
    rng = np.random.default_rng(3)
    rounds = [
        (random_pmf(rng, 10, 0.1, infinite=1e-4), 5),
        (random_pmf(rng, 5, 0.1, infinite=1e-3), 2),
    ]
    above, below = compose(rounds, 0.5, 1), compose(rounds, 0.5, -1)
    infinite = 1.0 - (1.0 - 1e-4) ** 5 * (1.0 - 1e-3) ** 2
    assert above.infinite == pytest.approx(infinite, rel=1e-12)
    assert above.delta(1e3) >= infinite
    assert above.delta(1e3) == pytest.approx(infinite, rel=1e-6)
    assert below.infinite == 0.0
    assert below.delta(1e3) == 0.0


def test_order_of_the_rounds_does_not_matter():
    rng = np.random.default_rng(4)
    a, b, c = ((random_pmf(rng, 9, 0.05), n) for n in (3, 5, 2))
    for sign in (1, -1):
        first, second = compose([a, b, c], 1.0, sign), compose([c, a, b], 1.0, sign)
        for epsilon in (0.0, 0.4, 1.5):
            assert first.delta(epsilon) == pytest.approx(second.delta(epsilon), rel=1e-9)


def test_splitting_the_count_changes_nothing():
    rng = np.random.default_rng(5)
    pmf = random_pmf(rng, 9, 0.05)
    for sign in (1, -1):
        whole, split = compose([(pmf, 7)], 0.7, sign), compose([(pmf, 3), (pmf, 4)], 0.7, sign)
        for epsilon in (0.0, 0.4, 1.5):
            assert whole.delta(epsilon) == pytest.approx(split.delta(epsilon), rel=1e-9)


def gaussian_pmfs(
    mu: float, count: int, tilt: float, step: float
) -> tuple[module.PrivacyLossDistribution, module.PrivacyLossDistribution]:
    """N(mu) against N(0), ``count`` times, forced through the discretisation and the transform."""
    pair = MixturePair.gaussian(mu)
    reach = 16.0 + tilt * mu  # what is cut off is far below the smallest delta asked for
    low, high = pair.loss(np.array([-reach, reach + mu])).tolist()
    spacing = Spacing(step, low, high)
    return compose([(discretise.upper(pair, spacing), count)], tilt, 1), compose(
        [(discretise.lower(pair, spacing), count)], tilt, -1
    )


@pytest.mark.parametrize(
    ("mu", "count", "delta"),
    [
        (0.5, 1, 1e-5),
        (0.3, 10, 1e-3),
        (0.1, 100, 1e-8),
        (0.05, 2000, 1e-12),
        (0.2, 50, 1e-20),
        (0.1, 100, 2.2187e-30),
    ],
)
def test_the_gaussian_mechanism_through_the_transform(mu, count, delta):
    total = mu * math.sqrt(count)
    epsilon = gaussian_epsilon(total, delta)
    tilt = max(epsilon / total**2 - 0.5, 0.0)  # the saddle point: K'(t) = mu^2 (t + 1/2)
    above, below = gaussian_pmfs(mu, count, tilt, step=mu / 30.0)
    for place in (0.9 * epsilon, epsilon, 1.1 * epsilon):
        low, high = gaussian_delta(total, place, -1), gaussian_delta(total, place, 1)
        assert below.delta(place) <= high
        assert low <= above.delta(place)
        assert above.delta(place) - below.delta(place) <= 0.05 * high
    fine_above, fine_below = gaussian_pmfs(mu, count, tilt, step=mu / 60.0)
    gap, fine = (
        above.delta(epsilon) - below.delta(epsilon),
        fine_above.delta(epsilon) - fine_below.delta(epsilon),
    )
    assert 3.0 < gap / fine < 5.0


def test_without_a_tilt_tiny_deltas_drown_and_the_bounds_say_so():
    """Plain FFT floors near 1e-15; the bounds stay on their sides of the truth, only far apart."""
    mu, count = 0.1, 100
    above, below = gaussian_pmfs(mu, count, 0.0, step=mu / 30.0)
    epsilon = gaussian_epsilon(1.0, 1e-25)
    assert below.delta(epsilon) <= 1e-25 <= above.delta(epsilon)
    assert below.delta(epsilon) == 0.0
    assert above.delta(epsilon) < 1e-8


def test_left_of_the_window_only_the_trivial_bounds_are_given():
    above, below = gaussian_pmfs(0.1, 100, 11.0, step=0.005)
    assert above.delta(above.start - 100.0) == 1.0
    assert below.delta(below.start - 100.0) == 0.0
    assert above.delta(0.0) >= gaussian_delta(1.0, 0.0, -1)
    assert below.delta(0.0) <= gaussian_delta(1.0, 0.0, 1)


def test_curves_fall_in_epsilon():
    above, below = gaussian_pmfs(0.2, 25, 1.0, step=0.01)
    places = np.linspace(0.0, 6.0, 61).tolist()
    for pmf in (above, below):
        values = [pmf.delta(e) for e in places]
        assert all(b <= a * (1.0 + 1e-9) + 1e-14 for a, b in itertools.pairwise(values))


def test_a_law_longer_than_the_window_is_folded_soundly():
    """Far tails with next to no mass make one round's support longer than the window of the sum."""
    pair = MixturePair.subsampled(0.01, 1.0)
    spacing = Spacing(0.01, -0.02, 40.0)
    above, below = discretise.upper(pair, spacing), discretise.lower(pair, spacing)
    top, bottom = compose([(above, 3)], 0.0, 1), compose([(below, 3)], 0.0, -1)
    assert len(top.pmf) < above.index[-1]
    for epsilon in (0.0, 0.1, 1.0):
        assert top.delta(epsilon) >= direct_delta([(above, 3)], epsilon) * (1.0 - 1e-12)
        assert bottom.delta(epsilon) <= direct_delta([(below, 3)], epsilon) * (1.0 + 1e-12)


def test_rounding_of_the_losses_is_charged_per_round():
    rng = np.random.default_rng(6)
    pmf = random_pmf(rng, 12, 0.05)
    shifted = DiscretePld(pmf.start, pmf.step, pmf.index, pmf.log_mass, pmf.infinite, 1e-3)
    for sign in (1, -1):
        plain, charged = compose([(pmf, 10)], 0.0, sign), compose([(shifted, 10)], 0.0, sign)
        assert charged.shift == pytest.approx(1e-2)
        assert sign * charged.delta(0.3) >= sign * plain.delta(0.3 - sign * 1e-2)


def test_too_large_a_window_is_refused():
    pmf = discretise.upper(MixturePair.gaussian(0.1), Spacing(0.005, -1.0, 1.0))
    with pytest.raises(MemoryError, match="more than 10; ask for a larger rtol"):
        compose([(pmf, 100)], 0.0, 1, most=10)


def test_a_law_that_has_gone_wrong_proves_nothing():
    pair = MixturePair.subsampled(0.1, 1.0)
    for rounded, sign, trivial in ((discretise.upper, 1, 1.0), (discretise.lower, -1, 0.0)):
        pmf = compose([(rounded(pair, Spacing(0.01, -0.1, 3.0)), 5)], 0.5, sign)
        assert 0.0 < pmf.delta(0.5) < 1.0
        assert dataclasses.replace(pmf, bin_error=math.nan).delta(0.5) == trivial


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(1.0, 3.0), st.floats(1e-6, 0.2))
@settings(max_examples=30)
def test_infinite_mass_of_measures_with_more_mass_than_one(seed, count, scale, infinite):
    """Written out: whoever meets one infinite loss is at infinity with the mass of all other
    rounds.
    """
    pmf = random_pmf(np.random.default_rng(seed), 8, 0.1, infinite)
    pmf = dataclasses.replace(
        pmf, log_mass=pmf.log_mass + math.log(scale), infinite=infinite * scale
    )
    atoms = [*np.exp(pmf.log_mass).tolist(), pmf.infinite]
    at_infinity = math.fsum(
        math.prod(atoms[i] for i in places)
        for places in itertools.product(range(len(atoms)), repeat=min(count, 4))
        if len(atoms) - 1 in places
    )
    found = compose([(pmf, min(count, 4))], 0.5, 1).infinite
    assert at_infinity <= found * (1.0 + 1e-12)
    assert found == pytest.approx(at_infinity, rel=1e-9)


def test_a_mass_beyond_the_range_of_doubles_is_infinite():
    pmf = DiscretePld(0.0, 0.1, np.arange(2), np.log(np.array([1.0, 1.0])), 1e-9, 0.0)
    assert compose([(pmf, 2000)], 0.0, 1).infinite == math.inf
