"""Nanoseconds a normal draw, against torch.randn, and seconds an epoch of sampling, against numpy's default generator.

    pip install torch==2.13.0 && pip install '.[train]'
    python benchmarks/noise.py [--repeats 31] [--sampling] [--json]

One process pinned to one core, one thread. Entrants take turns in every round; a time is the median
of the rounds in CPU seconds, a ratio the median of the ratios within a round, so that a busy
neighbour slows both sides of it alike. Every entrant writes into memory it already has. ``numpy``
is its default generator and ziggurat; the two entrants marked ``AES`` are other ways to make normal
draws of the same keystream, those marked ``pure`` what verax is without its compiled loops. 248 is
the number of parameters of the smallest model of ``benchmarks/training.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from sampling import draw, samplers
from scipy.special import ndtri

from verax.randomness import Source, normal
from verax.randomness.keystream import Keystream
from verax.randomness.loops import COMPILED, NumpyLoops

SIZES = (248, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SIGMA = 1.3
BLOCK = 2**14
Entrants = dict[str, Callable[[], object]]


def by_inverse(stream: Keystream, out: np.ndarray) -> None:
    """The inverse distribution function of 53-bit uniforms."""
    for start in range(0, len(out), BLOCK):
        part = out[start : start + BLOCK]
        uniform = ((stream.words(len(part)) >> 11) + 0.5) * 2.0**-53
        np.multiply(ndtri(uniform), SIGMA, out=part)


def by_box_muller(stream: Keystream, out: np.ndarray) -> None:
    """Two draws from two 53-bit uniforms."""
    for start in range(0, len(out), BLOCK):
        part = out[start : start + BLOCK]
        half = len(part) // 2
        radius, angle = ((stream.words(2 * half) >> 11) + 0.5).reshape(2, half) * 2.0**-53
        radius = np.sqrt(-2 * np.log(radius)) * SIGMA
        angle *= 2 * np.pi
        np.multiply(radius, np.cos(angle), out=part[:half])
        np.multiply(radius, np.sin(angle), out=part[half : 2 * half])


def pure() -> Source:
    """A source whose loops are in numpy."""
    source = Source.system()
    with patch.object(normal, "fastest_loops", NumpyLoops):
        source.gaussian(np.zeros(1), SIGMA)
    return source


def entrants(size: int) -> Entrants:
    source, slower, stream = Source.system(), pure(), Keystream(os.urandom(32))
    generator = np.random.default_rng()
    single, double = np.zeros(size, dtype=np.float32), np.zeros(size)
    torch_single, torch_double = torch.zeros(size), torch.zeros(size, dtype=torch.float64)
    fresh_single, fresh_double = torch.zeros(size), torch.zeros(size, dtype=torch.float64)
    return {
        "torch.randn float32": lambda: torch.randn(size, out=fresh_single),
        "torch.randn float64": lambda: torch.randn(size, dtype=torch.float64, out=fresh_double),
        "torch randn and add float32": lambda: torch_single.add_(
            torch.randn(size, out=fresh_single), alpha=SIGMA
        ),
        "torch randn and add float64": lambda: torch_double.add_(
            torch.randn(size, dtype=torch.float64, out=fresh_double), alpha=SIGMA
        ),
        "gaussian float32": lambda: source.gaussian(single, SIGMA),
        "gaussian float64": lambda: source.gaussian(double, SIGMA),
        "add_gaussian float32": lambda: source.add_gaussian(single, SIGMA),
        "add_gaussian float64": lambda: source.add_gaussian(double, SIGMA),
        "add_gaussian float32, pure": lambda: slower.add_gaussian(single, SIGMA),
        "add_gaussian float64, pure": lambda: slower.add_gaussian(double, SIGMA),
        "numpy float64": lambda: generator.standard_normal(out=double),
        "AES, inverse float64": lambda: by_inverse(stream, double),
        "AES, Box-Muller float64": lambda: by_box_muller(stream, double),
    }


def race(runs: Entrants, repeats: int, least: float = 2e-3) -> dict[str, list[float]]:
    """CPU seconds of one run of each entrant in each round, repeated within a round for at least ``least`` seconds."""
    often = {}
    for name, run in runs.items():
        run()
        start = time.process_time()
        run()
        often[name] = max(1, round(least / max(time.process_time() - start, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(often[name]):
                run()
            seconds[name].append((time.process_time() - start) / often[name])
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, peer: str) -> float:
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[peer], strict=True))


def noise(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for size in SIZES:
        seconds = race(entrants(size), max(5, repeats if size < SIZES[-1] else repeats // 4))
        rows += [
            {
                "size": size,
                "entrant": name,
                "nanoseconds": statistics.median(seconds[name]) / size * 1e9,
                "ratio_float32": ratio(seconds, name, "torch.randn float32"),
                "ratio_float64": ratio(seconds, name, "torch.randn float64"),
                "ratio_add_float32": ratio(seconds, name, "torch randn and add float32"),
            }
            for name in seconds
        ]
    return rows


def sampling(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for records in (1_000_000, 10_000_000):
        for sampler in samplers(records):
            pair: Entrants = {
                "verax": partial(draw, sampler, records, Source.system().generator()),
                "numpy": partial(draw, sampler, records, np.random.default_rng()),
            }
            seconds = race(pair, max(3, repeats // 8))
            rows.append(
                {
                    "records": records,
                    "sampler": repr(sampler),
                    "seconds": statistics.median(seconds["verax"]),
                    "ratio": ratio(seconds, "verax", "numpy"),
                }
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument(
        "--sampling", action="store_true", help="epochs of sampling instead of noise"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not COMPILED:
        print("verax was installed without a compiler: all its entrants are pure", file=sys.stderr)
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = sampling(options.repeats) if options.sampling else noise(options.repeats)
    if options.json:
        print(json.dumps(rows, indent=2))
    elif options.sampling:
        print("| records | sampler | s an epoch | / PCG64 |\n| ---: | :--- | ---: | ---: |")
        for row in rows:
            print(
                f"| {row['records']:,} | `{row['sampler']}` | {row['seconds']:.3f} | {row['ratio']:.2f} |"
            )
    else:
        print(
            "| size | entrant | ns a value | / randn float32 | / randn float64 | / randn and add float32 |"
        )
        print("| ---: | :--- | ---: | ---: | ---: | ---: |")
        for row in rows:
            ratios = " | ".join(
                f"{row[name]:.2f}"
                for name in ("ratio_float32", "ratio_float64", "ratio_add_float32")
            )
            print(f"| {row['size']:,} | {row['entrant']} | {row['nanoseconds']:.2f} | {ratios} |")


if __name__ == "__main__":
    main()
