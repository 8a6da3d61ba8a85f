"""The Rényi filter: sound against adaptive choices, also where the obvious rule is not; nothing is
under-counted.
"""

from __future__ import annotations

import json
import math
import os
import threading
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax import (
    BallsInBins,
    Batch,
    Deterministic,
    Mechanism,
    NoGuarantee,
    Poisson,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.privacy.calibrate import steps
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.renyi import filter as module
from verax.privacy.renyi.accountant import Renyi, delta_from_rdp, renyi_divergence
from verax.privacy.renyi.filter import Budget, DamagedBudget, OverBudget, pretend_lowest
from verax.privacy.renyi.moments import log_delta_bound, log_moments

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0])


def moment(p, q, order):
    """Log-moment of two pmfs on a finite set."""
    return float(np.logaddexp.reduce(order * np.log(p) + (1.0 - order) * np.log(q)))


def hockey_stick(p, q, epsilon):
    return float(np.maximum(np.asarray(p) - math.exp(epsilon) * np.asarray(q), 0.0).sum())


def two_point(chance, loss):
    other = chance * math.exp(-loss)
    return np.array([chance, 1.0 - chance]), np.array([other, 1.0 - other])


# --- the bound ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.floats(0.1, 60.0), st.floats(0.01, 1.0), st.floats(0.0, 30.0)),
        min_size=1,
        max_size=6,
    ),
    st.floats(0.01, 10.0),
)
@settings(deadline=None)
def test_bound_is_the_largest_value(parts, epsilon):
    s, w, k = (np.array(column) for column in zip(*parts, strict=True))
    logs = np.log(w / w.sum()) - k
    u = np.geomspace(1e-7, 300.0, 20_001)
    lines = logs[:, None] + s[:, None] * (epsilon + u)
    seen = float((np.log(-np.expm1(-u)) - np.logaddexp.reduce(lines, axis=0)).max())
    found = log_delta_bound(s, logs, epsilon)
    assert found >= min(seen, 0.0)
    assert found <= min(0.0, seen + 1e-5)


def test_one_order_is_the_known_conversion():
    for order, rdp, epsilon in [(2.0, 0.01, 1.0), (11.0, 0.1, 0.7), (64.0, 0.2, 1.0)]:
        found = log_delta_bound(np.array([order - 1.0]), np.array([-(order - 1.0) * rdp]), epsilon)
        assert found == pytest.approx(math.log(delta_from_rdp([order], [rdp], epsilon)), rel=1e-6)


def test_infinite_moments_prove_nothing():
    assert log_delta_bound(np.array([1.0, 2.0]), np.array([-np.inf, -np.inf]), 1.0) == 0.0
    one = log_delta_bound(np.array([1.0]), np.array([-0.1]), 5.0)
    assert log_delta_bound(np.array([1.0, 2.0]), np.array([-0.1, -np.inf]), 5.0) == pytest.approx(
        one, abs=1e-8
    )


def test_accepting_while_some_order_has_room_is_unsound():
    """docs/budget.md, section 3: each branch is within some order's budget, the whole is not
    (epsilon, delta)-DP.
    """
    epsilon, delta = 5.0, 1e-3
    first = two_point(0.01, 1.0)  # its rarer output comes first
    then = {0: (10.0, two_point(0.98, 4.1)), 1: (3.0, two_point(0.00286, 5.4))}
    total = 0.0
    for output, (order, second) in then.items():
        for a, b in ((0, 1), (1, 0)):  # both directions are within this order's budget
            spent = moment(first[a], first[b], order) + moment(second[a], second[b], order)
            assert delta_from_rdp([order], [spent / (order - 1.0)], epsilon) <= delta
        total += hockey_stick(first[0][output] * second[0], first[1][output] * second[1], epsilon)
    assert total > 1.8 * delta
    # the mixture, with half its weight on each order, does not accept both branches at this delta
    s, bounds = np.array([2.0, 9.0]), []
    for _, second in then.values():
        k = np.array(
            [moment(first[0], first[1], a) + moment(second[0], second[1], a) for a in (3.0, 10.0)]
        )
        bounds.append(math.exp(log_delta_bound(s, np.log(0.5) - k, epsilon)))
    assert max(bounds) >= total


