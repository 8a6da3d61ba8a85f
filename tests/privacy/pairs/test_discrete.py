"""Tables of losses: read off, discretised and composed, against sums written out; errors used up to
the last.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld import discretise
from verax.privacy.pld.composition import Composition
from verax.privacy.pld.convolve import compose
from verax.privacy.pld.discretise import DiscretePld, Spacing


def delta(p: np.ndarray, q: np.ndarray, epsilon: float, infinite: float = 0.0) -> float:
    """D_{e^eps} as it is defined."""
    return math.fsum(np.maximum(p - math.exp(epsilon) * q, 0.0).tolist()) + infinite


def curve(pmf: DiscretePld, epsilon: float) -> float:
    above = pmf.losses > epsilon
    return pmf.infinite + math.fsum(
        (np.exp(pmf.log_mass[above]) * -np.expm1(epsilon - pmf.losses[above])).tolist()
    )


def lower_pmf(table: DiscretePair, spacing: Spacing) -> DiscretePld | None:
    """The lower pmf; None where it is refused, the grid being too coarse for these atoms."""
    try:
        return discretise.lower(table, spacing)
    except FloatingPointError:
        return None


@st.composite
def masses(draw, most: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Two pmfs on a few points, with tiny masses among them."""
    size = draw(st.integers(2, most))
    exponents = st.lists(st.floats(-18.0, 0.0), min_size=size, max_size=size)
    p, q = (10.0 ** np.array(draw(exponents)) for _ in range(2))
    return p / p.sum(), q / q.sum()


scales = st.one_of(st.just(math.inf), st.floats(0.1, 3.0))


# --- read off -------------------------------------------------------------------------------------


@given(masses(), st.floats(-3.0, 20.0), st.floats(0.0, 1e-3))
def test_delta_is_the_definition(pmfs, epsilon, infinite):
    table = DiscretePair.from_masses(*pmfs, infinite=infinite)
    low, high = table.delta(epsilon)
    truth = delta(*pmfs, epsilon)
    assert low <= truth * (1.0 + 1e-12) + 1e-16
    assert min(truth + infinite, 1.0) <= high * (1.0 + 1e-12) + 1e-16
    assert high - low <= 1e-12 * (1.0 + math.exp(epsilon)) + infinite
    back = table.reverse()
    low, high = back.delta(epsilon)
    truth = delta(pmfs[1], pmfs[0], epsilon)
    assert low <= truth * (1.0 + 1e-12) + 1e-16
    assert truth <= high * (1.0 + 1e-12) + 1e-16


@given(masses(), st.floats(1e-9, 1e-2), st.floats(-1.0, 5.0), st.integers(0, 2**32 - 1))
def test_delta_allows_for_every_law_within_the_error(pmfs, error, epsilon, seed):
    """Any masses whose logarithms, and whose ratios' logarithms, are off by at most the error."""
    table, rng = DiscretePair.from_masses(*pmfs, error=error), np.random.default_rng(seed)
    for _ in range(5):
        p = pmfs[0] * np.exp(error * rng.choice([-1.0, 0.0, 1.0], len(pmfs[0])))
        q = p / (pmfs[0] / pmfs[1] * np.exp(error * rng.choice([-1.0, 0.0, 1.0], len(pmfs[0]))))
        for true, back in (((p, q), table), ((q, p), table.reverse())):
            low, high = back.delta(epsilon)
            assert low <= delta(*true, epsilon) + 1e-15
            assert min(delta(*true, epsilon), 1.0) <= high + 1e-15


def test_atoms_that_one_side_does_not_see_are_kept_at_the_ends():
    table = DiscretePair.from_masses(np.array([0.1, 0.0, 0.9]), np.array([0.0, 0.2, 0.8]))
    assert (table.infinite, table.missing, len(table.p)) == (0.1, 0.2, 1)
    # .9 - .8, and what the other side misses
    assert table.delta(0.0) == pytest.approx((0.1, 0.2), abs=1e-9)
    back = table.reverse()
    assert (back.infinite, back.missing) == pytest.approx((0.2, 0.1))
    assert table.supremum == back.supremum == math.inf
    assert DiscretePair.from_masses(
        np.array([0.5, 0.5]), np.array([0.25, 0.75])
    ).supremum == pytest.approx(math.log(2.0))


def test_losses_ascend_and_reversing_twice_returns():
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(40)), rng.dirichlet(np.ones(40))
    table = DiscretePair.from_masses(p, q)
    assert (np.diff(table.loss_values) >= 0.0).all()
    assert table.p / table.q == pytest.approx(np.exp(table.loss_values))
    twice = table.reverse().reverse()
    assert twice.loss_values.tolist() == table.loss_values.tolist()
    assert twice.p.tolist() == table.p.tolist()


# --- cells ----------------------------------------------------------------------------------------


