"""Sums over the batches of an epoch: a lattice, one Fourier transform, every error charged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_probability
from verax.privacy.numerics.roots import root
from verax.privacy.numerics.rounding import OPS_80, OPS_8000, ulps, up
from verax.privacy.pairs.shuffled.ratios import Atoms
from verax.privacy.pld.convolve import TiltedPmf, convolve
from verax.privacy.pld.discretise import DiscretePld

_WEIGHTS = 20  # points that the weights of a batch are spread on
_LARGEST_BATCH = 2**14  # a larger batch's weights are bounded by this one's
_FAINT = 1e-19  # of a count's probability: what is left out is charged
_STEPS = 9.0  # lattice points to a standard deviation of one variable
_ALIAS = 1e-5  # tilted mass outside the window; little of it weighs anything there
_MOST_POINTS = 2**21
_LARGEST_LOG = 600.0  # of what is added up in doubles


@dataclass(frozen=True)
class Batches:
    """Batches of one kind that the record may be in: their number, size and relative weight."""

    count: int
    size: int
    weight: float


UNIT_WEIGHT = Atoms(np.ones(1), np.ones(1))
"""The weight of batches that tell nothing of who was displaced."""


@lru_cache(maxsize=4096)
def batch_weights(size: int, rate: float, contrast: float) -> Atoms:
    """The law of 1 + (H / (size rate) - 1) / contrast for H binomial, spread on a few points."""
    count = min(size, _LARGEST_BATCH)
    mode = min(int((count + 1) * rate), count)
    peak = binomial_probability(count, rate, mode).upper
    odds = rate / (1.0 - rate)
    above, below = [], []
    mass, hits = peak, mode
    while hits < count and mass > _FAINT * peak:
        mass *= (count - hits) / (hits + 1.0) * odds
        hits += 1
        above.append(mass)
    mass, hits = peak, mode
    while hits > 0 and mass > _FAINT * peak:
        mass *= hits / ((count - hits + 1.0) * odds)
        hits -= 1
        below.append(mass)
    masses = np.array([*below[::-1], peak, *above])
    numbers = mode - len(below) + np.arange(len(masses), dtype=np.float64)
    # beyond the ends masses fall at least geometrically; what is left out is at most the number of
    # hits times that
    cut = [
        end for end, cut in ((masses[0], numbers[0] > 0), (masses[-1], numbers[-1] < count)) if cut
    ]
    beyond = math.fsum(float(mass) for mass in cut) * count**2 / (count * rate * contrast)
    values = 1.0 + (numbers / (count * rate) - 1.0) / contrast
    masses = up(masses, OPS_8000 + float(ulps(16.0 * len(masses) + 4.0 * count)))
    if len(values) > _WEIGHTS:
        values, masses = _spread(values, masses, np.linspace(values[0], values[-1], _WEIGHTS))
    return Atoms(values, masses, beyond)


def _spread(values: Array, masses: Array, grid: Array) -> tuple[Array, Array]:
    """Masses moved to the grid points around them, keeping means: larger in convex order."""
    cell = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    share = np.clip((values - grid[cell]) / (grid[cell + 1] - grid[cell]), 0.0, 1.0)
    spread = np.bincount(cell, masses * (1.0 - share), len(grid))
    return grid, np.asarray(spread + np.bincount(cell + 1, masses * share, len(grid)))


class PositivePart:
    """y -> E(y + sum of independent products of a weight and a ratio)^+, from above."""

    def __init__(self, ratio: Atoms, kinds: Sequence[tuple[Batches, Atoms]]) -> None:
        products = [(batches.count, *_products(ratio, w, batches.weight)) for batches, w in kinds]
        count = sum(number for number, _, _ in products)
        # one value as large as the drift decides the sum; what is beyond needs no lattice
        drift = max(-math.fsum([n * float(v @ q) for n, v, q in products]), 0.0)
        rare = exceeded_once(ratio.values, ratio.masses, count)
        deviation = max(_deviation(np.minimum(v, max(drift, rare)), q) for _, v, q in products)
        reach = drift + 8.0 * deviation * math.sqrt(count)
        size = float(np.abs(ratio.values) @ ratio.masses)
        excess = math.fsum(n * float(q @ np.maximum(v - reach, 0.0)) for n, v, q in products)
        for batches, weights in kinds:
            mean = float(np.abs(weights.values) @ weights.masses)
            excess += batches.count * batches.weight * (mean * ratio.beyond + weights.beyond * size)
            # a negative weight makes less of a ratio that was raised
            negative = float(np.maximum(-weights.values, 0.0) @ weights.masses)
            excess += batches.count * batches.weight * negative * ratio.raised
        self._excess = up(excess, OPS_8000)
        step, least = deviation / _STEPS, 0.3 / (deviation * math.sqrt(count))
        for coarser in (1.0, 4.0, 16.0):
            laws = [(lattice(np.minimum(v, reach), q, coarser * step), n) for n, v, q in products]
            self._tilt = centring_tilt(laws, least)
            with suppress(FloatingPointError, MemoryError):
                self._read(convolve(laws, self._tilt, _ALIAS, _MOST_POINTS))
                return
        raise MemoryError("no lattice is fine enough and has few enough points")

    def _read(self, sums: TiltedPmf) -> None:
        places, t = sum_places(sums), self._tilt
        law = np.maximum(sums.pmf, 0.0) + sums.bin_error
        weights = law * np.exp(np.minimum(-t * places, _LARGEST_LOG))
        self._log_scale, self._places = sums.log_scale, places
        self._mass = np.cumsum(weights[::-1])[::-1]
        self._mean = np.cumsum((weights * places)[::-1])[::-1]
        self._size = np.cumsum((weights * np.abs(places))[::-1])[::-1]
        largest = abs(self._log_scale) + t * float(np.abs(places).max())
        self._slack = OPS_8000 + float(ulps(16.0, of=largest + len(law)))

    def at(self, y: float) -> float:
        """The bound at y >= 0."""
        # what is added to a sum adds no more to its positive part
        least = y + self._at(0.0)
        return min(self._at(y), least) if self._tilt * y < _LARGEST_LOG else least

    def _at(self, y: float) -> float:
        t, places = self._tilt, self._places
        first = min(int(np.searchsorted(places, -y)), len(places) - 1)
        mass, mean, size = (sums[first] for sums in (self._mass, self._mean, self._size))
        total = float(y * mass + mean + ulps(4.0 * len(places), of=float(y * mass + size)))
        # mass outside the window: a height h has weight h e^{-t (h - y)} there
        stop, start = y + float(places[-1]), y + float(places[0])
        ends = [max(stop, 1.0 / t)] + ([1.0 / t] if start > 0.0 else [])
        total += math.fsum(_ALIAS * end * math.exp(-t * (end - y)) for end in ends)
        return up(total * math.exp(self._log_scale), self._slack) + self._excess


def sum_places(sums: TiltedPmf) -> Array:
    """The values of the sum, each raised by its own rounding."""
    places = sums.base + (sums.first + np.arange(len(sums.pmf))) * sums.step
    return np.asarray(places + ulps(8.0, of=float(np.abs(places).max()) + abs(sums.base)))


def _products(ratio: Atoms, weights: Atoms, scale: float) -> tuple[Array, Array]:
    """Values and masses; negative weights of large ratios are raised, which makes it larger."""
    lowest = float(ratio.values.min() * weights.values.max())
    values = np.maximum(np.multiply.outer(weights.values, ratio.values).reshape(-1), lowest)
    masses = np.multiply.outer(weights.masses, ratio.masses).reshape(-1)
    return scale * values, masses


def exceeded_once(values: Array, masses: Array, count: int) -> float:
    """About the value that one of ``count`` draws exceeds."""
    order = np.argsort(values)
    tail = np.cumsum(masses[order][::-1])[::-1]
    return float(values[order][min(int(np.searchsorted(-tail, -1.0 / count)), len(tail) - 1)])


def _deviation(values: Array, masses: Array) -> float:
    mean = float(values @ masses)
    return math.sqrt(max(float((values - mean) ** 2 @ masses), 1e-24 * mean * mean, 1e-290))


def lattice(values: Array, masses: Array, step: float) -> DiscretePld:
    """Masses moved to the multiples of ``step`` around them, keeping means: larger."""
    cell = np.floor(values / step)
    first = int(cell.min())
    index = cell.astype(np.int64) - first
    share = np.clip(values / step - cell + ulps(4.0, of=np.abs(cell) + 1.0), 0.0, 1.0)
    size = int(index.max()) + 2
    total = np.bincount(index, masses * (1.0 - share), size)
    total += np.bincount(index + 1, masses * share, size)
    some = np.flatnonzero(total)
    logs = np.log(total[some]) + OPS_80 + float(ulps(float(len(values))))
    return DiscretePld(first * step, step, some, logs, 0.0, 0.0)


def centring_tilt(laws: Sequence[tuple[DiscretePld, int]], least: float) -> float:
    """About the tilt at which the sum has mean 0, or ``least`` if that is larger. Any is sound."""
    parts = [(law.losses, law.log_mass, count) for law, count in laws]

    def mean(log_tilt: float) -> float:
        tilt, total = math.exp(log_tilt), 0.0
        for losses, log_mass, count in parts:
            logs = log_mass + tilt * losses
            weights = np.exp(logs - logs.max())
            total += count * float(weights @ losses) / float(weights.sum())
        return total

    low, stride = math.log(least), 0.5
    if mean(low) >= 0.0:
        return least
    high = low + stride
    while mean(high) < 0.0 and high < low + 60.0:
        stride *= 2.0
        low, high = high, high + stride
    return math.exp(root(mean, low, high, xtol=0.1)) if high < low + 60.0 else math.exp(low)
