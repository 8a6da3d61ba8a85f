"""What commands print: consoles, JSON, and how far they are."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from verax.privacy.guarantee import Bracket

_ENDLESS = 10_000  # columns of a file


def console(stderr: bool = False, quiet: bool = False) -> Console:
    """Standard output, or error, for plain words, broken only by the terminal."""
    return Console(highlight=False, markup=False, soft_wrap=True, stderr=stderr, quiet=quiet)


def fitted_console() -> Console:
    """Standard output, as wide as the terminal, broken between words; a file has no width."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, soft_wrap=True, width=_ENDLESS)


def say_saved(figure: Path | None) -> None:
    """Say where a figure went, if there is one."""
    if figure is not None:
        fitted_console().print(f"Figure saved: {figure}")


def plain(value: Any) -> Any:
    """What JSON can hold: brackets as objects, infinities as words."""
    if isinstance(value, Bracket):
        return {
            "lower": plain(value.lower),
            "upper": plain(value.upper),
            "evidence": value.evidence,
            "lower_by": value.lower_by,
            "upper_by": value.upper_by,
        }
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def print_json(value: dict[str, Any]) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")


@contextmanager
def progress_bar(what: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """Yield what shows so many of so many done, as a bar on a terminal's standard error.

    The bar appears when it is first called, and goes away when the work is done.
    """
    screen = Console(stderr=True)
    # a disabled bar of rich 14.2 and older still ends with an empty line
    if not screen.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    bar = Progress(*columns, TimeRemainingColumn(), console=screen, transient=True)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Show a progress bar on standard error once the work has taken over a second."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
    )
    timer = threading.Timer(1.0, progress.start)
    progress.add_task(what, total=None)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if progress.live.is_started:
            progress.stop()
