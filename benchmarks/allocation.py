"""Balls-in-bins and random allocation beside the package PLD-accounting: one run, one core, values, widths and times.

    pip install -r benchmarks/requirements.txt
    python benchmarks/allocation.py [--slow]

CPU seconds of one process pinned to one core; the two take turns. Each question is asked once of
the peer, three times of verax (the median; its cache is emptied before each). ``--slow`` adds the
settings that take the peer minutes.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import statistics
import sys
import time

import PLD_accounting

from verax import Mechanism, RandomAllocation
from verax.privacy.guarantee import format_bound
from verax.privacy.pairs import largest_sum, one_of_many, some_of_many
from verax.privacy.pld.composition import LOWER, UPPER

SETTINGS = [  # noise, times, steps, epochs, delta
    (1.0, 1, 100, 1, 1e-6),
    (1.0, 1, 1000, 1, 1e-6),
    (0.5, 1, 1000, 1, 1e-6),
    (1.0, 1, 100, 10, 1e-5),
    (1.0, 10, 1000, 1, 1e-6),
]
SLOW = [(0.5, 1, 10_000, 1, 1e-6), (1.0, 1, 10_000, 1, 1e-6)]


def verax(noise: float, times: int, steps: int, epochs: int, delta: float) -> tuple[float, float]:
    """Both sides, from scratch."""
    for memory in (
        one_of_many.one_of_many_pairs,
        some_of_many.some_of_many_attack,
        largest_sum.largest_sum,
    ):
        memory.cache_clear()
    bracket = Mechanism(RandomAllocation(times, steps, epochs), noise).guarantee().epsilon(delta)
    return bracket.lower, bracket.upper


def peer(noise: float, times: int, steps: int, epochs: int, delta: float) -> tuple[float, float]:
    """The package's own interval at its default accuracy."""
    upper, lower = PLD_accounting.gaussian_allocation_epsilon_range(
        delta=delta, sigma=noise, num_steps=steps, num_selected=times, num_epochs=epochs
    )
    return lower, upper


def main() -> None:
    """Print the table."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(
        "| noise | rounds | epochs | delta | verax | width | s | PLD-accounting | width | s | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for setting in SETTINGS + (SLOW if "--slow" in sys.argv else []):
        noise, times, steps, epochs, delta = setting
        spent = []
        for _ in range(3):
            start = time.process_time()
            low, high = verax(*setting)
            spent.append(time.process_time() - start)
        start = time.process_time()
        low_peer, high_peer = peer(*setting)
        other = time.process_time() - start
        mine = statistics.median(spent)
        print(
            f"| {noise:g} | {times} of {steps} | {epochs} | {delta:g} | {format_bound(low, LOWER)} to {format_bound(high, UPPER)} "
            f"| {high / low - 1:.2%} | {mine:.2f} | {low_peer:.5f} to {high_peer:.5f} | {high_peer / low_peer - 1:.2%} "
            f"| {other:.1f} | {other / mine:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
