"""verax's accountant beside its peers: one run, one core, tables of values, times and ratios.

    pip install torch==2.13.0 && pip install -r benchmarks/requirements.txt
    python benchmarks/accounting.py [--only A,D] [--quick] [--slow] [--markdown]

How it is measured. The process and its children are pinned to one core and BLAS to one thread.
Times are CPU seconds (``time.process_time``), equal to wall time on an idle core and little moved
by neighbours on a busy one. Entrants take turns; every repeat builds its objects afresh and asks a
question that differs from the last in the twelfth digit, so no cache can answer it. verax's time is
the median of its repeats, a peer's the minimum of its own, which favours the peer. Imports are
outside the clock, except in section F.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import peers
from peers import Case, Phase

Ask = Callable[[int], Any]

NINE = [
    (Case(1.0, 0.01, 1000, 1e-5), "1.82824"),
    (Case(0.8, 0.001, 100000, 1e-6), "2.91448"),
    (Case(0.4, 1e-5, 100000, 1e-6), "2.99804"),
    (Case(0.5, 1e-4, 10000, 1e-6), "1.95322"),
    (Case(2.0, 0.1, 10000, 1e-6), "38.6812"),
    (Case(5.0, 0.01, 1000000, 1e-7), "12.05537"),
    (Case(0.7, 0.001, 1000, 1e-5), "0.608949"),
    (Case(1.0, 1.0, 100, 1e-6), "96.7173"),
    (Case(10.0, 0.5, 5000, 1e-8), "25.57616"),
]
TINY = [(2.0, "1.47907e-11"), (3.0, "3.0175e-14"), (4.0, "4.4558e-17"), (6.0, "1.9694e-23")]
PRV_TIMEOUT = 60.0


@dataclass(frozen=True)
class Options:
    """How much to run."""

    quick: bool = False
    slow: bool = False

    def repeats(self, full: int) -> int:
        """The number of repeats: one when quick."""
        return 1 if self.quick else full


@dataclass
class Table:
    """Rows of text under a title, with the notes that belong to them."""

    title: str
    header: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self, markdown: bool) -> str:
        """The table for a terminal, or as markdown."""
        widths = [
            max(len(row[i]) for row in [list(self.header), *self.rows])
            for i in range(len(self.header))
        ]
        if markdown:
            lines = [
                f"### {self.title}",
                "",
                _markdown_row(self.header),
                _markdown_row(["---:"] * len(widths)),
            ]
            lines += [_markdown_row(row) for row in self.rows]
            return "\n".join([*lines, "", *(f"- {note}" for note in self.notes), ""])
        lines = [
            self.title,
            "  ".join(name.rjust(w) for name, w in zip(self.header, widths, strict=True)),
        ]
        lines.append("  ".join("-" * w for w in widths))
        lines += [
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))
            for row in self.rows
        ]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes), ""])

    def target(self, name: str, value: float | None, limit: float, *, at_least: bool) -> None:
        """Note a target and whether it is met."""
        sign = ">=" if at_least else "<="
        if value is None or math.isnan(value):
            verdict = "not measured"
        else:
            met = value >= limit if at_least else value <= limit
            verdict = f"{value:.4g}, {'met' if met else 'MISSED'}"
        self.notes.append(f"target {name} {sign} {limit:g}: {verdict}")


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


@dataclass
class Run:
    """One entrant's answer to one question; ``error`` says why there is none."""

    value: Any = None
    times: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def fastest(self) -> float | None:
        """Least CPU seconds."""
        return min(self.times) if self.times else None

    @property
    def median(self) -> float | None:
        """Median CPU seconds."""
        return statistics.median(self.times) if self.times else None


def race(entrants: dict[str, tuple[Ask, int]]) -> dict[str, Run]:
    """Let the entrants take turns; each has a question, given the number of the repeat, and how often to ask it."""
    runs = {name: Run() for name in entrants}
    for turn in range(max(repeats for _, repeats in entrants.values())):
        for name, (ask, repeats) in entrants.items():
            run = runs[name]
            if turn >= repeats or run.error:
                continue
            try:
                started = time.process_time()
                value = ask(turn)
                seconds = time.process_time() - started
            except Exception as failure:  # noqa: BLE001  (an entrant's crash is a cell of the table, not the end)
                run.error, run.times = f"{type(failure).__name__}: {failure}", []
                continue
            run.times.append(seconds)
            if turn == 0:
                run.value = value
    return runs