@given(
    st.integers(0, 10**6),
    st.floats(0.5, 5.0),
    st.lists(st.floats(1.05, 30.0), min_size=1, max_size=4, unique=True),
)
@settings(deadline=None, max_examples=60)
def test_adaptive_phases_stay_within_the_bound(seed, epsilon, orders):
    """A tree of random mechanisms, each chosen by the output before; the worst leaf's bound covers
    the whole tree.
    """
    rng = np.random.default_rng(seed)
    s = np.array(orders) - 1.0
    weights = rng.dirichlet(np.ones(len(orders)))
    leaves, bounds = [], []

    def grow(p, q, spent, depth):
        if depth == 3:
            leaves.append((p, q))
            bounds.append(log_delta_bound(s, np.log(weights) - spent, epsilon))
            return
        pmf = two_point(rng.uniform(0.001, 0.5), rng.uniform(0.1, 3.0))
        pmf = pmf[:: rng.choice([-1, 1])]
        cost = np.array([moment(*pmf, order) for order in orders])
        for output in (0, 1):
            grow(p * pmf[0][output], q * pmf[1][output], spent + cost, depth + 1)

    grow(1.0, 1.0, np.zeros(len(orders)), 0)
    p, q = (np.array(side) for side in zip(*leaves, strict=True))
    assert hockey_stick(p, q, epsilon) <= math.exp(max(bounds)) * (1.0 + 1e-9)


# --- moments of mechanisms ------------------------------------------------------------------------


def test_moments_of_poisson_are_those_of_renyi():
    found = log_moments(Mechanism(Poisson(0.02, 300), 1.1), ORDERS)
    whole = Renyi.poisson(0.02, 1.1, 300).rdp(ORDERS) * (ORDERS - 1.0)
    np.testing.assert_allclose(np.maximum(found["remove"], found["add"]), whole, rtol=1e-7)


def test_moments_of_fixed_batches_are_gaussian():
    for sampler in (Deterministic(10, 5), Shuffle(10, 5)):
        found = log_moments(Mechanism(sampler, 2.0, relation="replace"), ORDERS)
        np.testing.assert_allclose(
            found["add"], 5 * ORDERS * (ORDERS - 1.0) * (2.0 / 2.0) ** 2 / 2.0, rtol=1e-12
        )


def test_moments_of_truncated_poisson_average_over_the_crowd():
    run = Mechanism(TruncatedPoisson(0.05, 1, 10, 100), 1.5)
    q = Fraction(0.05)
    chance = float(1 - sum(math.comb(100, i) * q**i * (1 - q) ** (100 - i) for i in range(10)))
    for order, bound in zip(ORDERS, log_moments(run, ORDERS)["remove"], strict=True):
        one, two = (
            math.expm1(
                (order - 1.0)
                * float(renyi_divergence([0.95, 0.05], [0.0, m / 1.5], order, "remove"))
            )
            for m in (1.0, 2.0)
        )
        # of numbers near 1, with all their digits
        exact = math.log1p((1.0 - chance) * one + chance * two)
        assert exact <= bound <= exact * (1.0 + 1e-5) + 1e-12


@pytest.mark.parametrize(
    "run",
    [
        Mechanism(WithoutReplacement(10, 100, 1), 3.0),
        Mechanism(Poisson(0.1, 1), 3.0, Batch(), "replace"),
    ],
)
def test_moments_of_symmetric_rounds_cover_the_larger_curve(run):
    """E exp(sZ) = 1 + a(a-1) int (e^{s eps} + e^{-a eps}) delta(eps), with the curve of either
    direction.
    """
    pair = MixturePair.subsampled(0.1, 2.0 / 3.0)
    epsilons = np.linspace(0.0, 12.0, 1201)
    deltas = np.array([max(pair.delta(e)[0], pair.reverse().delta(e)[0]) for e in epsilons])
    for order in (1.5, 2.0, 4.0):
        weight = (
            order * (order - 1.0) * (np.exp((order - 1.0) * epsilons) + np.exp(-order * epsilons))
        )
        exact = math.log1p(float(np.trapezoid(weight * deltas, epsilons)))
        found = log_moments(run, np.array([order]))["remove"][0]
        assert exact * 0.999 <= found <= 2.0 * exact


@pytest.mark.parametrize(
    "run", [Mechanism(BallsInBins(10, 1), 1.0), Mechanism(Poisson(0.1, 5), 1.0, relation="replace")]
)
def test_unknown_moments_are_refused(run):
    with pytest.raises(NoGuarantee, match="no certified Rényi moments are known"):
        log_moments(run, ORDERS)


# --- spending -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon"), [(0.01, 2.0, 1.0), (0.1, 5.0, 3.0), (0.01, 1.0, 8.0)]
)
def test_the_filter_allows_less_than_the_static_figure_but_most_of_it(rate, noise, epsilon):
    budget = Budget(epsilon, 1e-5)
    most = budget.most_rounds(Mechanism(Poisson(rate, 1), noise))
    assert 0.75 * steps(rate, noise, epsilon, 1e-5) < most < steps(rate, noise, epsilon, 1e-5)


