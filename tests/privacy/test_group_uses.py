"""Users, duplicates, poisoning and the choice of clipping, against closed forms where the run is
Gaussian.
"""

import doctest
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from verax import Batch, Deterministic, Individual, Mechanism, Poisson, Shuffle, WithoutReplacement
from verax.privacy import group_uses
from verax.privacy.group_uses import (
    certified_poisoning,
    crossover,
    duplicates,
    largest_group,
    probability_after,
    user_epsilons,
)

RUN = Mechanism(Poisson(0.01, 100), 2.0)
GAUSSIAN = Mechanism(Poisson(1.0, 4), 20.0)  # mu = 1/10 for one record
DELTA = 1e-5


def test_users_in_any_order_and_as_a_histogram():
    rows = user_epsilons(RUN, [3, 1, 0, 1, 7, 1], DELTA)
    assert [(row.records, row.users) for row in rows] == [(0, 1), (1, 3), (3, 1), (7, 1)]
    assert (rows[0].epsilon.lower, rows[0].epsilon.upper) == (0.0, 0.0)
    for row in rows[1:]:
        assert row.epsilon == RUN.guarantee(row.records).epsilon(DELTA)
    assert user_epsilons(RUN, {0: 1, 1: 3, 3: 1, 5: 0, 7: 1}, DELTA) == rows


def test_many_sizes_share_brackets_that_hold(monkeypatch):
    monkeypatch.setattr(group_uses, "MOST_SIZES", 4)
    done = []
    rows = user_epsilons(RUN, range(1, 40), DELTA, progress=lambda at, of: done.append((at, of)))
    assert [row.records for row in rows] == list(range(1, 40))
    assert len(done) <= 6
    assert done[0][0] == 0
    assert {of for _, of in done} == {len(done)}
    for row in rows[::5]:
        own = RUN.guarantee(row.records).epsilon(DELTA)
        assert row.epsilon.lower <= own.upper
        assert own.lower <= row.epsilon.upper
    uppers = [row.epsilon.upper for row in rows]
    assert uppers == sorted(uppers)
    assert len(set(uppers)) == len(done)


def test_users_with_orthogonal_gradients_pay_less():
    (any_,), (apart,) = (user_epsilons(RUN, [8], DELTA, geometry=g) for g in ("any", "orthogonal"))
    assert apart.epsilon.upper < any_.epsilon.lower


def test_phases_have_users_too():
    both = RUN + Mechanism(Poisson(0.02, 50), 1.5)
    assert user_epsilons(both, [2], DELTA)[0].epsilon == both.guarantee(2).epsilon(DELTA)


def test_copies_are_the_worst_group():
    """One step, 5 copies of a record: the sum moves by Bin(5, q) in one direction. Delta by
    quadrature.
    """
    run, size, epsilon = Mechanism(Poisson(0.2, 1), 1.5), 5, 1.0
    x = np.linspace(-15.0, 20.0, 200_001)
    absent = stats.norm.pdf(x, 0.0, 1.5)
    present = sum(
        stats.binom.pmf(j, size, 0.2) * stats.norm.pdf(x, j, 1.5) for j in range(size + 1)
    )
    delta = float(np.sum(np.maximum(present - math.exp(epsilon) * absent, 0.0)) * (x[1] - x[0]))
    bracket = duplicates(run, [1, size], delta, rtol=1e-4)[size]
    assert bracket.lower <= epsilon * 1.0001
    assert epsilon <= bracket.upper * 1.0001
    assert bracket.width < 1e-3


def test_the_largest_group_fits_and_the_next_does_not():
    size = largest_group(RUN, 3.0, DELTA)
    assert (
        RUN.guarantee(size).epsilon(DELTA).upper
        <= 3.0
        < RUN.guarantee(size + 1).epsilon(DELTA).upper
    )
    assert largest_group(RUN, 0.0, DELTA) == 0
    assert largest_group(RUN, 1e9, DELTA, most=37) == 37
    small = Mechanism(WithoutReplacement(1, 5, 1), 50.0)
    assert largest_group(small, 1e9, DELTA) == 5  # the whole population


