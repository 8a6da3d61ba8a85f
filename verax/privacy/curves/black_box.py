"""Groups from one record's curve alone: what can be said without looking inside the mechanism.

Two data sets that differ in k records are k steps apart, and each step costs what one record costs.
For any shares eps_1 + ... + eps_k = eps the triangle inequality (docs/proofs.md, lemma 5) gives

    delta_k(eps) <= sum_i e^(eps_(i+1) + ... + eps_k) delta_1(eps_i).

With equal shares this is theorem 4 of "optimal group privacy", without its factor k. With the best
shares it is the f-DP bound 1 - (1 - f)^k of theorem 5 there: 1 - f is the infimum of the lines
delta_1(eps) + e^eps v, each of which rises in v, so its k-th power is the infimum over all choices
of k lines (docs/group-privacy.md).

Only upper bounds of one record's delta are asked for, and only as small ones as the group needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from verax import checks
from verax.checks import NoGuarantee
from verax.privacy.curves.base import Curve
from verax.privacy.curves.gaussian import black_box_group
from verax.privacy.curves.triangle import SmallestBound
from verax.privacy.guarantee import DEFAULT_RTOL, Guarantee
from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect
from verax.privacy.numerics.rounding import OPS_8M, down, up
from verax.privacy.pld.composition import BOTH, UPPER, Bounds, Composition, Sides
from verax.privacy.pld.convolve import PrivacyLossDistribution

DEEPEST = 1e-150
"""The smallest delta of one record that is looked at: where a group would need less, its epsilon is
infinite here.
"""
MOST_STEPS = 10_000
"""Steps beyond which the best shares are not searched for, and the bound is the trivial one."""
SHARES = ("equal", "any")
_RTOL = 0.003
_CLOSE = 1e-4  # of epsilon: where the search for it ends
_DROP, _DEEP_DROP = 0.3, 2.0  # of log delta from one line to the next, before and after it is tiny
_TINY, _TYPICAL_DELTA = 1e-12, 1e-6
_LEAST = 1e-300  # a delta that came out smaller may have fallen below the range of doubles
# of log delta, below the one asked for, or in all, down to which lines go first
_FIRST_DEPTH, _USUAL_DEPTH = 6.0, 25.0
_DEEPER = 1.5  # factor by which they go further
_FURTHEST, _MOST_LINES = 1e6, 1000
_FIRST = -1000.0  # log of the false-alarm rate at which the search for shares starts
_MOST_ESTIMATED = 200  # steps
_FEW_ROUNDS, _COARSEST = 8, 5.0  # different rounds read finely, and how much coarser more may be
# of log delta that one PLD serves, and how many of them: down to DEEPEST
_SPAN, _MOST_PLDS = 6.0, 60


class BlackBox:
    """Upper bounds for groups, from deltas that are proved for one record.

    Args:
        guarantee: of one record; its relation and what it assumes carry over.

    >>> from verax import Mechanism, Poisson
    >>> box = BlackBox(Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0).guarantee())
    >>> (
    ...     round(box.epsilon(group=4, delta=1e-5), 1),
    ...     round(box.epsilon(group=4, delta=1e-5, shares="any"), 1),
    ... )
    (11.8, 9.7)
    """

    def __init__(self, guarantee: Guarantee) -> None:
        if guarantee.group != 1:
            raise ValueError(f"guarantee must be of one record, got a group of {guarantee.group}")
        self.one = guarantee
        self._record = _OneRecord(guarantee)
        self._points = _Points(self._record)

    def epsilon(self, group: int, delta: float, shares: str = "equal") -> float:
        """The least epsilon that follows at ``delta``; infinite if one record's curve has none."""
        group, delta = checks.count("group", group), checks.probability("delta", delta)
        if (larger := self._with_others(group)) is not self:
            return larger.epsilon(group, delta, shares)
        either = checks.choice("shares", shares, SHARES) == "any"
        if group == 1:  # nothing follows from one record's curve but the curve
            return self.one.epsilon(delta).upper
        if either:
            return min(self._best_epsilon(group, delta), self.epsilon(group, delta))
        low = 0.0
        for high, log in self._points.all():
            if _sum(group, high, math.exp(log)) <= delta:
                break
            low = high
        else:
            return math.inf
        one = self._record
        fits = bisect(lambda e: _sum(group, e, one.delta(e)) <= delta, high, low, rtol=_CLOSE)[0]
        return group * fits

    def delta(self, group: int, epsilon: float, shares: str = "equal") -> float:
        """The least delta that follows at ``epsilon``."""
        group, epsilon = checks.count("group", group), checks.nonnegative("epsilon", epsilon)
        if (larger := self._with_others(group)) is not self:
            return larger.delta(group, epsilon, shares)
        either = checks.choice("shares", shares, SHARES) == "any"
        if group == 1:
            return self.one.delta(epsilon).upper
        if either:
            return min(self._best_delta(group, epsilon), self.delta(group, epsilon))
        each = epsilon / group
        return _sum(group, each, self._record.delta(each))

    def _with_others(self, group: int) -> BlackBox:
        """The same for data sets that hold the rest of the group, too.

        Adding k records to n one by one, the last one comes to n + k - 1 others: one record's curve
        must cover them.
        """
        phases = self.one.mechanism
        counted = any(m.sampler.declared_population is not None for m in phases.mechanisms)
        if not counted or phases.relation != "add-remove" or self.one.extra_records >= group - 1:
            return self
        if type(self.one) is not Guarantee:
            raise NoGuarantee(
                "one record's guarantee holds for the declared population only, "
                "and a group exceeds it"
            )
        return BlackBox(phases.guarantee_with_more_records(group - 1))

    # --- any shares -------------------------------------------------------------------------------

    def _ever_deeper(self, depth: float) -> Iterator[_Lines]:
        """The lines down to some log delta, then down to smaller ones as long as there are any."""
        points = self._points.down_to(depth)
        yield _Lines.both_ways(points)
        while points[-1][1] <= depth:
            depth *= _DEEPER
            points = self._points.down_to(depth)
            yield _Lines.both_ways(points)

    def _best_epsilon(self, group: int, delta: float) -> float:
        """The flattest product of lines of intercept at most delta, its last factor fitted."""
        goal = math.log(delta) - OPS_8M
        depth = goal - _FIRST_DEPTH

        def fits(lines: _Lines, rate: float) -> bool:
            return lines.walk(group, rate, goal).intercept <= goal

        found = self._tangent(group, fits, _FIRST, 0.0, depth)
        if found is None:
            return math.inf
        (_, slope, _), (start, spent, _) = found
        share = max(slope - spent, 0.0)
        small, large = 0.5 * share, 1.5 * share
        one = self._record
        if not one.last_step(start, large) <= delta:
            return up(max(slope, 0.0), OPS_8M)
        fitted, _ = bisect(
            lambda last: one.last_step(start, last) <= delta,
            large,
            small,
            rtol=_CLOSE,
            atol=max(_CLOSE * spent, 1e-12),
        )
        return up(max(min(slope, spent + fitted), 0.0), OPS_8M)

    def _best_delta(self, group: int, epsilon: float) -> float:
        """The lowest intercept of a product of lines of slope at most e^epsilon.

        Its last factor is fitted.
        """
        most = down(epsilon, OPS_8M)
        found = self._tangent(
            group,
            lambda lines, rate: lines.walk(group, rate).slope <= most,
            0.0,
            _FIRST,
            -_USUAL_DEPTH,
        )
        if found is None:
            return 1.0
        (intercept, _, _), (start, spent, _) = found
        exact = self._record.last_step(start, epsilon - spent) if epsilon >= spent else 1.0
        return min(up(math.exp(min(intercept, 0.0)), OPS_8M), exact, 1.0)

    def _tangent(
        self,
        steps: int,
        fits: Callable[[_Lines, float], bool],
        good: float,
        bad: float,
        depth: float,
    ) -> tuple[_Walk, _Walk] | None:
        """Walks of all steps and of all but one, from the rate nearest to ``bad`` that fits.

        Intercepts rise and slopes fall with the rate a walk starts from, because the curve is
        concave.
        """
        found = None
        for lines in self._ever_deeper(depth) if steps <= MOST_STEPS else ():
            if not fits(lines, good):
                continue
            near, _ = bisect(partial(fits, lines), good, bad, atol=1e-3)
            found = lines.walk(steps, near), lines.walk(steps - 1, near)
            if found[0].deepest < lines.deepest:
                break
        return found


