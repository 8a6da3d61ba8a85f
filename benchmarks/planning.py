"""How fast plans are made: a frontier of 1,000 points, a single plan, and the same noises found one by one.

    python benchmarks/planning.py [--points 1000] [--subset 20] [--markdown]

One core, BLAS on one thread, CPU seconds. ``one by one`` calibrates each run on its own,
``dp-accounting`` does the same with that library where it is installed (pip install -r
benchmarks/requirements.txt), on a subset of the frontier that is spread over it. Every noise of the
frontier is checked at the end: the whole accountant confirms it, and the fraction by which it
exceeds the one by one noise is printed.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from verax import calibrate
from verax.planning import Plan, Planner, Target, frontier
from verax.planning.frontier import spread

TARGET = Target(records=60_000, epsilon=1.0, delta=1e-5)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def grid(points: int) -> tuple[list[int], list[int]]:
    """Batches 64 to 8192 and epochs 1 to 100 or more: at least so many points."""
    batches = spread(64, 8192, 20)
    count = -(-points // len(batches))
    return batches, sorted(
        {round(1 + 99 * (i / (count - 1)) ** 1.5) for i in range(count)} | set(range(1, 8))
    )


def peer(plan: Plan) -> float:
    """The noise by dp-accounting's calibration with its privacy-loss accountant."""
    import dp_accounting
    from dp_accounting import pld

    def event(noise: float) -> dp_accounting.DpEvent:
        once = dp_accounting.PoissonSampledDpEvent(
            plan.batch / TARGET.records, dp_accounting.GaussianDpEvent(noise)
        )
        return dp_accounting.SelfComposedDpEvent(once, plan.rounds)

    return dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=1e-3),
        event,
        TARGET.epsilon,
        TARGET.delta,
        dp_accounting.LowerEndpointAndGuess(0.0, 1.0),
        tol=1e-3,
    )


def table(rows: list[list[str]], markdown: bool) -> str:
    if markdown:
        head, *body = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--subset", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    batches, epochs = grid(options.points)
    Planner(TARGET).plan("poisson", 500, 3)  # imports and tables are made once
    alone, _ = timed(lambda: Planner(TARGET).plan("poisson", 600, 10))
    seconds, plans = timed(lambda: frontier(TARGET, batches, epochs))
    each = seconds / len(plans)
    subset = plans[:: max(len(plans) // options.subset, 1)]
    slow, noises = timed(
        lambda: [
            calibrate.noise_multiplier(p.sampler, TARGET.epsilon, TARGET.delta) for p in subset
        ]
    )
    excess = [p.noise_multiplier / noise - 1.0 for p, noise in zip(subset, noises, strict=True)]
    rows = [
        ["what", "points", "CPU s", "ms a point", "times the frontier's"],
        ["frontier", f"{len(plans)}", f"{seconds:.2f}", f"{1e3 * each:.1f}", "1"],
        ["single plan", "1", f"{alone:.3f}", f"{1e3 * alone:.1f}", f"{alone / each:.1f}"],
        [
            "one by one",
            f"{len(subset)}",
            f"{slow:.2f}",
            f"{1e3 * slow / len(subset):.1f}",
            _times(slow, subset, each),
        ],
    ]
    if find_spec("dp_accounting") is not None:
        other, theirs = timed(lambda: [peer(p) for p in subset])
        rows.append(
            [
                "dp-accounting",
                f"{len(subset)}",
                f"{other:.2f}",
                f"{1e3 * other / len(subset):.1f}",
                _times(other, subset, each),
            ]
        )
        gap = [noise / p.noise_multiplier - 1.0 for p, noise in zip(subset, theirs, strict=True)]
        print(f"dp-accounting's noise beyond the frontier's: {min(gap):+.2%} to {max(gap):+.2%}")
    print(table(rows, options.markdown))
    proved = sum(
        p.mechanism.guarantee().epsilon(TARGET.delta).upper <= TARGET.epsilon for p in plans
    )
    print(f"confirmed by the whole accountant: {proved} of {len(plans)}")
    print(
        f"noise beyond one by one: median {statistics.median(excess):+.3%}, most {max(excess):+.3%}"
    )
    for what, value, limit in (
        ("frontier of 1,000 points", 1e3 * each, 20.0),
        ("single plan", alone, 1.0),
    ):
        print(
            f"target {what} <= {limit:g} s: {value:.3g} s, {'met' if value <= limit else 'MISSED'}"
        )


def _times(seconds: float, subset: list[Plan], each: float) -> str:
    return f"{seconds / len(subset) / each:.1f}"


if __name__ == "__main__":
    main()
