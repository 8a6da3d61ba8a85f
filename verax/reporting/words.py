"""A privacy statement in words: sentences that prose and page share."""

from __future__ import annotations

import math

from verax.ledger.run import NOT_PRIVATE
from verax.privacy.guarantee import shown
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.facts import BUDGET, RUN, SEARCH, UNCOVERED, Facts, Reach

_NEIGHBOURS = {
    "add-remove": "Two data sets are neighbours if they are alike but for {these}, which only one of them has.",
    "zero-out": "Two data sets are neighbours if they are alike but for {these}, which in one of them count for "
    "nothing; how many {unit}s there are is public.",
    "replace": "Two data sets are neighbours if they are alike but for {these}, in whose place one of them has others; "
    "how many {unit}s there are is public.",
}
_AGAINST = {
    "A0": "Whoever sees every noisy sum of the run, and so every model on the way, and knows all other {unit}s and how "
    "the run was set up; but neither who was drawn into which batch nor the noise.",
    "A1": "Whoever sees every noisy sum of the run, and so every model on the way, knows all other {unit}s and how the "
    "run was set up, and is told in which rounds and clip-groups the protected {unit}s were; but not the noise.",
}


RELIES_ON = (
    "the arithmetic of IEEE 754 doubles",
    "the measured accuracy of special functions (docs/proofs.md, section 6)",
)
"""What every number takes for granted."""

_WHAT = {RUN: "What runs", SEARCH: "What one trial runs", BUDGET: "What was spent"}


def percent(share: float, side: int) -> str:
    """A share as a percentage of three digits, rounded to its safe side.

    >>> percent(0.031512, UPPER), percent(0.031512, LOWER), percent(1.0, UPPER)
    ('3.16 %', '3.15 %', '100 %')
    """
    value = min(100.0 * share * (1.0 + 1e-15 if side == UPPER else 1.0), 100.0)
    return f"{value:g} %" if value in (0.0, 100.0) else f"{shown(value, side, 3)} %"


def some(facts: Facts) -> str:
    """As many units as are protected together.

    >>> from verax import Mechanism, Poisson
    >>> some(
    ...     Facts.of(
    ...         Mechanism(Poisson(rate=0.01, steps=10), noise_multiplier=1.0).guarantee(group=8),
    ...         delta=1e-5,
    ...     )
    ... )
    '8 records'
    """
    return f"1 {facts.unit}" if facts.group == 1 else f"{facts.group} {facts.unit}s"


def _whole(facts: Facts) -> str:
    """What belongs to a unit, if it has parts."""
    if facts.unit == "record":
        return ""
    return " with all its records" if facts.group == 1 else " with all their records"


def who(facts: Facts) -> str:
    """Who is protected."""
    return f"any {some(facts)}{' together' * (facts.group > 1)}{_whole(facts)}"


def headline(facts: Facts) -> str:
    """The one sentence."""
    subject = f"Any {some(facts)}{_whole(facts)} {'is' if facts.group == 1 else 'are'}"
    by = f" {facts.by}" if facts.by else ""
    return (
        f"{subject} protected with epsilon at most {most(facts)} at delta {facts.delta!r}{by} "
        f"(relation: {facts.relation})."
    )


def most(facts: Facts) -> str:
    """The upper bound on epsilon: a budget as it was chosen, anything else rounded up."""
    return repr(facts.epsilon.upper) if facts.kind == BUDGET else shown(facts.epsilon.upper, UPPER)


def neighbours(facts: Facts) -> str:
    """What the relation means."""
    these = f"{'up to ' * (facts.group > 1)}{some(facts)}{_whole(facts)}"
    return _NEIGHBOURS[facts.relation].format(these=these, unit=facts.unit)


def against(facts: Facts) -> str:
    """Whom the protection is against."""
    return _AGAINST[facts.adversary].format(unit=facts.unit)


