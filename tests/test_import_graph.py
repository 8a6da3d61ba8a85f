"""Imports go one way, those inside functions too."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
UPWARD = {
    "verax.mechanism": {"verax.privacy.analysis", "verax.privacy.samplers.base"},
    "verax.privacy.guarantee": {"verax.reporting.statement"},
    "verax.privacy.renyi.filter": {"verax.reporting.statement"},
}
"""Public methods that answer from a room above: ``guarantee()`` and ``statement()``."""


def modules():
    """All modules of the package and their files."""
    found = {}
    for file in (ROOT / "verax").rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def for_types_only(tree):
    """The nodes that only a type checker reads."""
    blocks = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    )
    return {id(node) for block in blocks for node in ast.walk(block)}


def imported(file, known):
    """The modules of the package that a file imports, at any depth."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = for_types_only(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                if alias.name != "_kernel":  # compiled, and imports nothing
                    yield inside if inside in known else node.module


def graph():
    known = modules()
    return {name: set(imported(file, known)) - {name} for name, file in known.items()}


def test_there_is_no_cycle_but_through_public_methods():
    found = graph()
    for name, above in UPWARD.items():
        assert above <= found[name], f"{name} no longer needs the exception"
        found[name] -= above
    try:
        order = list(TopologicalSorter(found).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error
    assert len(order) == len(found)


def test_privacy_and_ledger_know_nothing_of_training():
    for name, others in graph().items():
        room = name.split(".")[1] if "." in name else ""
        if room in ("samplers", "privacy", "ledger", "randomness"):
            assert not [
                other
                for other in others
                if other.startswith(("verax.training", "verax.web", "verax.cli"))
            ]
