"""Trade-off curves: against closed forms, brute force, and the brackets they must agree with."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from verax import BallsInBins, Batch, Deterministic, Mechanism, Poisson, Shuffle
from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.tradeoff import TradeOff, from_brackets

ALPHAS = np.concatenate([np.geomspace(1e-6, 0.5, 200), np.linspace(0.5, 1.0, 101)])
mus = st.floats(0.05, 5.0)


def gaussian(mu: float, alpha: np.ndarray) -> np.ndarray:
    return ndtr(ndtri(1.0 - alpha) - mu)


def brute(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """The least miss rate of any randomised test of two finite pmfs, by Neyman and Pearson's
    lemma.
    """
    order = np.argsort(-(p / q))
    p, q = p[order], q[order]
    spent, caught = 0.0, 0.0
    for mass_p, mass_q in zip(p, q, strict=True):
        share = min(1.0, (alpha - spent) / mass_q)
        spent, caught = spent + share * mass_q, caught + share * mass_p
        if share < 1.0:
            break
    return 1.0 - caught


def from_pmfs(p: np.ndarray, q: np.ndarray) -> TradeOff:
    """The exact curve of two finite pmfs."""
    ratios = np.unique(np.log(p / q))
    deltas = [np.maximum(p - math.exp(e) * q, 0.0).sum() for e in ratios]
    return TradeOff.from_deltas(ratios, deltas, symmetric=False)


def pmfs(draw_from: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    p, q = draw_from.dirichlet(np.ones(size)), draw_from.dirichlet(np.ones(size))
    return p, q


# --- the Gaussian curve ---------------------------------------------------------------------------


@given(mus)
@settings(max_examples=40, deadline=None)
def test_gaussian_is_below_and_near_the_closed_form(mu):
    curve, exact = TradeOff.gaussian(mu)(ALPHAS), gaussian(mu, ALPHAS)
    assert (curve <= exact + 1e-15).all()
    assert (exact - curve).max() < 3e-4


@given(mus)
@settings(max_examples=25, deadline=None)
def test_gaussian_reads_back_its_own_mu_advantage_and_epsilon(mu):
    curve = TradeOff.gaussian(mu)
    assert mu <= curve.mu <= mu * 1.002 + 1e-3
    assert curve.regret < 1e-3
    exact = 2.0 * ndtr(mu / 2.0) - 1.0
    assert exact <= curve.advantage <= exact + 3e-4
    for delta in (1e-2, 1e-4) if mu < 2.0 else ():
        truth = gaussian_epsilon(mu, delta)
        assert truth - 1e-9 <= curve.epsilon(delta) <= truth * 1.01 + 1e-3
    for epsilon in (0.0, 0.5, 2.0):
        truth = gaussian_delta(mu, epsilon)
        assert truth - 1e-12 <= curve.delta(epsilon) <= truth + 1e-3


def test_perfect_privacy_is_the_diagonal():
    curve = TradeOff.gaussian(0.0)
    assert np.allclose(curve(ALPHAS), 1.0 - ALPHAS)
    assert curve.advantage == pytest.approx(0.0, abs=1e-12)
    assert curve.mu == pytest.approx(0.0, abs=1e-9)


# --- finite pmfs by brute force -------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(2, 12))
@settings(max_examples=60, deadline=None)
def test_a_curve_from_deltas_is_the_neyman_pearson_curve(seed, size):
    p, q = pmfs(np.random.default_rng(seed), size)
    curve = from_pmfs(p, q)
    for alpha in (0.0, 0.01, 0.2, 0.5, 0.9, 1.0):
        assert curve(alpha) == pytest.approx(brute(p, q, alpha), abs=1e-9)
        assert curve(alpha) <= brute(p, q, alpha) + 1e-14


@given(st.integers(0, 10**6), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_tensor_is_below_and_near_the_curve_of_the_product(seed, size):
    rng = np.random.default_rng(seed)
    (p, q), (r, s) = pmfs(rng, size), pmfs(rng, size)
    both = from_pmfs(p, q).tensor(from_pmfs(r, s))
    pp, qq = np.outer(p, r).reshape(-1), np.outer(q, s).reshape(-1)
    for alpha in (0.001, 0.1, 0.4, 0.8):
        truth = brute(pp, qq, alpha)
        assert truth - 1e-6 < both(alpha) <= truth + 1e-9


@given(st.integers(0, 10**6), st.integers(2, 8))
@settings(max_examples=40, deadline=None)
def test_inverse_symmetric_and_convex(seed, size):
    p, q = pmfs(np.random.default_rng(seed), size)
    curve, other = from_pmfs(p, q), from_pmfs(q, p)
    assert np.allclose(curve.inverse()(ALPHAS), other(ALPHAS), atol=1e-9)
    worst = curve.symmetric()
    assert (worst(ALPHAS) <= np.minimum(curve(ALPHAS), other(ALPHAS)) + 1e-12).all()
    assert np.allclose(worst.inverse()(ALPHAS), worst(ALPHAS), atol=1e-9)
    slopes = np.diff(worst.beta) / np.diff(worst.alpha)
    assert (np.diff(slopes) >= -1e-9).all()


def test_the_hull_of_a_dent_is_the_chord():
    dented = TradeOff(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.8, 0.0]))
    assert dented.convex()(0.5) == pytest.approx(0.5)


# --- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "size"), [(0.2, 2), (0.5, 3), (0.3, 8), (1.0, 2)])
def test_a_group_of_gaussians_is_a_gaussian(mu, size):
    curve, truth = TradeOff.gaussian(mu).group(size), gaussian(mu * size, ALPHAS)
    assert (curve(ALPHAS) <= truth + 1e-12).all()
    assert (truth - curve(ALPHAS)).max() < 0.02


def test_a_group_of_one_is_the_curve_itself():
    curve = TradeOff.gaussian(0.7)
    assert np.abs(curve.group(1)(ALPHAS) - curve(ALPHAS)).max() < 1e-3


def test_the_black_box_is_above_the_tight_group_analysis():
    mechanism = Mechanism(Poisson(0.01, 500), 2.0)
    tight, black_box = (
        mechanism.guarantee(group=4).epsilon(1e-5),
        mechanism.guarantee().tradeoff().group(4),
    )
    assert black_box.epsilon(1e-5) >= tight.lower


# --- mechanisms -----------------------------------------------------------------------------------


def test_the_reference_run():
    curve = Mechanism(Poisson(0.01, 1000), 1.0).guarantee().tradeoff()
    assert curve([0.01, 0.05, 0.1]) == pytest.approx([0.9709, 0.8890, 0.8058], abs=6e-5)
    assert curve.advantage == pytest.approx(0.1610, abs=6e-5)
    # at error rates of .001 and more; .4394 at .0027 and more
    assert curve.mu == pytest.approx(0.4440, abs=2e-4)
    assert curve.tightest_gaussian(0.0027) == pytest.approx(0.4394, abs=3e-4)
    assert curve.tightest_gaussian(0.01) < curve.mu < curve.tightest_gaussian(1e-4)
    assert 0.0 < curve.regret < 0.01


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Poisson(0.02, 200), 1.0),
        Mechanism(Poisson(0.02, 200), 1.5, clipping=Batch()),
        Mechanism(Deterministic(10, 2), 1.0),
        Mechanism(BallsInBins(20, 3), 1.0),
        Mechanism(Shuffle(50, 2), 1.0),
        Mechanism(Poisson(0.001, 100), 8.0),
    ],
)
def test_curves_agree_with_brackets(mechanism):
    guarantee = mechanism.guarantee()
    curve = guarantee.tradeoff()
    assert curve.above is not None
    assert (curve(ALPHAS) <= curve.above(ALPHAS) + 1e-12).all()
    for epsilon in (0.0, 0.3, 1.0):
        bracket = guarantee.delta(epsilon)
        assert curve.delta(epsilon) >= bracket.lower * (1.0 - 1e-9)
        assert curve.delta(epsilon) <= bracket.upper + 1e-3
        assert curve.above.delta(epsilon) <= bracket.upper + 1e-9
    bracket = guarantee.epsilon(1e-4)
    assert bracket.lower * (1.0 - 1e-9) <= curve.epsilon(1e-4) <= bracket.upper * 1.02 + 1e-3


def test_the_companion_is_near_where_the_analysis_is_exact():
    curve = Mechanism(Poisson(0.01, 300), 1.0).guarantee().tradeoff()
    assert curve.above is not None
    assert np.abs(curve.above(ALPHAS) - curve(ALPHAS)).max() < 4e-3


def test_no_noise_leaves_only_the_chance_of_not_being_sampled():
    curve = Mechanism(Poisson(0.1, 1), 0.0).guarantee().tradeoff()
    assert curve(0.0) == pytest.approx(0.9, abs=1e-9)
    assert math.isinf(curve.epsilon(0.05))


@given(st.lists(st.floats(0.0, 0.6), min_size=2, max_size=6), st.floats(0.0, 0.02))
@settings(max_examples=60, deadline=None)
def test_brackets_of_a_known_curve_enclose_it(raw, slack):
    mu = 0.3 + sum(raw)
    epsilons = np.linspace(0.0, mu * mu / 2 + 5 * mu, 12)
    exact = np.array([gaussian_delta(mu, e) for e in epsilons])
    curve = from_brackets(
        epsilons.tolist(),
        (exact * (1 - slack)).tolist(),
        np.minimum(exact * (1 + slack), 1.0).tolist(),
    )
    truth = gaussian(mu, ALPHAS)
    assert curve.above is not None
    assert (curve(ALPHAS) <= truth + 1e-12).all()
    assert (curve.above(ALPHAS) >= truth - 1e-9).all()


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_must_be_a_rate(alpha):
    with pytest.raises(ValueError, match="alpha must lie in"):
        TradeOff.gaussian(1.0)(alpha)


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_groups_must_be_whole_and_positive(size):
    with pytest.raises(ValueError, match="size must be"):
        TradeOff.gaussian(1.0).group(size)


# --- orthogonal groups ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5])
def test_orthogonal_groups_are_as_many_single_records(size):
    run, more = Mechanism(Poisson(0.02, 50), 1.0), Mechanism(Poisson(0.02, 50 * size), 1.0)
    group, copies = (
        run.guarantee(size, geometry="orthogonal").epsilon(1e-5),
        more.guarantee().epsilon(1e-5),
    )
    assert (group.lower, group.upper) == (copies.lower, copies.upper)
    assert group.upper < run.guarantee(size).epsilon(1e-5).lower


def test_orthogonal_groups_by_brute_force():
    """Two records, two coordinates, one round: the integral over the plane."""
    rate, mu, epsilon = 0.3, 0.8, 0.4
    x = np.linspace(-9.0, 11.0, 1501)
    density = np.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi) * (x[1] - x[0])
    factor = 1.0 - rate + rate * np.exp(mu * x - mu * mu / 2.0)
    truth = float(
        (
            np.maximum(np.outer(factor, factor) - math.exp(epsilon), 0.0)
            * np.outer(density, density)
        ).sum()
    )
    bracket = (
        Mechanism(Poisson(rate, 1), 1.0 / mu).guarantee(2, geometry="orthogonal").delta(epsilon)
    )
    assert bracket.lower * (1 - 1e-4) <= truth <= bracket.upper * (1 + 1e-4)


def test_orthogonal_fixed_batches_add_in_squares():
    four = Mechanism(Deterministic(3), 2.0).guarantee(4, geometry="orthogonal").epsilon(1e-5)
    assert four.upper == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-9)


def test_orthogonality_does_not_help_clipped_aggregates_and_is_stated():
    run = Mechanism(Poisson(0.02, 50), 1.0, clipping=Batch())
    assert run.guarantee(3, geometry="orthogonal").epsilon(1e-5) == run.guarantee(3).epsilon(1e-5)
    assert "orthogonal" in run.guarantee(3, geometry="orthogonal").statement(1e-5)
    assert "orthogonal" not in run.guarantee(3).statement(1e-5)


def test_geometry_is_one_of_two_words():
    with pytest.raises(ValueError, match="geometry must be one of"):
        Mechanism(Poisson(0.02, 50), 1.0).guarantee(2, geometry="round")
