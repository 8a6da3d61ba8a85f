"""A privacy statement as one HTML file: no outside assets, for screens, light and dark, and paper.

The page is ``page.html``, a :class:`string.Template`: statements need nothing but numpy and
scipy, so no template engine is asked for. All text that fills it goes through :func:`_escape`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from verax.ledger.run import Run
from verax.mechanism import Mechanism
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.statement import figures, text
from verax.reporting.statement.facts import BUDGET, SEARCH, Facts

_HERE = Path(__file__).parent
_WARNING = '<p class="warning" role="note">{}</p>'
_PARAGRAPH = "<p>{}</p>"
_FACT = '<tr><th scope="row">{}</th><td>{}</td></tr>'
_NUMBERS = "<tr>" + 3 * '<td class="number">{}</td>' + "</tr>"
_TABLE = "<table><caption>{}</caption>{}</table>"
# A number that a line could end in, such as 12, 0.01, 1e-05 or 2.9 %: all but a single digit.
_BREAKABLE = re.compile(
    r"(?<![\w.])(?:\d[\d.,]*\d(?:e[-+]?\d+)?(?: %)?|\d(?:e[-+]?\d+(?: %)?| %))(?!\w)"
)
_Rows = Iterable[Sequence[str]]


def html(facts: Facts, json: str) -> str:
    """The statement as an HTML page, with its JSON embedded for machines."""
    warnings = [(line,) for line in text.warnings(facts)]
    notes = (text.independent_stop_sentence(facts), *facts.notes)
    reach = text.reach_sentence(facts, facts.reach[1])
    fields = {
        "headline": text.headline(facts),
        "attacker": f"{reach} {text.advantage_sentence(facts)}",
        "what_ran": "What ran" if facts.runs else "What runs",
        "recorded": _recorded(facts),
        "software": text.software(facts),
    }
    blocks = {
        "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        "warnings": _fill(_WARNING, warnings),
        "repeated_warnings": _fill(_PARAGRAPH, warnings),
        "context": _fill(_PARAGRAPH, [(facts.context,)] if facts.context else []),
        "terms": _facts_table("The terms of the guarantee", _terms(facts)),
        "reach_figure": figures.reach_figure(facts),
        "reach_rows": _fill(_NUMBERS, _reach_rows(facts)),
        "evidence": _facts_table("Epsilon lies between two proved bounds", _evidence(facts)),
        "notes": _fill(_PARAGRAPH, ((line,) for line in notes if line)),
        "delta_figure": figures.delta_figure(facts),
        "mechanisms": "\n".join(_mechanisms(facts)),
        "not_covered": _fill("<li>{}</li>", ((line,) for line in text.not_covered(facts))),
        "json": json.replace("<", "\\u003c"),  # no tag, and so no end of the script, inside it
    }
    template = Template((_HERE / "page.html").read_text(encoding="utf-8"))
    return template.substitute({name: _escape(value) for name, value in fields.items()} | blocks)


def _terms(facts: Facts) -> _Rows:
    yield "Protected", text.protected(facts).capitalize()
    yield "Relation", f"{facts.relation}. {text.neighbours(facts)}"
    yield "Against", text.adversary(facts)
    if facts.assuming:
        yield "Assuming", f"{facts.assuming[0].upper()}{facts.assuming[1:]}."


def _reach_rows(facts: Facts) -> _Rows:
    for reach in facts.reach:
        most, least = text.percent(reach.most, UPPER), text.percent(reach.least, LOWER)
        yield f"{100.0 * reach.false_alarms:g} %", most, least


def _evidence(facts: Facts) -> _Rows:
    bracket = facts.epsilon
    yield "Epsilon, at most", text.upper_bound(facts)
    yield "because", bracket.upper_by
    yield "Epsilon, at least", format_bound(bracket.lower, LOWER)
    yield "because", bracket.lower_by
    yield "Delta", f"{facts.delta!r}. {text.delta_sentence(facts)}"
    yield "Evidence", bracket.evidence
    yield "relying on", " and ".join(text.RELIES_ON)


def _recorded(facts: Facts) -> str:
    if facts.runs:
        return (
            "Every release was written to a ledger before it happened; this is what the ledgers "
            "say."
        )
    if facts.kind == BUDGET:
        return "These phases were taken from the budget, each before it ran."
    return "As described; no ledger was given that would show what ran."


def _mechanisms(facts: Facts) -> Iterable[str]:
    for run in facts.runs:
        yield _facts_table(f"Ledger {run.name}", _ledger_rows(run))
        yield from map(_mechanism_table, run.mechanism.mechanisms)
    if not facts.runs:
        if facts.kind == SEARCH:
            yield _PARAGRAPH.format("A trial is one of these.")
        for setting in facts.settings:
            yield from map(_mechanism_table, setting.mechanisms)


def _ledger_rows(run: Run) -> _Rows:
    account = run.account().splitlines()[0]
    yield "Rounds", f"{run.released} released of {run.declared} declared"
    yield "In words", account.removeprefix(f"{run.name}: ").capitalize()
    yield "Run", run.id
    yield "Begun", f"{run.time}, with verax {run.verax}"
    yield "Hash of the last line", run.head
    if run.ended and run.ended.reason:
        yield "Stopped", run.ended.reason
    if run.insecure_seed:
        yield "Randomness", "from a seed that somebody chose: NOT private"


def _mechanism_table(phase: Mechanism) -> str:
    rows = [
        ("Batches drawn by", _name_and_fields(phase.sampler)),
        ("Rounds", str(len(phase.sampler))),
        ("Noise multiplier", f"{phase.noise_multiplier:.10g}"),
        ("Clipping", _name_and_fields(phase.clipping)),
        ("As code", repr(phase)),
    ]
    return _facts_table("The mechanism", rows)


def _name_and_fields(value: Any) -> str:
    parts = ((field.name, getattr(value, field.name)) for field in fields(value))
    named = ", ".join(f"{name} {part}" for name, part in parts if part is not None)
    return f"{type(value).__name__}: {named}"


def _facts_table(caption: str, rows: _Rows) -> str:
    return _TABLE.format(_escape(caption), _fill(_FACT, rows))


def _fill(element: str, rows: _Rows) -> str:
    """An element for each row, with the escaped texts of the row in its places."""
    return "".join(element.format(*map(_escape, row)) for row in rows)


def _escape(value: str) -> str:
    """Escaped text in which no line ends within a number.

    >>> _escape("delta 1e-05 & 2.92 %")
    'delta <span class="whole">1e-05</span> &amp; <span class="whole">2.92 %</span>'
    """
    return _BREAKABLE.sub(r'<span class="whole">\g<0></span>', escape(value))
