"""From counts of an event to a lower bound on epsilon that holds with a stated confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from verax.auditing.sums import Floats

ROUND_OFF = 1e-9  # relative; far above the error of the inverse beta function
THRESHOLDS = 400  # tried on the first lot of runs


def proportion_at_least(hits: ArrayLike, trials: float, miss: float) -> Floats:
    """Clopper and Pearson's lower limit of a proportion: too high with probability at most ``miss``.

    >>> from verax.auditing.confidence import proportion_at_least
    >>> round(float(proportion_at_least(10, 10, 0.05)), 4)  # 0.05 ** 0.1
    0.7411
    """
    k = np.asarray(hits, dtype=float)
    some = np.where(k > 0.0, k, 1.0)
    limit = betaincinv(some, trials - some + 1.0, miss) * (1.0 - ROUND_OFF)
    return np.where(k > 0.0, limit, 0.0).astype(np.float64)


def proportion_at_most(hits: ArrayLike, trials: float, miss: float) -> Floats:
    """Clopper and Pearson's upper limit of a proportion: too low with probability at most ``miss``.

    >>> from verax.auditing.confidence import proportion_at_most
    >>> round(float(proportion_at_most(0, 10, 0.05)), 4)  # 1 - 0.05 ** 0.1
    0.2589
    """
    k = np.asarray(hits, dtype=float)
    some = np.where(k < trials, k, 0.0)
    limit = betainccinv(some + 1.0, trials - some, miss) * (1.0 + ROUND_OFF)
    return np.where(k < trials, np.minimum(limit, 1.0), 1.0).astype(np.float64)


def epsilon_at_least(hits: ArrayLike, false: ArrayLike, trials: float, delta: float, miss: float) -> Floats:
    """The epsilon proved by an event seen ``hits`` times in one world and ``false`` times in the other.

    (epsilon, delta) privacy means P(event) <= e^epsilon Q(event) + delta, so epsilon >= log((P - delta) / Q). Each
    proportion's limit misses with probability at most ``miss / 2``, so the bound holds with probability ``1 - miss``,
    also if the two worlds share their randomness.
    """
    power = np.maximum(proportion_at_least(hits, trials, miss / 2.0) - delta, 1e-300)
    return np.maximum(np.log(power / proportion_at_most(false, trials, miss / 2.0)), 0.0)


@dataclass(frozen=True)
class Threshold:
    """The event "score at least ``cut``", or at most ``-cut`` if ``reverse``, and the bound it promises."""

    cut: float
    reverse: bool
    promise: float

    def hits(self, target: Floats, ghost: Floats) -> tuple[int, int]:
        """How often the event happens in the world it speaks for, and in the other one."""
        right, wrong = (-ghost, -target) if self.reverse else (target, ghost)
        return int((right >= self.cut).sum()), int((wrong >= self.cut).sum())


def best_threshold(target: Floats, ghost: Floats, tests: int, delta: float, miss: float) -> Threshold:
    """The event that promises most for ``tests`` further runs, given scores of some first runs in both worlds."""
    options = [
        _best_cut(target, ghost, tests, delta, miss, reverse=False),
        _best_cut(-ghost, -target, tests, delta, miss, reverse=True),
    ]
    return max(options, key=lambda option: option.promise)


def _best_cut(right: Floats, wrong: Floats, tests: int, delta: float, miss: float, reverse: bool) -> Threshold:
    """Few false hits are a noisy count; the score, a log likelihood ratio, foretells them: E_right[e^-score; hit].

    The larger of count and forecast is used, so that neither luck nor a bad model draws the cut into the far tail.
    """
    count = len(right)
    ordered = np.sort(right)[::-1]
    ranks = np.unique(np.geomspace(1, count, THRESHOLDS).astype(np.int64))
    cuts = ordered[ranks - 1]
    hits = np.searchsorted(-ordered, -cuts, side="right")
    false = count - np.searchsorted(np.sort(wrong), cuts, side="left")
    forecast = np.cumsum(np.exp(np.clip(-ordered, -600.0, 600.0)))[hits - 1]
    expected = np.minimum(np.maximum(false, forecast), count)
    promises = epsilon_at_least(hits * (tests / count), expected * (tests / count), tests, delta, miss)
    best = int(np.argmax(promises))
    return Threshold(float(cuts[best]), reverse, float(promises[best]))
