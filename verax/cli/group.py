"""verax group: what a group of records costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from verax import Mechanism, checks
from verax.cli import common
from verax.cli.compare import writable
from verax.cli.options import RunOptions, clippings_by_name, flat
from verax.cli.tables import Table, console
from verax.mechanism import Clipping
from verax.privacy.curves.black_box import DEEPEST
from verax.privacy.curves.simulation import default_samples
from verax.privacy.group_uses import crossover
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting import groups as tables
from verax.reporting.figures import drawable


class GeometryName(StrEnum):
    """What is known of a group's gradients."""

    any = "any"
    orthogonal = "orthogonal"


class SamplingName(StrEnum):
    """Which runs are simulated."""

    both = "both"
    paper = "paper"


_SPARE = ("Monte Carlo", "f-DP black box")  # columns that a narrow terminal goes without
_SIMULATION = ("sampling", "confidence", "insecure_seed")
# how far to look for a crossing: so many times the largest group asked for
_LOOK, _LOOK_AT_LEAST = 10, 2000
Geometry = Annotated[GeometryName, typer.Option(help="What is known of the group's gradients.")]


@flat
def group(
    context: typer.Context,
    noise_multiplier: common.Noise,
    run: RunOptions,
    delta: Annotated[float | None, typer.Option(help="Report epsilon at this delta.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Report delta at this epsilon.")] = None,
    groups: Annotated[str, typer.Option(help="Group sizes.")] = ",".join(map(str, tables.GROUPS)),
    clippings: Annotated[
        str, typer.Option(help="Compare these clippings, such as individual,batch,mixed.")
    ] = "",
    geometry: Geometry = GeometryName.any,
    rtol: Annotated[float, typer.Option(help="Relative distance of the two sides.")] = DEFAULT_RTOL,
    samples: Annotated[
        int | None, typer.Option(help="Runs to simulate; 0: none. Default: about a second.")
    ] = None,
    sampling: Annotated[
        SamplingName,
        typer.Option(
            help="Simulate runs with and without the group, or as the paper only without."
        ),
    ] = SamplingName.both,
    confidence: Annotated[
        float, typer.Option(help="With which each simulated interval holds.")
    ] = 0.99,
    insecure_seed: Annotated[
        int | None, typer.Option(help="Repeat a simulation exactly; for tests.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Save a figure here: .png, .svg or .pdf.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """Price groups of records: tight, by two black boxes and by simulation, in one table.

    Example: verax group -z 1 --rate 0.01 --steps 10 --delta 1e-3 --epsilon 2 --figure groups.png
    """
    if delta is None and epsilon is None:
        raise ValueError("nothing to report: give --delta, --epsilon or both")
    if clippings:
        common.refuse_together(context, ["clipping"], "--clippings", "name all of them there")
        if samples != 0:
            common.refuse_together(
                context, ["samples"], "--clippings", "clippings are not simulated"
            )
    if clippings or samples == 0:
        other = "--clippings" if clippings else "--samples 0"
        common.refuse_together(context, _SIMULATION, other, "nothing is simulated")
    kinds = clippings_by_name(
        run.clip_groups, clippings.split(",") if clippings else [run.clipping.value]
    )
    sizes = parse_sizes(groups, run.drawing["--records"])
    if figure is not None:
        writable(drawable(figure).parent)
    sampler, clipping = run.build_sampler(), kinds[run.clipping.value]
    mechanism = Mechanism(sampler, noise_multiplier, clipping, run.relation_name)
    if samples is not None:
        checks.count("samples", samples, minimum=0)
    settings = tables.GroupSettings(
        geometry.value, rtol, samples, sampling.value, confidence, insecure_seed
    )
    if clippings:
        _clippings(
            mechanism, _kinds(clippings, kinds), sizes, delta, epsilon, settings, figure, json
        )
        return
    with common.patience("pricing groups"):
        blocks = tables.price_groups(
            mechanism, sizes, delta=delta, epsilon=epsilon, settings=settings
        )
    why = tables.why_not_simulated(mechanism) if samples is None else ""
    simulated = 0 if why else default_samples(mechanism) if samples is None else samples
    if figure is not None:
        tables.groups_figure(blocks, _setting(mechanism), figure)
    if json:
        common.print_json(
            {
                "mechanism": repr(mechanism),
                "relation": mechanism.relation,
                "geometry": geometry.value,
                "monte_carlo": {
                    "samples": simulated,
                    "sampling": sampling.value,
                    "confidence": confidence,
                    "why_not": why or None,
                },
                "figure": figure and str(figure),
                "blocks": [_plain(block) for block in blocks],
            }
        )
        return
    _show(mechanism, geometry.value, blocks, simulated, settings, why)
    _saved(figure)


def parse_sizes(words: str, records: int | None) -> list[int]:
    """Group sizes from a list with commas, in ascending order; none larger than the data."""
    sizes: set[int] = set()
    for word in words.split(","):
        try:
            sizes.add(checks.count("group", int(word)))
        except ValueError as error:
            if "group" in str(error):
                raise
            raise ValueError(
                f"--groups must be whole numbers with commas, such as 1,2,4, got {words!r}"
            ) from error
    if records is not None and max(sizes) > records:
        raise ValueError(
            f"group must be at most {records}, the number of --records, got {max(sizes)}"
        )
    return sorted(sizes)


def _kinds(words: str, known: Mapping[str, Clipping]) -> list[Clipping]:
    return [
        known[checks.choice("clippings", word.strip(), tuple(known))] for word in words.split(",")
    ]


def _setting(mechanism: Mechanism) -> str:
    return (
        f"{mechanism.sampler!r}, noise {mechanism.noise_multiplier:g}, "
        f"{tables.clipping_name(mechanism.clipping)} clipping, {mechanism.relation}"
    )


def _plain(block: tables.Block) -> dict[str, Any]:
    return {
        "quantity": block.quantity,
        "at": block.at,
        "rows": [
            {
                "group": row.group,
                "tight": row.tight,
                "black_box": row.black_box,
                "f_dp_black_box": row.f_dp,
                "monte_carlo": row.monte_carlo,
            }
            for row in block.rows
        ],
    }


def _saved(figure: Path | None) -> None:
    if figure is not None:
        console().print(f"Figure saved: {figure}")


def _show(
    mechanism: Mechanism,
    geometry: str,
    blocks: Sequence[tables.Block],
    samples: int,
    settings: tables.GroupSettings,
    why: str,
) -> None:
    out = console()
    out.print(_setting(mechanism) + (", orthogonal gradients" if geometry == "orthogonal" else ""))
    out.print("; ".join(block.title for block in blocks))
    headers = ["quantity", "records", "at least", "at most", "black box", "f-DP black box"]
    table = Table(headers + ["Monte Carlo"] * bool(samples), _SPARE)
    for block in blocks:
        for i, row in enumerate(block.rows):
            drawn = (
                [f"{_low(row.monte_carlo)} to {_high(row.monte_carlo)}"] if row.monte_carlo else []
            )
            table.add_row(
                block.quantity if i == 0 else "",
                str(row.group),
                _low(row.tight),
                _high(row.tight),
                format_bound(row.black_box, UPPER),
                format_bound(row.f_dp, UPPER),
                *drawn,
                end_section=i == len(block.rows) - 1,
            )
    table.print(out)
    first = blocks[0].rows[-1].tight
    notes = [
        "at least, at most: proved, for any records of the group together",
        f"upper: {first.upper_by}",
        f"lower: {first.lower_by}",
        "black boxes: what one record's curve implies, with equal or the best shares (f-DP); inf: "
        f"it would take one record's delta below {DEEPEST:g}",
    ]
    if samples:
        how = (
            "each direction from its own law"
            if settings.sampling == "both"
            else "without the group, as in the paper"
        )
        notes.append(
            f"Monte Carlo: algorithm 2 of 'optimal group privacy', corrected; {samples} runs a "
            f"group, {how}; each interval holds with confidence {settings.confidence:g}"
        )
    elif why:
        notes.append(f"not simulated: {why}")
    out.print("\n".join(notes), style="dim")


def _low(bracket: Bracket) -> str:
    return format_bound(bracket.lower, LOWER)


def _high(bracket: Bracket) -> str:
    return format_bound(bracket.upper, UPPER)


def _clippings(
    mechanism: Mechanism,
    kinds: Sequence[Clipping],
    sizes: Sequence[int],
    delta: float | None,
    epsilon: float | None,
    settings: tables.GroupSettings,
    figure: Path | None,
    json: bool,
) -> None:
    """One run under several clippings, and where one becomes cheaper than another."""
    names = [tables.clipping_name(kind) for kind in kinds]
    runs = [
        Mechanism(mechanism.sampler, mechanism.noise_multiplier, kind, mechanism.relation)
        for kind in kinds
    ]
    most = max(_LOOK * max(sizes), _LOOK_AT_LEAST)
    with common.patience("pricing clippings"):
        found = tables.price_clippings(
            mechanism, kinds, sizes, delta=delta, epsilon=epsilon, settings=settings
        )
        crossings = (
            [
                (i, j, crossover(runs[i], runs[j], delta, most=most))
                for j in range(len(runs))
                for i in range(j)
            ]
            if delta is not None and settings.geometry == "any"
            else []
        )
    if figure is not None:
        setting = (
            f"{mechanism.sampler!r}, noise {mechanism.noise_multiplier:g}, {mechanism.relation}"
        )
        tables.clippings_figure(found, names, setting, figure)
    if json:
        common.print_json(
            {
                "sampler": repr(mechanism.sampler),
                "noise_multiplier": mechanism.noise_multiplier,
                "relation": mechanism.relation,
                "clippings": names,
                "figure": figure and str(figure),
                "blocks": [
                    {
                        "quantity": quantity,
                        "at": at,
                        "rows": [
                            {"group": size, "brackets": brackets} for size, brackets in rows.items()
                        ],
                    }
                    for quantity, at, rows in found
                ],
                "crossovers": [
                    {"from": names[i], "to": names[j], "last_dearer": last, "first_cheaper": first}
                    for i, j, (last, first) in (
                        (i, j, where or (None, None)) for i, j, where in crossings
                    )
                ],
            }
        )
        return
    out = console()
    out.print(
        f"{mechanism.sampler!r}, noise {mechanism.noise_multiplier:g} of the clip norm under every "
        f"clipping, {mechanism.relation}"
    )
    out.print("; ".join(tables.Block(quantity, at, ()).title for quantity, at, _ in found))
    table = Table(["quantity", "records", *names])
    for quantity, _, rows in found:
        for i, (size, brackets) in enumerate(rows.items()):
            cells = [f"{_low(b)} to {_high(b)}" for b in brackets]
            table.add_row(
                quantity if i == 0 else "", str(size), *cells, end_section=i == len(rows) - 1
            )
    table.print(out)
    for i, j, where in crossings:
        out.print(
            f"{names[j]} costs less than {names[i]} from a group of {where[1]} on, more up to "
            f"{where[0]}"
            if where
            else f"{names[j]} and {names[i]}: no crossing is proved"
        )
    _saved(figure)
