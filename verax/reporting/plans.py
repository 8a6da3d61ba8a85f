"""Plans as a table, a figure and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from verax.mechanism import Clipping
from verax.planning import Change, Plan, undominated
from verax.planning.closed_form import closed_form
from verax.planning.closed_form.theorems import GrantedGuarantee
from verax.planning.utility import UtilityGraph
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.figures import OKABE_ITO, drawable, drawing, matplotlib, panels, plain_log_axis

# Line styles of the samplers in a figure, in order, and their names.
DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dotted"}
# Batch sizes that get a line in a figure.
MOST_LINES = 9
# What the columns mean.
EXPLAINED = {
    "noise": "noise multiplier, seen to meet the target by the proved upper bound; "
    "a few parts in a thousand less would not",
    "noise/batch": "noise of one coordinate of an update, at clip norm 1",
    "signal": "of a round: expected batch / noise multiplier, the length of a clean sum of "
    "full-norm gradients that agree over the noise in its direction; of the run: sqrt(rounds) "
    "times that",
    "of full batch": "signal of the run, relative to having every record in every round",
    "records touched": "expected number of single gradients",
    "closed form": "the noise that theorem 3.1 of 'Proactive DP' asks for (theorem B.4 from "
    "epsilon 1/2 on); - where it grants nothing",
    "*": "no other plan has at least its signal of the run for no more rounds and, within 2 %, "
    "no more work",
}


def describe(clipping: Clipping) -> str:
    """The clipping in one word or two."""
    name = type(clipping).__name__.lower()
    return f"{name} of {clipping.groups}" if hasattr(clipping, "groups") else name


def table(
    plans: Sequence[Plan], best_signal: float | None = None, unknown: str = "noise"
) -> list[dict[str, str]]:
    """One row of text for each plan, in the given order; noises and epsilons are rounded up.

    Args:
        plans: what to show.
        best_signal: the signal of the run to which others are compared, as by
            ``full_batch_signal``.
        unknown: what was solved for: "noise", "epsilon", "delta", "rounds", "records" or "batch".

    >>> from verax.planning import Planner, Target
    >>> plan = Planner(Target(records=60000, epsilon=1.0, delta=1e-5)).plan(
    ...     "poisson", batch=600, epochs=10
    ... )
    >>> row = table([plan])[0]
    >>> row["sampler"], row["batch"], row["rounds"], row["records touched"]
    ('poisson', '600', '1000', '600000')
    """
    clippings = {plan.target.clipping for plan in plans}
    relations = {plan.mechanism.relation for plan in plans}
    rows = []
    for plan in plans:
        target, epochs = plan.target, plan.work / plan.target.records
        row = {"sampler": plan.way}
        row |= {"clipping": describe(target.clipping)} if len(clippings) > 1 else {}
        row |= {"relation": plan.mechanism.relation} if len(relations) > 1 else {}
        row |= {"records": str(target.records)} if unknown == "records" else {}
        row |= {"batch": str(plan.batch), "epochs": f"{epochs:.4g}", "rounds": str(plan.rounds)}
        row |= {"epsilon": format_bound(target.epsilon, UPPER)} if unknown == "epsilon" else {}
        row |= {"delta": format_bound(target.delta, UPPER)} if unknown == "delta" else {}
        row |= {
            "noise": _noise(plan.noise_multiplier),
            "noise/batch": format_bound(plan.ratio, UPPER, 4),
            "signal of a round": format_bound(plan.signal, LOWER, 4),
            "signal of the run": format_bound(plan.signal_of_run, LOWER, 4),
        }
        if best_signal is not None:
            row["of full batch"] = f"{100.0 * plan.signal_of_run / best_signal:.1f} %"
        row["records touched"] = f"{plan.work:.0f}"
        if unknown == "noise":
            asked = closed_form(plan)
            row["closed form"] = (
                format_bound(asked.sigma, UPPER, 4) if isinstance(asked, GrantedGuarantee) else "-"
            )
        rows.append(row)
    return rows


def _noise(value: float) -> str:
    """A noise multiplier in full if it has few digits, as a planned one has; else rounded up."""
    text = f"{value:.6g}"
    return text if float(text) == value else format_bound(value, UPPER, 6)


def plan_values(plan: Plan, starred: bool = False) -> dict[str, Any]:
    """Everything about a plan as values that JSON can hold."""
    asked = closed_form(plan)
    theorem = None
    if asked is not None:  # what was refused counts as false
        theorem = {
            "noise_multiplier": asked.sigma if isinstance(asked, GrantedGuarantee) else None,
            "theorem": asked.theorem,
            "why_not": None if isinstance(asked, GrantedGuarantee) else str(asked),
        }
    return {
        "sampler": plan.way,
        "mechanism": repr(plan.mechanism),
        "relation": plan.mechanism.relation,
        "clipping": describe(plan.target.clipping),
        "records": plan.target.records,
        "batch": plan.batch,
        "expected_batch": plan.sampler.expected_batch(plan.target.records),
        "epochs": plan.work / plan.target.records,
        "rounds": plan.rounds,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": plan.epsilon,
        "delta": plan.target.delta,
        "group": plan.target.group,
        "noise_to_batch": plan.ratio,
        "signal": plan.signal,
        "signal_of_run": plan.signal_of_run,
        "records_touched": plan.work,
        "undominated": starred,
        "closed_form": theorem,
    }


def change_values(change: Change) -> dict[str, Any]:
    """A change and its cost as values that JSON can hold."""
    return {
        "change": change.words,
        "noise": change.noise,
        "signal_of_run": change.signal,
        "rounds": change.rounds,
        "plan": plan_values(change.after),
    }


def plans_figure(
    plans: Sequence[Plan], title: str, path: Path, best_signal: float | None = None
) -> Path:
    """Save noise against epochs, and signal of the run against rounds, a line a batch size.

    Where there are many batch sizes, lines are drawn for some and dots for all. Rings mark
    undominated plans. Plans that need no noise are left out.
    """
    plans = [plan for plan in plans if plan.noise_multiplier > 0.0]
    if not plans:
        raise ValueError("there is nothing to draw: no plan needs noise")
    ways = list(dict.fromkeys(plan.way for plan in plans))
    with panels(1, 2, 11.0, 4.6, path) as ((left, right),):
        _draw_lines(left, right, plans, ways)
        _draw_undominated(right, plans)
        if best_signal is not None and math.isfinite(best_signal):
            _draw_best_signal(right, best_signal)
        noise = "smallest noise multiplier, proved to suffice"
        left.set(xscale="log", yscale="log", xlabel="epochs", ylabel=noise)
        right.set(xscale="log", yscale="log", xlabel="rounds", ylabel="signal to noise of the run")
        left.legend(frameon=False, title="batch", fontsize=8)
        right.legend(frameon=False, fontsize=8)
        left.set_title(title, loc="left", fontsize=10)
        right.set_title(_line_styles(ways), loc="left", fontsize=10)
        for axes in (left, right):
            axes.grid(alpha=0.25)
            plain_log_axis(axes.yaxis)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        right.margins(y=0.12)
    return path


def _draw_lines(left: Any, right: Any, plans: Sequence[Plan], ways: Sequence[str]) -> None:
    sizes = sorted({plan.batch for plan in plans})
    lined = _spread_out(sizes, MOST_LINES)
    shades = matplotlib().colormaps["viridis"]([i / max(len(sizes), 2) for i in range(len(sizes))])
    colours = dict(zip(sizes, shades, strict=True))
    ordered = sorted(plans, key=_line_order)
    for (way, batch, _), group in groupby(ordered, key=lambda plan: _line_order(plan)[:3]):
        line = list(group)
        look = {
            "color": colours[batch],
            "linestyle": list(DASHES)[ways.index(way) % len(DASHES)] if batch in lined else "",
            "marker": ".",
            "markersize": 3 if len(plans) > 200 else 5,
        }
        label = f"{batch}" if way == ways[0] and batch in lined else None
        epochs = [plan.work / plan.target.records for plan in line]
        left.plot(epochs, [plan.noise_multiplier for plan in line], label=label, **look)
        right.plot([p.rounds for p in line], [p.signal_of_run for p in line], **look)


def _draw_undominated(axes: Any, plans: Sequence[Plan]) -> None:
    best = undominated(plans)
    axes.plot(
        [plan.rounds for plan in best],
        [plan.signal_of_run for plan in best],
        "o",
        markersize=8,
        markerfacecolor="none",
        color=OKABE_ITO["red"],
        label="nothing beats it for its work and rounds",
    )


def _draw_best_signal(axes: Any, signal: float) -> None:
    axes.axhline(signal, color=OKABE_ITO["grey"], linewidth=1)
    axes.annotate(
        "every record in every round",
        (0.02, signal),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=8,
        color=OKABE_ITO["grey"],
    )


def _line_order(plan: Plan) -> tuple[str, int, str, float, int]:
    return plan.way, plan.batch, describe(plan.target.clipping), plan.work, plan.rounds


def _line_styles(ways: Sequence[str]) -> str:
    if len(ways) == 1:
        return ways[0]
    names = list(DASHES.values())
    return ", ".join(f"{names[i % len(names)]}: {way}" for i, way in enumerate(ways))


def _spread_out(values: Sequence[int], most: int) -> set[int]:
    """At most ``most`` of the values, ends included."""
    if len(values) <= most:
        return set(values)
    return {values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)}


def utility_figure(graph: UtilityGraph, path: Path, drop: float | None = None) -> Path:
    """Accuracy fraction against sigma, a line and a band per clip norm, saved to ``path``."""
    colours = [colour for name, colour in OKABE_ITO.items() if name != "black"]
    with drawing(7.0, 4.2, drawable(path)) as axes:
        for i, line in enumerate(graph.lines):
            sigma = [p.sigma for p in line.points]
            label = f"C = {line.clip_norm:g} (clean {line.accuracy:.1%})"
            colour = colours[i % len(colours)]
            fraction = [p.fraction for p in line.points]
            low, high = [p.low for p in line.points], [p.high for p in line.points]
            axes.plot(sigma, fraction, marker="o", markersize=3, color=colour, label=label)
            axes.fill_between(sigma, low, high, color=colour, alpha=0.2, linewidth=0)
        if drop is not None:
            axes.axhline(1.0 - drop, color=OKABE_ITO["grey"], linestyle="--", linewidth=1)
        axes.set(
            xlabel="sigma: noise on the weights / C",
            ylabel="accuracy with noise / without",
            xscale="log",
        )
        axes.set_title(
            "Utility graph" + ("" if graph.public else ", made from PRIVATE data"), loc="left"
        )
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
    return path
