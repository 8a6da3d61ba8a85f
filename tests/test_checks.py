"""Input checks: every message names the parameter, its value, and what is allowed."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from verax import checks

NEVER = [
    math.nan,
    float("nan"),
    np.float64("nan"),
    "a",
    "1",
    None,
    True,
    False,
    [1.0],
    1j,
    Decimal("0.5"),
]
TABLE = [
    (checks.real, [], [0, -1.5, math.inf, -math.inf, np.float32(2.0), np.int64(3), Fraction(1, 2)]),
    (checks.count, [0, -1, 1.5, math.inf, 2**60], [1, 10, 10.0, np.int64(7), 2**53]),
    (checks.rate, [0, 0.0, -0.1, 1.2, math.inf], [1, 1.0, 0.5, 1e-300, np.float64(0.1)]),
    (checks.positive, [0, -1, math.inf, -math.inf], [1e-300, 1, 1e300]),
    (checks.nonnegative, [-1e-300, -1, math.inf], [0, 0.0, 1, 1e300]),
    (checks.probability, [0, 1, 1.0, -1, 2, math.inf], [0.5, 1e-300, 1 - 1e-16]),
]


@pytest.mark.parametrize(
    ("check", "value"), [(check, value) for check, bad, _ in TABLE for value in bad + NEVER]
)
def test_bad_values_are_refused_by_name(check, value):
    with pytest.raises(ValueError, match=r"^knob must ") as refusal:
        check("knob", value)
    shown = "nan" if isinstance(value, float) and math.isnan(value) else repr(value)
    assert str(refusal.value).endswith(f"got {shown}")


@pytest.mark.parametrize(
    ("check", "value"), [(check, value) for check, _, good in TABLE for value in good]
)
def test_good_values_pass_as_plain_numbers(check, value):
    result = check("knob", value)
    assert result == value
    assert type(result) is (int if check is checks.count else float)


def test_a_count_may_have_other_limits():
    assert checks.count("knob", 0, minimum=0) == 0
    with pytest.raises(ValueError, match="at least 2 and at most 5, got 6"):
        checks.count("knob", 6, minimum=2, maximum=5)


def test_choice_lists_what_is_allowed():
    assert checks.choice("relation", "replace", ("replace", "add-remove")) == "replace"
    with pytest.raises(
        ValueError, match="relation must be one of 'replace', 'add-remove', got 'repalce'"
    ):
        checks.choice("relation", "repalce", ("replace", "add-remove"))


def test_no_guarantee_is_a_value_error():
    assert issubclass(checks.NoGuarantee, ValueError)
