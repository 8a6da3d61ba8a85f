"""Papers reproduced: data and figures in a folder, and every number a paper names next to ours.

To add a paper, write a module with a function of the type :data:`Reproduction` and add it to
:data:`PAPERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from verax import checks
from verax.reproduce import paper_000, paper_001, paper_002, paper_003, paper_004
from verax.reproduce.rows import Progress, Row, quiet

Reproduction = Callable[[Path, Progress], list[Row]]
"""Writes its files into the folder and returns what the paper says and what verax says."""

PAPERS: dict[str, Reproduction] = {
    "000-tables": paper_000.reproduce,
    "001": paper_001.reproduce,
    "002": paper_002.reproduce,
    "003": paper_003.reproduce,
    "004-tables": paper_004.reproduce,
}
"""What can be reproduced, by name."""


def reproduce(name: str, folder: Path, progress: Progress = quiet) -> list[Row]:
    """Reproduce one paper into ``folder``, which must exist.

    >>> from pathlib import Path
    >>> reproduce("1984", Path("."))
    Traceback (most recent call last):
    ValueError: paper must be one of '000-tables', '001', '002', '003', '004-tables', got '1984'
    """
    return PAPERS[checks.choice("paper", name, tuple(PAPERS))](folder, progress)


__all__ = ["PAPERS", "Progress", "Reproduction", "Row", "quiet", "reproduce"]
