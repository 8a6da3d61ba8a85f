"""An average of log-normals: three other ways to compute its curve, all inside the bracket; masses,
errors, order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import special

from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.numerics.rounding import UNIT
from verax.privacy.pairs import one_of_many
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.one_of_many import FINE, LARGEST_SHIFT, one_of_many_pairs

# --- references -----------------------------------------------------------------------------------

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def mills(y):
    return math.sqrt(math.pi / 2.0) * special.erfcx(y / math.sqrt(2.0))


def density(x):
    return np.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi)


def one_option(strike, shift: float, put: bool):
    """E (Y - k)_+ or E (k - Y)_+ for one log-normal factor, to the last digits in the tails too."""
    strike = np.asarray(strike, dtype=float)
    positive = strike > 0.0
    safe = np.where(positive, strike, 1.0)
    first = shift / 2.0 - np.log(safe) / shift
    second = first - shift
    if put:
        tail = second > 0.0
        far = density(first) * (
            mills(np.where(tail, second, 1.0)) - mills(np.where(tail, first, 1.0))
        )
        near = safe * special.ndtr(-second) - special.ndtr(-first)
        return np.where(positive, np.maximum(np.where(tail, far, near), 0.0), 0.0)
    tail = first < 0.0
    far = density(first) * (
        mills(np.where(tail, -first, 1.0)) - mills(np.where(tail, -second, 1.0))
    )
    return np.where(
        positive,
        np.where(tail, far, special.ndtr(first) - safe * special.ndtr(second)),
        1.0 - strike,
    )


def panels(kink: float, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss points on panels that shrink towards the kink."""
    cuts = {low, high, *np.linspace(low, high, 40).tolist()}
    cuts |= {c for j in range(30) for c in (kink - 2.0**-j, kink + 2.0**-j) if low < c < high}
    ends = np.array(sorted(cuts | ({kink} if low < kink < high else set())))
    middle, half = (ends[1:] + ends[:-1]) / 2.0, np.diff(ends) / 2.0
    return (middle[:, None] + half[:, None] * NODES).reshape(-1), (half[:, None] * WEIGHTS).reshape(
        -1
    )


def option(count: int, strikes, shift: float, put: bool) -> np.ndarray:
    """E (Y_1 + ... + Y_count - k)_+ or its mirror image, by quadrature over all factors but the
    last.
    """
    if count == 1:
        return one_option(strikes, shift, put)
    found = []
    for strike in np.atleast_1d(strikes).tolist():
        if strike <= 0.0:
            found.append(0.0 if put else count - strike)
            continue
        kink = (math.log(strike) + shift * shift / 2.0) / shift
        high = min(kink, 14.0 + shift) if put else 14.0 + shift
        x, weight = panels(kink, min(-14.0, high - 10.0), high)
        rest = option(count - 1, strike - np.exp(shift * x - shift * shift / 2.0), shift, put)
        found.append(float(weight * density(x) @ rest))
    return np.array(found)


def by_quadrature(count: int, shift: float, epsilon: float, put: bool) -> float:
    a = math.exp(epsilon)
    strike = count / a if put else count * a
    return float(option(count, [strike], shift, put)[0]) / count * (a if put else 1.0)