@given(masses(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_cells_share_out_all_mass_in_proportion(pmfs, places):
    table = DiscretePair.from_masses(*pmfs)
    size = len(table.p)
    inner = size * (np.sort(np.array(places)) - 0.5)
    cells = table.cells(np.concatenate([[-np.inf], inner, [np.inf]]))
    assert len(cells.log_p) == len(cells.loss) == len(cells.error) == len(inner) + 1
    filled = np.isfinite(cells.log_p)
    p, q = np.exp(cells.log_p), np.where(filled, np.exp(cells.log_p - cells.loss), 0.0)
    assert p.sum() == pytest.approx(table.p.sum(), rel=1e-13)
    assert q.sum() == pytest.approx(table.q.sum(), rel=1e-12)
    ends = np.concatenate([[0.0], inner + size / 2.0, [float(size)]])
    for i in range(len(p)):  # by integrating the step function that the table is
        share = np.clip(ends[i + 1] - np.arange(size), 0.0, 1.0) - np.clip(
            ends[i] - np.arange(size), 0.0, 1.0
        )
        assert p[i] == pytest.approx(float(share @ table.p), rel=1e-9, abs=1e-14)
        assert q[i] == pytest.approx(float(share @ table.q), rel=1e-9, abs=1e-14)


def test_a_boundary_beside_the_end_does_not_make_a_cell():
    """Half way between the last boundary and the end there is no double."""
    table = DiscretePair.from_masses(np.array([0.5, 0.5]), np.array([0.4, 0.6]))
    cells = table.cells(np.array([-np.inf, 1.0 - 2.0**-52, np.inf]))
    assert len(cells.log_p) == 2
    assert np.exp(cells.log_p).sum() == pytest.approx(1.0)


def test_reversing_mirrors_the_line():
    rng = np.random.default_rng(9)
    table = DiscretePair.from_masses(rng.dirichlet(np.ones(7)), rng.dirichlet(np.ones(7)))
    boundaries = np.array([-3.5, -1.2, 0.3, 2.0, 3.5])
    there, back = table.cells(boundaries), table.reverse().cells(-boundaries[::-1])
    assert back.loss == pytest.approx(-there.loss[::-1])
    assert back.log_p == pytest.approx((there.log_p - there.loss)[::-1])


# --- discretised ----------------------------------------------------------------------------------


def assert_sandwiched(
    table: DiscretePair, p: np.ndarray, q: np.ndarray, step: float, scale: float, infinite: float
) -> None:
    """The curve of (p, q), which the table describes up to its error, lies between the two
    discretised pmfs.
    """
    spacing = Spacing(step, table.infimum - step, float(table.loss_values[-1]) + step, scale)
    above, below = discretise.upper(table, spacing), lower_pmf(table, spacing)
    some = above.losses[:: max(len(above.index) // 20, 1)]
    at = np.concatenate([table.loss_values, table.loss_values + 0.3 * step, some])
    for epsilon in [*at.tolist(), 0.0, table.infimum - 1.0]:
        truth = delta(p, q, epsilon, infinite)
        assert (
            curve(above, epsilon - above.shift) * math.exp(above.shift) * (1.0 + 1e-11) + 1e-15
            >= truth
        ), epsilon
        if below is not None:
            bottom = curve(below, epsilon + below.shift) * math.exp(-below.shift)
            assert bottom <= truth * (1.0 + 1e-11) + 1e-15, epsilon


@given(
    masses(),
    st.floats(-2.0, 0.5).map(lambda e: 10.0**e),
    scales,
    st.sampled_from([0.0, 1e-6]),
    st.booleans(),
)
@settings(max_examples=40)
def test_the_exact_curve_lies_between_the_two_laws(pmfs, step, scale, infinite, forward):
    p, q = pmfs if forward else pmfs[::-1]
    table = DiscretePair.from_masses(*pmfs, infinite=infinite, missing=infinite)
    assert_sandwiched(table if forward else table.reverse(), p, q, step, scale, infinite)


@given(
    masses(6),
    st.floats(-5.0, -2.0).map(lambda e: 10.0**e),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
@settings(max_examples=60)
def test_so_does_every_curve_within_the_error(pmfs, error, seed, forward):
    """Atoms whose true loss lies in the next cell of the grid, too: grid points are put right
    beside them.
    """
    rng = np.random.default_rng(seed)
    p = pmfs[0] * np.exp(error * rng.choice([-1.0, 1.0], len(pmfs[0])))
    q = p / (pmfs[0] / pmfs[1] * np.exp(error * rng.choice([-1.0, 1.0], len(pmfs[0]))))
    table = DiscretePair.from_masses(*pmfs, error=error)
    table, p, q = (table, p, q) if forward else (table.reverse(), q, p)
    near = table.loss_values - table.bulk
    step = float(near[np.argmax(np.abs(near))]) or 1.0
    # the farthest atom sits on a grid point, or just off it
    for nudge in (0.0, 0.5 * error, -0.5 * error):
        assert_sandwiched(table, p, q, max(abs(step + nudge) / 3.0, 1e-3), math.inf, 0.0)


def test_an_atom_on_the_wrong_side_of_a_grid_point_is_paid_for():
    """The table says loss 1 - 1e-4, the truth may be 1 + 1e-4: a grid point at 1 must not cut it
    off.
    """
    error = 2e-4
    said = np.array([0.5, 0.5 * math.exp(1.0 - 1e-4) / (1.0 + math.exp(1.0 - 1e-4))])
    table = DiscretePair.from_masses(
        said, np.array([0.7, said[1] * math.exp(-(1.0 - 1e-4))]), error=error
    )
    pmf = discretise.upper(table, Spacing(1.0 - table.bulk, table.bulk, 1.0))
    true_p, true_q = said[1], said[1] * math.exp(-(1.0 + 1e-4))
    for epsilon in (0.9, 1.0, 1.0 + 0.5e-4):
        assert (
            curve(pmf, epsilon - pmf.shift) * math.exp(pmf.shift)
            >= true_p - math.exp(epsilon) * true_q
        )


# --- composed -------------------------------------------------------------------------------------


def product(pmfs) -> tuple[np.ndarray, np.ndarray]:
    p, q = (np.multiply.outer(pmfs[0][side], pmfs[1][side]).reshape(-1) for side in (0, 1))
    return p, q


@given(
    masses(8),
    masses(8),
    st.sampled_from([0.01, 0.1, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    st.booleans(),
)
@settings(max_examples=40)
def test_two_tables_compose_to_their_product(one, other, step, tilt, forward):
    """Any two tables on any grid and tilt: the product, written out, lies between the composed
    pmfs.
    """
    infinite = 1e-5
    tables = [DiscretePair.from_masses(*pmfs, infinite=infinite) for pmfs in (one, other)]
    tables = tables if forward else [table.reverse() for table in tables]
    p, q = product((one, other))
    p, q, extra = (p, q, 2.0 * infinite) if forward else (q, p, 0.0)
    spacings = [Spacing(step, t.infimum - step, float(t.loss_values[-1]) + step) for t in tables]
    both = list(zip(tables, spacings, strict=True))
    for sign, pmf in ((1, discretise.upper), (-1, discretise.lower)):
        try:
            composed = compose([(pmf(t, s), 1) for t, s in both], tilt, sign)
        except FloatingPointError:
            continue  # refused: too coarse a grid for these atoms, or too strong a tilt
        for epsilon in (-1.0, 0.0, 0.3, 2.0, 10.0):
            truth = min(delta(p, q, epsilon) + (extra * (1.0 - 1e-4) if sign > 0 else 0.0), 1.0)
            assert sign * (composed.delta(epsilon) - truth) >= -1e-9 * truth - 1e-14, (
                sign,
                epsilon,
            )


def smooth(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two mixtures of three Gaussians in bins."""
    x = np.linspace(-4.0, 4.0, size)
    pmfs = []
    for _ in range(2):
        centres, weights = rng.uniform(-1.0, 1.0, 3), rng.dirichlet(np.ones(3))
        pmf = np.exp(-((x - centres[:, None]) ** 2) / 2.0).T @ weights
        pmfs.append(pmf / pmf.sum())
    return pmfs[0], pmfs[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("forward", [True, False])
def test_the_bracket_of_two_tables_is_narrow_and_holds_their_product(seed, forward):
    rng = np.random.default_rng(seed)
    pmfs = [smooth(rng, 500), smooth(rng, 500)]
    tables = [DiscretePair.from_masses(*pmf) for pmf in pmfs]
    both = Composition(
        [(PricedRound(table if forward else table.reverse()), 1) for table in tables]
    )
    p, q = product(pmfs) if forward else product(pmfs)[::-1]
    for epsilon in (0.0, 0.5, 2.0):
        low, high = both.delta(epsilon, 1e-2)
        assert low <= delta(p, q, epsilon) * (1.0 + 1e-9) <= high * (1.0 + 1e-8)
        assert high - low <= 2e-2 * high + 1e-9
    for level in (1e-6, 1e-2, 0.1):
        low, high = both.epsilon(level, 1e-2)
        assert low == 0.0 or delta(p, q, low) >= level * (1.0 - 1e-9)
        assert delta(p, q, high) <= level * (1.0 + 1e-9)
        assert high - low <= 3e-2 * high + 1e-3


def test_many_copies_compose_like_the_pair_they_were_cut_from():
    """Ten rounds of a subsampled Gaussian, merged into bins: a little below the pair itself."""
    pair = MixturePair.subsampled(0.1, 1.0)
    cells = pair.cells(np.concatenate([[-np.inf], np.arange(-8.0, 10.0, 0.02), [np.inf]]))
    table = DiscretePair.from_masses(np.exp(cells.log_p), np.exp(cells.log_p - cells.loss))
    for turn in (False, True):
        whole, cut = (
            Composition([(PricedRound(x.reverse() if turn else x), 10)]).epsilon(1e-6, 1e-3)
            for x in (pair, table)
        )
        assert cut[0] <= whole[1]
        assert cut[1] == pytest.approx(whole[0], rel=3e-3)


# --- attackers' bins ------------------------------------------------------------------------------


def test_binned_mixtures_are_mixtures_seen_in_bins():
    weights = np.array([0.9, 0.1])
    table = DiscretePair.from_mixtures(
        (weights, np.array([0.0, 2.0])), (weights, np.array([0.0, 1.0]))
    )
    assert table.p.sum() == pytest.approx(1.0, abs=1e-12)
    assert table.q.sum() == pytest.approx(1.0, abs=1e-12)
    x = np.arange(-12.0, 14.0, 1e-4)

    def density(shift: float) -> np.ndarray:
        return 0.9 * np.exp(-x * x / 2.0) + 0.1 * np.exp(-((x - shift) ** 2) / 2.0)

    for epsilon in (0.0, 0.1, 1.0):
        for (up, down), seen in (((2.0, 1.0), table), ((1.0, 2.0), table.reverse())):
            excess = np.maximum(density(up) - math.exp(epsilon) * density(down), 0.0)
            truth = float(excess.sum()) * 1e-4 / math.sqrt(2.0 * math.pi)
            assert seen.delta(epsilon)[0] <= truth * (1.0 + 1e-6)
            assert seen.delta(epsilon)[0] == pytest.approx(truth, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("shift", [0.3, 20.0])
def test_masses_of_bins_are_within_their_stated_error(shift):
    weights, places = np.array([0.999, 0.001]), np.array([0.0, shift])
    table = DiscretePair.from_mixtures((weights, places), (np.array([1.0]), np.array([0.0])))
    order = np.argsort(table.q)[:: max(len(table.q) // 50, 1)]
    with mpmath.workdps(40):
        grid = np.arange(min(places) - 16.0, max(places) + 16.0, 0.01)
        for i in order.tolist():
            # the bin of this Q-mass on the right half: tried against both of its neighbours
            k = np.flatnonzero(np.abs(np.log(table.q[i]) - np.log(_bin_masses(grid))) < 1e-8)
            errors = []
            for j in k.tolist():
                a, b = mpmath.mpf(grid[j]), mpmath.mpf(grid[j + 1])
                exact = (
                    mpmath.ncdf(b) - mpmath.ncdf(a) if a < 0 else mpmath.ncdf(-a) - mpmath.ncdf(-b)
                )
                errors.append(float(abs(mpmath.log(mpmath.mpf(float(table.q[i])) / exact))))
            assert min(errors) <= table.error


def _bin_masses(grid: np.ndarray) -> np.ndarray:
    flipped = np.where(grid > 0.0, -grid, grid)
    below = special.ndtr(flipped)
    with np.errstate(divide="ignore"):
        return np.maximum(np.abs(np.diff(below)), 1e-300)


def test_an_attacker_who_knows_no_bin_is_blind():
    far = DiscretePair.from_mixtures((np.ones(1), np.array([200.0])), (np.ones(1), np.array([0.0])))
    assert far.delta(0.0) == (0.0, pytest.approx(0.0, abs=1e-12))
    assert (len(far.p), far.infinite, far.missing) == (1, 0.0, 0.0)
    seen = DiscretePair.from_bins(
        np.array([0.5, 1e-300, 0.5]), np.array([1e-300, 0.5, 0.5]), error=1e-9
    )
    assert seen.p.tolist() == [0.5]
    assert seen.infinite == seen.missing == 0.0


def test_losses_in_the_thousands_keep_both_masses():
    """Where one side's mass is far below the range of doubles, in both directions and composed."""
    log_p, log_q = np.log([0.25, 0.75]), np.array([-3000.0, -1e-12])
    table = DiscretePair.from_log_masses(log_p, log_q)
    assert table.delta(2000.0)[0] == pytest.approx(0.25)
    assert table.delta(2998.0)[0] == pytest.approx(
        0.25 * -math.expm1(2998.0 - 3000.0 + math.log(4.0))
    )
    assert table.reverse().delta(0.0)[1] == pytest.approx(0.25)
    cells = table.cells(np.array([-np.inf, 0.0, np.inf]))
    assert cells.loss.tolist() == pytest.approx([math.log(0.75), 3000.0 - math.log(4.0)])
