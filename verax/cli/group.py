"""verax group: what a group of records costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from verax import Mechanism, checks
from verax.cli import output
from verax.cli.options import (
    Figure,
    Json,
    Noise,
    Rtol,
    RunOptions,
    checked_figure,
    clippings_by_name,
    flat,
    option,
    refuse_together,
)
from verax.cli.tables import Table
from verax.privacy.curves.black_box import DEEPEST
from verax.privacy.curves.simulation import default_samples
from verax.privacy.group_uses import crossover
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting import groups as tables


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


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """What ``verax group`` is asked."""

    noise_multiplier: Noise
    run: RunOptions
    delta: float | None = option("Report epsilon at this delta.")
    epsilon: float | None = option("Report delta at this epsilon.")
    groups: str = option("Group sizes.", default=",".join(map(str, tables.GROUPS)))
    clippings: str = option("Compare these clippings, such as individual,batch,mixed.", default="")
    geometry: Geometry = GeometryName.any
    rtol: Rtol = DEFAULT_RTOL
    samples: int | None = option("Runs to simulate; 0: none. Default: about a second.")
    sampling: SamplingName = option(
        "Simulate runs with and without the group, or as the paper only without.",
        default=SamplingName.both,
    )
    confidence: float = option("With which each simulated interval holds.", default=0.99)
    insecure_seed: int | None = option("Repeat a simulation exactly; for tests.")
    figure: Figure = None
    json: Json = False

    @property
    def compared(self) -> list[str]:
        """Names of the clippings to compare; none if there is only one."""
        return [word.strip() for word in self.clippings.split(",")] if self.clippings else []

    def refuse_contradictions(self, context: typer.Context) -> None:
        """Refuse options that others make void."""
        if self.delta is None and self.epsilon is None:
            raise ValueError("nothing to report: give --delta, --epsilon or both")
        if self.compared:
            refuse_together(context, ["clipping"], "--clippings", "name all of them there")
            if self.samples != 0:
                why = "clippings are not simulated"
                refuse_together(context, ["samples"], "--clippings", why)
        if self.compared or self.samples == 0:
            other = "--clippings" if self.compared else "--samples 0"
            refuse_together(context, _SIMULATION, other, "nothing is simulated")

    def settings(self) -> tables.GroupSettings:
        """How wide the brackets are, and how much is simulated."""
        if self.samples is not None:
            checks.count("samples", self.samples, minimum=0)
        return tables.GroupSettings(
            self.geometry.value,
            self.rtol,
            self.samples,
            self.sampling.value,
            self.confidence,
            self.insecure_seed,
        )


@flat
def group(context: typer.Context, options: GroupOptions) -> None:
    """Price groups of records: tight, by two black boxes and by simulation, in one table.

    Example: verax group -z 1 --rate 0.01 --steps 10 --delta 1e-3 --epsilon 2 --figure groups.png
    """
    options.refuse_contradictions(context)
    run, names = options.run, options.compared or [options.run.clipping.value]
    kinds = clippings_by_name(run.clip_groups, names)
    sizes = parse_sizes(options.groups, run.drawing["--records"])
    checked_figure(options.figure)
    mechanism = Mechanism(
        run.build_sampler(), options.noise_multiplier, kinds[run.clipping.value], run.relation_name
    )
    settings = options.settings()
    if options.compared:
        runs = [
            replace(mechanism, clipping=kinds[checks.choice("clippings", name, tuple(kinds))])
            for name in names
        ]
        _compare_clippings(options, runs, sizes, settings)
        return
    with output.patience("pricing groups"):
        blocks = tables.price_groups(
            mechanism, sizes, delta=options.delta, epsilon=options.epsilon, settings=settings
        )
    samples, why = options.samples, ""
    if samples is None:
        why = tables.why_not_simulated(mechanism)
        samples = 0 if why else default_samples(mechanism)
    if options.figure is not None:
        tables.groups_figure(blocks, _setting(mechanism), options.figure)
    if not options.json:
        _show(options, mechanism, blocks, samples, why)
        output.say_saved(options.figure)
        return
    output.print_json(
        {
            "mechanism": repr(mechanism),
            "relation": mechanism.relation,
            "geometry": options.geometry.value,
            "monte_carlo": {
                "samples": samples,
                "sampling": options.sampling.value,
                "confidence": options.confidence,
                "why_not": why or None,
            },
            "figure": options.figure and str(options.figure),
            "blocks": [_plain(block) for block in blocks],
        }
    )


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


def _show(
    options: GroupOptions,
    mechanism: Mechanism,
    blocks: Sequence[tables.Block],
    samples: int,
    why: str,
) -> None:
    out = output.fitted_console()
    orthogonal = options.geometry is GeometryName.orthogonal
    out.print(f"{_setting(mechanism)}{', orthogonal gradients' * orthogonal}")
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
            if options.sampling is SamplingName.both
            else "without the group, as in the paper"
        )
        notes.append(
            f"Monte Carlo: algorithm 2 of 'optimal group privacy', corrected; {samples} runs a "
            f"group, {how}; each interval holds with confidence {options.confidence:g}"
        )
    elif why:
        notes.append(f"not simulated: {why}")
    out.print("\n".join(notes), style="dim")


def _low(bracket: Bracket) -> str:
    return format_bound(bracket.lower, LOWER)


def _high(bracket: Bracket) -> str:
    return format_bound(bracket.upper, UPPER)


def _compare_clippings(
    options: GroupOptions,
    runs: Sequence[Mechanism],
    sizes: Sequence[int],
    settings: tables.GroupSettings,
) -> None:
    """One run under several clippings, and where one becomes cheaper than another."""
    first, names = runs[0], [tables.clipping_name(run.clipping) for run in runs]
    most = max(_LOOK * max(sizes), _LOOK_AT_LEAST)
    pairs = [(i, j) for j in range(len(runs)) for i in range(j)]
    delta, crossings = options.delta, []
    with output.patience("pricing clippings"):
        found = tables.price_clippings(
            first,
            [run.clipping for run in runs],
            sizes,
            delta=delta,
            epsilon=options.epsilon,
            settings=settings,
        )
        if delta is not None and options.geometry is GeometryName.any:
            crossings = [
                (names[i], names[j], crossover(runs[i], runs[j], delta, most=most))
                for i, j in pairs
            ]
    if options.figure is not None:
        setting = f"{first.sampler!r}, noise {first.noise_multiplier:g}, {first.relation}"
        tables.clippings_figure(found, names, setting, options.figure)
    if options.json:
        output.print_json(
            {
                "sampler": repr(first.sampler),
                "noise_multiplier": first.noise_multiplier,
                "relation": first.relation,
                "clippings": names,
                "figure": options.figure and str(options.figure),
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
                    {
                        "from": one,
                        "to": other,
                        "last_dearer": where and where[0],
                        "first_cheaper": where and where[1],
                    }
                    for one, other, where in crossings
                ],
            }
        )
        return
    out = output.fitted_console()
    out.print(
        f"{first.sampler!r}, noise {first.noise_multiplier:g} of the clip norm under every "
        f"clipping, {first.relation}"
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
    for one, other, where in crossings:
        out.print(
            f"{other} costs less than {one} from a group of {where[1]} on, more up to {where[0]}"
            if where
            else f"{other} and {one}: no crossing is proved"
        )
    output.say_saved(options.figure)
