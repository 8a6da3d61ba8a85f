"""verax federate: a private model of many clients from the command line."""

from __future__ import annotations

import json as json_lines
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from verax import checks
from verax.cli import output
from verax.cli.options import (
    Json,
    ModelName,
    NoiseInstead,
    OptimizerName,
    checked_files,
    flat,
    option,
)
from verax.privacy import calibrate
from verax.privacy.guarantee import Bracket, format_bound
from verax.privacy.pld.composition import UPPER

if TYPE_CHECKING:
    from verax.federated import Embedded, Plan

_REPORTS = 10  # how often accuracy and epsilon so far are computed
_ROUGH = 0.005  # accuracy of the epsilon so far


class UnitName(StrEnum):
    """Who is protected."""

    record = "record"
    client = "client"


class NoiseName(StrEnum):
    """Who adds the noise."""

    central = "central"
    local = "local"
    visible = "visible"


class EngineName(StrEnum):
    """What carries the messages."""

    embedded = "embedded"
    flower = "flower"


@dataclass(frozen=True, kw_only=True)
class FederateOptions:
    """What ``verax federate`` is asked."""

    data: str = option(
        "digits, mnist, heart (see VERAX_DATA), or a .csv, class last.", default="digits"
    )
    by: str | None = option("Clients are writers (mnist), or a column of the .csv.")
    clients: int | None = option("Deal records out to this many clients; default 20.")
    model: ModelName = option("What to train.", default=ModelName.mlp)
    client_rate: float | None = option(
        "Probability that a client takes part in a round; default .5, or 1 / --bins."
    )
    record_rate: float = option("Probability that it then uses a record.", default=0.5)
    rounds: int = option("Number of rounds.", default=60)
    epsilon: float | None = option("The budget; the noise is then computed.")
    noise_multiplier: NoiseInstead = None
    delta: float = option("The delta of the budget and of the statement.", default=1e-5)
    unit: UnitName = option("Protect one record, or all data of a client.", default=UnitName.record)
    noise: NoiseName = option(
        "Added by a trusted server, by clients that always send, or by those that do.",
        default=NoiseName.central,
    )
    bins: int | None = option("Each client picks one round out of this many; for --unit client.")
    clip_norm: float = option("The norm that records, or clients, are clipped to.", default=1.0)
    optimizer: OptimizerName = option("What uses the noisy sums.", default=OptimizerName.adam)
    learning_rate: float = option("Its step size.", "--learning-rate", "--lr", default=3e-3)
    engine: EngineName = option(
        "One process, or Flower with a process for each client, on this host.",
        default=EngineName.embedded,
    )
    ledger: Path | None = option("Record every release in this new file.")
    state: Path | None = option("Keep the server's state here, to go on after a crash.")
    resume: bool = option("Go on from --ledger and --state.", "--resume", default=False)
    log: Path | None = option("Write progress here, a JSON object a line.")
    out: Path | None = option("Save the model's weights here.")
    report: Path | None = option("Save the statement here, as a page if it ends in .html.")
    insecure_seed: int | None = option("For tests only: repeatable, and not private.")
    json: Json = False


@flat
def federate(options: FederateOptions) -> None:
    """Plan, train across clients, and state accuracy and every client's epsilon.

    Example: verax federate --data digits --clients 36 --rounds 100 --epsilon 4
    """
    if (options.epsilon is None) == (options.noise_multiplier is None):
        raise ValueError("give either --epsilon, or --noise-multiplier")
    if options.resume and (options.ledger is None or options.state is None):
        raise ValueError("--resume needs --ledger and --state, the files of the run that broke off")
    files = {
        "--ledger": options.ledger,
        "--state": options.state,
        "--log": options.log,
        "--out": options.out,
        "--report": options.report,
    }
    checked_files(files, saved=("--out", "--report"))
    import torch

    from verax.federated import Embedded, Plan
    from verax.federated.splits import split
    from verax.training.data.examples import accuracy, build
    from verax.training.performance.malloc import keep_freed_blocks

    keep_freed_blocks()
    found = split(options.data, options.clients, options.by)
    plan = Plan(
        len(found.sizes),
        int(found.sizes.sum()),
        int(found.sizes.max()),
        _client_rate(options),
        options.record_rate,
        options.rounds,
        options.noise_multiplier or 0.0,
        options.clip_norm,
        options.unit.value,
        options.noise.value,
        options.bins,
    )
    if options.epsilon is not None:
        plan = _planned(plan, options.epsilon, options.delta)
    if options.insecure_seed is not None:
        torch.manual_seed(options.insecure_seed)
    network = build(options.model.value, found.examples)
    kind = Embedded if options.engine is EngineName.embedded else _flower()
    how = kind.restart if options.resume else kind
    state: dict[str, Any] = {"ledger": options.ledger, "state": options.state}
    run = how(
        plan,
        network,
        torch.nn.CrossEntropyLoss(),
        found.examples.train,
        found.sizes,
        lambda p: options.optimizer.build(p, options.learning_rate),
        insecure_seed=options.insecure_seed,
        **state,
    )
    console = output.console(quiet=options.json)
    console.print(_opening(plan))
    spent = _Spent(run, options.delta, options.epsilon)
    measure = partial(accuracy, network, found.examples.test)
    with _reporting(console, spent, options.log, measure) as (after, entries):
        run.run(after)
    statement = run.statement(options.delta)
    if options.out is not None:
        torch.save(network.state_dict(), options.out)
    if options.report is not None:
        statement.write(options.report)
    least, most = spent.whole
    if options.json:
        output.print_json(
            {
                "plan": {name: getattr(plan, name) for name in plan.__dataclass_fields__},
                "delta": options.delta,
                "accuracy": accuracy(network, found.examples.test),
                "epsilon": most,
                "epsilon_of_smallest_client": least,
                "private": options.insecure_seed is None,
                "ledger": options.ledger and str(options.ledger),
                "log": entries,
                "statement": statement.content(),
            }
        )
        return
    console.print(
        f"accuracy on held-out records {accuracy(network, found.examples.test):.1%}; every client "
        f"accounts for itself: epsilon from {spent.shown(least.upper)} (fewest records) to "
        f"{spent.shown(most.upper)} (most)"
    )
    console.print(statement)


