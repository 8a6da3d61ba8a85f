"""Discretisation of one round: above and below the exact curve everywhere, and closer like the
square of the step.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax.privacy.pairs.gaussian_mixture import Mixture, MixturePair
from verax.privacy.pld import discretise
from verax.privacy.pld.discretise import DiscretePld, Spacing


def mixture(weights: list[float], shifts: list[float]) -> Mixture:
    return Mixture(tuple(math.log(w) for w in weights), tuple(shifts))


BINOMIAL = mixture([0.9**3, 3 * 0.1 * 0.81, 3 * 0.01 * 0.9, 0.001], [0.0, 0.8, 1.6, 2.4])
PAIRS = {
    "gaussian": MixturePair.gaussian(0.7),
    "rate .01": MixturePair.subsampled(0.01, 1.0),
    "rate .5": MixturePair.subsampled(0.5, 0.4),
    "rate 1e-4, noise 2": MixturePair.subsampled(1e-4, 0.5),
    "rate 1e-6, noise .4": MixturePair.subsampled(1e-6, 2.5),
    "group of 3": MixturePair(BINOMIAL),
    "replace": MixturePair(mixture([0.95, 0.05], [0.0, 1.0]), mixture([0.95, 0.05], [0.0, 1.0])),
    "replace a group": MixturePair(BINOMIAL, BINOMIAL),
}
ALL = {**PAIRS, **{f"{name}, reversed": pair.reverse() for name, pair in PAIRS.items()}}
STEPS = [0.3, 0.05, 0.004]
scales = st.one_of(st.just(math.inf), st.floats(0.1, 3.0))


def spaced(pair: MixturePair, step: float, scale: float = math.inf) -> Spacing:
    """Losses from 8 standard deviations on the left to 10 beyond the largest shift on the right."""
    low, high = pair.loss(np.array([-8.0 - pair.max_shift, 10.0 + pair.max_shift])).tolist()
    return Spacing(step, low, high, scale)


def lower_pmf(pair: MixturePair, spacing: Spacing) -> DiscretePld:
    """The lower pmf; a grid that it refuses as too coarse is refined as the engine refines it, a
    few times at most.
    """
    for _ in range(4):
        try:
            return discretise.lower(pair, spacing)
        except FloatingPointError:
            spacing = Spacing(spacing.step / 4.0, spacing.low, spacing.high, spacing.scale)
    raise AssertionError(f"no grid is fine enough for {pair}")


def curve(pmf: DiscretePld, epsilon: float) -> float:
    """D_{e^eps} of a discretised pmf: all terms are positive, so this sum is accurate."""
    above = pmf.losses > epsilon
    terms = np.exp(pmf.log_mass[above]) * -np.expm1(epsilon - pmf.losses[above])
    return pmf.infinite + math.fsum(terms.tolist())


def places(pair: MixturePair, pmf: DiscretePld, count: int = 12) -> list[float]:
    """Epsilons on the grid, between grid points and off both ends, negative ones (a < 1)
    included.
    """
    rng = np.random.default_rng(len(pmf.log_mass))
    some = np.sort(rng.choice(len(pmf.log_mass), min(count, len(pmf.log_mass)), replace=False))
    on = pmf.losses[some]
    gaps = np.append(np.diff(pmf.losses), pmf.step)[some]
    between = on + gaps * rng.uniform(0.02, 0.98, len(on))
    return [*on.tolist(), *between.tolist(), 0.0, pmf.start - 1.0, float(pmf.losses[-1]) + 0.5]


def assert_sandwiched(pair: MixturePair, spacing: Spacing) -> None:
    above, below = discretise.upper(pair, spacing), lower_pmf(pair, spacing)
    assert above.step == spacing.step
    for pmf in (above, below):
        assert (np.diff(pmf.index) >= 1).all()
        assert 0.0 <= pmf.shift < 1e-3 * pmf.step
    for epsilon in places(pair, above) + places(pair, below):
        exact_low, exact_high = pair.delta(epsilon)
        # 1e-11: the sums of this test; the shift is charged as the class says, to epsilon and as a
        # factor
        top = curve(above, epsilon - above.shift) * math.exp(above.shift)
        bottom = curve(below, epsilon + below.shift) * math.exp(-below.shift)
        assert top * (1.0 + 1e-11) + 1e-300 >= exact_low, (epsilon, top, exact_low)
        assert bottom <= exact_high * (1.0 + 1e-11) + 1e-300, (epsilon, bottom, exact_high)


@pytest.mark.parametrize("pair", ALL.values(), ids=ALL)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scale", [math.inf, 0.2], ids=["even", "coarse tails"])
def test_the_exact_curve_lies_between_the_two_laws(pair, step, scale):
    assert_sandwiched(pair, spaced(pair, step, scale))


@given(
    st.floats(-8.0, -0.01).map(lambda e: 10.0**e),
    st.floats(0.05, 3.0),
    st.floats(-3.0, -0.3).map(lambda e: 10.0**e),
    scales,
    st.booleans(),
)
@settings(max_examples=35)
def test_the_exact_curve_lies_between_the_two_laws_for_any_subsampled_pair(
    rate, shift, step, scale, forward
):
    pair = MixturePair.subsampled(rate, shift)
    pair = pair if forward else pair.reverse()
    assert_sandwiched(pair, spaced(pair, step, scale))


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5),
    st.lists(st.floats(0.05, 1.0), min_size=4, max_size=4),
    st.floats(-2.5, -0.3).map(lambda e: 10.0**e),
    scales,
    st.sampled_from(["one side", "both sides", "reversed"]),
)
@settings(max_examples=25)
def test_the_exact_curve_lies_between_the_two_laws_for_any_mixture(
    weights, gaps, step, scale, kind
):
    total = math.fsum(weights)
    shifts = [0.0, *np.cumsum(gaps).tolist()][: len(weights)]
    side = mixture([w / total for w in weights], shifts)
    pair = MixturePair(side, side) if kind == "both sides" else MixturePair(side)
    pair = pair.reverse() if kind == "reversed" else pair
    assert_sandwiched(pair, spaced(pair, step, scale))


@pytest.mark.parametrize("pair", ALL.values(), ids=ALL)
@pytest.mark.parametrize("step", STEPS)
def test_total_masses(pair, step):
    above, below = discretise.upper(pair, spaced(pair, step)), lower_pmf(pair, spaced(pair, step))
    p_above, p_below = np.exp(above.log_mass).sum() + above.infinite, np.exp(below.log_mass).sum()
    q_above = np.exp(above.log_mass - above.losses).sum()
    assert 1.0 - 1e-13 <= p_above <= 1.0 + 1e-8
    assert q_above <= 1.0 + 1e-8
    assert p_below <= 1.0 + 1e-12
    assert p_below >= 1.0 - 2.0 * step
    assert above.infinite < 1e-10
    assert below.infinite == 0.0


@pytest.mark.parametrize("name", ["gaussian", "rate .01", "rate .5", "group of 3", "replace"])
@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize("forward", [True, False])
def test_error_falls_like_the_square_of_the_step(name, side, forward):
    pair = PAIRS[name] if forward else PAIRS[name].reverse()
    spread = float(pair.loss(np.array([2.0]))[0] - pair.loss(np.array([-2.0]))[0])
    at = np.linspace(*pair.loss(np.array([-1.0, 2.0])).tolist(), 301).tolist()
    exact = np.array([math.fsum(pair.delta(e)) / 2.0 for e in at])

    def error(step: float) -> float:
        pmf = (discretise.upper if side == "upper" else lower_pmf)(pair, spaced(pair, step))
        return float(np.abs(np.array([curve(pmf, e) for e in at]) - exact).max())

    coarse, middle, fine = (error(spread / n) for n in (20, 40, 80))
    assert 2.5 < coarse / middle < 12.0  # a coarse grid may be worse than the square of its step
    assert 2.5 < middle / fine < 10.0


def test_a_cut_off_tail_goes_to_infinity_above_and_is_lost_below():
    pair, spacing = MixturePair.subsampled(0.1, 1.0), Spacing(0.01, -0.05, 1.0)
    above, below = discretise.upper(pair, spacing), discretise.lower(pair, spacing)
    tail = pair.delta(float(above.losses[-1]))
    assert tail[0] <= above.infinite <= tail[1] * (1.0 + 1e-9)
    for epsilon in (0.0, 0.5, 0.99, 2.0, 10.0):
        assert curve(above, epsilon - 1e-12) >= pair.delta(epsilon)[0]
        assert curve(below, epsilon + 1e-12) <= pair.delta(epsilon)[1]


def test_weight_lost_by_the_mixture_is_mass_at_infinity():
    side = Mixture((math.log(0.9 - 1e-6), math.log(0.1)), (0.0, 1.0), lost=1e-6)
    pmf = discretise.upper(MixturePair(side), Spacing(0.01, -0.2, 12.0))
    assert 1e-6 <= pmf.infinite < 1.001e-6
    assert discretise.lower(MixturePair(side), Spacing(0.01, -0.2, 12.0)).infinite == 0.0


@pytest.mark.parametrize(("rate", "shift"), [(0.01, 1.0), (0.3, 0.6), (1e-4, 2.0)])
def test_the_symmetric_law_is_above_both_directions(rate, shift):
    pair = MixturePair.subsampled(rate, shift)
    for step in (0.1, 0.01):
        pmf = discretise.upper_symmetric(pair, spaced(pair, step))
        assert np.exp(pmf.log_mass).sum() + pmf.infinite == pytest.approx(1.0, abs=1e-9)
        for epsilon in (-3.0, -0.51, -0.1, -0.013, 0.0, 0.013, 0.1, 0.51, 3.0):
            top = curve(pmf, epsilon - pmf.shift) * math.exp(pmf.shift) * (1.0 + 1e-11) + 1e-15
            assert top >= pair.delta(epsilon)[0]
            assert top >= pair.reverse().delta(epsilon)[0]


def test_the_origin_is_the_mean_of_the_bulk():
    """At a tiny rate nearly all mass is in one cell; a grid point sits where it does."""
    pair = MixturePair.subsampled(1e-6, 1.0)
    point = discretise.origin(pair, 0.01)
    assert pair.infimum <= point < 0.0
    assert discretise.origin(pair.reverse(), 0.01) == -point


def test_coarse_tails_save_points():
    pair = MixturePair.subsampled(0.01, 1.0)
    even, coarse = (
        discretise.upper(pair, spaced(pair, 0.004)),
        discretise.upper(pair, spaced(pair, 0.004, 0.05)),
    )
    assert len(coarse.log_mass) < len(even.log_mass) / 5
    assert coarse.losses[-1] >= spaced(pair, 0.004).high - 0.004


def test_convexify_lowers_the_curve_and_leaves_no_negative_mass():
    rng = np.random.default_rng(5)
    for _ in range(30):
        grid = 0.05 * np.cumsum(rng.integers(1, 4, 30))
        mass = rng.uniform(0.1, 1.0, 30)
        bad = rng.choice(np.arange(2, 28), 4, replace=False)
        mass[bad] = -rng.uniform(0.0, 0.05, 4)
        fixed = discretise._convexify(mass.copy(), grid, 0, 29, np.flatnonzero(mass < 0.0))
        assert (fixed >= 0.0).all()
        for epsilon in np.linspace(-0.1, 4.5, 60):
            gain = np.maximum(-np.expm1(epsilon - grid), 0.0)
            assert fixed @ gain <= mass @ gain + 1e-12


@pytest.mark.parametrize("step", [0.5, 3.4])
def test_cells_wider_than_a_unit_of_loss_keep_their_mass_from_below(step):
    """A round that is joined with probability .02, and then surely seen: a loss around 50^2 / 2 +
    log .02.
    """
    mass_at = discretise.lower(
        MixturePair.subsampled(0.02, 50.0), discretise.Spacing(step, -0.0203, 1530.0, 176.0)
    )
    mass = np.exp(mass_at.log_mass)
    assert 0.9999 < mass.sum() < 1.0 + 1e-9
    mean = 0.98 * math.log(0.98) + 0.02 * (1250.0 + math.log(0.02))
    assert (1.0 - 0.003 * step) * mean < mass @ mass_at.losses <= mean
