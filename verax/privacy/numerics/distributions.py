"""Probabilities and tails of counts, each enclosed between two doubles (docs/proofs.md, section 5).

Libraries' binomial tails lose all their digits in large populations: ``scipy.special.bdtrc`` says
.1511 for P[Bin(10**9, .705870566236443) >= 705870567], which is .499995. So a probability is
computed here from its logarithm in 50 decimal digits, and a tail as that probability times a sum of
products of ratios, all positive, whose rounding errors and remainder are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    localcontext,
)
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import ulps

LARGEST = 2**53
"""Trials up to which doubles count one by one; with more an enclosure says no more than "between 0
and 1".
"""

_DIGITS = Context(
    prec=50,
    rounding=ROUND_HALF_EVEN,
    Emin=MIN_EMIN,
    Emax=MAX_EMAX,
    clamp=0,
    traps=[DivisionByZero, InvalidOperation, Overflow],
)
_EXACT = 64  # factorials below this are written out
_HALF_LOG_TWO_PI = Decimal("0.91893853320467274178032973640561763986139747363778341")
_STIRLING = (  # numerators and denominators of B_2j / (2j (2j - 1))
    (1, -1, 1, -1, 1, -691, 1, -3617, 43867, -174611),
    (12, 360, 1260, 1680, 1188, 360360, 156, 122400, 244188, 125400),
)
_LOG_ERROR = Decimal("1e-27")  # of a log probability: lemma N1 proves 1e-29
# what rounding to 50 digits may add to a number between 0 and 1, or take from it
_LAST_DIGIT = Decimal("1e-49")
_NOTHING = Decimal(-2000)  # the logarithm of less than any double, even times 2**53 terms
_ROUNDINGS = 4.0  # of a product of ratios, with each further ratio
_BLOCKS = (64, 2**12)  # terms of a tail that are added at once: at first, and at most
_REMAINDER = 2.0**-60  # of the sum; what is left out of a tail
_UNDERFLOW = 1e-300  # what products that leave the range of doubles may lose; the sum is at least 1


class Enclosure(NamedTuple):
    """A number is between these two."""

    lower: float
    upper: float


@lru_cache(maxsize=4096)
def binomial_probability(trials: int, rate: float, hits: int) -> Enclosure:
    """P[Bin(trials, rate) = hits]; the ends are neighbouring doubles.

    >>> binomial_probability(2, 0.5, 1)
    Enclosure(lower=0.49..., upper=0.5...)
    """
    if rate >= 1.0 or not 0 <= hits <= trials:
        return _certainty(rate >= 1.0 and hits == trials)
    if trials > LARGEST:
        return Enclosure(0.0, 1.0)
    with localcontext(_DIGITS):
        return _doubles(*_exponentials(_log_probability(trials, rate, hits)))


def log_binomial_probability(trials: int, rate: float, hits: int) -> Enclosure:
    """The logarithm of P[Bin(trials, rate) = hits], for 0 < rate < 1, 0 <= hits <= trials <= 2**53.

    >>> round(log_binomial_probability(10**12, 0.5, 5 * 10**11).upper, 9)
    -14.041301911
    """
    with localcontext(_DIGITS):
        log = _log_probability(trials, rate, hits)
        return Enclosure(_down(log - _LOG_ERROR), min(_up(log + _LOG_ERROR), 0.0))


@lru_cache(maxsize=4096)
def binomial_at_least(trials: int, rate: float, hits: int) -> Enclosure:
    """P[Bin(trials, rate) >= hits].

    The ends are within a factor 1 + 3e-12 + 5e-15 sqrt(trials rate (1 - rate)).

    >>> binomial_at_least(10**9, 0.705870566236443, 705870567)
    Enclosure(lower=0.49999..., upper=0.49999...)
    >>> round(binomial_at_least(10, 0.5, 9).upper * 2**10, 9)  # 10 + 1
    11.0
    """
    if rate >= 1.0 or not 0 < hits <= trials:
        return _certainty(hits <= 0 or (rate >= 1.0 and hits <= trials))
    if trials > LARGEST:
        return Enclosure(0.0, 1.0)
    with localcontext(_DIGITS):
        if hits > trials * Decimal(rate):
            return _doubles(*_sum_upwards(trials, rate, hits))
        return _complement(*_sum_downwards(trials, rate, hits - 1))


@lru_cache(maxsize=4096)
def binomial_at_most(trials: int, rate: float, hits: int) -> Enclosure:
    """P[Bin(trials, rate) <= hits], to the same accuracy, also where it is tiny.

    >>> round(binomial_at_most(1000, 0.5, 1).upper * 2.0**1000, 9)
    1001.0
    """
    if rate >= 1.0 or not 0 <= hits < trials:
        return _certainty(hits >= trials)
    if trials > LARGEST:
        return Enclosure(0.0, 1.0)
    with localcontext(_DIGITS):
        if hits < trials * Decimal(rate):
            return _doubles(*_sum_downwards(trials, rate, hits))
        return _complement(*_sum_upwards(trials, rate, hits + 1))


# --- pmfs: all the probabilities of a count -------------------------------------------------------


def binomial_pmf(trials: int, rate: float, most: int | None = None) -> Array:
    """The probabilities of Bin(trials, rate), given that it is at most ``most``.

    >>> binomial_pmf(2, 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    most = trials if most is None else min(most, trials)
    if rate >= 1.0:
        return np.append(np.zeros(most), 1.0)
    k = np.arange(float(most))
    ratios = (trials - k) / (k + 1.0) * (rate / (1.0 - rate))
    return _unimodal_pmf(ratios, min(int((trials + 1) * rate), most))


def hypergeometric_pmf(population: int, marked: int, drawn: int) -> Array:
    """The probabilities of the number of marked records among ``drawn`` of ``population``.

    >>> hypergeometric_pmf(5, 2, 2).round(12).tolist()
    [0.3, 0.6, 0.1]
    """
    least, most = max(0, marked + drawn - population), min(marked, drawn)
    k = np.arange(float(least), float(most))
    ratios = (marked - k) * (drawn - k) / ((k + 1.0) * (population - marked - drawn + k + 1.0))
    mode = (marked + 1) * (drawn + 1) // (population + 2) - least
    return np.concatenate([np.zeros(least), _unimodal_pmf(ratios, mode)])


def poisson_pmf(mean: float, most: int) -> Array:
    """The probabilities of a Poisson variable, given that it is at most ``most``."""
    return _unimodal_pmf(mean / np.arange(1.0, most + 1.0), min(int(mean), most))


def pmf_error(weights: Array) -> float:
    """Bound on the relative error of the probabilities of a pmf above that are at least 1e-290."""
    return ulps(8.0, of=2.0 * len(weights) + 2.0)


def _unimodal_pmf(ratios: Array, mode: int) -> Array:
    """Probabilities from the ratios of neighbours, multiplied outwards from the mode."""
    left, right = np.cumprod(1.0 / ratios[:mode][::-1])[::-1], np.cumprod(ratios[mode:])
    weights = np.concatenate([left, [1.0], right])
    return np.asarray(weights / weights.sum())


# --- tails ----------------------------------------------------------------------------------------


def _sum_upwards(trials: int, rate: float, hits: int) -> tuple[Decimal, Decimal]:
    """P[Bin >= hits], for hits above the mean."""
    odds = float(Decimal(rate) / (1 - Decimal(rate)))

    def ratio(i: Array) -> Array:
        return (float(trials - hits) - i) / (float(hits + 1) + i) * odds

    return _tail(_log_probability(trials, rate, hits), ratio, trials - hits)


def _sum_downwards(trials: int, rate: float, hits: int) -> tuple[Decimal, Decimal]:
    """P[Bin <= hits], for hits below the mean."""
    odds = float((1 - Decimal(rate)) / Decimal(rate))

    def ratio(i: Array) -> Array:
        return (float(hits) - i) / (float(trials - hits + 1) + i) * odds

    return _tail(_log_probability(trials, rate, hits), ratio, hits)


def _tail(
    log_first: Decimal, ratio: Callable[[Array], Array], terms: int
) -> tuple[Decimal, Decimal]:
    """Bounds on e^log_first (1 + r_0 + r_0 r_1 + ...), of ``terms`` ratios (theorem N2)."""
    first = _exponentials(log_first)
    if log_first < _NOTHING:
        return first
    lower, upper = _sum_of_products(ratio, terms)
    return first[0] * Decimal(lower), first[1] * Decimal(upper)


def _sum_of_products(ratio: Callable[[Array], Array], terms: int) -> tuple[float, float]:
    """Bounds on 1 + r_0 + r_0 r_1 + ..., for falling ratios below 1 with three roundings each."""
    if not terms:
        return 1.0, 1.0
    sums, moment, last, remainder = [1.0], 0.0, 1.0, 0.0
    done, size = 0, _BLOCKS[0]
    while done < terms:
        i = np.arange(float(done), float(min(done + size, terms)))
        products = ratio(i)
        products[0] *= last
        np.cumprod(products, out=products)
        sums.append(float(products.sum()))
        moment += float(products @ (i + 1.0))
        last, done = float(products[-1]), done + len(i)
        following = float(ratio(np.array([float(done)]))[0])
        remainder = 2.0 * last * following / (1.0 - following) if done < terms else 0.0
        if remainder <= _REMAINDER:
            break
        size = min(2 * size, _BLOCKS[1])
    total = math.fsum(sums)
    rounding = ulps(1.01, of=_ROUNDINGS * moment + (size + 4.0) * total) + _UNDERFLOW
    return total - rounding, total + rounding + remainder


# --- 50 digits ------------------------------------------------------------------------------------


def _log_probability(trials: int, rate: float, hits: int) -> Decimal:
    """log of C(n, k) q^k (1 - q)^(n - k), to within 1e-29 (docs/proofs.md, lemma N1)."""
    q = Decimal(rate)
    ways = _log_factorial(trials) - _log_factorial(hits) - _log_factorial(trials - hits)
    return ways + hits * q.ln() + (trials - hits) * (1 - q).ln()


@lru_cache(maxsize=4096)
def _log_factorial(n: int) -> Decimal:
    """log n!, by Stirling's series: what is left out is smaller than the first term left out."""
    if n < _EXACT:
        return Decimal(math.factorial(n)).ln()
    x = Decimal(n)
    square, power, series = x * x, x, Decimal(0)
    for numerator, denominator in zip(*_STIRLING, strict=True):
        series += numerator / (denominator * power)
        power *= square
    return (x + Decimal("0.5")) * x.ln() - x + _HALF_LOG_TWO_PI + series


def _exponentials(log: Decimal) -> tuple[Decimal, Decimal]:
    """Bounds on the number whose logarithm is this to within half of ``_LOG_ERROR``."""
    value = log.exp() if log > _NOTHING else Decimal(0)
    least = value * (1 - _LOG_ERROR)
    return least, value * (1 + _LOG_ERROR) if value else _NOTHING.exp()


def _doubles(lower: Decimal, upper: Decimal) -> Enclosure:
    return Enclosure(max(_down(lower), 0.0), min(_up(upper), 1.0))


def _complement(lower: Decimal, upper: Decimal) -> Enclosure:
    return _doubles(1 - upper - _LAST_DIGIT, 1 - lower + _LAST_DIGIT)


def _certainty(happens: bool) -> Enclosure:
    return Enclosure(float(happens), float(happens))


def _down(value: Decimal) -> float:
    nearest = float(value)
    return nearest if Decimal(nearest) <= value else math.nextafter(nearest, -math.inf)


def _up(value: Decimal) -> float:
    return -_down(-value)
