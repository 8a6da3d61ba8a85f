"""Appendix B of 'optimal group privacy for DP-SGD': growth with steps, and sampling rates.

Also what its two families of figures share with figures 1 to 3
(:mod:`verax.papers.group_privacy.figures`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verax.mechanism import Mechanism
from verax.papers.comparison import Row, agreement
from verax.papers.files import figure_files, write_table
from verax.privacy import calibrate
from verax.privacy.guarantee import Bracket
from verax.reporting.figures import OKABE_ITO, matplotlib, panels
from verax.samplers import Poisson

DELTA = 1e-5
MANY_RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of appendix B.2, which says that there are ten and not which."""
B1_RATES, B1_NOISES = (0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0), (5.0, 10.0, 15.0, 20.0, 25.0)
B1_STEPS, B1_GROUPS = (100, 250, 500, 1000, 1750, 2500), (1, 4, 16)
B2_STEPS = (50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 1000, 1500, 2000, 2500)
B2_GROUPS = (4, 16, 32)
ROUGH = 5e-3


def some_of(points: Sequence[Any], every: int) -> list[Any]:
    """Every so many points, the first and the last included."""
    return [points[i] for i in sorted({*range(0, len(points), every), len(points) - 1})]


def run_of(rate: float, steps: int, noise: float) -> Mechanism:
    """What every figure is about: Poisson batches and individual clipping."""
    return Mechanism(Poisson(rate, steps), noise)


def power(small: int, low: float, large: int, high: float) -> float:
    """The exponent of growth between two points.

    >>> power(2, 10.0, 8, 160.0)
    2.0
    """
    return math.log(high / low) / math.log(large / small)


