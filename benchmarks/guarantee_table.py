"""Three hundred guarantees, to prove that moving code moved no number.

    python benchmarks/guarantee_table.py write      # before: guarantee_table.csv
    python benchmarks/guarantee_table.py compare    # after: what differs, and how many are equal

Every sampler under every clipping and relation, alone and in groups, for both adversaries: what is
priced, and in which words what is not.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)

TABLE = Path(__file__).with_suffix(".csv")
SAMPLERS = (
    Poisson(0.02, 300),
    TruncatedPoisson(0.02, 300, 30, 1000),
    WithoutReplacement(20, 1000, 300),
    BallsInBins(50, 3),
    RandomAllocation(2, 60, 2),
    Shuffle(50, 3),
    Shuffle(50, 3, reshuffle=False),
    BufferedShuffle(50, 5, 3),
    Deterministic(50, 3),
    RandomParticipation(0.2, 0.1, 100, 300),
    RandomParticipation(0.2, 0.1, 100, 300, revealed=True),
)
CLIPPINGS = (Individual(), Batch(), Mixed(groups=4))
RELATIONS = ("add-remove", "zero-out", "replace")
WHO = ((1, "A0"), (3, "A0"), (2, "A1"))
FIELDS = (
    "mechanism",
    "group",
    "adversary",
    "lower",
    "upper",
    "delta_lower",
    "delta_upper",
    "refused",
)


def rows() -> Iterator[dict[str, str]]:
    """One row per question."""
    for sampler, clipping, relation, (group, adversary) in itertools.product(
        SAMPLERS, CLIPPINGS, RELATIONS, WHO
    ):
        run = Mechanism(sampler, 1.5, clipping, relation)
        row = dict.fromkeys(FIELDS, "") | {
            "mechanism": repr(run),
            "group": str(group),
            "adversary": adversary,
        }
        try:
            guarantee = run.guarantee(group, adversary=adversary)
            epsilon, delta = guarantee.epsilon(1e-5), guarantee.delta(1.0)
        except ValueError as refusal:
            row["refused"] = str(refusal)
        else:
            sides = (epsilon.lower, epsilon.upper, delta.lower, delta.upper)
            row |= dict(zip(FIELDS[3:7], map(repr, sides), strict=True))
        yield row


def write() -> None:
    """Write the table."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, FIELDS)
        table.writeheader()
        table.writerows(rows())


def same(before: str, after: str) -> bool:
    """Whether two entries say the same: in words, or as numbers to eleven digits."""
    try:
        return math.isclose(float(before), float(after), rel_tol=1e-11)
    except ValueError:
        return before == after


def compare() -> int:
    """Print what differs from the table; the number of rows that do."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        known = {
            (row["mechanism"], row["group"], row["adversary"]): row for row in csv.DictReader(file)
        }
    equal = different = 0
    for row in rows():
        before = known.get((row["mechanism"], row["group"], row["adversary"]), {})
        changed = {
            name: (before.get(name), row[name])
            for name in FIELDS[3:]
            if not same(before.get(name, ""), row[name])
        }
        if not changed:
            equal += 1
            continue
        different += 1
        print(row["mechanism"], row["group"], row["adversary"], changed)
    print(f"{equal} equal, {different} different")
    return different


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        write()
    elif sys.argv[1:] == ["compare"]:
        sys.exit(compare() > 0)
    else:
        sys.exit(__doc__)