def test_spend_until_refused():
    budget = Budget(1.0, 1e-5)
    phase = Mechanism(Poisson(0.01, 600), 2.0)
    used = [0.0]
    for _ in range(2):
        budget.spend(phase)
        used.append(budget.used)
    assert used == sorted(used)
    assert budget.static().upper < budget.used <= budget.pretended().upper * 1.3
    lower = Mechanism(Poisson(0.01, 1000), 1.5)
    before = budget.used
    with pytest.raises(OverBudget, match=r"steps of it fit, or noise_multiplier") as refused:
        budget.spend(lower)
    assert budget.used == before
    assert len(budget.phases) == 2
    most, noise = refused.value.most_rounds, refused.value.least_noise
    assert not budget.fits(Mechanism(Poisson(0.01, most + 1), 1.5))
    assert budget.fits(Mechanism(Poisson(0.01, 1000), noise))
    assert not budget.fits(Mechanism(Poisson(0.01, 1000), noise / 1.002))
    budget.spend(Mechanism(Poisson(0.01, most), 1.5))
    assert 0.995 < budget.used <= 1.0


def test_a_full_budget_names_nothing_that_fits():
    budget = Budget(0.5, 1e-6)
    with pytest.raises(OverBudget, match="not even one of its steps fits"):
        budget.spend(Mechanism(Poisson(0.5, 10), 0.5))
    with pytest.raises(OverBudget, match="epsilon inf"):
        budget.spend(Mechanism(Poisson(0.5, 10), 0.0))
    assert budget.used == 0.0
    assert budget.static() is None
    assert budget.pretended() is None


def test_splitting_a_phase_changes_nothing():
    orders = {12.0: 0.5, 6.0: 0.5}
    whole, parts = Budget(3.0, 1e-5, orders=orders), Budget(3.0, 1e-5, orders=orders)
    whole.spend(Mechanism(Poisson(0.01, 300), 1.5))
    for _ in range(3):
        parts.spend(Mechanism(Poisson(0.01, 100), 1.5))
    assert parts.used == pytest.approx(whole.used, rel=1e-5)


def test_groups_cost_more():
    phase = Mechanism(Poisson(0.01, 1), 4.0)
    most = [Budget(2.0, 1e-5, group=k).most_rounds(phase) for k in (1, 2, 4)]
    assert most[0] > 2 * most[1] > 4 * most[2] > 0


def test_epochs_are_counted_where_the_sampler_counts_them():
    budget = Budget(1.0, 1e-5, relation="zero-out")
    with pytest.raises(OverBudget, match="epochs of it fit") as refused:
        budget.spend(Mechanism(Shuffle(10, epochs=50), 20.0))
    assert refused.value.unit == "epochs"
    assert 10 < refused.value.most_rounds < 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta must lie strictly"),
        ({"relation": "swap"}, "relation must be one of"),
        ({"group": 0}, "group must be"),
        ({"orders": {}}, "orders must map"),
        ({"orders": {1.0: 0.5}}, "orders must map"),
        ({"orders": {2.0: 0.7, 3.0: 0.7}}, "sum to at most 1"),
    ],
)
def test_bad_budgets(change, message):
    with pytest.raises(ValueError, match=message):
        Budget(**({"epsilon": 1.0, "delta": 1e-5} | change))


def test_bad_phases():
    budget = Budget(1.0, 1e-5)
    phase = Mechanism(Poisson(0.01, 10), 2.0)
    with pytest.raises(ValueError, match="phase must be a Mechanism"):
        budget.spend(phase + phase)
    with pytest.raises(ValueError, match="relation 'add-remove', got 'zero-out'"):
        budget.spend(Mechanism(Shuffle(10), 2.0))


def test_pretending_the_lowest_noise_costs_more():
    phases = (Mechanism(Poisson(0.01, 100), 2.0), Mechanism(Poisson(0.03, 50), 1.5))
    assert [p.noise_multiplier for p in pretend_lowest(phases)] == [1.5, 1.5]
    assert [p.sampler for p in pretend_lowest(phases)] == [p.sampler for p in phases]
    budget = Budget(4.0, 1e-5)
    for phase in phases:
        budget.spend(phase)
    assert budget.pretended().upper > budget.static().upper
    text = budget.statement()
    assert "epsilon at most 4.0 at delta 1e-05" in text
    assert module.IN_ADVANCE in text


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "run.budget"
    budget = Budget(2.0, 1e-5, path=path)
    budget.spend(Mechanism(Poisson(0.01, 500), 2.0))
    budget.spend(Mechanism(Poisson(0.02, 100), 4.0, Batch(0.5)))
    return path, budget


def test_a_reopened_budget_is_the_same(kept):
    path, budget = kept
    again = Budget.open(path)
    assert (again.phases, again.orders, again.used) == (budget.phases, budget.orders, budget.used)
    again.spend(Mechanism(Poisson(0.01, 10), 2.0))
    assert len(Budget.open(path).phases) == 3
    assert [set(json.loads(line)) for line in path.read_bytes().splitlines()[1:]] == [
        {"phase", "orders", "hash"}
    ] * 3


