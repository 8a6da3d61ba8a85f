"""verax train: a private model from the command line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from verax import Mechanism, checks
from verax.cli import output
from verax.cli.options import (
    ClipGroups,
    ClippingName,
    ClippingOption,
    Epochs,
    ExpectedBatch,
    Json,
    MechanismFields,
    ModelName,
    NoiseInstead,
    OptimizerName,
    SamplerOption,
    SpecialFlags,
    checked_files,
    flat,
    option,
)
from verax.ledger.run import NOT_PRIVATE, at_most
from verax.privacy import calibrate
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER

if TYPE_CHECKING:
    from verax.training.trainer import PrivateTrainer


@contextmanager
def _report_interruption(state: Path | None, ledger: Path | None, delta: float) -> Iterator[None]:
    """Say after Ctrl-C what was released until then, what it cost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        console = output.console(stderr=True)
        for line in _interruption_lines(getattr(stopped, "trainer", None), state, ledger, delta):
            console.print(line)
        raise


def _interruption_lines(
    trainer: PrivateTrainer | None, state: Path | None, ledger: Path | None, delta: float
) -> Iterator[str]:
    """What the first process says, which knows; without a trainer nothing was begun."""
    if trainer is not None and not trainer.first:
        return
    if trainer is not None:
        yield from _spending_lines(trainer, delta)
    if state is not None and state.exists():
        yield (
            f"The run is kept in {state}: the same command goes on with it. What was released is "
            "spent."
        )
    elif trainer is not None and trainer.rounds:
        stated = "" if ledger is None else f" verax report {ledger} states what was released."
        yield (
            "Without --state nothing can go on with this run; another one costs its own epsilon "
            f"on top of this one's.{stated} With --state FILE the same command goes on after "
            "Ctrl-C."
        )


def _spending_lines(trainer: PrivateTrainer, delta: float) -> Iterator[str]:
    """What the rounds so far cost: if they were to be so many, and as part of the declared run."""
    released = f"{trainer.rounds} of {len(trainer.mechanism.sampler)} rounds were released"
    so_far = trainer.so_far
    if so_far is None:
        yield f"{released}: nothing was spent."
        return
    whole = trainer.guarantee.epsilon(delta)
    found = at_most(so_far.epsilon(delta), whole)
    between = f"{format_bound(found.lower, LOWER)} and {format_bound(found.upper, UPPER)}"
    yield (
        f"{released}. They cost an epsilon between {between} at delta {delta:g} if neither data "
        "nor results had a say in when the run stopped, and at most "
        f"{format_bound(whole.upper, UPPER)}, the price of all its rounds, whatever the reason."
    )
    if not trainer.private:
        yield NOT_PRIVATE


@dataclass(frozen=True, kw_only=True)
class TrainOptions(MechanismFields):
    """What ``verax train`` is asked."""

    data: str = option(
        "digits, mnist (see VERAX_DATA), or a .csv file: names, then numbers, the class last.",
        default="digits",
    )
    model: ModelName = option("What to train.", default=ModelName.mlp)
    epsilon: float | None = option("The budget; the noise is then computed.")
    noise_multiplier: NoiseInstead = None
    delta: float = option("The delta of the budget and of the statement.", default=1e-5)
    sampler: SamplerOption = "poisson"
    batch: ExpectedBatch = None
    epochs: Epochs = 10
    special: SpecialFlags
    clipping: ClippingOption = ClippingName.individual
    clip_groups: ClipGroups = 1
    clip_norm: float = option("The norm gradients are clipped to.", default=1.0)
    optimizer: OptimizerName = option("What uses the noisy gradients.", default=OptimizerName.adam)
    learning_rate: float = option("Its step size.", "--learning-rate", "--lr", default=3e-3)
    public: int | None = option(
        "A public number of records; by default the file's own, as if public.", "--records"
    )
    ledger: Path | None = option("Record every release in this new file.")
    state: Path | None = option(
        "Keep the run in this secret file; if it is there, go on with that run."
    )
    out: Path | None = option("Save the model's weights here.")
    report: Path | None = option("Save the statement here, as a page if it ends in .html.")
    diagnostics: Path | None = option(
        "Losses and gradient norms, which no noise protects, into this new file."
    )
    insecure_seed: int | None = option("For tests only: repeatable, and not private.")
    json: Json = False


