"""Groups from one record's curve alone: what can be said without looking inside the mechanism.

Two data sets that differ in k records are k steps apart, and each step costs what one record costs. For any shares
eps_1 + ... + eps_k = eps the triangle inequality (docs/proofs.md, lemma 5) gives

    delta_k(eps) <= sum_i e^(eps_(i+1) + ... + eps_k) delta_1(eps_i).

With equal shares this is theorem 4 of "optimal group privacy", without its factor k. With the best shares it is the
f-DP bound 1 - (1 - f)^k of theorem 5 there: 1 - f is the infimum of the lines delta_1(eps) + e^eps v, each of which
rises in v, so its k-th power is the infimum over all choices of k lines (docs/group-privacy.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from verax import checks
from verax.privacy.closed_form import black_box_group
from verax.privacy.guarantee import DEFAULT_RTOL, Guarantee
from verax.privacy.pairs import Array

DEEPEST = 1e-150
"""The smallest delta of one record that is looked at: where a group would need less, its epsilon is infinite here."""
SHARES = ("equal", "any")
_RTOL = 0.01
_DROP, _DEEP_DROP = 0.3, 2.0  # of log delta from one line to the next, before and after it is tiny
_TINY = 1e-12
_FURTHEST, _MOST_LINES = 1e6, 1000
_FIRST = -1000.0  # log of the false-alarm rate at which the search for shares starts
_ROUND_OFF = 1e-9


class BlackBox:
    """Upper bounds for groups, from a guarantee of one record; every number comes from deltas proved for it.

    Args:
        guarantee: of one record; its relation and what it assumes carry over.

    >>> from verax import Mechanism, Poisson
    >>> box = BlackBox(Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0).guarantee())
    >>> round(box.epsilon(group=4, delta=1e-5), 1), round(box.epsilon(group=4, delta=1e-5, shares="any"), 1)
    (11.8, 9.7)
    """

    def __init__(self, guarantee: Guarantee) -> None:
        if guarantee.group != 1:
            raise ValueError(f"guarantee must be of one record, got a group of {guarantee.group}")
        self.one = guarantee
        self._known: list[tuple[float, float]] = []
        self._step = 0.0

    def epsilon(self, group: int, delta: float, shares: str = "equal") -> float:
        """The least epsilon that follows at ``delta``; infinite if one record's curve says nothing that small."""
        group, delta = checks.count("group", group), checks.probability("delta", delta)
        if checks.choice("shares", shares, SHARES) == "any":
            return min(self._best_epsilon(group, delta), self.epsilon(group, delta))
        low = 0.0
        for high, log in self._points():
            if self._sum(group, high, math.exp(log)) <= delta:
                break
            low = high
        else:
            return math.inf
        while high - low > 1e-4 * high:
            middle = 0.5 * (low + high)
            fits = self._sum(group, middle, self._delta(middle)) <= delta
            low, high = (low, middle) if fits else (middle, high)
        return group * high

    def delta(self, group: int, epsilon: float, shares: str = "equal") -> float:
        """The least delta that follows at ``epsilon``."""
        group, epsilon = checks.count("group", group), checks.nonnegative("epsilon", epsilon)
        if checks.choice("shares", shares, SHARES) == "any":
            return min(self._best_delta(group, epsilon), self.delta(group, epsilon))
        each = epsilon / group
        return self._sum(group, each, self._delta(each))

    # --- one record -------------------------------------------------------------------------------------------------

    def _delta(self, epsilon: float, rtol: float = DEFAULT_RTOL) -> float:
        return self.one.delta(epsilon, rtol).upper

    def _sum(self, group: int, each: float, delta: float) -> float:
        """Theorem 4, with one record's delta at an equal share of epsilon."""
        return min(black_box_group(each, delta, group)[1] * (1.0 + _ROUND_OFF), 1.0)

    def _points(self) -> Iterator[tuple[float, float]]:
        """Epsilons from 0 on and log deltas of one record, so close that lines between them would add little."""
        at = 0
        while at < len(self._known) or self._look_further():
            yield self._known[at]
            at += 1

    def _look_further(self) -> bool:
        """Find one more point, unless delta is as small as is looked at or does not fall."""
        if not self._known:
            scale = self.one.epsilon(1e-6, 0.1).upper
            self._step = scale / 50.0 if 0.0 < scale < math.inf else 0.01
            self._known.append((0.0, math.log(self._delta(0.0, _RTOL))))
            return True
        last, before = self._known[-1]
        log = math.log(self._delta(last + self._step, _RTOL))
        if log <= math.log(DEEPEST) or last > _FURTHEST or len(self._known) >= _MOST_LINES:
            return False
        self._known.append((last + self._step, log))
        wanted = _DROP if log > math.log(_TINY) else _DEEP_DROP
        self._step *= min(max(wanted / max(before - log, 1e-9), 0.5), 2.0)
        return True

    @cached_property
    def _lines(self) -> tuple[Array, Array]:
        """All epsilons and log deltas."""
        epsilons, logs = np.array(list(self._points())).T
        return epsilons, logs

    @cached_property
    def _both_ways(self) -> tuple[Array, Array]:
        """Log intercepts and log slopes of all lines that are above 1 - f: as they are, and read backwards."""
        epsilons, logs = self._lines
        back = -np.expm1(-epsilons) + np.exp(logs - epsilons)
        return np.concatenate([logs, np.log(back)]), np.concatenate([epsilons, -epsilons])

    # --- any shares -------------------------------------------------------------------------------------------------

    def _follow(self, steps: int, first: float) -> tuple[float, float]:
        """Log intercept and log slope of the line that is reached from the rate e^first by the best line every time."""
        intercepts, slopes = self._both_ways
        rate, intercept, slope = first, -math.inf, 0.0
        for _ in range(steps):
            values = np.logaddexp(intercepts, slopes + rate)
            best = int(np.argmin(values))
            rate = float(values[best])
            intercept = float(np.logaddexp(intercepts[best], slopes[best] + intercept))
            slope += float(slopes[best])
        return intercept, slope

    def _best_epsilon(self, group: int, delta: float) -> float:
        """The flattest product of lines whose intercept is at most delta, its last factor fitted exactly."""
        low, high = _FIRST, 0.0  # intercepts rise and slopes fall along the curve, because it is concave
        if self._follow(group, low)[0] > math.log(delta):
            return math.inf
        while high - low > 1e-3:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._follow(group, middle)[0] <= math.log(delta) else (low, middle)
        found = self._follow(group, low)[1]
        start, spent = self._follow(group - 1, low)
        small, large = max(found - spent, 0.0) * 0.5, max(found - spent, 0.0) * 1.5
        if not self._last(start, large) <= delta:
            return max(found, 0.0)
        while large - small > 1e-4 * (large + max(spent, 0.0)) and large > 1e-12:
            middle = 0.5 * (small + large)
            small, large = (small, middle) if self._last(start, middle) <= delta else (middle, large)
        return max(min(found, spent + large), 0.0) * (1.0 + _ROUND_OFF)

    def _best_delta(self, group: int, epsilon: float) -> float:
        low, high = _FIRST, 0.0
        if self._follow(group, high)[1] > epsilon:
            return 1.0
        while high - low > 1e-3:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._follow(group, middle)[1] <= epsilon else (middle, high)
        intercept, _ = self._follow(group, high)
        start, spent = self._follow(group - 1, high)
        exact = self._last(start, epsilon - spent) if epsilon >= spent else 1.0
        return min(math.exp(min(intercept, 0.0)) * (1.0 + _ROUND_OFF), exact, 1.0)

    def _last(self, start: float, share: float) -> float:
        """What all steps but one have cost, and a last one with this share of epsilon."""
        before = math.exp(start + share) if start + share < 700.0 else math.inf
        return min((self._delta(share) + before) * (1.0 + _ROUND_OFF), 1.0)
