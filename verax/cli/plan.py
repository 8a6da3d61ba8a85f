"""verax plan: choose batch, rounds and noise before touching the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from verax import checks, planning
from verax.cli import output
from verax.cli.commands import Command
from verax.cli.commands import Group as CommandGroup
from verax.cli.options import (
    ClipGroups,
    Figure,
    Group,
    Json,
    Relation,
    checked_figure,
    clippings_by_name,
    flat,
    option,
    refuse_together,
)
from verax.cli.plan_closed_form import closed_form
from verax.cli.plan_utility import utility as utility_graph
from verax.cli.tables import Table
from verax.mechanism import Clipping
from verax.planning import Change, Plan, Target, plannable
from verax.planning.frontier import spread, usual_batches
from verax.planning.utility import LEAKS, Choice, PrivateData, UtilityGraph, best_plan, expected
from verax.planning.utility import read as read_graph
from verax.reporting import plans as reporting

plan = typer.Typer(cls=CommandGroup, rich_markup_mode=None)

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


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What ``verax plan`` is asked."""

    records: int | None = option("Number of records; leave out to solve for it.")
    epsilon: float | None = option("The target; leave out to solve for it.")
    delta: float | None = option("The delta of the target; leave out to solve for it.")
    epochs: str = option(
        "Passes over the data: 10, or 5,10,20, or 1:100, or 1:100:50 for 50 values.", default=""
    )
    batch: str = option("Expected batch sizes, likewise; default: powers of two.", default="")
    noise_multiplier: float | None = option(
        "Give the noise to solve for something else.", "--noise-multiplier", "-z"
    )
    sampler: str = option(
        f"Who is in each batch, any of {', '.join(plannable())}.", default="poisson"
    )
    clipping: str = option(
        "What is clipped: any of individual, batch, mixed.", default="individual"
    )
    clip_groups: ClipGroups = 1
    relation: Relation = None
    group: Group = 1
    rounds_at_most: int | None = option("Leave out plans with more rounds.")
    rounds_at_least: int = option("Leave out plans with fewer rounds.", default=1)
    noise_at_most: float | None = option("Leave out plans with more noise.")
    ratio_at_most: float | None = option("Leave out plans with more noise/batch.")
    utility: Path | None = option(
        "A utility graph: the plan with the best accuracy it expects comes first."
    )
    rank: Ranking = option("What comes first.", default=Ranking.signal)
    show: int = option("Rows of the table.", default=_SHOWN)
    figure: Figure = None
    json: Json = False

    def __post_init__(self) -> None:
        # what is wrong with the words is said before what is missing
        _ = self.passes, self.batches, self.ways, self.clippings

    @cached_property
    def passes(self) -> list[int]:
        """Numbers of epochs; none if they are unknown."""
        return _whole_numbers("--epochs", self.epochs, _CLOSE_EPOCHS)

    @cached_property
    def batches(self) -> list[int]:
        """Expected batch sizes; none if they are unknown."""
        return _whole_numbers("--batch", self.batch, 2.0)

    @cached_property
    def ways(self) -> list[str]:
        """Names of samplers."""
        names = dict.fromkeys(self.sampler.split(","))
        return [checks.choice("--sampler", name, plannable()) for name in names]

    @cached_property
    def clippings(self) -> list[Clipping]:
        """What may be clipped."""
        names = dict.fromkeys(self.clipping.split(","))
        kinds = clippings_by_name(self.clip_groups, list(names))
        return [kinds[checks.choice("--clipping", name, tuple(kinds))] for name in names]

    @property
    def limited(self) -> bool:
        """Whether plans with some noise are to be left out."""
        limits = (self.rounds_at_most, self.noise_at_most, self.ratio_at_most)
        return self.rounds_at_least > 1 or any(limit is not None for limit in limits)

    def missing(self) -> list[str]:
        """Options without which there is more than one unknown."""
        given = {
            "records": self.records,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "epochs": self.passes or None,
        }
        return [name for name, value in given.items() if value is None]

    def targets(self, **unknown: Any) -> Iterator[Target]:
        """One for each clipping, with something in the place of what is unknown."""
        known = {"records": self.records, "epsilon": self.epsilon, "delta": self.delta, **unknown}
        relation = self.relation.value if self.relation else ""
        for clipping in self.clippings:
            yield Target(**known, clipping=clipping, relation=relation, group=self.group)


