"""verax audit: attack what runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from verax import Deterministic, Mechanism, checks
from verax.auditing import SamplerAudit, audit_sampler
from verax.auditing.transcript import Progress, few_records
from verax.cli import common
from verax.cli.audit_canaries import canaries
from verax.cli.commands import Command, Group
from verax.cli.options import (
    ClipGroups,
    ClippingName,
    ClippingOption,
    RelationName,
    SpecialFlags,
    clippings_by_name,
    flat,
)
from verax.samplers import registry
from verax.samplers.base import Sampler
from verax.samplers.options import build, flags_of, owners_of

audit = typer.Typer(
    cls=Group, help="Attack what runs, for a lower bound on its epsilon.", no_args_is_help=True
)


@dataclass(frozen=True)
class Shape:
    """Options that describe one run, whoever draws its batches."""

    batches: int
    epochs: int
    records: int | None
    special: SpecialFlags

    @property
    def times(self) -> int:
        """Rounds that a record joins in an epoch, on average."""
        return checks.count("--times", self.special.get("--times") or 1, maximum=self.batches)

    def drawn_by(self, name: str) -> Sampler:
        """These batches drawn by the sampler of this name."""
        times, batches, records = self.times, self.batches, self.records
        known = {
            **self.special,
            "--times": times,
            "--rate": times / batches,
            "--steps": batches * self.epochs,
            "--batches": batches,
            "--epochs": self.epochs,
            "--records": records,
            "--batch": None if records is None else max(1, records * times // batches),
        }
        return build(name, {flag: known[flag] for flag in flags_of(name)})

    def refuse_idle(self, names: Sequence[str]) -> None:
        """Refuse options that say nothing about any of these samplers."""
        flags = set().union(*map(flags_of, names))
        for flag, value in self.special.items():
            often = flag == "--times" and flags & {"--rate", "--batch"}
            if value is not None and flag not in flags and not often:
                owners = ", ".join(owners_of(flag))
                raise ValueError(
                    f"{flag} {value} is not for --sampler {names[0]}, but for {owners}"
                )


@audit.callback()
def _group() -> None:
    """Attack what runs, for a lower bound on its epsilon."""


audit.command(cls=Command)(canaries)


@audit.command(cls=Command)
@flat
def sampler(
    *,
    drawn: Annotated[
        str,
        typer.Option("--sampler", help=f"What draws the batches: {', '.join(registry.names())}."),
    ],
    noise_multiplier: common.Noise,
    batches: Annotated[int, typer.Option(help="Batches per epoch.")],
    claim: Annotated[
        str | None, typer.Option(help="What is said to draw them; default: the truth.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 1,
    records: Annotated[
        int | None, typer.Option(help="Number of records; default: a few per batch.")
    ] = None,
    special: SpecialFlags,
    clipping: ClippingOption = ClippingName.individual,
    clip_groups: ClipGroups = 1,
    relation: Annotated[
        RelationName | None,
        typer.Option(help="Neighbouring relation; default: the claimed sampler's own."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The claimed epsilon; default: what verax proves.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of the claim.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Probability that the bound is right.")] = 0.95,
    trials: Annotated[int, typer.Option(help="Runs to draw; more give a sharper bound.")] = 200_000,
    target: Annotated[int, typer.Option(help="The record under attack.")] = 0,
    insecure_seed: Annotated[
        int | None, typer.Option(help="Repeat an audit exactly; for tests.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """Attack the code that draws the batches, and compare with what is claimed for them.

    Exit code 0: not refuted; 1: refuted; 2: bad input.

    Example: verax audit sampler --sampler shuffle --claim poisson -z 1 --batches 100 --delta 1e-5
    """
    batches, epochs = checks.count("--batches", batches), checks.count("--epochs", epochs)
    kind = clippings_by_name(clip_groups, [clipping.value])[clipping.value]
    shape = Shape(batches, epochs, records, special)
    shape.refuse_idle([drawn] if claim is None else [drawn, claim])
    if records is None:
        shape = replace(shape, records=few_records(Deterministic(batches), kind))
    named = relation.value if relation else ""
    mechanism = Mechanism(shape.drawn_by(claim or drawn), noise_multiplier, kind, named)
    with _shown_progress() as progress:
        result = audit_sampler(
            shape.drawn_by(drawn),
            mechanism,
            epsilon=epsilon,
            delta=delta,
            confidence=confidence,
            trials=trials,
            population=shape.records,
            target=target,
            insecure_seed=insecure_seed,
            progress=progress,
        )
    if json:
        common.print_json(_plain(result))
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(result.statement())
    if result.refuted:
        raise typer.Exit(1)


def _plain(result: SamplerAudit) -> dict[str, object]:
    return {
        "refuted": result.refuted,
        "lower": result.lower,
        "claim": common.plain(result.claim),
        "delta": result.delta,
        "confidence": result.confidence,
        "evidence": "monte-carlo",
        "relation": result.mechanism.relation,
        "mechanism": repr(result.mechanism),
        "drawn": result.drawn,
        "attack": result.attack,
        "trials": result.trials,
        "tested": result.tested,
        "hits": result.hits,
        "false_hits": result.false_hits,
        "participation": result.participation,
        "statement": result.statement(),
    }


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """A transient progress bar on a terminal's standard error once runs are drawn."""
    console = Console(stderr=True)
    columns = (
        TextColumn("auditing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("auditing", total=None)

    def tell(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()
