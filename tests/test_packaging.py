"""What is imported is declared, what is declared is a lower bound, and the core needs little."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
OPTIONAL = {"figures", "train", "federated", "web"}
# The extras that a room may import from; a room that is not named has numpy, scipy, typer and rich.
ROOM_EXTRAS = {
    "randomness": {"train"},
    "planning": {"train"},
    "training": {"train"},
    "reporting": {"figures"},
    "federated": {"federated"},
    "web": {"web"},
    "cli": OPTIONAL,
}
OTHER_NAMES = {"sklearn": "scikit-learn"}  # distributions that are not called as what they install
LOWER_BOUND = re.compile(r"([a-z0-9-]+)(?:\[[a-z]+\])?>=([0-9.]+)")
OWN_EXTRAS = re.compile(r"verax\[([a-z,]+)\]")


def names_of(requirements: list[str]) -> set[str]:
    """The distributions that these requirements name, with those of verax's extras among them."""
    names = set()
    for requirement in requirements:
        if own := OWN_EXTRAS.fullmatch(requirement):
            names |= names_of([line for extra in own[1].split(",") for line in EXTRAS[extra]])
        else:
            names.add(re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower())
    return names


def requirements(extras: set[str]) -> list[str]:
    """The lines of pyproject.toml for an installation with these extras."""
    lines = [line for extra in sorted(extras) for line in EXTRAS[extra]]
    return [*PROJECT["project"]["dependencies"], *lines]


def declared(extras: set[str]) -> set[str]:
    """What an installation with these extras may import."""
    return names_of(requirements(extras))


def third_party(path: Path, own: set[str]) -> set[str]:
    """The distributions that a file imports, wherever in the file, apart from its own."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.add(node.module)
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - own
    return {OTHER_NAMES.get(top, top.replace("_", "-")) for top in tops}


def undeclared(files: list[Path], allowed: set[str], own: set[str]) -> dict[str, list[str]]:
    """For each file that imports more than is allowed, what that is."""
    more = {path: third_party(path, own) - allowed for path in files}
    return {str(path.relative_to(ROOT)): sorted(names) for path, names in more.items() if names}


def rooms() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "verax").glob("*/__init__.py"))


def test_every_room_of_the_table_exists():
    assert set(ROOM_EXTRAS) <= set(rooms())


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_what_its_extra_declares(room):
    files = sorted((ROOT / "verax" / room).rglob("*.py"))
    assert undeclared(files, declared(ROOM_EXTRAS.get(room, set())), {"verax"}) == {}


PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}


def test_of_flower_only_what_it_documents_is_imported():
    modules = set()
    for path in [*(ROOT / "verax").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(node.module)
    flower = {module for module in modules if module.partition(".")[0] == "flwr"}
    assert {"flwr.app", "flwr.clientapp", "flwr.serverapp"} <= flower <= PUBLIC_FLOWER


def test_modules_outside_the_rooms_import_the_plain_dependencies():
    assert undeclared(sorted((ROOT / "verax").glob("*.py")), declared(set()), {"verax"}) == {}


def test_tests_import_what_the_extras_and_the_tools_declare():
    files = [ROOT / "conftest.py", *sorted((ROOT / "tests").rglob("*.py"))]
    helpers = {path.stem for path in files}
    assert undeclared(files, declared({*OPTIONAL, "dev", "docs"}), {"verax"} | helpers) == {}


def test_a_project_to_start_from_imports_what_it_declares():
    for project in sorted((ROOT / "examples").glob("*/pyproject.toml")):
        needed = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
        own = {"verax"} | {path.name for path in project.parent.iterdir() if path.is_dir()}
        files = sorted(project.parent.rglob("*.py"))
        assert files
        assert undeclared(files, names_of(needed), own) == {}


def test_the_build_imports_what_the_build_declares():
    allowed = names_of(PROJECT["build-system"]["requires"])
    assert undeclared([ROOT / "hatch_build.py"], allowed, set()) == {}


def test_dependencies_are_lower_bounds_and_pin_nobodys_versions():
    for line in requirements(set(EXTRAS)):
        assert LOWER_BOUND.fullmatch(line) or OWN_EXTRAS.fullmatch(line), line


def pins(name: str) -> dict[str, tuple[int, ...]]:
    """The versions of a constraints file, as numbers."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {distribution: numbers(version) for distribution, version in found}


def numbers(version: str) -> tuple[int, ...]:
    """So that 2.0 and 2.0.0 are the same."""
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def lower_bounds(extras: set[str]) -> dict[str, tuple[int, ...]]:
    """The highest lower bound of each distribution: what the lowest installation has."""
    bounds: dict[str, tuple[int, ...]] = {}
    for line in requirements(extras):
        if found := LOWER_BOUND.fullmatch(line):
            bounds[found[1]] = max(numbers(found[2]), bounds.get(found[1], ()))
    return bounds


def test_everything_declared_is_pinned_for_the_tests():
    pinned = pins("constraints.txt")
    for name, bound in lower_bounds(set(EXTRAS)).items():
        assert pinned.get(name, ()) >= bound, name


def test_the_lowest_versions_tested_are_the_lowest_declared():
    lowest = pins("constraints-lowest.txt")
    for name, bound in lower_bounds(OPTIONAL - {"federated"}).items():
        assert lowest.get(name) == bound, name


def test_the_lowest_versions_tested_with_flower_are_the_lowest_it_allows():
    lowest, bounds = pins("constraints-lowest-federated.txt"), lower_bounds({"federated", "train"})
    own = {name: bounds[name] for name in names_of(EXTRAS["federated"]) - declared({"train"})}
    assert own.items() <= lowest.items()
    for name, bound in bounds.items():  # flwr needs newer ones of some that verax does not
        assert lowest.get(name, ()) >= bound, name


CORE_ALONE = """
import sys
from importlib.abc import MetaPathFinder

class NumpyAndScipyOnly(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        known = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not known and top not in {"verax", "numpy", "scipy"}:
            raise ModuleNotFoundError(f"{name} is not there", name=name)

sys.meta_path.insert(0, NumpyAndScipyOnly())
import pkgutil
from importlib import import_module

import verax.privacy
import verax.samplers
for package in (verax.privacy, verax.samplers):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        import_module(module.name)
verax.Mechanism(verax.Poisson(0.01, 100), 1.0).guarantee().epsilon(1e-5)
verax.calibrate.noise_multiplier(verax.Poisson(0.01, 100), 1.0, 1e-5)
print(len([name for name in sys.modules if name.startswith("verax.privacy.")]))
"""


def test_the_core_imports_and_answers_with_numpy_and_scipy_alone():
    command = [sys.executable, "-c", CORE_ALONE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 20
