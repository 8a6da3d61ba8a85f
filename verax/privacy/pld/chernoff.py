"""Bounds on a composition that need no convolution, for where a Fourier transform cannot follow.

Rates so small that hardly a round matters, or an epsilon far out in a heavy tail, would take grids
of billions of points. What holds there with nothing but one round's pld: from above Chernoff's
inequality, from below the attack that looks for one telling round (docs/proofs.md, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect
from verax.privacy.numerics.rounding import OPS_8, OPS_8M, OPS_8000, down, ulps, up
from verax.privacy.pairs.base import DominatingPair
from verax.privacy.pld.discretise import DiscretePld

_TILTS = np.geomspace(1e-9, 1e12, 85)
_THRESHOLDS = 400
_FAR = 1e7  # as far out as an attack looks
# shares of epsilon up to which losses are left to Chernoff's inequality
_SMALL_LOSSES = (0.03, 0.1, 0.3, 0.6, 0.9)
# shares of epsilon that all rounds but the one with a large loss may use up
_OTHERS = (0.01, 0.03, 0.1, 0.3)


_Part = tuple[Array, Array, float, int]


def _log_masses(parts: Sequence[_Part]) -> list[float]:
    """Upper bounds on the log of each kind's mass, of all its rounds or any of them, under P or Q.

    Q's masses are P's times e^{-loss}, and losses are known up to the shift.
    """
    logs = []
    for log_mass, losses, shift, count in parts:
        mass = max(float(np.exp(log_mass).sum()), float(np.exp(log_mass - losses).sum()), 1.0)
        logs.append(count * (math.log(mass) + shift + ulps(2.0 * len(losses) + 8.0)))
    return logs


class ChernoffBound:
    """Upper bounds on delta(eps) from moments, and from moments of all losses but one large one.

    *Chernoff*: delta(eps) <= E e^{t (L - eps)} max_u e^{-tu} (1 - e^{-u}) for every tilt t > 0, L
    the composed loss.

    *One large loss*: call a loss above b large, and let D_b be the bound above if large ones are
    left out. Then

        delta(eps) <= D_b(eps) + sum_t e^h D_t(eps - h; loss > b) + p_b (D_b(h) + p_b),   0 < h <
        eps,

    with D_t(.; loss > b) round t's curve restricted to large losses and p_b the expected number of
    those (docs/proofs.md, theorem 11). Where rounds rarely matter the first bound sees nothing but
    the largest loss there is.

    All is computed for upper discretisations, so it is never too small; they may have a little more
    mass than 1.
    """

    def __init__(self, rounds: Sequence[tuple[DiscretePld, int]], infinite: float) -> None:
        self._parts = [
            (pld.log_mass[(some := pld.log_mass > -np.inf)], pld.losses[some], pld.shift, count)
            for pld, count in rounds
        ]
        self._infinite = up(infinite, OPS_8M)
        self._mass = up(math.exp(min(math.fsum(_log_masses(self._parts)), 700.0)), OPS_8000)

    def _log_moments(self, most: float, any_number: bool = False) -> tuple[Array, Array]:
        """log E e^{tL} for all tilts without losses above ``most``, and bounds on its rounding.

        For ``any_number`` of the rounds, the largest.
        """
        total, error = np.zeros(len(_TILTS)), np.zeros(len(_TILTS))
        for log_mass, losses, shift, count in self._parts:
            kept = losses <= most
            if not kept.any():
                if any_number:  # none of these, then
                    continue
                return np.full(len(_TILTS), -np.inf), error
            logs = log_mass[kept] + np.multiply.outer(_TILTS, losses[kept])
            top = logs.max(axis=1)
            moment = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
            size = np.abs(top) + _TILTS * np.abs(losses[kept]).max() + 50.0
            total += count * (np.maximum(moment, 0.0) if any_number else moment)
            error += count * (
                _TILTS * shift + ulps(np.count_nonzero(kept) + 16.0 * size + np.abs(moment))
            )
        return total, error + ulps(8.0, of=np.abs(total))

    def _small(self, epsilon: float, most: float = np.inf, any_number: bool = False) -> float:
        """Chernoff's bound on delta(epsilon) without losses above ``most``; at most all mass."""
        moments, errors = self._log_moments(most, any_number)
        logs = moments - _TILTS * epsilon + _LOG_PEAKS + errors
        logs += ulps(8.0, of=_TILTS * epsilon - _LOG_PEAKS + 1.0)
        return min(math.exp(min(float(logs.min()), 700.0)), self._mass)

    def _one_large(self, epsilon: float) -> float:
        """The second bound, at the best of a few b and h."""
        best = 1.0
        if self._mass > _MUCH:
            return best
        for share in _SMALL_LOSSES:
            most = share * epsilon
            bulk, number = self._small(epsilon, most), self._large(0.0, most)[1]
            for others in _OTHERS:
                left = others * epsilon
                rest = min(
                    self._small(left, most, any_number=True) + self._mass * number, self._mass
                )
                large = self._large(epsilon - left, most)[0]
                one = (
                    self._mass * math.exp(min(left + math.log(large), 1.0)) if large > 0.0 else 0.0
                )
                best = min(best, up(bulk + one + number * rest, OPS_8M))
        return best

    def _large(self, epsilon: float, most: float) -> tuple[float, float]:
        """The rounds' curves at epsilon, and masses, of losses above ``most``, each added up."""
        curve, number = [], []
        for log_mass, losses, shift, count in self._parts:
            above = losses > most
            mass = np.exp(log_mass[above])
            gone = -np.expm1(-np.maximum(losses[above] + shift - epsilon, 0.0))
            curve.append(count * float(mass @ gone))
            number.append(count * float(mass.sum()))
        return up(math.fsum(curve), OPS_8M), up(math.fsum(number), OPS_8M)

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta(epsilon)."""
        epsilon = min(epsilon, _LARGEST)
        best = self._small(epsilon)
        if best > _NOTHING and epsilon > 0.0:
            best = min(best, self._one_large(epsilon))
        return min(best + self._infinite, 1.0)

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon(delta); delta() has been seen to hold where it says so."""
        left = delta - self._infinite
        if left <= 0.0:
            return math.inf
        moments, errors = self._log_moments(math.inf)
        values = (moments + errors + _LOG_PEAKS - math.log(left)) / _TILTS
        values += ulps(8.0, of=np.abs(moments) - _LOG_PEAKS + abs(math.log(left)) + 1.0) / _TILTS
        high = max(float(values.min()), 0.0)
        low = high * 2.0**-40
        if low == 0.0:
            return high
        return bisect(lambda e: self._one_large(e) <= left, high, low, rtol=0.02, geometric=True)[0]