@pytest.mark.parametrize("probability", [0.001, 0.05, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("records", [1, 5, 20])
def test_poisoning_a_gaussian_mechanism(probability, records):
    """The trade-off curve of mu is Phi(Phi^-1(1 - p) - mu): probabilities move by mu on the scale
    of Phi.
    """
    mu = 0.1 * records
    least, most = (stats.norm.cdf(stats.norm.ppf(probability) + shift) for shift in (-mu, mu))
    found = probability_after(GAUSSIAN, probability, records)
    assert found.lower <= least <= found.lower + 0.003
    assert most <= found.upper <= most + 0.003


@pytest.mark.parametrize("rate", [0.001, 0.1])
def test_events_as_rare_as_doubles_go(rate):
    """Absent, a score above 38.5 has probability 5e-324; a record at 50 deviations is sampled with
    this rate.
    """
    assert probability_after(
        Mechanism(Poisson(rate, 1), 0.02), 5e-324, 1
    ).upper >= rate * stats.norm.cdf(50.0 - 38.5)


def test_certain_events_stay_likely_and_impossible_ones_rare():
    delta = GAUSSIAN.guarantee(3).delta(0.0).upper
    for probability in (0.0, 1.0):
        found = probability_after(GAUSSIAN, probability, 3)
        assert 0.0 <= found.lower <= probability <= found.upper <= 1.0
        assert found.width <= delta
    # no noise, no promise
    assert probability_after(Mechanism(Poisson(1.0, 1), 0.0), 0.5, 1).upper == 1.0


@pytest.mark.parametrize(("top", "other"), [(0.9, None), (0.9, 0.02), (0.6, 0.35)])
def test_certified_poisoning_of_a_gaussian_mechanism(top, other):
    """The lead ends where Phi^-1(top) - k mu meets Phi^-1(other) + k mu."""
    gap = stats.norm.ppf(top) - stats.norm.ppf(1.0 - top if other is None else other)
    exact = math.ceil(gap / 0.2) - 1
    found = certified_poisoning(GAUSSIAN, top, other)
    assert exact - 1 <= found.records <= exact
    assert found.top > found.runner_up
    assert found.relation == "add-remove"


def test_replacing_records_certifies_fewer_than_adding_them():
    added, replaced = (
        certified_poisoning(Mechanism(Poisson(0.1, 20), 5.0, relation=r), 0.9)
        for r in ("", "replace")
    )
    assert 0 < replaced.records < added.records


def test_a_lead_too_small_for_one_record():
    found = certified_poisoning(Mechanism(Poisson(1.0, 1), 0.5), 0.51, 0.49)
    assert (found.records, found.top, found.runner_up) == (0, 0.51, 0.49)


def test_certificates_stop_where_they_are_told():
    assert certified_poisoning(GAUSSIAN, 0.99, 0.001, most=3).records == 3


def test_fixed_batches_cross_at_four_records():
    """Individual k against batch 2 sqrt(k): a tie at 4 (docs/proofs.md, theorem 4)."""
    sampler = Deterministic(10, 3)
    assert crossover(Mechanism(sampler, 2.0), Mechanism(sampler, 2.0, Batch()), DELTA) == (3, 5)


def test_poisson_batches_cross_at_about_one_and_a_half_over_the_rate():
    first, second = (Mechanism(Poisson(0.5, 10), 2.0, c) for c in (Individual(), Batch()))
    assert crossover(first, second, DELTA) == (3, 4)
    assert first.guarantee(3).epsilon(DELTA).upper < second.guarantee(3).epsilon(DELTA).lower
    assert first.guarantee(4).epsilon(DELTA).lower > second.guarantee(4).epsilon(DELTA).upper


def test_no_crossing_where_none_is_proved():
    one, batch = Mechanism(Poisson(0.01, 10), 2.0), Mechanism(Poisson(0.01, 10), 2.0, Batch())
    assert crossover(one, batch, DELTA, most=8) is None
    assert crossover(batch, one, DELTA, most=8) is None
    shuffled = Mechanism(Shuffle(10), 1.0)
    # brackets too wide
    assert crossover(shuffled, Mechanism(Shuffle(10), 1.0, Batch()), DELTA, most=4) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: user_epsilons("x", [1], DELTA), "run must be a Mechanism or Phases, got 'x'"),
        (
            lambda: user_epsilons(RUN, 5, DELTA),
            "counts must hold whole numbers, such as .5., got 5",
        ),
        (lambda: duplicates(None, [1], DELTA), "run must be a Mechanism or Phases, got None"),
        (lambda: duplicates(RUN, 5, DELTA), "copies must hold whole numbers, such as .5., got 5"),
        (lambda: largest_group(3, 1.0, DELTA), "run must be a Mechanism or Phases, got 3"),
        (lambda: probability_after(3, 0.5, 1), "run must be a Mechanism or Phases, got 3"),
        (lambda: certified_poisoning(3, 0.9), "run must be a Mechanism or Phases, got 3"),
        (lambda: crossover(RUN, 3, DELTA), "run must be a Mechanism or Phases, got 3"),
        (
            lambda: user_epsilons(RUN, [], DELTA),
            "counts must hold the records of at least one user, got none",
        ),
        (
            lambda: user_epsilons(RUN, {3: 0}, DELTA),
            "counts must hold the records of at least one user, got none",
        ),
        (
            lambda: user_epsilons(RUN, [2, -1], DELTA),
            "records of a user must be a whole number of at least 0, got -1",
        ),
        (
            lambda: user_epsilons(RUN, [2.5], DELTA),
            "records of a user must be a whole number of at least 0, got 2.5",
        ),
        (
            lambda: user_epsilons(RUN, {1: -2}, DELTA),
            "users must be a whole number of at least 0, got -2",
        ),
        (lambda: user_epsilons(RUN, [10**7], DELTA), "group must be at most 1000000, got 10000000"),
        (lambda: user_epsilons(RUN, [1], 0.0), "delta must lie strictly between 0 and 1, got 0.0"),
        (lambda: duplicates(RUN, [0], DELTA), "copies must be a whole number of at least 1, got 0"),
        (lambda: duplicates(RUN, [1], 1.5), "delta must lie strictly between 0 and 1, got 1.5"),
        (
            lambda: largest_group(RUN, -1.0, DELTA),
            "epsilon must be at least 0 and finite, got -1.0",
        ),
        (
            lambda: largest_group(RUN, 1.0, DELTA, most=0),
            "most must be a whole number of at least 1",
        ),
        (lambda: probability_after(RUN, 1.1, 1), r"probability must lie in \[0, 1\], got 1.1"),
        (
            lambda: probability_after(RUN, 0.5, 0),
            "records must be a whole number of at least 1, got 0",
        ),
        (
            lambda: certified_poisoning(RUN, 0.4),
            "nothing to certify: top must be above runner_up, got 0.4 and 0.6",
        ),
        (
            lambda: certified_poisoning(RUN, 0.7, 0.4),
            "top and runner_up must add up to at most 1, got 0.7 and 0.4",
        ),
        (lambda: certified_poisoning(RUN, float("nan")), "top must be a number, got nan"),
        (lambda: crossover(RUN, RUN, 0.0), "delta must lie strictly between 0 and 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_examples_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "group-privacy.md"
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 9
    assert result.failed == 0
