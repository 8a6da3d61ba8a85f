"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from verax.privacy.guarantee import Bracket

Noise = Annotated[
    float, typer.Option("--noise-multiplier", "-z", help="Noise standard deviation / clip norm.")
]
ExpectedBatch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        help="Expected batch size; default: 256, or a quarter of the records if that is less.",
    ),
]
Group = Annotated[int, typer.Option(help="How many records are protected together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def expected_batch(batch: int | None, records: int) -> int:
    """The expected batch size: what was asked for, or what suits so many records."""
    if batch is None:
        return max(min(256, records // 4), 1)
    if batch > records:
        raise ValueError(
            f"--batch must be at most the number of records to train on, {records}, got {batch}"
        )
    return batch


def given(context: typer.Context, names: Iterable[str] | None = None) -> list[str]:
    """The options that were typed, among ``names`` or among all parameters."""
    wanted = None if names is None else set(names)
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None
        and (wanted is None or parameter.name in wanted)
        and (source := context.get_parameter_source(parameter.name)) is not None
        and source.name == "COMMANDLINE"
    ]


def refuse_together(context: typer.Context, names: Iterable[str], other: str, why: str) -> None:
    """Refuse options that another one makes void: nothing that is typed is ignored."""
    if found := given(context, names):
        raise ValueError(f"{' and '.join(found)} cannot be given with {other}: {why}")


def apart(files: Mapping[str, Path | None]) -> None:
    """Refuse one file for two options: the later would take the earlier one's place."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is not None and (other := taken.setdefault(path.resolve(), option)) != option:
            raise ValueError(
                f"{other} and {option} must be different files, got {str(path)!r} for both"
            )


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
def patience(what: str) -> Iterator[None]:
    """Show a progress bar on standard error once the work has taken over a second."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
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
