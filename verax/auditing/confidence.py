"""From counts of an event to a lower bound on epsilon that holds with a stated confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv

from verax.auditing.sums import Floats
from verax.privacy.numerics.proportions import proportion_at_least, proportion_at_most
from verax.privacy.numerics.rounding import down, ulps

# Thresholds tried on the runs that choose the attack.
THRESHOLDS = 400


def epsilon_at_least(hits: int, false: int, trials: int, delta: float, miss: float) -> float:
    """The epsilon proved by ``hits`` of an event in one world and ``false`` in the other.

    (epsilon, delta) privacy means P(event) <= e^epsilon Q(event) + delta, so epsilon >= log((P -
    delta) / Q). Each proportion's limit misses with probability at most ``miss / 2``, so the bound
    holds with probability ``1 - miss``, also if the two worlds share their randomness.
    """
    power = proportion_at_least(hits, trials, miss / 2.0) - delta
    if power <= 0.0:
        return 0.0
    ratio = power / proportion_at_most(false, trials, miss / 2.0)
    return max(down(math.log(ratio), ulps(8.0)) - ulps(8.0), 0.0)


def forecast_epsilon(
    hits: Floats, false: Floats, trials: float, delta: float, miss: float
) -> Floats:
    """An estimate of :func:`epsilon_at_least` for many counts at once; not a bound."""
    some, missed = np.maximum(hits, 1.0), np.minimum(false, trials - 1.0)
    power = np.where(hits > 0.0, betaincinv(some, trials - some + 1.0, miss / 2.0), 0.0) - delta
    wrong = np.where(false < trials, betainccinv(missed + 1.0, trials - missed, miss / 2.0), 1.0)
    return np.asarray(np.maximum(np.log(np.maximum(power, 1e-300) / wrong), 0.0))


@dataclass(frozen=True)
class Threshold:
    """The event "score >= ``cut``" ("<= ``-cut``" if ``reverse``), and its estimated bound."""

    cut: float
    reverse: bool
    promise: float

    def hits(self, target: Floats, ghost: Floats) -> tuple[int, int]:
        """How often the event happens in the world it speaks for, and in the other one."""
        right, wrong = (-ghost, -target) if self.reverse else (target, ghost)
        return int((right >= self.cut).sum()), int((wrong >= self.cut).sum())


def best_threshold(
    target: Floats, ghost: Floats, tests: int, delta: float, miss: float
) -> Threshold:
    """The event with the largest estimated bound for ``tests`` further runs, from first scores."""
    options = [
        _best_cut(target, ghost, tests, delta, miss, reverse=False),
        _best_cut(-ghost, -target, tests, delta, miss, reverse=True),
    ]
    return max(options, key=lambda option: option.promise)


def _best_cut(
    right: Floats, wrong: Floats, tests: int, delta: float, miss: float, reverse: bool
) -> Threshold:
    """The best cut. False hits are also forecast: the score is a log likelihood ratio.

    Few false hits are a noisy count; E_right[e^-score; hit] predicts them. The larger of count and
    forecast is used, so that neither luck nor a bad model moves the cut into the far tail.
    """
    count = len(right)
    ordered = np.sort(right)[::-1]
    ranks = np.unique(np.geomspace(1, count, THRESHOLDS).astype(np.int64))
    cuts = ordered[ranks - 1]
    hits = np.searchsorted(-ordered, -cuts, side="right")
    false = count - np.searchsorted(np.sort(wrong), cuts, side="left")
    forecast = np.cumsum(np.exp(np.clip(-ordered, -600.0, 600.0)))[hits - 1]
    expected = np.minimum(np.maximum(false, forecast), count)
    scale = np.float64(tests / count)
    promises = forecast_epsilon(hits * scale, expected * scale, tests, delta, miss)
    best = int(np.argmax(promises))
    return Threshold(float(cuts[best]), reverse, float(promises[best]))