def nudged(value: float, turn: int) -> float:
    """The same number but for its twelfth digit."""
    return value * (1 + turn * 1e-12)


def number(value: float | None, digits: int = 6) -> str:
    """A number for a cell."""
    return "-" if value is None else f"{value:.{digits}g}"


def milliseconds(seconds: float | None) -> str:
    """Seconds, shown as milliseconds."""
    return "-" if seconds is None else f"{1000 * seconds:.3g}"


def ratio(slow: float | None, fast: float | None) -> float | None:
    """How many times faster, where both are known."""
    return None if slow is None or fast is None or fast <= 0 else slow / fast


def width(bracket: Any) -> float | None:
    """Width of a bracket in percent of its upper side."""
    if bracket is None:
        return None
    return 100 * (bracket.upper - bracket.lower) / bracket.upper if bracket.upper > 0 else 0.0


def sides(bracket: Any, digits: int = 7) -> list[str]:
    """Lower and upper side as cells."""
    return (
        ["-", "-"]
        if bracket is None
        else [number(bracket.lower, digits), number(bracket.upper, digits)]
    )


def rounding(truth: str) -> float:
    """Half a unit in the last printed digit: what the reference value itself does not say."""
    exponent = Decimal(truth).as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


def holds(bracket: Any, truth: str) -> bool:
    """Whether the bracket can contain the reference value."""
    return bool(
        bracket.lower <= float(truth) + rounding(truth)
        and bracket.upper >= float(truth) - rounding(truth)
    )


def verax_mechanism(noise: float, rate: float, steps: int) -> Any:
    """The Poisson run, described afresh."""
    from verax import Mechanism, Poisson

    return Mechanism(Poisson(rate=rate, steps=steps), noise_multiplier=noise)


def complaints(table: Table, runs: dict[str, Run], where: str) -> None:
    """Note which entrants failed, where first, and how."""
    for name, run in runs.items():
        if run.error and not any(run.error in note for note in table.notes):
            table.notes.append(f"{name} failed, first at {where}: {run.error}")


def nine_cases(options: Options) -> list[Table]:
    """Section A: epsilon in nine settings, two sides and their time."""
    values = Table(
        "A. Nine cases: epsilon",
        [
            "noise",
            "rate",
            "steps",
            "delta",
            "truth",
            "verax lower",
            "verax upper",
            "width %",
            "dp PLD upper",
            "dp PLD lower",
            "prv lower",
            "prv upper",
            "dp RDP",
            "Opacus RDP",
        ],
    )
    times = Table(
        "A. Nine cases: time",
        [
            "noise",
            "rate",
            "steps",
            "verax ms",
            "first ms",
            "dp PLD s",
            "dp lower s",
            "prv s",
            "prv MB",
            "dp RDP ms",
            "Opacus ms",
            "dp PLD / verax",
            "prv / verax",
        ],
    )
    ratios: list[float] = []
    widths: list[float] = []
    race({"warm": (lambda _: verax_mechanism(1.3, 0.02, 50).guarantee().epsilon(delta=1e-4), 1)})
    for case, truth in NINE:
        runs = _nine_race(case, options)
        prv = (
            None
            if options.quick
            else _prv_apart(values, [Phase(*case[:3])], case.delta, 0.01, PRV_TIMEOUT)
        )
        ours, dp = runs["verax"], runs["dp PLD"]
        speed, tightness = ratio(dp.fastest, ours.median), width(ours.value)
        ratios += [] if speed is None else [speed]
        widths += [] if tightness is None else [tightness]
        setting = [number(case.noise), number(case.rate), str(case.steps)]
        prv_sides = [number(prv.value[0]), number(prv.value[2])] if prv else ["-", "-"]
        values.rows.append(
            [
                *setting,
                number(case.delta),
                truth,
                *sides(ours.value),
                number(tightness, 2),
                number(dp.value, 7),
                number(runs["dp lower"].value, 7),
                *prv_sides,
                number(runs["dp RDP"].value, 5),
                number(runs["Opacus RDP"].value, 5),
            ]
        )
        times.rows.append(
            [
                *setting,
                milliseconds(ours.median),
                milliseconds(ours.times[0] if ours.times else None),
                number(dp.fastest, 3),
                number(runs["dp lower"].fastest, 3),
                number(prv.seconds if prv else None, 3),
                f"{prv.megabytes:.0f}" if prv else "-",
                milliseconds(runs["dp RDP"].fastest),
                milliseconds(runs["Opacus RDP"].fastest),
                number(speed, 3),
                number(ratio(prv.seconds if prv else None, ours.median), 3),
            ]
        )
        complaints(values, runs, f"{case}")
        if ours.value is not None and not holds(ours.value, truth):
            values.notes.append(f"WRONG: verax's bracket misses the reference value at {case}")
    complete = len(ratios) == len(NINE)
    values.notes.append(
        f"prv-accountant at error 0.01, '-' where it took over {PRV_TIMEOUT:.0f} s or was skipped"
    )
    values.target(
        "widest bracket, %", max(widths) if len(widths) == len(NINE) else None, 0.1, at_least=False
    )
    times.notes.append(
        "'first' is the first time the case is asked; verax's time is for both sides together"
    )
    times.target(
        "median dp PLD / verax", statistics.median(ratios) if complete else None, 20, at_least=True
    )
    times.target("worst dp PLD / verax", min(ratios) if complete else None, 5, at_least=True)
    _note_memory(times)
    return [values, times]


