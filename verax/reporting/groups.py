"""Groups of records: the tight bracket, what one record's curve implies, and a simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verax import checks
from verax.mechanism import Clipping, Mechanism
from verax.privacy.curves.black_box import BlackBox
from verax.privacy.curves.simulation import simulate
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound
from verax.privacy.pld.composition import UPPER
from verax.reporting.figures import OKABE_ITO, matplotlib, panels

GROUPS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class GroupCost:
    """What one group costs: proved bracket, two black boxes, simulation (None: not simulated)."""

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
    rows: tuple[GroupCost, ...]

    @property
    def title(self) -> str:
        """The quantity in words."""
        given = "delta" if self.quantity == "epsilon" else "epsilon"
        return f"{self.quantity} at {given} = {self.at!r}"


@dataclass(frozen=True)
class GroupSettings:
    """How wide the brackets are, and how much is simulated (``samples`` 0: nothing)."""

    geometry: str = "any"
    rtol: float = DEFAULT_RTOL
    samples: int | None = None
    sampling: str = "both"
    confidence: float = 0.99
    insecure_seed: int | None = None

    def simulate(self, mechanism: Mechanism, group: int) -> Any:
        """The simulation of a group; None where nothing is simulated."""
        if self.samples == 0:
            return None
        return simulate(
            mechanism,
            group,
            samples=self.samples,
            sampling=self.sampling,
            geometry=self.geometry,
            confidence=self.confidence,
            insecure_seed=self.insecure_seed,
        )


PLAIN = GroupSettings()


def price_groups(
    mechanism: Mechanism,
    groups: Sequence[int] = GROUPS,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    settings: GroupSettings = PLAIN,
) -> list[Block]:
    """Epsilon at ``delta``, delta at ``epsilon``, or both, for every group, four ways.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=10), noise_multiplier=1.0)
    >>> (block,) = price_groups(run, [1, 4], delta=1e-3, settings=GroupSettings(samples=0))
    >>> for row in block.rows:
    ...     print(row.group, row.tight, round(row.black_box, 3), round(row.f_dp, 3))
    1 [0.10369, 0.10377] 0.104 0.104
    4 [0.65464, 0.65502] 0.737 0.73...
    """
    asked = _quantities(delta, epsilon)
    if delta is not None and settings.sampling == "paper" and settings.samples != 0:
        raise ValueError(
            "sampling must be 'both' where epsilon is asked for: "
            "'paper' gives intervals for delta only"
        )
    sizes = [checks.count("group", size) for size in groups]
    if not sizes:
        raise ValueError("groups must hold at least one size, got none")
    one = BlackBox(mechanism.guarantee())
    if settings.samples is None and why_not_simulated(mechanism):
        settings = replace(settings, samples=0)
    found: dict[str, list[GroupCost]] = {quantity: [] for quantity, _ in asked}
    for size in sizes:
        guarantee = mechanism.guarantee(size, settings.geometry)
        run = settings.simulate(mechanism, size)
        for quantity, at in asked:
            interval = None if run is None else getattr(run, quantity)(at)
            # a copy, so that the answer does not depend on what else was asked
            tight = getattr(replace(guarantee), quantity)(at, settings.rtol)
            found[quantity].append(_row(one, tight, size, quantity, at, interval))
    return [Block(quantity, at, tuple(found[quantity])) for quantity, at in asked]


def _row(
    one: BlackBox, tight: Bracket, size: int, quantity: str, at: float, interval: Bracket | None
) -> GroupCost:
    """One group. All proved bounds hold at once, so the tight one is at most either black box."""
    if size == 1:  # nothing follows from one record's curve but the curve
        return GroupCost(size, tight, tight.upper, tight.upper, interval)
    equal, best = (getattr(one, quantity)(size, at, shares) for shares in ("equal", "any"))
    if best < tight.upper:
        theorem = "one record's curve, with the best shares (docs/proofs.md, lemma 5)"
        tight = replace(tight, upper=best, upper_by=theorem)
    return GroupCost(size, tight, equal, best, interval)


def why_not_simulated(mechanism: Mechanism) -> str:
    """Why this run cannot be simulated; empty if it can.

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


