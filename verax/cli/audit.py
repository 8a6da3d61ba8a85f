"""verax audit: attack what runs."""

from __future__ import annotations

from collections.abc import Iterator
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
from verax.cli.common import SamplerName

audit = typer.Typer(cls=Group, help="Attack what runs, for a lower bound on its epsilon.", no_args_is_help=True)


_EACH_ROUND_ANEW = (SamplerName.poisson, SamplerName.truncated_poisson, SamplerName.without_replacement)


@dataclass(frozen=True)
class Shape:
    """Options that describe one run, whoever draws its batches."""

    batches: int
    epochs: int
    records: int | None
    times: int
    buffer: int | None
    max_batch: int | None
    clipping: common.ClippingName
    clip_groups: int
    relation: common.RelationName | None

    def drawn_by(self, sampler: SamplerName) -> common.Run:
        """The run with these batches drawn by that sampler, on average ``times`` an epoch for each record."""
        each_anew = sampler in _EACH_ROUND_ANEW
        of_a_size = sampler is SamplerName.without_replacement
        return common.describe_run(
            sampler,
            rate=self.times / self.batches if each_anew and not of_a_size else None,
            steps=self.batches * self.epochs if each_anew else None,
            records=self.records if of_a_size or sampler is SamplerName.truncated_poisson else None,
            batch=self._batch if of_a_size else None,
            batches=None if each_anew else self.batches,
            epochs=None if each_anew else self.epochs,
            clipping=self.clipping,
            clip_groups=self.clip_groups,
            relation=self.relation,
            times=self.times if sampler is SamplerName.random_allocation else None,
            buffer=self.buffer if sampler is SamplerName.buffered_shuffle else None,
            max_batch=self.max_batch if sampler is SamplerName.truncated_poisson else None,
        )

    @property
    def _batch(self) -> int | None:
        """The size of batches drawn without replacement."""
        return None if self.records is None else max(1, self.records * self.times // self.batches)


@audit.callback()
def _group() -> None:
    """Attack what runs, for a lower bound on its epsilon."""


audit.command(cls=Command)(canaries)


@audit.command(cls=Command)
def sampler(
    drawn: Annotated[SamplerName, typer.Option("--sampler", help="What draws the batches.")],
    noise_multiplier: common.Noise,
    batches: Annotated[int, typer.Option(help="Batches per epoch.")],
    claim: Annotated[SamplerName | None, typer.Option(help="What is said to draw them; default: the truth.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 1,
    records: Annotated[int | None, typer.Option(help="Number of records; default: a few per batch.")] = None,
    times: Annotated[int, typer.Option(help="Rounds a record joins in an epoch, where it may be several.")] = 1,
    buffer: common.Buffer = None,
    max_batch: common.MaxBatch = None,
    clipping: common.ClippingOption = common.ClippingName.individual,
    clip_groups: common.ClipGroups = 1,
    relation: Annotated[
        common.RelationName | None, typer.Option(help="Neighbouring relation; default: the claimed sampler's own.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The claimed epsilon; default: what verax proves.")] = None,
    delta: Annotated[float, typer.Option(help="The delta of the claim.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Probability that the bound is right.")] = 0.95,
    trials: Annotated[int, typer.Option(help="Runs to draw; more give a sharper bound.")] = 200_000,
    target: Annotated[int, typer.Option(help="The record under attack.")] = 0,
    insecure_seed: Annotated[int | None, typer.Option(help="Repeat an audit exactly; for tests.")] = None,
    json: common.AsJson = False,
) -> None:
    """Attack the code that draws the batches, and compare with what is claimed for them.

    Exit code 0: not refuted; 1: refuted; 2: bad input.

    Example: verax audit sampler --sampler shuffle --claim poisson -z 1 --batches 100 --delta 1e-5
    """
    batches, epochs = checks.count("--batches", batches), checks.count("--epochs", epochs)
    times = checks.count("--times", times, maximum=batches)
    for option, value, owner in (
        ("--buffer", buffer, SamplerName.buffered_shuffle),
        ("--max-batch", max_batch, SamplerName.truncated_poisson),
    ):
        if value is not None and owner not in (drawn, claim):
            raise ValueError(f"{option} is for {owner.value}, got --sampler {drawn.value}")
    if times != 1 and not {drawn, claim} & {*_EACH_ROUND_ANEW, SamplerName.random_allocation}:
        raise ValueError(f"--times {times} is not for --sampler {drawn.value}, in which a record joins once an epoch")
    shape = Shape(batches, epochs, records, times, buffer, max_batch, clipping, clip_groups, relation)
    if records is None:
        clipped = shape.drawn_by(SamplerName.deterministic).clipping
        shape = replace(shape, records=few_records(Deterministic(batches), clipped))
    said = shape.drawn_by(claim or drawn)
    mechanism = Mechanism(said.sampler, noise_multiplier, said.clipping, said.relation)
    with _shown_progress() as progress:
        result = audit_sampler(
            shape.drawn_by(drawn).sampler, mechanism, epsilon=epsilon, delta=delta, confidence=confidence,
            trials=trials, population=shape.records, target=target, insecure_seed=insecure_seed, progress=progress,
        )  # fmt: skip
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
    """A bar on a terminal's standard error once runs are drawn, which goes away when the work is done."""
    console = Console(stderr=True)
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeRemainingColumn())
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
