"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from verax import (
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mixed,
    Poisson,
    RandomAllocation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
    checks,
)  # fmt: skip
from verax.mechanism import Clipping
from verax.privacy.guarantee import Bracket
from verax.samplers.base import Sampler


class SamplerName(StrEnum):
    """Samplers that can be named on the command line."""

    poisson = "poisson"
    shuffle = "shuffle"
    deterministic = "deterministic"
    balls_in_bins = "balls-in-bins"
    random_allocation = "random-allocation"
    without_replacement = "without-replacement"
    truncated_poisson = "truncated-poisson"
    buffered_shuffle = "buffered-shuffle"
    persistent_shuffle = "persistent-shuffle"


class ClippingName(StrEnum):
    """Clippings that can be named on the command line."""

    individual = "individual"
    batch = "batch"
    mixed = "mixed"


class RelationName(StrEnum):
    """Neighbouring relations."""

    add_remove = "add-remove"
    zero_out = "zero-out"
    replaced = "replace"


Noise = Annotated[float, typer.Option("--noise-multiplier", "-z", help="Noise standard deviation / clip norm.")]
SamplerOption = Annotated[SamplerName, typer.Option("--sampler", help="Who is in each batch.")]
Rate = Annotated[float | None, typer.Option(help="Poisson sampling rate; or give --records and --batch.")]
Steps = Annotated[int | None, typer.Option(help="Number of rounds where each is drawn anew; or give --epochs.")]
Records = Annotated[int | None, typer.Option(help="Number of records, with --batch in place of --rate.")]
BatchSize = Annotated[int | None, typer.Option("--batch", help="Expected batch size, with --records.")]
ExpectedBatch = Annotated[
    int | None,
    typer.Option("--batch", help="Expected batch size; default: 256, or a quarter of the records if that is less."),
]
Batches = Annotated[int | None, typer.Option(help="Batches per epoch; or give --records and --batch.")]
Times = Annotated[int | None, typer.Option(help="Rounds each record joins in an epoch, for random-allocation.")]
Buffer = Annotated[int | None, typer.Option(help="Size of the buffer in batches, for buffered-shuffle.")]
MaxBatch = Annotated[int | None, typer.Option(help="The largest batch, for truncated-poisson.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data.")]
ClippingOption = Annotated[ClippingName, typer.Option("--clipping", help="What is clipped before noise is added.")]
ClipGroups = Annotated[int, typer.Option(help="Number of clip-groups, for mixed clipping.")]
Relation = Annotated[RelationName | None, typer.Option(help="Neighbouring relation; default: the sampler's own.")]
Group = Annotated[int, typer.Option(help="How many records are protected together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@dataclass(frozen=True)
class Run:
    """The run the user described, before noise."""

    sampler: Sampler
    clipping: Clipping
    relation: str


def expected_batch(batch: int | None, records: int) -> int:
    """The expected batch size: what was asked for, or what suits so many records."""
    if batch is None:
        return max(min(256, records // 4), 1)
    if batch > records:
        raise ValueError(f"--batch must be at most the number of records to train on, {records}, got {batch}")
    return batch


def describe_run(
    sampler: SamplerName,
    rate: float | None,
    steps: int | None,
    records: int | None,
    batch: int | None,
    batches: int | None,
    epochs: int | None,
    clipping: ClippingName,
    clip_groups: int,
    relation: RelationName | None,
    times: int | None = None,
    buffer: int | None = None,
    max_batch: int | None = None,
) -> Run:
    """Turn options into a sampler and a clipping, or say which option is missing."""
    kinds = clippings(clip_groups, [clipping.value])
    word = relation.value if relation else ""
    for option, value, owner in (
        ("--times", times, SamplerName.random_allocation),
        ("--buffer", buffer, SamplerName.buffered_shuffle),
        ("--max-batch", max_batch, SamplerName.truncated_poisson),
    ):
        if sampler is owner and value is None:
            raise ValueError(f"--sampler {sampler.value} needs {option}")
        if sampler is not owner and value is not None:
            raise ValueError(f"{option} is for --sampler {owner.value}, got --sampler {sampler.value}")
    return Run(
        _sampler(sampler, rate, steps, records, batch, batches, epochs, times, buffer, max_batch),
        kinds[clipping.value],
        word,
    )


def clippings(clip_groups: int, named: Sequence[str]) -> dict[str, Clipping]:
    """Every clipping by its name; clip-groups are refused where no clipping that is named has any."""
    if clip_groups != 1 and ClippingName.mixed.value not in named:
        raise ValueError(
            f"--clip-groups {clip_groups} is for --clipping mixed, got --clipping {','.join(named)}: "
            "leave one of them out"
        )
    return {"individual": Individual(), "batch": Batch(), "mixed": Mixed(groups=clip_groups)}


def given(context: typer.Context, names: Iterable[str] | None = None) -> list[str]:
    """Those options that were typed, as they are typed; of all the command's parameters unless some are named."""
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
            raise ValueError(f"{other} and {option} must be different files, got {str(path)!r} for both")


def with_norm(clipping: Clipping, norm: float) -> Clipping:
    """The same clipping to another norm."""
    return replace(clipping, norm=norm)


def _sampler(
    sampler: SamplerName,
    rate: float | None,
    steps: int | None,
    records: int | None,
    batch: int | None,
    batches: int | None,
    epochs: int | None,
    times: int | None,
    buffer: int | None,
    max_batch: int | None,
) -> Sampler:
    if batch is not None and records is None:
        raise ValueError(f"--batch {batch} needs --records: together they take the place of --rate or --batches")
    alone = records is not None and batch is None and sampler is not SamplerName.truncated_poisson
    if alone and (rate is not None or batches is not None):
        raise ValueError(f"--records {records} needs --batch: together they take the place of --rate or --batches")
    if sampler is SamplerName.without_replacement:
        _not_for(sampler, "give --records and --batch", {"--rate": rate, "--batches": batches})
        return _without_replacement(steps, records, batch, epochs)
    if sampler in (SamplerName.poisson, SamplerName.truncated_poisson):
        _not_for(sampler, "give --rate, or --records and --batch", {"--batches": batches})
        poisson = _poisson(sampler, rate, steps, records, batch, epochs)
        return poisson if max_batch is None else _truncated(poisson, max_batch, records)
    instead = "give --batches, or --records and --batch, and --epochs"
    _not_for(sampler, instead, {"--rate": rate, "--steps": steps})
    if records is not None and batch is not None:
        needed = math.ceil(checks.count("--records", records) / checks.count("--batch", batch))
        if batches not in (None, needed):
            raise ValueError(f"--records {records} and --batch {batch} make {needed} batches, got --batches {batches}")
        batches = needed
    if batches is None:
        raise ValueError(f"--sampler {sampler.value} needs --batches, or --records and --batch")
    passes = 1 if epochs is None else epochs
    match sampler:
        case SamplerName.deterministic:
            return Deterministic(batches, passes)
        case SamplerName.balls_in_bins:
            return BallsInBins(batches, passes)
        case SamplerName.random_allocation:
            return RandomAllocation(times or 0, batches, passes)
        case SamplerName.buffered_shuffle:
            return BufferedShuffle(batches, buffer or 0, passes)
        case _:
            return Shuffle(batches, passes, reshuffle=sampler is SamplerName.shuffle)


def _not_for(sampler: SamplerName, instead: str, options: Mapping[str, float | None]) -> None:
    """Refuse options that say nothing about this sampler."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{option} {value:g} is not for --sampler {sampler.value}: {instead}")


def _rounds(sampler: SamplerName, steps: int | None, epochs: int | None, an_epoch: Fraction) -> int:
    """The rounds that --steps or --epochs say; both only if they say the same."""
    if epochs is None:
        if steps is None:
            raise ValueError(f"--sampler {sampler.value} needs --steps or --epochs")
        return steps
    made = math.ceil(checks.count("--epochs", epochs) * an_epoch)
    if steps not in (None, made):
        raise ValueError(f"--epochs {epochs} makes {made} steps, got --steps {steps}: give one of them")
    return made


def _without_replacement(
    steps: int | None, records: int | None, batch: int | None, epochs: int | None
) -> WithoutReplacement:
    name = SamplerName.without_replacement
    if records is None or batch is None:
        raise ValueError(f"--sampler {name.value} needs --records and --batch")
    an_epoch = Fraction(checks.count("--records", records), checks.count("--batch", batch))
    return WithoutReplacement(batch, records, _rounds(name, steps, epochs, an_epoch))


def _truncated(poisson: Poisson, max_batch: int, records: int | None) -> TruncatedPoisson:
    if records is None:
        raise ValueError("--sampler truncated-poisson needs --records")
    return TruncatedPoisson(poisson.rate, poisson.steps, max_batch, records)


def _poisson(
    sampler: SamplerName,
    rate: float | None,
    steps: int | None,
    records: int | None,
    batch: int | None,
    epochs: int | None,
) -> Poisson:
    if records is not None and batch is not None:
        share = Fraction(checks.count("--batch", batch), checks.count("--records", records))
        implied = float(share)
        if rate is not None and not math.isclose(rate, implied, rel_tol=1e-6):
            raise ValueError(f"--records {records} and --batch {batch} make a rate of {implied:g}, got --rate {rate:g}")
        rate = implied if rate is None else rate
    elif rate is None:
        raise ValueError(f"--sampler {sampler.value} needs --rate, or --records and --batch")
    else:
        share = Fraction(repr(checks.rate("--rate", rate)))  # as it was typed: 7 epochs at 0.07 are 100 rounds
    return Poisson(rate, _rounds(sampler, steps, epochs, 1 / share))


def plain(value: Any) -> Any:
    """What JSON can hold: brackets as objects, infinities as words."""
    if isinstance(value, Bracket):
        return {
            "lower": plain(value.lower), "upper": plain(value.upper), "evidence": value.evidence,
            "lower_by": value.lower_by, "upper_by": value.upper_by,
        }  # fmt: skip
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
    """Show a progress bar on standard error once the work has taken over a second; nothing for quick calls."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    )  # fmt: skip
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
