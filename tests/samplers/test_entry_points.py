"""Samplers of other packages, declared as entry points of a distribution that is made up here."""

import os
import subprocess
import sys

import pytest

MODULE = """
from dataclasses import dataclass

from verax import Poisson
from verax.privacy.pricing import prices
from verax.privacy.samplers.poisson import PoissonPricing
from verax.samplers import registry


@registry.register("relabelled-poisson", "Poisson by another name")
@dataclass(frozen=True)
class Relabelled(Poisson):
    pass


@prices(Relabelled)
class RelabelledPricing(PoissonPricing):
    pass


assert "poisson" in registry.names()  # may be asked while it is loaded
"""
NOT_ASKED = """
import sys
from verax.samplers import registry

registry.named("poisson")
assert "relabelled" not in sys.modules
"""
LISTED = NOT_ASKED + "assert 'relabelled-poisson' in registry.plannable()"
NAMED = NOT_ASKED + "assert registry.named('relabelled-poisson').kind.__name__ == 'Relabelled'"
RESTORED = """
from verax import Mechanism, Poisson
from verax.description import describe, restore

known = describe(Mechanism(Poisson(0.1, 5), 1.0))
known["phases"][0]["sampler"]["kind"] = "Relabelled"
assert type(restore(known).sampler).__name__ == "Relabelled"
"""
ACCOUNTED = """
from verax.cli import app

app("account --sampler relabelled-poisson --rate 0.1 --steps 5 -z 2 --delta 1e-5 --json".split())
"""
COMPUTED = """
import asyncio
from verax.web.computations import PlannedRun, epsilon
from verax.web.worker import Task, WorkerPool


async def ask():
    pool, parts = WorkerPool(workers=2, memory=2**31), []

    async def emit(part):
        parts.append(part)

    await pool.start()
    try:
        run = PlannedRun("relabelled-poisson", 120, 12, 2, 2.0)
        await pool.run(Task(epsilon, (run, 1e-5, 1e-3)), emit, 600.0)
    finally:
        await pool.stop()
    print(parts[0]["mechanism"])


if __name__ == "__main__":
    asyncio.run(ask())
"""


@pytest.fixture
def run(tmp_path):
    """A Python program, run where the made-up distribution is installed."""
    (tmp_path / "relabelled.py").write_text(MODULE)
    declared = tmp_path / "relabelled-1.0.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: relabelled\nVersion: 1.0\n")
    points = "[verax.samplers]\nrelabelled-poisson = relabelled:Relabelled\n"
    (declared / "entry_points.txt").write_text(points)
    program = tmp_path / "program.py"

    def ask(code):
        program.write_text(code)
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        asked = [sys.executable, str(program)]
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.run(asked, env=environment, capture_output=True, text=True)

    ask.entry_points = declared / "entry_points.txt"
    return ask


@pytest.mark.parametrize(
    "code", [NOT_ASKED, LISTED, NAMED, RESTORED], ids=["not asked", "listed", "named", "restored"]
)
def test_the_registry_loads_it_when_it_is_asked_for_and_not_before(run, code):
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_prices_it(run):
    done = run(ACCOUNTED)
    assert done.returncode == 0, done.stderr
    assert "Mechanism(sampler=Relabelled(rate=0.1, steps=5)" in done.stdout


def test_processes_that_compute_for_the_browser_know_it(run):
    pytest.importorskip("fastapi")
    done = run(COMPUTED)
    assert done.returncode == 0, done.stderr
    assert "Relabelled(rate=0.1, steps=20)" in done.stdout


def test_one_that_cannot_be_loaded_is_named_and_the_others_are_there(run):
    broken = "[verax.samplers]\nlost = nowhere:Lost\nrelabelled-poisson = relabelled:Relabelled\n"
    run.entry_points.write_text(broken)
    done = run(LISTED)
    assert done.returncode == 0, done.stderr
    assert "the sampler 'lost' of entry point nowhere:Lost cannot be loaded" in done.stderr
