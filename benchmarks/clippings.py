"""Where batch and mixed clipping become cheaper than individual clipping, and a Markdown table of it.

    python benchmarks/clippings.py [--few]

For each noise, rate and number of steps: the epsilon of one record under both, the group sizes
between which the order is proved to change, and where it changes in the limit of large noise
(docs/clipping-and-groups.md).
"""

from __future__ import annotations

import argparse
import math
import time

from verax import Batch, Individual, Mechanism, Mixed, Poisson
from verax.privacy.group_uses import crossover
from verax.privacy.guarantee import format_bound as above
from verax.privacy.pld.composition import UPPER

SETTINGS = [
    (0.6, 0.01, 100),
    (1.0, 0.01, 100),
    (1.0, 0.01, 1000),
    (1.0, 0.01, 10_000),
    (2.0, 0.01, 1000),
    (5.0, 0.01, 1000),
    (50.0, 0.01, 1000),
    (1.0, 0.001, 1000),
    (5.0, 0.001, 1000),
    (1.0, 0.1, 100),
    (2.0, 0.1, 100),
    (5.0, 0.1, 100),
    (2.0, 0.5, 10),
]
DELTA, MOST, CLIP_GROUPS = 1e-5, 20_000, 4
COLUMNS = (
    "noise",
    "rate",
    "steps",
    "one record: individual",
    "batch",
    "batch dearer / cheaper",
    "k times rate",
    "epsilon there",
    "large noise",
    f"mixed, {CLIP_GROUPS} clip-groups: dearer / cheaper",
    "large noise",
)


def large_noise(rate: float, clip_groups: int = 1) -> int:
    """The first group with k q above 2 m (1 - (1 - q/m)^k): the means of the shifts are all that counts."""
    size = 1
    while size * rate <= -2.0 * clip_groups * math.expm1(size * math.log1p(-rate / clip_groups)):
        size += 1
    return size


def format_bound(where: tuple[int, int] | None) -> str:
    return "none found" if where is None else f"{where[0]} / {where[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--few", action="store_true", help="only the quick settings")
    few = parser.parse_args().few
    print("| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|")
    start = time.perf_counter()
    for noise, rate, steps in SETTINGS[-3:] if few else SETTINGS:
        clippings = (Individual(), Batch(), Mixed(groups=CLIP_GROUPS))
        one, batch, mixed = (
            Mechanism(Poisson(rate, steps), noise, clipping) for clipping in clippings
        )
        epsilons = [above(run.guarantee().epsilon(DELTA).upper, UPPER, 4) for run in (one, batch)]
        first, second = (crossover(one, run, DELTA, most=MOST) for run in (batch, mixed))
        there = above(batch.guarantee(first[1]).epsilon(DELTA).upper, UPPER, 3) if first else ""
        cells = [
            f"{noise:g}",
            f"{rate:g}",
            f"{steps}",
            *epsilons,
            format_bound(first),
            f"{first[1] * rate:.3g}" if first else "",
            there,
            f"{large_noise(rate)}",
            format_bound(second),
            f"{large_noise(rate, CLIP_GROUPS)}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nepsilon at delta {DELTA:g}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
