"""verax demo: a short tour of the accountant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from verax import Deterministic, Mechanism, Poisson, Shuffle
from verax.cli import common
from verax.privacy.guarantee import shown
from verax.reporting.figures import samplers_figure

BATCHES, DELTA, NOISES = 1000, 1e-5, (0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figure.")] = Path("out"),
) -> None:
    """Price one epoch of 1,000 batches three times: as Poisson, shuffled and deterministic batches."""
    console = Console(highlight=False)
    console.print(
        f"One epoch of {BATCHES} batches, individual clipping, zero-out neighbours, delta = {DELTA:g}.\n"
        "The same noise, three ways of drawing the batches. Cells: epsilon is proved to lie between these.\n",
        markup=False,
    )
    table = Table("noise", "Poisson", "shuffled", "deterministic", "factor")
    curves: dict[str, list[tuple[float, float, float]]] = {"Poisson": [], "shuffled": [], "deterministic": []}
    samplers = (Poisson(1.0 / BATCHES, BATCHES), Shuffle(BATCHES), Deterministic(BATCHES))
    with common.patience("accounting"):
        for noise in NOISES:
            brackets = [Mechanism(s, noise, relation="zero-out").guarantee().epsilon(DELTA) for s in samplers]
            for name, bracket in zip(curves, brackets, strict=True):
                curves[name].append((noise, bracket.lower, bracket.upper))
            factor = brackets[1].lower / brackets[0].upper
            cells = [f"{shown(b.lower, -1, 4)} .. {shown(b.upper, 1, 4)}" for b in brackets]
            table.add_row(f"{noise:g}", *cells, f">= {shown(factor, -1, 3)}" if factor > 1.0 else "unknown")
    console.print(table)
    console.print(
        "\nA loader that shuffles but reports the Poisson number understates epsilon by the last column's factor.\n"
        "Name the sampler that runs, and verax prices that one:\n\n"
        "    from verax import Mechanism, Shuffle\n"
        f"    Mechanism(Shuffle(batches={BATCHES}), noise_multiplier=0.7).guarantee().epsilon(delta={DELTA:g})\n",
        markup=False,
        soft_wrap=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    saved = samplers_figure(curves, DELTA, folder / "samplers.png")
    console.print(f"Figure saved: {saved}")
