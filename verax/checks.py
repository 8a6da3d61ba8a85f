"""Input checks. Every message names the parameter, its value and what is allowed."""

from __future__ import annotations

import math
import numbers
import os
from pathlib import Path
from typing import Any

MAX_COUNT = 2**53  # beyond this a float no longer counts one by one


class NoGuarantee(ValueError):  # noqa: N818 - public name, reads as a verdict rather than a fault
    """No sound analysis exists for what was asked; the message says what to use instead."""


def real(name: str, value: Any) -> float:
    """A finite or infinite real number, never nan, never a bool."""
    if type(value) is not float and (
        isinstance(value, bool) or not isinstance(value, numbers.Real)
    ):
        raise ValueError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got nan")
    return number


def count(name: str, value: Any, minimum: int = 1, maximum: int = MAX_COUNT) -> int:
    """A whole number of at least ``minimum``."""
    number = real(name, value)
    if not number.is_integer() or not minimum <= number <= maximum:
        upper = "" if maximum == MAX_COUNT else f" and at most {maximum}"
        raise ValueError(
            f"{name} must be a whole number of at least {minimum}{upper}, got {value!r}"
        )
    return int(value)


def rate(name: str, value: Any) -> float:
    """A probability in (0, 1]."""
    number = real(name, value)
    if not 0.0 < number <= 1.0:
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}")
    return number


def positive(name: str, value: Any) -> float:
    """A finite number greater than zero."""
    number = real(name, value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return number


def nonnegative(name: str, value: Any) -> float:
    """A finite number of at least zero."""
    number = real(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")
    return number


def probability(name: str, value: Any) -> float:
    """A probability strictly between 0 and 1, as delta and a confidence must be."""
    number = real(name, value)
    if not 0.0 < number < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return number


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return str(value)


def seed(value: Any) -> int | None:
    """An ``insecure_seed``: a whole number from 0 on, or None for randomness from the system."""
    return None if value is None else count("insecure_seed", value, minimum=0)


def writable(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse a place where no file can be put, before the work whose result is to go there."""
    place = Path(path)
    if place.is_dir() or not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        raise ValueError(
            f"{name} must be a file in an existing folder that can be written to, got {str(path)!r}"
        )
