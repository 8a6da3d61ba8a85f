"""Tables 1 and 2 of 'shuffling and batch clipping', and the errata with them, by other means."""

import csv
import math

import numpy as np
import pytest
from scipy import stats

from verax.papers import PAPERS, quiet, shuffling_and_batch_clipping
from verax.papers.shuffling_and_batch_clipping import errata, model, tables
from verax.privacy.curves.gaussian import gaussian_epsilon

COLUMNS = (
    "table",
    "row",
    "clipping",
    "sampling",
    "epochs",
    "group",
    "c_squared",
    "mu_at_most",
    "mu_at_least",
    "epsilon_at_most",
    "epsilon_at_least",
    "a1_lower",
    "a1_upper",
    "a0_lower",
    "a0_upper",
    "verdict",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    parts = []

    def progress(what):
        parts.append(what)
        return quiet(what)

    rows = tables.reproduce(folder, progress, epochs=(20,))
    assert parts == ["table 1 of 2", "table 2 of 2"]
    return folder, rows


def test_the_registry_knows_it():
    assert PAPERS["000-tables"] is shuffling_and_batch_clipping.reproduce


def test_the_files_hold_every_line(run):
    folder, rows = run
    with (folder / "numbers.csv").open() as file:
        assert [line["here"] for line in csv.DictReader(file)] == [row.here for row in rows]
    with (folder / "tables.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert {(line["table"], line["row"]) for line in lines} == {
        ("1", "1"),
        ("1", "2"),
        ("1", "3"),
        ("1", "4"),
        ("1", "5"),
        ("1", "6"),
        ("2", "1"),
        ("2", "2"),
        ("2", "3"),
    }
    for line in lines:
        a1 = float(line["a1_lower"]), float(line["a1_upper"])
        assert a1[0] <= a1[1] <= a1[0] * (1 + 1e-6)
        assert float(line["a0_lower"]) <= float(line["a0_upper"]) <= a1[1]


def test_the_verdicts(run):
    rows = run[1]
    tables = {
        (row.where, row.what.split(", g=")[1]): row.verdict
        for row in rows
        if row.where.startswith("table")
    }
    for (where, setting), verdict in tables.items():
        if where in ("table 1, row 1", "table 1, row 2"):
            assert verdict == "erratum"
        elif where == "table 1, row 4":
            assert verdict == "differs"
        elif where == "table 2, row 3":
            assert verdict == "tighter here"
        else:
            assert (verdict, setting) == ("agrees", setting)
    errata = [row for row in rows if not row.where.startswith("table")]
    assert {row.verdict for row in errata} == {"erratum"}
    assert all(row.remark for row in rows if row.verdict in ("erratum", "differs"))


def test_the_exact_epsilons_by_another_way():
    """Batch clipping with subsampling: c^2 is binomial, so delta is a sum over scipy's law."""
    case = next(c for c in tables.cases((20,)) if (c.row, c.group) == (1, 4))
    rounds, hit = 20_000, 1.0 - math.comb(59_996, 60) / math.comb(60_000, 60)
    law = stats.binom(rounds, hit)
    low, high = model.strong_curve(case.law()).epsilon(model.DELTA, 1e-6)
    k = np.arange(1.0, 400.0)
    mu = np.sqrt(k) / model.SIGMA
    for epsilon, sign in ((low * (1 - 1e-6), 1), (high * (1 + 1e-6), -1)):
        near, far = (
            stats.norm.logcdf(mu / 2 - epsilon / mu),
            epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu),
        )
        delta = float(law.pmf(k) @ (np.exp(near) - np.exp(far)))
        assert sign * (delta - model.DELTA) > 0.0


def test_rows_that_hold_at_this_delta_fail_at_a_smaller_one():
    case = next(c for c in tables.cases((20,)) if (c.row, c.group) == (1, 32))
    delta, claimed, true = tables.failure(case)
    assert delta < model.DELTA
    assert true > claimed
    assert claimed == gaussian_epsilon(math.sqrt(640 + math.sqrt(320)) / 2.0, delta)


def test_the_composed_subsampled_curve_is_not_that_of_a1(run):
    """Section E.2 calls it tight for A1; epsilon is .31 for A0 and 13.2 for A1."""
    row = next(row for row in run[1] if row.where == "E.2")
    a0, a1 = (float(part.split("= ")[1]) for part in row.here.split(", "))
    assert a0 < 0.32
    assert a1 > 13.0


@pytest.mark.parametrize("sigma", [1.0, 2.0, 10.0, 100.0])
def test_h_is_larger_than_one_over_sigma(sigma):
    """Appendix G expands it with the wrong sign and factor and calls it slightly smaller."""
    x = 1.0 / sigma
    value = errata.clt_mu(sigma)
    assert value > x
    right, printed = (x * math.sqrt(1.0 + c * x / math.sqrt(2.0 * math.pi)) for c in (2.0, -0.625))
    if sigma >= 10.0:
        assert abs(value / right - 1.0) < 0.3 * x * x + 1e-12
    assert abs(value - right) < abs(value - printed) / 2.0
    if sigma == 2.0:
        assert value == pytest.approx(0.6276, abs=1e-4)


def test_orthogonal_terms_do_not_reach_2kc():
    """Section C.4: k = 4 differences of norm 2 give 8 if they are parallel, 4 if they are
    orthogonal.
    """
    orthogonal, parallel = 2.0 * np.eye(4), 2.0 * np.ones((4, 1)) * np.eye(1, 4)
    assert np.linalg.norm(orthogonal.sum(axis=0)) == pytest.approx(4.0)
    assert np.linalg.norm(parallel.sum(axis=0)) == pytest.approx(8.0)


def test_group_privacy_needs_epsilon_in_its_factor():
    """Section 2 prints (g eps, g e^{g-1} delta); for g = 2 at epsilon 2, laws on two points need
    (e^2 + 1) delta.
    """
    epsilon, delta, small = 2.0, 1e-6, 0.01
    chances = [small, delta + small * math.exp(epsilon)]
    chances.append(delta + chances[1] * math.exp(epsilon))
    laws = [np.array([chance, 1.0 - chance]) for chance in reversed(chances)]

    def leak(p, q, eps):
        return float(np.maximum(p - math.exp(eps) * q, 0.0).sum())

    for p, q in ((0, 1), (1, 2)):
        assert leak(laws[p], laws[q], epsilon) <= delta * (1 + 1e-6)
        assert leak(laws[q], laws[p], epsilon) == 0.0
    both = leak(laws[0], laws[2], 2 * epsilon)
    assert both == pytest.approx((math.exp(epsilon) + 1) * delta, rel=1e-6)
    assert both > 1.5 * 2 * math.e * delta


def test_the_curve_of_epsilon_and_delta_is_a_maximum():
    """Appendix A prints min{0, 1 - delta - e^eps alpha, e^-eps (1 - delta - alpha)}; at alpha = 0
    that is 0, not 1.
    """
    epsilon, delta = 1.0, 0.0
    lines = 0.0, 1.0 - delta, math.exp(-epsilon) * (1.0 - delta)
    assert min(lines) == 0.0
    assert max(lines) == 1.0 - delta  # nobody errs less than that without false alarms


def test_no_lambda_in_the_gap_of_definition_5_2():
    first, last = errata.blind_range(model.exact("subsampling", 1, 1, 1).scaled(0.25))
    assert last - first == pytest.approx((1 - 0.001) ** 1000, rel=1e-9)
    assert (first, last) == pytest.approx((0.240, 0.608), abs=1e-3)
