"""verax federate: a private model of many clients from the command line."""

from __future__ import annotations

import json as json_lines
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from verax import checks
from verax.cli import common
from verax.cli.train import ModelName, OptimizerName
from verax.privacy import calibrate
from verax.privacy.guarantee import Bracket, shown
from verax.privacy.pld.composition import UPPER
from verax.reporting.statement import savable

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


def federate(
    data: Annotated[
        str, typer.Option(help="digits, mnist, heart (see VERAX_DATA), or a .csv, class last.")
    ] = "digits",
    by: Annotated[
        str | None, typer.Option(help="Clients are writers (mnist), or a column of the .csv.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Deal records out to this many clients; default 20.")
    ] = None,
    model: Annotated[ModelName, typer.Option(help="What to train.")] = ModelName.mlp,
    client_rate: Annotated[
        float, typer.Option(help="Probability that a client takes part in a round.")
    ] = 0.5,
    record_rate: Annotated[
        float, typer.Option(help="Probability that it then uses a record.")
    ] = 0.5,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 60,
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
    unit: Annotated[
        UnitName, typer.Option(help="Protect one record, or all data of a client.")
    ] = UnitName.record,
    noise: Annotated[
        NoiseName,
        typer.Option(
            help="Added by a trusted server, by clients that always send, or by those that do."
        ),
    ] = NoiseName.central,
    bins: Annotated[
        int | None,
        typer.Option(help="Each client picks one round out of this many; for --unit client."),
    ] = None,
    clip_norm: Annotated[
        float, typer.Option(help="The norm that records, or clients, are clipped to.")
    ] = 1.0,
    optimizer: Annotated[
        OptimizerName, typer.Option(help="What uses the noisy sums.")
    ] = OptimizerName.adam,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", "--lr", help="Its step size.")
    ] = 3e-3,
    engine: Annotated[
        EngineName,
        typer.Option(help="One process, or Flower with a process for each client, on this host."),
    ] = EngineName.embedded,
    ledger: Annotated[
        Path | None, typer.Option(help="Record every release in this new file.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Keep the server's state here, to go on after a crash.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from --ledger and --state.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(help="Write progress here, a JSON object a line.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save the model's weights here.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Save the statement here, as a page if it ends in .html.")
    ] = None,
    insecure_seed: Annotated[
        int | None, typer.Option(help="For tests only: repeatable, and not private.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """Plan, train across clients, and state accuracy and every client's epsilon.

    Example: verax federate --data digits --clients 36 --client-rate .5 --record-rate .5 --rounds
        100 --epsilon 4
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give either --epsilon, or --noise-multiplier")
    if resume and (ledger is None or state is None):
        raise ValueError("--resume needs --ledger and --state, the files of the run that broke off")
    if report is not None:
        savable(report)
    for option, path in (("--out", out), ("--report", report)):
        if path is not None:
            checks.writable(option, path)
    common.apart(
        {"--ledger": ledger, "--state": state, "--log": log, "--out": out, "--report": report}
    )
    import torch

    from verax.federated import Embedded, Plan
    from verax.federated.splits import split
    from verax.training.data.examples import accuracy, build
    from verax.training.performance.malloc import keep_freed_blocks

    keep_freed_blocks()
    found = split(data, clients, by)
    plan = Plan(
        len(found.sizes),
        int(found.sizes.sum()),
        int(found.sizes.max()),
        client_rate,
        record_rate,
        rounds,
        noise_multiplier or 0.0,
        clip_norm,
        unit.value,
        noise.value,
        bins,
    )
    if epsilon is not None:
        plan = _planned(plan, epsilon, delta)
    if insecure_seed is not None:
        torch.manual_seed(insecure_seed)
    network = build(model.value, found.examples)
    kinds: dict[OptimizerName, Any] = {
        OptimizerName.sgd: torch.optim.SGD,
        OptimizerName.adam: torch.optim.Adam,
    }
    kind = Embedded if engine is EngineName.embedded else _flower()
    how = kind.restart if resume else kind
    files: dict[str, Any] = {"ledger": ledger, "state": state}
    run = how(
        plan,
        network,
        torch.nn.CrossEntropyLoss(),
        found.examples.train,
        found.sizes,
        lambda p: kinds[optimizer](p, learning_rate),
        insecure_seed=insecure_seed,
        **files,
    )
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=json)
    console.print(_opening(plan))
    spent = _Spent(run, delta, epsilon)
    with _reporting(console, spent, log, lambda: accuracy(network, found.examples.test)) as (
        after,
        entries,
    ):
        run.run(after)
    statement = run.statement(delta)
    if out is not None:
        torch.save(network.state_dict(), out)
    if report is not None:
        statement.write(report)
    least, most = spent.whole
    if json:
        common.print_json(
            {
                "plan": {name: getattr(plan, name) for name in plan.__dataclass_fields__},
                "delta": delta,
                "accuracy": accuracy(network, found.examples.test),
                "epsilon": most,
                "epsilon_of_smallest_client": least,
                "private": insecure_seed is None,
                "ledger": ledger and str(ledger),
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
    with common.patience("planning"):
        least = calibrate.noise_multiplier(
            run.sampler, epsilon, delta, clipping=run.clipping, relation=run.relation
        )
    return replace(plan, noise_multiplier=least)


def _opening(plan: Plan) -> str:
    per_round = f"{plan.client_rate * plan.clients:.4g} take part in a round on average"
    return (
        f"{plan.clients} clients with {plan.records} records, at most {plan.largest} each; "
        f"{per_round}; noise multiplier {shown(plan.noise_multiplier, UPPER, 5)}, {plan.noise}"
    )


@contextmanager
def _reporting(
    console: Console, spent: _Spent, log: Path | None, accuracy: Callable[[], float]
) -> Iterator[tuple[Callable[[Embedded], None], list[dict[str, Any]]]]:
    """The callback after every round; the number of participants is secret, never shown."""
    plan = spent.run.plan
    every, entries = max(plan.rounds // _REPORTS, 1), list[dict[str, Any]]()
    screen = Console(stderr=True)
    with ExitStack() as stack:
        file = None if log is None else stack.enter_context(log.open("a", encoding="utf-8"))
        bar = task = None
        if screen.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            bar = stack.enter_context(Progress(*columns, console=screen, transient=True))
            task = bar.add_task("rounds", total=plan.rounds)

        def after(engine: Embedded) -> None:
            if bar is not None and task is not None:
                bar.update(task, completed=engine.round)
            if engine.round % every and engine.round != plan.rounds:
                return
            entry = _entry(spent, accuracy())
            entries.append(entry)
            if file is not None:
                file.write(json_lines.dumps(common.plain(entry)) + "\n")
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
            return shown(value, UPPER)
        texts = (shown(value, UPPER, digits) for digits in range(5, 18))
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
