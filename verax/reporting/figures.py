"""Figures, drawn with matplotlib (the ``figures`` extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e6c8a", "#b08900")


def samplers_figure(curves: Mapping[str, Sequence[tuple[float, float, float]]], delta: float, path: Path) -> Path:
    """Epsilon against noise, one band (lower to upper) per sampler, saved to ``path``."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'verax[figures]'") from error
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.subplots()
        for (name, points), colour in zip(curves.items(), _COLOURS, strict=False):
            noise, lower, upper = zip(*points, strict=True)
            axes.fill_between(noise, lower, upper, color=colour, alpha=0.3, linewidth=0)
            axes.plot(noise, upper, color=colour, label=f"{name}: proved bracket")
            axes.plot(noise, lower, color=colour, linestyle="--", linewidth=1)
        axes.set(xlabel="noise multiplier", ylabel=f"epsilon at delta = {delta:g}", yscale="log")
        axes.set_title("The same noise, priced by how the batches are drawn", loc="left")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
        figure.savefig(path, dpi=150)
    return path
