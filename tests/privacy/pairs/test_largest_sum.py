"""The largest batch sum as an attack on shuffling: thresholds in closed form, printed values, two
epochs by hand.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from verax import Batch, Deterministic, Mechanism, Mixed, Shuffle
from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.numerics.rounding import LARGEST_SUM_MASS
from verax.privacy.pairs.largest_sum import _log_masses, largest_sum
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import Composition


def event(noise: float, batches: int, threshold: float) -> tuple[float, float]:
    """P and Q of {max_t w_t >= c} ("how private is DP-SGD", theorem 4.2), c in units of the clip
    norm.
    """
    # in logarithms: powers of nearly 1 lose their digits
    rest = (batches - 1) * special.log_ndtr(threshold / noise)
    p, q = (
        -math.expm1(special.log_ndtr((threshold - shift) / noise) + rest) for shift in (2.0, 1.0)
    )
    return p, q


def shuffle(noise: float, batches: int, **kwargs):
    return Mechanism(Shuffle(batches=batches), noise_multiplier=noise, **kwargs).guarantee()


# --- printed values -------------------------------------------------------------------------------

# noise, batches, epsilon, lower bound on delta that one threshold gives
DELTAS = [
    (0.4, 10000, 4.0, 0.2260),
    (0.4, 10000, 12.0, 7.47e-5),
    (0.8, 1000, 1.0, 0.01794),
    (0.8, 1000, 4.0, 1.5956e-4),
    (1.0, 1000, 4.0, 4.380e-7),
]


@pytest.mark.parametrize(("noise", "batches", "epsilon", "printed"), DELTAS)
def test_reference_deltas(noise, batches, epsilon, printed):
    """All thresholds together see at least as much as the best one, and not much more."""
    bracket = shuffle(noise, batches).delta(epsilon)
    assert printed * (1.0 - 5e-4) <= bracket.lower <= 1.01 * printed
    assert bracket.upper == pytest.approx(gaussian_delta(1.0 / noise, epsilon), rel=1e-12)


def test_reference_epsilons():
    low = shuffle(0.5, 10000).epsilon(1e-6)
    assert 10.994 <= low.lower < 10.996
    assert low.upper == pytest.approx(10.997, abs=6e-4)
    high = shuffle(0.7, 1000).epsilon(1e-5)
    assert 6.5285 <= high.lower < 6.531
    assert high.upper == pytest.approx(6.6525, abs=6e-5)


def test_erratum_the_paper_prints_four_times_too_much_at_noise_one():
    """ "How private is DP-SGD" prints delta(1) >= .004 for 1000 batches; its own formula gives
    .000999.
    """
    best = max(
        p - math.e * q for p, q in (event(1.0, 1000, c / 1000.0) for c in range(-3000, 12000))
    )
    assert best == pytest.approx(0.000999, abs=6e-7)
    bound = largest_sum(1000, 2.0, 1.0).delta(1.0)[0]
    assert bound == pytest.approx(best, rel=1e-3)


# --- the table ------------------------------------------------------------------------------------


@given(st.floats(0.4, 3.0), st.integers(1, 20000), st.floats(0.0, 6.0))
@settings(max_examples=30)
def test_above_every_threshold_and_below_fixed_batches(noise, batches, epsilon):
    table, fixed = (
        largest_sum(batches, 2.0 / noise, 1.0 / noise),
        gaussian_delta(1.0 / noise, epsilon),
    )
    there, back = table.delta(epsilon)[0], table.reverse().delta(epsilon)[0]
    factor = math.exp(epsilon)
    for c in np.linspace(-2.0, 8.0, 21).tolist():
        p, q = event(noise, batches, c)
        assert there >= (p - factor * q) * (1.0 - 1e-6) - 1e-5 * p - 1e-14 * factor
        assert back >= ((1.0 - q) - factor * (1.0 - p)) * (1.0 - 1e-6) - 1e-5
    assert there <= fixed * (1.0 + 1e-9)
    assert back <= fixed * (1.0 + 1e-9)


@pytest.mark.parametrize("batches", [1, 7, 10**4, 10**9])
@pytest.mark.parametrize("shift", [0.0, 1.0, 30.0])
def test_masses_are_within_the_stated_error(batches, shift):
    """Against 420 digits, which is what it takes to subtract one from another in the tails."""
    c = np.arange(-9.0, 30.0 + 14.0 + math.sqrt(2.0 * math.log(batches)), 0.004)
    logs = _log_masses(c, shift, batches)
    known = np.flatnonzero(logs > -900.0)
    with mpmath.workdps(420):

        def below(x: float) -> mpmath.mpf:
            moved, plain = mpmath.ncdf(mpmath.mpf(x) - shift), mpmath.ncdf(mpmath.mpf(x))
            return moved * mpmath.exp((batches - 1) * mpmath.log(plain))

        for i in known[np.linspace(0, len(known) - 1, 15).astype(int)].tolist():
            exact = below(c[i + 1]) - below(c[i])
            assert abs(mpmath.mpf(float(logs[i])) - mpmath.log(exact)) <= 0.1 * LARGEST_SUM_MASS


def test_nothing_is_made_up():
    for batches, present, absent in (
        (1, 2.0, 1.0),
        (1000, 5.0, 2.5),
        (10**6, 1.0, 0.0),
        (3, 0.01, 0.0),
    ):
        table = largest_sum(batches, present, absent)
        assert 1.0 - 1e-6 <= table.p.sum() <= 1.0 + 1e-9
        assert 1.0 - 1e-6 <= table.q.sum() <= 1.0 + 1e-9
        assert table.infinite == table.missing == 0.0


def test_one_batch_is_a_gaussian_mechanism():
    table = largest_sum(1, 2.0, 1.0)
    for epsilon in (0.0, 1.0, 4.0):
        truth = gaussian_delta(1.0, epsilon)
        assert table.delta(epsilon)[0] <= truth
        assert table.delta(epsilon)[0] == pytest.approx(truth, rel=1e-4)


def test_shifts_too_far_apart_for_doubles_are_told_apart():
    assert largest_sum(100, 400.0, 200.0).delta(0.0)[0] == pytest.approx(1.0)
    for sampler in (Shuffle(100), Shuffle(100, epochs=3)):
        bracket = Mechanism(sampler, 0.005).guarantee().epsilon(1e-6)
        assert 0.99 * bracket.upper <= bracket.lower <= bracket.upper < math.inf


# --- epochs ---------------------------------------------------------------------------------------


def test_two_epochs_written_out():
    table = largest_sum(20, 2.0, 1.0)
    # coarser bins
    p, q = (pmf[: 7 * (len(pmf) // 7)].reshape(-1, 7).sum(axis=1) for pmf in (table.p, table.q))
    pp, qq = np.multiply.outer(p, p).reshape(-1), np.multiply.outer(q, q).reshape(-1)
    both = Composition([(PricedRound(table), 2)])
    for epsilon in (0.0, 1.0, 3.0):
        truth = float(np.maximum(pp - math.exp(epsilon) * qq, 0.0).sum())
        low, high = both.delta(epsilon, 1e-3)
        assert low <= high
        assert truth <= high * (1.0 + 1e-6)
        assert low == pytest.approx(truth, rel=5e-3)


def test_more_epochs_cost_more_and_stay_below_fixed_batches():
    before = 0.0
    for epochs in (1, 2, 8):
        bracket = Mechanism(Shuffle(100, epochs=epochs), 1.0).guarantee().delta(1.0)
        assert before < bracket.lower <= bracket.upper
        assert bracket.upper == pytest.approx(
            Mechanism(Deterministic(100, epochs=epochs), 1.0).guarantee().delta(1.0).upper
        )
        before = bracket.lower


def test_a_persistent_order_is_one_epoch_with_less_noise():
    kept = Mechanism(Shuffle(1000, epochs=4, reshuffle=False), 2.0).guarantee()
    once = Mechanism(Shuffle(1000), 1.0).guarantee()
    for epsilon in (0.5, 2.0):
        assert kept.delta(epsilon).lower == pytest.approx(once.delta(epsilon).lower, rel=1e-9)
        assert kept.delta(epsilon).upper == pytest.approx(once.delta(epsilon).upper, rel=1e-9)


@pytest.mark.parametrize("clipping", [Batch(), Mixed(groups=4)])
def test_other_clippings_are_ordered(clipping):
    bracket = shuffle(2.0, 100, clipping=clipping).delta(1.0)
    assert 0.0 < bracket.lower <= bracket.upper
    assert bracket.upper == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-12)
