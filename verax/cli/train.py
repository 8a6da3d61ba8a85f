"""verax train: a private model from the command line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from verax import Mechanism, checks
from verax.cli import common
from verax.cli.options import (
    ClipGroups,
    ClippingName,
    ClippingOption,
    SamplerOption,
    SpecialFlags,
    clippings_by_name,
    flat,
    with_norm,
)
from verax.ledger.run import NOT_PRIVATE, at_most
from verax.privacy import calibrate
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.statement import savable
from verax.samplers.options import build as build_sampler

if TYPE_CHECKING:
    from verax.training.trainer import PrivateTrainer


class ModelName(StrEnum):
    """Models that can be named on the command line."""

    logistic = "logistic"
    mlp = "mlp"
    lenet = "lenet"
    cnn = "cnn"


class OptimizerName(StrEnum):
    """Optimizers that can be named on the command line."""

    sgd = "sgd"
    adam = "adam"


@contextmanager
def _interruptible(state: Path | None, ledger: Path | None, delta: float) -> Iterator[None]:
    """Say after Ctrl-C what was released until then, what it cost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        for line in _said_after(getattr(stopped, "trainer", None), state, ledger, delta):
            console.print(line)
        raise


def _said_after(
    trainer: PrivateTrainer | None,
    state: Path | None,
    ledger: Path | None,
    delta: float,
) -> Iterator[str]:
    """What the first process says, which knows; without a trainer nothing was begun."""
    if trainer is not None and not trainer.first:
        return
    if trainer is not None:
        yield from _spent(trainer, delta)
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


def _spent(trainer: PrivateTrainer, delta: float) -> Iterator[str]:
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


@flat
def train(
    *,
    data: Annotated[
        str,
        typer.Option(
            help="digits, mnist (see VERAX_DATA), or a .csv file: names, then numbers, "
            "the class last."
        ),
    ] = "digits",
    model: Annotated[ModelName, typer.Option(help="What to train.")] = ModelName.mlp,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget; the noise is then computed.")
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option("--noise-multiplier", "-z", help="The noise, in place of --epsilon."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="The delta of the budget and of the statement.")
    ] = 1e-5,
    sampler: SamplerOption = "poisson",
    batch: common.ExpectedBatch = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 10,
    special: SpecialFlags,
    clipping: ClippingOption = ClippingName.individual,
    clip_groups: ClipGroups = 1,
    clip_norm: Annotated[float, typer.Option(help="The norm gradients are clipped to.")] = 1.0,
    optimizer: Annotated[
        OptimizerName, typer.Option(help="What uses the noisy gradients.")
    ] = OptimizerName.adam,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", "--lr", help="Its step size.")
    ] = 3e-3,
    public: Annotated[
        int | None,
        typer.Option(
            "--records", help="A public number of records; by default the file's own, as if public."
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Record every release in this new file.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Keep the run in this secret file; if it is there, go on with that run."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the model's weights here.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Save the statement here, as a page if it ends in .html.")
    ] = None,
    diagnostics: Annotated[
        Path | None,
        typer.Option(
            help="Losses and gradient norms, which no noise protects, into this new file."
        ),
    ] = None,
    insecure_seed: Annotated[
        int | None, typer.Option(help="For tests only: repeatable, and not private.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """Plan, train and state: noise for the budget, private training, accuracy on held-out records, what it cost.

    Example: verax train --data digits --model mlp --epsilon 3 --delta 1e-5 --ledger run.ledger

    With --state, the same command goes on with a run that was interrupted.

    Of a .csv file about every fifth record is held out for testing, and how many records and which
    classes it has is taken to be public; --records gives another number to plan and train with.

    In two processes: torchrun --no-python --nproc-per-node 2 verax train --data digits --epsilon 3
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give either --epsilon, or --noise-multiplier")
    checks.positive("--clip-norm", clip_norm)
    clipped = with_norm(clippings_by_name(clip_groups, [clipping.value])[clipping.value], clip_norm)
    checks.positive("--learning-rate", learning_rate)
    if report is not None:
        savable(report)
    for option, path in (("--out", out), ("--report", report), ("--state", state)):
        if path is not None:
            checks.writable(option, path)
    common.apart(
        {
            "--ledger": ledger,
            "--state": state,
            "--out": out,
            "--report": report,
            "--diagnostics": diagnostics,
        }
    )
    import torch

    from verax.training import fit
    from verax.training.data.examples import accuracy, build, load
    from verax.training.distributed import launched
    from verax.training.performance.malloc import keep_freed_blocks

    keep_freed_blocks()
    examples = load(data)
    if insecure_seed is not None:
        torch.manual_seed(insecure_seed)
    network = build(model.value, examples)
    here = len(examples.train[1])
    records = here if public is None else checks.count("--records", public)
    drawing = {
        "--records": records,
        "--batch": common.expected_batch(batch, records),
        "--epochs": epochs,
    }
    described = build_sampler(sampler, {**special, **drawing})
    noise = noise_multiplier or 0.0
    if epsilon is not None:
        with common.patience("planning"):
            noise = calibrate.noise_multiplier(described, epsilon, delta, clipping=clipped)
    mechanism = Mechanism(described, noise, clipped)
    kinds: dict[OptimizerName, Any] = {
        OptimizerName.sgd: torch.optim.SGD,
        OptimizerName.adam: torch.optim.Adam,
    }
    with launched() as first, _interruptible(state, ledger, delta):
        fitted = fit(
            network,
            torch.nn.CrossEntropyLoss(),
            examples.train,
            mechanism,
            lambda p: kinds[optimizer](p, learning_rate),
            ledger=ledger,
            delta=delta,
            records=records if examples.public else public,
            state=state,
            diagnostics=diagnostics,
            insecure_seed=insecure_seed,
        )
    if not first:
        return
    right = accuracy(network, examples.test)
    if out is not None:
        torch.save(network.state_dict(), out)
    statement = fitted.statement(report)
    found = statement.facts.epsilon
    number = [] if public is not None else [f"that there are {here:,} records to train on"]
    taken = (
        ""
        if examples.public
        else " and ".join([*number, f"that there are {examples.classes} classes"])
    )
    if json:
        common.print_json(
            {
                "mechanism": repr(mechanism),
                "noise_multiplier": noise,
                "accuracy": right,
                "delta": delta,
                "epsilon": found,
                "private": statement.facts.private and math.isfinite(found.upper),
                "taken_to_be_public": taken,
                "ledger": ledger and str(ledger),
            }
        )
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"noise multiplier {format_bound(noise, LOWER, 5)}, accuracy on held-out records {right:.1%}"
    )
    if taken:
        console.print(f"Taken to be public: {taken}.")
    console.print(statement)