def _sum(group: int, each: float, delta: float) -> float:
    """Theorem 4, with one record's delta at an equal share of epsilon."""
    return min(up(black_box_group(each, delta, group)[1], OPS_8M), 1.0)


class _OneRecord:
    """One record's delta from above, in the worse direction."""

    def __init__(self, guarantee: Guarantee) -> None:
        self._exposure = guarantee.exposure
        self._uppers = guarantee.uppers
        self._curves = [_readings(curve) for curve in guarantee.uppers]

    def delta(self, epsilon: float, rtol: float = DEFAULT_RTOL) -> float:
        """An upper bound on delta(epsilon)."""
        bound = max(read(epsilon, rtol) for read in self._curves)
        return max(min(bound, self._exposure), _LEAST)

    def rough_epsilon(self) -> float:
        """About how large an epsilon matters."""
        return max(curve.epsilon(_TYPICAL_DELTA, 0.1, (UPPER,))[1] for curve in self._uppers)

    def last_step(self, start: float, share: float) -> float:
        """What all steps but one have cost, and a last one with this share of epsilon."""
        before = math.exp(start + share) if start + share < 700.0 else math.inf
        return min(up(self.delta(share) + before, OPS_8M), 1.0)


def _readings(curve: Curve) -> Callable[[float, float], float]:
    """Upper bounds on delta for the questions of a black box, by epsilon and accuracy."""
    if isinstance(curve, SmallestBound):
        parts = [_readings(part) for part in curve.curves]
        return lambda epsilon, rtol: min(read(epsilon, rtol) for read in parts)
    if isinstance(curve, Composition) and not curve.is_single and curve.gaussian_mu is None:
        return _Readings(curve)
    return lambda epsilon, rtol: curve.delta(epsilon, rtol, (UPPER,))[1]


