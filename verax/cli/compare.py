"""verax compare: one run priced for every way of drawing its batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from verax.cli import common
from verax.cli.options import (
    ClipGroups,
    ClippingName,
    ClippingOption,
    RelationName,
    clippings_by_name,
)
from verax.cli.tables import Table, console
from verax.privacy.guarantee import DEFAULT_RTOL, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.comparison import (
    RECORDS_PER_BATCH,
    SamplerCost,
    against_poisson,
    comparison_figure,
)
from verax.reporting.comparison import compare as price_all
from verax.reporting.figures import drawable


def compare(
    noise_multiplier: common.Noise,
    batches: Annotated[int, typer.Option(help="Batches per epoch.")],
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 1,
    delta: Annotated[float | None, typer.Option(help="Compare epsilon at this delta.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Compare delta at this epsilon.")] = None,
    records: Annotated[
        int | None, typer.Option(help="Number of records; default: 100 for each batch.")
    ] = None,
    clipping: ClippingOption = ClippingName.individual,
    clip_groups: ClipGroups = 1,
    relation: Annotated[
        RelationName | None,
        typer.Option(help="Neighbouring relation; default: zero-out where it is known."),
    ] = None,
    group: common.Group = 1,
    rtol: Annotated[
        float, typer.Option(help="Relative distance of the two sides, where known.")
    ] = DEFAULT_RTOL,
    figure: Annotated[
        Path | None, typer.Option(help="Save a figure here: .png, .svg or .pdf.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """Price the same noise for every way of drawing the batches, side by side.

    Example: verax compare -z 0.5 --batches 10000 --delta 1e-6 --figure samplers.png
    """
    if (delta is None) == (epsilon is None):
        raise ValueError(
            f"give either --delta or --epsilon, got {'both' if delta is not None else 'neither'}"
        )
    if figure is not None:
        writable(drawable(figure).parent)
    kind = clippings_by_name(clip_groups, [clipping.value])[clipping.value]
    with common.patience("comparing"):
        rows = price_all(
            noise_multiplier,
            batches,
            epochs,
            delta=delta,
            epsilon=epsilon,
            records=records,
            clipping=kind,
            relation=relation.value if relation else "",
            group=group,
            rtol=rtol,
        )
    quantity = (
        f"epsilon at delta = {delta!r}" if delta is not None else f"delta at epsilon = {epsilon!r}"
    )
    setting = (
        f"noise {noise_multiplier!r}, {batches} batches, {epochs} epoch{'s' * (epochs > 1)}, "
        f"{records or RECORDS_PER_BATCH * batches} records, {clipping.value} clipping"
        + (f", any {group} records together" if group > 1 else "")
    )
    if figure is not None:
        comparison_figure(rows, quantity, setting, figure)
    if json:
        common.print_json(
            {
                "quantity": quantity,
                "setting": setting,
                "figure": figure and str(figure),
                "rows": _plain(rows),
            }
        )
        return
    _show(rows, quantity, setting)
    if figure is not None:
        console().print(f"Figure saved: {figure}")


def writable(folder: Path, option: str = "--figure") -> Path:
    """Make the folder if it is missing, or say in one line why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{option} must name a place that can be written, got {folder}: {error.strerror}"
        ) from error
    return folder


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


def _show(rows: Sequence[SamplerCost], quantity: str, setting: str) -> None:
    out = console()
    out.print(f"{quantity}: {setting}")
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
