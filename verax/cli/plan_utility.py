"""verax plan utility: how much noise a model bears, measured on public data."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from verax import checks
from verax.cli import common
from verax.cli.train import ModelName
from verax.planning import utility as graphs
from verax.reporting.plans import utility_figure


def utility(
    data: Annotated[
        str, typer.Option(help="digits, mnist (see VERAX_DATA), or a .csv file, class last.")
    ] = "digits",
    public: Annotated[
        bool | None,
        typer.Option("--public/--private", help="Whether these data are public; must be said."),
    ] = None,
    model: Annotated[ModelName, typer.Option(help="What to train.")] = ModelName.logistic,
    clip_norms: Annotated[
        str, typer.Option("--clip-norms", help="Clip norms, separated by commas.")
    ] = "0.5,1,2",
    sigmas: Annotated[
        str, typer.Option(help="Noise on the weights over the clip norm, from:to.")
    ] = "0.01:1",
    points: Annotated[int, typer.Option(help="How many sigmas between them.")] = 9,
    drop: Annotated[float, typer.Option(help="Tolerated relative loss of accuracy.")] = 0.1,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", "--lr", help="Step size of SGD.")
    ] = 0.5,
    batch: Annotated[int, typer.Option(help="Expected batch size.")] = 128,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 10,
    draws: Annotated[int, typer.Option(help="Noise draws per point.")] = 200,
    out: Annotated[
        Path | None, typer.Option(help="Save the graph here, as JSON for --utility.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Save a figure here.")] = None,
    insecure_seed: Annotated[int | None, typer.Option(help="Makes the graph repeatable.")] = None,
    json: common.AsJson = False,
) -> None:
    """Train without noise, then see what noise on the weights does: the utility graph of 'Proactive DP'.

    Example: verax plan utility --data digits --public --drop 0.1 --out graph.json --figure
        graph.png
    """
    if public is None:
        raise ValueError(
            "say --public if the data are public or a proxy, or --private if they are the private "
            "ones"
        )
    norms, grid = _numbers(clip_norms), _range(sigmas, points)
    if figure is not None:
        from verax.reporting.figures import drawable

        drawable(figure)
    import torch

    from verax.training.data.examples import accuracy, build, load

    examples = load(data)
    with common.patience("training"), warnings.catch_warnings():
        warnings.simplefilter("ignore", graphs.PrivateData)  # said below, in words
        graph = graphs.utility_graph(
            lambda: build(model.value, examples),
            torch.nn.CrossEntropyLoss(),
            examples.train,
            lambda network: accuracy(network, examples.test),
            public=public,
            clip_norms=norms,
            sigmas=grid,
            learning_rate=learning_rate,
            batch=batch,
            epochs=epochs,
            draws=draws,
            data=data,
            insecure_seed=insecure_seed,
        )
    picked = graph.pick(drop)
    if out is not None:
        graph.save(out)
    if figure is not None:
        utility_figure(graph, figure, drop)
    if json:
        lines = [
            {
                "clip_norm": line.clip_norm,
                "accuracy": line.accuracy,
                "points": [vars(point) for point in line.points],
            }
            for line in graph.lines
        ]
        choice = None if picked is None else {"clip_norm": picked[0].clip_norm, "sigma": picked[1]}
        common.print_json(
            {
                "data": data,
                "public": public,
                "drop": drop,
                "pick": choice,
                "path": graph.path,
                "warning": None if public else graphs.LEAKS,
                "lines": lines,
            }
        )
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table(
        "sigma",
        *(f"C = {line.clip_norm:g}" for line in graph.lines),
        title="accuracy with noise / without",
    )
    for i, sigma in enumerate(p.sigma for p in graph.lines[0].points):
        row = (line.points[i] for line in graph.lines)
        table.add_row(
            f"{sigma:.3g}", *(f"{p.fraction:.3f} ({p.low:.3f} to {p.high:.3f})" for p in row)
        )
    console.print(table)
    clean = ", ".join(f"{line.accuracy:.1%} at C = {line.clip_norm:g}" for line in graph.lines)
    console.print(f"accuracy without noise: {clean}")
    if picked is None:
        console.print(
            f"no sigma that was tried stays within a drop of {drop:g}; try smaller ones, or "
            "tolerate more"
        )
    else:
        console.print(
            f"most noise within a drop of {drop:g}: sigma {picked[1]:.3g} at C = "
            f"{picked[0].clip_norm:g}"
        )
    if not public:
        console.print(f"WARNING: {graphs.LEAKS}")


def _numbers(text: str) -> list[float]:
    try:
        return [checks.positive("--clip-norms", float(part)) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            f"--clip-norms must be positive numbers separated by commas, got {text!r}"
        ) from error


def _range(text: str, points: int) -> list[float]:
    ends = text.split(":")
    try:
        low, high = (checks.positive("--sigmas", float(end)) for end in ends)
    except ValueError as error:
        raise ValueError(
            f"--sigmas must be two positive numbers as in 0.01:1, got {text!r}"
        ) from error
    if not low < high:
        raise ValueError(f"--sigmas must go from a smaller to a larger number, got {text!r}")
    return [float(sigma) for sigma in np.geomspace(low, high, checks.count("--points", points, 2))]
