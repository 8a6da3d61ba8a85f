"""verax plan: choose batch, rounds and noise before touching the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from verax import checks, planning
from verax.cli import common
from verax.cli.commands import Command, Group
from verax.cli.compare import writable
from verax.cli.options import ClipGroups, Relation, clippings_by_name
from verax.cli.plan_closed_form import closed_form
from verax.cli.plan_utility import utility as utility_graph
from verax.cli.tables import Table, console
from verax.mechanism import Clipping
from verax.planning import Change, Plan, Target, plannable
from verax.planning.frontier import spread, usual_batches
from verax.planning.utility import LEAKS, Choice, PrivateData, UtilityGraph, best_plan, expected
from verax.planning.utility import read as read_graph
from verax.reporting import plans as reporting
from verax.reporting.figures import drawable

plan = typer.Typer(cls=Group, rich_markup_mode=None)

plan.command("closed-form", cls=Command)(closed_form)
plan.command("utility", cls=Command)(utility_graph)

_SPARE = ("noise/batch", "signal of a round", "closed form", "records touched", "of full batch")
_SHOWN = 15
_CLOSE_EPOCHS = 2.0**0.5  # factor between the epochs of a range


class Ranking(StrEnum):
    """What plans are ranked by."""

    signal = "signal"
    noise = "noise"
    ratio = "ratio"
    work = "work"
    rounds = "rounds"


@plan.callback(invoke_without_command=True)
def frontier(
    context: typer.Context,
    records: Annotated[
        int | None, typer.Option(help="Number of records; leave out to solve for it.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The target; leave out to solve for it.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta of the target; leave out to solve for it.")
    ] = None,
    epochs: Annotated[
        str,
        typer.Option(
            help="Passes over the data: 10, or 5,10,20, or 1:100, or 1:100:50 for 50 values."
        ),
    ] = "",
    batch: Annotated[
        str, typer.Option(help="Expected batch sizes, likewise; default: powers of two.")
    ] = "",
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier", "-z", help="Give the noise to solve for something else."
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help=f"Who is in each batch, any of {', '.join(plannable())}.")
    ] = "poisson",
    clipping: Annotated[
        str, typer.Option(help="What is clipped: any of individual, batch, mixed.")
    ] = "individual",
    clip_groups: ClipGroups = 1,
    relation: Relation = None,
    group: common.Group = 1,
    rounds_at_most: Annotated[
        int | None, typer.Option(help="Leave out plans with more rounds.")
    ] = None,
    rounds_at_least: Annotated[int, typer.Option(help="Leave out plans with fewer rounds.")] = 1,
    noise_at_most: Annotated[
        float | None, typer.Option(help="Leave out plans with more noise.")
    ] = None,
    ratio_at_most: Annotated[
        float | None, typer.Option(help="Leave out plans with more noise/batch.")
    ] = None,
    utility: Annotated[
        Path | None,
        typer.Option(
            help="A utility graph: the plan with the best accuracy it expects comes first."
        ),
    ] = None,
    rank: Annotated[Ranking, typer.Option(help="What comes first.")] = Ranking.signal,
    show: Annotated[int, typer.Option(help="Rows of the table.")] = _SHOWN,
    figure: Annotated[
        Path | None, typer.Option(help="Save a figure here: .png, .svg or .pdf.")
    ] = None,
    json: common.AsJson = False,
) -> None:
    """The smallest noise for every batch size and number of epochs that meets a target, and what each plan costs.

    With the noise given, whatever is left out is solved for: epsilon, delta, records, epochs or
    batch.

    Example: verax plan --records 60000 --epsilon 1 --delta 1e-5 --epochs 1:100 --batch 64:8192
        --figure plans.png
    """
    if context.invoked_subcommand is not None:
        why = "give them after it, if it has them"
        common.refuse_together(
            context, context.params, f"the command {context.invoked_subcommand}", why
        )
        return
    if figure is not None:
        writable(drawable(figure).parent)
    asked = _Asked(
        records,
        epsilon,
        delta,
        _whole_numbers("--epochs", epochs, _CLOSE_EPOCHS),
        _whole_numbers("--batch", batch, 2.0),
        _names("--sampler", sampler, plannable()),
        _clippings(clipping, clip_groups),
        relation.value if relation else "",
        group,
    )
    limits = {"noise_at_most": noise_at_most, "ratio_at_most": ratio_at_most}
    if noise_multiplier is None:
        unknown = "noise"
        plans = planning.within(_frontier(asked, rounds_at_least, rounds_at_most), **limits)
    elif rounds_at_least > 1 or any(
        limit is not None for limit in (rounds_at_most, *limits.values())
    ):
        raise ValueError(
            "limits on rounds, noise and ratio are for choosing the noise: leave out "
            "--noise-multiplier"
        )
    else:
        unknown, plans = _solved(asked, noise_multiplier)
    plans = planning.ranked(plans, rank.value)
    joined = None if utility is None else _joined(plans, unknown, utility)
    if joined is not None:
        plans = [joined.choice.plan, *(plan for plan in plans if plan is not joined.choice.plan)]
    best = (
        planning.full_batch_signal(plans[0].target)
        if unknown in ("noise", "rounds", "batch")
        else None
    )
    if figure is not None:
        reporting.plans_figure(plans, _setting(plans[0], unknown), figure, best)
    changes = planning.changes(plans[0]) if unknown == "noise" else []
    if json:
        _print_json(plans, changes, unknown, rank.value, best, figure, joined)
        return
    _show(plans, changes, unknown, rank.value, checks.count("show", show), best, joined)
    if figure is not None:
        console().print(f"Figure saved: {figure}")


@dataclass(frozen=True)
class _Asked:
    """What the options say; what is None or empty is unknown."""

    records: int | None
    epsilon: float | None
    delta: float | None
    epochs: list[int]
    batches: list[int]
    ways: list[str]
    clippings: list[Clipping]
    relation: str
    group: int

    def missing(self) -> list[str]:
        """Options without which there is more than one unknown."""
        given = {
            "records": self.records,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "epochs": self.epochs or None,
        }
        return [name for name, value in given.items() if value is None]

    def targets(self, **unknown: Any) -> Iterator[Target]:
        """One for each clipping, with something in the place of what is unknown."""
        known = {"records": self.records, "epsilon": self.epsilon, "delta": self.delta, **unknown}
        for clipping in self.clippings:
            yield Target(**known, clipping=clipping, relation=self.relation, group=self.group)


def _frontier(asked: _Asked, rounds_at_least: int, rounds_at_most: int | None) -> list[Plan]:
    if missing := asked.missing():
        raise ValueError(
            f"--{' and --'.join(missing)} must be given to solve for the noise; "
            "with --noise-multiplier given, one of them can be the unknown"
        )
    plans = []
    for target in asked.targets():
        with _progress() as progress:
            plans += planning.frontier(
                target,
                asked.batches or usual_batches(target.records),
                asked.epochs,
                asked.ways,
                rounds_at_least=rounds_at_least,
                rounds_at_most=rounds_at_most,
                progress=progress,
            )
    return plans


_SOLVERS: dict[str, Callable[[Target, str, int, int, float], Plan]] = {
    "epsilon": planning.reachable_epsilon,
    "delta": planning.reachable_delta,
    "records": planning.fewest_records,
    "epochs": lambda target, way, batch, _, noise: planning.most_rounds(target, way, batch, noise),
    "batch": lambda target, way, _, epochs, noise: planning.largest_batch(
        target, way, epochs, noise
    ),
}


def _solved(asked: _Asked, noise: float) -> tuple[str, list[Plan]]:
    """The unknown and the plans that solve for it, with the noise given."""
    missing = asked.missing() or ([] if asked.batches else ["batch"])
    if missing == ["records"] and not asked.batches:
        missing.append("batch")
    if len(missing) != 1:
        got = f"--{' and --'.join(missing)} are both missing" if missing else "all are given"
        raise ValueError(
            "with --noise-multiplier given, leave out exactly one of --epsilon, --delta, "
            f"--records, --epochs, --batch: {got}"
        )
    (unknown,) = missing
    batches = asked.batches or (
        [1] if asked.records is None or unknown == "batch" else usual_batches(asked.records)
    )
    # a solver does not look at its own
    fill = {"epsilon": 1.0, "delta": 0.5, "records": max(*batches, asked.group)}
    targets = asked.targets(**{unknown: fill[unknown]} if unknown in fill else {})
    points = [
        (way, batch, count)
        for way in asked.ways
        for batch in batches
        for count in asked.epochs or [1]
    ]
    with common.patience("planning"):
        found = [_SOLVERS[unknown](target, *point, noise) for target in targets for point in points]
    return "rounds" if unknown == "epochs" else unknown, found


@dataclass(frozen=True)
class _Joined:
    """A utility graph and the plan it prefers."""

    graph: UtilityGraph
    choice: Choice

    def accuracy(self, plan: Plan) -> float:
        """What the graph expects of a plan."""
        return expected(plan, self.graph).accuracy

    def words(self) -> str:
        """What to run, and what to expect of it."""
        choice, plan = self.choice, self.choice.plan
        return (
            f"Best by the utility graph: {plan.way}, batch {plan.batch}, epochs {plan.epochs}, "
            f"noise {plan.noise_multiplier!r}, clip norm {choice.clip_norm:g}, learning rate "
            f"{choice.learning_rate:.4g}; expected accuracy {100.0 * choice.accuracy:.1f} %"
        )


def _joined(plans: Sequence[Plan], unknown: str, path: Path) -> _Joined:
    if unknown != "noise":
        raise ValueError("--utility is for choosing the noise: leave out --noise-multiplier")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivateData)  # it is said below the table
        graph = read_graph(path)
    return _Joined(graph, best_plan(plans, graph))


def _whole_numbers(option: str, words: str, ratio: float) -> list[int]:
    """Numbers from 10, 5,10,20, 1:100 or 1:100:50; ranges are spread by equal factors."""
    numbers: list[int] = []
    for word in words.split(",") if words else []:
        try:
            parts = [int(part) for part in word.split(":")]
            match parts:
                case [number]:
                    numbers.append(number)
                case [low, high]:
                    numbers += spread(low, high, ratio=ratio)
                case [low, high, count]:
                    numbers += spread(low, high, count)
                case _:
                    raise ValueError("the range has too many parts")
        except ValueError as error:
            why = f": {error}" if str(error).startswith("the ") else ""
            raise ValueError(
                f"{option} must be such as 10, 5,10,20, 1:100 or 1:100:50, got {words!r}{why}"
            ) from error
    return [checks.count(option, number) for number in sorted(set(numbers))]


def _names(option: str, words: str, allowed: Iterable[str]) -> list[str]:
    return [checks.choice(option, word, tuple(allowed)) for word in dict.fromkeys(words.split(","))]


def _clippings(words: str, clip_groups: int) -> list[Clipping]:
    kinds = clippings_by_name(clip_groups, words.split(","))
    return [kinds[word] for word in _names("--clipping", words, kinds)]


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's standard error, which goes away when the work is done."""
    console = Console(stderr=True)
    # a disabled bar of rich 14.2 and older still ends with an empty line
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        TextColumn("planning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("plans"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("planning", total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _setting(plan: Plan, unknown: str) -> str:
    """What all plans have in common."""
    target = plan.target
    words = [] if unknown == "records" else [f"{target.records} records"]
    words += [] if unknown == "epsilon" else [f"epsilon {target.epsilon!r}"]
    words += [] if unknown == "delta" else [f"delta {target.delta!r}"]
    words += [] if unknown == "noise" else [f"noise {plan.noise_multiplier!r}"]
    return ", ".join(words) + (f", any {target.group} records together" if target.group > 1 else "")


def _print_json(
    plans: Sequence[Plan],
    changes: Sequence[Change],
    unknown: str,
    rank: str,
    best: float | None,
    figure: Path | None,
    joined: _Joined | None,
) -> None:
    starred = set(map(id, planning.undominated(plans)))
    accuracies = (
        {} if joined is None else {id(p): {"expected_accuracy": joined.accuracy(p)} for p in plans}
    )
    common.print_json(
        {
            "unknown": unknown,
            "setting": _setting(plans[0], unknown),
            "ranked_by": rank,
            "full_batch_signal": best,
            "figure": figure and str(figure),
            "plans": [
                reporting.plain(p, id(p) in starred) | accuracies.get(id(p), {}) for p in plans
            ],
            "utility": joined
            and {
                "clip_norm": joined.choice.clip_norm,
                "learning_rate": joined.choice.learning_rate,
                "expected_accuracy": joined.choice.accuracy,
                "public": joined.graph.public,
            },
            "changes_to_the_first": [reporting.plain_change(change) for change in changes],
            "columns": reporting.EXPLAINED,
        }
    )


def _show(
    plans: Sequence[Plan],
    changes: Sequence[Change],
    unknown: str,
    rank: str,
    show: int,
    best: float | None,
    joined: _Joined | None,
) -> None:
    out = console()
    shown = plans[:show]
    order = (
        f"best {rank} first"
        if joined is None
        else f"the utility graph's choice first, then best {rank}"
    )
    out.print(
        f"{_setting(plans[0], unknown)}: {_count(len(plans), 'plan')}, {order}"
        + (f", {len(shown)} shown" if len(shown) < len(plans) else "")
    )
    rows = reporting.table(shown, best, unknown)
    starred = set(map(id, planning.undominated(plans)))
    grid = Table(["", *rows[0], *(["expected accuracy"] if joined else [])], _SPARE)
    for item, row in zip(shown, rows, strict=True):
        more = [f"{100.0 * joined.accuracy(item):.1f} %"] if joined else []
        grid.add_row("*" if id(item) in starred else "", *row.values(), *more)
    grid.print(out)
    meanings = {
        name: text
        for name, text in reporting.EXPLAINED.items()
        if name in (*rows[0], "signal", "*")
    }
    for name, meaning in meanings.items():
        if name != "noise" or unknown == "noise":
            out.print(f"{name}: {meaning}", style="dim")
    if joined is not None:
        out.print(joined.words())
        if not joined.graph.public:
            out.print(f"Warning: {LEAKS}")
    first, target = plans[0], plans[0].target
    if target.delta * target.records > 1.0:
        out.print(
            f"Note: delta {target.delta!r} is above 1/records; a run that publishes one record "
            "would meet it."
        )
    if changes:
        out.print(
            f"What changes to the first plan cost (batch {first.batch}, epochs {first.epochs}):"
        )
        for change in changes:
            out.print(f"  {change}")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"
