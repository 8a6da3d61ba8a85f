"""Files of a reproduction: data and numbers as CSV, figures, and what a paper prints."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from verax.papers.comparison import Row

T = TypeVar("T")


def write_table(path: Path, lines: Sequence[Mapping[str, object]]) -> Path:
    """Write a table as CSV with plain newlines; numbers keep all their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return path


def write_rows(folder: Path, rows: Iterable[Row]) -> Path:
    """Write the comparison of all numbers as ``numbers.csv``."""
    return write_table(folder / "numbers.csv", [asdict(row) for row in rows])


def figure_files(folder: Path, name: str) -> tuple[Path, Path]:
    """The two files of a figure."""
    return folder / f"{name}.png", folder / f"{name}.svg"


def read_printed(path: Path, kind: Callable[..., T]) -> tuple[T, ...]:
    """What a paper prints, from a CSV file whose columns are the fields of a dataclass.

    A cell that is left empty has the field's default.
    """
    types = get_type_hints(kind)
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            kind(**{name: _value(types[name], word) for name, word in line.items() if word})
            for line in csv.DictReader(file)
        )


def _value(kind: Any, word: str) -> Any:
    return {int: int, str: str}.get(kind, float)(word)
