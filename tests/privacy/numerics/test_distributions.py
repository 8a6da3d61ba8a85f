"""Enclosures of binomial probabilities and tails against exact fractions and 50-digit sums and
integrals.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax.privacy.numerics.distributions import (
    LARGEST,
    Enclosure,
    binomial_at_least,
    binomial_at_most,
    binomial_pmf,
    binomial_probability,
    hypergeometric_pmf,
    log_binomial_probability,
    pmf_error,
    poisson_pmf,
)

COUNTS = [m * 10**e for e in range(13) for m in (1, 2, 5) if m * 10**e <= 10**12]
RATES = [1e-300, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.3, 0.5, 0.705870566236443]
RATES += [0.9, 0.999, 1.0 - 1e-6, 1.0 - 1e-9, 1.0 - 1e-12, 1.0 - 1e-15, 1.0 - 2.0**-53]
PLACES = [-1e3, -40.0, -12.0, -4.0, -1.0, -0.1, 0.0, 0.1, 1.0, 4.0, 12.0, 40.0, 1e3]
SMALLEST = 5e-324


def spread(n: int, q: float) -> float:
    with mpmath.workdps(40):
        return float(mpmath.sqrt(n * mpmath.mpf(q) * (1 - mpmath.mpf(q))))


def thresholds(n: int, q: float) -> list[int]:
    """From deep in the left tail to deep in the right one, and both ends."""
    mean = math.floor(n * Fraction(q))
    places = {mean + math.floor(place * max(spread(n, q), 1.0)) for place in PLACES}
    return sorted({min(max(k, 0), n) for k in places} | {0, 1, n})


Chances = tuple[mpmath.mpf, mpmath.mpf]
"""Of a hit and of a miss."""


def chances(rate: float) -> Chances:
    q = mpmath.mpf(rate)
    return q, 1 - q


def log_probability(n: int, qp: Chances, k: int) -> mpmath.mpf:
    ways = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
    return ways + k * mpmath.log(qp[0]) + (n - k) * mpmath.log(qp[1])


def at_least_by_integral(n: int, qp: Chances, k: int) -> mpmath.mpf:
    """The incomplete beta integral, for k above the mean: its integrand falls from q towards 0."""
    q, p = qp
    slope, bend = (k - 1) / q - (n - k) / p, (k - 1) / q**2 + (n - k) / p**2
    width = min(1 / (abs(slope) + mpmath.sqrt(bend) / 8), q) if k > 1 else q

    def height(x: mpmath.mpf) -> mpmath.mpf:
        t = x * width
        if t >= q:
            return mpmath.mpf(0) if k > 1 else mpmath.exp((n - k) * mpmath.log1p(q / p))
        return mpmath.exp((k - 1) * mpmath.log1p(-t / q) + (n - k) * mpmath.log1p(t / p))

    ends = [mpmath.mpf(0)]
    while ends[-1] < q / width and height(ends[-1]) > mpmath.mpf("1e-40"):
        ends.append(min(ends[-1] + 2, q / width))
    area = mpmath.fsum(
        mpmath.quad(height, [a, b], method="gauss-legendre") for a, b in itertools.pairwise(ends)
    )
    return mpmath.exp(log_probability(n, qp, k)) * k / q * width * area


def at_least_by_sum(n: int, qp: Chances, k: int) -> mpmath.mpf:
    term = total = mpmath.exp(log_probability(n, qp, k))
    odds = qp[0] / qp[1]
    for j in range(k, n):
        term *= (n - j) * odds / (j + 1)
        total += term
        if term < total * mpmath.mpf("1e-45"):
            break
    return total


def at_least(n: int, qp: Chances, k: int) -> mpmath.mpf:
    """P[Bin(n, q) >= k] for k above the mean, by whichever is feasible."""
    if k > n:
        return mpmath.mpf(0)
    return at_least_by_sum(n, qp, k) if n * qp[0] * qp[1] < 1e4 else at_least_by_integral(n, qp, k)


def both_tails(n: int, rate: float, k: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """P[Bin >= k] and P[Bin <= k]."""
    q, p = chances(rate)
    upper = at_least(n, (q, p), k) if k > n * q else 1 - at_least(n, (p, q), n - k + 1)
    lower = at_least(n, (p, q), n - k) if k < n * q else 1 - at_least(n, (q, p), k + 1)
    return upper, lower


def holds(found: Enclosure, truth: mpmath.mpf, width: float) -> bool:
    """Whether the truth is inside and the ends are as near to each other as the documentation
    says.
    """
    narrow = found.upper <= found.lower * (1.0 + width) + 2.0 * SMALLEST or found.upper <= 1e-300
    return narrow and mpmath.mpf(found.lower) <= truth <= mpmath.mpf(found.upper)


def check(n: int, rate: float, k: int) -> None:
    width = 3e-12 + 5e-15 * spread(n, rate)
    with mpmath.workdps(50):
        upper, lower = both_tails(n, rate, k)
        assert holds(binomial_at_least(n, rate, k), upper, width), (n, rate, k)
        assert holds(binomial_at_most(n, rate, k), lower, width), (n, rate, k)
        exact = log_probability(n, chances(rate), k)
        assert holds(binomial_probability(n, rate, k), mpmath.exp(exact), 1e-15), (n, rate, k)
        log = log_binomial_probability(n, rate, k)
        assert log.lower <= exact <= log.upper, (n, rate, k)
        assert log.upper - log.lower <= 3e-16 * abs(log.lower) + 3e-27, (n, rate, k)


SWEEP = [(n, q, k) for n in COUNTS for q in RATES for k in thresholds(n, q)]


@pytest.mark.parametrize("part", range(8))
def test_tails_hold_what_50_digits_say(part):
    """A sample of the sweep below: ten points of each eighth."""
    points = SWEEP[part * len(SWEEP) // 8 : (part + 1) * len(SWEEP) // 8]
    for point in points[part :: len(points) // 10]:
        check(*point)


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_tails_hold_what_50_digits_say_over_the_whole_range(count):
    for point in (point for point in SWEEP if point[0] == count):
        check(*point)


@given(
    st.integers(1, 10**12),
    st.floats(SMALLEST, 1.0, exclude_max=True),
    st.floats(-50.0, 50.0, allow_subnormal=False),
)
@settings(max_examples=15)
def test_tails_hold_for_any_rate(n, rate, place):
    mean = math.floor(n * Fraction(rate))
    check(n, rate, min(max(mean + math.floor(place * max(spread(n, rate), 1.0)), 0), n))


@pytest.mark.parametrize("rate", [0.5, 0.1, 2.0**-53, 1.0 - 2.0**-53, 0.999, 1e-30])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 63, 64, 65])
def test_small_counts_agree_with_exact_fractions(n, rate):
    q = Fraction(rate)
    masses = [math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    for k in range(0, n + 1, max(n // 9, 1)):
        for found, truth in (
            (binomial_at_least(n, rate, k), sum(masses[k:])),
            (binomial_at_most(n, rate, k), sum(masses[: k + 1])),
            (binomial_probability(n, rate, k), masses[k]),
        ):
            assert Fraction(found.lower) <= truth <= Fraction(found.upper)
            assert found.upper <= found.lower * (1.0 + 1e-12) + 2.0 * SMALLEST


def test_the_two_references_agree_with_each_other():
    with mpmath.workdps(60):
        for n, rate, sigmas in itertools.product((10**4, 10**7), (1e-3, 0.3), (0, 6)):
            k = int(n * rate) + 1 + int(sigmas * spread(n, rate))
            one, other = (
                at_least_by_sum(n, chances(rate), k),
                at_least_by_integral(n, chances(rate), k),
            )
            assert abs(one / other - 1) < mpmath.mpf("1e-30"), (n, rate, sigmas)


def test_tails_in_populations_where_libraries_fail():
    assert binomial_at_least(10**9, 0.705870566236443, 705870567).lower == pytest.approx(
        0.499995, abs=1e-6
    )
    assert binomial_at_least(2**31, 0.5, 2**30).lower == pytest.approx(0.5, abs=1e-5)


def test_tails_beyond_the_ends_are_certain():
    assert binomial_at_least(5, 0.3, 0) == binomial_at_most(5, 0.3, 5) == (1.0, 1.0)
    assert binomial_at_least(5, 0.3, 6) == binomial_at_most(5, 0.3, -1) == (0.0, 0.0)
    assert binomial_at_least(5, 1.0, 5) == binomial_at_most(5, 1.0, 5) == (1.0, 1.0)
    assert binomial_at_most(5, 1.0, 4) == binomial_probability(5, 1.0, 4) == (0.0, 0.0)
    assert binomial_probability(5, 1.0, 5) == (1.0, 1.0)
    assert binomial_probability(5, 0.3, 6) == binomial_probability(5, 0.3, -1) == (0.0, 0.0)


def test_more_trials_than_doubles_can_count_say_nothing():
    for tail in (binomial_at_least, binomial_at_most, binomial_probability):
        assert tail(LARGEST + 1, 0.5, LARGEST // 2) == (0.0, 1.0)


@given(st.integers(1, 10**9), st.floats(1e-9, 1.0 - 1e-9), st.integers(0, 10**9))
@settings(max_examples=60)
def test_tails_and_probabilities_add_up(n, rate, k):
    k = min(k, n)
    least, one, most = (
        f(n, rate, k) for f in (binomial_at_least, binomial_probability, binomial_at_most)
    )
    assert least.lower + most.lower - one.upper <= 1.0 + 1e-15
    assert least.upper + most.upper - one.lower >= 1.0 - 1e-15


# --- pmfs -----------------------------------------------------------------------------------------


def agree(pmf: np.ndarray, exact: list[mpmath.mpf]) -> None:
    error = pmf_error(pmf)
    assert len(pmf) == len(exact)
    for found, truth in zip(pmf.tolist(), exact, strict=True):
        if truth > mpmath.mpf("1e-290"):
            assert abs(mpmath.mpf(found) / truth - 1) <= error


def normalised(logs: list[mpmath.mpf]) -> list[mpmath.mpf]:
    top = max(logs)
    total = mpmath.fsum(mpmath.exp(log - top) for log in logs)
    return [mpmath.exp(log - top) / total for log in logs]


@pytest.mark.parametrize("rate", [1e-300, 1e-9, 0.01, 0.5, 0.97, 1.0 - 2.0**-53])
@pytest.mark.parametrize(("trials", "most"), [(1, 1), (40, 40), (700, 700), (10**12, 300)])
def test_binomial_laws_are_as_accurate_as_they_say(trials, most, rate):
    with mpmath.workdps(60):
        logs = [log_probability(trials, chances(rate), k) for k in range(most + 1)]
        agree(binomial_pmf(trials, rate, most), normalised(logs))


@pytest.mark.parametrize(
    ("population", "marked", "drawn"),
    [(5, 2, 2), (50, 40, 30), (60_000, 32, 64), (10**12, 300, 10**11), (2**53, 200, 2**53 - 10**9)],
)
def test_hypergeometric_laws_are_as_accurate_as_they_say(population, marked, drawn):
    def log_ways(n: int, k: int) -> mpmath.mpf:
        return mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)

    with mpmath.workdps(80):
        least = max(0, marked + drawn - population)
        logs = [
            log_ways(marked, k) + log_ways(population - marked, drawn - k)
            for k in range(least, min(marked, drawn) + 1)
        ]
        agree(
            hypergeometric_pmf(population, marked, drawn),
            [mpmath.mpf(0)] * least + normalised(logs),
        )


@pytest.mark.parametrize(
    ("mean", "most"), [(1e-300, 3), (1e-9, 40), (3.7, 60), (500.0, 800), (1e12, 50)]
)
def test_poisson_laws_are_as_accurate_as_they_say(mean, most):
    with mpmath.workdps(60):
        logs = [k * mpmath.log(mpmath.mpf(mean)) - mpmath.loggamma(k + 1) for k in range(most + 1)]
        agree(poisson_pmf(mean, most), normalised(logs))
