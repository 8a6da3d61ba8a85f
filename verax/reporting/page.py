"""A privacy statement as one HTML file: no outside assets, for screens of any size, light and dark, and for paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from verax.ledger.run import Run
from verax.mechanism import Mechanism
from verax.privacy.guarantee import shown
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting import svg, words
from verax.reporting.facts import BUDGET, SEARCH, Facts

_BREAKABLE = re.compile(
    r"(?<![\w.])(?:\d[\d.,]*\d(?:e[-+]?\d+)?(?: %)?|\d(?:e[-+]?\d+(?: %)?| %))(?!\w)"
)
"""A number that a line could end in, such as 12, 0.01, 1e-05 or 2.9 %: anything but a single digit.
"""
_STYLE = """
:root{color-scheme:light dark;--ink:#1c1f23;--paper:#fff;--soft:#586069;--rule:#d4d9df;--box:#f3f6f9;
--upper:#0b5a94;--lower:#8a4a00;--known:#d98a2b59;--open:#5b9bd540;--out:#8080801a;--warn:#a1121f;--warnbox:#fdecee}
@media (prefers-color-scheme:dark){:root{--ink:#e7eaee;--paper:#15181c;--soft:#a3adb8;--rule:#3a424b;--box:#1f242a;
--upper:#7cc0f4;--lower:#f0b267;--known:#d98a2b66;--open:#5b9bd54d;--out:#b0b0b014;--warn:#ff9aa4;--warnbox:#3b1a1e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.55 system-ui,sans-serif;overflow-wrap:anywhere}
main{max-width:46rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 1rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--rule);padding-bottom:.25rem}
p{margin:.5rem 0}
.headline{background:var(--box);border-left:.3rem solid var(--upper);padding:.8rem 1rem;font-size:1.15rem}
.warning{background:var(--warnbox);border-left:.3rem solid var(--warn);padding:.8rem 1rem;font-weight:600}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
caption{text-align:left;color:var(--soft);padding-bottom:.3rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule)}
th[scope=row]{width:32%;min-width:7rem;font-weight:600}
td.number{font-variant-numeric:tabular-nums;overflow-wrap:normal}
.whole{white-space:nowrap}
figure{margin:1rem 0}
figcaption{color:var(--soft);font-size:.92rem}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--ink);font:13px system-ui,sans-serif}
svg .note{font-weight:600;paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
svg .grid{stroke:var(--rule);stroke-width:.7}
svg .axis{fill:none;stroke:var(--soft);stroke-width:1}
svg .upper{fill:none;stroke:var(--upper);stroke-width:2.2}
svg .lower{fill:none;stroke:var(--lower);stroke-width:1.6;stroke-dasharray:6 4}
svg .blind{fill:none;stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}
svg .mark{fill:var(--upper);stroke:var(--paper);stroke-width:1.5}
svg .out{fill:var(--out)}svg .open{fill:var(--open)}svg .known{fill:var(--known)}
code{font:.9em ui-monospace,monospace}
.sign td{height:3rem}
@media (max-width:34rem){svg text{font-size:17px}th[scope=row]{width:38%;min-width:0}}
@media print{:root{--ink:#000;--paper:#fff;--soft:#333;--rule:#999;--box:#fff;--upper:#0b5a94;--lower:#8a4a00;
--known:#d98a2b59;--open:#5b9bd540;--out:#8080801a;--warn:#a1121f;--warnbox:#fff}
@page{margin:16mm 18mm}html{font-size:10pt}body{line-height:1.4}main{max-width:none;padding:0}
h1{margin-bottom:.6rem}h2{margin-top:1.4rem}h2,h2+p,caption,li:first-child{break-after:avoid}
p,li{orphans:3;widows:3}th,td{padding-top:.2rem;padding-bottom:.2rem}
figure,table,tr,.headline,.warning,.signed{break-inside:avoid}
figure{display:flex;gap:1rem;align-items:center;margin:.6rem 0}svg{flex:none;width:10cm}
*{print-color-adjust:exact}}
"""


def html(facts: Facts, json: str) -> str:
    """The page; ``json`` is kept in it for machines."""
    body = [
        "<h1>Privacy statement</h1>",
        *(f'<p class="warning" role="note">{_text(text)}</p>' for text in words.warnings(facts)),
        f'<p class="headline">{_text(words.headline(facts))}</p>',
        *([f"<p>{_text(facts.context)}</p>"] if facts.context else []),
        *_protected(facts),
        *_attacker(facts),
        *_evidence(facts),
        *_what_ran(facts),
        "<h2>What is not covered</h2>",
        _list(words.uncovered(facts)),
        *_signature(facts),
    ]
    safe = json.replace("<", "\\u003c")  # no tag, and so no end of the script, inside it
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Privacy statement</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n"
        f'<script type="application/json" id="statement">\n{safe}</script>\n</body>\n</html>\n'
    )


def _protected(facts: Facts) -> list[str]:
    rows = [
        ("Protected", words.who(facts).capitalize()),
        ("Relation", f"{facts.relation}. {words.neighbours(facts)}"),
        ("Against", words.against(facts)),
    ]
    if facts.assuming:
        rows.append(("Assuming", f"{facts.assuming[0].upper()}{facts.assuming[1:]}."))
    return [
        "<h2>Who is protected, and against whom</h2>",
        _facts_table("The terms of the guarantee", rows),
    ]


def _attacker(facts: Facts) -> list[str]:
    header = ("False alarms", "Found, at most", "At least this much cannot be ruled out")
    rows = [
        (
            f"{100.0 * reach.false_alarms:g} %",
            words.percent(reach.most, UPPER),
            words.percent(reach.least, LOWER),
        )
        for reach in facts.reach
    ]
    return [
        "<h2>What an attacker can tell</h2>",
        f"<p>{_text(words.finds(facts, facts.reach[1]))} {_text(words.guesses(facts))}</p>",
        f"<figure>{svg.reach(facts)}<figcaption>Above the solid line: out of reach of every attacker, proved. Below "
        "the dashed line: no analysis by epsilon and delta can rule it out. Between the two nothing is known. Dotted: "
        "guessing blindly.</figcaption></figure>",
        _table(
            "Members found at rates of false alarms; guessing blindly finds as many as there are false alarms",
            header,
            rows,
        ),
    ]


def _evidence(facts: Facts) -> list[str]:
    bracket = facts.epsilon
    rows = [
        ("Epsilon, at most", words.most(facts)),
        ("because", bracket.upper_by),
        ("Epsilon, at least", shown(bracket.lower, LOWER)),
        ("because", bracket.lower_by),
        ("Delta", f"{facts.delta!r}. {words.small(facts)}"),
        ("Evidence", bracket.evidence),
        ("relying on", " and ".join(words.RELIES_ON)),
    ]
    tighter = words.independently(facts)
    return [
        "<h2>Epsilon, delta and the evidence</h2>",
        _facts_table("Epsilon lies between two proved bounds", rows),
        *(f"<p>{_text(text)}</p>" for text in (tighter, *facts.notes) if text),
        f"<figure>{svg.spent(facts)}<figcaption>Solid: upper bound. Dashed: lower bound; no analysis can go below it."
        "</figcaption></figure>",
    ]


def _what_ran(facts: Facts) -> list[str]:
    recorded = (
        "Every release was written to a ledger before it happened; this is what the ledgers say."
        if facts.runs
        else "These phases were taken from the budget, each before it ran."
        if facts.kind == BUDGET
        else "As described; no ledger was given that would show what ran."
    )
    parts = ["<h2>What ran</h2>" if facts.runs else "<h2>What runs</h2>", f"<p>{recorded}</p>"]
    for run in facts.runs:
        parts.append(_facts_table(f"Ledger {run.name}", _ledger_rows(run)))
        parts += [_phase_table(phase) for phase in run.mechanism.mechanisms]
    if not facts.runs:
        parts += ["<p>A trial is one of these.</p>"] if facts.kind == SEARCH else []
        parts += [_phase_table(phase) for setting in facts.settings for phase in setting.mechanisms]
    return parts


def _ledger_rows(run: Run) -> list[tuple[str, str]]:
    first, *_ = run.account().splitlines()
    rows = [
        ("Rounds", f"{run.released} released of {run.declared} declared"),
        ("In words", first.removeprefix(f"{run.name}: ").capitalize()),
        ("Run", run.id),
        ("Begun", f"{run.time}, with verax {run.verax}"),
        ("Hash of the last line", run.head),
    ]
    if run.ended and run.ended.reason:
        rows.append(("Stopped", run.ended.reason))
    if run.insecure_seed:
        rows.append(("Randomness", "from a seed that somebody chose: NOT private"))
    return rows


def _phase_table(phase: Mechanism) -> str:
    rows = [
        ("Batches drawn by", f"{type(phase.sampler).__name__}: {_fields(phase.sampler)}"),
        ("Rounds", str(len(phase.sampler))),
        ("Noise multiplier", f"{phase.noise_multiplier:.10g}"),
        ("Clipping", f"{type(phase.clipping).__name__}: {_fields(phase.clipping)}"),
        ("As code", repr(phase)),
    ]
    return _facts_table("The mechanism", rows)


def _fields(value: Any) -> str:
    return ", ".join(f"{field.name} {getattr(value, field.name)}" for field in fields(value))


def _signature(facts: Facts) -> list[str]:
    """Where to sign, next to what is signed: on paper the two are on one page."""
    software = ", ".join(f"{name} {number}" for name, number in facts.software)
    blanks = ("Name and role", "Date", "Signature")
    rows = "".join(f'<tr><th scope="row">{what}</th><td></td></tr>' for what in blanks)
    return [
        f'<section class="signed"><h2>Software</h2><p>Stated by {_text(software)}.</p>',
        f"<h2>Reviewed by</h2><p>What is stated: {_text(words.headline(facts))}</p>",
        *(f"<p>{_text(text)}</p>" for text in words.warnings(facts)),
        f'<table class="sign"><caption>To be filled in on paper</caption>{rows}</table></section>',
    ]


def _text(said: str) -> str:
    """Text of the page, in which no line ends within a number.

    >>> _text("delta 1e-05 & 2.92 %")
    'delta <span class="whole">1e-05</span> &amp; <span class="whole">2.92 %</span>'
    """
    return _BREAKABLE.sub(r'<span class="whole">\g<0></span>', escape(said))


def _facts_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(text)}</td></tr>' for name, text in rows
    )
    return f"<table><caption>{_text(caption)}</caption>{cells}</table>"


def _table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(text)}</th>' for text in header)
    cells = ("".join(f'<td class="number">{_text(text)}</td>' for text in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(text)}</li>" for text in items) + "</ul>"
