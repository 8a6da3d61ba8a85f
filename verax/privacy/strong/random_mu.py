"""Gaussian mechanisms with a random mu that the adversary sees: bounds on the mixture's curves.

A pmf is that of mu^2 (:class:`verax.privacy.numerics.lattice.Law`). Curves rise with mu, so upper
bounds put every cell at its upper end and lower bounds at its lower one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.numerics.roots import bisect, bracket
from verax.privacy.numerics.rounding import NORMAL_TAIL, PRODUCT_ULPS, UNIT, outward, ulps, up
from verax.privacy.pld.composition import LOWER, UPPER

# relative error of mu = sqrt(c^2 unit^2)
RELATIVE_MU = ulps(16.0)
_FAR = 40.0  # standard deviations beyond which a double holds no probability
_TINY = 1e-306  # what underflow may take from a probability: less than any delta that is asked for
_HUGE = 1e150  # a mu whose square is still a double
_LINEAR = 0.01  # a relative error up to which its first order, doubled, is enough


def gaussian_deltas(mu: Array, epsilon: float, side: int) -> Array:
    """:func:`verax.privacy.curves.gaussian.gaussian_delta` for many mu, rounded in the same way.

    >>> gaussian_deltas(np.array([0.0, 1.0]), 1.0, UPPER).round(6).tolist()
    [0.0, 0.126937]
    """
    huge, mu = mu > _HUGE, np.minimum(mu, _HUGE)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shift = np.where(mu > 0.0, epsilon / mu, np.inf)
    exact, far = np.minimum(shift, 1e300) - mu / 2.0, np.minimum(shift, 1e300) + mu / 2.0
    miss = ulps(4.0, of=far)
    near = np.clip(exact, -_FAR, _FAR)
    density = np.exp(-0.5 * near**2)
    second = 0.5 * special.erfcx(far / math.sqrt(2.0))
    first = 0.5 * special.erfcx(np.maximum(near, 0.0) / math.sqrt(2.0))
    scale = np.where(near > 0.0, density * first, special.ndtr(-near))
    value = np.where(near > 0.0, density * (first - second), scale - density * second)
    error = scale * (ulps(PRODUCT_ULPS, of=1.0 + near * near) + miss * (1.0 + np.abs(near))) + _TINY
    value = value + side * error
    rough = outward(special.ndtr(np.clip(side * miss - exact, -_FAR, _FAR)), side, NORMAL_TAIL)
    value = np.where(
        miss * (1.0 + np.abs(near)) > _LINEAR,
        rough + (_TINY if side == UPPER else -1.0 / far),
        value,
    )
    value = np.where(exact - miss > _FAR, _TINY if side == UPPER else 0.0, np.clip(value, 0.0, 1.0))
    value = np.where(exact + miss < -_FAR, 1.0 if side == UPPER else 1.0 - UNIT, value)
    value[huge] = 1.0 if side == UPPER else value[huge]
    return np.asarray(np.where(mu > 0.0, value, 0.0))


def mixture_delta(pmf: LatticePmf, epsilon: float, side: int) -> float:
    """delta(epsilon) of the mixture, rounded up (``side`` UPPER) or down."""
    slack = pmf.error + ulps(len(pmf.weights) + 8.0)
    mu, rest = _mu(pmf, side), 0.0
    if side == UPPER and pmf.lost > 0.0:
        rest = pmf.lost * gaussian_delta(up(math.sqrt(pmf.top), RELATIVE_MU), epsilon, UPPER)
    if side == UPPER and pmf.top > 0.0:
        rest += _TINY  # small weights times small curves
    total = outward(float(pmf.weights @ gaussian_deltas(mu, epsilon, side)), side, slack) + rest
    return min(max(total, 0.0), 1.0)


def _mu(pmf: LatticePmf, side: int) -> Array:
    """mu in every cell, where it makes delta largest (UPPER) or smallest."""
    return outward(np.sqrt(pmf.highs if side == UPPER else pmf.lows), side, RELATIVE_MU)


# --- the trade-off curve --------------------------------------------------------------------------


class _Tests:
    """The likelihood-ratio tests of a mixture: reject if the ratio exceeds a threshold.

    ``side`` is that of the curve's beta: LOWER bounds both error rates from below, at the largest
    mu; UPPER from above. Where mu = 0 nothing can be told; ``blind`` says whether such runs are
    rejected.
    """

    def __init__(self, pmf: LatticePmf, side: int) -> None:
        mu = _mu(pmf, -side)
        self.side, self.slack = side, pmf.error + ulps(len(pmf.weights) + 8.0)
        self.lost = pmf.lost + _TINY if side == UPPER else 0.0
        seen = mu > 0.0
        self.mu, self.weights = mu[seen], pmf.weights[seen]
        self.unseen = float(pmf.weights[~seen].sum())

    def errors(self, threshold: float, blind: bool) -> tuple[float, float]:
        """False alarms and misses."""
        at = threshold / self.mu
        return self._sum(-at - self.mu / 2.0, at, self.unseen * blind), self._sum(
            at - self.mu / 2.0, at, self.unseen * (not blind)
        )

    def alarms(self, threshold: float, blind: bool) -> float:
        """False alarms alone."""
        at = threshold / self.mu
        return self._sum(-at - self.mu / 2.0, at, self.unseen * blind)

    def _sum(self, x: Array, at: Array, unseen: float) -> float:
        bent = np.clip(x, -_FAR, _FAR)
        error = ulps(
            PRODUCT_ULPS * (1.0 + bent * bent) + 4.0 * (np.abs(at) + self.mu) * (1.0 + np.abs(bent))
        )
        chances = (
            special.ndtr(bent)
            if self.side == UPPER
            else np.where(x > -_FAR, special.ndtr(bent), 0.0)
        )
        chances = chances * np.clip(1.0 + self.side * error, 0.0, 2.0)
        total = float(self.weights @ chances) + unseen
        return min(max(outward(total, self.side, self.slack), 0.0) + self.lost, 1.0)


def mixture_tradeoff(pmf: LatticePmf, alpha: float, side: int) -> float:
    """The least miss rate at false-alarm rate ``alpha``, rounded up (``side`` UPPER) or down.

    The curve of definition 5.2: every threshold gives a point on it. A point with at least
    ``alpha`` false alarms bounds it from below, one with at most ``alpha`` from above. Between
    rejecting none and all of the runs with mu = 0 it is a line of slope -1, which the printed
    definition leaves out (docs/errata.md).
    """
    if alpha <= 0.0 or alpha >= 1.0:
        return float(alpha <= 0.0)
    tests = _Tests(pmf, side)
    few, misses = tests.errors(0.0, blind=False)
    many, fewest = tests.errors(0.0, blind=True)
    line = few + misses - alpha + side * ulps(4.0)
    if side == LOWER:
        if few < alpha <= many:  # the line touches the curve and supports it everywhere
            return max(line, 0.0)
        blind = alpha > few
        threshold = _edge(lambda t: tests.alarms(t, blind) >= alpha, -1.0 if blind else 1.0)
        return 0.0 if threshold is None else tests.errors(threshold, blind)[1]
    if few <= alpha < many:
        return min(max(line, fewest), 1.0 - alpha)
    blind = alpha >= many
    threshold = _edge(lambda t: tests.alarms(t, blind) <= alpha, -1.0 if blind else 1.0)
    return 1.0 - alpha if threshold is None else min(tests.errors(threshold, blind)[1], 1.0 - alpha)


def _edge(holds: Callable[[float], bool], sign: float) -> float | None:
    """The last threshold that holds from 0 towards ``sign`` infinity; the first if 0 does not."""
    at_zero = holds(0.0)
    near, far = bracket(lambda size: holds(sign * size) == at_zero, 0.0, 1.0, limit=1e200)
    if far > 1e200:
        return sign * near if at_zero else None
    good, bad = (near, far) if at_zero else (far, near)
    return sign * bisect(lambda size: holds(sign * size), good, bad, rtol=1e-13, halvings=100)[0]
