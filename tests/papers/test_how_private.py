"""'How private is DP-SGD?': a coarse run of the reproduction, and its numbers by other means."""

import csv
import math

import numpy as np
import pytest
from scipy import optimize, stats

from verax.papers import PAPERS, how_private, quiet
from verax.papers.how_private import figures

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    parts = []

    def progress(what):
        parts.append(what)
        return quiet(what)

    rows = figures.reproduce(folder, progress, every=16)
    assert parts == [f"figure {n} of 7" for n in range(1, 8)]
    return folder, rows


def event(noise, batches, epsilon, fine=False):
    """The paper's equation (7): P and Q of {max w >= C}, C from 0 to 100 by 0.01, or about ten
    times as many.
    """
    c = np.linspace(0.0, 20.0, 20_001) if fine else np.arange(10_001) / 100.0
    rest = (batches - 1) * stats.norm.logcdf(c / noise)
    p, q = (-np.expm1(stats.norm.logcdf((c - shift) / noise) + rest) for shift in (2.0, 1.0))
    return float(np.max(p - math.exp(epsilon) * q))


def gaussian(noise, epsilon):
    """Proposition 3.1."""
    middle, half = -noise * epsilon, 0.5 / noise
    return stats.norm.cdf(middle + half) - math.exp(epsilon + stats.norm.logcdf(middle - half))


def test_every_file_is_there(run):
    folder, _ = run
    names = {f"figure-{n}.{kind}" for n in range(1, 8) for kind in ("csv", "png", "svg")} | {
        "numbers.csv"
    }
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "figure-3.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "figure-3.svg").read_bytes()[:400]


@pytest.mark.parametrize("setting", figures.SETTINGS, ids=lambda s: f"figure-{s.number}")
def test_the_data_are_ordered_and_fall_along_the_axis(run, setting):
    with (run[0] / f"figure-{setting.number}.csv").open() as file:
        header, *lines = csv.reader(file)
    assert header == [
        "noise_multiplier" if setting.noise is None else "epsilon",
        "deterministic_lower",
        "deterministic_upper",
        "poisson_lower",
        "poisson_upper",
        "poisson_renyi_upper",
        "shuffle_lower",
        "shuffle_upper",
    ]
    data = dict(zip(header, np.array(lines, dtype=float).T, strict=True))
    assert data[header[0]].tolist() == setting.grid(16)
    for name in ("deterministic", "poisson", "shuffle"):
        assert (data[f"{name}_lower"] <= data[f"{name}_upper"]).all()
    assert (data["poisson_upper"] <= data["poisson_renyi_upper"] * 1.01).all()
    assert (data["shuffle_lower"] <= data["deterministic_upper"]).all()  # theorem 4.1
    for name in header[1:]:
        assert (np.diff(data[name]) < 0.0).all()


def test_the_grids_hold_the_places_that_the_text_names():
    grids = {setting.number: setting.grid() for setting in figures.SETTINGS}
    for claim in figures.CLAIMS:
        assert claim.x in grids[claim.figure]
        assert claim.meant is None or claim.meant in grids[claim.figure]
    assert [len(setting.grid(1000)) for setting in figures.SETTINGS] == [2] * 7


def test_the_verdicts(run):
    verdicts = {(row.where, row.what): row.verdict for row in run[1]}
    assert len(verdicts) == len(run[1]) - 1  # delta_P(4) is named twice, to three digits and to two
    errata = {key for key, value in verdicts.items() if value == "erratum"}
    assert errata == {("figure 7", f"delta_{name}") for name in ("P(1)", "P(1), Rényi", "S(1)")}
    rounded = {key for key, value in verdicts.items() if value.startswith("rounded")}
    assert rounded == {
        ("figure 3", "delta_S(12)"),
        ("figure 6", "delta_S(1)"),
        ("figure 6", "delta_S(4)"),
    }
    assert [key for key, value in verdicts.items() if value == "differs"] == [
        ("figure 5", "epsilon_P, noise 0.7, Rényi")
    ]
    assert all(row.remark for row in run[1] if row.verdict not in ("agrees", "tighter here"))


