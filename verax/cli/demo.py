"""verax demo: price, plan, train, state and audit, in about a minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from verax import Deterministic, Mechanism, Poisson, Shuffle
from verax.auditing import audit_sampler
from verax.cli import output
from verax.planning import Plan, Target, frontier, ranked
from verax.privacy import calibrate
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.figures import samplers_figure
from verax.reporting.statement import Statement
from verax.reporting.statement.text import reach_sentence
from verax.samplers.base import Sampler

BATCHES, NOISES = 1000, (0.5, 0.7, 1.0, 2.0)
POINTS, POINTS_RTOL = 33, 0.01  # of the figure
DELTA, EPSILON, RECORDS = 1e-5, 3.0, 1438
SIZES, EPOCHS, MOST_ROUNDS = (128, 256, 512), (10, 20, 40), 150
LEARNING_RATE = 0.03
AUDITED_BATCH, AUDITED_EPSILON, HONEST_TRIALS, TRIALS = 16, 1.0, 1000, 20_000
SEED = 1  # of the audit, which has no secrets, so that the tour ends alike for everybody
_NEEDED = {"torch": "torch", "sklearn": "scikit-learn", "cryptography": "cryptography"}

Say = Callable[[str], None]


def demo(
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for report, ledger and figure.")
    ] = Path("out"),
) -> None:
    """Price, plan, train on scikit-learn's digits, state and audit, in about a minute.

    It ends with a report to open.

    Example: verax demo --out tour
    """
    console = Console(highlight=False)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    folder.mkdir(parents=True, exist_ok=True)
    say(
        f"1. PRICE: one epoch of {BATCHES:,} batches, the same noise, three ways of drawing the "
        "batches."
    )
    _price(console, say, folder)
    say(
        f"\n2. PLAN: the least noise that keeps {RECORDS:,} records private, for several batch "
        "sizes and lengths."
    )
    plan = _plan(console, say)
    say("\n3. TRAIN: a small network on scikit-learn's digits, by that plan.")
    statement = _train(plan, folder, say) or plan.mechanism.guarantee().statement(DELTA)
    say("\n4. STATE: what a reviewer signs.")
    report = _state(statement, folder, say)
    say("\n5. AUDIT: is it true? Attack the code that draws the batches.")
    _audit(say)
    say(f"\nDone in {time.monotonic() - began:.0f} s. The report is {report}.")
    say(f"Open it in a browser: {report.resolve().as_uri()}")
    if find_spec("verax.cli.serve"):
        say("Plan your own run in a browser: verax serve")


def _price(console: Console, say: Say, folder: Path) -> None:
    samplers: dict[str, Sampler] = {
        "Poisson": Poisson(1.0 / BATCHES, BATCHES),
        "shuffled": Shuffle(BATCHES),
        "deterministic": Deterministic(BATCHES),
    }
    table = Table("noise", *samplers, "factor")
    with output.patience("accounting"):
        for noise in NOISES:
            brackets = [_epsilon(sampler, noise) for sampler in samplers.values()]
            factor = brackets[1].lower / brackets[0].upper
            cells = [
                f"{format_bound(b.lower, LOWER, 4)} .. {format_bound(b.upper, UPPER, 4)}"
                for b in brackets
            ]
            table.add_row(
                f"{noise:g}",
                *cells,
                f">= {format_bound(factor, LOWER, 3)}" if factor > 1.0 else "unknown",
            )
    console.print(table)
    say(f"   Cells: epsilon at delta {DELTA:g} is proved to lie between these.")
    say(
        "   A loader that shuffles but reports the Poisson number understates epsilon by the last "
        "column's factor."
    )
    if find_spec("matplotlib"):
        with output.patience("drawing"):
            curves = {name: _curve(sampler) for name, sampler in samplers.items()}
        say(f"   Figure: {samplers_figure(curves, DELTA, folder / 'samplers.png')}")
    else:
        say("   Skipped: the figure, which needs matplotlib: pip install 'verax[figures]'")


def _epsilon(sampler: Sampler, noise: float, rtol: float = DEFAULT_RTOL) -> Bracket:
    return Mechanism(sampler, noise, relation="zero-out").guarantee().epsilon(DELTA, rtol)


def _curve(sampler: Sampler) -> list[tuple[float, float, float]]:
    """Noises close to each other, with both bounds at each."""
    noises = np.geomspace(min(NOISES), max(NOISES), POINTS).tolist()
    brackets = [_epsilon(sampler, noise, POINTS_RTOL) for noise in noises]
    return [
        (noise, found.lower, found.upper) for noise, found in zip(noises, brackets, strict=True)
    ]


def _plan(console: Console, say: Say) -> Plan:
    target = Target(RECORDS, EPSILON, DELTA)
    with output.patience("planning"):
        plans = ranked(frontier(target, SIZES, EPOCHS, rounds_at_most=MOST_ROUNDS))
    table = Table("batch", "epochs", "rounds", "noise", "epsilon", "signal to noise")
    for plan in plans[:4]:
        table.add_row(
            str(plan.batch),
            str(plan.epochs),
            str(plan.rounds),
            format_bound(plan.noise_multiplier, UPPER, 4),
            f"<= {format_bound(plan.epsilon, UPPER, 4)}",
            f"{plan.signal_of_run:.0f}",
        )
    console.print(table)
    say(
        f"   Budget: epsilon {EPSILON:g} at delta {DELTA:g}. The best four plans; the first one is "
        "run."
    )
    return plans[0]


def _train(plan: Plan, folder: Path, say: Say) -> Statement | None:
    """Train by the plan; return the statement, or None where libraries are missing."""
    missing = [name for module, name in _NEEDED.items() if not find_spec(module)]
    if missing:
        say(
            f"   Skipped: training needs {', '.join(missing)}: pip install 'verax[train]'. The "
            "plan is stated instead."
        )
        return None
    import torch

    from verax.training import fit
    from verax.training.data.examples import accuracy, build, load

    examples = load("digits")
    model = build("mlp", examples)
    ledger = _free(folder, "digits.ledger")
    run = fit(
        model,
        torch.nn.CrossEntropyLoss(),
        examples.train,
        plan.mechanism,
        lambda p: torch.optim.Adam(p, LEARNING_RATE),
        ledger=ledger,
        delta=DELTA,
        records=RECORDS,
    )
    say(f"   {plan.rounds} rounds; batches drawn by {plan.sampler!r}, as priced.")
    say(f"   Accuracy on held-out digits: {accuracy(model, examples.test):.1%}.")
    say(f"   Every release was written to {ledger} before its noise was added.")
    return run.statement()


def _free(folder: Path, name: str) -> Path:
    """A file that does not exist yet: a ledger is never written over."""
    first = folder / name
    others = (first.with_stem(f"{first.stem}-{number}") for number in range(2, 10_000))
    return next(path for path in (first, *others) if not path.exists())


def _state(statement: Statement, folder: Path, say: Say) -> Path:
    facts = statement.facts
    say("   " + statement.splitlines()[0])
    say("   " + reach_sentence(facts, facts.reach[1]))
    say("   Not covered: " + ", ".join(facts.uncovered) + ". The report says what each means.")
    for run in facts.runs:
        say(f"   The same from the ledger alone: verax report {run.path} --delta {DELTA:g}")
    return statement.write(folder / "report.html")


def _audit(say: Say) -> None:
    """Audit the claim of Poisson batches, for Poisson batches and for the usual loader's."""
    batches = math.ceil(RECORDS / AUDITED_BATCH)
    honest, rng = Poisson(1.0 / batches, batches), np.random.default_rng(SEED)
    claim = Mechanism(honest, calibrate.noise_multiplier(honest, AUDITED_EPSILON, DELTA))

    def loader() -> Iterable[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        """What many training scripts do: shuffle, then cut; two records a batch show it best."""
        return rng.permutation(2 * batches).reshape(batches, 2)

    noise, claimed = claim.noise_multiplier, claim.guarantee().epsilon(DELTA)
    say(
        f"   Claim: {batches} Poisson batches, noise {noise:.4g}: epsilon at most "
        f"{format_bound(claimed.upper, UPPER, 4)}."
    )
    with output.patience("auditing"):
        fair = audit_sampler(honest, claim, delta=DELTA, trials=HONEST_TRIALS, insecure_seed=SEED)
        lie = audit_sampler(loader, claim, delta=DELTA, trials=TRIALS, insecure_seed=SEED)
    for drawn, found in (("Poisson batches", fair), ("a loader that shuffles and cuts", lie)):
        say(
            f"   {'REFUTED' if found.refuted else 'Not refuted'}: {drawn}: an attack over "
            f"{found.trials:,} runs proves epsilon at least "
            f"{format_bound(found.lower, LOWER, 3)}, with "
            f"{found.confidence:.0%} confidence."
        )
    truth = Mechanism(Shuffle(batches), noise).guarantee().epsilon(DELTA)
    least, most = format_bound(truth.lower, LOWER, 4), format_bound(truth.upper, UPPER, 4)
    say(f"   What is proved for the loader that shuffles: epsilon between {least} and {most}.")
