"""verax users: what each user is promised, from how many records each has."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verax import Mechanism
from verax.cli import output
from verax.cli.group import Geometry, GeometryName
from verax.cli.options import Json, Noise, Rtol, RunOptions, flat, option
from verax.cli.tables import Table
from verax.privacy.analysis import MAX_GROUP
from verax.privacy.group_uses import Users, largest_group, user_epsilons
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER

_MOST_ROWS = 24  # that are printed one by one
_MOST_USERS = 10**12
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, kw_only=True)
class UsersOptions:
    """What ``verax users`` is asked."""

    counts: Path = option("CSV file: a column with the records of each user.", default=...)
    noise_multiplier: Noise
    delta: float = option("Report epsilon at this delta.", default=...)
    run: RunOptions
    column: str = option("Name of the column with the numbers of records.", default="records")
    weight: str = option(
        "Name of a column that says how many users a line stands for.", default="users"
    )
    epsilon: float | None = option("Also say who is within this epsilon.")
    geometry: Geometry = GeometryName.any
    rtol: Rtol = DEFAULT_RTOL
    json: Json = False


@flat
def users(options: UsersOptions) -> None:
    """Price every user: a user with k records is a group of k.

    The file has a header and one line for each user, with the number of records in the column
    "records"; or one line for each number of records, with a second column "users". The result says
    how many users have how many records, which is itself private: it is for you, not for
    publication.

    Example: verax users --counts counts.csv -z 1 --rate 0.01 --steps 1000 --delta 1e-5
    """
    sizes = read_counts(options.counts, options.column, options.weight)
    total = sum(size * many for size, many in sizes.items())
    records = options.run.drawing["--records"]
    if records is not None and total > records:
        raise ValueError(
            f"--records must be at least {total}, the sum of column {options.column!r} of "
            f"{options.counts}, got {records}"
        )
    mechanism = options.run.mechanism(options.noise_multiplier)
    geometry, delta, epsilon = options.geometry.value, options.delta, options.epsilon
    cap = None
    with output.patience("pricing users"):
        rows = user_epsilons(mechanism, sizes, delta, geometry=geometry, rtol=options.rtol)
        if epsilon is not None:
            cap = largest_group(mechanism, epsilon, delta, geometry=geometry)
    if not options.json:
        _show(options, mechanism, rows, total, cap)
        return
    within = None
    if epsilon is not None:
        within = {"epsilon": epsilon, "users": _users_within(rows, epsilon), "most_records": cap}
    output.print_json(
        {
            "mechanism": repr(mechanism),
            "relation": mechanism.relation,
            "geometry": geometry,
            "delta": delta,
            "users": sum(sizes.values()),
            "records": total,
            "rows": [vars(row) for row in rows],
            "within": within,
        }
    )


# --- reading --------------------------------------------------------------------------------------


def read_counts(path: Path, column: str = "records", weight: str = "users") -> dict[int, int]:
    """How many users have how many records, from a CSV file; errors name the line and the value."""
    sizes: Counter[int] = Counter()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            header = next(_nonblank_lines(lines), None)
            if header is None:
                raise ValueError(
                    f"{path} is empty: it needs a header with a column {column!r}, then a line per "
                    "user"
                )
            names = [name.strip() for name in header]
            if column not in names:
                raise ValueError(
                    f"{path} has no column {column!r}, only {', '.join(map(repr, names))}; name it "
                    "by --column"
                )
            place, many = (
                names.index(column),
                names.index(weight) if weight in names and weight != column else None,
            )
            for line in _nonblank_lines(lines):
                where = f"{path}, line {lines.line_num}"
                size = _whole_number(line, place, column, where, MAX_GROUP)
                sizes[size] += (
                    1 if many is None else _whole_number(line, many, weight, where, _MOST_USERS)
                )
    except OSError as error:
        raise ValueError(
            f"--counts must be a file that can be read, got {path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--counts must be a CSV file in UTF-8, got {path}: {error.reason} at byte "
            f"{error.start}"
        ) from error
    except csv.Error as error:
        raise ValueError(
            f"--counts must be a CSV file, got {path}: {error} in line {lines.line_num}"
        ) from error
    if not sum(sizes.values()):
        raise ValueError(f"{path} names no user: it needs a line per user after its header")
    return dict(sizes)


def _nonblank_lines(lines: Iterator[list[str]]) -> Iterator[list[str]]:
    """Lines that are not blank."""
    return (line for line in lines if any(cell.strip() for cell in line))


def _whole_number(line: Sequence[str], place: int, column: str, where: str, most: int) -> int:
    if place >= len(line):
        raise ValueError(f"{where} has {len(line)} of the header's columns and none for {column!r}")
    word = line[place].strip()
    short = word if len(word) <= 40 else word[:37] + "..."
    if not _NUMBER.fullmatch(word):
        digits = word.lstrip("+-").isascii() and word.lstrip("+-").isdigit()
        needed = f"at most {most}" if digits else "a whole number"
        raise ValueError(f"{where}: {column} must be {needed}, got {short!r}")
    if int(word) < 0:
        raise ValueError(f"{where}: {column} must be at least 0, got {short!r}")
    if int(word) > most:
        raise ValueError(f"{where}: {column} must be at most {most}, got {short!r}")
    return int(word)


# --- showing --------------------------------------------------------------------------------------


def _users_within(rows: Sequence[Users], epsilon: float) -> int:
    return sum(row.users for row in rows if row.epsilon.upper <= epsilon)


def _ranges_of_sizes(rows: Sequence[Users]) -> list[tuple[str, int, Bracket]]:
    """Rows as they are if they are few, else merged: 1, 2, 3 to 4, 5 to 8 and so on."""
    if len(rows) <= _MOST_ROWS:
        return [(str(row.records), row.users, row.epsilon) for row in rows]
    merged: dict[int, list[Users]] = {}
    for row in rows:
        merged.setdefault(math.ceil(math.log2(row.records)) if row.records else -1, []).append(row)
    return [
        (
            f"{some[0].records} to {some[-1].records}" if len(some) > 1 else str(some[0].records),
            sum(row.users for row in some),
            Bracket(some[0].epsilon.lower, some[-1].epsilon.upper),
        )
        for some in merged.values()
    ]


def _show(
    options: UsersOptions, mechanism: Mechanism, rows: Sequence[Users], total: int, cap: int | None
) -> None:
    out = output.fitted_console()
    everyone = sum(row.users for row in rows)
    out.print(
        f"{mechanism.sampler!r}, noise multiplier {mechanism.noise_multiplier!r}, "
        f"{mechanism.clipping!r}"
    )
    orthogonal = options.geometry is GeometryName.orthogonal
    out.print(
        f"relation {mechanism.relation}{', orthogonal gradients' * orthogonal}; "
        f"{everyone} users, {total} records; epsilon at delta = {options.delta!r}"
    )
    table = Table(["records", "users", "share", "at least", "at most"])
    for records, users, bracket in _ranges_of_sizes(rows):
        low, high = format_bound(bracket.lower, LOWER), format_bound(bracket.upper, UPPER)
        table.add_row(records, str(users), f"{100.0 * users / everyone:.4g} %", low, high)
    table.print(out)
    seen = 0
    for row in rows:
        seen += row.users
        if 2 * seen >= everyone:
            break
    out.print(
        f"every user: at most {format_bound(rows[-1].epsilon.upper, UPPER)}; half of them: at most "
        f"{format_bound(row.epsilon.upper, UPPER)}"
    )
    if options.epsilon is not None:
        many = (
            f"within {options.epsilon!r}: "
            f"{_users_within(rows, options.epsilon)} of {everyone} users"
        )
        most = f"with at most {cap} records each, all" if cap else "not even one record is"
        out.print(f"{many}; {most}")
