"""Figures, drawn with matplotlib (the ``figures`` extra)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The colours of samplers in one figure, in order.
_SAMPLER_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e6c8a", "#b08900")
# Colours for any kind of colour vision (Okabe and Ito 2008), and a grey.
OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "red": "#D55E00",
    "pink": "#CC79A7",
    "grey": "#767676",
}
FORMATS = (".png", ".svg", ".pdf")


def matplotlib() -> Any:
    """The plotting library, or one line that says how to get it."""
    try:
        import matplotlib as mpl
        import matplotlib.figure
        import matplotlib.ticker
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "figures need matplotlib: pip install 'verax[figures]'"
        ) from error
    return mpl


def drawable(path: Path) -> Path:
    """The path, if a figure can be saved under its suffix and matplotlib is there.

    >>> from pathlib import Path
    >>> drawable(Path("samplers.txt"))
    Traceback (most recent call last):
    ValueError: a figure's name must end in .png, .svg, .pdf, got 'samplers.txt'
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a figure's name must end in {', '.join(FORMATS)}, got {str(path)!r}")
    matplotlib()
    return path


@contextmanager
def drawing(width: float, height: float, *paths: Path) -> Iterator[Any]:
    """Axes to draw on, saved to every path afterwards."""
    with panels(1, 1, width, height, *paths) as grid:
        yield grid[0][0]


@contextmanager
def panels(rows: int, columns: int, width: float, height: float, *paths: Path) -> Iterator[Any]:
    """Rows of axes to draw on, saved as one figure to every path afterwards."""
    mpl = matplotlib()
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "verax",
    }
    with mpl.rc_context(style):
        figure = mpl.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False)
        for path in paths:
            # without the date the same drawing gives the same bytes
            metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
            figure.savefig(path, dpi=150, metadata=metadata)


def plain_log_axis(axis: Any) -> None:
    """Write 1, 2 and 5 times powers of ten as plain numbers on a logarithmic axis."""
    ticker = matplotlib().ticker
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())


def samplers_figure(
    curves: Mapping[str, Sequence[tuple[float, float, float]]], delta: float, path: Path
) -> Path:
    """Save epsilon against noise, one band per sampler, proved at every noise.

    Points are (noise, lower, upper), in ascending noise. More noise is post-processing, so epsilon
    falls: between two points it is at most the upper bound of the left one and at least the lower
    bound of the right one.
    """
    with drawing(7.0, 4.2, path) as axes:
        for (name, points), colour in zip(curves.items(), _SAMPLER_COLOURS, strict=False):
            noise, lower, upper = staircase(points)
            axes.fill_between(noise, lower, upper, color=colour, alpha=0.3, linewidth=0)
            axes.plot(noise, upper, color=colour, linewidth=1, label=f"{name}: proved band")
            axes.plot(noise, lower, color=colour, linestyle="--", linewidth=1)
        axes.set(xlabel="noise multiplier", ylabel=f"epsilon at delta = {delta:g}", yscale="log")
        axes.set_title("The same noise, priced by how the batches are drawn", loc="left")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
    return path


def staircase(
    points: Sequence[tuple[float, float, float]],
) -> tuple[list[float], list[float], list[float]]:
    """Noises, lower and upper bounds of a band; of a falling quantity it holds between points.

    >>> staircase([(1.0, 4.0, 5.0), (2.0, 1.0, 2.0)])
    ([1.0, 1.0, 2.0, 2.0], [4.0, 1.0, 1.0, 1.0], [5.0, 5.0, 5.0, 2.0])
    """
    noise, lower, upper = (list(column) for column in zip(*points, strict=True))
    twice = [value for value in noise for _ in range(2)]
    below = [value for pair in zip(lower, [*lower[1:], lower[-1]], strict=True) for value in pair]
    above = [value for pair in zip([upper[0], *upper[:-1]], upper, strict=True) for value in pair]
    return twice, below, above