def _nine_race(case: Case, options: Options) -> dict[str, Run]:
    def at(turn: int) -> Case:
        return case._replace(noise=nudged(case.noise, turn))

    def ours(turn: int) -> Any:
        return verax_mechanism(*at(turn)[:3]).guarantee().epsilon(delta=case.delta)

    return race(
        {
            "verax": (ours, options.repeats(7)),
            "dp PLD": (lambda turn: peers.dp_pld(at(turn)), options.repeats(3)),
            "dp lower": (lambda turn: peers.dp_pld_optimistic(at(turn)), 1),
            "dp RDP": (lambda turn: peers.dp_rdp(at(turn)), options.repeats(3)),
            "Opacus RDP": (lambda turn: peers.opacus_rdp(at(turn)), options.repeats(3)),
        }
    )


def _prv_apart(
    table: Table, phases: Sequence[Phase], delta: float, error: float, timeout: float
) -> peers.Measured | None:
    try:
        return peers.run_apart("prv", phases, delta, error, timeout=timeout)
    except RuntimeError as failure:
        table.notes.append(f"prv-accountant failed at {phases[0]}: {failure}")
        return None


def _note_memory(table: Table) -> None:
    try:
        measured = peers.run_apart("verax_cases", [case for case, _ in NINE], timeout=600)
    except RuntimeError as failure:
        table.notes.append(f"peak memory of verax not measured: {failure}")
        return
    megabytes = None if measured is None else measured.megabytes
    table.target(
        "peak memory of a process running verax on all nine, MB", megabytes, 300, at_least=False
    )


def calibration(options: Options) -> list[Table]:
    """Section B: the least noise for epsilon 1."""
    rate, steps, epsilon, delta = 0.01, 1000, 1.0, 1e-5

    def ours(turn: int) -> float:
        import verax

        sampler = verax.Poisson(rate=rate, steps=steps)
        return float(
            verax.calibrate.noise_multiplier(sampler, epsilon=nudged(epsilon, turn), delta=delta)
        )

    runs = race(
        {
            "verax": (ours, options.repeats(7)),
            "dp-accounting, default search": (
                lambda turn: peers.dp_calibrate(rate, steps, nudged(epsilon, turn), delta),
                options.repeats(2),
            ),
            "dp-accounting, told 1 to 2": (
                lambda turn: peers.dp_calibrate(
                    rate, steps, nudged(epsilon, turn), delta, (1.0, 2.0)
                ),
                options.repeats(2),
            ),
        }
    )
    table = Table(
        "B. Calibration: least noise for epsilon 1, delta 1e-5, rate .01, 1000 steps",
        ["accountant", "noise multiplier", "verax epsilon there", "s", "ratio"],
    )
    mine = runs["verax"].median
    for name, run in runs.items():
        seconds = mine if name == "verax" else run.fastest
        table.rows.append(
            [
                name,
                number(run.value, 8),
                _epsilon_at(run.value, rate, steps, delta),
                number(seconds, 3),
                number(ratio(seconds, mine), 3),
            ]
        )
    complaints(table, runs, "calibration")
    best = ratio(runs["dp-accounting, told 1 to 2"].fastest, mine)
    default = ratio(runs["dp-accounting, default search"].fastest, mine)
    table.target("dp-accounting default / verax", default, 20, at_least=True)
    table.target("dp-accounting told the answer's range / verax", best, 20, at_least=True)
    return [table]