def _client_rate(options: FederateOptions) -> float:
    """The rate that was given, or else what --bins says, or .5."""
    if options.client_rate is not None:
        return options.client_rate
    return 1.0 / checks.count("--bins", options.bins) if options.bins is not None else 0.5


def _flower() -> type[Embedded]:
    try:
        from verax.federated.flower.engine import LocalFlower
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"--engine flower needs {error.name}, which is not installed: pip install "
            "'verax[federated]'"
        ) from error
    return LocalFlower


def _planned(plan: Plan, epsilon: float, delta: float) -> Plan:
    """The plan with the least noise for the budget of the client with the most records."""
    run = plan.mechanism()
    with output.patience("planning"):
        least = calibrate.noise_multiplier(
            run.sampler, epsilon, delta, clipping=run.clipping, relation=run.relation
        )
    return replace(plan, noise_multiplier=least)


def _opening(plan: Plan) -> str:
    per_round = f"{plan.client_rate * plan.clients:.4g} take part in a round on average"
    return (
        f"{plan.clients} clients with {plan.records} records, at most {plan.largest} each; "
        f"{per_round}; noise multiplier "
        f"{format_bound(plan.noise_multiplier, UPPER, 5)}, {plan.noise}"
    )


@contextmanager
def _reporting(
    console: Console, spent: _Spent, log: Path | None, accuracy: Callable[[], float]
) -> Iterator[tuple[Callable[[Embedded], None], list[dict[str, Any]]]]:
    """The callback after every round; the number of participants is secret, never shown."""
    plan = spent.run.plan
    every, entries = max(plan.rounds // _REPORTS, 1), list[dict[str, Any]]()
    with ExitStack() as stack:
        file = None if log is None else stack.enter_context(log.open("a", encoding="utf-8"))
        progress = stack.enter_context(output.progress_bar("rounds"))

        def after(engine: Embedded) -> None:
            progress(engine.round, plan.rounds)
            if engine.round % every and engine.round != plan.rounds:
                return
            entry = _entry(spent, accuracy())
            entries.append(entry)
            if file is not None:
                file.write(json_lines.dumps(output.plain(entry)) + "\n")
                file.flush()
            low, high = entry["epsilon_so_far"]
            console.print(
                f"round {entry['round']} of {plan.rounds}, {entry['participants_expected']:.4g} "
                f"clients expected, accuracy {entry['accuracy']:.1%}, epsilon of clients so far "
                f"{spent.shown(low)} to {spent.shown(high)}"
            )

        yield after, entries


@dataclass(frozen=True)
class _Spent:
    """What a run costs, so far and as a whole: one pair of numbers wherever it is printed."""

    run: Embedded
    delta: float
    budget: float | None

    @cached_property
    def whole(self) -> tuple[Bracket, Bracket]:
        """Of the client with the fewest records, and of the one with the most."""
        return self.run.epsilons(self.delta)

    def so_far(self) -> list[float]:
        """Approximate cost of a run planned to stop here, at most that of the whole run."""
        run, plan = self.run, self.run.plan
        ends = [bracket.upper for bracket in self.whole]
        if run.round == plan.rounds:
            return ends
        done = run.round if plan.bins is None else -(-run.round // plan.bins) * plan.bins
        part = replace(plan, rounds=done)
        sizes = int(run.sizes.min()), int(run.sizes.max())
        least, most = (
            part.guarantee(size).epsilon(self.delta, rtol=_ROUGH).upper for size in sizes
        )
        high = min(most, ends[1])
        return [min(least, ends[0], high), high]

    def shown(self, value: float) -> str:
        """Rounded up as in the statement, with more digits if it would else leave the budget."""
        if self.budget is None or value > self.budget:
            return format_bound(value, UPPER)
        texts = (format_bound(value, UPPER, digits) for digits in range(5, 18))
        return next((text for text in texts if float(text) <= self.budget), repr(value))


def _entry(spent: _Spent, accuracy: float) -> dict[str, Any]:
    """Where the run is."""
    run, plan = spent.run, spent.run.plan
    return {
        "round": run.round,
        "rounds": plan.rounds,
        "participants_expected": plan.client_rate * plan.clients,
        "accuracy": accuracy,
        "epsilon_so_far": spent.so_far(),
        "delta": spent.delta,
    }