_LOG_PEAKS = -_TILTS * np.log1p(1.0 / _TILTS) - np.log1p(_TILTS)
"""log of the largest e^{-tu} (1 - e^{-u}), at u = log(1 + 1/t)."""

_NOTHING = 1e-300
_LARGEST = 1e250  # an epsilon; delta falls, so what holds here holds further out
_MUCH = 1.5  # mass of measures that the second bound is of no use for


class OneRoundAttack:
    """The attack that says "present" if the loss of any round exceeds a threshold.

    With p and q the chances of that in one round, P[some round] = 1 - prod (1 - p)^n and Q[some
    round] <= sum n q.
    """

    def __init__(
        self, rounds: Sequence[tuple[DominatingPair, int]], highs: Sequence[float]
    ) -> None:
        top = max(highs)
        losses = top * np.geomspace(1e-12, 1.0, _THRESHOLDS)
        stay, log_caught = np.zeros(_THRESHOLDS), np.full(_THRESHOLDS, -np.inf)
        for pair, count in rounds:
            log_p, log_q = _tails(pair, losses)
            with np.errstate(divide="ignore"):  # a round that surely shows it
                stay += count * np.log1p(-np.exp(np.minimum(log_p, 0.0)))
            log_caught = np.logaddexp(log_caught, math.log(count) + log_q)
        self._found = down(-np.expm1(stay), OPS_8000)
        some = np.isfinite(log_caught)
        log_caught[some] = np.minimum(
            log_caught[some] + OPS_8000 * (1.0 + np.abs(log_caught[some])), 0.0
        )
        self._log_caught = log_caught

    def delta(self, epsilon: float) -> float:
        """A lower bound on delta(epsilon)."""
        false = np.exp(np.minimum(self._log_caught + up(epsilon, OPS_8), 0.0))
        return max(float((self._found - up(false, OPS_8000)).max()), 0.0)

    def epsilon(self, delta: float) -> float:
        """A lower bound on epsilon(delta)."""
        left = self._found - up(delta, OPS_8000)
        useful = (left > 0.0) & np.isfinite(self._log_caught)
        if not useful.any():
            return 0.0
        logs = np.log(left[useful]) - self._log_caught[useful]
        return max(down(float(logs.max()), OPS_8000) - OPS_8000, 0.0)


def _tails(pair: DominatingPair, losses: Array) -> tuple[Array, Array]:
    """Log masses of P (rounded down) and Q (rounded up) where losses exceed each threshold.

    Any events would do: these are tails of cells, whose boundaries need not be exact.
    """
    boundaries = np.maximum.accumulate(np.clip(pair.inverse(losses), -_FAR, _FAR))
    cells = pair.cells(np.append(boundaries, np.inf))
    some = np.isfinite(cells.log_p)
    log_p = np.where(some, cells.log_p - 2.0 * cells.error, -np.inf)
    log_q = np.where(
        some, cells.log_p - np.where(some, cells.loss, 0.0) + 4.0 * cells.error, -np.inf
    )
    return _sum_from_right(log_p, -1.0), _sum_from_right(log_q, 1.0)


def _sum_from_right(logs: Array, side: float) -> Array:
    """Logs of all partial sums from the right; each errs by four units of its logarithm."""
    sums = np.logaddexp.accumulate(logs[::-1])[::-1]
    some = np.isfinite(sums)
    largest = float(np.abs(sums[some]).max(initial=0.0))
    return np.asarray(sums + np.where(some, side * ulps(4.0 * len(logs), of=1.0 + largest), 0.0))
