"""Figures 1 to 5 and the noise of sections 6.1 and 6.2.

One round, noise of clip norm 1. The paper's own curve, theorem 4.1, is no upper bound; it is drawn
as published, and marked wherever it falls below a lower bound that is proved here. Beside it: the
corrected bracket, and the baselines CS (records dealt out anew), WCS (participation known) and OLS
(everyone takes part).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verax.federated.observers import BASELINES, baseline
from verax.mechanism import Mechanism
from verax.papers.comparison import (
    AGREES,
    DIFFERS,
    ERRATUM,
    Progress,
    Row,
    agreement,
    erratum,
    quiet,
)
from verax.papers.files import figure_files, write_rows, write_table
from verax.papers.random_participation.published import published
from verax.privacy.guarantee import Guarantee, format_bound
from verax.privacy.numerics.roots import root
from verax.privacy.pairs.random_participation import participation_pair
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.figures import OKABE_ITO, drawing
from verax.samplers import RandomParticipation

_MOST_EPSILON = 30.0
_RTOL = 1e-4
MARGIN = 1e-3  # by which the published curve must fall short to be marked: it is integrated to 1e-4
_COLOURS = {1: "green", 10: "orange", 100: "red", 1000: "pink"}
_DASHES = {"CS": ":", "WCS": "--", "OLS": "-."}


@dataclass(frozen=True)
class Setting:
    """One figure: ``quantity`` along ``axis``, for clients with ``records`` other records.

    Of noise, epsilon, delta and record_rate those that are not on the axis are fixed; ``product``
    is client_rate * record_rate where the record_rate runs.
    """

    number: int
    axis: str
    quantity: str
    first: float
    last: float
    points: int
    records: tuple[int, ...]
    noise: float = 1.0
    epsilon: float = 0.0
    delta: float = 0.0
    product: float = 0.0
    logarithmic: bool = False
    remark: str = ""

    def grid(self, every: int = 1) -> list[float]:
        """The places where the curves are computed, the last included."""
        chosen = sorted({*range(0, self.points, every), self.points - 1})
        parts = [i / (self.points - 1) for i in chosen]
        if self.logarithmic:
            return [float(f"{self.first * (self.last / self.first) ** part:.6g}") for part in parts]
        return [round(self.first + part * (self.last - self.first), 9) for part in parts]

    def at(self, x: float, records: int) -> tuple[RandomParticipation, float]:
        """The client and the noise at a place."""
        q = x if self.axis == "record_rate" else 0.1
        p = min(self.product / q, 1.0) if self.product else 0.1
        return RandomParticipation(p, q, records, 1), x if self.axis == "noise" else self.noise

    def bracket(self, guarantee: Guarantee, x: float) -> tuple[float, float]:
        """The figure's quantity at a place, from below and above."""
        if self.quantity == "epsilon":
            found = guarantee.epsilon(self.delta, _RTOL)
        else:
            found = guarantee.delta(x if self.axis == "epsilon" else self.epsilon, _RTOL)
        return found.lower, found.upper

    def claimed(self, x: float, records: int) -> float:
        """The paper's curve."""
        sampler, noise = self.at(x, records)

        def delta(epsilon: float) -> float:
            return published(sampler, noise, epsilon, published_unsound=True)

        if self.quantity == "delta":
            return delta(x if self.axis == "epsilon" else self.epsilon)
        return _crossing(delta, self.delta)


def _crossing(delta: Callable[[float], float], goal: float) -> float:
    """The epsilon at which a falling curve has this delta."""

    def excess(epsilon: float) -> float:
        return math.log(max(delta(epsilon), 1e-300) / goal)

    if excess(0.0) <= 0.0:
        return 0.0
    return root(excess, 0.0, _MOST_EPSILON, xtol=1e-9) if excess(_MOST_EPSILON) < 0.0 else math.inf


