"""The study of random participation, on a small table."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax.federated.observers import baseline  # noqa: E402
from verax.federated.splits import Split  # noqa: E402
from verax.training.data.examples import Examples  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "studies" / "participation.py"
if not SCRIPT.exists():  # as in a source distribution
    pytest.skip("needs the folder studies", allow_module_level=True)
TARGETS = {"each round": (0.5, 1e-3), "whole run": (2.0, 1e-3)}


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec = importlib.util.spec_from_file_location("participation_study", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        patch.setattr(module, "TARGETS", TARGETS)
        yield module


@pytest.fixture(scope="module")
def held():
    mixed = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=mixed)
    y = (x[:, 0] > x[:, 1]).long()
    return Split(Examples((x[:400], y[:400]), (x[400:], y[400:]), 2), np.array([8] * 50))


@pytest.fixture(scope="module")
def setting(study):
    return study.Setting("50 small clients", 50, 0.3, 0.5)


@pytest.mark.parametrize("target", TARGETS)
def test_each_arm_has_the_noise_its_own_bound_asks_for(study, held, setting, target):
    plan = study.public(setting, held, 8)
    proposed, wcs, ols = (study.noise(plan, arm, target) for arm in study.ARMS)
    assert 0.0 < proposed <= wcs < ols
    epsilon, delta = TARGETS[target]
    rounds = 1 if target == "each round" else 8
    sampler = study.replace(plan, rounds=rounds).mechanism().sampler
    assert (
        study.replace(plan, rounds=rounds, noise_multiplier=proposed)
        .guarantee()
        .epsilon(delta)
        .upper
        <= epsilon
    )
    assert (
        study.replace(plan, rounds=rounds, noise_multiplier=0.95 * proposed)
        .guarantee()
        .epsilon(delta)
        .upper
        > epsilon
    )
    for arm, noise in (("WCS", wcs), ("OLS", ols)):
        assert baseline(arm, sampler, noise).guarantee().epsilon(delta).upper <= epsilon


def test_a_run_is_measured_at_its_checkpoints(study, held, setting):
    run = study.Run(setting.name, "none", "none", 40, 0.1, 0)
    found = study.measure(run, 0.0, setting, held, (10, 40))
    assert [row["round"] for row in found] == [10, 40]
    assert float(found[-1]["accuracy"]) > 90.0
    assert found[-1]["epsilon upper"] == "inf"
    noisy = study.measure(
        study.Run(setting.name, "each round", "OLS", 40, 0.1, 0), 9.0, setting, held, (10, 40)
    )
    assert 0.0 < float(noisy[0]["epsilon upper"]) < float(noisy[1]["epsilon upper"])
    assert set(noisy[0]) == set(study.COLUMNS)


def test_what_is_in_the_file_is_not_run_again(study, held, setting, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "found.csv"
    monkeypatch.setattr(study, "SETTINGS", (setting,))
    monkeypatch.setattr(study.Setting, "split", lambda self, data: held)
    monkeypatch.setattr(
        sys, "argv", ["participation.py", "--rounds", "8", "--seeds", "1", "--out", str(out)]
    )
    study.main()
    before = out.read_text()
    assert len(study.rows(out)) == 7 * 5
    assert out.with_suffix(".svg").stat().st_size > 1000
    assert "| 50 small clients | proposed |" in capsys.readouterr().out
    monkeypatch.setattr(study, "measure", None)
    study.main()
    assert out.read_text() == before


def test_the_learning_rate_is_the_first_seeds_best(study):
    def row(rate, seed, accuracy):
        return {
            "setting": "a",
            "target": "b",
            "arm": "c",
            "rounds": "8",
            "round": "8",
            "rate": rate,
            "seed": seed,
            "accuracy": accuracy,
        }

    found = [
        row("0.1", "0", "9.5"),
        row("0.2", "0", "80"),
        row("0.1", "1", "99"),
        row("0.2", "1", "70"),
    ]
    assert study.best(found) == [found[1], found[3]]