def _epsilon_at(noise: float | None, rate: float, steps: int, delta: float) -> str:
    from verax.privacy.guarantee import format_bound
    from verax.privacy.pld.composition import LOWER, UPPER

    if noise is None:
        return "-"
    answer = race(
        {
            "verax": (
                lambda _: verax_mechanism(noise, rate, steps).guarantee().epsilon(delta=delta),
                1,
            )
        }
    )
    bracket = answer["verax"].value
    return (
        "-"
        if bracket is None
        else f"{format_bound(bracket.lower, LOWER, 7)} to {format_bound(bracket.upper, UPPER, 7)}"
    )


def different_rounds(options: Options) -> list[Table]:
    """Section C: phases that all differ."""
    import numpy as np

    count, delta = (20 if options.quick else 100), 1e-6
    rng = np.random.default_rng(0)
    noises = rng.uniform(0.8, 2.0, 100)[:count]
    rates = np.exp(rng.uniform(math.log(0.001), math.log(0.02), 100))[:count]
    phases = [
        Phase(float(noise), float(rate), 100) for noise, rate in zip(noises, rates, strict=True)
    ]

    def ours(turn: int) -> Any:
        first, *rest = [verax_mechanism(nudged(p.noise, turn), p.rate, p.steps) for p in phases]
        return sum(rest, first).guarantee().epsilon(delta=delta)

    runs = race(
        {
            "verax": (ours, options.repeats(5)),
            "dp-accounting PLD": (lambda _: peers.dp_phases(phases, delta), 1),
        }
    )
    table = Table(
        f"C. {count} different phases of 100 rounds each (noise .8 to 2, rate .001 to .02), delta 1e-6",
        ["accountant", "lower", "upper", "width %", "s", "ratio"],
    )
    mine, bracket = runs["verax"].median, runs["verax"].value
    table.rows.append(["verax", *sides(bracket), number(width(bracket), 2), number(mine, 3), "1"])
    dp = runs["dp-accounting PLD"]
    slower = {"dp-accounting PLD": ratio(dp.fastest, mine)}
    table.rows.append(
        [
            "dp-accounting PLD",
            "-",
            number(dp.value, 7),
            "-",
            number(dp.fastest, 3),
            number(ratio(dp.fastest, mine), 3),
        ]
    )
    for error in [0.1, 0.01] if options.slow else [0.1]:
        name = f"prv-accountant, error {error:g}"
        prv = _prv_apart(table, phases, delta, error, 3600)
        slower[name] = ratio(prv.seconds if prv else None, mine)
        if prv:
            low, _, high = prv.value
            gap = number(100 * (high - low) / high, 2)
            table.rows.append(
                [
                    name,
                    number(low, 7),
                    number(high, 7),
                    gap,
                    number(prv.seconds, 3),
                    number(slower[name], 3),
                ]
            )
    complaints(table, runs, "different rounds")
    for name, value in slower.items():
        table.target(f"{name} / verax", value, 50, at_least=True)
    return [table]


