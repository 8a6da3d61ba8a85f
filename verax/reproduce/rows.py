"""What a reproduction returns, and when a printed number agrees with a computed one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, fields
from decimal import Decimal
from pathlib import Path

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


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> Path:
    """A table as a CSV file with plain newlines; numbers keep all their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)
    return path


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """The rows as a CSV file."""
    return write_csv(path, [field.name for field in fields(Row)], map(astuple, rows))
