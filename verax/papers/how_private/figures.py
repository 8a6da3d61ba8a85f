"""Figures 1 to 7: one epoch under three ways of drawing its batches, and the numbers of the text.

Three ways of drawing the batches of one epoch: fixed (D), Poisson (P), shuffled (S), under zero-out
neighbours. The paper has the closed form for D, upper bounds of a numerical accountant and of Rényi
moments for P, and for S the lower bound of one event, the largest batch sum. Here D and P are
proved brackets, the Rényi bound is the best over all real orders, S has the same event from below
and D from above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verax.mechanism import Mechanism
from verax.papers.comparison import (
    ERRATUM,
    TIGHTER,
    Progress,
    Row,
    agreement,
    between,
    quiet,
    verdict,
)
from verax.papers.files import figure_files, read_printed, write_rows, write_table
from verax.privacy.guarantee import Guarantee, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.privacy.renyi.accountant import Renyi
from verax.reporting.figures import OKABE_ITO, drawing
from verax.samplers import Deterministic, Poisson, Sampler, Shuffle

CURVES = ("deterministic", "poisson", "renyi", "shuffle")
LETTERS = {"deterministic": "D", "poisson": "P", "renyi": "P", "shuffle": "S"}
NAMED_RTOL, CURVE_RTOL = 1e-4, 5e-3  # of numbers, and of curves: a plotted line is wider than that


@dataclass(frozen=True)
class Setting:
    """One figure: epsilon against noise at ``delta``, or delta against epsilon at ``noise``."""

    number: int
    batches: int
    first: float
    last: float
    points: int
    delta: float | None = None
    noise: float | None = None

    @property
    def axis(self) -> str:
        """What runs along the figure."""
        return "noise" if self.noise is None else "epsilon"

    def grid(self, every: int = 1) -> list[float]:
        """The places where the curves are computed, each a short decimal, the last included."""
        step = (self.last - self.first) / (self.points - 1)
        chosen = {*range(0, self.points, every), self.points - 1}
        return [round(self.first + i * step, 9) for i in sorted(chosen)]

    def bracket(self, curve: str, x: float, rtol: float = NAMED_RTOL) -> tuple[float, float]:
        """Both bounds of the figure's quantity at ``x``; Rényi's has only an upper side."""
        noise = x if self.noise is None else self.noise
        if curve == "renyi":
            moments = Renyi.poisson(1.0 / self.batches, noise, self.batches)
            return 0.0, moments.epsilon(self.delta) if self.delta is not None else moments.delta(x)
        guarantee = _guarantee(curve, self.batches, noise)
        found = (
            guarantee.epsilon(self.delta, rtol)
            if self.delta is not None
            else guarantee.delta(x, rtol)
        )
        return found.lower, found.upper


@cache
def _guarantee(curve: str, batches: int, noise: float) -> Guarantee:
    samplers: dict[str, Sampler] = {
        "deterministic": Deterministic(batches),
        "poisson": Poisson(1.0 / batches, batches),
        "shuffle": Shuffle(batches),
    }
    return Mechanism(samplers[curve], noise, relation="zero-out").guarantee()


SETTINGS = (
    Setting(1, 100_000, 0.3, 1.0, 36, delta=1e-6),
    Setting(2, 10, 0.0, 20.0, 81, noise=0.3),
    Setting(3, 10_000, 0.0, 14.0, 57, noise=0.4),
    Setting(4, 10_000, 0.3, 1.0, 36, delta=1e-6),
    Setting(5, 1000, 0.3, 1.2, 46, delta=1e-5),
    Setting(6, 1000, 0.0, 4.0, 81, noise=0.8),
    Setting(7, 1000, 0.0, 4.0, 81, noise=1.0),
)
"""The text gives the parameters of each figure but not the ends of its axes; these show every
number it names.
"""


@dataclass(frozen=True)
class Claim:
    """A number of the text: on ``curve`` at ``x`` the figure's quantity is ``sense`` ``printed``.

    ``meant`` is where the number holds, if the paper names another place.
    """

    figure: int
    curve: str
    x: float
    sense: str
    printed: str
    remark: str = ""
    meant: float | None = None


CLAIMS = read_printed(Path(__file__).with_name("printed.csv"), Claim)


def reproduce(folder: Path, progress: Progress = quiet, every: int = 1) -> list[Row]:
    """Write figures 1 to 7 (CSV, PNG, SVG) and ``numbers.csv``; return what the text names."""
    rows: list[Row] = []
    _guarantee.cache_clear()  # a guarantee keeps what it has computed, which a later answer may use
    for setting in SETTINGS:
        with progress(f"figure {setting.number} of {len(SETTINGS)}"):
            grid = setting.grid(every)
            table = [_values(setting, x) for x in grid]
            name = f"figure-{setting.number}"
            write_table(folder / f"{name}.csv", table)
            claims = [claim for claim in CLAIMS if claim.figure == setting.number]
            draw(setting, table, claims, *figure_files(folder, name))
            rows += [judge(setting, claim) for claim in claims]
            rows += _statements(setting, table)
    write_rows(folder, rows)
    return rows


def _values(setting: Setting, x: float) -> dict[str, float]:
    """One point of every curve, by the names of the columns; ``x`` comes first."""
    (d_low, d_high), (p_low, p_high), (_, renyi), (s_low, s_high) = (
        setting.bracket(curve, x, CURVE_RTOL) for curve in CURVES
    )
    return {
        "noise_multiplier" if setting.axis == "noise" else "epsilon": x,
        "deterministic_lower": d_low,
        "deterministic_upper": d_high,
        "poisson_lower": p_low,
        "poisson_upper": p_high,
        "poisson_renyi_upper": renyi,
        "shuffle_lower": s_low,
        "shuffle_upper": s_high,
    }


def judge(setting: Setting, claim: Claim) -> Row:
    """The claim next to our number: lower with lower bound, upper with upper.

    >>> row = judge(SETTINGS[3], CLAIMS[9])
    >>> row.what, row.paper, row.here, row.verdict
    ('epsilon_S, noise 0.5', '>= 10.994', '>= 10.994', 'agrees')
    """
    name = ("epsilon" if setting.axis == "noise" else "delta") + f"_{LETTERS[claim.curve]}"
    what = f"{name}, noise {claim.x:g}" if setting.axis == "noise" else f"{name}({claim.x:g})"
    found, remark = (
        verdict(claim.printed, claim.sense, *setting.bracket(claim.curve, claim.x)),
        claim.remark,
    )
    if claim.meant is not None:
        found = ERRATUM
        there = _number(setting, claim, claim.meant)
        remark = (
            f"printed for {claim.x:g}, it is the number at {claim.meant:g} (here {there}); {remark}"
        )
    return Row(
        f"figure {claim.figure}",
        what + ", Rényi" * (claim.curve == "renyi"),
        f"{claim.sense} {claim.printed}",
        _number(setting, claim, claim.x),
        found,
        remark,
    )


def _number(setting: Setting, claim: Claim, x: float) -> str:
    low, high = setting.bracket(claim.curve, x)
    if claim.sense == "~":
        return between(low, high)
    bound = format_bound(low, LOWER) if claim.sense == ">=" else format_bound(high, UPPER)
    return f"{claim.sense} {bound}"


def _statements(setting: Setting, table: Sequence[Mapping[str, float]]) -> list[Row]:
    """What the text says of a figure in words."""
    where = f"figure {setting.number}"
    match setting.number:
        case 2:
            return [_crossing(where, table)]
        case 3:
            (low, _), (_, high) = setting.bracket("shuffle", 12.0), setting.bracket("poisson", 4.0)
            times = format_bound(low / high, LOWER, 2)
            return [
                Row(where, "delta_S(12) / delta_P(4)", "> 1", f">= {times}", agreement(low > high))
            ]
        case 6:
            exact, moments = setting.bracket("poisson", 4.0)[1], setting.bracket("renyi", 4.0)[1]
            remark = (
                "the paper suspects its accountant's numerics, rightly: delta_P(4) <= "
                f"{format_bound(exact, UPPER)}"
            )
            times = format_bound(exact / moments, UPPER, 2)
            return [Row(where, "delta_P(4) over Rényi's", "> 1", f"<= {times}", TIGHTER, remark)]
        case 7:
            one, four = (
                format_bound(setting.bracket("poisson", x)[1], UPPER, 3) for x in (1.0, 4.0)
            )
            remark = "numerics again, as the paper suspects: the true curve keeps falling"
            return [
                Row(
                    where,
                    "delta_P beyond epsilon 1",
                    "flattens",
                    f"{one} to {four}",
                    TIGHTER,
                    remark,
                )
            ]
    return []


def _crossing(where: str, table: Sequence[Mapping[str, float]]) -> Row:
    """Where Poisson overtakes fixed batches (theorem 4.2), and whether the grid shows it once."""
    below = [p["epsilon"] for p in table if p["poisson_upper"] < p["deterministic_lower"]]
    above = [p["epsilon"] for p in table if p["poisson_lower"] > p["deterministic_upper"]]
    last, first = max(below, default=math.nan), min(above, default=math.nan)
    once = last < first and len(below) + len(above) >= len(table) - 1
    remark = (
        "proved at every point of the grid, on either side; that it is once is the paper's "
        "conjecture 4.4"
    )
    return Row(
        where,
        "delta_P rises above delta_D",
        "once",
        f"in {last:g} to {first:g}",
        agreement(once),
        remark,
    )


_STYLES: dict[str, tuple[str, str, str]] = {
    "poisson": ("blue", "-", "Poisson: proved bracket"),
    "renyi": ("sky", "--", "Poisson: Rényi upper bound"),
    "shuffle": ("red", "-", "shuffled: proved lower bound"),
    "deterministic": ("black", ":", "fixed batches: exact"),
}
"""Colour, line and words, in the order of drawing: the dotted line goes over the others."""


def draw(
    setting: Setting, table: Sequence[Mapping[str, float]], claims: Sequence[Claim], *paths: Path
) -> None:
    """The figure with the paper's axes, and the numbers of its text as marks."""
    x, d_low, d_high, p_low, p_high, renyi, s_low, _ = (
        [point[name] for point in table] for name in table[0]
    )
    sides = {"poisson": (p_low, p_high), "renyi": (renyi, renyi), "shuffle": (s_low, s_low)}
    if setting.number == 2:  # the paper's figure 2 has the other two only
        del sides["renyi"], sides["shuffle"]
    with drawing(7.0, 4.6, *paths) as axes:
        for curve, (low, high) in {**sides, "deterministic": (d_low, d_high)}.items():
            colour, dashes, label = _STYLES[curve]
            axes.plot(
                x, high, color=OKABE_ITO[colour], linestyle=dashes, linewidth=1.8, label=label
            )
            axes.fill_between(x, low, high, color=OKABE_ITO[colour], alpha=0.3, linewidth=0)
        _marks(axes, claims)
        if setting.axis == "noise":
            axes.set(xlabel="noise multiplier", ylabel=f"epsilon at delta = {setting.delta:g}")
            title = f"{setting.batches:,} batches"
        else:
            axes.set(xlabel="epsilon", ylabel="delta")
            title = f"noise multiplier {setting.noise:g}, {setting.batches:,} batches"
        axes.set(yscale="log", xlim=(x[0], x[-1]))
        axes.set_title(f"Figure {setting.number}: one epoch, {title}", loc="left")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9)


def _marks(axes: Any, claims: Sequence[Claim]) -> None:
    """A circle at each printed number; a cross where the paper puts it elsewhere than it holds."""
    names = {"o": "named in the paper", "x": "named at another epsilon than meant"}
    for claim in claims:
        colour = OKABE_ITO[_STYLES[claim.curve][0]]
        places = [(claim.x, "o")] if claim.meant is None else [(claim.x, "x"), (claim.meant, "o")]
        for place, mark in places:
            axes.plot(
                [place],
                [float(claim.printed)],
                mark,
                color=colour,
                markersize=7,
                markerfacecolor="none",
                markeredgewidth=1.6,
                zorder=4,
                clip_on=False,
            )
    used = {mark for claim in claims for mark in ("ox" if claim.meant else "o")}
    for mark in sorted(used):
        axes.plot(
            [],
            [],
            mark,
            color=OKABE_ITO["grey"],
            markerfacecolor="none",
            markeredgewidth=1.6,
            label=names[mark],
        )