@plan.callback(invoke_without_command=True)
@flat
def frontier(context: typer.Context, options: PlanOptions) -> None:
    """The smallest noise for every batch size and number of epochs, and what each plan costs.

    Every plan meets the target. With the noise given, whatever is left out is solved for: epsilon,
    delta, records, epochs or batch.

    Example: verax plan --records 60000 --epsilon 1 --delta 1e-5 --epochs 1:100 --batch 64:8192
        --figure plans.png
    """
    if context.invoked_subcommand is not None:
        why = "give them after it, if it has them"
        refuse_together(context, context.params, f"the command {context.invoked_subcommand}", why)
        return
    checked_figure(options.figure)
    answer = _solve(options)
    if options.figure is not None:
        reporting.plans_figure(answer.plans, answer.setting, options.figure, answer.best_signal)
    if options.json:
        _print_json(answer, options)
        return
    _show(answer, options)
    output.say_saved(options.figure)


@dataclass(frozen=True)
class _Answer:
    """What was solved for, the plans in their order, and what a utility graph makes of them."""

    unknown: str
    plans: list[Plan]
    advice: _Advice | None = None

    @cached_property
    def best_signal(self) -> float | None:
        """The signal of full batches, where all plans have one target."""
        if self.unknown not in ("noise", "rounds", "batch"):
            return None
        return planning.full_batch_signal(self.plans[0].target)

    @cached_property
    def changes(self) -> list[Change]:
        """What changes to the first plan cost."""
        return planning.changes(self.plans[0]) if self.unknown == "noise" else []

    @cached_property
    def undominated(self) -> set[int]:
        """The identities of the plans that no other surpasses."""
        return set(map(id, planning.undominated(self.plans)))

    @property
    def setting(self) -> str:
        """What all plans have in common, in words."""
        first, target = self.plans[0], self.plans[0].target
        facts = {
            "records": f"{target.records} records",
            "epsilon": f"epsilon {target.epsilon!r}",
            "delta": f"delta {target.delta!r}",
            "noise": f"noise {first.noise_multiplier!r}",
        }
        words = ", ".join(word for name, word in facts.items() if name != self.unknown)
        return words + (f", any {target.group} records together" if target.group > 1 else "")


@dataclass(frozen=True)
class _Advice:
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


def _solve(options: PlanOptions) -> _Answer:
    """Solve for the noise, or with the noise given for what was left out; put the best first."""
    if options.noise_multiplier is None:
        unknown, plans = "noise", _plans_of_least_noise(options)
    elif options.limited:
        raise ValueError(
            "limits on rounds, noise and ratio are for choosing the noise: leave out "
            "--noise-multiplier"
        )
    else:
        unknown, plans = _plans_with_noise(options, options.noise_multiplier)
    plans = planning.ranked(plans, options.rank.value)
    if options.utility is None:
        return _Answer(unknown, plans)
    if unknown != "noise":
        raise ValueError("--utility is for choosing the noise: leave out --noise-multiplier")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivateData)  # it is said below the table
        graph = read_graph(options.utility)
    choice = best_plan(plans, graph)
    others = (plan for plan in plans if plan is not choice.plan)
    return _Answer(unknown, [choice.plan, *others], _Advice(graph, choice))


def _plans_of_least_noise(options: PlanOptions) -> list[Plan]:
    """The least noise of every plan within the limits."""
    if missing := options.missing():
        raise ValueError(
            f"--{' and --'.join(missing)} must be given to solve for the noise; "
            "with --noise-multiplier given, one of them can be the unknown"
        )
    plans = []
    for target in options.targets():
        with output.progress_bar("planning", "plans") as progress:
            plans += planning.frontier(
                target,
                options.batches or usual_batches(target.records),
                options.passes,
                options.ways,
                rounds_at_least=options.rounds_at_least,
                rounds_at_most=options.rounds_at_most,
                progress=progress,
            )
    return planning.within(
        plans, noise_at_most=options.noise_at_most, ratio_at_most=options.ratio_at_most
    )


