import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from verax.papers.shuffling_and_batch_clipping import model as paper_000_model
from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pld.composition import LOWER, UPPER
from verax.privacy.strong import random_mu

ATOMS = [0.0, 1.0, 4.0, 9.0]
CHANCES = [0.4, 0.3, 0.2, 0.1]
PMF = LatticePmf.of(ATOMS, CHANCES).scaled(0.5)
MUS = [math.sqrt(x / 2) for x in ATOMS]


def delta(epsilon):
    """Definition, by quadrature in 30 digits."""
    with mpmath.workdps(30):
        total = mpmath.mpf(0)
        for mu, chance in zip(MUS, CHANCES, strict=True):
            if mu:
                eps, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
                gain = mpmath.ncdf(-eps / m + m / 2) - mpmath.exp(eps) * mpmath.ncdf(
                    -eps / m - m / 2
                )
                total += mpmath.mpf(chance) * gain
        return total


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 20.0, 100.0])
@pytest.mark.parametrize("side", [LOWER, UPPER])
def test_many_deltas_are_the_scalar_ones(epsilon, side):
    mu = np.array([0.0, 1e-6, 0.1, 1.0, 3.0, 20.0, 200.0, 1e6])
    ours = random_mu.gaussian_deltas(mu, epsilon, side)
    for value, m in zip(ours.tolist(), mu.tolist(), strict=True):
        expected = gaussian_delta(m, epsilon, side)
        if math.isnan(expected) or expected < 1e-299:
            assert value <= 1e-299
        elif m < 80.0:
            assert value == pytest.approx(expected, rel=1e-14)
        else:  # nothing is left to hide; the scalar's allowance grows with mu there
            assert expected <= value <= 1.0


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0, 30.0, 60.0])
def test_delta_of_the_mixture(epsilon):
    low, high = (random_mu.mixture_delta(PMF, epsilon, side) for side in (LOWER, UPPER))
    assert low <= delta(epsilon) <= high
    assert high - low <= 2e-10 * high


def conjugate(alpha):
    """f(alpha) = sup over all real epsilon, also negative ones, of 1 - delta(epsilon) - e^epsilon
    alpha.
    """

    def line(epsilon):
        forth = sum(
            c
            * (
                special.ndtr(-epsilon / m + m / 2)
                - math.exp(epsilon) * special.ndtr(-epsilon / m - m / 2)
            )
            if m
            else c * max(1 - math.exp(epsilon), 0.0)
            for m, c in zip(MUS, CHANCES, strict=True)
        )
        return 1.0 - forth - math.exp(epsilon) * alpha

    grid = np.linspace(-25.0, 25.0, 2001)
    best = max(grid, key=line)
    found = optimize.minimize_scalar(
        lambda e: -line(e), bounds=(best - 0.05, best + 0.05), method="bounded"
    )
    return max(-found.fun, line(0.0), 0.0)


@pytest.mark.parametrize("alpha", [1e-4, 0.05, 0.2, 0.35, 0.5, 0.7, 0.9, 0.999])
def test_the_trade_off_curve_is_the_conjugate_of_delta(alpha):
    low, high = (random_mu.mixture_tradeoff(PMF, alpha, side) for side in (LOWER, UPPER))
    assert low <= high
    assert high - low <= 1e-11
    assert conjugate(alpha) == pytest.approx(low, abs=2e-9)


def test_the_trade_off_curve_is_the_infimum_of_equation_6():
    pmf, mus, chances = LatticePmf.of([1.0, 4.0], [0.7, 0.3]), [1.0, 2.0], [0.7, 0.3]
    for alpha in (0.01, 0.1, 0.4):

        def misses(first, alpha=alpha):
            second = (alpha - chances[0] * first) / chances[1]
            return sum(
                c * stats.norm.cdf(stats.norm.isf(a) - m)
                for c, a, m in zip(chances, (first, second), mus, strict=True)
            )

        ends = max(0.0, (alpha - chances[1]) / chances[0]), min(1.0, alpha / chances[0])
        found = optimize.minimize_scalar(
            misses, bounds=ends, method="bounded", options={"xatol": 1e-12}
        )
        assert random_mu.mixture_tradeoff(pmf, alpha, LOWER) == pytest.approx(found.fun, abs=1e-8)
        assert random_mu.mixture_tradeoff(pmf, alpha, LOWER) <= found.fun + 1e-12


