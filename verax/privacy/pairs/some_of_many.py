"""An attack on a record that joins k of T rounds at random: random allocation from below.

The likelihood ratio is an elementary symmetric polynomial of the rounds' own ratios, whose pmf is
out of reach. The attacker here adds up the rounds' scores log(1 - c + c Y_t), each rounded to a
grid: with c = k/T what would be the privacy loss if every round were joined by a coin, with a
smaller c what serves better far out in the tail. Without the record that is a sum of T independent
scores, with it T - k of them and k scores of shifted rounds, whichever they are. Both pmfs are
computed by FFT under several tilts, so that both tails keep their digits; only bins known to a
relative error of ``_KNOWN`` are used.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect_all
from verax.privacy.numerics.rounding import OPS_8000, ulps
from verax.privacy.pairs.discrete import DiscretePair, log_sums
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pld.convolve import TiltedPmf, convolve
from verax.privacy.pld.discretise import DiscretePld

_FINE = 0.1  # grid step, in standard deviations of one round's score
_MERGE = 0.02  # width of the bins the attacker looks at, in standard deviations of the sum
_KNOWN = 1e-5  # relative error of a mass that is used
ALIAS = 1e-15
"""Tilted mass that may lie outside the window of a convolution, on either side."""
_FAR = 8.0  # standard deviations of one round's noise beyond which scores are not told apart
# how rare are the sums, as -log probability, that tilts make common
_RARE = (0.0, 4.0, 12.0, 24.0, 40.0)
_MOST_BINS = 2**13
_APART = 4.0  # shifts from which on a round with the record is told from one without
_SMALLEST_TILT, _LARGEST_TILT = 1e-3, 1e4
_HALVINGS = 36  # of the search for a tilt: with a shift of 1000, means jump within 1e-6 of a tilt
# log of the probability of a sum, with the record or without it, below which it is not looked at
_LEAST = -600.0

TiltedView = tuple[int, Array, Array]
"""First index on a grid, log masses from there on, and their relative errors."""
_Rounds = list[tuple[DiscretePld, int]]


@lru_cache(maxsize=64)
def some_of_many_attack(times: int, count: int, shift: float, lean: float) -> DiscretePair:
    """The binned sum of scores when ``times`` of ``count`` rounds are shifted, against none.

    ``lean`` is c as a share of times / count, at most count / times; every value gives a valid
    attack.

    >>> table = some_of_many_attack(10, 1000, 1.0, lean=1.0)
    >>> bool(0.95 < table.p.sum() < 1.0 + 1e-9)
    True
    """
    plain, shifted = _scores(min(lean * times / count, 1.0), shift)
    present, absent = [(plain, count - times), (shifted, times)], [(plain, count)]
    means = [mean for pmf in (present, absent) for mean in means_when_tilted(pmf, _RARE)]
    with_record, without = (pmf_of_sum(pmf, means) for pmf in (present, absent))
    return binned_pair(with_record, without, plain.step, standard_deviation(plain, count), count)


def means_when_tilted(rounds: _Rounds, rarities: tuple[float, ...]) -> list[float]:
    """Means of the sum under tilts, to either side, that make sums this rare (-log) common."""
    sides = [(sign, rare) for sign in (-1.0, 1.0) for rare in rarities if sign > 0.0 or rare > 0.0]
    signs, rare = np.array(sides).T
    means: list[float] = _cumulants(rounds, _tilts_for(rounds, signs, rare))[1].tolist()
    return means


def binned_pair(
    present: TiltedView, absent: TiltedView, step: float, spread: float, rounds: int
) -> DiscretePair:
    """What an attacker sees of sums on a grid, with the record and without it.

    Sums whose masses are not known well enough, or hardly occur on either side, are left out; the
    others are put in bins, narrow beside the ``spread`` of the sum.
    """
    first = max(present[0], absent[0])
    last = max(min(start + len(logs) for start, logs, _ in (present, absent)), first)
    (log_p, p_error), (log_q, q_error) = (
        (logs[first - start : last - start], errors[first - start : last - start])
        for start, logs, errors in (present, absent)
    )
    known = (p_error < _KNOWN) & (q_error < _KNOWN) & (np.maximum(log_p, log_q) > _LEAST)
    if not known.any():
        return DiscretePair.from_bins(np.zeros(1), np.zeros(1), 0.0)
    share = step / max(_MERGE * spread, step)
    bins = np.floor(np.arange(first, first + len(known))[known] * share).astype(np.int64)
    bins = np.unique(bins, return_inverse=True)[1]
    count = int(bins[-1]) + 1
    logs = [log_sums(log[known], bins, count) for log in (log_p, log_q)]
    return DiscretePair.from_log_masses(logs[0], logs[1], error=2.0 * _KNOWN + OPS_8000 * rounds)


def standard_deviation(pmf: DiscretePld, count: int) -> float:
    """The standard deviation of a sum."""
    mass = np.exp(pmf.log_mass)
    mean = float(mass @ pmf.losses)
    return math.sqrt(count * float(mass @ (pmf.losses - mean) ** 2))


def _scores(rate: float, shift: float) -> tuple[DiscretePld, DiscretePld]:
    """One round's score on a grid, for a round without the record and for one with it."""
    pair = MixturePair.subsampled(rate, shift)
    x = np.linspace(-9.0, 9.0, 2001)
    weight = np.exp(-x * x / 2.0)
    values = pair.loss(x)
    mean = float(weight @ values) / float(weight.sum())
    spread = math.sqrt(float(weight @ (values - mean) ** 2) / float(weight.sum()))
    bottom, top = pair.loss(np.array([-_FAR, shift + _FAR])).tolist()
    apart = _FINE * shift if shift > _APART else 0.0  # scores without the record hardly vary then
    step = max(_FINE * spread, apart, (top - bottom) / _MOST_BINS)
    grid = step * np.arange(math.floor(bottom / step), math.ceil(top / step) + 1)
    between = np.concatenate(
        [[-np.inf], pair.inverse(np.asarray(grid[1:] - step / 2.0, dtype=np.float64)), [np.inf]]
    )
    masses = MixturePair.gaussian(shift).cells(between)
    index = np.arange(len(grid), dtype=np.int64)
    pmfs = [
        DiscretePld(float(grid[0]), step, index, log_mass, 0.0, 0.0)
        for log_mass in (masses.log_p - masses.loss, masses.log_p)
    ]
    return pmfs[0], pmfs[1]