def test_orders_given_beforehand_survive(tmp_path):
    path = tmp_path / "run.budget"
    Budget(2.0, 1e-5, orders={8.0: 1.0}, path=path)
    assert Budget.open(path).orders == {8.0: 1.0}


def test_a_phase_is_on_disk_before_it_may_run(kept, monkeypatch):
    path, budget = kept
    seen = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (seen.append(path.read_bytes().count(b'{"phase"')), real(fd))
    )
    budget.spend(Mechanism(Poisson(0.01, 10), 2.0))
    assert seen == [3]


def test_a_line_cut_short_was_never_answered(kept):
    path, _ = kept
    content = path.read_bytes()
    path.write_bytes(content + b'{"phase":{"schema":1,"pha')
    again = Budget.open(path)
    assert len(again.phases) == 2
    assert path.read_bytes() == content
    again.spend(Mechanism(Poisson(0.01, 10), 2.0))
    assert len(Budget.open(path).phases) == 3


def test_a_line_that_only_lacks_its_end_counts(kept):
    path, budget = kept
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    again = Budget.open(path)
    assert again.phases == budget.phases
    assert path.read_bytes() == content


def test_a_failed_write_spends_nothing_and_stops_the_writer(kept, monkeypatch):
    path, budget = kept
    real = os.write
    monkeypatch.setattr(
        os,
        "write",
        lambda fd, data: real(fd, data[:5]) and (_ for _ in ()).throw(OSError(28, "full")),
    )
    with pytest.raises(OSError, match="full"):
        budget.spend(Mechanism(Poisson(0.01, 10), 2.0))
    monkeypatch.undo()
    assert len(budget.phases) == 2
    with pytest.raises(DamagedBudget, match=r"Budget\.open it again"):
        budget.spend(Mechanism(Poisson(0.01, 10), 2.0))
    assert len(Budget.open(path).phases) == 2


def test_two_threads_cannot_both_spend_what_is_left(monkeypatch):
    """Each waits, once it has seen that the phase fits, until the other has seen it too, or
    cannot.
    """
    seen = threading.Barrier(2)
    phase = Mechanism(Poisson(0.01, 3000), 2.0)
    budget = Budget(1.5, 1e-5)
    assert 3000 < budget.most_rounds(phase) < 2 * 3000
    append = Budget._append

    def slow(self, content):
        with suppress(threading.BrokenBarrierError):
            seen.wait(0.3)
        append(self, content)

    monkeypatch.setattr(Budget, "_append", slow)
    results = []

    def spend():
        try:
            results.append(budget.spend(phase))
        except OverBudget as error:
            results.append(error)

    threads = [threading.Thread(target=spend) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "OverBudget"]
    assert budget.phases == (phase,)


def test_a_line_that_is_being_written_is_not_taken_for_one_that_was_cut_short(kept, monkeypatch):
    path, budget = kept
    real, opened = os.write, []
    other = threading.Thread(target=lambda: opened.append(Budget.open(path)))

    def slow(fd, line):
        done = real(fd, line[:20])
        other.start()
        other.join(0.3)  # it waits for the end of the line
        return done + real(fd, line[20:])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", slow)
        budget.spend(Mechanism(Poisson(0.01, 10), 2.0))
    other.join()
    assert opened[0].phases == budget.phases
    assert len(Budget.open(path).phases) == 3


def test_a_device_is_no_budget():
    with pytest.raises(
        ValueError, match=r"path must be a file, got '/dev/zero', which is a device"
    ):
        Budget.open("/dev/zero")


def test_two_writers_do_not_forget_each_other(kept):
    path, budget = kept
    Budget.open(path).spend(Mechanism(Poisson(0.01, 10), 2.0))
    with pytest.raises(DamagedBudget, match="someone else wrote"):
        budget.spend(Mechanism(Poisson(0.01, 10), 2.0))


def test_damage_is_found(kept, tmp_path):
    path, _ = kept
    content = path.read_bytes()
    for bad in (
        content.replace(b"500", b"400"),
        content.replace(content.split(b"\n")[1] + b"\n", b""),
        b"[]\n",
    ):
        path.write_bytes(bad)
        with pytest.raises(DamagedBudget, match="its hash does not fit"):
            Budget.open(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedBudget, match="line 1"):
        Budget.open(path)
    with pytest.raises(ValueError, match="can be read"):
        Budget.open(tmp_path / "none.budget")


def test_an_old_file_is_not_overwritten(kept):
    with pytest.raises(ValueError, match="path must be a new file"):
        Budget(1.0, 1e-5, path=kept[0])
