"""An upper bound for a record in k of T random rounds, through independent coins.

If every round were joined by a coin of chance c, the likelihood of the transcript would change by
the product R of 1 - c + c Y_t, and given the transcript the number of rounds joined would be a sum
of independent coins with chances p_t = c Y_t / (1 - c + c Y_t). Having joined exactly k has prior
probability beta = Bin(T, c)(k), so

    S = R P[N = k | transcript] / beta,    P[N = k | transcript] <= (1/pi) int_0^pi exp(-(1 - cos
    phi) V) dphi,

with V the sum of v_t = p_t (1 - p_t): bound the characteristic function of N factor by factor. At a
few angles each integrand is a product over rounds, whose pmf is a composition. Theorem and proof:
docs/proofs.md, theorem 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import log_binomial_probability
from verax.privacy.numerics.roots import bisect
from verax.privacy.numerics.rounding import OPS_8M, down, ulps, up
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.one_of_many import RatioPmf, round_to_grid
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import BOTH, UPPER, Bounds, Composition, Sides

FEWEST = 4
"""Rounds joined, and rounds left out, from which on the bound is worth its time."""
_WORTH = 0.05  # from which variance of a round's factor on
_LARGEST_SHIFT = 3.5  # beyond which blocks of rounds are better, and faster
_STEP = 0.005  # width of cells on the line, in standard deviations of the noise
_FAR = 13.6  # standard deviations beyond which nothing is told apart
_ANGLES, _WIDEST = 8, 4.5  # nodes of the integral, up to that many of its standard deviations
_LEANS = np.append(1.0 - np.geomspace(1e-3, 0.05, 12), np.geomspace(0.94, 0.1, 38))
"""Chances of the coins that are tried, as shares of k/T."""
_TILTED = 20.0  # the strongest tilt looked at
_EVEN = 0.02  # of Q, what is shared out evenly: for transcripts with an unlikely V
_FLAT = 1e-9  # of the log factor: points on the line that differ by less are one
_COARSE = 0.03  # width of log delta that is always fine enough
_STEP_BACK = 0.01  # of epsilon, how far back the search for a smaller one goes at first
_LEAST = 1e-300


@dataclass(frozen=True)
class CoinChoice:
    """A chance c, the V and the epsilon where it serves best, and about the log delta there."""

    chance: float
    variance: float
    epsilon: float
    log_delta: float


@dataclass(frozen=True)
class RandomSubsetBound:
    """The curve of ``times`` of ``steps`` rounds shifted by ``shift``, against none, from above.

    ``constant_shift`` is the shift of a Gaussian mechanism that is seen as well.

    >>> lower, upper = RandomSubsetBound(10, 100, 1.0).epsilon(1e-6, 1e-3)
    >>> 6.51 < upper < 6.65  # blocks of rounds give 6.91, the best attack known 6.515
    True
    """

    times: int
    steps: int
    shift: float
    constant_shift: float = 0.0

    @staticmethod
    def applies(times: int, steps: int, shift: float) -> bool:
        """Whether the bound is worth its time; blocks do as well for rare rounds or large noise."""
        worth = FEWEST <= times <= steps - FEWEST and shift <= _LARGEST_SHIFT
        return worth and times / steps * math.expm1(shift * shift) > _WORTH

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self._for_delta(delta).epsilon

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        coins = min(
            _choices(self.times, self.steps, self.shift, self.constant_shift),
            key=lambda c: abs(c.epsilon - epsilon),
        )
        return 0.0, _delta(self._parts(coins), epsilon, rtol)

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        coins = self._for_delta(delta)
        parts = self._parts(coins)
        # of log delta: as much as epsilon's width is worth
        width = min(max(rtol * coins.epsilon, rtol), _COARSE)

        def excess(epsilon: float) -> float:
            return math.log(max(_delta(parts, epsilon, width), _LEAST) / delta)

        if enough > 0.0 and excess(enough) <= 0.0:
            return 0.0, enough
        low, high = 0.0, max(coins.epsilon, 1e-3)
        above, below = math.inf, excess(high)
        while below > 0.0:
            low, above, high = high, below, 1.02 * high + 0.02
            if high > 1e6:
                return 0.0, math.inf
            below = excess(high)
        while high - low > 0.2 * rtol * high:
            step = (
                high * _STEP_BACK if math.isinf(above) else (high - low) * below / (below - above)
            )
            middle = min(max(high - step, low + 0.02 * (high - low)), high - 0.05 * rtol * high)
            value = excess(middle)
            low, above, high, below = (
                (middle, value, high, below) if value > 0.0 else (low, above, middle, value)
            )
        return 0.0, high

    def _for_delta(self, delta: float) -> CoinChoice:
        choices = _choices(self.times, self.steps, self.shift, self.constant_shift)
        return min(choices, key=lambda c: abs(c.log_delta - math.log(delta)))

    def _parts(self, coins: CoinChoice) -> _Parts:
        return _parts(
            self.times, self.steps, self.shift, coins.chance, coins.variance, self.constant_shift
        )


_Parts = tuple[tuple[float, Composition], ...]


def _delta(parts: _Parts, epsilon: float, rtol: float) -> float:
    """The sum of the parts' deltas; being of measures of mass above 1, it is not cut at 1."""
    deltas = [curve.delta(epsilon, rtol, (UPPER,))[1] for _, curve in parts]
    if max(deltas) >= 1.0:
        return 1.0
    return min(up(math.fsum(w * d for (w, _), d in zip(parts, deltas, strict=True)), OPS_8M), 1.0)


