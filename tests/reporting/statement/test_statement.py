"""Statements: true numbers, and the same facts in prose, JSON and a page in one file."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from verax import (
    BallsInBins,
    Batch,
    Budget,
    Deterministic,
    Mechanism,
    Mixed,
    Poisson,
    RandomParticipation,
    Shuffle,
    WithoutReplacement,
    ledger,
)
from verax.privacy.participation import Federation
from verax.privacy.renyi.filter import IN_ADVANCE
from verax.privacy.tuning import TruncatedNegativeBinomial, tuned
from verax.reporting.statement import Statement
from verax.reporting.statement.facts import UNCOVERED, Facts
from verax.training import Ledger

RUN = Mechanism(Poisson(0.05, 40), 1.2)
SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "statement.schema.json").read_text())
VOID = {"meta", "line", "polygon", "polyline", "circle"}


# --- the schema, checked by the few rules it uses -------------------------------------------------

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
RULES = {
    "$schema",
    "$defs",
    "title",
    "description",
    "type",
    "additionalProperties",
    "required",
    "properties",
    "items",
    "minItems",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "minimum",
    "maximum",
    "pattern",
}


def wrong(value, schema, where="statement"):
    """The first thing wrong with the value, or nothing."""
    assert set(schema) <= RULES, f"{where}: this validator does not know {set(schema) - RULES}"
    if "$ref" in schema:
        return wrong(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], where)
    if "anyOf" in schema:
        found = [wrong(value, option, where) for option in schema["anyOf"]]
        return "" if "" in found else "; ".join(found)
    if "const" in schema or "enum" in schema:
        return (
            ""
            if value in schema.get("enum", [schema.get("const")])
            else f"{where}: {value!r} is not allowed"
        )
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(
        isinstance(value, TYPES[k]) and (k == "boolean" or not isinstance(value, bool))
        for k in kinds
    ):
        return f"{where}: {value!r} is no {kinds}"
    return _inside(value, schema, where)


def _inside(value, schema, where):
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name in schema.get("required", []):
            if name not in value:
                return f"{where}: {name} is missing"
        for name, item in value.items():
            if name not in known and rest is False:
                return f"{where}: {name} is unknown"
            if found := wrong(item, known.get(name, rest), f"{where}.{name}"):
                return found
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            return f"{where}: too short"
        return next(
            filter(None, (wrong(v, schema["items"], f"{where}[{i}]") for i, v in enumerate(value))),
            "",
        )
    elif isinstance(value, str):
        return (
            ""
            if re.search(schema.get("pattern", ""), value)
            else f"{where}: {value!r} does not fit"
        )
    elif isinstance(value, int | float):
        inside = schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
        return "" if inside else f"{where}: {value!r} is out of range"
    return ""


# --- cases ----------------------------------------------------------------------------------------


def recorded(folder, rounds=40, reason="", mechanism=RUN, **facts):
    path = folder / f"{len(list(folder.iterdir()))}.ledger"
    with Ledger.create(path, mechanism, **facts) as book:
        for number in range(rounds):
            book.release(number, clip_norm=1.0, noise_multiplier=mechanism.noise_multiplier)
        if reason:
            book.stop(reason, private=True)
        elif rounds == len(mechanism.sampler):
            book.finish()
    return ledger.read(path)


def spent():
    budget = Budget(2.0, 1e-5)
    for phase in (RUN, Mechanism(Poisson(0.02, 10), 4.0)):
        budget.spend(replace(phase, noise_multiplier=4.0))
    return budget


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledgers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        whole, part, seeded, torn = (
            recorded(folder),
            recorded(folder, 7),
            recorded(folder, insecure_seed=True, population=500),
            recorded(folder, 9, "gradients of round 9 are not finite <b>"),
        )
        clients = recorded(folder, unit="client")
    return {
        "plain": RUN.guarantee().statement(1e-5),
        "group": RUN.guarantee(group=3).statement(1e-6),
        "told": RUN.guarantee(adversary="A1").statement(1e-5),
        "shuffled": Mechanism(Shuffle(10), 1.0, Mixed(groups=2)).guarantee().statement(1e-5),
        "replaced": Mechanism(WithoutReplacement(5, 50, 20), 2.0, Batch())
        .guarantee()
        .statement(1e-5),
        "noiseless": Mechanism(Poisson(0.05, 40), 0.0).guarantee().statement(1e-5),
        "phases": (RUN + Mechanism(BallsInBins(10), 2.0)).guarantee().statement(1e-5),
        "searched": tuned(RUN, TruncatedNegativeBinomial(mean=5.0)).statement(1e-5),
        "whole": Statement.of_runs([whole], 1e-5),
        "several": Statement.of_runs([whole, part, seeded, torn], 1e-5, group=2),
        "part": Statement.of_runs([part], 1e-5),
        "rare": Mechanism(Poisson(1e-9, 3), 1.0).guarantee().statement(1e-5),
        "budget": spent().statement(),
        "unspent": Budget(1.0, 1e-5, group=2).statement(private=False),
        "observed": Federation(RandomParticipation(0.1, 0.1, 10, 5), local_noise=1.0)
        .against("server")
        .statement(1e-5),
        "client": Statement.of_runs([clients], 1e-5),
        "clients": replace(Mechanism(BallsInBins(10), 2.0).guarantee(2), unit="client").statement(
            1e-5
        ),
        "client seen": Federation(Poisson(0.1, 5), local_noise=1.0)
        .against("server")
        .statement(1e-5),
        "client spent": spent().statement(unit="client"),
    }


NAMES = (
    "plain",
    "group",
    "told",
    "shuffled",
    "replaced",
    "noiseless",
    "phases",
    "searched",
    "whole",
    "several",
    "part",
    "rare",
    "budget",
    "unspent",
    "observed",
    "client",
    "clients",
    "client seen",
    "client spent",
)


# --- numbers --------------------------------------------------------------------------------------


def test_a_statement_says_the_same_whatever_was_asked_before():
    asked = Mechanism(Poisson(0.178, 57), 2.1414).guarantee()
    first = asked.statement(1e-5)
    asked.tradeoff()
    asked.epsilon(1e-7, rtol=1e-4)
    asked.delta(2.0, rtol=1e-4)
    assert asked.statement(1e-5).content() == first.content()
    assert (
        Mechanism(Poisson(0.178, 57), 2.1414).guarantee().statement(1e-5).content()
        == first.content()
    )


def test_what_an_attacker_finds_is_the_gaussian_curve_for_one_gaussian():
    """One release with noise: finding power Phi(Phi^-1(alpha) + 1/z), by Neyman and Pearson."""
    facts = Facts.of(Mechanism(Deterministic(1), 1.3).guarantee(), 1e-5)
    for reach in facts.reach:
        truth = float(special.ndtr(special.ndtri(reach.false_alarms) + 1.0 / 1.3))
        assert reach.least <= truth * (1.0 + 1e-12)
        assert truth <= reach.most * (1.0 + 1e-12)
        assert truth - 0.03 * truth < reach.least
        assert reach.most < 1.01 * truth
    most = 2.0 * float(special.ndtr(0.5 / 1.3)) - 1.0
    assert facts.advantage.lower <= most <= facts.advantage.upper < 1.01 * most


def test_an_attacker_who_plays_does_not_find_more_and_the_best_one_does_not_find_less():
    """The likelihood-ratio test of 40 rounds, played, against what is stated."""
    rng, rate, noise, count = np.random.default_rng(5), 0.05, 1.2, 50_000
    facts = Facts.of(RUN.guarantee(), 1e-5)
    scores = []
    for present in (False, True):
        total = np.zeros(count)
        for _ in range(40):
            x = rng.standard_normal(count) * noise
            if present:
                x += rng.random(count) < rate
            total += np.log1p(rate * np.expm1((2.0 * x - 1.0) / (2.0 * noise**2)))
        scores.append(total)
    for reach in facts.reach[1:]:
        cut = np.quantile(scores[0], 1.0 - reach.false_alarms)
        found, error = float((scores[1] > cut).mean()), 5.0 * math.sqrt(0.25 / count)
        assert found <= reach.most + error
        # the other direction may be the worse one, but hardly
        assert found >= reach.least - error - 0.01


def test_the_stated_numbers_hold_for_the_finer_curve_too():
    fine = RUN.guarantee().tradeoff()
    for reach in Facts.of(RUN.guarantee(), 1e-5).reach:
        assert reach.most >= 1.0 - fine.above(reach.false_alarms)
        assert reach.most == pytest.approx(1.0 - fine(reach.false_alarms), rel=0.02)
        assert reach.least <= 1.0 - fine(reach.false_alarms)


@pytest.mark.parametrize("name", NAMES)
def test_printed_bounds_are_on_their_safe_side(cases, name):
    statement = cases[name]
    facts = statement.facts
    said = re.search(r"epsilon at most (\S+) at delta", statement)
    assert float(said[1]) >= facts.epsilon.upper * (1.0 - 1e-12)
    found = re.search(r"In words: An attacker with 1 % false alarms .*? at most (\S+) %", statement)
    assert float(found[1]) >= min(100.0 * facts.reach[1].most, 100.0) * (1.0 - 1e-12)
    assert [r.most for r in facts.reach] == sorted(r.most for r in facts.reach)
    assert all(r.least <= r.most + 1e-12 for r in facts.reach)


def test_without_noise_whoever_was_drawn_is_found(cases):
    """In no batch with probability .95^40; then an alarm is a blind guess.

    The curve serves both directions, and has the hull of both: drawn + alpha.
    """
    hidden, drawn = 0.95**40, 1.0 - 0.95**40
    for reach in cases["noiseless"].facts.reach:
        assert drawn + hidden * reach.false_alarms <= reach.most
        assert reach.most == pytest.approx(drawn + reach.false_alarms, abs=1e-9)
        assert reach.least == pytest.approx(drawn + reach.false_alarms, abs=1e-9)


# --- words ----------------------------------------------------------------------------------------


def test_a_statement_is_its_prose_and_does_not_change(cases):
    statement = cases["whole"]
    assert statement == statement.prose() == str(statement)
    assert type(statement.prose()) is str
    for copied in (pickle.loads(pickle.dumps(statement)), copy.deepcopy(statement)):
        assert copied == statement
        assert copied.facts == statement.facts
    with pytest.raises(AttributeError, match="does not change"):
        statement.facts = None


def test_who_and_against_whom(cases):
    assert cases["group"].startswith("Any 3 records are protected")
    assert "alike but for up to 3 records, which only one" in cases["group"]
    assert "neither who was drawn" in cases["plain"]
    assert "told in which rounds" in cases["told"]
    assert cases["told"].content()["adversary"]["name"] == "A1"
    assert "in one of them count for nothing" in cases["shuffled"]
    assert "recognises the record" in cases["replaced"]


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_is_that_of_what_was_run(cases, name):
    unit = "client" if name.startswith("client") else "record"
    content = cases[name].content()
    assert content["protected"]["unit"] == unit
    assert unit in content["protected"]["words"]
    assert f"other {unit}s" in content["adversary"]["words"]
    larger = next(
        entry["words"] for entry in content["not_covered"] if entry["name"] == "larger-groups"
    )
    assert f" {unit}" in larger


def test_a_client_is_protected_with_all_its_records(cases):
    assert cases["client"].startswith(
        "Any 1 client with all its records is protected with epsilon at most"
    )
    assert (
        "alike but for 1 client with all its records, which only one of them has" in cases["client"]
    )
    assert "that the number of clients is public" in cases["client"].content()["assuming"]
    assert "far fewer than 100,000 clients" in cases["client"]
    assert cases["clients"].startswith("Any 2 clients with all their records are protected")
    assert (
        cases["clients"].content()["protected"]["words"]
        == "any 2 clients together with all their records"
    )
    assert "Any 1 client with all its records" in cases["client"].html()
    assert "Any 1 record is" not in cases["client spent"]


def test_every_form_names_the_measured_accuracy_of_special_functions(cases):
    for statement in cases.values():
        assert any(
            "measured accuracy of special functions" in what
            for what in statement.content()["relies_on"]
        )
        assert "measured accuracy of special functions" in statement.prose()
        assert "measured accuracy of special functions" in statement.html()


def test_what_is_not_covered(cases):
    def names(name):
        return {item["name"] for item in cases[name].content()["not_covered"]}

    assert names("plain") == set(UNCOVERED) - {"scores"}
    assert names("searched") == set(UNCOVERED) - {"tuning"}
    assert "More than 3 records of one person" in cases["group"]
    assert "by the released trial and the search for it" in cases["searched"]


def test_seeds_and_stops_are_warned_of_first(cases):
    lines = cases["several"].splitlines()
    assert lines[0].endswith("it is NOT private.")
    assert "shows something of the data" in lines[1]
    assert cases["several"].content()["private"] is False
    assert cases["whole"].content()["warnings"] == []


def test_a_delta_that_allows_to_publish_a_record_is_warned_of(tmp_path):
    run = recorded(tmp_path, mechanism=Mechanism(Shuffle(4), 1.0), rounds=4, population=100_000)
    assert "Delta: A method that publishes each record as it is" in Statement.of_runs([run], 1e-6)
    assert Statement.of_runs([run], 1e-6).content()["warnings"] == []
    stated = Statement.of_runs([run], 1e-5)
    for said in (stated, "".join(Page(stated.html()).said)):
        assert "delta 1e-05 is too large for 100,000 records." in said
        assert "it suits data of far fewer than 100,000 records." in said


def test_software_is_named(cases):
    software = cases["plain"].content()["software"]
    assert software["numpy"] == np.__version__
    assert f"numpy {np.__version__}" in cases["plain"]


def test_a_bad_delta_names_itself():
    with pytest.raises(ValueError, match=r"delta must .* got 0"):
        RUN.guarantee().statement(0)


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_json_follows_the_published_schema(cases, name):
    content = json.loads(cases[name].to_json())
    assert wrong(content, SCHEMA) == ""
    assert content == cases[name].content()


def test_the_validator_can_fail(cases):
    for change, complaint in (
        ({"delta": 2.0}, "out of range"),
        ({"relation": {"name": "none", "words": ""}}, "not allowed"),
        ({"more": 1}, "unknown"),
        ({"private": 1}, "is no"),
        ({"runs": [{}]}, "missing"),
    ):
        assert complaint in wrong(cases["whole"].content() | change, SCHEMA)
    content = cases["whole"].content()
    content.pop("software")
    assert "software is missing" in wrong(content, SCHEMA)
    content["runs"][0]["head"] = "abc"
    assert "does not fit" in wrong(
        content | {"software": cases["plain"].content()["software"]}, SCHEMA
    )


def test_json_says_what_the_prose_says(cases):
    content = cases["several"].content()
    assert [run["released"] for run in content["runs"]] == [40, 7, 40, 9]
    for run in content["runs"]:
        assert run["head"] in cases["several"]
    assert cases["noiseless"].content()["epsilon"]["upper"] == "inf"
    assert len(cases["phases"].content()["what_runs"]["settings"][0]) == 2
    assert (
        cases["part"].content()["if_stopping_is_independent"]["upper"]
        < cases["part"].facts.epsilon.upper
    )


# --- the page -------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags with their attributes and words; refuses what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.said = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.said.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed_and_needs_nothing_else(cases, name):
    text = cases[name].html()
    page = Page(text)
    assert page.open == []
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert not {"src", "href", "onload", "onclick"} & set(attributes)
    assert "url(" not in text
    assert "@import" not in text
    assert {"http://www.w3.org/2000/svg"} == set(
        re.findall(r"https?://[^\"' <]+", text.split("<script")[0])
    )
    assert [tag for tag, _ in page.tags if tag in ("h1", "main")] == ["main", "h1"]
    assert "nan" not in " ".join(a.get("points", "") for _, a in page.tags)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_can_be_read_without_seeing_it(cases, name):
    page = Page(cases[name].html())
    assert page.all("html") == [{"lang": "en"}]
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    figures = page.all("svg")
    assert len(figures) == 2
    for figure in figures:
        assert figure["role"] == "img"
        assert set(figure["aria-labelledby"].split()) <= ids
    assert all(header.get("scope") in ("row", "col") for header in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


@pytest.mark.parametrize("name", NAMES)
def test_figures_stay_inside_their_frame(cases, name):
    places = re.findall(
        r"(-?[\d.]+),(-?[\d.]+)", " ".join(re.findall(r'points="([^"]+)"', cases[name].html()))
    )
    assert len(places) > 50
    assert all(0.0 <= float(x) <= 560.0 and 0.0 <= float(y) <= 400.0 for x, y in places)


def test_the_page_says_what_the_prose_says(cases):
    text = "".join(Page(cases["several"].html()).said)
    facts = cases["several"].facts
    for words in (
        "NOT private",
        "Any 2 records are protected",
        facts.epsilon.upper_by,
        facts.epsilon.lower_by,
        *(run.head for run in facts.runs),
        "7 released of 40 declared",
        "Poisson(rate=0.05, steps=40)",
        "gradients of round 9 are not finite <b>",
        "Reviewed by",
    ):
        assert words in text


def test_the_page_holds_the_json_and_nothing_breaks_out_of_it(cases):
    text = cases["several"].html()
    held = re.search(
        r'<script type="application/json" id="statement">\n(.*?)</script>', text, re.S
    )[1]
    assert json.loads(held) == cases["several"].content()
    assert "<b>" not in text


def test_light_dark_paper_and_phone(cases):
    text = cases["plain"].html()
    for rule in ("prefers-color-scheme:dark", "@media print", "max-width:34rem", 'name="viewport"'):
        assert rule in text


def test_saved_as_the_suffix_says(cases, tmp_path):
    statement = cases["plain"]
    for suffix, text in (
        ("html", statement.html()),
        ("json", statement.to_json()),
        ("txt", f"{statement}\n"),
    ):
        assert statement.write(tmp_path / f"report.{suffix}").read_text(encoding="utf-8") == text
    for name in ("report", "report.md", "REPORT.TXT"):
        assert statement.write(tmp_path / name).read_text(encoding="utf-8") == f"{statement}\n"
    with pytest.raises(ValueError, match="path must be one that can be written"):
        statement.write(tmp_path / "none" / "report.html")


def test_other_suffixes_are_refused(cases, tmp_path):
    for name in ("report.pdf", "report.docx", "report.HTML5"):
        with pytest.raises(ValueError, match=rf"path must end in \.html, .* got '.*{name}'"):
            cases["plain"].write(tmp_path / name)
    assert not list(tmp_path.iterdir())


# --- budgets and observers ------------------------------------------------------------------------


def test_a_budget_promises_what_was_fixed_beforehand(cases, tmp_path):
    statement = cases["budget"]
    content = statement.content()
    assert content["what_runs"]["kind"] == "budget"
    assert (content["epsilon"]["lower"], content["epsilon"]["upper"]) == (0.0, 2.0)
    assert [len(setting) for setting in content["what_runs"]["settings"]] == [2]
    assert statement.startswith(
        "Any 1 record is protected with epsilon at most 2.0 at delta 1e-05 by everything spent"
    )
    assert any(IN_ADVANCE in note for note in content["notes"])
    assert IN_ADVANCE in statement.html()
    assert "a trial" not in statement.html().lower()
    kept = Budget(2.0, 1e-5, path=tmp_path / "run.budget")
    kept.spend(replace(RUN, noise_multiplier=4.0))
    last = json.loads((tmp_path / "run.budget").read_text().splitlines()[-1])["hash"]
    assert last in kept.statement().content()["notes"][-1]
    assert cases["unspent"].content()["what_runs"]["settings"] == []
    assert "NOT private" in cases["unspent"]


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-2), (3.0, 1e-9), (30.0, 1e-5)]
)
def test_the_curve_of_a_budget_is_that_of_its_one_pair(epsilon, delta):
    """Distributions that meet (epsilon, delta) with equality have this very curve."""
    p = [delta, (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon)), 0.0]
    q = p[::-1]
    for point in Facts.of_budget(Budget(epsilon, delta)).points:
        exact = sum(max(a - math.exp(point.epsilon) * b, 0.0) for a, b in zip(p, q, strict=True))
        assert exact <= point.upper + 1e-15  # round-off of the sum above
        assert point.upper == pytest.approx(exact, rel=1e-6, abs=1e-12)
        assert point.lower == 0.0


def test_an_observer_is_named_first(cases):
    statement = cases["observed"]
    assert statement.startswith("Any one record of this client is protected from the server")
    assert statement.content()["context"] == statement.splitlines()[0]
    assert "from the server" in statement.html()
