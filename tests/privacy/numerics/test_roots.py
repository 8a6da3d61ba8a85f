"""The root finder: stays in its bracket, converges fast, and lands on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.privacy.numerics.roots import crossing, root

FUNCTIONS: list[tuple[Callable[[float], float], float, float, float]] = [
    (lambda x: x - 0.25, -3.0, 7.0, 0.25),
    (lambda x: math.exp(-x) - 1e-9, 0.0, 100.0, 9 * math.log(10)),
    (lambda x: x**3 - 2.0, 0.0, 1e3, 2 ** (1 / 3)),
    (lambda x: math.atan(x - 5.0), -1e6, 1e6, 5.0),
    # a jump, as of a bound that becomes trivial
    (lambda x: -1.0 if x < 1.75 else 1e4, 0.0, 4.0, 1.75),
    (lambda x: math.log1p(-x) + 3.0, 0.0, 1 - 1e-15, -math.expm1(-3.0)),
]


@pytest.mark.parametrize(("function", "low", "high", "truth"), FUNCTIONS)
def test_root_is_within_tolerance_inside_the_bracket_and_cheap(function, low, high, truth):
    calls: list[float] = []

    def counted(x: float) -> float:
        calls.append(x)
        return function(x)

    found = root(counted, low, high, xtol=1e-10)
    assert abs(found - truth) <= 1e-10
    assert all(low <= x <= high for x in calls)
    # it may not do worse than two evaluations a halving, and the two ends
    assert len(calls) <= 2 * (math.log2((high - low) / 1e-10) + 2) + 2


@pytest.mark.parametrize("zero_at", [-2.0, 3.0])
def test_a_root_at_an_end_is_returned_as_it_is(zero_at):
    assert root(lambda x: x - zero_at, -2.0, 3.0, xtol=1e-6) == zero_at


def test_no_sign_change_is_refused_with_both_values():
    with pytest.raises(ValueError, match=r"no sign change between 0\.0 \(1\.0\) and 2\.0 \(5\.0\)"):
        root(lambda x: x * x + 1.0, 0.0, 2.0, xtol=1e-6)


@given(st.floats(1e-3, 50.0), st.floats(0.1, 20.0), st.sampled_from([1, -1]))
def test_crossing_lands_on_the_safe_side_and_near(point, steepness, sign):
    def excess(x: float) -> float:
        return steepness * (math.exp(-x) - math.exp(-point))

    found = crossing(excess, 0.0, 100.0, sign)
    assert sign * excess(found) <= 0.0
    assert abs(found - point) <= 1e-10 * (1.0 + point) + 4e-16 * math.exp(
        point
    )  # the last term: excess itself is rounded


@pytest.mark.parametrize("sign", [1, -1])
def test_crossing_of_a_staircase_is_on_the_safe_side_too(sign):
    """Bounds are piecewise; a lower bound may drop to nothing at once."""

    def excess(x: float) -> float:
        return 1.0 if x < 2.5 else -1e4

    found = crossing(excess, 0.0, 8.0, sign)
    assert sign * excess(found) <= 0.0
    assert abs(found - 2.5) < 1e-11


def test_crossing_never_goes_below_zero():
    assert crossing(lambda x: 1e-20 - x, 0.0, 1.0, -1) >= 0.0
