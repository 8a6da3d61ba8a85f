"""One round's pairs: tail masses, losses and their inverses, and the exact curve, against 40-digit
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.numerics.distributions import binomial_pmf
from verax.privacy.numerics.rounding import UNIT
from verax.privacy.pairs.gaussian_mixture import Mixture, MixturePair, log_interval

# --- masses of cells ------------------------------------------------------------------------------


def exact_log_mass(a: float, b: float) -> mpmath.mpf:
    """log of N(0,1) between a < b, with digits to spare for the difference."""
    with mpmath.workdps(60):
        if a > 0:
            a, b = -b, -a  # the left tail has no cancellation against 1
        low = mpmath.mpf(0) if a == -math.inf else mpmath.ncdf(mpmath.mpf(a))
        high = mpmath.mpf(1) if b == math.inf else mpmath.ncdf(mpmath.mpf(b))
        return mpmath.log(high - low)


def check_cells(boundaries: np.ndarray) -> np.ndarray:
    log_mass, error = log_interval(boundaries)
    for i in range(len(boundaries) - 1):
        truth = exact_log_mass(float(boundaries[i]), float(boundaries[i + 1]))
        miss = float(abs(mpmath.mpf(float(log_mass[i])) - truth))
        assert miss <= error[i] * (1.0 + error[i]), (
            boundaries[i : i + 2],
            log_mass[i],
            float(truth),
            error[i],
        )
    return error


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cells_out_to_37_sigma_in_either_tail(sign):
    boundaries = np.sort(sign * np.concatenate([np.linspace(0.0, 37.0, 75), [0.013, 36.99]]))
    error = check_cells(boundaries)
    assert error.max() < 1e-10


def test_fine_cells_keep_their_digits_and_know_how_many():
    rng = np.random.default_rng(2)
    for centre in (-36.5, -8.2, -1.0, 0.0, 0.4, 3.3, 30.1):
        for width in (1e-9, 1e-6, 1e-3, 0.1):
            error = check_cells(centre + width * np.sort(rng.uniform(-1.0, 1.0, 4)))
            assert error.max() < 1e-10 / width


def test_infinite_ends_and_cells_that_straddle_zero():
    check_cells(np.array([-np.inf, -20.0, -1e-3, 2e-3, 5.0, np.inf]))
    check_cells(np.array([-np.inf, np.inf]))
    check_cells(np.array([12.0, np.inf]))
    check_cells(np.array([-np.inf, -12.0]))


def test_empty_cells_have_no_mass():
    log_mass, error = log_interval(np.array([1.0, 1.0, np.inf, np.inf]))
    assert log_mass[0] == -np.inf
    assert log_mass[2] == -np.inf
    assert error[0] == error[2] == 0.0


@given(st.floats(-37.0, 37.0), st.floats(-13.0, 1.0).map(lambda e: 10.0**e))
def test_any_cell_is_within_its_own_error_bound(left, width):
    right = left + width
    if right > left:
        check_cells(np.array([left, right]))


# --- losses and their inverses --------------------------------------------------------------------


def mixture(weights: Sequence[float], shifts: Sequence[float]) -> Mixture:
    return Mixture(tuple(math.log(w) for w in weights), tuple(float(s) for s in shifts))


PAIRS = {
    "gaussian": MixturePair.gaussian(1.3),
    "subsampled": MixturePair.subsampled(0.01, 1.0),
    "subsampled, large shift": MixturePair.subsampled(1e-4, 2.5),
    "subsampled, tiny rate": MixturePair.subsampled(1e-12, 1.5),
    "subsampled, high rate": MixturePair.subsampled(0.9, 0.3),
    "many components": MixturePair(mixture([0.5, 0.3, 0.15, 0.05], [0.0, 0.7, 1.4, 2.1])),
    "two-sided": MixturePair(mixture([0.9, 0.1], [0.0, 1.0]), mixture([0.9, 0.1], [0.0, 1.0])),
    "two-sided, uneven": MixturePair(
        mixture([0.7, 0.2, 0.1], [0.0, 1.0, 2.0]), mixture([0.4, 0.6], [0.2, 0.9])
    ),
}
ALL = {**PAIRS, **{f"{name}, reversed": pair.reverse() for name, pair in PAIRS.items()}}

log_weights = st.floats(-300.0, math.log10(0.99))
shifts = st.floats(-3.0, 2.0).map(lambda e: 10.0**e)


@st.composite
def pairs(draw: st.DrawFn) -> MixturePair:
    """Subsampled, many-component and two-sided pairs, weights down to 1e-300, shifts up to 100."""
    kind = draw(st.sampled_from(["subsampled", "many", "two-sided"]))
    if kind == "subsampled":
        pair = MixturePair.subsampled(10.0 ** draw(log_weights), draw(shifts))
    else:
        sides = [_side(draw) for _ in range(1 if kind == "many" else 2)]
        pair = MixturePair(*sides)
    return pair.reverse() if draw(st.booleans()) else pair


def _side(draw: st.DrawFn) -> Mixture:
    count = draw(st.integers(1, 4))
    rest = np.array([10.0 ** draw(log_weights) for _ in range(count)]) / count
    moved = np.cumsum([draw(shifts) for _ in range(count)])
    moved *= min(1.0, 100.0 / moved[-1])
    logs = [math.log1p(-float(rest.sum())), *np.log(rest).tolist()]
    return Mixture(tuple(logs), (0.0, *moved.tolist()))


@given(pairs(), st.floats(-12.0, 12.0))
def test_the_loss_undoes_its_inverse(pair, place):
    """At every loss the pair can have; |x| times slope times round-off is what rounding x costs at
    least.
    """
    x = np.array([place + (pair.max_shift if place > 0.0 else 0.0)])
    target = pair.loss(x)
    assert np.isfinite(target).all()
    back = pair.inverse(target)
    if np.isinf(back[0]):  # the loss is at the end of its range, to the last digit
        end = pair.infimum if back[0] < 0.0 else pair.supremum
        # digits that log weights carry
        known = 64.0 + max(map(abs, pair.up.log_weights + pair.down.log_weights))
        assert abs(float(target[0]) - end) <= known * UNIT * abs(end)
        return
    slack = (
        64.0
        * UNIT
        * (1.0 + abs(float(target[0])) + float(pair.slope(back)[0]) * (1.0 + abs(float(back[0]))))
    )
    assert abs(float(pair.loss(back)[0]) - float(target[0])) <= slack


@given(pairs())
def test_the_loss_increases_between_its_limits_and_mirrors(pair):
    x = np.linspace(-20.0, 20.0, 41) + np.sign(np.linspace(-1, 1, 41)) * pair.max_shift
    losses = pair.loss(x)
    assert (np.diff(losses) >= -8.0 * UNIT * (1.0 + np.abs(losses[1:]))).all()
    assert (losses >= pair.infimum - 8.0 * UNIT * (1.0 + abs(losses))).all()
    assert (losses <= pair.supremum + 8.0 * UNIT * (1.0 + abs(losses))).all()
    assert pair.reverse().loss(-x) == pytest.approx(-losses, rel=1e-13, abs=1e-300)
    assert pair.reverse().infimum == -pair.supremum


@pytest.mark.parametrize("pair", ALL.values(), ids=ALL)
def test_loss_against_high_precision(pair):
    for x in (-15.0, -3.0, 0.0, 0.7, 4.0, 25.0):
        with mpmath.workdps(40):
            truth = mpmath.log(_density(pair.up, x, 1) / _density(pair.down, x, -1))
        assert float(pair.loss(np.array([x]))[0]) == pytest.approx(
            float(truth), rel=1e-13, abs=1e-17
        )


@pytest.mark.parametrize("pair", ALL.values(), ids=ALL)
def test_slope_is_the_derivative_of_the_loss(pair):
    x, h = np.linspace(-5.0, 8.0, 14), 1e-5
    numeric = (pair.loss(x + h) - pair.loss(x - h)) / (2 * h)
    assert pair.slope(x) == pytest.approx(numeric, rel=1e-6, abs=1e-10)


def test_outside_the_range_the_inverse_is_infinite():
    pair = MixturePair.subsampled(0.25, 1.0)
    assert pair.infimum == pytest.approx(math.log(0.75), rel=1e-15)
    assert pair.supremum == math.inf
    assert pair.inverse(np.array([pair.infimum, -1.0, 1e4])).tolist()[:2] == [-math.inf, -math.inf]
    reverse = pair.reverse()
    assert reverse.inverse(np.array([reverse.supremum, 1.0])).tolist() == [math.inf, math.inf]


def test_reversing_twice_changes_nothing():
    for pair in ALL.values():
        assert pair.reverse().reverse() == pair
        assert hash(pair.reverse().reverse()) == hash(pair)


# --- the exact curve ------------------------------------------------------------------------------


def _density(side: Mixture, x: float | mpmath.mpf, sign: int) -> mpmath.mpf:
    logs, moved = side.log_weights, side.shifts
    weights = [mpmath.exp(mpmath.mpf(w)) for w in logs]
    if len(weights) > 1 and moved[0] == 0.0:  # what the logarithm of nearly 1 cannot say
        weights[0] = 1 - mpmath.fsum(weights[1:])
    return mpmath.fsum(
        w * mpmath.npdf(mpmath.mpf(x) - sign * m) for w, m in zip(weights, moved, strict=True)
    )


def quadrature(pair: MixturePair, epsilon: float) -> mpmath.mpf:
    """The integral of max(P - e^eps Q, 0), which does not presume that the event is a half line."""
    with mpmath.workdps(30):
        a = mpmath.exp(mpmath.mpf(epsilon))

        def positive_part(x: mpmath.mpf) -> mpmath.mpf:
            return max(_density(pair.up, x, 1) - a * _density(pair.down, x, -1), mpmath.mpf(0))

        grid = [mpmath.mpf(v) for v in np.linspace(-16.0, 20.0, 37).tolist()]
        signs = [positive_part(x) > 0 for x in grid]
        kinks = []
        for left, right, sl, sr in zip(grid, grid[1:], signs, signs[1:], strict=False):
            if sl != sr:
                low, high = (left, right) if sr else (right, left)  # positive at high
                for _ in range(100):
                    middle = (low + high) / 2
                    low, high = (low, middle) if positive_part(middle) > 0 else (middle, high)
                kinks.append(high)
        return mpmath.quad(positive_part, sorted(grid[::3] + kinks + [grid[-1]]), maxdegree=7)


@pytest.mark.parametrize("pair", ALL.values(), ids=ALL)
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_delta_brackets_the_integral(pair, epsilon):
    lower, upper = pair.delta(epsilon)
    truth = float(quadrature(pair, epsilon))
    assert lower <= truth * (1.0 + 1e-15) + 1e-25
    assert truth <= upper * (1.0 + 1e-15) + 1e-25
    assert upper - lower <= 1e-9 * upper + 3e-14  # at a tiny rate the loss itself is near round-off


@given(pairs(), st.floats(0.0, 5.0))
def test_delta_is_ordered_and_a_probability(pair, epsilon):
    lower, upper = pair.delta(epsilon)
    assert 0.0 <= lower <= upper <= 1.0


@given(shifts, st.floats(0.0, 3.0))
def test_a_single_component_is_the_gaussian_mechanism(shift, epsilon):
    one = MixturePair(Mixture((0.0,), (shift,)))
    assert one == MixturePair.gaussian(shift)
    assert one == MixturePair.subsampled(1.0, shift)
    assert one.is_gaussian
    lower, upper = one.delta(epsilon)
    assert lower <= gaussian_delta(shift, epsilon, 1)
    assert gaussian_delta(shift, epsilon, -1) <= upper
    assert upper == pytest.approx(gaussian_delta(shift, epsilon), rel=1e-6, abs=1e-14)


def test_a_split_component_changes_nothing():
    """The same mixture written with a component cut in two, which takes another path through the
    code.
    """
    whole, cut = (
        MixturePair.subsampled(0.2, 1.0),
        MixturePair(mixture([0.8, 0.15, 0.05], [0.0, 1.0, 1.0])),
    )
    x = np.linspace(-8.0, 9.0, 18)
    assert cut.loss(x) == pytest.approx(whole.loss(x), rel=1e-13)
    for epsilon in (0.0, 0.1, 1.0):
        assert cut.delta(epsilon) == pytest.approx(whole.delta(epsilon), rel=1e-9)


def test_both_directions_agree_by_symmetry():
    """D_a(P||Q) = 1 - a + a D_{1/a}(Q||P)."""
    for pair in PAIRS.values():
        for epsilon in (0.05, 0.5):
            forward, backward = pair.delta(epsilon)[1], pair.reverse().delta(-epsilon)[1]
            assert backward == pytest.approx(
                -math.expm1(-epsilon) + math.exp(-epsilon) * forward, rel=1e-9
            )


def test_lost_weight_counts_against_the_upper_bound_only():
    lost = 1e-7
    side = Mixture((math.log(0.9 - lost), math.log(0.1)), (0.0, 1.0), lost=lost)
    whole = MixturePair.subsampled(0.1, 1.0)
    for epsilon in (0.0, 1.0, 5.0):
        lower, upper = MixturePair(side).delta(epsilon)
        assert upper >= whole.delta(epsilon)[0]
        assert upper - lower == pytest.approx(lost, rel=1e-3)


@pytest.mark.parametrize("pair", ALL.values(), ids=ALL)
def test_cells_add_up_and_their_losses_are_means(pair):
    boundaries = np.concatenate([[-np.inf], np.linspace(-6.0, 8.0, 200), [np.inf]])
    cells = pair.cells(boundaries)
    assert np.exp(cells.log_p).sum() == pytest.approx(1.0, rel=1e-12)
    assert np.exp(cells.log_p - cells.loss).sum() == pytest.approx(1.0, rel=1e-12)
    ends = pair.loss(boundaries[1:-1])
    inner = cells.loss[1:-1]
    slack = 4.0 * cells.error[1:-1]
    assert (inner >= ends[:-1] - slack).all()
    assert (inner <= ends[1:] + slack).all()


def test_cells_worked_on_in_blocks_are_the_same(monkeypatch):
    pair = PAIRS["many components"]
    boundaries = np.concatenate([[-np.inf], np.linspace(-6.0, 8.0, 101), [np.inf]])
    whole = pair.cells(boundaries)
    monkeypatch.setattr("verax.privacy.pairs.gaussian_mixture._BLOCK", 50)
    blocks = pair.cells(boundaries)
    for name in ("log_p", "loss", "error"):
        assert getattr(blocks, name) == pytest.approx(getattr(whole, name), rel=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_leaving_out_faint_components_changes_no_digit(sign):
    """Ten thousand records, about 300 components: all of them, added up one by one, against the few
    that matter.
    """
    weights = binomial_pmf(10_000, 0.01)
    keep = weights > 1e-60
    mixture = Mixture(
        tuple(np.log(weights[keep]).tolist()), tuple(np.flatnonzero(keep).astype(float).tolist())
    )
    x = sign * np.linspace(-20.0, 300.0, 1_111)
    logs = mixture.columns[0] + mixture.columns[1] * x - mixture.columns[1] ** 2 / 2.0
    assert mixture.log_likelihood(x) == pytest.approx(
        special.logsumexp(logs, axis=0), rel=1e-14, abs=1e-13
    )
    posterior = special.softmax(logs, axis=0)
    assert mixture.mean_shift(x) == pytest.approx(
        (mixture.columns[1] * posterior).sum(axis=0), rel=1e-12, abs=1e-12
    )
    near = mixture.components_near(100.0, 110.0)
    assert near.stop - near.start < 60


@pytest.mark.parametrize("reverse", [False, True])
def test_cells_of_many_components_are_those_of_all_of_them(reverse):
    weights = binomial_pmf(10_000, 0.01)
    keep = weights > 1e-60
    logs, shifts = np.log(weights[keep]), np.flatnonzero(keep).astype(float)
    pair = MixturePair(Mixture(tuple(logs.tolist()), tuple(shifts.tolist())))
    boundaries = np.concatenate([[-np.inf], np.linspace(-8.0, 260.0, 700), [np.inf]])
    cells = pair.reverse().cells(-boundaries[::-1]) if reverse else pair.cells(boundaries)
    log_p, loss = (
        (cells.log_p[::-1] - cells.loss[::-1], -cells.loss[::-1])
        if reverse
        else (cells.log_p, cells.loss)
    )
    masses = log_interval(boundaries - shifts[:, None])[0]
    exact = special.logsumexp(logs[:, None] + masses, axis=0)
    assert log_p == pytest.approx(exact, rel=1e-11)
    assert loss == pytest.approx(exact - log_interval(boundaries)[0], rel=1e-10, abs=1e-10)
