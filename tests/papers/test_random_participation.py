"""Random participation reproduced: a coarse run of all figures, and its numbers by other means."""

import csv
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from verax.federated.observers import BASELINES
from verax.papers import PAPERS, quiet, random_participation
from verax.papers.random_participation import figures

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    parts = []

    def progress(what):
        parts.append(what)
        return quiet(what)

    rows = figures.reproduce(folder, progress, every=100)
    assert parts == [f"figure {n} of 5" for n in range(1, 6)] + [
        "the noise of sections 6.1 and 6.2"
    ]
    return folder, rows


def data(folder, setting):
    with (folder / f"figure-{setting.number}.csv").open() as file:
        header, *lines = csv.reader(file)
    baselines = [f"{name}_{side}" for name in BASELINES for side in ("lower", "upper")]
    kinds = ("lower", "upper", "published", "published_unsound")
    curves = [f"d{records}_{kind}" for records in setting.records for kind in kinds]
    assert header == [setting.axis, *baselines, *curves]
    return dict(zip(header, np.array(lines, dtype=float).T, strict=True))


def test_every_file_is_there(run):
    folder, _ = run
    names = {f"figure-{n}.{kind}" for n in range(1, 6) for kind in ("csv", "png", "svg")} | {
        "numbers.csv"
    }
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "figure-3.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "figure-3.svg").read_bytes()[:400]


@pytest.mark.parametrize("setting", figures.SETTINGS, ids=lambda s: f"figure-{s.number}")
def test_the_schemes_are_in_order(run, setting):
    """CS, then clients with ever more records, then WCS, then OLS."""
    found = data(run[0], setting)
    assert found[setting.axis].tolist() == setting.grid(100)
    order = ["CS", *(f"d{d}" for d in setting.records), "WCS", "OLS"]
    for name in order:
        assert (found[f"{name}_lower"] <= found[f"{name}_upper"]).all()
    for less, more in itertools.pairwise(order):
        assert (found[f"{less}_lower"] <= found[f"{more}_upper"] * (1 + 1e-6)).all()
        assert (found[f"{less}_upper"] <= found[f"{more}_upper"] * (1 + 1e-3) + 1e-12).all()
    for d in setting.records:
        flagged = found[f"d{d}_published_unsound"] > 0.0
        assert (
            flagged == (found[f"d{d}_published"] < found[f"d{d}_lower"] * (1 - figures.MARGIN))
        ).all()


def test_known_participation_is_p_times_local_sampling(run):
    found = data(run[0], figures.SETTINGS[0])
    assert found["WCS_upper"] == pytest.approx(0.1 * found["OLS_upper"], rel=1e-6)
    for epsilon, upper in zip(found["epsilon"], found["OLS_upper"], strict=True):
        larger = math.log1p(math.expm1(epsilon) / 0.1)
        exact = 0.1 * (
            stats.norm.cdf(0.5 - larger) - math.exp(larger) * stats.norm.cdf(-0.5 - larger)
        )
        assert upper == pytest.approx(exact, rel=1e-6)


def test_the_published_curve_is_marked(run):
    verdicts = {(row.where, row.what): row.verdict for row in run[1]}
    for number in (1, 4):
        assert verdicts[f"figure {number}", "theorem 4.1, d = 100"] == "erratum"
    assert verdicts["figure 1", "d = 100 against WCS"] == "agrees"
    assert verdicts["figure 5", "p = 1"] == "agrees"


def test_the_noise_of_the_experiments(run):
    rows = {(row.where, row.what): row for row in run[1]}
    corrected = {"6.1": 2.491, "6.2": 0.8151}
    for section, noise in corrected.items():
        row = rows[f"section {section}", "noise, random participation"]
        assert row.verdict == "erratum"
        assert float(row.here.removeprefix("<= ")) == pytest.approx(noise, rel=1e-3)
        assert "not 1e-6" in row.remark
    for section, name, noise in (
        ("6.1", "WCS", 7.665),
        ("6.1", "OLS", 22.497),
        ("6.2", "WCS", 0.8739),
    ):
        row = rows[f"section {section}", f"noise, {name}"]
        assert float(row.here.removeprefix("<= ")) == pytest.approx(noise, rel=1e-3)
        assert row.verdict == "rounded down"
    p, q, (epsilon, delta) = 0.001, 0.1, figures.TARGET
    noise = float(rows["section 6.1", "noise, WCS"].here.removeprefix("<= "))
    larger = math.log1p(math.expm1(epsilon) / q)
    exact = (
        p
        * q
        * (
            stats.norm.cdf(0.5 / noise - larger * noise)
            - math.exp(larger) * stats.norm.cdf(-0.5 / noise - larger * noise)
        )
    )
    assert exact == pytest.approx(delta, rel=5e-3)
    assert exact <= delta


def test_the_written_numbers_are_the_returned_ones(run):
    folder, rows = run
    with (folder / "numbers.csv").open() as file:
        assert [line["here"] for line in csv.DictReader(file)] == [row.here for row in rows]


def test_the_registry_knows_it():
    assert PAPERS["003"] is random_participation.reproduce
