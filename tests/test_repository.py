"""The files around the package agree with it and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import verax

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SPOKEN = [
    ROOT / name for name in ("CONTRIBUTING.md", "README.md", ".github/pull_request_template.md")
]
LONGEST_ENTRY = 160
HEADINGS = ("Added", "Changed", "Fixed", "Removed")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def targets() -> set[str]:
    """What make can be asked for."""
    return set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))


def targets_named_in(path: Path) -> set[str]:
    """Of a page what it quotes as a command or has on a line of its own; elsewhere every
    command.
    """
    quoted = r"`make ([a-z-]+)|^ *make ([a-z-]+)(?: +#|$)"
    pattern = quoted if path.suffix == ".md" else r"\bmake ([a-z-]+)()"
    return {one or other for one, other in re.findall(pattern, text(path), re.MULTILINE)}


def test_the_formatter_has_the_last_word():
    mark = "fmt: " + "skip"
    sources = [
        file
        for room in ("verax", "tests", "benchmarks", "studies", "examples")
        for file in (ROOT / room).rglob("*.py")
    ]
    assert not [file for file in sources if mark in text(file)]


def test_the_version_stands_in_the_package_and_nowhere_else():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "verax/__init__.py"
    for name in ("pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md", "Makefile"):
        assert f'"{verax.__version__}"' not in text(ROOT / name), name
        assert not re.search(r"^version", text(ROOT / name), re.MULTILINE), name


def test_the_newest_version_of_the_changelog_is_the_one_of_the_package():
    versions = re.findall(r"^## \[(.+?)\]", text(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert versions[:2] == ["Unreleased", verax.__version__]


def test_an_entry_of_the_changelog_is_one_line():
    _, _, entries = text(ROOT / "CHANGELOG.md").partition("\n## ")
    for line in entries.splitlines()[1:]:
        if line.startswith("#"):
            assert line.startswith("## [") or line.removeprefix("### ") in HEADINGS, line
        elif line:
            assert line.startswith("- "), line
            assert len(line) <= LONGEST_ENTRY, line


@pytest.mark.parametrize(
    "path", [*SPOKEN, *WORKFLOWS, ROOT / ".ci" / "run"], ids=lambda path: path.name
)
def test_whatever_make_is_asked_for_exists(path):
    assert targets_named_in(path) <= targets()


def test_every_target_explains_itself():
    explained = set(re.findall(r"^([a-z-]+):.*## ", text(ROOT / "Makefile"), re.MULTILINE))
    assert explained == targets()


def test_three_systems_and_every_declared_python_are_tested():
    yaml = pytest.importorskip("yaml")
    matrix = yaml.safe_load(text(ROOT / ".github/workflows/test.yml"))["jobs"]["test"]["strategy"][
        "matrix"
    ]
    classifiers = PROJECT["project"]["classifiers"]
    declared = [line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == declared
    assert {name.partition("-")[0] for name in matrix["system"]} == {"ubuntu", "macos", "windows"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_only_and_ends(path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(text(path))
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())
