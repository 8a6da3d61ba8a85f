"""One record behind a random participant: a pair glued from the worst case of either direction.

A client is present with chance p and then uses a record with chance q. Given what else it sends the
released sum is one of three Gaussians of unit variance: *away* (weight 1 - p), *without* the
record, *with* it. Only their distances count: ``shift`` between with and without, ``present``
between away and with, ``absent`` between away and without. For a >= 1 the curve D_a(with the record
|| without it) is largest when all three lie on a line, *away* and *without* on the same side of
*with*; for a < 1 when *away* and *with* lie on the same side of *without*. The pair here has the
first curve for a >= 1 and the second for a < 1, hence an atom of loss 0 between them
(docs/random-participation.md, theorem 2). What else the client sends is drawn by a public coin:
several kinds of rounds, each with its chance.

On either branch positions are counted from the single Gaussian outward, from -shift/2, where the
loss is 0; there the size of the loss increases, so that its inverse is a root of a concave
function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8M, ulps
from verax.privacy.pairs.base import Cells, DominatingPair, tail_delta
from verax.privacy.pairs.gaussian_mixture import log_interval

_BLOCK = 400_000  # kinds times cells worked on at once
_SOLVED = ulps(64.0)  # what is left is charged
_STEPS = 60
_DEEP = -0.7  # losses below this are told by what is left of Q, not by what is gone
_TABLE = 400
_SKETCHED = 6  # kinds that a sketch looks at
_NODES = 48  # places a kind and branch of a sketch
_AROUND = (
    OPS_8M  # of a loss: what lies this close to a boundary holds all that rounding it may miss
)


@dataclass(frozen=True)
class HiddenParticipationPair(DominatingPair):
    """The chance of each kind of round and its distances in noises; ``away`` may be infinite.

    ``error`` bounds the relative error of the chances. ``sign`` is -1 for the other direction:
    without the record against with it.

    >>> from verax.privacy.pairs.gaussian_mixture import MixturePair
    >>> poisson = HiddenParticipationPair(0.5, 0.1, (1.0,), (1.0,), (1.0,), (0.0,))
    >>> same = MixturePair.subsampled(0.05, 1.0)
    >>> [round(bound, 8) for bound in (*poisson.delta(0.5), *same.delta(0.5))]
    [0.00021864, 0.00021864, 0.00021864, 0.00021864]
    """

    client: float
    record: float
    chances: tuple[float, ...]
    shift: tuple[float, ...]
    present: tuple[float, ...]
    absent: tuple[float, ...]
    error: float = 0.0
    sign: int = 1

    def reverse(self) -> HiddenParticipationPair:
        return replace(self, sign=-self.sign)

    @cached_property
    def _least(self) -> float:
        """The smallest loss with the record against without it."""
        hidden = all(distance == 0.0 for distance in self.absent)
        seen = self.client * self.record if hidden else self.record
        return math.log1p(-seen) if seen < 1.0 else -math.inf

    @property
    def infimum(self) -> float:
        return self._least if self.sign > 0 else -math.inf

    @property
    def supremum(self) -> float:
        return math.inf if self.sign > 0 else -self._least

    @cached_property
    def _branches(self) -> tuple[_Branch, _Branch]:
        """Where the record's presence shows, and where its absence does."""
        log_p, log_away = math.log(self.client), math.log1p(-self.client)
        chances, shift = np.array(self.chances)[:, None], np.array(self.shift)[:, None]
        sides = []
        for up, distance in ((True, self.present), (False, self.absent)):
            far = np.array(distance)[:, None]
            gap = far - (shift if up else 0.0)  # from away to without
            known = np.isinf(far)
            log_odds = np.where(
                known, -np.inf, log_away - log_p - (0.5 * (far**2 - (shift**2 if up else 0.0)))
            )
            gap = np.where(known, 0.0, gap)
            sides.append(
                _Branch(up, self.client, self.record, np.log(chances), shift, far, gap, log_odds)
            )
        return sides[0], sides[1]

    @cached_property
    def _log_atom(self) -> float:
        """The mass at loss 0: away, and neither near *with* nor near *without*."""
        shift, present, absent = (np.array(x) for x in (self.shift, self.present, self.absent))
        inside = special.ndtr(present - shift / 2.0) - special.ndtr(shift / 2.0 - absent)
        mass = (1.0 - self.client) * float(np.dot(self.chances, np.maximum(inside, 0.0)))
        return math.log(mass) if mass > 0.0 else -math.inf

    @cached_property
    def bulk(self) -> float:
        """0 if most rounds are at that atom, else the mean loss of all but the largest ones."""
        if self._log_atom > math.log(0.5):
            return 0.0
        near = self._branches[0].loss(np.full((1, 1), 2.0))[:, 0] @ np.array(self.chances)
        mean = float(self._forward(np.array([-np.inf, near])).loss[0])
        return self.sign * mean

    def nodes(self, left: float, far: float) -> tuple[Array, Array]:
        """Losses and log masses of a few kinds, each standing for its neighbours."""
        total = np.cumsum(self.chances)
        ends = np.unique(np.searchsorted(total, total[-1] * np.arange(1, _SKETCHED) / _SKETCHED))
        first = np.unique(np.concatenate([[0], ends]))
        log_chances = np.log(np.add.reduceat(np.array(self.chances), first))[:, None]
        middle = (first + np.append(first[1:], len(total))) // 2
        losses, masses = [np.zeros(1)], [np.array([self._log_atom])]
        for branch in self._branches:
            reach = far if branch.up == (self.sign > 0) else -left
            loss, log_p, log_q = branch.select(middle, log_chances).nodes(reach)
            losses.append(self.sign * loss)
            masses.append(log_p if self.sign > 0 else log_q)
        loss, mass = np.concatenate(losses), np.concatenate(masses)
        order = np.argsort(loss, kind="stable")
        loss, mass = loss[order], mass[order] - special.logsumexp(mass)
        # both pmfs add up to 1, also over many rounds
        return loss + special.logsumexp(mass - loss), mass

    def boundaries_at(self, grid: Array) -> tuple[Array, float]:
        """The losses themselves, and how far the places of any kind miss them."""
        whole = np.concatenate([[-np.inf], grid, [np.inf]])
        whole = whole if self.sign > 0 else -whole[::-1]
        miss = 0.0
        for branch in self._branches:
            for cells in _blocks(len(self.chances), branch.cells(whole)):
                miss = max(miss, _places(branch, whole[cells.start : cells.stop + 1].tobytes())[1])
        return grid, miss

    def log_loss_density(self, x: Array) -> Array:
        if len(x) == 1:
            return np.zeros(1)
        middle = (x[:-1] + x[1:]) / 2.0
        ends = np.concatenate([[2.0 * x[0] - middle[0]], middle, [2.0 * x[-1] - middle[-1]]])
        return np.asarray(self.cells(ends).log_p - np.log(np.diff(ends)))

    def cells(self, boundaries: Array) -> Cells:
        """Masses between consecutive losses, summed over the kinds of rounds."""
        if self.sign > 0:
            return self._forward(boundaries)
        found = self._forward(-boundaries[::-1])
        with np.errstate(invalid="ignore"):
            log_q = np.where(np.isfinite(found.log_p), found.log_p - found.loss, -np.inf)
        return Cells(log_q[::-1], -found.loss[::-1], found.error[::-1])

    def _forward(self, boundaries: Array) -> Cells:
        total = _Sums(len(boundaries) - 1)
        for branch in self._branches:
            for cells in _blocks(len(self.chances), branch.cells(boundaries)):
                ends = boundaries[cells.start : cells.stop + 1]
                total.add(cells, *branch.masses(_places(branch, ends.tobytes())[0]))
        centre = np.flatnonzero((boundaries[:-1] < 0.0) & (boundaries[1:] >= 0.0))
        if centre.size and self._log_atom > -math.inf:
            atom = np.full((1, 1), self._log_atom)
            tiny = np.full((1, 1), ulps(32.0, of=math.exp(-self._log_atom)))
            total.add(
                slice(int(centre[0]), int(centre[0]) + 1),
                atom,
                atom,
                np.full((1, 1), -np.inf),
                1.0,
                tiny,
            )
        return total.cells(self.error)

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds on D_{e^eps}: the tail of every kind from where its loss is epsilon."""
        tail = self.cells(np.array([epsilon, np.inf]))
        if not np.isfinite(tail.log_p[0]):
            return 0.0, 0.0
        _, miss = self.boundaries_at(np.array([epsilon]))
        near = epsilon - _AROUND * (1.0 + abs(epsilon)) - miss
        around = math.exp(float(self.cells(np.array([near, np.inf])).log_p[0]))
        lower, upper = tail_delta(tail, epsilon, around, miss)
        return lower, min(upper, 1.0)


@dataclass(frozen=True, eq=False)
class _Branch:
    """All kinds on the side where the record's presence (``up``) or absence shows."""

    up: bool
    client: float
    record: float
    log_chances: Array
    shift: Array
    far: Array  # away, from the single Gaussian
    gap: Array  # away, from without the record, along the line
    log_odds: Array  # of being away, at 0

    def select(self, kinds: NDArray[np.int64], log_chances: Array) -> _Branch:
        """Some kinds alone, with these chances."""
        parts = (self.shift[kinds], self.far[kinds], self.gap[kinds], self.log_odds[kinds])
        return _Branch(self.up, self.client, self.record, log_chances, *parts)

    def cells(self, boundaries: Array) -> range:
        """Which cells between these losses reach into this branch."""
        if self.up:
            return range(
                int(np.searchsorted(boundaries[1:], 0.0, side="right")), len(boundaries) - 1
            )
        return range(int(np.searchsorted(boundaries[:-1], 0.0, side="left")))

    def log_here(self, u: Array) -> Array:
        """Log of the chance that the client takes part, given the sum at u without the record."""
        with np.errstate(invalid="ignore"):
            distance = np.where(
                self.gap > 0.0, self.gap * np.where(np.isinf(u), np.sign(u) * 1e300, u), 0.0
            )
            return np.asarray(-np.logaddexp(0.0, self.log_odds - distance))

    def loss(self, u: Array) -> Array:
        """log P/Q at u, with the record against without."""
        rise = self.shift * (u + self.shift / 2.0)
        here = self.log_here(u) + math.log(self.record)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if not self.up:
                small = np.log1p(np.exp(here) * np.expm1(-rise))
                return np.asarray(
                    np.where(
                        small > _DEEP, small, self._deep(u)[0] if self.record == 1.0 else small
                    )
                )
            small = np.log1p(np.exp(here) * np.expm1(np.minimum(rise, 30.0)))
            large = np.logaddexp(np.log1p(-np.exp(np.minimum(here, -1e-300))), here + rise)
        return np.asarray(np.where(rise > 30.0, large, small))

    def _deep(self, u: Array) -> tuple[Array, Array]:
        """Loss log(away + here e^-t) and slope, where all records are used and absence shows."""
        log_away = self.log_odds - np.where(self.gap > 0.0, self.gap * u, 0.0)
        rise = self.shift * (u + self.shift / 2.0)
        top = np.logaddexp(log_away, -rise)
        share = np.exp(log_away - top)
        slope = (
            -share * self.gap
            - (1.0 - share) * self.shift
            + self.gap * np.exp(log_away + self.log_here(u))
        )
        return top + self.log_here(u), slope

    def solve(self, loss: Array) -> tuple[Array, float]:
        """Where each kind has these losses, all of this branch's sign, and a bound on the error.

        With t = shift (u + shift/2) the size of the loss is a function of log_here(u) +
        log|expm1(+-t)|, which is concave and increasing; as log_here <= 0 the root of the rest lies
        left of the root. A tangent lies above a concave function, so every step of Newton's method
        ends left of the root, and climbs from there. Whatever is missed is returned.
        """
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            size = np.where(
                loss > 30.0, loss + np.log1p(-np.exp(-loss)), np.log(np.abs(np.expm1(loss)))
            )
            goal = np.broadcast_to(size - math.log(self.record), (len(self.shift), len(loss)))
            start = goal - np.where(self.gap > 0.0, 0.0, self.log_here(np.zeros(1)))
            t = np.logaddexp(0.0, start) if self.up else -np.log1p(-np.exp(np.minimum(start, 0.0)))
            u = t / self.shift - self.shift / 2.0
        u = np.where(np.isfinite(u), np.maximum(u, self._guess(goal)), u)
        for _ in range(_STEPS):
            value, slope = self._climb(u)
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                off = np.where(np.isfinite(u), goal - value, 0.0)
                if not (np.abs(off) > _SOLVED * (1.0 + np.abs(goal))).any():
                    break
                fresh = u + off / slope
            u = np.where(np.isfinite(fresh), fresh, u)
        if not self.up and self.record == 1.0:
            u = self._dive(u, loss)
        # no gap to the atom
        u = np.where(loss == 0.0, -self.shift / 2.0, np.maximum(u, -self.shift / 2.0))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            # of a branch that goes down
            limit = np.log1p(-self.record * np.exp(self.log_here(np.full(1, np.inf))))
            value = np.where(np.isfinite(u), self.loss(u), np.minimum(loss, limit))
            off = np.where(np.isfinite(loss) & (loss != 0.0), np.abs(value - loss), 0.0)
        return u, float(off.max(initial=0.0))

    def _dive(self, u: Array, loss: Array) -> Array:
        """The same for losses so low that 1 - e^loss is 1: Newton's method inside a bisection."""
        bottomless = (self.gap > 0.0) | np.isinf(self.log_odds)
        deep = bottomless & (loss < _DEEP) & np.isfinite(loss)
        loss = np.where(np.isfinite(loss), np.minimum(loss, _DEEP), _DEEP)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            half = loss - math.log(2.0)
            right = np.maximum(
                -half / self.shift, np.where(self.gap > 0.0, (self.log_odds - half) / self.gap, 0.0)
            )
        low, high = np.broadcast_to(-self.shift / 2.0, u.shape), np.maximum(right, 0.0)
        x = np.clip(np.where(np.isfinite(u), u, high), low, high)
        for _ in range(_STEPS):
            value, slope = self._deep(x)
            low, high = np.where(value > loss, x, low), np.where(value > loss, high, x)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                fresh = x - (value - loss) / slope
            x = np.where((fresh > low) & (fresh < high), fresh, (low + high) / 2.0)
        return np.where(deep, x, u)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Places and values of the concave function, to start from."""
        u = -self.shift / 2.0 + np.geomspace(1e-8, 60.0, _TABLE) * (1.0 + self.shift)
        return u, self._climb(u)[0]

    def _guess(self, goal: Array) -> Array:
        """Near the root; from either side one step of Newton's method leads to its left."""
        u, value = self._table
        near = [
            np.interp(row, v, place, left=-np.inf, right=-np.inf)
            for row, v, place in zip(goal, value, u, strict=True)
        ]
        return np.stack(near)

    def _climb(self, u: Array) -> tuple[Array, Array]:
        """The concave function and its slope."""
        log_here = self.log_here(u)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            t = self.shift * (u + self.shift / 2.0)
            shrink = -np.expm1(-t)
            value = log_here + np.log(shrink) + (t if self.up else 0.0)
            slope = (
                -self.gap * np.expm1(log_here)
                + self.shift * (1.0 if self.up else np.exp(-t)) / shrink
            )
        return value, slope

    def masses(self, u: Array) -> tuple[Array, Array, Array, float, Array]:
        """Log masses of P, Q and their difference, its sign, and errors, between these places."""
        p, q = self.client, self.record
        u = u if self.up else u[:, ::-1]
        near, near_error = log_interval(u)
        back, back_error = log_interval(u + self.shift)
        away, away_error = log_interval(u + np.where(np.isinf(self.far), 0.0, self.far))
        away = np.where(np.isinf(self.far), -np.inf, away) + math.log1p(-p)
        without, with_ = (back, near) if self.up else (near, back)
        log_q = np.logaddexp(away, math.log(p) + without)
        log_p = np.logaddexp(away, math.log(p) + without + _log1m(q))
        log_p = np.logaddexp(log_p, math.log(p * q) + with_)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.where(near > back, near + np.log(-np.expm1(back - near)), -np.inf) + math.log(
                p * q
            )
        error = np.maximum(
            np.maximum(near_error, back_error), np.where(np.isinf(self.far), 0.0, away_error)
        )
        chances = self.log_chances
        found = [log_p + chances, log_q + chances, gap + chances, error]
        log_p, log_q, gap, error = found if self.up else [x[:, ::-1] for x in found]
        return log_p, log_q, gap, 1.0 if self.up else -1.0, error

    def nodes(self, reach: float) -> tuple[Array, Array, Array]:
        """Losses and log masses of P and of Q, up to ``reach`` beyond the single Gaussian."""
        places = -self.shift / 2.0 + (max(reach, 1.0) + self.shift / 2.0) * np.linspace(
            0.0, 1.0, _NODES + 1
        )
        u = places if self.up else places[:, ::-1]
        log_p, log_q, _, _, _ = self.masses(u)
        return self.loss((u[:, :-1] + u[:, 1:]) / 2.0).ravel(), log_p.ravel(), log_q.ravel()