def powers_of_two(axes: Any) -> None:
    """Group sizes along a logarithmic axis, in plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib().ticker.FuncFormatter(lambda x, _: f"{x:g}"))


def noise_for_one(rate: float, steps: int, rtol: float = ROUGH, start: float = 0.0) -> float:
    """The noise at which one record has epsilon 1 at delta 1e-5, by secants from ``start``."""

    def excess(log_noise: float) -> float:
        found = run_of(rate, steps, math.exp(log_noise)).guarantee().epsilon(DELTA, rtol)
        return math.log(0.5 * (found.lower + found.upper))

    new = math.log(start or calibrate.noise_multiplier(Poisson(rate, steps), 1.0, DELTA))
    old, now = new + 0.01, excess(new)
    before = excess(old)
    for _ in range(20):
        if abs(now) <= rtol:
            break
        slope = (now - before) / (new - old)
        old, before = new, now
        new -= min(max(now / slope, -0.3), 0.3) if slope < 0.0 else -0.1
        now = excess(new)
    return math.exp(new)


def growth_with_steps(folder: Path, every: int) -> list[Row]:
    """B.1: epsilon against the number of steps, in 35 settings."""
    steps, rates, noises = (
        some_of(B1_STEPS, min(every, 2)),
        some_of(B1_RATES, every),
        some_of(B1_NOISES, every),
    )
    found = {
        (rate, noise, size): [
            run_of(rate, t, noise).guarantee(size).epsilon(DELTA, ROUGH) for t in steps
        ]
        for rate in rates
        for noise in noises
        for size in B1_GROUPS
    }
    write_table(
        folder / "figure-b1.csv",
        [
            {
                "rate": rate,
                "noise_multiplier": noise,
                "group": size,
                "steps": count,
                "epsilon_lower": bracket.lower,
                "epsilon_upper": bracket.upper,
            }
            for (rate, noise, size), some in found.items()
            for count, bracket in zip(steps, some, strict=True)
        ],
    )
    with panels(
        len(rates),
        len(noises),
        2.6 * len(noises),
        1.9 * len(rates),
        *figure_files(folder, "figure-b1"),
    ) as grid:
        for line, rate in zip(grid, rates, strict=True):
            for axes, noise in zip(line, noises, strict=True):
                curves = {size: [b.upper for b in found[rate, noise, size]] for size in B1_GROUPS}
                _panel(axes, steps, curves, f"noise {noise:g}, rate {rate:g}")
        _words(grid, "steps")
    slower = [slows(steps, some) for some in found.values()]
    powers = [power(steps[0], some[0].upper, steps[-1], some[-1].lower) for some in found.values()]
    proved, against = slower.count(1), slower.count(-1)
    return [
        Row(
            "appendix B.1",
            "growth with steps slows down",
            "in general",
            f"proved in {proved} of {len(slower)} cases, against it {against}",
            agreement(proved > against == 0),
            f"epsilon grows as steps to a power of {min(powers):.2f} to {max(powers):.2f}, nearest "
            "to 1 where it is in the hundreds",
        )
    ]


def _panel(
    axes: Any, x: Sequence[float], curves: Mapping[int, Sequence[float]], title: str
) -> None:
    for (size, values), colour in zip(curves.items(), ("sky", "blue", "black"), strict=True):
        axes.plot(
            x, values, color=OKABE_ITO[colour], marker=".", label=f"{size} record{'s' * (size > 1)}"
        )
    axes.set_yscale("log")
    every = [value for values in curves.values() for value in values]
    if max(every) < 100.0 * min(every):
        axes.yaxis.set_major_locator(matplotlib().ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(matplotlib().ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(matplotlib().ticker.NullFormatter())
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)


def _words(grid: Any, along: str) -> None:
    """Axis names at the edges and one legend above all panels."""
    for line in grid:
        line[0].set_ylabel("epsilon", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel(along, fontsize=8)
    lines, labels = grid[0][0].get_legend_handles_labels()
    title = f"epsilon at delta = {DELTA:g}"
    grid[0][0].figure.legend(
        lines, labels, loc="outside upper right", ncols=3, frameon=False, title=title
    )


def slows(steps: Sequence[int], some: Sequence[Bracket]) -> int:
    """1 if the second half of a curve is proved flatter than the first, -1 if steeper, else 0.

    >>> flat, steep = Bracket(1.0, 1.1), Bracket(5.0, 5.1)
    >>> (
    ...     slows([0, 1, 2], [Bracket(0.0, 0.0), steep, Bracket(6.0, 6.1)]),
    ...     slows([0, 1, 2], [flat, flat, steep]),
    ... )
    (1, -1)
    """
    middle = len(some) // 2

    def slope(start: int, end: int) -> tuple[float, float]:
        span = steps[end] - steps[start]
        return (some[end].lower - some[start].upper) / span, (
            some[end].upper - some[start].lower
        ) / span

    first, second = slope(0, middle), slope(middle, len(some) - 1)
    return 1 if first[0] > second[1] else -1 if first[1] < second[0] else 0


def effect_of_the_rate(folder: Path, every: int) -> list[Row]:
    """B.2: epsilon of groups against the sampling rate, where one record has epsilon 1."""
    steps, rates = some_of(B2_STEPS, every), some_of(MANY_RATES, every)
    found: dict[tuple[int, float], tuple[float, dict[int, Bracket]]] = {}
    for rate in rates:
        noise, before = 0.0, 1
        for count in steps:
            guess = noise * (count / before) ** (0.5 if rate >= 0.05 else 0.1)
            noise, before = noise_for_one(rate, count, 2e-3, guess), count
            run = run_of(rate, count, noise)
            found[count, rate] = (
                noise,
                {size: run.guarantee(size).epsilon(DELTA, ROUGH) for size in B2_GROUPS},
            )
    write_table(
        folder / "figure-b2.csv",
        [
            {
                "steps": count,
                "rate": rate,
                "noise_multiplier": noise,
                "group": size,
                "epsilon_lower": bracket.lower,
                "epsilon_upper": bracket.upper,
            }
            for (count, rate), (noise, some) in sorted(found.items())
            for size, bracket in some.items()
        ],
    )
    columns = min(5, len(steps))
    height = math.ceil(len(steps) / columns)
    with panels(
        height, columns, 2.7 * columns, 2.3 * height, *figure_files(folder, "figure-b2")
    ) as grid:
        flat = [axes for line in grid for axes in line]
        for axes, count in zip(flat, steps, strict=False):
            curves = {
                size: [found[count, rate][1][size].upper for rate in rates] for size in B2_GROUPS
            }
            _panel(axes, rates, curves, f"{count} steps")
            axes.set_xscale("log")
        for axes in flat[len(steps) :]:
            axes.set_axis_off()
        _words(grid, "sampling rate")
    return _claims(steps, rates, found)


def _claims(
    steps: Sequence[int],
    rates: Sequence[float],
    found: Mapping[tuple[int, float], tuple[float, Mapping[int, Bracket]]],
) -> list[Row]:
    size, least, most = B2_GROUPS[-1], min(rates), max(rates)
    gains = [found[t, most][1][size].lower / found[t, least][1][size].upper for t in steps]
    falls = all(
        later < earlier * (1.0 + 2.0 * ROUGH) for earlier, later in itertools.pairwise(gains)
    )
    return [
        Row(
            "appendix B.2",
            f"epsilon of {size} records, rate {most:g} over {least:g}",
            "larger effect at few steps",
            f"{gains[0]:.3g} at {steps[0]} to {gains[-1]:.3g} at {steps[-1]} steps",
            agreement(falls and gains[0] > gains[-1]),
            f"rates of {_plateau(steps[-1], rates, found, size):g} and more are within 2 % of each "
            f"other at {steps[-1]} steps, {_plateau(steps[0], rates, found, size):g} and more at "
            f"{steps[0]}",
        )
    ]


def _plateau(
    count: int, rates: Iterable[float], found: Mapping[tuple[int, float], Any], size: int
) -> float:
    """The smallest rate from which on epsilon stays within 2 % of the full batch's."""
    full = found[count, max(rates)][1][size].upper
    near = 1.0
    for rate in sorted(rates, reverse=True):
        if abs(found[count, rate][1][size].upper / full - 1.0) > 0.02:
            break
        near = rate
    return near