def test_the_written_numbers_are_the_returned_ones(run):
    folder, rows = run
    with (folder / "numbers.csv").open() as file:
        assert [line["here"] for line in csv.DictReader(file)] == [row.here for row in rows]


@pytest.mark.parametrize(
    "claim",
    [c for c in figures.CLAIMS if c.curve == "shuffle"],
    ids=lambda c: f"figure-{c.figure}-{c.x:g}",
)
def test_the_shuffle_bound_is_the_papers_formula(claim):
    setting = figures.SETTINGS[claim.figure - 1]
    ours, _ = setting.bracket("shuffle", claim.x)
    if setting.delta is None:
        printed, best = (
            event(setting.noise, setting.batches, claim.x, fine) for fine in (False, True)
        )
        assert ours == pytest.approx(best, rel=1e-3)
        assert printed == pytest.approx(best, rel=1e-3)
        return
    noise, batches = claim.x, setting.batches
    epsilon = optimize.brentq(
        lambda e: event(noise, batches, e, fine=True) - setting.delta, 1.0, 30.0, xtol=1e-5
    )
    assert ours == pytest.approx(epsilon, rel=1e-4)
    assert ours >= float(claim.printed)


@pytest.mark.parametrize("claim", [c for c in figures.CLAIMS if c.curve == "deterministic"])
def test_fixed_batches_are_the_closed_form(claim):
    setting = figures.SETTINGS[claim.figure - 1]
    low, high = setting.bracket("deterministic", claim.x)
    if setting.delta is None:
        truth = gaussian(setting.noise, claim.x)
    else:
        truth = optimize.brentq(lambda e: gaussian(claim.x, e) - setting.delta, 1.0, 30.0)
    assert low * (1 - 1e-6) <= truth <= high * (1 + 1e-6)
    assert truth == pytest.approx(float(claim.printed), rel=1e-3)


def test_the_three_numbers_of_figure_7_are_those_of_epsilon_one_half():
    """The text names them for epsilon 1, where the event gives .000999 and Poisson sampling
    2.5e-13.
    """
    setting = figures.SETTINGS[6]
    assert round(event(1.0, 1000, 0.5), 3) == 0.004
    assert event(1.0, 1000, 1.0) == pytest.approx(0.000999, abs=1e-6)
    low, high = setting.bracket("poisson", 0.5)
    assert low < 2.06e-10 * (1 + 1e-3)
    assert high == pytest.approx(2.06e-10, rel=2e-3)
    assert setting.bracket("poisson", 1.0)[1] < 2.06e-10 / 800
    assert setting.bracket("renyi", 1.0)[1] < 8.45e-5 / 500
    # from above, by a list of orders
    assert setting.bracket("renyi", 0.5)[1] == pytest.approx(8.45e-5, rel=0.15)
    assert setting.bracket("renyi", 0.5)[1] < 8.45e-5


def test_a_lower_bound_of_the_text_exceeds_the_exact_upper_bound():
    """Delta of shuffled batches at epsilon 12 is printed as at least 7.5e-5; fixed batches have
    less.
    """
    assert gaussian(0.4, 12.0) < 7.4744e-5 < 7.5e-5


def test_poisson_overtakes_fixed_batches_once(run):
    row = next(row for row in run[1] if row.where == "figure 2")
    low, high = (float(word) for word in row.here.removeprefix("in ").split(" to "))
    setting = figures.SETTINGS[1]
    assert setting.bracket("poisson", low)[1] < setting.bracket("deterministic", low)[0]
    assert setting.bracket("poisson", high)[0] > setting.bracket("deterministic", high)[1]


def test_the_registry_knows_it():
    assert PAPERS["002"] is how_private.reproduce
