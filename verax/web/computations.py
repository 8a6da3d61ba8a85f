"""What worker processes compute: generators, whose parts are values that JSON can hold.

A part with ``"provisional": True`` is true, and is followed by a better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from verax.checks import NoGuarantee
from verax.federated.observers import Federation, baseline
from verax.mechanism import Clipping, Individual, Mechanism
from verax.planning import (
    Plan,
    Planner,
    Target,
    changes,
    frontier,
    full_batch_signal,
    planned,
    ranked,
    undominated,
    within,
)
from verax.planning.planner import upper_only
from verax.privacy.guarantee import Bracket, Guarantee, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.privacy.tradeoff import from_brackets
from verax.reporting.plan_code import command_lines, python_code
from verax.reporting.plans import plan_values
from verax.reporting.statement.json_values import json_bracket, json_number
from verax.samplers import RandomParticipation

Part = dict[str, Any]
# The name of random participation itself among the models that it is compared with.
PARTICIPATION = "participation"
# Numbers of epsilons at which a curve is bracketed, ever finer.
_LEVELS = (6, 12, 24)
# How far below the stated delta a curve goes, but not below the least.
_BELOW, _LEAST_DELTA = 1e-2, 1e-12
# Where a curve ends if no epsilon is finite.
_LARGEST_EPSILON = 20.0
_CURVE_RTOL = 0.01


@dataclass(frozen=True)
class PlannedRun:
    """One run, with a sampler that is made from records, batch size and epochs."""

    sampler: str
    records: int
    batch: int
    epochs: int
    noise_multiplier: float
    clipping: Clipping = Individual()
    relation: str = ""
    group: int = 1

    def mechanism(self) -> Mechanism:
        """The run."""
        sampler = planned(self.sampler, self.records, self.batch, self.epochs)
        return Mechanism(sampler, self.noise_multiplier, self.clipping, self.relation)


@dataclass(frozen=True)
class ClientRun:
    """A client under random participation, or under a model that it is compared with."""

    model: str
    client: RandomParticipation
    noise_multiplier: float
    group: int = 1

    def mechanism(self) -> Mechanism:
        """The run."""
        if self.model == PARTICIPATION:
            return Mechanism(self.client, self.noise_multiplier)
        return baseline(self.model, self.client, self.noise_multiplier)


PricedRun = PlannedRun | ClientRun


def bracket_part(bracket: Bracket) -> Part:
    """A bracket, with its sides also in a few digits, each rounded to its safe side."""
    sides = {
        "lower": format_bound(bracket.lower, LOWER),
        "upper": format_bound(bracket.upper, UPPER),
    }
    return json_bracket(bracket) | {"shown": sides}


def epsilon(run: PricedRun, delta: float, rtol: float) -> Iterator[Part]:
    """The bracket on epsilon of one run, or why there is none.

    >>> from verax.web.computations import PlannedRun, epsilon
    >>> [part] = epsilon(PlannedRun("poisson", 60000, 600, 10, 1.0), 1e-5, 1e-3)
    >>> part["epsilon"]["shown"]
    {'lower': '1.8278', 'upper': '1.8290'}
    """
    mechanism = run.mechanism()
    try:
        bracket = bracket_part(mechanism.guarantee(run.group).epsilon(delta, rtol))
    except NoGuarantee as error:
        yield _row(mechanism, None, why_not=str(error))
    else:
        yield _row(mechanism, bracket)


def upper_side(run: PricedRun, delta: float, rtol: float) -> Iterator[Part]:
    """The upper side alone, which comes soon where attacks take long; nothing if there is none."""
    mechanism = run.mechanism()
    with suppress(NoGuarantee):
        bracket = replace(upper_only(mechanism).epsilon(delta, rtol), lower_by="not computed yet")
        yield _row(mechanism, bracket_part(bracket), provisional=True)


def observer(federation: Federation, name: str, delta: float, rtol: float) -> Iterator[Part]:
    """The epsilon of a client's record in the eyes of one kind of observer."""
    view = federation.against(name)
    bracket = bracket_part(view.guarantee().epsilon(delta, rtol))
    yield _row(view.mechanism, bracket) | {"words": view.words}


def _row(
    mechanism: Mechanism,
    epsilon: Part | None,
    why_not: str | None = None,
    provisional: bool = False,
) -> Part:
    return {
        "mechanism": repr(mechanism),
        "relation": mechanism.relation,
        "rounds": len(mechanism.sampler),
        "epsilon": epsilon,
        "why_not": why_not,
        "provisional": provisional,
    }


def curve(run: PricedRun, delta: float) -> Iterator[Part]:
    """Delta against epsilon and the trade-off curve of one run, ever finer."""
    try:
        guarantee = run.mechanism().guarantee(run.group)
        yield from _curves(guarantee, delta)
    except NoGuarantee as error:
        yield {"why_not": str(error), "deltas": [], "tradeoff": None, "provisional": False}