def test_definition_5_2_leaves_out_runs_that_see_nothing():
    """With P[c = 0] = .4 no threshold has between 16 and 56 percent false alarms; the curve is a
    line there.
    """
    tests = random_mu._Tests(PMF, UPPER)
    few, many = (tests.alarms(0.0, blind) for blind in (False, True))
    assert many - few == pytest.approx(0.4)
    thresholds = np.concatenate([-np.geomspace(1e-9, 9.0, 40), np.geomspace(1e-9, 9.0, 40)])
    printed = [
        1
        - sum(c * stats.norm.cdf(t / m + m / 2) for m, c in zip(MUS[1:], CHANCES[1:], strict=True))
        - 0.4 * (t > 0)
        for t in thresholds
    ]
    assert not [alpha for alpha in printed if few + 1e-6 < alpha < many - 1e-6]
    inside = np.linspace(few, many, 7)
    sums = [a + random_mu.mixture_tradeoff(PMF, a, LOWER) for a in inside]
    assert sums == pytest.approx([sums[0]] * 7, abs=1e-12)


@pytest.mark.parametrize("alpha", [1e-12, 1e-6, 0.03, 0.5])
def test_the_curve_is_its_own_inverse(alpha):
    beta = random_mu.mixture_tradeoff(PMF, alpha, LOWER)
    back = random_mu.mixture_tradeoff(PMF, beta, LOWER)
    assert back == pytest.approx(alpha, rel=1e-6 if alpha > 1e-9 else 1e-2)


def test_ends():
    for side in (LOWER, UPPER):
        assert random_mu.mixture_tradeoff(PMF, 0.0, side) == 1.0
        assert random_mu.mixture_tradeoff(PMF, 1.0, side) == 0.0
    nothing = LatticePmf.of([0.0], [1.0])
    assert random_mu.mixture_tradeoff(nothing, 0.3, LOWER) == pytest.approx(0.7, abs=1e-14)
    assert random_mu.mixture_tradeoff(nothing, 0.3, UPPER) == 0.7
    everything = LatticePmf.of([1e8], [1.0])
    assert random_mu.mixture_tradeoff(everything, 0.3, UPPER) < 1e-299


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
    st.floats(0.01, 3.0),
    st.one_of(st.floats(1e-9, 1e-3), st.floats(1e-3, 0.999)),
)
def test_bounds_with_exact_tails_enclose_the_curve(weights, scale, alpha):
    pmf = LatticePmf.of(np.arange(float(len(weights))), np.array(weights) / sum(weights)).scaled(
        scale
    )
    low, high = (random_mu.mixture_tradeoff(pmf, alpha, side) for side in (LOWER, UPPER))
    floor, ceiling = paper_000_model.bounds(pmf, alpha)
    assert low <= high
    assert high - low <= 1e-10
    assert floor <= high
    assert ceiling >= low
    for cut in pmf.lows:
        assert paper_000_model.lower_bound(pmf, cut, alpha) <= floor
        assert paper_000_model.upper_bound(pmf, cut, alpha) >= ceiling


def test_the_bounds_of_one_atom_are_gaussian():
    pmf = LatticePmf.of([4.0], [1.0]).scaled(0.25)
    for alpha in (1e-6, 0.1, 0.9):
        truth = stats.norm.cdf(stats.norm.isf(alpha) - 1.0)
        assert paper_000_model.bounds(pmf, alpha) == pytest.approx((truth, truth), rel=1e-10)
        assert random_mu.mixture_tradeoff(pmf, alpha, LOWER) == pytest.approx(truth, rel=1e-12)
        assert random_mu.mixture_tradeoff(pmf, alpha, UPPER) == pytest.approx(truth, rel=1e-12)


def test_definition_5_3_is_the_convex_hull():
    """f^U is the largest convex curve below u + (1-u)G and its inverse: symmetric, with slope -1 in
    the middle.
    """
    pmf = LatticePmf.of([1.0, 4.0], [0.3, 0.7])
    grid = np.linspace(0.001, 0.999, 999)
    values = np.array([paper_000_model.upper_bound(pmf, 4.0, a) for a in grid])
    assert (np.diff(values, 2) > -1e-9).all()
    raw = 0.3 + 0.7 * stats.norm.cdf(stats.norm.isf(grid) - 2.0)
    assert (values <= raw + 1e-9).all()
    assert np.diff(values).min() / 0.001 < -1.0 < np.diff(values).max() / 0.001
    for a in (0.05, 0.3, 0.8):
        b = paper_000_model.upper_bound(pmf, 4.0, a)
        assert paper_000_model.upper_bound(pmf, 4.0, b) == pytest.approx(a, abs=1e-8)


def test_the_average_shift_is_no_bound():
    """Appendix D suggests G_{k/2 sigma} for clip-groups kept by a coin; k = 1, sigma = 1, epsilon
    2: .0105 > 9.4e-6.
    """
    pmf = LatticePmf.of([0.0, 1.0], [0.5, 0.5])
    assert random_mu.mixture_delta(pmf, 2.0, LOWER) > 0.0104 > 1000 * gaussian_delta(0.5, 2.0)
