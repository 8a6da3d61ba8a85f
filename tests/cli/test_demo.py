"""verax demo: every step is there, says what it found, and says what it leaves out."""

from __future__ import annotations

import importlib.util
import re

import pytest
from typer.testing import CliRunner

from verax.cli import app
from verax.ledger.ledger import read


def tour(folder, patch, *absent):
    """What the demo prints, with fewer runs of the attack, as if some libraries were not there."""
    module = importlib.import_module("verax.cli.demo")
    patch.setattr(module, "HONEST_TRIALS", 200)
    patch.setattr(module, "TRIALS", 8000)
    there = importlib.util.find_spec
    patch.setattr(module, "find_spec", lambda name: None if name in absent else there(name))
    result = CliRunner().invoke(app, ["demo", "--out", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    for name in ("torch", "sklearn", "cryptography"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("tour")
    with pytest.MonkeyPatch.context() as patch:
        return tour(folder, patch), folder


def test_the_steps_come_in_order(whole):
    said, _ = whole
    steps = re.findall(r"^(\d)\. ([A-Z]+):", said, re.M)
    assert steps == [("1", "PRICE"), ("2", "PLAN"), ("3", "TRAIN"), ("4", "STATE"), ("5", "AUDIT")]
    assert "Skipped" not in said.replace("Skipped: the figure", "")


def test_it_trains_what_it_planned_and_states_what_it_trained(whole):
    said, folder = whole
    assert float(re.search(r"Accuracy on held-out digits: ([\d.]+)%", said)[1]) > 80.0
    run = read(folder / "digits.ledger")
    assert run.complete
    assert not run.insecure_seed
    epsilon = run.guarantee().epsilon(1e-5)
    assert epsilon.upper <= 3.0
    assert f"epsilon at most {str(epsilon)[1:-1].split(', ')[1]} at delta 1e-05" in said
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert run.head in page
    assert "NOT private" not in page


def test_the_audit_tells_truth_from_lie(whole):
    said, _ = whole
    assert "Not refuted: Poisson batches" in said
    assert "REFUTED: a loader that shuffles" in said


def test_it_ends_by_saying_how_to_open_the_report(whole):
    said, folder = whole
    assert (
        f"Open it in a browser: {(folder / 'report.html').resolve().as_uri()}"
        in said.splitlines()[-2:]
    )


def test_a_second_tour_leaves_the_first_ledger_alone(tmp_path):
    free = importlib.import_module("verax.cli.demo")._free
    assert free(tmp_path, "digits.ledger").name == "digits.ledger"
    (tmp_path / "digits.ledger").touch()
    assert free(tmp_path, "digits.ledger").name == "digits-2.ledger"
    (tmp_path / "digits-2.ledger").touch()
    assert free(tmp_path, "digits.ledger").name == "digits-3.ledger"


def test_without_torch_it_says_what_it_skips_and_states_the_plan(tmp_path, monkeypatch):
    said = tour(tmp_path, monkeypatch, "torch", "matplotlib")
    assert "Skipped: training needs torch: pip install 'verax[train]'" in said
    assert "Skipped: the figure, which needs matplotlib: pip install 'verax[figures]'" in said
    assert "no ledger was given" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "samplers.png").exists()
