"""The root finder: stays in its bracket, converges fast, and lands on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.privacy.numerics.roots import (
    bisect,
    bisect_all,
    bracket,
    crossing,
    last_whole,
    root,
)

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


@given(st.floats(1e-6, 1e6), st.booleans(), st.booleans())
def test_bisection_ends_on_either_side_of_the_change(place, rising, geometric):
    """The first point holds, the second does not, and they are as close as was asked."""
    tried = []

    def holds(x: float) -> bool:
        tried.append(x)
        return (x < place) == rising

    ends = (1e-7, 1e7) if rising else (1e7, 1e-7)
    inside, outside = bisect(holds, *ends, rtol=1e-3, geometric=geometric)
    assert (inside < place) == rising
    assert (outside < place) != rising
    assert abs(inside - outside) <= 1e-3 * max(inside, outside) * (1.0 + 1e-9)
    assert not {*ends} & {*tried}


def test_bisection_without_a_tolerance_ends_at_neighbouring_doubles():
    inside, outside = bisect(lambda x: x * x <= 2.0, 0.0, 2.0)
    assert outside == math.nextafter(inside, math.inf)
    assert inside <= math.sqrt(2.0) <= outside
    assert bisect(lambda x: x <= 0.0, 0.0, 1.0, atol=0.3) == (0.0, 0.25)


def test_a_bracket_goes_out_until_something_fails_or_the_limit_is_passed():
    assert bracket(lambda x: x < 11.0, 0.0, 1.0) == (8.0, 16.0)
    assert bracket(lambda x: x < 11.0, 0.0, 1.0, factor=4.0) == (4.0, 16.0)
    assert bracket(lambda x: True, 0.0, 1.0, limit=20.0) == (16.0, 32.0)
    assert bracket(lambda x: False, 0.5, 3.0) == (0.5, 3.0)


@given(st.integers(-5, 40), st.integers(0, 40))
def test_the_last_whole_number_that_holds(low, more):
    last = low + more
    assert last_whole(lambda n: n <= last, low, low + 41) == last
    assert last_whole(lambda n: n <= last, low, last + 1) == last


def test_many_bisections_at_once_are_those_one_by_one():
    places, sought = np.array([0.4, 3.0, 77.0, 5.0]), np.array([True, True, True, False])
    found = bisect_all(lambda x, some: x - places[some], sought, 1e-3, 1e4, 40)
    assert found[:3] == pytest.approx(places[:3], rel=1e-9)
    assert found[3] == 0.0


def test_a_root_is_found_where_squares_underflow():
    assert root(lambda x: 1e-200 * (0.3 - x), 0.0, 1.0, xtol=1e-6) == pytest.approx(0.3, abs=1e-5)
