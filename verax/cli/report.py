"""verax report: what ran, and what it guarantees."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from verax.cli import common
from verax.training.description import describe
from verax.training.entries import DamagedLedger
from verax.training.ledger import read
from verax.training.ran import Run, compose, if_independent, statement


def report(
    ledgers: Annotated[list[str], typer.Argument(help="Ledgers of runs on the same data.", show_default=False)],
    delta: Annotated[float, typer.Option(help="Report epsilon at this delta.")],
    group: common.Group = 1,
    head: Annotated[
        list[str] | None, typer.Option(help="A hash noted earlier, which must be in a ledger; may be repeated.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """State what ran, from its ledger, and what it guarantees; several runs are taken together.

    Example: verax report run.ledger --delta 1e-5
    """
    runs = [read(path) for path in ledgers]
    for noted in head or []:
        _find(ledgers, noted)
    with common.patience("accounting"):
        if json:
            common.print_json(_facts(runs, delta, group))
        else:
            sys.stdout.write(statement(runs, delta, group) + "\n")


def _find(ledgers: list[str], head: str) -> None:
    """Check that one of the ledgers has the line that was noted."""
    for path in ledgers:
        try:
            read(path, head)
        except DamagedLedger as error:
            missing = error
        else:
            return
    raise missing


def _facts(runs: list[Run], delta: float, group: int) -> dict[str, Any]:
    guarantee = compose(runs, group)
    tighter = if_independent(runs, group)
    return {
        "runs": [_run(run) for run in runs],
        "relation": guarantee.mechanism.relation,
        "group": group,
        "delta": delta,
        "epsilon": guarantee.epsilon(delta),
        "assuming": guarantee.assuming,
        "if_stopping_is_independent": tighter and {"epsilon": tighter.epsilon(delta), "assuming": tighter.assuming},
    }


def _run(run: Run) -> dict[str, Any]:
    ended = run.ended
    return {
        "ledger": run.path,
        "run": run.id,
        "begun": run.time,
        "verax": run.verax,
        "head": run.head,
        "mechanism": describe(run.mechanism),
        "declared": run.declared,
        "released": run.released,
        "resumed": sum(event.kind == "resumed" for event in run.events),
        "torn": run.torn,
        "ended": ended and {"how": ended.kind, "reason": ended.reason, "private": ended.private},
        "population": run.population,
        "insecure_seed": run.insecure_seed,
    }
