import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from verax.privacy.numerics.lattice import LatticePmf


def test_a_power_is_binomial_far_into_the_tails():
    pmf = LatticePmf.of([0.0, 1.0], [0.99, 0.01]).times(1000)
    exact = stats.binom(1000, 0.01)
    truth = exact.pmf(pmf.lows)
    assert pmf.weights.min() < 1e-45
    assert 0.0 < pmf.lost < 1e-44
    assert (np.abs(pmf.weights - truth) <= (pmf.error + 1e-11) * truth + pmf.lost).all()
    deep = (truth > 1e-40) & (truth < 1e-30)
    assert pmf.weights[deep].tolist() == pytest.approx(truth[deep].tolist(), rel=1e-10, abs=0.0)


@pytest.mark.parametrize("cells", [16, 100, 1000])
def test_merged_cells_hold_the_truth(cells):
    pmf = LatticePmf.of([0.0, 1.0], [0.7, 0.3]).times(5000, cells)
    exact = stats.binom(5000, 0.3)
    assert len(pmf.weights) <= cells
    for value in (1400, 1499.5, 1500, 1550, 1700):
        low, high = pmf.above(value)
        assert low <= exact.sf(value) <= high
        low, high = pmf.below(value)
        assert low <= exact.cdf(math.ceil(value) - 1) <= high


def test_merging_is_visible_and_goes_away():
    coarse, fine = (
        LatticePmf.of([0.0, 1.0], [0.7, 0.3]).times(5000, cells) for cells in (64, 4096)
    )
    assert coarse.spread > 0.0 == fine.spread
    assert coarse.mean == pytest.approx(1500.0, abs=coarse.spread)
    assert fine.mean == pytest.approx(1500.0, rel=1e-9)


pmfs = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6).map(
    lambda w: LatticePmf.of(np.arange(float(len(w))), np.array(w) / sum(w))
)


@settings(max_examples=60, deadline=None)
@given(pmfs, pmfs, st.sampled_from([1.0, 0.25, math.pi]), st.sampled_from([8, 64]))
def test_sums_of_laws_on_other_lattices(a, b, factor, cells):
    """Every pair of values is inside a cell of the sum, with its probability."""
    total = a.plus(b.scaled(factor), cells)
    pairs = sorted(
        (x + factor * y, p * q)
        for x, p in zip(a.lows, a.weights, strict=True)
        for y, q in zip(b.lows, b.weights, strict=True)
    )
    for value, _ in pairs:
        low, high = total.below(value)
        exact = sum(chance for place, chance in pairs if place < value - 1e-12)
        assert low <= exact + 1e-12
        assert exact <= high + 1e-12
    assert total.highs[-1] >= pairs[-1][0] * (1 - 1e-15)


def test_wide_laws_start_coarse():
    pmf = LatticePmf.of(np.array([0.0, 1e6, 1e12]), np.array([0.5, 0.25, 0.25]), cells=64)
    assert len(pmf.weights) <= 64
    assert pmf.above(0.5e12) == (pytest.approx(0.25), pytest.approx(0.25))
    assert pmf.top == 1e12


def test_a_range_stays_one():
    pmf = LatticePmf.between(2.0, 5.0).times(3)
    assert (pmf.lows.tolist(), pmf.highs.tolist()) == ([6.0], [15.0])
    assert pmf.above(10.0) == (0.0, 1.0)
    assert LatticePmf.between(2.0, 5.0).times(0).highs.tolist() == [0.0]