def laplace(count: int, shift: float, strike: float) -> float:
    """E (k - sum of Y)_+ as an inverse Laplace transform, the score's contour turned so that
    nothing oscillates.
    """
    x = np.arange(-12.0, 12.0, 0.02)

    def log_transform(s: np.ndarray) -> np.ndarray:
        turn = np.minimum(np.angle(s) / shift, 1.5)[:, None]
        z = x - 1j * turn
        values = np.exp(-z * z / 2.0 - s[:, None] * np.exp(shift * z - shift * shift / 2.0))
        return np.log(values.sum(axis=1) * 0.02 / math.sqrt(2.0 * math.pi))

    line = np.exp(np.linspace(math.log(1e-2 / strike), math.log(1e5 / strike), 100))
    centre = line[
        np.argmin(line * strike + count * log_transform(line + 0j).real - 2.0 * np.log(line))
    ]
    total, first, top = 0.0, 0, 0.0
    while True:
        s = centre + 1j * centre / 6.0 * np.arange(first, first + 256)
        values = np.exp(s * strike + count * log_transform(s)) / (s * s)
        total += float(values.real.sum()) - (0.5 * float(values[0].real) if first == 0 else 0.0)
        top, first = max(top, float(np.abs(values).max())), first + 256
        if float(np.abs(values).max()) < 1e-17 * top or first > 20_000:
            return total * centre / 6.0 / math.pi


def epsilon_at(table: DiscretePair, share: float) -> float:
    """Where the table's upper bound is this share of what it is at 0."""
    low, high = 0.0, 200.0
    delta = share * table.delta(0.0)[1]
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if table.delta(middle)[1] > delta else (low, middle)
    return low


def curves(
    count: int, shift: float, put: bool, fine: float = FINE
) -> tuple[DiscretePair, DiscretePair]:
    upper, lower = one_of_many_pairs(count, shift, fine)
    return (upper.reverse(), lower.reverse()) if put else (upper, lower)


# --- inside the bracket ---------------------------------------------------------------------------


@pytest.mark.parametrize("put", [False, True], ids=["remove", "add"])
@pytest.mark.parametrize("shift", [0.01, 0.05, 0.5, 1.0, 3.0, 8.0, 11.9])
def test_two_rounds_by_quadrature(shift, put):
    upper, lower = curves(2, shift, put)
    for share in (1.0, 0.5, 0.1, 1e-3, 1e-6, 1e-9, 1e-12, 1e-20):
        epsilon = epsilon_at(upper, share)
        truth = by_quadrature(2, shift, epsilon, put)
        low, high = lower.delta(epsilon)[0], upper.delta(epsilon)[1]
        assert low <= truth * (1.0 + 1e-10), share
        assert truth * (1.0 - 1e-10) <= high, share
        assert high - low <= 0.4 * truth


@pytest.mark.parametrize(
    ("shift", "share", "put"),
    [(0.5, 1e-5, False), (0.5, 1e-9, True), (2.0, 1e-2, False), (5.0, 1e-4, True)],
)
def test_three_rounds_by_quadrature(shift, share, put):
    upper, lower = curves(3, shift, put)
    epsilon = epsilon_at(upper, share)
    truth = by_quadrature(3, shift, epsilon, put)
    assert lower.delta(epsilon)[0] <= truth * (1.0 + 1e-9)
    assert truth * (1.0 - 1e-9) <= upper.delta(epsilon)[1]
    assert upper.delta(epsilon)[1] <= 1.1 * truth


@pytest.mark.parametrize(
    ("count", "shift"),
    [(10, 0.5), (100, 0.05), (100, 1.0), (511, 2.5), (1023, 0.7), (10**6, 0.2)],
)
def test_many_rounds_by_laplace_transform(count, shift):
    """Absent against present to many digits; present against absent as a difference of numbers near
    1.
    """
    upper, lower = curves(count, shift, put=True)
    for share in (0.3, 1e-4, 1e-10):
        epsilon = epsilon_at(upper, share)
        truth = laplace(count, shift, count / math.exp(epsilon)) * math.exp(epsilon) / count
        tolerance = 1e-8 + 1e-15 * count
        assert lower.delta(epsilon)[0] <= truth * (1.0 + tolerance), share
        assert truth * (1.0 - tolerance) <= upper.delta(epsilon)[1], share
        assert upper.delta(epsilon)[1] <= 1.3 * truth
    upper, lower = curves(count, shift, put=False)
    for share in (0.3, 1e-2, 1e-4):
        epsilon = epsilon_at(upper, share)
        if epsilon > 1.0:
            continue
        a = math.exp(epsilon)
        truth, lost = laplace(count, shift, count * a) / count + 1.0 - a, 1e-13 + 4e-16 * count
        assert lower.delta(epsilon)[0] <= truth + lost, share
        assert truth - lost <= upper.delta(epsilon)[1], share
        assert upper.delta(epsilon)[1] <= 1.05 * truth + lost


