"""One run priced for every way of drawing its batches, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verax import checks
from verax.checks import NoGuarantee
from verax.mechanism import Clipping, Individual, Mechanism
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.figures import OKABE_ITO, drawing, plain_log_axis
from verax.samplers import Poisson, Sampler, registry

RECORDS_PER_BATCH = 100


@dataclass(frozen=True)
class SamplerCost:
    """A sampler and what it costs; where nothing is proved ``bracket`` is None, and ``why``."""

    name: str
    sampler: Sampler
    relation: str
    bracket: Bracket | None
    why: str = ""

    @property
    def is_poisson(self) -> bool:
        """Whether it is what the others are compared with."""
        return type(self.sampler) is Poisson


def samplers(
    batches: int, epochs: int = 1, records: int | None = None
) -> Iterator[tuple[str, Sampler]]:
    """All samplers with about ``batches`` batches an epoch and the same expected batch size.

    Of several that draw by the same law there is the simplest.

    >>> [name for name, _ in samplers(batches=100)][:3]
    ['Poisson', 'balls in bins', 'Poisson, at most 211']
    """
    batches, epochs = checks.count("batches", batches), checks.count("epochs", epochs)
    count = checks.count(
        "records", RECORDS_PER_BATCH * batches if records is None else records, minimum=batches
    )
    for name in registry.plannable():
        entry = registry.named(name)
        sampler = entry.kind.with_batches(batches, epochs, count)
        sampler = replace(sampler, **entry.decided)  # type: ignore[type-var]
        if sampler.simplest() == sampler:
            yield sampler.title(), sampler


def compare(
    noise_multiplier: float,
    batches: int,
    epochs: int = 1,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    records: int | None = None,
    clipping: Clipping = Individual(),
    relation: str = "",
    group: int = 1,
    rtol: float = DEFAULT_RTOL,
) -> list[SamplerCost]:
    """Brackets on epsilon at ``delta``, or delta at ``epsilon``, of one noise, by sampler.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        batches: batches an epoch; where a record is sampled, it is with probability ``1 / batches``
            a round.
        epochs: passes over the data.
        delta: where to read epsilon; give this or ``epsilon``.
        epsilon: where to read delta.
        records: size of the data, which two of the samplers depend on; 100 for each batch by
            default.
        clipping: what is clipped before the noise is added.
        relation: which data sets are neighbours. By default zero-out, which every sampler has in
            common (for those that draw records independently it costs the same as add-remove);
            where a sampler has no analysis for it, its own.
        group: how many records are protected together.
        rtol: relative distance of the two sides, where the analysis allows it.

    >>> rows = {row.name: row.bracket for row in compare(0.7, batches=1000, delta=1e-5)}
    >>> rows["Poisson"], rows["shuffled"]
    (Bracket(lower=0.608..., upper=0.609...), Bracket(lower=6.52..., upper=6.65...))
    """
    if (delta is None) == (epsilon is None):
        raise ValueError("give either delta (to read epsilon) or epsilon (to read delta)")

    def read(mechanism: Mechanism) -> Bracket:
        guarantee = mechanism.guarantee(group)
        if delta is not None:
            return guarantee.epsilon(delta, rtol)
        return guarantee.delta(epsilon or 0.0, rtol)

    rows = []
    for name, sampler in samplers(batches, epochs, records):
        why = ""
        for word in dict.fromkeys([relation] if relation else ["zero-out", sampler.relation]):
            mechanism = Mechanism(sampler, noise_multiplier, clipping, word)
            try:
                rows.append(SamplerCost(name, sampler, word, read(mechanism)))
                break
            except NoGuarantee as error:
                why = str(error)
        else:
            rows.append(SamplerCost(name, sampler, relation or sampler.relation, None, why))
    return rows


def against_poisson(row: SamplerCost, rows: Sequence[SamplerCost]) -> Bracket | None:
    """This number over that of Poisson, if both are known under relations that compare.

    >>> rows = compare(0.7, batches=1000, delta=1e-5)
    >>> against_poisson(rows[-1], rows)
    Bracket(lower=10.9..., upper=10.9...)
    """
    base = next((r for r in rows if r.is_poisson), None)
    if base is None or base.bracket is None or row.bracket is None:
        return None
    if base is row:
        return Bracket(1.0, 1.0)
    if (base.relation == "replace") != (row.relation == "replace"):
        return None
    (low, high), (least, most) = (
        (row.bracket.lower, row.bracket.upper),
        (base.bracket.lower, base.bracket.upper),
    )
    if math.isinf(most) or most == 0.0:
        return None
    return Bracket(low / most, high / least if least > 0.0 else math.inf)


def comparison_figure(rows: Sequence[SamplerCost], quantity: str, title: str, path: Path) -> Path:
    """Save horizontal brackets, one a sampler; on a logarithmic axis if they differ by much."""
    known = [row.bracket for row in rows if row.bracket is not None]
    values = [v for b in known for v in (b.lower, b.upper) if 0.0 < v < math.inf]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    wide = high > 8.0 * low
    margin = 1.2 * (high / low) ** 0.06
    left, right = (low / margin, high * margin) if wide else (0.0, high * 1.1)
    with drawing(8.4, 1.5 + 0.46 * len(rows), path) as axes:
        axes.set(
            xscale="log" if wide else "linear", xlim=(left, right), ylim=(len(rows) - 0.4, -0.6)
        )
        if wide and high < 1000.0 * low:  # plain numbers in place of powers of ten
            plain_log_axis(axes.xaxis)
        poisson = next((row.bracket for row in rows if row.is_poisson), None)
        if poisson is not None and left < poisson.upper < right:
            axes.axvline(poisson.upper, color=OKABE_ITO["blue"], linewidth=1, linestyle=":")
        for i, row in enumerate(rows):
            if row.bracket is None:
                axes.text(
                    0.01,
                    i,
                    "no proved bracket",
                    transform=axes.get_yaxis_transform(),
                    va="center",
                    color=OKABE_ITO["grey"],
                    style="italic",
                    bbox={"color": "white", "pad": 1.0},
                )
            else:
                _bar(axes, i, row, left, right)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{quantity}, proved to lie between the ends")
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(axis="x", alpha=0.25)
    return path


def _bar(axes: Any, i: int, row: SamplerCost, left: float, right: float) -> None:
    """One bracket: a bar with a cap at each known end and an arrow where an end is off the axis."""
    if row.bracket is None:
        return
    colour = OKABE_ITO["blue" if row.is_poisson else "red"]
    low, high = row.bracket.lower, row.bracket.upper
    start, stop = min(max(low, left), right), max(min(high, right), left)
    axes.plot([start, stop], [i, i], color=colour, linewidth=5, alpha=0.45, solid_capstyle="butt")
    for value in (low, high):
        mark = "<" if value < left else ">" if value > right else "|"
        axes.plot(
            [min(max(value, left), right)],
            [i],
            marker=mark,
            color=colour,
            markersize=11,
            markeredgewidth=2 if mark == "|" else 0,
            clip_on=False,
        )
    words = (
        "infinite"
        if low == math.inf
        else f"{format_bound(low, LOWER, 4)} to {format_bound(high, UPPER, 4)}"
    )
    if row.relation == "replace":
        words += " (replace)"
    first, last = (
        axes.transAxes.inverted().transform(axes.transData.transform((x, i)))[0]
        for x in (start, stop)
    )
    x, offset, side = (last, (9, 0), "left") if last < 0.7 else (first, (-9, 0), "right")
    if first < 0.3 and last >= 0.7:
        x, offset, side = (first + last) / 2, (0, 9), "center"
    axes.annotate(
        words,
        (x, i),
        xytext=offset,
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=8.5,
    )
