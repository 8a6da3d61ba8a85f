"""verax reproduce: a paper's figures and numbers, recomputed."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from verax import checks
from verax.cli import output
from verax.cli.options import Json
from verax.papers import PAPERS, Row, quiet
from verax.papers import reproduce as run
from verax.reporting.figures import matplotlib


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"Which paper: {', '.join(PAPERS)}.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; default: verax-PAPER.")
    ] = None,
    json: Json = False,
) -> None:
    """Recompute a paper's figures (CSV, PNG, SVG) and print each number it names next to ours.

    Example: verax reproduce 002
    """
    checks.choice("paper", paper, tuple(PAPERS))
    matplotlib()
    folder = out or Path(f"verax-{paper}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = run(paper, folder, output.patience if sys.stderr.isatty() else quiet)
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be written, got {folder}: {error.strerror}"
        ) from error
    files = sorted(path.name for path in folder.iterdir())
    if json:
        output.print_json(
            {
                "paper": paper,
                "folder": str(folder),
                "files": files,
                "rows": [dataclasses.asdict(row) for row in rows],
            }
        )
        return
    _show(rows)
    output.fitted_console().print(f"{len(files)} files in {folder}")


def _show(rows: list[Row]) -> None:
    out = output.fitted_console()
    table = Table("where", "quantity", "in the paper", "here", "verdict")
    for row in rows:
        table.add_row(row.where, row.what, row.paper, row.here, row.verdict)
    out.print(table)
    for row in rows:
        if row.remark:
            out.print(f"{row.where}, {row.what}: {row.remark}", style="dim")