def test_the_two_references_agree():
    """The quadrature and the Laplace transform share no line, and give the same digits."""
    for shift, epsilon in ((0.5, 1.0), (0.7, 0.3)):
        a = math.exp(epsilon)
        assert laplace(2, shift, 2.0 / a) * a / 2.0 == pytest.approx(
            by_quadrature(2, shift, epsilon, True), rel=1e-10
        )
        assert laplace(2, shift, 2.0 * a) / 2.0 + 1.0 - a == pytest.approx(
            by_quadrature(2, shift, epsilon, False), abs=1e-13
        )


@pytest.mark.parametrize("shift", [0.1, 1.0, 4.0])
def test_one_round_is_gaussian(shift):
    upper, lower = one_of_many_pairs(1, shift)
    for table, side in ((upper, 1), (lower, 0), (upper.reverse(), 1), (lower.reverse(), 0)):
        for epsilon in (0.0, 0.3, 2.0, 7.0):
            truth = gaussian_delta(shift, epsilon)
            assert (table.delta(epsilon)[side] - truth) * (1 if side else -1) >= -1e-12 * truth
            assert table.delta(epsilon)[side] == pytest.approx(truth, rel=0.05, abs=1e-20)


# --- masses and errors ----------------------------------------------------------------------------

CASES = [(2, 0.01), (7, 0.05), (100, 0.05), (100, 8.0), (9, 11.9), (4097, 0.3), (10**6, 0.001)]


@pytest.mark.parametrize(("count", "shift"), CASES)
def test_total_masses(count, shift):
    """Above P and Q have all their mass or a little more, below all of it or a little less; the
    tails cost nothing.
    """
    upper, lower = one_of_many_pairs(count, shift)
    slack = 1e-11 * (10 + count)
    for table, sign in ((upper, 1.0), (lower, -1.0)):
        for total in (float(table.p.sum()) + table.infinite, float(table.q.sum()) + table.missing):
            assert -1e-15 * count <= sign * (total - 1.0) <= slack
        assert 0.0 <= table.error < 1e-9
        assert (np.diff(table.loss_values) >= 0.0).all()
    assert 0.0 < upper.infinite < 1e-35
    assert 0.0 < upper.missing < 1e-20
    assert lower.infinite == lower.missing == 0.0


def test_rounding_of_a_million_products_is_charged_to_the_masses():
    """A unit of round-off for each of a million factors at least: above there is that much more,
    below less.
    """
    upper, lower = one_of_many_pairs(10**6, 0.5)
    assert upper.q.sum() - 1.0 > 10**6 * UNIT
    assert 1.0 - lower.q.sum() > 10**6 * UNIT


