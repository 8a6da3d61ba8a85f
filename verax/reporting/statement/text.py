"""A privacy statement in words: sentences that prose and page share."""

from __future__ import annotations

import math

from verax.ledger.run import NOT_PRIVATE
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.statement.facts import BUDGET, RUN, SEARCH, UNCOVERED, Facts, Reach

_ALIKE = "Two data sets are neighbours if they are alike but for {these}, "
_PUBLIC = "; how many {unit}s there are is public."
_NEIGHBOURS = {
    "add-remove": _ALIKE + "which only one of them has.",
    "zero-out": _ALIKE + "which in one of them count for nothing" + _PUBLIC,
    "replace": _ALIKE + "in whose place one of them has others" + _PUBLIC,
}
_AGAINST = {
    "A0": "Whoever sees every noisy sum of the run, and so every model on the way, and knows all "
    "other {unit}s and how the run was set up; but neither who was drawn into which batch nor the "
    "noise.",
    "A1": "Whoever sees every noisy sum of the run, and so every model on the way, knows all other "
    "{unit}s and how the run was set up, and is told in which rounds and clip-groups the protected "
    "{unit}s were; but not the noise.",
}
# What every number takes for granted.
RELIES_ON = (
    "the arithmetic of IEEE 754 doubles",
    "the measured accuracy of special functions (docs/proofs.md, section 6)",
)
_WHAT = {RUN: "What runs", SEARCH: "What one trial runs", BUDGET: "What was spent"}


def percent(share: float, side: int) -> str:
    """A share as a percentage of three digits, rounded to its safe side.

    >>> percent(0.031512, UPPER), percent(0.031512, LOWER), percent(1.0, UPPER)
    ('3.16 %', '3.15 %', '100 %')
    """
    value = min(100.0 * share * (1.0 + 1e-15 if side == UPPER else 1.0), 100.0)
    return f"{value:g} %" if value in (0.0, 100.0) else f"{format_bound(value, side, 3)} %"


def protected_units(facts: Facts) -> str:
    """How many units are protected together.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=10), noise_multiplier=1.0)
    >>> protected_units(Facts.of(run.guarantee(group=8), delta=1e-5))
    '8 records'
    """
    return f"1 {facts.unit}" if facts.group == 1 else f"{facts.group} {facts.unit}s"


def _with_records(facts: Facts) -> str:
    """Words for the records of a client; empty if a single record is protected."""
    if facts.unit == "record":
        return ""
    return " with all its records" if facts.group == 1 else " with all their records"


def protected(facts: Facts) -> str:
    """Who is protected, such as "any 8 records together"."""
    together = " together" * (facts.group > 1)
    return f"any {protected_units(facts)}{together}{_with_records(facts)}"


def headline(facts: Facts) -> str:
    """The statement in one sentence: who is protected, epsilon, delta and relation."""
    verb = "is" if facts.group == 1 else "are"
    by = f" {facts.by}" if facts.by else ""
    return (
        f"Any {protected_units(facts)}{_with_records(facts)} {verb} protected with epsilon at most "
        f"{upper_bound(facts)} at delta {facts.delta!r}{by} (relation: {facts.relation})."
    )


def upper_bound(facts: Facts) -> str:
    """The upper bound on epsilon: a budget as it was chosen, anything else rounded up."""
    return (
        repr(facts.epsilon.upper)
        if facts.kind == BUDGET
        else format_bound(facts.epsilon.upper, UPPER)
    )


def neighbours(facts: Facts) -> str:
    """What makes two data sets neighbours under the relation."""
    these = f"{'up to ' * (facts.group > 1)}{protected_units(facts)}{_with_records(facts)}"
    return _NEIGHBOURS[facts.relation].format(these=these, unit=facts.unit)


def adversary(facts: Facts) -> str:
    """What the adversary sees and knows."""
    return _AGAINST[facts.adversary].format(unit=facts.unit)


