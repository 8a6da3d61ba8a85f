"""Seconds to draw every batch of one epoch, against Opacus's UniformWithReplacementSampler.

    python benchmarks/sampling.py [--records 10000000] [--json]

One thread, best of ``--repeats`` runs. Opacus draws one uniform per record per round, so its rounds
cost the same; a few are measured (``--opacus-rounds``) and scaled to the epoch, as the table says.
Without Opacus the table has no ratios. To install it: ``pip install torch==2.13.0`` and then ``pip
install opacus==1.6.0``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Poisson,
    RandomAllocation,
    Sampler,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)

INSTALL = "Opacus is not installed: pip install torch==2.13.0, then pip install opacus==1.6.0"


def samplers(records: int) -> list[Sampler]:
    """One epoch of each family, in expectation: 1000 rounds, and for Poisson also 100."""
    batch = max(1, records // 1000)
    return [
        Poisson(rate=1e-3, steps=1000),
        Poisson(rate=1e-2, steps=100),
        TruncatedPoisson(
            rate=1e-3, steps=1000, max_batch=batch + max(1, batch // 50), population=records
        ),
        BallsInBins(bins=1000),
        Shuffle(batches=1000),
        BufferedShuffle(batches=1000, buffer=10),
        RandomAllocation(times=1, steps=1000),
        RandomAllocation(times=4, steps=4000),
        WithoutReplacement(batch=batch, population=records, steps=1000),
        Deterministic(batches=1000),
    ]


def best(run: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs, in seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def draw(sampler: Sampler, records: int, rng: np.random.Generator) -> int:
    """Draw all batches and drop each, as a training loop would; returns how many records they held."""
    return sum(len(batch) for batch in sampler.draw(records, rng))


def opacus_round(records: int, rate: float, rounds: int, repeats: int) -> float | None:
    """Seconds of one Opacus round, averaged over ``rounds``; None if Opacus is not installed."""
    try:
        import torch
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    except ImportError:
        return None
    torch.set_num_threads(1)
    peer = UniformWithReplacementSampler(num_samples=records, sample_rate=rate, steps=rounds)
    return best(lambda: sum(len(batch) for batch in islice(peer, rounds)), repeats) / rounds


def measure(records: int, repeats: int, opacus_rounds: int) -> list[dict[str, object]]:
    """One row per sampler. The peer is Opacus at the same rate and number of rounds."""
    rng = np.random.default_rng()
    peers: dict[int, float | None] = {}
    rows = []
    for sampler in samplers(records):
        rounds = len(sampler)
        if rounds not in peers:
            rate = sampler.expected_batch(records) / records
            one = opacus_round(records, rate, min(opacus_rounds, rounds), repeats)
            peers[rounds] = None if one is None else one * rounds
        seconds = best(partial(draw, sampler, records, rng), repeats)
        peer = peers[rounds]
        rows.append(
            {
                "sampler": repr(sampler),
                "rounds": rounds,
                "seconds": seconds,
                "opacus_seconds": peer,
                "ratio": None if peer is None else peer / seconds,
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--opacus-rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = measure(options.records, options.repeats, options.opacus_rounds)
    if options.json:
        print(json.dumps({"records": options.records, "rows": rows}, indent=2))
        return
    print(f"One epoch of {options.records:,} records, one thread, best of {options.repeats}.")
    if rows[0]["ratio"] is None:
        print(INSTALL)
    else:
        print(
            f"Opacus: UniformWithReplacementSampler (Poisson), {options.opacus_rounds} rounds measured and scaled."
        )
        print(
            "Like for like for Poisson; for the other laws, Opacus's time for as many rounds of the same mean size."
        )
    print(f"{'seconds':>9} {'opacus s':>9} {'ratio':>7}  sampler")
    for row in rows:
        peer, ratio = (
            ("-", "-")
            if row["ratio"] is None
            else (f"{row['opacus_seconds']:.1f}", f"{row['ratio']:.0f}x")
        )
        print(f"{row['seconds']:9.3f} {peer:>9} {ratio:>7}  {row['sampler']}")


if __name__ == "__main__":
    main()
