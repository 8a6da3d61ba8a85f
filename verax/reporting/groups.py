"""Groups of records in one table: the tight bracket, what one record's curve implies, and a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verax import checks
from verax.mechanism import Clipping, Mechanism
from verax.privacy.curves.black_box import BlackBox
from verax.privacy.group_montecarlo import simulate
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, Guarantee, shown
from verax.privacy.pld.composition import UPPER
from verax.reporting.figures import OKABE_ITO, matplotlib, panels

GROUPS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Priced:
    """One group: what is proved of it, what the two black boxes say, and what a simulation says (None: not asked)."""

    group: int
    tight: Bracket
    black_box: float
    f_dp: float
    monte_carlo: Bracket | None


@dataclass(frozen=True)
class Block:
    """Rows of one quantity: epsilon at ``at`` = delta, or delta at ``at`` = epsilon."""

    quantity: str
    at: float
    rows: tuple[Priced, ...]

    @property
    def title(self) -> str:
        """The quantity in words."""
        return f"{self.quantity} at {'delta' if self.quantity == 'epsilon' else 'epsilon'} = {self.at!r}"


@dataclass(frozen=True)
class Settings:
    """What a table is made with: how wide the brackets, and how much to simulate (``samples`` 0: nothing)."""

    geometry: str = "any"
    rtol: float = DEFAULT_RTOL
    samples: int | None = None
    sampling: str = "both"
    confidence: float = 0.99
    insecure_seed: int | None = None


PLAIN = Settings()


def price_groups(
    mechanism: Mechanism,
    groups: Sequence[int] = GROUPS,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    settings: Settings = PLAIN,
) -> list[Block]:
    """Epsilon at ``delta``, delta at ``epsilon``, or both, for every group, four ways.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=10), noise_multiplier=1.0)
    >>> (block,) = price_groups(run, [1, 4], delta=1e-3, settings=Settings(samples=0))
    >>> for row in block.rows:
    ...     print(row.group, row.tight, round(row.black_box, 3), round(row.f_dp, 3))
    1 [0.10369, 0.10377] 0.104 0.104
    4 [0.65464, 0.65502] 0.737 0.73...
    """
    asked = _asked(delta, epsilon)
    if delta is not None and settings.sampling == "paper" and settings.samples != 0:
        raise ValueError(
            "sampling must be 'both' where epsilon is asked for: 'paper' gives intervals for delta only"
        )
    sizes = [checks.count("group", size) for size in groups]
    if not sizes:
        raise ValueError("groups must hold at least one size, got none")
    one = BlackBox(mechanism.guarantee())
    if settings.samples is None and why_not_simulated(mechanism):
        settings = replace(settings, samples=0)
    found: dict[str, list[Priced]] = {quantity: [] for quantity, _ in asked}
    for size in sizes:
        guarantee = mechanism.guarantee(size, settings.geometry)
        run = None
        if settings.samples != 0:
            run = simulate(
                mechanism,
                size,
                samples=settings.samples,
                sampling=settings.sampling,
                geometry=settings.geometry,
                confidence=settings.confidence,
                insecure_seed=settings.insecure_seed,
            )
        for quantity, at in asked:
            drawn = (
                None if run is None else run.epsilon(at) if quantity == "epsilon" else run.delta(at)
            )
            # as if nothing else were asked
            tight = _read(replace(guarantee), quantity, at, settings.rtol)
            found[quantity].append(_row(one, tight, size, quantity, at, drawn))
    return [Block(quantity, at, tuple(found[quantity])) for quantity, at in asked]


def _row(
    one: BlackBox, tight: Bracket, size: int, quantity: str, at: float, drawn: Bracket | None
) -> Priced:
    """One group. Everything that is proved holds at once, so the tight bound is at most either black box."""
    if size == 1:  # nothing follows from one record's curve but the curve
        return Priced(size, tight, tight.upper, tight.upper, drawn)
    reads = one.epsilon if quantity == "epsilon" else one.delta
    equal, best = reads(size, at, "equal"), reads(size, at, "any")
    if best < tight.upper:
        theorem = "one record's curve, with the best shares (docs/proofs.md, lemma 5)"
        tight = replace(tight, upper=best, upper_by=theorem)
    return Priced(size, tight, equal, best, drawn)


def why_not_simulated(mechanism: Mechanism) -> str:
    """Why this run cannot be simulated, in words; empty if it can.

    >>> from verax import Mechanism, Poisson, Shuffle
    >>> why_not_simulated(Mechanism(Poisson(rate=0.1, steps=10), noise_multiplier=1.0))
    ''
    >>> why_not_simulated(Mechanism(Shuffle(batches=10), noise_multiplier=1.0)).split(",")[0]
    "the simulation is of Poisson batches under relation 'add-remove' or 'zero-out'"
    """
    try:
        simulate(mechanism, samples=2)
    except ValueError as error:
        return str(error)
    return ""


def _asked(delta: float | None, epsilon: float | None) -> list[tuple[str, float]]:
    if delta is None and epsilon is None:
        raise ValueError(
            "nothing to report: give delta (to read epsilon), epsilon (to read delta), or both"
        )
    asked = [("epsilon", checks.probability("delta", delta))] if delta is not None else []
    return asked + (
        [("delta", checks.nonnegative("epsilon", epsilon))] if epsilon is not None else []
    )


def _read(guarantee: Guarantee, quantity: str, at: float, rtol: float) -> Bracket:
    return guarantee.epsilon(at, rtol) if quantity == "epsilon" else guarantee.delta(at, rtol)


def price_clippings(
    mechanism: Mechanism,
    clippings: Sequence[Clipping],
    groups: Sequence[int] = GROUPS,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    settings: Settings = PLAIN,
) -> list[tuple[str, float, dict[int, list[Bracket]]]]:
    """The tight brackets of one run under several clippings, with the same noise: a list of them for every group.

    >>> from verax import Batch, Individual, Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.1, steps=100), noise_multiplier=2.0)
    >>> ((_, _, rows),) = price_clippings(run, [Individual(), Batch()], [1, 64], delta=1e-5)
    >>> [[round(b.upper, 1) for b in rows[size]] for size in rows]
    [[2.3, 7.0], [776.8, 91.7]]
    """
    runs = [replace(mechanism, clipping=clipping) for clipping in clippings]
    priced = {
        checks.count("group", size): [run.guarantee(size, settings.geometry) for run in runs]
        for size in groups
    }
    return [
        (
            quantity,
            at,
            {
                size: [_read(g, quantity, at, settings.rtol) for g in some]
                for size, some in priced.items()
            },
        )
        for quantity, at in _asked(delta, epsilon)
    ]


def name(clipping: Clipping) -> str:
    """A clipping in a word or two.

    >>> from verax import Mixed
    >>> name(Mixed(groups=4))
    'mixed, 4 clip-groups'
    """
    word = type(clipping).__name__.lower()
    groups = getattr(clipping, "groups", None)
    return word if groups is None else f"{word}, {groups} clip-group{'s' * (groups > 1)}"


# --- figures --------------------------------------------------------------------------------------

_TIGHT = "tight: proved bracket at the dots"
_BLACK_BOXES = (("black_box", "red", "--", "black box"), ("f_dp", "orange", "-.", "f-DP black box"))
# heights at which marks say what lies beyond the axis, in parts of it
_EDGE, _EDGE_STEP = 0.97, 0.055


def groups_figure(blocks: Sequence[Block], title: str, *paths: Path) -> None:
    """One panel for every quantity: the tight bound, both black boxes, and the simulation as error bars."""
    with panels(1, len(blocks), 6.4 * len(blocks), 4.6, *paths) as grid:
        for axes, block in zip(grid[0], blocks, strict=True):
            draw_block(axes, block)
            axes.set_title(title if axes is grid[0][0] else "", loc="left", fontsize=10)
            axes.legend(frameon=False, fontsize=9)


def draw_block(axes: Any, block: Block) -> None:
    """The rows of one block on one panel; what lies beyond the axis is a mark at its edge, with the value."""
    sizes = [row.group for row in block.rows]
    tight = [row.tight.upper for row in block.rows]
    _scales(axes, sizes, [value for value in tight if value > 0.0])
    if block.quantity == "delta":
        axes.set_ylim(top=2.0)
    bars = [(row.group, row.monte_carlo) for row in block.rows if row.monte_carlo is not None]
    if bars:
        _bars(axes, bars)
    for i, (field, colour, dashes, label) in enumerate(_BLACK_BOXES):
        values = [getattr(row, field) for row in block.rows]
        look = {"color": OKABE_ITO[colour], "linestyle": dashes, "label": label, "marker": "."}
        _series(axes, sizes, values, _EDGE - i * _EDGE_STEP, **look)
    blue, height = OKABE_ITO["blue"], _EDGE - len(_BLACK_BOXES) * _EDGE_STEP
    _series(
        axes, sizes, tight, height, color=blue, label=_TIGHT, marker="o", markersize=4, linewidth=1
    )
    lowest, highest = axes.get_ylim()
    lower = [max(row.tight.lower, lowest) for row in block.rows]
    axes.vlines(
        sizes, lower, [min(value, highest) for value in tight], color=blue, linewidth=3, alpha=0.35
    )
    axes.set(xlabel="records in the group", ylabel=block.title)
    axes.grid(alpha=0.25)


def _series(
    axes: Any, sizes: Sequence[int], values: Sequence[float], height: float, **look: Any
) -> None:
    """One line, broken where a value lies beyond the axis; there a mark at the edge says which value it is."""
    low, high = axes.get_ylim()
    inside = [value if low <= value <= high else math.nan for value in values]
    axes.plot(sizes, inside, **look)
    for size, value in zip(sizes, values, strict=True):
        if not low <= value <= high:
            _edge_mark(axes, size, value, height if value > high else 1.0 - height, look["color"])


def _edge_mark(axes: Any, size: int, value: float, height: float, colour: str) -> None:
    up, across = height > 0.5, axes.get_xaxis_transform()
    axes.plot([size], [height], "^" if up else "v", color=colour, markersize=5, transform=across)
    first = size == round(axes.dataLim.x0)  # its words go to the right, those of others to the left
    axes.annotate(
        shown(value, UPPER, 3),
        (size, height),
        xycoords=across,
        xytext=(5 if first else -5, 0),
        textcoords="offset points",
        ha="left" if first else "right",
        va="center",
        fontsize=8,
        color=colour,
    )


def _bars(axes: Any, bars: Sequence[tuple[int, Bracket]]) -> None:
    """Intervals; a triangle at the edge where one goes on beyond the axis."""
    colour, (bottom, top) = OKABE_ITO["green"], axes.get_ylim()
    label = f"Monte Carlo ({bars[0][1].evidence.split(', ')[-1]})"
    for size, found in bars:
        low, high = max(found.lower, bottom), min(found.upper, top)
        axes.plot(
            [size, size],
            [low, high],
            color=colour,
            linewidth=5,
            alpha=0.45,
            solid_capstyle="butt",
            label=label,
        )
        for beyond, end, mark in ((found.lower < bottom, 0.0, "v"), (found.upper > top, 1.0, "^")):
            if beyond:
                axes.plot(
                    [size],
                    [end],
                    mark,
                    color=colour,
                    markersize=6,
                    clip_on=False,
                    transform=axes.get_xaxis_transform(),
                )
        label = "_nolegend_"


def _scales(axes: Any, sizes: Sequence[int], values: Sequence[float], room: float = 1e3) -> None:
    """Group sizes in powers of two if they span much; the other axis logarithmic, with room above what is tight."""
    if len(sizes) > 1 and max(sizes) > 4 * min(sizes):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib().ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    finite = [v for v in values if math.isfinite(v)]
    if finite:
        axes.set_yscale("log")
        margin = (max(finite) / min(finite)) ** 0.5
        axes.set_ylim(
            min(finite) / max(margin**0.1, 1.2), max(finite) * min(max(margin, 3.0), room)
        )


def clippings_figure(
    tables: Sequence[tuple[str, float, dict[int, list[Bracket]]]],
    names: Sequence[str],
    title: str,
    *paths: Path,
) -> None:
    """One panel for every quantity, one line for every clipping."""
    colours = [
        OKABE_ITO[word] for word in ("blue", "red", "green", "pink", "orange", "sky", "black")
    ]
    with panels(1, len(tables), 6.4 * len(tables), 4.6, *paths) as grid:
        for axes, (quantity, at, rows) in zip(grid[0], tables, strict=True):
            sizes = list(rows)
            every = [b.upper for brackets in rows.values() for b in brackets]
            _scales(axes, sizes, [v for v in every if v > 0.0], room=1.5)
            for i, word in enumerate(names):
                high = [rows[size][i].upper for size in sizes]
                look = {
                    "color": colours[i % len(colours)],
                    "label": word,
                    "marker": "o",
                    "markersize": 4,
                }
                _series(axes, sizes, high, _EDGE - i * _EDGE_STEP, **look)
            axes.set(xlabel="records in the group", ylabel=Block(quantity, at, ()).title)
            axes.set_title(title if axes is grid[0][0] else "", loc="left", fontsize=10)
            axes.legend(frameon=False, fontsize=9)
            axes.grid(alpha=0.25)