def reach_sentence(facts: Facts, reach: Reach) -> str:
    """What an attacker can find at one rate of false alarms."""
    attacker = f"An attacker with {100.0 * reach.false_alarms:g} % false alarms"
    most = percent(reach.most, UPPER)
    if facts.relation == "replace":
        members = f"the {facts.unit}{'s' * (facts.group > 1)}"
        return f"{attacker} recognises {members}, where used, in at most {most} of cases."
    members = "members" if facts.group == 1 else "groups that were in the data"
    return f"{attacker} finds at most {most} of {members}."


def advantage_sentence(facts: Facts) -> str:
    """What the advantage means for a guess at even odds."""
    return (
        "Asked at even odds which of two neighbouring data sets was used, no attacker is right "
        f"more often than in {percent(0.5 + 0.5 * facts.advantage.upper, UPPER)} of cases; "
        "a coin is right in 50 %."
    )


def delta_sentence(facts: Facts) -> str:
    """What the delta leaves open, whatever the epsilon."""
    one = facts.unit == "record"
    each = "each record as it is" if one else "all records of each client as they are"
    return (
        f"A method that publishes {each} with probability {facts.delta!r} has this delta, too: "
        f"it suits data of far fewer than {1.0 / facts.delta:,.0f} {facts.unit}s."
    )


def not_covered(facts: Facts) -> list[str]:
    """What is not covered, a sentence each."""
    return [UNCOVERED[name].format(these=protected_units(facts)) for name in facts.uncovered]


def warnings(facts: Facts) -> list[str]:
    """What takes the guarantee away, or its meaning."""
    found = [] if facts.private else [NOT_PRIVATE]
    found += [
        f"{run.name}: that it stopped where it did shows something of the data, without noise. "
        "This is not covered."
        for run in facts.runs
        if run.ended and run.ended.private
    ]
    sizes = [(f"{run.name}: delta", run.population) for run in facts.runs]
    found += [
        f"{delta} {facts.delta!r} is too large for {records:,} {facts.unit}s."
        for delta, records in sizes or [("Delta", facts.records)]
        if records and records * facts.delta >= 1.0
    ]
    if math.isinf(facts.epsilon.upper):
        found.append("Nothing is protected: no epsilon is proved at this delta.")
    return found


def independent_stop_sentence(facts: Facts) -> str:
    """The smaller epsilon if a run's end did not depend on the data; empty if there is none."""
    if facts.if_independent is None:
        return ""
    return (
        "If data and results had no say in when a run ended (a crash, a deadline), "
        f"epsilon is at most {format_bound(facts.if_independent.upper, UPPER)}."
    )


def software(facts: Facts) -> str:
    """Names and versions of the software."""
    return ", ".join(f"{name} {number}" for name, number in facts.software)


def prose(facts: Facts) -> str:
    """The whole statement as text, one line for each topic."""
    bracket = facts.epsilon
    assuming = f" Assuming {facts.assuming}." if facts.assuming else ""
    what = "What ran, by its ledger" if facts.runs else _WHAT[facts.kind]
    settings = ("; then ".join(map(repr, one.mechanisms)) for one in facts.settings)
    lines = [
        *warnings(facts),
        facts.context,
        headline(facts) + assuming,
        f"No analysis can show less than {format_bound(bracket.lower, LOWER)}: {bracket.lower_by}.",
        f"Upper bound: {bracket.upper_by}.",
        f"Evidence: {bracket.evidence}, relying on {' and '.join(RELIES_ON)}. "
        f"{what}: {' or '.join(settings) or 'nothing yet'}.",
        *facts.notes,
        *(run.account() for run in facts.runs),
        independent_stop_sentence(facts),
        f"Delta: {delta_sentence(facts)}",
        f"Neighbours: {neighbours(facts)}",
        f"Against: {adversary(facts)}",
        f"In words: {reach_sentence(facts, facts.reach[1])} {advantage_sentence(facts)}",
        "Not covered: " + " ".join(not_covered(facts)),
        f"Stated by: {software(facts)}.",
    ]
    return "\n".join(line for line in lines if line)
