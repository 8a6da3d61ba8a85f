"""verax audit: attack what runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import typer

from verax import Deterministic, Mechanism, checks
from verax.auditing import SamplerAudit, audit_sampler
from verax.auditing.transcript import few_records
from verax.cli import output
from verax.cli.audit_canaries import canaries
from verax.cli.commands import Command, Group
from verax.cli.options import (
    ClipGroups,
    ClippingName,
    ClippingOption,
    Epochs,
    Json,
    MechanismFields,
    Noise,
    RelationName,
    SpecialFlags,
    flat,
    option,
)
from verax.samplers import registry
from verax.samplers.base import Sampler
from verax.samplers.options import build, flags_of, owners_of

audit = typer.Typer(
    cls=Group, help="Attack what runs, for a lower bound on its epsilon.", no_args_is_help=True
)


@audit.callback()
def _group() -> None:
    """Attack what runs, for a lower bound on its epsilon."""


audit.command(cls=Command)(canaries)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(MechanismFields):
    """What ``verax audit sampler`` is asked."""

    drawn: str = option(
        f"What draws the batches: {', '.join(registry.names())}.", "--sampler", default=...
    )
    noise_multiplier: Noise
    batches: int = option("Batches per epoch.", default=...)
    claim: str | None = option("What is said to draw them; default: the truth.")
    epochs: Epochs = 1
    records: int | None = option("Number of records; default: a few per batch.")
    special: SpecialFlags
    clipping: ClippingOption = ClippingName.individual
    clip_groups: ClipGroups = 1
    relation: RelationName | None = option(
        "Neighbouring relation; default: the claimed sampler's own."
    )
    epsilon: float | None = option("The claimed epsilon; default: what verax proves.")
    delta: float = option("The delta of the claim.", default=1e-5)
    confidence: float = option("Probability that the bound is right.", default=0.95)
    trials: int = option("Runs to draw; more give a sharper bound.", default=200_000)
    target: int = option("The record under attack.", default=0)
    insecure_seed: int | None = option("Repeat an audit exactly; for tests.")
    json: Json = False

    def drawn_by(self, name: str) -> Sampler:
        """These batches drawn by the sampler of this name."""
        batches, records = self.batches, self.records
        times = checks.count("--times", self.special.get("--times") or 1, maximum=batches)
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

    def refuse_idle(self) -> None:
        """Refuse options that say nothing about the samplers that draw or are claimed."""
        flags = flags_of(self.drawn) | (flags_of(self.claim) if self.claim else set())
        for flag, value in self.special.items():
            often = flag == "--times" and flags & {"--rate", "--batch"}
            if value is not None and flag not in flags and not often:
                owners = ", ".join(owners_of(flag))
                raise ValueError(
                    f"{flag} {value} is not for --sampler {self.drawn}, but for {owners}"
                )


@audit.command(cls=Command)
@flat
def sampler(options: AuditOptions) -> None:
    """Attack the code that draws the batches, and compare with what is claimed for them.

    Exit code 0: not refuted; 1: refuted; 2: bad input.

    Example: verax audit sampler --sampler shuffle --claim poisson -z 1 --batches 100 --delta 1e-5
    """
    checks.count("--batches", options.batches)
    checks.count("--epochs", options.epochs)
    clipping = options.build_clipping()
    options.refuse_idle()
    if options.records is None:
        options = replace(options, records=few_records(Deterministic(options.batches), clipping))
    mechanism = Mechanism(
        options.drawn_by(options.claim or options.drawn),
        options.noise_multiplier,
        clipping,
        options.relation_name,
    )
    with output.progress_bar("auditing", "runs") as progress:
        result = audit_sampler(
            options.drawn_by(options.drawn),
            mechanism,
            epsilon=options.epsilon,
            delta=options.delta,
            confidence=options.confidence,
            trials=options.trials,
            population=options.records,
            target=options.target,
            insecure_seed=options.insecure_seed,
            progress=progress,
        )
    if options.json:
        output.print_json(_plain(result))
    else:
        output.console().print(result.statement())
    if result.refuted:
        raise typer.Exit(1)


def _plain(result: SamplerAudit) -> dict[str, object]:
    return {
        "refuted": result.refuted,
        "lower": result.lower,
        "claim": output.plain(result.claim),
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
