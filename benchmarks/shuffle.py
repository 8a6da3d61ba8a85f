"""What is proved of shuffled batches: epsilon from below and above, beside fixed batches.

    python benchmarks/shuffle.py --write    # prints the table of docs/shuffle.md, and writes its CSV

Individual clipping, zero-out, delta 1e-5. Seconds are of one core, for the whole row.
"""

import csv
import sys
import time
from pathlib import Path

from verax import Deterministic, Mechanism, Shuffle

DELTA = 1e-5
RUNS = [
    (noise, batches, size, epochs)
    for noise, batches, size in (
        (1.0, 1000, 1024),
        (1.0, 1000, 256),
        (1.5, 1000, 1024),
        (2.0, 1000, 1024),
        (2.0, 1000, 64),
    )
    for epochs in (1, 10)
]
FILE = Path(__file__).parents[1] / "docs" / "shuffle.csv"
HEADER = ["noise", "batches", "batch", "epochs", "at_least", "at_most", "fixed_batches"]


def row(noise, batches, size, epochs):
    run = Mechanism(Shuffle(batches, epochs, population=size * batches), noise)
    fixed = Mechanism(Deterministic(batches, epochs), noise).guarantee().epsilon(DELTA)
    found = run.guarantee().epsilon(DELTA)
    numbers = (f"{found.lower:.4f}", f"{found.upper + 5e-5:.4f}", f"{fixed.upper + 5e-5:.4f}")
    return [f"{noise:g}", batches, size, epochs, *numbers]


def main():
    rows = []
    for setting in RUNS:
        start = time.process_time()
        rows.append(row(*setting))
        print(
            "| " + " | ".join(map(str, rows[-1])) + f" | {time.process_time() - start:.1f} s",
            flush=True,
        )
    if "--write" in sys.argv[1:]:
        with FILE.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