def _cumulants(rounds: _Rounds, tilts: Array) -> tuple[Array, Array]:
    """K and K' of the sum at each of the tilts."""
    values, slopes = np.zeros(len(tilts)), np.zeros(len(tilts))
    for pmf, count in rounds:
        if count > 0:
            losses = pmf.losses
            logs = pmf.log_mass + np.multiply.outer(tilts, losses)
            top = logs.max(axis=1)
            mass = np.exp(logs - top[:, None])
            total = mass.sum(axis=1)
            values += count * (top + np.log(total))
            slopes += count * (mass @ losses) / total
    return values, slopes


def tilt_for(rounds: _Rounds, sign: float, rare: float) -> float:
    """About the tilt at whose mean the sum is e^-rare rare by Chernoff's bound."""
    return float(_tilts_for(rounds, np.array([sign]), np.array([rare]))[0])


def _tilts_for(rounds: _Rounds, signs: Array, rare: Array) -> Array:
    def excess(sizes: Array, some: NDArray[np.bool_]) -> Array:
        tilts = signs[some] * sizes
        value, slope = _cumulants(rounds, tilts)
        return np.asarray(tilts * slope - value - rare[some])

    return signs * bisect_all(excess, rare > 0.0, _SMALLEST_TILT, _LARGEST_TILT, _HALVINGS)


def tilt_to(rounds: _Rounds, mean: float) -> float:
    """The tilt that moves the mean of the sum there; roughly."""
    return float(_tilts_to(rounds, np.array([mean]))[0])


def _tilts_to(rounds: _Rounds, means: Array) -> Array:
    signs = np.where(means > _cumulants(rounds, np.zeros(1))[1][0], 1.0, -1.0)

    def excess(sizes: Array, some: NDArray[np.bool_]) -> Array:
        slopes = _cumulants(rounds, signs[some] * sizes)[1]
        return np.asarray(signs[some] * (slopes - means[some]))

    all_means = np.ones(len(means), dtype=bool)
    return signs * bisect_all(excess, all_means, _SMALLEST_TILT, _LARGEST_TILT, _HALVINGS)


def pmf_of_sum(rounds: _Rounds, means: list[float]) -> TiltedView:
    """The pmf of the sum, from tilts that move its mean to these places."""
    rounds = [(pmf, count) for pmf, count in rounds if count > 0]
    views = []
    for tilt in _tilts_to(rounds, np.array(means)).tolist():
        try:
            views.append(_untilt(convolve(rounds, tilt, ALIAS), tilt))
        except (FloatingPointError, MemoryError):
            continue
    return merge_views(views)


def merge_views(views: list[TiltedView]) -> TiltedView:
    """Each mass from the view that knows it best."""
    start = min((first for first, _, _ in views), default=0)
    stop = max((first + len(logs) for first, logs, _ in views), default=start)
    log_mass, error = np.full(stop - start, -np.inf), np.full(stop - start, np.inf)
    for first, logs, wrong in views:
        here = slice(first - start, first - start + len(logs))
        better = wrong < error[here]
        log_mass[here] = np.where(better, logs, log_mass[here])
        error[here] = np.where(better, wrong, error[here])
    return start, log_mass, error


def _untilt(view: TiltedPmf, tilt: float) -> TiltedView:
    sums = view.base + view.step * (view.first + np.arange(len(view.pmf)))
    off = view.bin_error + 2.0 * ALIAS
    known = view.pmf > 2.0 * off
    logs = (
        np.log(view.pmf, out=np.full(len(sums), -np.inf), where=known)
        + view.log_scale
        - tilt * sums
    )
    wrong = np.divide(2.0 * off, view.pmf, out=np.full(len(sums), np.inf), where=known)
    return view.first, logs, wrong + ulps(16.0, of=1.0 + abs(view.log_scale) + np.abs(tilt * sums))