def finds(facts: Facts, reach: Reach) -> str:
    """What one rate of false alarms buys, as a sentence."""
    alarms, most = f"{100.0 * reach.false_alarms:g} %", percent(reach.most, UPPER)
    if facts.relation == "replace":
        members = f"the {facts.unit}{'s' * (facts.group > 1)}"
        return f"An attacker with {alarms} false alarms recognises {members}, where used, in at most {most} of cases."
    members = "members" if facts.group == 1 else "groups that were in the data"
    return f"An attacker with {alarms} false alarms finds at most {most} of {members}."


def guesses(facts: Facts) -> str:
    """What the advantage means for a guess at even odds."""
    most = facts.advantage.upper
    return (
        f"Asked at even odds which of two neighbouring data sets was used, no attacker is right more often than in "
        f"{percent(0.5 + 0.5 * most, UPPER)} of cases; a coin is right in 50 %."
    )


def runs(facts: Facts) -> str:
    """What runs, as the code that describes it."""
    return (
        " or ".join(
            "; then ".join(repr(phase) for phase in setting.mechanisms)
            for setting in facts.settings
        )
        or "nothing yet"
    )


def small(facts: Facts) -> str:
    """What the delta leaves open, whatever the epsilon."""
    each = (
        "each record as it is"
        if facts.unit == "record"
        else "all records of each client as they are"
    )
    return (
        f"A method that publishes {each} with probability {facts.delta!r} has this delta, too: it suits "
        f"data of far fewer than {1.0 / facts.delta:,.0f} {facts.unit}s."
    )


def uncovered(facts: Facts) -> list[str]:
    """What is not covered, a sentence each."""
    return [UNCOVERED[name].format(these=some(facts)) for name in facts.uncovered]


def warnings(facts: Facts) -> list[str]:
    """What takes the guarantee away, or its meaning."""
    found = [] if facts.private else [NOT_PRIVATE]
    found += [
        f"{run.name}: that it stopped where it did shows something of the data, without noise. This is not covered."
        for run in facts.runs
        if run.ended and run.ended.private
    ]
    known = [(f"{run.name}: delta", run.population) for run in facts.runs] or [
        ("Delta", facts.records)
    ]
    found += [
        f"{delta} {facts.delta!r} is too large for {records:,} {facts.unit}s."
        for delta, records in known
        if records and records * facts.delta >= 1.0
    ]
    if math.isinf(facts.epsilon.upper):
        found.append("Nothing is protected: no epsilon is proved at this delta.")
    return found


def independently(facts: Facts) -> str:
    """The smaller number of a run that broke off for reasons of its own, or nothing."""
    if facts.if_independent is None:
        return ""
    return (
        "If data and results had no say in when a run ended (a crash, a deadline), "
        f"epsilon is at most {shown(facts.if_independent.upper, UPPER)}."
    )


def prose(facts: Facts) -> str:
    """The whole statement, a line for each thing said."""
    bracket = facts.epsilon
    assuming = f" Assuming {facts.assuming}." if facts.assuming else ""
    what = _WHAT[facts.kind] if not facts.runs else "What ran, by its ledger"
    lines = [
        *warnings(facts),
        facts.context,
        headline(facts) + assuming,
        f"No analysis can show less than {shown(bracket.lower, LOWER)}: {bracket.lower_by}.",
        f"Upper bound: {bracket.upper_by}.",
        f"Evidence: {bracket.evidence}, relying on {' and '.join(RELIES_ON)}. {what}: {runs(facts)}.",
        *facts.notes,
        *(run.account() for run in facts.runs),
        independently(facts),
        f"Delta: {small(facts)}",
        f"Neighbours: {neighbours(facts)}",
        f"Against: {against(facts)}",
        f"In words: {finds(facts, facts.reach[1])} {guesses(facts)}",
        "Not covered: " + " ".join(uncovered(facts)),
        "Stated by: " + ", ".join(f"{name} {number}" for name, number in facts.software) + ".",
    ]
    return "\n".join(line for line in lines if line)
