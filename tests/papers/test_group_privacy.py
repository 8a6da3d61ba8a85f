"""'Optimal group privacy': a coarse run of the whole reproduction, and what its claims rest on."""

import csv
import math

import numpy as np
import pytest

from verax import Mechanism, Poisson
from verax.papers import PAPERS, group_privacy, quiet
from verax.papers.group_privacy import appendix, figures
from verax.privacy.guarantee import Bracket
from verax.privacy.tradeoff import TradeOff

pytest.importorskip("matplotlib")
FIGURES = ("figure-1", "figure-2", "figure-3", "figure-b1", "figure-b2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    parts = []

    def progress(what):
        parts.append(what)
        return quiet(what)

    with pytest.MonkeyPatch.context() as patch:  # few settings will do
        patch.setattr(appendix, "B1_RATES", (0.1, 1.0))
        patch.setattr(appendix, "B2_STEPS", (50, 2500))
        patch.setattr(appendix, "MANY_RATES", (0.002, 0.1, 1.0))
        rows = figures.reproduce(folder, progress, every=5)
    assert [part.split(",")[0] for part in parts] == [
        "figure 1",
        "figure 2",
        "figure 3",
        "appendix B.1",
        "appendix B.2",
    ]
    return folder, rows


def columns(run, name):
    with (run[0] / f"{name}.csv").open() as file:
        header, *lines = csv.reader(file)
    return {
        key: np.array(values) for key, values in zip(header, zip(*lines, strict=True), strict=True)
    }


def numbers(run, name, *keys):
    data = columns(run, name)
    return [data[key].astype(float) for key in keys]


def test_every_file_is_there(run):
    names = {f"{name}.{kind}" for name in FIGURES for kind in ("csv", "png", "svg")} | {
        "numbers.csv"
    }
    assert {path.name for path in run[0].iterdir()} == names
    assert (run[0] / "figure-3.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (run[0] / "figure-b2.svg").read_bytes()[:400]
    with (run[0] / "numbers.csv").open() as file:
        assert [line["here"] for line in csv.DictReader(file)] == [row.here for row in run[1]]


def test_figure_1_is_ordered(run):
    tight, f_dp, box, printed, low, high, group = numbers(
        run,
        "figure-1",
        "tight_lower",
        "f_dp_black_box",
        "black_box",
        "black_box_with_factor_k",
        "monte_carlo_lower",
        "monte_carlo_upper",
        "group",
    )
    assert group.tolist() == [1, 8, 48, 64]
    assert (tight <= f_dp).all()
    assert (f_dp <= box).all()
    assert (box <= printed).all()
    assert (low <= tight).all()
    assert (tight <= high).all()
    assert printed[1] > 1.05 * box[1]  # the factor k of theorem 4 costs something


def test_figure_2_holds_both_noises_and_both_kinds(run):
    data = columns(run, "figure-2")
    assert set(zip(data["noise_multiplier"], data["kind"], strict=True)) == {
        (noise, kind) for noise in ("1.0", "2.0") for kind in ("fixed", "growing")
    }
    lower, upper, box = numbers(run, "figure-2", "tight_lower", "tight_upper", "black_box")
    assert (lower <= upper).all()
    assert (lower <= box * 1.01).all()


def test_figure_3_starts_at_equal_privacy(run):
    group, low, high = numbers(run, "figure-3", "group", "epsilon_lower", "epsilon_upper")
    assert (np.abs(low[group == 1] - 1.0) < 1e-3).all()
    assert (np.abs(high[group == 1] - 1.0) < 1e-3).all()


def test_appendix_b_grows_with_steps_and_groups(run):
    data = columns(run, "figure-b1")
    curves = {}
    for rate, noise, group, upper in zip(
        data["rate"], data["noise_multiplier"], data["group"], data["epsilon_upper"], strict=True
    ):
        curves.setdefault((rate, noise, group), []).append(float(upper))
    assert len(curves) == 2 * 2 * 3
    assert all((np.diff(values) > 0.0).all() for values in curves.values())
    steps, rate, noise = numbers(run, "figure-b2", "steps", "rate", "noise_multiplier")
    for t, q, z in {*zip(steps, rate, noise, strict=True)}:
        found = Mechanism(Poisson(q, int(t)), z).guarantee().epsilon(1e-5)
        assert found.lower < 1.004
        assert found.upper > 0.996


def test_the_verdicts(run):
    verdicts = {(row.where, row.what): row.verdict for row in run[1]}
    assert len(verdicts) == len(run[1])
    assert verdicts["figure 3", "rate 0.001 against 0.01"] == "agrees"
    assert verdicts["figure 3", "rate 0.01 against 0.1"] == "agrees"
    assert verdicts["figure 3", "rate 0.1 against 1"] == "differs"
    assert verdicts["figure 1", "f-DP black box, 8 to 8 records"] == "agrees"
    assert [key[0] for key, value in verdicts.items() if value == "erratum"] == [
        "theorem 4",
        "algorithm 2",
    ]
    assert {row.verdict for row in run[1] if row.where.startswith("appendix")} == {"agrees"}
    assert all(row.remark for row in run[1] if row.verdict in ("differs", "erratum"))


def test_the_registry_knows_it():
    assert PAPERS["001"] is group_privacy.reproduce


@pytest.mark.parametrize("group", [1, 2, 5])
def test_the_lower_bound_on_the_f_dp_black_box(group):
    """Of a Gaussian curve it must not exceed that of k mu."""
    from verax.privacy.curves.gaussian import gaussian_epsilon

    above = Mechanism(Poisson(1.0, 1), 4.0).guarantee().tradeoff().above
    exact = gaussian_epsilon(0.25 * group, 1e-3)
    assert 0.98 * exact <= figures.f_dp_at_least(above, group, 1e-3) <= exact
    assert (
        figures.f_dp_at_least(TradeOff(np.array([0.0, 1.0]), np.array([1.0, 0.0])), group, 1e-3)
        == 0.0
    )


def test_samples_needed_are_enough_and_not_too_many():
    for epsilon in (0.0, 1.0, 5.0):
        m = figures.samples_needed(epsilon, 0.05, 0.95)

        def miss(count, epsilon=epsilon):
            near = 2.0 * count * 0.05**2
            return 2.0 * math.exp(-near * math.exp(-2.0 * epsilon)) + 2.0 * math.exp(-near)

        assert miss(m) <= 0.05 < miss(0.99 * m)


def test_equal_noise_is_found_from_far_away():
    for start in (0.0, 0.7, 3.0):
        noise = appendix.noise_for_one(0.01, 100, 1e-3, start)
        found = Mechanism(Poisson(0.01, 100), noise).guarantee().epsilon(1e-5)
        assert found.lower < 1.002
        assert found.upper > 0.998


def test_whether_a_curve_slows():
    points = [Bracket(x, x) for x in (0.0, 1.0, 1.5, 1.7)]
    assert appendix.slows([0, 1, 2, 3], points) == 1
    assert appendix.slows([0, 1, 2, 3], [Bracket(x, x) for x in (0.0, 0.1, 0.3, 1.0)]) == -1
    assert appendix.slows([0, 1, 2, 3], [Bracket(x, x) for x in (0.0, 1.0, 2.0, 3.0)]) == 0


def test_points_are_thinned_from_both_ends():
    assert appendix.some_of(range(10), 4) == [0, 4, 8, 9]
    assert appendix.some_of(range(3), 1) == [0, 1, 2]
    assert appendix.some_of([7], 5) == [7]