@lru_cache(maxsize=32)
def _parts(
    times: int,
    steps: int,
    shift: float,
    chance: float,
    variance: float,
    constant_shift: float = 0.0,
) -> _Parts:
    """Shares of Q that add up to 1, and for each node the product over rounds."""
    weights, nodes = angles(variance)
    shares = weights * np.exp(-nodes * variance)
    shares = (1.0 - _EVEN) * shares / shares.sum() + _EVEN / len(nodes)
    shares *= down(1.0, OPS_8M) / shares.sum()
    log_chance = log_binomial_probability(steps, chance, times).lower
    log_scales = np.log(weights) - log_chance - np.log(shares) + 2.0 * OPS_8M
    tables = [
        _round(chance, shift, s, a / steps).table(spread=True)
        for s, a in zip(nodes, log_scales.tolist(), strict=True)
    ]
    always = (
        [(PricedRound(MixturePair.gaussian(constant_shift)), 1)] if constant_shift > 0.0 else []
    )
    curves = [Composition([(PricedRound(table), steps), *always]) for table in tables]
    return tuple(zip(shares.tolist(), curves, strict=True))


def angles(variance: float) -> tuple[Array, Array]:
    """Weights w, nodes s with (1/pi) int_0^pi exp(-(1 - cos phi) V) dphi <= sum w exp(-s V).

    Between nodes exp(-s V) is below its chord in s = 1 - cos phi, beyond a right angle below
    exp(-V).
    """
    end = min(_WIDEST / math.sqrt(variance), 0.5 * math.pi)
    turns = np.append(
        np.linspace(0.0, end, _ANGLES), [0.5 * math.pi] if end < 0.5 * math.pi else []
    )
    nodes = 2.0 * np.sin(0.5 * turns) ** 2
    gaps = np.diff(turns)
    right = (np.diff(turns - np.sin(turns)) - nodes[:-1] * gaps) / np.diff(nodes)
    weights = np.append(gaps - right, 0.5 * math.pi)
    weights[1:] += right
    return weights / math.pi, nodes