def groups(options: Options) -> list[Table]:
    """Section D: group privacy, computed and not extrapolated."""
    table = Table(
        "D. Groups of k records, noise 1, rate .01",
        [
            "steps",
            "delta",
            "k",
            "verax lower",
            "verax upper",
            "width %",
            "verax ms",
            "dp mixture eps",
            "dp mixture s",
            "ratio",
            "dp plain s",
        ],
    )
    ratios: list[float | None] = []
    slowest: list[float | None] = []
    for steps, delta, sizes in [(10, 1e-3, (1, 2, 4, 8, 16, 32)), (1000, 1e-5, (1, 4, 16, 64))]:
        for size in sizes:
            case = Case(1.0, 0.01, steps, delta)
            runs = _group_race(case, size, options)
            ours, mixture, plain = (
                runs.get(name, Run()) for name in ("verax", "dp mixture", "dp plain")
            )
            speed = ratio(mixture.fastest, ours.median)
            ratios += [speed] if "dp mixture" in runs else []
            slowest.append(ours.median)
            table.rows.append(
                [
                    str(steps),
                    number(delta),
                    str(size),
                    *sides(ours.value),
                    number(width(ours.value), 2),
                    milliseconds(ours.median),
                    number(mixture.value, 7),
                    number(mixture.fastest, 3),
                    number(speed, 3),
                    number(plain.fastest, 3),
                ]
            )
            complaints(table, runs, f"steps {steps}, k {size}")
    table.notes.append(
        "dp mixture: from_mixture_gaussian_mechanism with Binomial(k, rate) sensitivities, default grid"
    )
    table.notes.append(
        "dp plain: its accountant for one record, the cheaper way to the same number at k = 1"
    )
    known = [r for r in ratios if r is not None]
    table.target(
        "least dp mixture / verax",
        min(known) if len(known) == len(ratios) else None,
        100,
        at_least=True,
    )
    cells = [s for s in slowest if s is not None]
    table.target(
        "slowest verax cell, s",
        max(cells) if len(cells) == len(slowest) else None,
        1,
        at_least=False,
    )
    return [table]


def _group_race(case: Case, size: int, options: Options) -> dict[str, Run]:
    def at(turn: int) -> Case:
        return case._replace(noise=nudged(case.noise, turn))

    def ours(turn: int) -> Any:
        return verax_mechanism(*at(turn)[:3]).guarantee(group=size).epsilon(delta=case.delta)

    entrants: dict[str, tuple[Ask, int]] = {"verax": (ours, options.repeats(5))}
    if size <= (1 if options.quick else 2):
        entrants["dp mixture"] = (lambda turn: peers.dp_group(at(turn), size), 1)
    if size == 1:
        entrants["dp plain"] = (lambda turn: peers.dp_pld(at(turn)), options.repeats(3))
    return race(entrants)


def tiny_deltas(options: Options) -> list[Table]:
    """Section E: where double precision runs out without tilting."""
    noise, rate, steps = 0.8, 0.001, 1000
    table = Table(
        "E. Tiny deltas: noise .8, rate .001, 1000 steps",
        [
            "epsilon",
            "truth",
            "verax lower",
            "verax upper",
            "width %",
            "verax ms",
            "dp upper",
            "dp lower",
            "dp verdict",
        ],
    )
    for epsilon, truth in TINY:
        runs = _tiny_race(noise, rate, steps, epsilon, options)
        ours, high, low = runs["verax"], runs["dp upper"].value, runs["dp lower"].value
        exact, slack = float(truth), rounding(truth)
        verdict = [
            "upper below truth" if high is not None and high < exact - slack else "",
            "lower above truth" if low is not None and low > exact + slack else "",
        ]
        table.rows.append(
            [
                number(epsilon),
                truth,
                *sides(ours.value, 6),
                number(width(ours.value), 2),
                milliseconds(ours.median),
                number(high, 5),
                number(low, 5),
                "; ".join(filter(None, verdict)) or "sound",
            ]
        )
        complaints(table, runs, f"epsilon {epsilon}")
        if ours.value is not None and not holds(ours.value, truth):
            table.notes.append(
                f"WRONG: verax's bracket misses the reference value at epsilon {epsilon}"
            )
    return [table]


def _tiny_race(
    noise: float, rate: float, steps: int, epsilon: float, options: Options
) -> dict[str, Run]:
    def ours(turn: int) -> Any:
        return verax_mechanism(nudged(noise, turn), rate, steps).guarantee().delta(epsilon=epsilon)

    return race(
        {
            "verax": (ours, options.repeats(5)),
            "dp upper": (
                lambda _: peers.dp_delta(noise, rate, steps, epsilon, pessimistic=True),
                1,
            ),
            "dp lower": (
                lambda _: peers.dp_delta(noise, rate, steps, epsilon, pessimistic=False),
                1,
            ),
        }
    )