@pytest.mark.parametrize("shift", [0.01, 1.0, 8.0, LARGEST_SHIFT])
def test_one_factor_is_within_its_stated_errors(shift):
    """Masses and means of the cells of one factor, against 40 digits."""
    pmf = one_of_many._single_factor(shift, 0.2, 0.1 * shift, spread=False)
    grid = one_of_many._grid_points(
        -shift * shift / 2.0 - math.sqrt(184.0) * shift,
        shift * shift / 2.0 + math.sqrt(184.0) * shift,
        -shift * shift / 2.0,
        shift,
        0.2,
        0.1 * shift,
    )
    with mpmath.workdps(40):
        u = mpmath.mpf(shift)
        ends = [
            mpmath.mpf("-inf"),
            *(mpmath.mpf(g) / u + u / 2 for g in grid.tolist()),
            mpmath.mpf("inf"),
        ]

        def between(a, b):
            return mpmath.ncdf(b) - mpmath.ncdf(a) if a < 0 else mpmath.ncdf(-a) - mpmath.ncdf(-b)

        assert len(pmf.q) == len(ends) - 1
        for i in range(0, len(pmf.q), max(len(pmf.q) // 60, 1)):
            q, p = between(ends[i], ends[i + 1]), between(ends[i] - u, ends[i + 1] - u)
            assert abs(mpmath.log(mpmath.mpf(float(pmf.q[i])) / q)) <= pmf.mass_error, i
            # a cell end that is off by a rounding moves its mean
            assert (
                abs(mpmath.log(mpmath.mpf(float(pmf.places[i])) * q / p)) <= 2.0 * pmf.place_error
            ), i


def test_little_noise_and_many_rounds_do_not_leave_the_range_of_doubles():
    with np.errstate(all="raise", under="ignore"):
        for count in (2, 3, 200):
            upper, lower = one_of_many_pairs(count, LARGEST_SHIFT, 0.06)
            for table in (upper, lower, upper.reverse(), lower.reverse()):
                low, high = table.delta(20.0)
                assert 0.0 <= low <= high <= 1.0
            assert upper.delta(20.0)[1] == pytest.approx(lower.delta(20.0)[0], rel=0.05)


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("put", [False, True], ids=["remove", "add"])
def test_more_rounds_hide_better_and_larger_shifts_worse(put):
    counts, shifts = (1, 2, 3, 5, 8, 30, 31, 100, 1000), (0.1, 0.3, 1.0, 3.0, 9.0)
    for shift in (0.3, 3.0):
        tables = [curves(count, shift, put, 0.1) for count in counts]
        for (upper, _), (_, lower) in pairwise(tables):
            assert all(
                lower.delta(epsilon)[0] <= upper.delta(epsilon)[1]
                for epsilon in (0.0, 0.05, 0.5, 2.0)
            )
        assert tables[-1][0].delta(0.1)[1] < 0.5 * tables[0][1].delta(0.1)[0]
    for count in (2, 100):
        tables = [curves(count, shift, put, 0.1) for shift in shifts]
        for (_, lower), (upper, _) in pairwise(tables):
            assert all(
                lower.delta(epsilon)[0] <= upper.delta(epsilon)[1]
                for epsilon in (0.0, 0.05, 0.5, 2.0)
            )
        assert tables[0][0].delta(0.1)[1] < 0.5 * tables[-1][1].delta(0.1)[0]


def test_a_finer_grid_gives_a_narrower_bracket_around_the_same_value():
    coarse, fine = one_of_many_pairs(50, 1.0, 0.16), one_of_many_pairs(50, 1.0, 0.04)
    for epsilon in (0.1, 0.5, 1.0):
        (a, b), (c, d) = (
            (pair[1].delta(epsilon)[0], pair[0].delta(epsilon)[1]) for pair in (coarse, fine)
        )
        assert a <= c <= d <= b
        assert d - c < 0.25 * (b - a)


@pytest.mark.parametrize("spread", [True, False])
def test_a_law_with_itself_is_no_other_than_with_a_copy_of_itself(spread):
    """Half of the sums are taken double instead of twice; the length is no multiple of the rows
    worked on at once.
    """
    pmf = one_of_many._average(3, 0.8, 0.2, spread)
    assert len(pmf.q) > one_of_many._ROWS
    assert len(pmf.q) % one_of_many._ROWS
    grid = one_of_many._grid(pmf, pmf, 0.5, 0.2, 0.1, one_of_many.TAIL)
    one, two = (
        one_of_many._convolve(pmf, other, 0.5, grid, spread) for other in (pmf, replace(pmf))
    )
    np.testing.assert_allclose(one.q, two.q, rtol=1e-12)
    np.testing.assert_allclose(one.places, two.places, rtol=1e-12)
