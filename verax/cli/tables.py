"""Tables that fit the terminal: no cell is cut; columns without room are left out and named."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid

_ENDLESS = 10_000  # columns of a file


@dataclass
class Table:
    """Text in columns.

    Args:
        headers: names of the columns.
        spare: columns that may be left out, the first one first.
    """

    headers: Sequence[str]
    spare: Sequence[str] = ()
    _rows: list[tuple[Sequence[str], bool]] = field(default_factory=list, init=False)

    def add_row(self, *cells: str, end_section: bool = False) -> None:
        """One more row."""
        if len(cells) != len(self.headers):
            raise ValueError(f"a row must have {len(self.headers)} cells, got {len(cells)}")
        self._rows.append((cells, end_section))

    def print(self, to: Console) -> None:
        """Print all that fits; one line more says what is left out."""
        grid, absent = self.fitted(to.width)
        width = to.width
        to.width = max(width, _width(grid))  # rather broken by the terminal than cut by us
        to.print(grid)
        to.width = width
        if absent:
            to.print(
                f"left out in {to.width} columns: {', '.join(absent)}; see --json, or a wider "
                "terminal",
                style="dim",
            )

    def fitted(self, width: int) -> tuple[Grid, Sequence[str]]:
        """The table in the roomiest way that fits, and the columns left out for it.

        Headers are folded first, then lines between columns go, then columns.
        """
        spare = [name for name in self.spare if name in self.headers]
        for count in range(len(spare) + 1):
            for fold, lines in ((False, True), (True, True), (True, False)):
                grid = self._grid(spare[:count], fold, lines)
                if _width(grid) <= width:
                    return grid, spare[:count]
        return grid, spare

    def _grid(self, absent: Sequence[str], fold: bool, lines: bool) -> Grid:
        """Columns as wide as their widest cell; headers fold to fit."""
        kept = [i for i, name in enumerate(self.headers) if name not in absent]
        grid = Grid() if lines else Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for i in kept:
            name = self.headers[i]
            longest = max((len(word) for word in name.split()), default=1)
            wide = max([longest, *(len(cells[i]) for cells, _ in self._rows)])
            grid.add_column("\n".join(textwrap.wrap(name, wide)) if fold else name, no_wrap=True)
        for cells, end_section in self._rows:
            grid.add_row(*(cells[i] for i in kept), end_section=end_section)
        return grid


def _width(grid: Grid) -> int:
    endless = Console(width=_ENDLESS)
    return Measurement.get(endless, endless.options, grid).maximum