def import_time(options: Options) -> list[Table]:
    """Section F: what ``import`` costs in a fresh interpreter."""
    script = (
        "import sys, time; wall, cpu = time.perf_counter(), time.process_time(); import {0}; "
        "print(time.perf_counter() - wall, time.process_time() - cpu, 'torch' in sys.modules)"
    )
    table = Table(
        "F. Import in a fresh interpreter",
        ["module", "median wall s", "fastest wall s", "median CPU s", "loads torch"],
    )
    modules = ["verax", "numpy, scipy", "dp_accounting", "prv_accountant", "opacus"]
    walls: dict[str, list[float]] = {module: [] for module in modules}
    cpus: dict[str, list[float]] = {module: [] for module in modules}
    torch: dict[str, str] = {}
    for _ in range(3 if options.quick else 9):
        for module in modules:
            done = subprocess.run(
                [sys.executable, "-c", script.format(module)], capture_output=True, text=True
            )
            if done.returncode == 0:
                wall, cpu, loaded = done.stdout.split()[-3:]
                walls[module].append(float(wall))
                cpus[module].append(float(cpu))
                torch[module] = "yes" if loaded == "True" else "no"
    for module in modules:
        if walls[module]:
            seconds = [
                statistics.median(walls[module]),
                min(walls[module]),
                statistics.median(cpus[module]),
            ]
            table.rows.append([module, *(number(second, 3) for second in seconds), torch[module]])
    ours = walls["verax"]
    table.target(
        "import verax, median wall s",
        statistics.median(ours) if ours else None,
        0.4,
        at_least=False,
    )
    return [table]


SECTIONS: dict[str, Callable[[Options], list[Table]]] = {
    "A": nine_cases,
    "B": calibration,
    "C": different_rounds,
    "D": groups,
    "E": tiny_deltas,
    "F": import_time,
}


def machine(cores: int) -> str:
    """Processor, cores, load and versions, in one paragraph."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip() if named else model
    versions = [f"Python {platform.python_version()}"]
    for package in (
        "verax",
        "numpy",
        "scipy",
        "dp-accounting",
        "prv-accountant",
        "opacus",
        "torch",
    ):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(
                f"{package} from source" if package == "verax" else f"{package} missing"
            )
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    return f"{model}, 1 of {cores} cores, {load} at the start. {', '.join(versions)}."


def settle_down(core: int | None) -> int:
    """One thread, one core (where the system can pin), no warnings; answers how many cores there were."""
    for library in ("OMP", "MKL", "OPENBLAS"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if core is None else core})
    peers.quiet()
    return cores


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="verax's accountant beside its peers.")
    parser.add_argument(
        "--only",
        metavar="SECTION",
        default="".join(SECTIONS),
        help="sections to run, e.g. A or A,D",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one repeat each, 20 phases in C, no prv-accountant in A",
    )
    parser.add_argument(
        "--slow", action="store_true", help="C also with prv-accountant at error .01 (minutes)"
    )
    parser.add_argument("--markdown", action="store_true", help="tables as markdown")
    parser.add_argument(
        "--core", type=int, help="the core to run on (default: the last one allowed)"
    )
    chosen = parser.parse_args(argv)
    chosen.only = [letter for letter in chosen.only.upper() if letter not in ", "]
    unknown = sorted(set(chosen.only) - set(SECTIONS))
    if unknown:
        parser.error(f"--only takes letters of {''.join(SECTIONS)}, got {''.join(unknown)}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections and print each as soon as it is done."""
    chosen = arguments(argv)
    cores = settle_down(chosen.core)
    for module in (
        "verax",
        "dp_accounting.pld",
        "dp_accounting.rdp",
        "prv_accountant",
        "opacus.accountants",
    ):
        try:
            importlib.import_module(module)
        except ImportError as missing:
            print(f"{module} cannot be imported, its cells stay empty: {missing}", file=sys.stderr)
    peers.quiet()  # again: importing the peers switches their warnings back on
    print(machine(cores), end="\n\n", flush=True)
    options = Options(quick=chosen.quick, slow=chosen.slow)
    for letter in chosen.only:
        for table in SECTIONS[letter](options):
            print(table.text(chosen.markdown), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