def _quantities(delta: float | None, epsilon: float | None) -> list[tuple[str, float]]:
    asked = []
    if delta is not None:
        asked.append(("epsilon", checks.probability("delta", delta)))
    if epsilon is not None:
        asked.append(("delta", checks.nonnegative("epsilon", epsilon)))
    if not asked:
        raise ValueError(
            "nothing to report: give delta (to read epsilon), epsilon (to read delta), or both"
        )
    return asked


def price_clippings(
    mechanism: Mechanism,
    clippings: Sequence[Clipping],
    groups: Sequence[int] = GROUPS,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    settings: GroupSettings = PLAIN,
) -> list[tuple[str, float, dict[int, list[Bracket]]]]:
    """Tight brackets of one run under several clippings, with the same noise, for every group.

    >>> from verax import Batch, Individual, Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.1, steps=100), noise_multiplier=2.0)
    >>> ((_, _, rows),) = price_clippings(run, [Individual(), Batch()], [1, 64], delta=1e-5)
    >>> [[round(b.upper, 1) for b in rows[size]] for size in rows]
    [[2.3, 7.0], [776.8, 91.7]]
    """
    runs = [replace(mechanism, clipping=clipping) for clipping in clippings]
    guarantees = {
        checks.count("group", size): [run.guarantee(size, settings.geometry) for run in runs]
        for size in groups
    }

    def rows(quantity: str, at: float) -> dict[int, list[Bracket]]:
        return {
            size: [getattr(one, quantity)(at, settings.rtol) for one in several]
            for size, several in guarantees.items()
        }

    asked = _quantities(delta, epsilon)
    return [(quantity, at, rows(quantity, at)) for quantity, at in asked]


def clipping_name(clipping: Clipping) -> str:
    """A clipping in a word or two.

    >>> from verax import Mixed
    >>> clipping_name(Mixed(groups=4))
    'mixed, 4 clip-groups'
    """
    word = type(clipping).__name__.lower()
    groups = getattr(clipping, "groups", None)
    return word if groups is None else f"{word}, {groups} clip-group{'s' * (groups > 1)}"


# --- figures --------------------------------------------------------------------------------------

_TIGHT = "tight: proved bracket at the dots"
_BLACK_BOXES = (("black_box", "red", "--", "black box"), ("f_dp", "orange", "-.", "f-DP black box"))
_CLIPPING_COLOURS = ("blue", "red", "green", "pink", "orange", "sky", "black")
# Heights, in parts of the axis, of the marks that stand for values beyond it.
_EDGE, _EDGE_STEP = 0.97, 0.055


def groups_figure(blocks: Sequence[Block], title: str, *paths: Path) -> None:
    """One panel for every quantity: tight bound, both black boxes, and simulated intervals."""
    with panels(1, len(blocks), 6.4 * len(blocks), 4.6, *paths) as grid:
        for i, (axes, block) in enumerate(zip(grid[0], blocks, strict=True)):
            draw_block(axes, block)
            _name_panel(axes, block.title, "" if i else title)


def draw_block(axes: Any, block: Block) -> None:
    """Draw the rows of one block; what lies beyond the axis is a mark at its edge."""
    sizes = [row.group for row in block.rows]
    tight = [row.tight.upper for row in block.rows]
    _set_scales(axes, sizes, [value for value in tight if value > 0.0])
    if block.quantity == "delta":
        axes.set_ylim(top=2.0)
    bars = [(row.group, row.monte_carlo) for row in block.rows if row.monte_carlo is not None]
    if bars:
        _draw_intervals(axes, bars)
    height = _EDGE
    for field, colour, dashes, label in _BLACK_BOXES:
        values = [getattr(row, field) for row in block.rows]
        dashed = {"color": OKABE_ITO[colour], "linestyle": dashes, "label": label, "marker": "."}
        _draw_series(axes, sizes, values, height, **dashed)
        height -= _EDGE_STEP
    blue = OKABE_ITO["blue"]
    solid: dict[str, Any] = {
        "color": blue,
        "label": _TIGHT,
        "marker": "o",
        "markersize": 4,
        "linewidth": 1,
    }
    _draw_series(axes, sizes, tight, height, **solid)
    lowest, highest = axes.get_ylim()
    lower = [max(row.tight.lower, lowest) for row in block.rows]
    upper = [min(value, highest) for value in tight]
    axes.vlines(sizes, lower, upper, color=blue, linewidth=3, alpha=0.35)
    axes.set(xlabel="records in the group", ylabel=block.title)
    axes.grid(alpha=0.25)