def _log1m(x: float) -> float:
    return math.log1p(-x) if x < 1.0 else -math.inf


def _blocks(kinds: int, cells: range) -> list[slice]:
    """The cells in portions that fit in memory."""
    size = max(_BLOCK // kinds, 1)
    return [slice(i, min(i + size, cells.stop)) for i in range(cells.start, cells.stop, size)]


@lru_cache(maxsize=8)
def _places(branch: _Branch, boundaries: bytes) -> tuple[Array, float]:
    """Where each kind has these losses; cached, as each grid is asked for twice."""
    loss = np.frombuffer(boundaries)
    loss = np.maximum(loss, 0.0) if branch.up else np.minimum(loss, 0.0)
    return branch.solve(loss)


class _Sums:
    """Masses of P and Q by cell; their difference is kept too, so that small losses keep digits."""

    def __init__(self, count: int) -> None:
        self.top = {name: np.full(count, -np.inf) for name in "pq"}
        self.sum = {name: np.zeros(count) for name in "pq"}
        self.wrong = {name: np.zeros(count) for name in "pq"}
        self.gap = np.zeros(count)  # P - Q, in units of the largest mass of Q

    def add(
        self, cells: slice, log_p: Array, log_q: Array, log_gap: Array, sign: float, error: Array
    ) -> None:
        """Add rows of log masses in some cells."""
        for name, logs in (("p", log_p), ("q", log_q)):
            old = self.top[name][cells]
            top = np.maximum(logs.max(axis=0), old)
            top = np.where(np.isfinite(top), top, 0.0)
            rows, shrink = np.exp(logs - top), np.exp(old - top)
            self.sum[name][cells] = self.sum[name][cells] * shrink + rows.sum(axis=0)
            self.wrong[name][cells] = self.wrong[name][cells] * shrink + (rows * error).sum(axis=0)
            self.top[name][cells] = top
        # where P is far above Q the logarithms do
        with np.errstate(over="ignore", invalid="ignore"):
            self.gap[cells] = self.gap[cells] * shrink + sign * np.exp(log_gap - top).sum(axis=0)

    def cells(self, error: float) -> Cells:
        """Log masses of P and losses, with a bound on the errors of both."""
        some = (self.sum["p"] > 0.0) & (self.sum["q"] > 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_p, log_q = (
                np.where(some, np.log(self.sum[name]) + self.top[name], -np.inf) for name in "pq"
            )
            ratio = self.gap / self.sum["q"]
            loss = np.where(np.abs(ratio) < 0.5, np.log1p(ratio), log_p - log_q)
            wrong = np.where(some, sum(self.wrong[name] / self.sum[name] for name in "pq"), 0.0)
        size = np.where(some, np.abs(log_p) + np.abs(log_q), 0.0)
        rounding = ulps(64.0 + 4.0 * size)
        return Cells(log_p, np.where(some, loss, 0.0), wrong + 2.0 * error + rounding)