@flat
def train(options: TrainOptions) -> None:
    """Plan, train and state: noise for the budget, accuracy on held-out records, what it cost.

    Example: verax train --data digits --model mlp --epsilon 3 --delta 1e-5 --ledger run.ledger

    With --state, the same command goes on with a run that was interrupted.

    Of a .csv file about every fifth record is held out for testing, and how many records and which
    classes it has is taken to be public; --records gives another number to plan and train with.

    In two processes: torchrun --no-python --nproc-per-node 2 verax train --data digits --epsilon 3
    """
    if (options.epsilon is None) == (options.noise_multiplier is None):
        raise ValueError("give either --epsilon, or --noise-multiplier")
    norm = checks.positive("--clip-norm", options.clip_norm)
    clipping = replace(options.build_clipping(), norm=norm)
    checks.positive("--learning-rate", options.learning_rate)
    files = {
        "--ledger": options.ledger,
        "--state": options.state,
        "--out": options.out,
        "--report": options.report,
        "--diagnostics": options.diagnostics,
    }
    checked_files(files, saved=("--out", "--report", "--state"))
    import torch

    from verax.training import fit
    from verax.training.data.examples import accuracy, build, load
    from verax.training.distributed import launched
    from verax.training.performance.malloc import keep_freed_blocks

    keep_freed_blocks()
    examples = load(options.data)
    if options.insecure_seed is not None:
        torch.manual_seed(options.insecure_seed)
    network = build(options.model.value, examples)
    here = len(examples.train[1])
    records = here if options.public is None else checks.count("--records", options.public)
    sampler = options.special.build(options.sampler, records, options.batch, options.epochs)
    noise = options.noise_multiplier or 0.0
    if options.epsilon is not None:
        with output.patience("planning"):
            noise = calibrate.noise_multiplier(
                sampler, options.epsilon, options.delta, clipping=clipping
            )
    mechanism = Mechanism(sampler, noise, clipping)
    with launched() as first, _report_interruption(options.state, options.ledger, options.delta):
        fitted = fit(
            network,
            torch.nn.CrossEntropyLoss(),
            examples.train,
            mechanism,
            lambda p: options.optimizer.build(p, options.learning_rate),
            ledger=options.ledger,
            delta=options.delta,
            records=records if examples.public else options.public,
            state=options.state,
            diagnostics=options.diagnostics,
            insecure_seed=options.insecure_seed,
        )
    if not first:
        return
    right = accuracy(network, examples.test)
    if options.out is not None:
        torch.save(network.state_dict(), options.out)
    statement = fitted.statement(options.report)
    found = statement.facts.epsilon
    number = [] if options.public is not None else [f"that there are {here:,} records to train on"]
    taken = (
        ""
        if examples.public
        else " and ".join([*number, f"that there are {examples.classes} classes"])
    )
    if options.json:
        output.print_json(
            {
                "mechanism": repr(mechanism),
                "noise_multiplier": noise,
                "accuracy": right,
                "delta": options.delta,
                "epsilon": found,
                "private": statement.facts.private and math.isfinite(found.upper),
                "taken_to_be_public": taken,
                "ledger": options.ledger and str(options.ledger),
            }
        )
        return
    console = output.console()
    console.print(
        f"noise multiplier {format_bound(noise, LOWER, 5)}, "
        f"accuracy on held-out records {right:.1%}"
    )
    if taken:
        console.print(f"Taken to be public: {taken}.")
    console.print(statement)
