"""A privacy statement for a reviewer to sign: as prose, as JSON and as a page in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verax.ledger.run import Run
from verax.privacy.guarantee import Guarantee
from verax.privacy.renyi.filter import Budget
from verax.reporting.statement import page, text
from verax.reporting.statement.facts import Facts
from verax.reporting.statement.json_values import json_bracket, json_phases, json_run

# Version of the JSON (docs/statement.schema.json); a change of meaning gets a new number.
SCHEMA = 1
# What the name of a saved statement may end in; without any it is prose.
SUFFIXES = (".html", ".htm", ".json", ".txt", ".md")


def savable(path: str | os.PathLike[str]) -> Path:
    """The path, if a statement can be saved under its suffix; to be asked before a long run.

    >>> savable("report.pdf")
    Traceback (most recent call last):
    ValueError: path must end in .html, .htm, .json, .txt, .md or nothing, got 'report.pdf': ...
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(
            f"path must be the name of a file, got {path!r}; delta has a name, too: delta=1e-5"
        )
    target = Path(path)
    if target.suffix.lower() not in ("", *SUFFIXES):
        raise ValueError(
            f"path must end in {', '.join(SUFFIXES)} or nothing, got {str(target)!r}: "
            "a browser prints an .html page as whatever else is needed"
        )
    return target


class Statement(str):
    """A statement of privacy: a ``str`` of prose that carries the facts it was written from.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> statement = run.guarantee().statement(delta=1e-5)
    >>> print(statement.splitlines()[7])
    In words: An attacker with 1 % false alarms finds at most 2.92 % of members. Asked ...
    >>> statement.content()["epsilon"]["evidence"]
    'proved'
    >>> statement.html().startswith("<!doctype html>")
    True
    """

    __slots__ = ("_facts",)
    _facts: Facts

    def __new__(cls, facts: Facts) -> Statement:
        """Write the prose of these facts."""
        new = super().__new__(cls, text.prose(facts))
        object.__setattr__(new, "_facts", facts)
        return new

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a statement does not change: {name} cannot be set")

    def __reduce__(self) -> tuple[type[Statement], tuple[Facts]]:
        return Statement, (self._facts,)

    @classmethod
    def of(
        cls,
        guarantee: Guarantee,
        delta: float,
        runs: Sequence[Run] = (),
        *,
        private: bool = True,
        context: str = "",
        records: int | None = None,
    ) -> Statement:
        """The statement of a guarantee.

        Args:
            guarantee: what is proved.
            delta: at which epsilon is stated.
            runs: what the ledgers say of the runs that it is the guarantee of, if there are any.
            private: False if somebody chose the seed of the run's randomness.
            context: a sentence to begin with, such as whom of several observers it is about.
            records: how many there are, if that is public: delta is then compared with it.
        """
        return cls(
            Facts.of(
                guarantee, delta, tuple(runs), private=private, context=context, records=records
            )
        )

    @classmethod
    def of_runs(cls, runs: Sequence[Run], delta: float, group: int = 1) -> Statement:
        """The statement of runs on the same data, taken together, from their ledgers."""
        return cls(Facts.of_runs(tuple(runs), delta, group))

    @classmethod
    def of_budget(
        cls,
        budget: Budget,
        notes: Sequence[str] = (),
        *,
        private: bool = True,
        unit: str = "record",
    ) -> Statement:
        """The statement of a budget, whatever was spent from it.

        Args:
            budget: what was fixed beforehand.
            notes: what else a reviewer should know, a sentence each.
            private: False if somebody chose the seed of the randomness.
            unit: who is protected: a "record", or a "client" with all its records.
        """
        return cls(Facts.of_budget(budget, tuple(notes), private=private, unit=unit))

    @property
    def facts(self) -> Facts:
        """What is stated, as values."""
        return self._facts

    def prose(self) -> str:
        """The statement in text."""
        return str(self)

    def content(self) -> dict[str, Any]:
        """The statement as values that JSON can hold; see docs/statement.md."""
        return _content(self._facts)

    def to_json(self) -> str:
        """The statement as a JSON document."""
        return json.dumps(self.content(), indent=2, allow_nan=False) + "\n"

    def html(self) -> str:
        """The statement as a page with figures, all in one file."""
        return page.html(self._facts, self.to_json())

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Save a page, JSON or prose, as the name says (``.html``, ``.json``, other)."""
        target = savable(path)
        kinds = {".html": self.html, ".htm": self.html, ".json": self.to_json}
        content = kinds.get(target.suffix.lower(), lambda: f"{self}\n")()
        try:
            target.write_text(content, encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"path must be one that can be written, got {str(target)!r}: {error.strerror}"
            ) from error
        return target


def _content(facts: Facts) -> dict[str, Any]:
    reach = [asdict(one) | {"words": text.reach_sentence(facts, one)} for one in facts.reach]
    advantage = {"lower": facts.advantage.lower, "upper": facts.advantage.upper}
    uncovered = zip(facts.uncovered, text.not_covered(facts), strict=True)
    return {
        "verax_statement": SCHEMA,
        "protected": {"unit": facts.unit, "group": facts.group, "words": text.protected(facts)},
        "relation": {"name": facts.relation, "words": text.neighbours(facts)},
        "adversary": {"name": facts.adversary, "words": text.adversary(facts)},
        "assuming": facts.assuming,
        "relies_on": list(text.RELIES_ON),
        "delta": facts.delta,
        "epsilon": json_bracket(facts.epsilon),
        "if_stopping_is_independent": facts.if_independent and json_bracket(facts.if_independent),
        "attacker": {
            "reach": reach,
            "advantage": advantage | {"words": text.advantage_sentence(facts)},
        },
        "curve": [asdict(point) for point in facts.points],
        "what_runs": {
            "recorded": bool(facts.runs),
            "kind": facts.kind,
            "by": facts.by,
            "settings": [json_phases(setting) for setting in facts.settings],
        },
        "runs": [
            {"ledger": run.path} | json_run(run) | {"phases": json_phases(run.mechanism)}
            for run in facts.runs
        ],
        "context": facts.context,
        "notes": list(facts.notes),
        "private": facts.private,
        "warnings": text.warnings(facts),
        "not_covered": [{"name": name, "words": sentence} for name, sentence in uncovered],
        "software": dict(facts.software),
    }
