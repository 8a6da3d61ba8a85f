"""A printed number beside a computed one: what a reproduction returns, and when both agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from decimal import Decimal

from verax.privacy.guarantee import Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER

Progress = Callable[[str], AbstractContextManager[None]]
"""Called with the name of each part of the work and entered for as long as it takes."""

AGREES = "agrees"
TIGHTER = "tighter here"
ROUNDED = {">=": "rounded up", "<=": "rounded down"}  # past what is proved
DIFFERS = "differs"
ERRATUM = "erratum"


def quiet(_: str) -> AbstractContextManager[None]:
    """No progress shown."""
    return nullcontext()


@dataclass(frozen=True)
class Row:
    """One number or statement of a paper and what verax finds in its place."""

    where: str
    what: str
    paper: str
    here: str
    verdict: str
    remark: str = ""


def erratum(where: str, what: str, paper: str, here: str, remark: str = "") -> Row:
    """A statement of the paper that is false, and what holds in its place."""
    return Row(where, what, paper, here, ERRATUM, remark)


def agreement(holds: bool) -> str:
    """The verdict on a statement in words that is borne out or not."""
    return AGREES if holds else DIFFERS


def between(low: float, high: float, digits: int = 5) -> str:
    """Both sides of a bracket in words, rounded outwards.

    >>> between(1.00001, 2.00001, digits=3)
    '1.00 to 2.01'
    """
    return f"{format_bound(low, LOWER, digits)} to {format_bound(high, UPPER, digits)}"


def shown_bracket(bracket: Bracket) -> str:
    """The same of a bracket."""
    return between(bracket.lower, bracket.upper)


def verdict(printed: str, sense: str, lower: float, upper: float) -> str:
    """Whether a printed bound or value follows from ``lower <= truth <= upper``.

    ``sense`` is ">=" for a printed lower bound (compared with our lower one), "<=" for an upper
    bound (with our upper one), "~" for a value. A bound that is right only to the nearest digit was
    rounded past what is proved.

    >>> verdict("10.994", ">=", 10.9947, 10.998), verdict("0.018", ">=", 0.01794, 1.0)
    ('agrees', 'rounded up')
    >>> (
    ...     verdict("1.96", "<=", 1.9529, 1.9541),
    ...     verdict("3.43", "<=", 0.0, 2.0),
    ...     verdict("0.244", "~", 0.24381, 0.24382),
    ... )
    ('agrees', 'tighter here', 'agrees')
    """
    number, unit = float(printed), 10.0 ** Decimal(printed).as_tuple().exponent  # type: ignore[operator]
    if sense == "~":
        return AGREES if lower - unit / 2 <= number <= upper + unit / 2 else DIFFERS
    gain = lower - number if sense == ">=" else number - upper
    if gain < 0.0:
        return ROUNDED[sense] if gain >= -unit / 2 else DIFFERS
    return TIGHTER if gain > max(unit, 0.02 * number) else AGREES