def clippings_figure(
    tables: Sequence[tuple[str, float, dict[int, list[Bracket]]]],
    names: Sequence[str],
    title: str,
    *paths: Path,
) -> None:
    """One panel for every quantity, one line for every clipping."""
    with panels(1, len(tables), 6.4 * len(tables), 4.6, *paths) as grid:
        for axes, (quantity, at, rows) in zip(grid[0], tables, strict=True):
            every = [b.upper for brackets in rows.values() for b in brackets]
            _set_scales(axes, list(rows), [v for v in every if v > 0.0], room=1.5)
            for i, word in enumerate(names):
                high = [brackets[i].upper for brackets in rows.values()]
                colour = OKABE_ITO[_CLIPPING_COLOURS[i % len(_CLIPPING_COLOURS)]]
                look = {"color": colour, "label": word, "marker": "o", "markersize": 4}
                _draw_series(axes, list(rows), high, _EDGE - i * _EDGE_STEP, **look)
            axes.grid(alpha=0.25)
            first = axes is grid[0][0]
            _name_panel(axes, Block(quantity, at, ()).title, title if first else "")


def _name_panel(axes: Any, quantity: str, title: str) -> None:
    axes.set(xlabel="records in the group", ylabel=quantity)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9)


def _draw_series(
    axes: Any, sizes: Sequence[int], values: Sequence[float], height: float, **look: Any
) -> None:
    """One line, broken where a value is beyond the axis; there a mark at the edge names it."""
    low, high = axes.get_ylim()
    inside = [value if low <= value <= high else math.nan for value in values]
    axes.plot(sizes, inside, **look)
    for size, value in zip(sizes, values, strict=True):
        if not low <= value <= high:
            place = height if value > high else 1.0 - height
            _draw_edge_mark(axes, size, value, place, look["color"])


def _draw_edge_mark(axes: Any, size: int, value: float, height: float, colour: str) -> None:
    across = axes.get_xaxis_transform()
    mark = "^" if height > 0.5 else "v"
    axes.plot([size], [height], mark, color=colour, markersize=5, transform=across)
    first = size == round(axes.dataLim.x0)  # its words go to the right, those of others to the left
    axes.annotate(
        format_bound(value, UPPER, 3),
        (size, height),
        xycoords=across,
        xytext=(5 if first else -5, 0),
        textcoords="offset points",
        ha="left" if first else "right",
        va="center",
        fontsize=8,
        color=colour,
    )


def _draw_intervals(axes: Any, intervals: Sequence[tuple[int, Bracket]]) -> None:
    """Simulated intervals; a triangle at the edge where one continues beyond the axis."""
    bottom, top = axes.get_ylim()
    colour = {"color": OKABE_ITO["green"]}
    bar = colour | {"linewidth": 5, "alpha": 0.45, "solid_capstyle": "butt"}
    edge = colour | {"markersize": 6, "clip_on": False, "transform": axes.get_xaxis_transform()}
    label = f"Monte Carlo ({intervals[0][1].evidence.split(', ')[-1]})"
    for size, found in intervals:
        low, high = max(found.lower, bottom), min(found.upper, top)
        axes.plot([size, size], [low, high], label=label, **bar)
        if found.lower < bottom:
            axes.plot([size], [0.0], "v", **edge)
        if found.upper > top:
            axes.plot([size], [1.0], "^", **edge)
        label = "_nolegend_"


def _set_scales(
    axes: Any, sizes: Sequence[int], values: Sequence[float], room: float = 1e3
) -> None:
    """Powers of two across if sizes span much; upwards logarithmic, with room above ``values``."""
    if len(sizes) > 1 and max(sizes) > 4 * min(sizes):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib().ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    finite = [v for v in values if math.isfinite(v)]
    if finite:
        axes.set_yscale("log")
        margin = (max(finite) / min(finite)) ** 0.5
        top = max(finite) * min(max(margin, 3.0), room)
        axes.set_ylim(min(finite) / max(margin**0.1, 1.2), top)