def _round(chance: float, shift: float, node: float, log_scale: float) -> RatioPmf:
    """One round's factor (1 - c + c Y) exp(-s v) under Q, times a constant, rounded up.

    It rises along the line, as its log has the slope p (1 - s (1 - p) (1 - 2 p)), which is not
    negative for s <= 1. In every cell v is at least what it is at one of the ends.
    """
    x = np.arange(-_FAR, _FAR + shift + _STEP, _STEP / max(shift, 1.0))
    rise, p = _factor(x, chance, shift)
    v = p * (1.0 - p)
    rise -= node * v
    _, kept = np.unique(np.floor(rise / _FLAT), return_index=True)
    kept = kept[rise[kept] > _FLAT]
    x, v = x[kept], v[kept]
    cells = MixturePair.subsampled(chance, shift).cells(np.concatenate([[-np.inf], x, [np.inf]]))
    least = np.concatenate([[0.0], np.minimum(v[:-1], v[1:]), [0.0]])
    corners = np.exp(np.concatenate([[0.0], rise[kept]]) + math.log1p(-chance) + log_scale)
    q, places = np.exp(cells.log_p - cells.loss), np.exp(cells.loss - node * least + log_scale)
    places[:-1] = np.minimum(places[:-1], corners[1:])  # a cell's mean is below its right end
    error = 2.0 * float(cells.error.max()) + ulps(
        8.0, of=2.0 + float(np.abs(cells.loss).max()) + abs(log_scale)
    )
    return round_to_grid(
        q, q * np.maximum(places - corners, 0.0), corners, 0.0, 2.0 * error, error, spread=True
    )


def _factor(x: Array, chance: float, shift: float) -> tuple[Array, Array]:
    """log(1 + c Y / (1 - c)), the log factor above its limit on the left, and p at points."""
    odds = math.log(chance) - math.log1p(-chance) + shift * x - 0.5 * shift * shift
    return np.logaddexp(0.0, odds), special.expit(odds)


# --- which coins: estimates that steer and never enter a bound ------------------------------------


@lru_cache(maxsize=64)
def _choices(
    times: int, steps: int, shift: float, constant_shift: float = 0.0
) -> tuple[CoinChoice, ...]:
    """Coins of several rates, each with the epsilon where k is the likely number of hits."""
    x = np.linspace(-9.0, 9.0 + (1.0 + _TILTED) * shift, 6000)
    found = []
    for lean in _LEANS.tolist():
        chance = lean * times / steps
        rise, p = _factor(x, chance, shift)
        log_r = rise + math.log1p(-chance)
        tilt = _tilt(x, log_r, p, times / steps)
        if tilt >= _TILTED:
            break
        logs = (1.0 + tilt) * log_r - 0.5 * x * x
        mass = special.softmax(logs)
        value = float(special.logsumexp(logs)) + math.log((x[1] - x[0]) / math.sqrt(2.0 * math.pi))
        mean, variance = float(mass @ log_r), steps * float(mass @ (p * (1.0 - p)))
        spread = math.sqrt(2.0 * math.pi * steps * float(mass @ (log_r - mean) ** 2))
        extra = (
            math.log(special.i0e(variance)) - log_binomial_probability(steps, chance, times).lower
        )
        spread = math.hypot(spread, math.sqrt(2.0 * math.pi) * constant_shift)
        epsilon = steps * mean + extra + constant_shift**2 * (0.5 + tilt)
        total = steps * value + (1.0 + tilt) * extra + 0.5 * constant_shift**2 * tilt * (1.0 + tilt)
        log_delta = total - tilt * epsilon - math.log1p(tilt * (1.0 + tilt) * spread)
        found.append(CoinChoice(chance, variance, epsilon, log_delta))
    return tuple(found)


def _tilt(x: Array, log_r: Array, p: Array, goal: float) -> float:
    """The power of R that makes the mean of p equal to k/T, less one."""

    def falls_short(tilt: float) -> bool:
        return float(special.softmax((1.0 + tilt) * log_r - 0.5 * x * x) @ p) < goal

    return bisect(falls_short, 0.0, _TILTED, halvings=30)[1]
