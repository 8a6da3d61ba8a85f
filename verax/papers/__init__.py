"""Papers reproduced: data and figures in a folder, and every number a paper names next to ours.

To add a paper, add a folder whose ``reproduce`` is a :data:`Reproduction`, and its line in
:data:`PAPERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from verax import checks
from verax.papers import (
    group_privacy,
    how_private,
    proactive,
    random_participation,
    shuffling_and_batch_clipping,
)
from verax.papers.comparison import Progress, Row, quiet

Reproduction = Callable[[Path, Progress], list[Row]]
"""Writes its files into the folder and returns what the paper says and what verax says.

The name of each part of the work is announced. Those with figures take ``every``, to compute only
every so many points for a quick look.
"""

PAPERS: dict[str, Reproduction] = {
    "000-tables": shuffling_and_batch_clipping.reproduce,
    "001": group_privacy.reproduce,
    "002": how_private.reproduce,
    "003": random_participation.reproduce,
    "004-tables": proactive.reproduce,
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
