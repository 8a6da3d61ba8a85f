"""verax report: what ran, and what it guarantees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from verax.cli import output
from verax.cli.options import Group, Json
from verax.ledger.entries import DamagedLedger
from verax.ledger.ledger import read
from verax.reporting.statement import Statement, savable


def report(
    ledgers: Annotated[
        list[str], typer.Argument(help="Ledgers of runs on the same data.", show_default=False)
    ],
    delta: Annotated[float, typer.Option(help="Report epsilon at this delta.")] = 1e-5,
    group: Group = 1,
    head: Annotated[
        list[str] | None,
        typer.Option(help="A hash noted earlier, which must be in a ledger; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save the statement here: a page if it ends in .html, JSON if in .json."),
    ] = None,
    json: Json = False,
) -> None:
    """State what ran, from its ledger, and what it guarantees; several runs are taken together.

    Example: verax report run.ledger --out report.html
    """
    if out is not None:
        savable(out)
    runs = [read(path) for path in ledgers]
    for noted in head or []:
        _find(ledgers, noted)
    with output.patience("accounting"):
        statement = Statement.of_runs(runs, delta, group)
    if out is not None:
        statement.write(out)
    sys.stdout.write(statement.to_json() if json else f"{statement}\n")


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
