"""What an attacker sees of a record that joins k of T rounds, picked at random: the lower bound of random allocation.

The likelihood ratio is an elementary symmetric polynomial of the rounds' own ratios, whose law is out of reach. The
attacker here adds up the rounds' scores log(1 - c + c Y_t), each rounded to a grid: with c = k/T what would be the
privacy loss if every round were joined by a coin, with a smaller c what serves better far out in the tail. Without
the record that is a sum of T independent scores, with it T - k of them and k scores of shifted rounds, whichever they
are. Both laws are computed by FFT under several tilts, so that both tails keep their digits; only bins known to a
relative error of ``_KNOWN`` are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from verax.privacy.compose import Convolved, convolve
from verax.privacy.loss import Discrete
from verax.privacy.pairs import UNIT, Array, Pair
from verax.privacy.tables import Table

_FINE = 0.25  # grid step, in standard deviations of one round's score
_MERGE = 0.02  # width of the bins the attacker looks at, in standard deviations of the sum
_KNOWN = 1e-5  # relative error of a mass that is used
_ALIAS = 1e-15
_FAR = 8.0  # standard deviations of one round's noise beyond which scores are not told apart
_RARE = (0.0, 4.0, 12.0, 24.0, 40.0)  # how rare are the sums, as -log probability, that tilts make common
_MOST_BINS = 2**13
_LARGEST_TILT = 1e4


@lru_cache(maxsize=64)
def some_of(times: int, count: int, shift: float, lean: float) -> Table:
    """The binned sum of scores when ``times`` of ``count`` rounds are shifted, against none: what an attacker sees.

    ``lean`` is c as a share of times / count; every value gives a valid attack.

    >>> table = some_of(10, 1000, 1.0, lean=1.0)
    >>> bool(0.95 < table.p.sum() < 1.0 + 1e-9)
    True
    """
    plain, shifted = _scores(lean * times / count, shift)
    present, absent = [(plain, count - times), (shifted, times)], [(plain, count)]
    tilts = [_tilt_for(present, sign, rare) for sign in (-1.0, 1.0) for rare in _RARE if sign > 0.0 or rare > 0.0]
    means = [_cumulants(present, tilt)[1] for tilt in tilts]
    with_record = _law(present, tilts)
    without = _law(absent, [_tilt_to(absent, mean) for mean in means])
    first = max(with_record[0], without[0])
    last = max(min(with_record[0] + len(with_record[1]), without[0] + len(without[1])), first)
    (log_p, p_error), (log_q, q_error) = (
        (log[first - start : last - start], error[first - start : last - start])
        for start, log, error in (with_record, without)
    )
    known = (p_error < _KNOWN) & (q_error < _KNOWN) & (log_p > -600.0) & (log_q > -600.0)
    share = plain.step / max(_MERGE * _spread(plain, count), plain.step)
    bins = np.floor(np.arange(first, last)[known] * share).astype(np.int64)
    bins -= bins.min(initial=0)
    p, q = (np.bincount(bins, weights=np.exp(log[known])).astype(np.float64) for log in (log_p, log_q))
    return Table.seen(p, q, error=2.0 * _KNOWN + 1e-12 * count)


def _spread(law: Discrete, count: int) -> float:
    """The standard deviation of a sum."""
    mass = np.exp(law.log_mass)
    mean = float(mass @ law.losses)
    return math.sqrt(count * float(mass @ (law.losses - mean) ** 2))


def _scores(rate: float, shift: float) -> tuple[Discrete, Discrete]:
    """One round's score on a grid, for a round without the record and for one with it."""
    pair = Pair.subsampled(rate, shift)
    x = np.linspace(-9.0, 9.0, 2001)
    weight = np.exp(-x * x / 2.0)
    values = pair.loss(x)
    mean = float(weight @ values) / float(weight.sum())
    spread = math.sqrt(float(weight @ (values - mean) ** 2) / float(weight.sum()))
    bottom, top = pair.loss(np.array([-_FAR, shift + _FAR])).tolist()
    step = max(_FINE * spread, (top - bottom) / _MOST_BINS)
    grid = step * np.arange(math.floor(bottom / step), math.ceil(top / step) + 1)
    between = np.concatenate([[-np.inf], pair.inverse(np.asarray(grid[1:] - step / 2.0, dtype=np.float64)), [np.inf]])
    masses = Pair.gaussian(shift).cells(between)
    index = np.arange(len(grid), dtype=np.int64)
    laws = [
        Discrete(float(grid[0]), step, index, log_mass, 0.0, 0.0)
        for log_mass in (masses.log_p - masses.loss, masses.log_p)
    ]
    return laws[0], laws[1]


_Rounds = list[tuple[Discrete, int]]


def _cumulants(rounds: _Rounds, tilt: float) -> tuple[float, float]:
    """K and K' of the sum."""
    value = slope = 0.0
    for law, count in rounds:
        if count > 0:
            logs = law.log_mass + tilt * law.losses
            top = float(logs.max())
            mass = np.exp(logs - top)
            value += count * (top + math.log(float(mass.sum())))
            slope += count * float(mass @ law.losses) / float(mass.sum())
    return value, slope


def _tilt_for(rounds: _Rounds, sign: float, rare: float) -> float:
    """The tilt, to the right or to the left, at whose mean the sum is e^-rare rare by Chernoff's bound; roughly."""

    def excess(tilt: float) -> float:
        value, slope = _cumulants(rounds, sign * tilt)
        return sign * tilt * slope - value - rare

    return sign * _bisect(excess, rare)


def _tilt_to(rounds: _Rounds, mean: float) -> float:
    """The tilt that moves the mean of the sum there; roughly."""
    sign = 1.0 if mean > _cumulants(rounds, 0.0)[1] else -1.0
    return sign * _bisect(lambda tilt: sign * (_cumulants(rounds, sign * tilt)[1] - mean), 1.0)


def _bisect(excess: Callable[[float], float], goal: float) -> float:
    if goal == 0.0:
        return 0.0
    low, high = 0.0, 1e-3
    while excess(high) < 0.0 and high < _LARGEST_TILT:
        low, high = high, 2.0 * high
    for _ in range(6):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) < 0.0 else (low, middle)
    return high


def _law(rounds: _Rounds, tilts: list[float]) -> tuple[int, Array, Array]:
    """First index, log masses and their relative errors, each from the tilt that knows it best."""
    rounds = [(law, count) for law, count in rounds if count > 0]
    views = []
    for tilt in tilts:
        try:
            views.append((tilt, convolve(rounds, tilt, _ALIAS)))
        except (FloatingPointError, MemoryError):
            continue
    start = min((view.first for _, view in views), default=0)
    stop = max((view.first + len(view.law) for _, view in views), default=start)
    log_mass, error = np.full(stop - start, -np.inf), np.full(stop - start, np.inf)
    for tilt, view in views:
        logs, wrong = _untilted(view, tilt)
        here = slice(view.first - start, view.first - start + len(view.law))
        better = wrong < error[here]
        log_mass[here] = np.where(better, logs, log_mass[here])
        error[here] = np.where(better, wrong, error[here])
    return start, log_mass, error


def _untilted(view: Convolved, tilt: float) -> tuple[Array, Array]:
    sums = view.base + view.step * (view.first + np.arange(len(view.law)))
    off = view.bin_error + 2.0 * _ALIAS
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(view.law > off, np.log(view.law), -np.inf) + view.log_scale - tilt * sums
        wrong = np.where(view.law > 2.0 * off, 2.0 * off / view.law, np.inf)
    return logs, wrong + 16.0 * UNIT * (1.0 + abs(view.log_scale) + np.abs(tilt * sums))