SETTINGS = (
    Setting(1, "epsilon", "delta", 0.0, 1.0, 41, (1, 10, 100)),
    Setting(
        2,
        "noise",
        "epsilon",
        0.5,
        3.0,
        16,
        (1, 10, 100),
        delta=1e-5,
        remark="the text names no delta",
    ),
    Setting(
        3,
        "noise",
        "delta",
        0.5,
        3.0,
        26,
        (1, 10, 100),
        epsilon=0.1,
        remark="the text names no epsilon",
    ),
    Setting(4, "epsilon", "delta", 0.0, 0.2, 41, (1, 10, 100), noise=3.0),
    Setting(
        5,
        "record_rate",
        "epsilon",
        1e-4,
        1.0,
        17,
        (10, 100, 1000),
        delta=1e-6,
        product=1e-4,
        logarithmic=True,
        remark="the text names neither delta nor the numbers of records",
    ),
)
"""The text gives sigma = 1, p = q = 0.1 and pq = 1e-4; what else a figure fixes, and its axes, are
chosen here.
"""

SCENARIOS = {
    "6.1": RandomParticipation(0.001, 0.1, 30, 1),
    "6.2": RandomParticipation(0.1, 0.001, 1000, 1),
}
TARGET = (0.015, 1e-6)
PRINTED = {
    "6.1": {"theorem 4.1": "1.065", "WCS": "7.65", "OLS": "22.4"},
    "6.2": {"theorem 4.1": "0.646", "WCS": "0.873", "OLS": "1.103"},
}
"""Noise for the target (epsilon, delta) of one round, as named in sections 6.1 and 6.2."""


def point(setting: Setting, x: float) -> dict[str, float]:
    """One point of a figure by column: the baselines, then three curves and a flag per ``records``.

    The flag says that the published curve lies below a proved lower bound.
    """
    sampler, noise = setting.at(x, setting.records[0])
    values = {setting.axis: x}
    for name in BASELINES:
        low, high = setting.bracket(baseline(name, sampler, noise).guarantee(), x)
        values |= {f"{name}_lower": low, f"{name}_upper": high}
    for records in setting.records:
        sampler, noise = setting.at(x, records)
        low, high = setting.bracket(Mechanism(sampler, noise).guarantee(), x)
        claim = setting.claimed(x, records)
        unsound = float(claim < low * (1.0 - MARGIN))
        kinds = {"lower": low, "upper": high, "published": claim, "published_unsound": unsound}
        values |= {f"d{records}_{kind}": value for kind, value in kinds.items()}
    return values


def reproduce(folder: Path, progress: Progress = quiet, every: int = 1) -> list[Row]:
    """Write figures 1 to 5 (CSV, PNG, SVG) and ``numbers.csv``; return what the text names."""
    rows: list[Row] = []
    for setting in SETTINGS:
        with progress(f"figure {setting.number} of {len(SETTINGS)}"):
            table = [point(setting, x) for x in setting.grid(every)]
            name = f"figure-{setting.number}"
            write_table(folder / f"{name}.csv", table)
            draw(setting, table, *figure_files(folder, name))
            rows += _statements(setting, table)
    with progress("the noise of sections 6.1 and 6.2"):
        for section in SCENARIOS:
            rows += scenario(section)
    write_rows(folder, rows)
    return rows


def _statements(setting: Setting, table: Sequence[Mapping[str, float]]) -> list[Row]:
    """Where the published curve is below what is proved, and what the text says of it."""
    where, rows = f"figure {setting.number}", []
    for records in setting.records:
        bad = [values[setting.axis] for values in table if values[f"d{records}_published_unsound"]]
        here = f"below the proved lower bound at {len(bad)} of {len(table)} points"
        remark = setting.remark
        if bad:
            remark = f"from {min(bad):g} to {max(bad):g}; {remark}".rstrip("; ")
        found = ERRATUM if bad else "not refuted"
        rows.append(Row(where, f"theorem 4.1, d = {records}", "upper bound", here, found, remark))
    match setting.number:
        case 1:
            least = min(values["d100_upper"] / values["WCS_upper"] for values in table)
            here = f"within {100.0 * (1.0 - least):.2g} % of it"
            found = agreement(least > 0.9)
            rows.append(Row(where, "d = 100 against WCS", "almost the same", here, found))
        case 4:
            remark = "the paper prints no formula for it"
            rows.append(Row(where, "Balle et al. 2020", "a curve", "not drawn", DIFFERS, remark))
        case 5:
            first, last = (
                [values[f"{name}_upper"] for name in BASELINES] for values in (table[0], table[-1])
            )
            here, there = (f"{min(some):.4g} to {max(some):.4g}" for some in (first, last))
            same = max(first) - min(first) < 1e-3 * max(first)
            rows.append(Row(where, "p = 1", "all the same", here, agreement(same)))
            rows.append(Row(where, "q = 1, CS to OLS", "degrades", there, AGREES))
    return rows