_SOLVERS: dict[str, Callable[[Target, str, int, int, float], Plan]] = {
    "epsilon": planning.reachable_epsilon,
    "delta": planning.reachable_delta,
    "records": planning.fewest_records,
    "epochs": lambda target, way, batch, _, noise: planning.most_rounds(target, way, batch, noise),
    "batch": lambda target, way, _, epochs, noise: planning.largest_batch(
        target, way, epochs, noise
    ),
}


def _plans_with_noise(options: PlanOptions, noise: float) -> tuple[str, list[Plan]]:
    """The unknown and the plans that solve for it, with the noise given."""
    missing = options.missing() or ([] if options.batches else ["batch"])
    if missing == ["records"] and not options.batches:
        missing.append("batch")
    if len(missing) != 1:
        got = f"--{' and --'.join(missing)} are both missing" if missing else "all are given"
        raise ValueError(
            "with --noise-multiplier given, leave out exactly one of --epsilon, --delta, "
            f"--records, --epochs, --batch: {got}"
        )
    (unknown,) = missing
    batches = options.batches or (
        [1] if options.records is None or unknown == "batch" else usual_batches(options.records)
    )
    # a solver does not look at its own
    fill = {"epsilon": 1.0, "delta": 0.5, "records": max(*batches, options.group)}
    targets = options.targets(**{unknown: fill[unknown]} if unknown in fill else {})
    points = [
        (way, batch, count)
        for way in options.ways
        for batch in batches
        for count in options.passes or [1]
    ]
    with output.patience("planning"):
        found = [_SOLVERS[unknown](target, *point, noise) for target in targets for point in points]
    return "rounds" if unknown == "epochs" else unknown, found


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


def _print_json(answer: _Answer, options: PlanOptions) -> None:
    advice, plans = answer.advice, []
    for plan in answer.plans:
        accuracy = {} if advice is None else {"expected_accuracy": advice.accuracy(plan)}
        plans.append(reporting.plan_values(plan, id(plan) in answer.undominated) | accuracy)
    output.print_json(
        {
            "unknown": answer.unknown,
            "setting": answer.setting,
            "ranked_by": options.rank.value,
            "full_batch_signal": answer.best_signal,
            "figure": options.figure and str(options.figure),
            "plans": plans,
            "utility": advice
            and {
                "clip_norm": advice.choice.clip_norm,
                "learning_rate": advice.choice.learning_rate,
                "expected_accuracy": advice.choice.accuracy,
                "public": advice.graph.public,
            },
            "changes_to_the_first": [reporting.change_values(change) for change in answer.changes],
            "columns": reporting.EXPLAINED,
        }
    )


def _show(answer: _Answer, options: PlanOptions) -> None:
    out, advice = output.fitted_console(), answer.advice
    shown = answer.plans[: checks.count("show", options.show)]
    order = f"best {options.rank.value} first"
    if advice is not None:
        order = f"the utility graph's choice first, then best {options.rank.value}"
    count = len(answer.plans)
    out.print(
        f"{answer.setting}: {count} plan{'s' * (count != 1)}, {order}"
        + (f", {len(shown)} shown" if len(shown) < count else "")
    )
    rows = reporting.table(shown, answer.best_signal, answer.unknown)
    grid = Table(["", *rows[0], *(["expected accuracy"] if advice else [])], _SPARE)
    for plan, row in zip(shown, rows, strict=True):
        accuracy = [f"{100.0 * advice.accuracy(plan):.1f} %"] if advice else []
        grid.add_row("*" if id(plan) in answer.undominated else "", *row.values(), *accuracy)
    grid.print(out)
    for name, meaning in reporting.EXPLAINED.items():
        if name in (*rows[0], "signal", "*") and (name != "noise" or answer.unknown == "noise"):
            out.print(f"{name}: {meaning}", style="dim")
    if advice is not None:
        out.print(advice.words())
        if not advice.graph.public:
            out.print(f"Warning: {LEAKS}")
    first, target = answer.plans[0], answer.plans[0].target
    if target.delta * target.records > 1.0:
        out.print(
            f"Note: delta {target.delta!r} is above 1/records; a run that publishes one record "
            "would meet it."
        )
    if answer.changes:
        out.print(
            f"What changes to the first plan cost (batch {first.batch}, epochs {first.epochs}):"
        )
        for change in answer.changes:
            out.print(f"  {change}")
