"""Allowances for floating-point error: each covers what its derivation says."""

from __future__ import annotations

from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.privacy.numerics import rounding
from verax.privacy.numerics.rounding import OPS_8, OPS_8M, UNIT, down, outward, ulps, up


def test_unit_is_half_the_distance_from_one_to_the_next_double() -> None:
    assert np.finfo(np.float64).eps == 2.0 * UNIT


@pytest.mark.parametrize(
    ("slack", "operations"),
    [
        (rounding.OPS_8, 8),
        (rounding.OPS_80, 80),
        (rounding.OPS_8000, 8_000),
        (rounding.OPS_8M, 8_000_000),
        (rounding.OPS_8G, 8_000_000_000),
    ],
)
def test_round_figures_cover_their_number_of_operations(slack: float, operations: int) -> None:
    unit = Fraction(UNIT)
    assert Fraction(slack) > operations * unit / (1 - operations * unit)


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=8))
def test_a_product_raised_by_its_slack_is_above_the_exact_one(factors: list[float]) -> None:
    exact, product = Fraction(1), 1.0
    for factor in factors:
        exact, product = exact * Fraction(factor), product * factor
    if 1e-290 < product < 1e290:
        assert Fraction(up(product, OPS_8)) >= exact >= Fraction(down(product, OPS_8))


def test_a_long_sum_raised_by_its_slack_is_above_the_exact_one() -> None:
    terms = np.random.default_rng(0).uniform(size=2**20)
    naive = 0.0
    for term in terms.tolist():
        naive += term
    assert up(naive, OPS_8M) >= fsum(terms) >= down(naive, OPS_8M)


def test_outward_raises_upper_bounds_and_lowers_lower_ones() -> None:
    assert outward(2.0, 1, 0.5) == 3.0
    assert outward(2.0, -1, 0.5) == 1.0
    assert ulps(3.0, of=2.0) == 6.0 * UNIT
