"""verax plan utility: how much noise a model bears, measured on public data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from verax import checks
from verax.cli import output
from verax.cli.options import Epochs, Json, ModelName, flat, option
from verax.planning import utility as graphs
from verax.reporting.figures import drawable
from verax.reporting.plans import utility_figure


@dataclass(frozen=True, kw_only=True)
class UtilityOptions:
    """What ``verax plan utility`` is asked."""

    data: str = option(
        "digits, mnist (see VERAX_DATA), or a .csv file, class last.", default="digits"
    )
    public: bool | None = option(
        "Whether these data are public; must be said.", "--public/--private"
    )
    model: ModelName = option("What to train.", default=ModelName.logistic)
    clip_norms: str = option("Clip norms, separated by commas.", "--clip-norms", default="0.5,1,2")
    sigmas: str = option("Noise on the weights over the clip norm, from:to.", default="0.01:1")
    points: int = option("How many sigmas between them.", default=9)
    drop: float = option("Tolerated relative loss of accuracy.", default=0.1)
    learning_rate: float = option("Step size of SGD.", "--learning-rate", "--lr", default=0.5)
    batch: int = option("Expected batch size.", default=128)
    epochs: Epochs = 10
    draws: int = option("Noise draws per point.", default=200)
    out: Path | None = option("Save the graph here, as JSON for --utility.")
    figure: Path | None = option("Save a figure here.")
    insecure_seed: int | None = option("Makes the graph repeatable.")
    json: Json = False


@flat
def utility(options: UtilityOptions) -> None:
    """Train without noise, then put noise on the weights: the utility graph of 'Proactive DP'.

    Example: verax plan utility --data digits --public --drop 0.1 --out graph.json --figure
        graph.png
    """
    if options.public is None:
        raise ValueError(
            "say --public if the data are public or a proxy, or --private if they are the private "
            "ones"
        )
    norms, grid = _numbers(options.clip_norms), _range(options.sigmas, options.points)
    if options.figure is not None:
        drawable(options.figure)
    import torch

    from verax.training.data.examples import accuracy, build, load

    examples = load(options.data)
    with output.patience("training"), warnings.catch_warnings():
        warnings.simplefilter("ignore", graphs.PrivateData)  # said below, in words
        graph = graphs.utility_graph(
            lambda: build(options.model.value, examples),
            torch.nn.CrossEntropyLoss(),
            examples.train,
            lambda network: accuracy(network, examples.test),
            public=options.public,
            clip_norms=norms,
            sigmas=grid,
            learning_rate=options.learning_rate,
            batch=options.batch,
            epochs=options.epochs,
            draws=options.draws,
            data=options.data,
            insecure_seed=options.insecure_seed,
        )
    picked = graph.pick(options.drop)
    if options.out is not None:
        graph.save(options.out)
    if options.figure is not None:
        utility_figure(graph, options.figure, options.drop)
    if options.json:
        lines = [
            {
                "clip_norm": line.clip_norm,
                "accuracy": line.accuracy,
                "points": [vars(point) for point in line.points],
            }
            for line in graph.lines
        ]
        choice = None if picked is None else {"clip_norm": picked[0].clip_norm, "sigma": picked[1]}
        output.print_json(
            {
                "data": options.data,
                "public": options.public,
                "drop": options.drop,
                "pick": choice,
                "path": graph.path,
                "warning": None if options.public else graphs.LEAKS,
                "lines": lines,
            }
        )
        return
    console = output.console()
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
            f"no sigma that was tried stays within a drop of {options.drop:g}; try smaller ones, "
            "or tolerate more"
        )
    else:
        console.print(
            f"most noise within a drop of {options.drop:g}: sigma {picked[1]:.3g} at C = "
            f"{picked[0].clip_norm:g}"
        )
    if not options.public:
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
