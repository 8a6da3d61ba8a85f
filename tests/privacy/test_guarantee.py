"""Brackets and guarantees: what they print, what they refuse, what they promise about width."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax import Bracket, Deterministic, Mechanism, Poisson
from verax.privacy.guarantee import format_bound

RUN = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)


def test_a_bracket_is_ordered():
    with pytest.raises(ArithmeticError, match=r"2\.0 exceeds upper bound 1\.0"):
        Bracket(2.0, 1.0)
    with pytest.raises(ArithmeticError):
        Bracket(math.nan, 1.0)
    assert Bracket(1.0, 1.0).width == 0.0
    assert Bracket(math.inf, math.inf).width == 0.0
    assert Bracket(0.0, math.inf).width == math.inf


def test_float_of_a_bracket_is_its_safe_side():
    assert float(Bracket(1.0, 2.0)) == 2.0
    assert Bracket(1.0, 2.5).width == 1.5


@given(st.floats(1e-290, 1e290))
def test_printed_numbers_are_rounded_to_the_safe_side(value):
    """A hair of 1e-13 is allowed, so that 1.2 prints as 1.2000."""
    below, above = float(format_bound(value, -1)), float(format_bound(value, 1))
    assert below <= value * (1.0 + 1e-13)
    assert above >= value * (1.0 - 1e-13)
    assert above - below <= 2e-4 * value


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (1.82801, 1.82855, "Bracket(lower=1.8280, upper=1.8286)"),
        (0.0, math.inf, "Bracket(lower=0, upper=inf)"),
        (1.2, 1.2, "Bracket(lower=1.1999, upper=1.2000)"),
        (1.96901e-23, 1.96979e-23, "Bracket(lower=1.9690e-23, upper=1.9698e-23)"),
        (0.99999, 0.999999, "Bracket(lower=0.99999, upper=1.00000)"),
    ],
)
def test_repr(lower, upper, text):
    assert repr(Bracket(lower, upper)) == text


def test_str_is_an_interval():
    assert str(Bracket(1.0, 2.0)) == "[1.0000, 2.0000]"


@pytest.mark.parametrize(
    "delta", [0, 0.0, 1, 1.0, -1, -1e-5, 2.0, math.nan, math.inf, "a", None, True]
)
def test_bad_deltas_name_themselves(delta):
    with pytest.raises(ValueError, match="delta must") as refusal:
        RUN.guarantee().epsilon(delta)
    assert repr(delta) in str(refusal.value)


@pytest.mark.parametrize("epsilon", [-1, -1e-9, math.nan, math.inf, "a", None])
def test_bad_epsilons_name_themselves(epsilon):
    with pytest.raises(ValueError, match="epsilon must") as refusal:
        RUN.guarantee().delta(epsilon)
    assert repr(epsilon) in str(refusal.value)


@pytest.mark.parametrize("rtol", [0, 0.0, 2, 1.0, -1e-3, 1e-12, math.nan, math.inf, "a"])
def test_bad_tolerances_name_themselves(rtol):
    for ask in (
        lambda: RUN.guarantee().epsilon(1e-5, rtol=rtol),
        lambda: RUN.guarantee().delta(1.0, rtol=rtol),
    ):
        with pytest.raises(ValueError, match="rtol must") as refusal:
            ask()
        assert repr(rtol) in str(refusal.value)


@pytest.mark.parametrize("rtol", [0.1, 1e-2, 1e-3, 1e-4])
def test_widths_are_as_asked(rtol):
    guarantee = RUN.guarantee()
    assert (
        guarantee.epsilon(1e-5, rtol=rtol).width <= rtol * guarantee.epsilon(1e-5, rtol=rtol).upper
    )
    assert guarantee.delta(1.0, rtol=rtol).width <= rtol * guarantee.delta(1.0, rtol=rtol).upper


def test_epsilon_and_delta_are_inverse_to_each_other():
    guarantee = RUN.guarantee()
    for delta in (1e-8, 1e-5, 1e-2):
        bracket = guarantee.epsilon(delta)
        assert guarantee.delta(bracket.upper).lower <= delta
        assert guarantee.delta(bracket.lower).upper >= delta


def test_epsilon_zero_and_large_deltas():
    guarantee = RUN.guarantee()
    total = guarantee.delta(0.0)
    assert 0.0 < total.lower <= total.upper < 1.0
    assert guarantee.epsilon(min(2.0 * total.upper, 0.99)).lower == 0.0


def test_a_huge_epsilon_has_next_to_no_delta():
    bracket = RUN.guarantee().delta(500.0)
    assert 0.0 <= bracket.lower <= bracket.upper < 1e-100


def test_statement():
    text = RUN.guarantee(group=2).statement(delta=1e-5)
    first, second, *_ = text.splitlines()
    assert first.startswith("Any 2 records are protected with epsilon at most ")
    assert "delta 1e-05" in first
    assert "relation: add-remove" in first
    assert second.startswith("No analysis can show less than ")
    stated = float(first.split("at most ")[1].split(" ")[0])
    assert stated >= RUN.guarantee(group=2).epsilon(1e-5).upper * (1.0 - 1e-9)
    for fact in (
        "Poisson(rate=0.01, steps=1000)",
        "noise_multiplier=1.0",
        "Evidence: proved",
        "theorem 18",
        "Not covered",
    ):
        assert fact in text


def test_an_upper_delta_is_never_zero_and_a_lower_one_below_the_smallest_is_nothing():
    for run in (Mechanism(Poisson(0.01, 1000), 1.0), Mechanism(Deterministic(10), 1.0)):
        bracket = run.guarantee().delta(100.0)
        assert bracket.lower == 0.0
        assert bracket.upper == 1e-300
    with pytest.raises(ValueError, match="delta must be at least 1e-300, got 1e-305"):
        Mechanism(Poisson(0.01, 10), 1.0).guarantee().epsilon(1e-305)


def test_no_delta_exceeds_the_probability_of_being_sampled():
    rare = Mechanism(Poisson(1e-61, 10**6), 0.01).guarantee(group=2)
    assert 2e-55 <= rare.delta(1.0).upper <= 2.001e-55
    assert rare.epsilon(1e-50).upper == 0.0


def test_a_bound_is_shown_on_its_own_side_of_its_value():
    assert format_bound(1.8285000000000099, 1) == "1.8286"
    assert format_bound(1.8285000000000099, -1) == "1.8285"
    assert format_bound(1.97001e-23, -1, 3) == "1.97e-23"