def noise_for(delta: Callable[[float], float]) -> float:
    """The noise at which a falling delta(noise) meets the target."""
    low, high = 0.25, 64.0
    while high > low * (1.0 + 1e-5):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta(middle) > TARGET[1] else (low, middle)
    return high


def scenario(section: str) -> list[Row]:
    """The noise of one experiment: corrected, baselines, and what the printed noise buys."""
    sampler, epsilon = SCENARIOS[section], TARGET[0]
    p, q, records = sampler.client_rate, sampler.record_rate, sampler.records
    where, rows = f"section {section}", []
    corrected = noise_for(
        lambda z: participation_pair(p, q, records, 1.0 / z, False).delta(epsilon)[1]
    )
    printed = PRINTED[section]["theorem 4.1"]
    given = Mechanism(sampler, float(printed)).guarantee().delta(epsilon)
    formula = published(sampler, float(printed), epsilon, published_unsound=True)
    remark = (
        f"at {printed} delta is at least {format_bound(given.lower, LOWER, 3)}, not 1e-6; "
        f"equation (6) itself gives {formula:.3g} there"
    )
    rows.append(
        erratum(
            where,
            "noise, random participation",
            printed,
            f"<= {format_bound(corrected, UPPER, 4)}",
            remark,
        )
    )
    for name in BASELINES:

        def delta_of(z: float, name: str = name) -> float:
            return baseline(name, sampler, z).guarantee().delta(epsilon).upper

        needed = noise_for(delta_of)
        claim, remark = PRINTED[section].get(name, ""), ""
        found = "not named"
        if claim:
            bought = baseline(name, sampler, float(claim)).guarantee().delta(epsilon)
            found = (
                AGREES
                if float(claim) >= needed
                else "rounded down"
                if float(claim) > 0.99 * needed
                else DIFFERS
            )
            remark = f"delta at the printed noise is {format_bound(bought.upper, UPPER, 4)}"
        rows.append(
            Row(
                where,
                f"noise, {name}",
                claim or "-",
                f"<= {format_bound(needed, UPPER, 4)}",
                found,
                remark,
            )
        )
    return rows


def draw(setting: Setting, table: Sequence[Mapping[str, float]], *paths: Path) -> None:
    """The figure; crosses mark where the published curve lies below a proved lower bound."""
    data = {name: [values[name] for values in table] for name in table[0]}
    x = data[setting.axis]
    with drawing(7.4, 5.0, *paths) as axes:
        for name in BASELINES:
            axes.plot(
                x,
                data[f"{name}_upper"],
                color="black",
                linestyle=_DASHES[name],
                linewidth=1.3,
                label=name,
            )
        for records in setting.records:
            colour = OKABE_ITO[_COLOURS[records]]
            low, high, claim = (
                data[f"d{records}_{kind}"] for kind in ("lower", "upper", "published")
            )
            axes.fill_between(x, low, high, color=colour, alpha=0.3, linewidth=0)
            axes.plot(x, high, color=colour, linewidth=1.8, label=f"d = {records}: proved bracket")
            axes.plot(
                x,
                claim,
                color=colour,
                linestyle=(0, (1, 2)),
                linewidth=1.2,
                label=f"d = {records}: as published",
            )
            flags = data[f"d{records}_published_unsound"]
            bad = [(a, b) for a, b, flag in zip(x, claim, flags, strict=True) if flag and b > 0.0]
            axes.plot([a for a, _ in bad], [b for _, b in bad], "x", color=colour, markersize=4)
        axes.plot([], [], "x", color=OKABE_ITO["grey"], label="published curve unsound here")
        fixed = {
            "epsilon": f"delta = {setting.delta:g}",
            "delta": f"epsilon = {setting.epsilon:g}",
        }[setting.quantity]
        axes.set(xlabel=setting.axis.replace("_", " "), ylabel=setting.quantity, yscale="log")
        if setting.quantity == "delta":
            axes.set_ylim(bottom=1e-12)
        if setting.logarithmic:
            axes.set(xscale="log")
        what = f"noise {setting.noise:g}" if setting.axis != "noise" else "p = q = 0.1"
        what += "" if setting.axis == "epsilon" else f", {fixed}"
        axes.set_title(f"Figure {setting.number}: one round, {what}", loc="left")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7, ncols=2)