def _curves(guarantee: Guarantee, delta: float) -> Iterator[Part]:
    reach = guarantee.epsilon(max(delta * _BELOW, min(_LEAST_DELTA, delta)), rtol=0.1).upper
    top = max(reach, 1e-3) if math.isfinite(reach) else _LARGEST_EPSILON
    known: dict[float, Bracket] = {}
    for level in _LEVELS:
        for share in (i / level for i in range(level + 1)):
            if share not in known:
                known[share] = guarantee.delta(top * share, rtol=_CURVE_RTOL)
        points = [(top * share, known[share]) for share in sorted(known)]
        lower, upper = [b.lower for _, b in points], [b.upper for _, b in points]
        proved = from_brackets([e for e, _ in points], lower, upper)
        above = proved.above or proved
        yield {
            "why_not": None,
            "deltas": [{"epsilon": e, "lower": b.lower, "upper": b.upper} for e, b in points],
            "tradeoff": {
                "certified": {"alpha": proved.alpha.tolist(), "beta": proved.beta.tolist()},
                "above": {"alpha": above.alpha.tolist(), "beta": above.beta.tolist()},
            },
            "provisional": level != _LEVELS[-1],
        }


@dataclass(frozen=True)
class PlanLimits:
    """What plans must keep besides their privacy; None for no limit."""

    rounds_at_least: int = 1
    rounds_at_most: int | None = None
    noise_at_most: float | None = None
    ratio_at_most: float | None = None

    def violation(self, plan: Plan) -> str:
        """Which limit on the noise the plan does not keep, in words; empty if it keeps them."""
        for name, limit, value in (
            ("noise_at_most", self.noise_at_most, plan.noise_multiplier),
            ("ratio_at_most", self.ratio_at_most, plan.ratio),
        ):
            if limit is not None and value > limit:
                needs = f"epochs {plan.epochs} needs {format_bound(value, UPPER)}"
                where = f"{plan.way}, batch {plan.batch}, {needs}"
                return f"{name} = {limit:g} is in the way: {where}"
        return ""


def plans(
    target: Target,
    points: tuple[tuple[str, int, int], ...],
    limits: PlanLimits,
    rank: str,
    notes: tuple[str, ...] = (),
) -> Iterator[Part]:
    """The number of plans, each plan in the order of ``points``, and how they rank.

    A point is a sampler, a batch size and a number of epochs.
    """
    most = math.inf if limits.rounds_at_most is None else limits.rounds_at_most
    allowed = [
        p
        for p in points
        if limits.rounds_at_least <= len(planned(p[0], target.records, p[1], p[2])) <= most
    ]
    if not allowed:  # the planner knows which limit is in the way
        ways, sizes, passes = (dict.fromkeys(column) for column in zip(*points, strict=True))
        bounds: dict[str, Any] = {
            "rounds_at_least": limits.rounds_at_least,
            "rounds_at_most": limits.rounds_at_most,
        }
        frontier(target, sizes, passes, list(ways), **bounds)
    yield {
        "of": len(allowed),
        "full_batch_signal": json_number(full_batch_signal(target)),
        "notes": notes,
    }
    planner, found, beyond, why = Planner(target), list[Plan](), list[Plan](), ""
    for way, batch, epochs in allowed:
        try:
            plan = planner.plan(way, batch, epochs)
            why = limits.violation(plan)
        except ValueError as error:
            why = str(error)
        else:
            (beyond if why else found).append(plan)
        yield {"plan": None if why else _plan(plan, epochs), "why_not": why or None}
    if not found:
        # says what comes closest
        within(beyond, noise_at_most=limits.noise_at_most, ratio_at_most=limits.ratio_at_most)
        raise ValueError(why)
    place = {id(one): i for i, one in enumerate(found)}
    yield {
        "ranked": [place[id(one)] for one in ranked(found, rank)],
        "undominated": sorted(place[id(one)] for one in undominated(found)),
    }


def _plan(plan: Plan, epochs: int) -> Part:
    values = plan_values(plan)
    del values["undominated"]  # not known before the last plan
    signals = {name: json_number(values[name]) for name in ("signal", "signal_of_run")}
    return (
        values
        | signals
        | {
            "passes": epochs,
            "python": python_code(plan),
            "command_lines": command_lines(plan),
        }
    )


def plan_changes(target: Target, way: str, batch: int, epochs: int) -> Iterator[Part]:
    """What changes to one plan cost."""
    for change in changes(Planner(target).plan(way, batch, epochs)):
        yield {"words": str(change), "plan": _plan(change.after, change.after.epochs)}
