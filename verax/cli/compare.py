"""verax compare: one run priced for every way of drawing its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verax.cli import output
from verax.cli.options import (
    ClipGroups,
    ClippingName,
    ClippingOption,
    Epochs,
    Figure,
    Group,
    Json,
    MechanismFields,
    Noise,
    RelationName,
    checked_figure,
    flat,
    option,
)
from verax.cli.tables import Table
from verax.privacy.guarantee import DEFAULT_RTOL, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.comparison import (
    RECORDS_PER_BATCH,
    SamplerCost,
    against_poisson,
    comparison_figure,
)
from verax.reporting.comparison import compare as price_all


@dataclass(frozen=True, kw_only=True)
class CompareOptions(MechanismFields):
    """What ``verax compare`` is asked."""

    noise_multiplier: Noise
    batches: int = option("Batches per epoch.", default=...)
    epochs: Epochs = 1
    delta: float | None = option("Compare epsilon at this delta.")
    epsilon: float | None = option("Compare delta at this epsilon.")
    records: int | None = option("Number of records; default: 100 for each batch.")
    clipping: ClippingOption = ClippingName.individual
    clip_groups: ClipGroups = 1
    relation: RelationName | None = option(
        "Neighbouring relation; default: zero-out where it is known."
    )
    group: Group = 1
    rtol: float = option("Relative distance of the two sides, where known.", default=DEFAULT_RTOL)
    figure: Figure = None
    json: Json = False

    @property
    def quantity(self) -> str:
        """What is compared, in words."""
        if self.delta is not None:
            return f"epsilon at delta = {self.delta!r}"
        return f"delta at epsilon = {self.epsilon!r}"

    @property
    def setting(self) -> str:
        """What all runs have in common, in words."""
        records = self.records or RECORDS_PER_BATCH * self.batches
        return (
            f"noise {self.noise_multiplier!r}, {self.batches} batches, "
            f"{self.epochs} epoch{'s' * (self.epochs > 1)}, {records} records, "
            f"{self.clipping.value} clipping"
            + (f", any {self.group} records together" if self.group > 1 else "")
        )


@flat
def compare(options: CompareOptions) -> None:
    """Price the same noise for every way of drawing the batches, side by side.

    Example: verax compare -z 0.5 --batches 10000 --delta 1e-6 --figure samplers.png
    """
    if (options.delta is None) == (options.epsilon is None):
        got = "neither" if options.delta is None else "both"
        raise ValueError(f"give either --delta or --epsilon, got {got}")
    checked_figure(options.figure)
    clipping = options.build_clipping()
    with output.patience("comparing"):
        rows = price_all(
            options.noise_multiplier,
            options.batches,
            options.epochs,
            delta=options.delta,
            epsilon=options.epsilon,
            records=options.records,
            clipping=clipping,
            relation=options.relation_name,
            group=options.group,
            rtol=options.rtol,
        )
    if options.figure is not None:
        comparison_figure(rows, options.quantity, options.setting, options.figure)
    if options.json:
        output.print_json(
            {
                "quantity": options.quantity,
                "setting": options.setting,
                "figure": options.figure and str(options.figure),
                "rows": _plain(rows),
            }
        )
        return
    _show(rows, options)
    output.say_saved(options.figure)


def _plain(rows: Sequence[SamplerCost]) -> list[dict[str, object]]:
    return [
        {
            "name": row.name,
            "sampler": repr(row.sampler),
            "relation": row.relation,
            "bracket": row.bracket,
            "against_poisson": (times := against_poisson(row, rows)) and [times.lower, times.upper],
            "why_not": row.why or None,
        }
        for row in rows
    ]


def _factor(value: float, side: int) -> str:
    return format_bound(value, side, 3 if value >= 1.0 else 2)


def _show(rows: Sequence[SamplerCost], options: CompareOptions) -> None:
    out = output.fitted_console()
    out.print(f"{options.quantity}: {options.setting}")
    table = Table(
        ["batches", "relation", "at least", "at most", "times Poisson", "by"], ["times Poisson"]
    )
    notes: dict[str, str] = {}

    def note(text: str) -> str:
        return notes.setdefault(text, chr(ord("a") + len(notes)))

    for row in rows:
        if row.bracket is None:
            table.add_row(row.name, row.relation, "", "", "no bracket", note(row.why))
            continue
        low, high = row.bracket.lower, row.bracket.upper
        times = against_poisson(row, rows)
        table.add_row(
            row.name,
            row.relation,
            format_bound(low, LOWER),
            format_bound(high, UPPER),
            f"{_factor(times.lower, LOWER)} to {_factor(times.upper, UPPER)}" if times else "",
            f"{note(row.bracket.lower_by)} {note(row.bracket.upper_by)}",
        )
    table.print(out)
    out.print("by: what proves the lower bound, then the upper", style="dim")
    for text, letter in notes.items():
        out.print(f"{letter}  {text}", style="dim")