class _Readings:
    """PLDs composed for deltas of a few sizes, which are then read off.

    A question goes from the largest deltas to the smallest until the bound is no smaller than what
    the PLD was made for, so that its answer depends on epsilon alone.
    """

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._plds: list[PrivacyLossDistribution | None] = []
        # of many different rounds a coarser one takes a share of the time
        different = len(composition.rounds)
        self._rtol = DEFAULT_RTOL * min(max(different / _FEW_ROUNDS, 1.0), _COARSEST)

    def __call__(self, epsilon: float, rtol: float) -> float:
        """Upper bound on delta(epsilon)."""
        bound, size = 1.0, 0.0
        for number in range(_MOST_PLDS):
            pld = self._pld(number)
            if pld is None:
                return min(bound, self._composition.delta(epsilon, rtol, (UPPER,))[1])
            bound, size = min(bound, pld.delta(epsilon)), size - _SPAN
            if bound > math.exp(size):
                break
        return bound

    def _pld(self, number: int) -> PrivacyLossDistribution | None:
        if number == len(self._plds):
            self._plds.append(self._composition.upper_pld(-_SPAN * number, _SPAN, self._rtol))
        return self._plds[number]


class _Points:
    """Epsilons from 0 on and log deltas of one record, close enough for lines between them.

    The sequence does not depend on the question: a point depends on those before it and on nothing
    else.
    """

    def __init__(self, one: _OneRecord) -> None:
        self._one = one
        self._known: list[tuple[float, float]] = []

    def all(self) -> Iterator[tuple[float, float]]:
        """All points, found as far as they are asked for."""
        at = 0
        while at < len(self._known) or self._look_further():
            yield self._known[at]
            at += 1

    def down_to(self, log_delta: float) -> list[tuple[float, float]]:
        """The points up to the first with a delta this small; all there are if none has."""
        found = []
        for point in self.all():
            found.append(point)
            if point[1] <= log_delta:
                break
        return found

    def _look_further(self) -> bool:
        """Find one more point, unless delta is as small as is looked at or does not fall."""
        if not self._known:
            scale = self._one.rough_epsilon()
            self._step = scale / 50.0 if 0.0 < scale < math.inf else 0.01
            self._known.append((0.0, math.log(self._one.delta(0.0, _RTOL))))
            return True
        last, before = self._known[-1]
        if before <= math.log(DEEPEST) or last > _FURTHEST or len(self._known) >= _MOST_LINES:
            return False
        log = math.log(self._one.delta(last + self._step, _RTOL))
        wanted = _DROP if log > math.log(_TINY) else _DEEP_DROP
        self._known.append((last + self._step, log))
        self._step *= min(max(wanted / max(before - log, 1e-9), 0.5), 2.0)
        return True


class _Walk(NamedTuple):
    """Log intercept and log slope of a product of lines, and the deepest line in it."""

    intercept: float
    slope: float
    deepest: int


@dataclass(frozen=True)
class _Lines:
    """Log intercepts and log slopes of lines above 1 - f: as they are, and read backwards."""

    intercepts: Array
    slopes: Array

    @classmethod
    def both_ways(cls, points: list[tuple[float, float]]) -> _Lines:
        """From epsilons and log deltas.

        delta(-eps) of the reverse is 1 - e^-eps (1 - delta(eps)).
        """
        epsilons, logs = np.array(points).T
        back = -np.expm1(-epsilons) + np.exp(logs - epsilons)
        return cls(np.concatenate([logs, np.log(back)]), np.concatenate([epsilons, -epsilons]))

    @property
    def deepest(self) -> int:
        """The number of the line with the smallest delta."""
        return len(self.slopes) // 2 - 1

    def walk(self, steps: int, first: float, most: float = math.inf) -> _Walk:
        """From the rate e^first by the line that is lowest there; given up above ``most``."""
        rate, intercept, slope, deepest = first, -math.inf, 0.0, 0
        for _ in range(steps):
            values = np.logaddexp(self.intercepts, self.slopes + rate)
            best = int(np.argmin(values))
            rate = float(values[best])
            intercept = float(np.logaddexp(self.intercepts[best], self.slopes[best] + intercept))
            slope += float(self.slopes[best])
            deepest = max(deepest, best % (self.deepest + 1))
            if intercept > most:
                break
        return _Walk(intercept, slope, deepest)


@dataclass(frozen=True)
class BlackBoxCurve:
    """A black box as a curve, with the best shares of epsilon. It has no lower bound."""

    box: BlackBox
    steps: int

    def estimate(self, delta: float) -> float:
        """About the least there can be: each term of the sum alone must be at most delta."""
        total = 0.0
        for _ in range(min(self.steps, _MOST_ESTIMATED)):
            log_delta = math.log(delta) - total
            if log_delta < math.log(DEEPEST):
                return math.inf
            total += max(curve.estimate(math.exp(log_delta)) for curve in self.box.one.uppers)
        return total

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        return 0.0, self.box.delta(self.steps, epsilon, "any")

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        return 0.0, self.box.epsilon(self.steps, delta, "any")
