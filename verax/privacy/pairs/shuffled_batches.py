"""One epoch of shuffled batches: an upper bound on its privacy curve, and exact attacks.

Both come down to sums of independent variables on a line, one for each batch that the record may
be in. A variable is the ratio

    v(x) = dN(b)/dN(0)(x) - a dN(c)/dN(0)(x),    x standard normal, a = e^epsilon,

of what a batch would see with the record and without it. The curve is bounded by E(y + sum_t W_t
X_t)^+, where X_t is above every such ratio in convex order (lemma 1 of docs/shuffle.md), y is what
the batch sees that the displaced record joins, and the weights W_t say what that batch tells of the
record that was displaced (lemmas 2 to 4). Constants named here are free: any choice gives a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import optimize, special

from verax.privacy.curves.gaussian import gaussian_delta, gaussian_epsilon
from verax.privacy.numerics.distributions import binomial_probability
from verax.privacy.numerics.roots import root
from verax.privacy.numerics.rounding import LIBRARY_ULPS, OPS_80, OPS_8000, ulps, up
from verax.privacy.pairs.gaussian_mixture import Array, log_interval
from verax.privacy.pld.convolve import convolve
from verax.privacy.pld.discretise import Discrete

DEBUG=False
_CELLS = 300  # cells of x on either side of the sign change of a ratio
_FAR = 9.5  # standard deviations beyond all centres at which they end
_WEIGHTS = 16  # points that the weights are spread on
_LARGEST_BATCH = 2**14  # a larger batch's weights are bounded by this one's
_FAINT = 1e-19  # of a count's probability: what is left out is charged
_STEPS = 14.0  # lattice points to a standard deviation of one variable
_DEPTH = 1e-5  # of the mean, what is cut off the depths of a ratio
_ALIAS = 1e-13  # tilted mass outside the window, on either side
_RATIO = 1.5  # of the grid of mean weights
_LEAST_MEAN = 2e-3  # mean weight below which the record is taken to be seen
_EXCESS = 0.04  # share of delta that the cap of the weights may cost
_RATES = np.geomspace(0.3, 3000.0, 14)
"""Rates of the exponentials of which the bound on the mean weight is made."""


@dataclass(frozen=True)
class Ratio:
    """The ratio v above for two centres: what a batch sees of the record, minus a times without."""

    first: float
    second: float

    def threshold(self, log_a: float) -> float:
        """Where it changes sign."""
        squares = 0.5 * (self.first - self.second) * (self.first + self.second)
        return (log_a + squares) / (self.first - self.second)

    def value(self, x: Array, log_a: float) -> Array:
        """The ratio at x."""
        ahead = np.exp(self.first * x - 0.5 * self.first**2)
        return np.asarray(ahead - np.exp(log_a + self.second * x - 0.5 * self.second**2))


@dataclass(frozen=True)
class Directions:
    """The ratios whose positive part, and negative part, are above all others in convex order.

    (Lemma 1 of docs/shuffle.md.) ``own`` are the centres of the record's ratio in the batch that
    the displaced record joins.
    """

    positive: Ratio
    negative: Ratio
    own: tuple[float, float]


def directions(relation: str, s: float) -> tuple[Directions, Directions]:
    """The two directions of a relation: first against second data set, second against first."""
    if relation == "replace":
        both = Directions(Ratio(2.0 * s, 0.0), Ratio(0.0, -2.0 * s), (s, -s))
        return both, both
    return (
        Directions(Ratio(2.0 * s, s), Ratio(0.0, -s), (s, 0.0)),
        Directions(Ratio(-s, 0.0), Ratio(s, 2.0 * s), (0.0, s)),
    )


@dataclass(frozen=True)
class Atoms:
    """A measure on finitely many values, no smaller than the law it stands for, and what is cut off.

    ``beyond`` is the mean of what the largest value was exceeded by.
    """

    values: Array
    masses: Array
    beyond: float


def _half(ratio: Ratio, log_a: float, positive: bool) -> Atoms:
    """The positive or the negative part of a ratio, each cell spread to its ends: a larger law.

    Means of cells are rounded up. What is left of the least value moves up to it.
    """
    edge = ratio.threshold(log_a)
    outward = 1.0 if (ratio.first > ratio.second) == positive else -1.0
    reach = max(_FAR + max(outward * ratio.first, outward * ratio.second, 0.0), outward * edge + 1.0)
    x = np.linspace(edge, outward * reach, _CELLS)
    ends = x if outward > 0 else x[::-1]
    cells = np.concatenate([ends, [np.inf]]) if outward > 0 else np.concatenate([[-np.inf], ends])
    values = ratio.value(ends, log_a)
    values[np.argmin(np.abs(values))] = 0.0
    log_mass, error = log_interval(cells)
    mass = np.exp(log_mass)
    log_first, error_first = log_interval(cells - ratio.first)
    log_second, error_second = log_interval(cells - ratio.second)
    ahead, behind = np.exp(log_first), np.exp(log_a + log_second)
    mean = ahead - behind + ahead * error_first + behind * (error_second + ulps(8.0 + abs(log_a)))
    masses = np.zeros(len(values))
    inner = slice(0, -1) if outward > 0 else slice(1, None)
    left, right = values[:-1], values[1:]
    share = np.clip((mean[inner] / mass[inner] - left) / (right - left), 0.0, 1.0)
    masses[:-1] += mass[inner] * (1.0 - share)
    masses[1:] += mass[inner] * share
    outer = -1 if outward > 0 else 0
    masses[outer] += mass[outer]
    beyond = max(float(mean[outer] - values[outer] * mass[outer]), 0.0) if positive else 0.0
    return Atoms(values, up(masses, float(error.max()) + OPS_80), beyond)


def ratio_atoms(centres: Directions, log_a: float) -> Atoms:
    """A law above X* of lemma 1: the positive part of one ratio, the negative part of another."""
    positive = _half(centres.positive, log_a, positive=True)
    negative = _half(centres.negative, log_a, positive=False)
    seen = 0.0
    for ratio, sign in ((centres.positive, 1.0), (centres.negative, -1.0)):
        outward = sign if ratio.first > ratio.second else -sign
        seen += float(special.ndtr(-outward * ratio.threshold(log_a)))
    zero = max(1.0 - seen, 0.0) + ulps(LIBRARY_ULPS)
    return Atoms(
        np.concatenate([negative.values, positive.values, [0.0]]),
        np.concatenate([negative.masses, positive.masses, [zero]]),
        positive.beyond,
    )


@lru_cache(maxsize=4096)
def batch_weights(batch: int, rate: float, spread: float) -> Atoms:
    """The law of 1 + (H / (batch rate) - 1) / spread for H binomial, spread on a few points.

    That is the mean weight of a batch of which each record has weight 1 / rate with this chance,
    relative to the mean. ``beyond`` is the mean of what lies outside the points, on either side.
    """
    count = min(batch, _LARGEST_BATCH)
    mode = min(int((count + 1) * rate), count)
    peak = binomial_probability(count, rate, mode).upper
    sides = []
    for step in (1, -1):
        masses, hits, mass = [], mode, peak
        while 0 <= hits + step <= count and mass > _FAINT * peak:
            if step > 0:
                mass *= (count - hits) / (hits + 1.0) * (rate / (1.0 - rate))
            else:
                mass *= hits / (count - hits + 1.0) * ((1.0 - rate) / rate)
            hits += step
            masses.append(mass)
        sides.append(masses)
    masses = np.array([*sides[1][::-1], peak, *sides[0]])
    hits = np.arange(mode - len(sides[1]), mode + len(sides[0]) + 1)
    ratio = hits / (count * rate)
    values = 1.0 + (ratio - 1.0) / spread
    # beyond the last hit masses fall by a constant factor at least; means are of that order
    outside = 0.0
    for end, edge in ((masses[0], hits[0] > 0), (masses[-1], hits[-1] < count)):
        outside += 1e3 * float(end) * count if edge else 0.0
    masses = up(masses, OPS_8000 + ulps(16.0, of=float(len(masses) + count)))
    if len(values) > _WEIGHTS:
        grid = np.linspace(values[0], values[-1], _WEIGHTS)
        values, masses = _spread(values, masses, grid)
    return Atoms(values, masses, outside / (rate * spread))


def _spread(values: Array, masses: Array, grid: Array) -> tuple[Array, Array]:
    """Masses moved to the grid points around them, keeping means: larger in convex order."""
    cell = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    share = np.clip((values - grid[cell]) / (grid[cell + 1] - grid[cell]), 0.0, 1.0)
    spread = np.bincount(cell, masses * (1.0 - share), len(grid))
    return grid, spread + np.bincount(cell + 1, masses * share, len(grid))


@dataclass(frozen=True)
class Batches:
    """How many batches of a kind the record may be in: their number, size and relative weight."""

    count: int
    size: int
    weight: float = 1.0


class PositivePart:
    """y -> E(y + sum of independent products of weights and ratios)^+, from above.

    ``kinds`` are the batches, with the law of their weights.
    """

    def __init__(self, ratios: Atoms, kinds: Sequence[tuple[Batches, Atoms]]) -> None:
        products = [
            (batches.count, *_products(ratios, weights, batches.weight))
            for batches, weights in kinds
        ]
        products = [(n, _without_depths(values, masses), masses) for n, values, masses in products]
        drift = -math.fsum([n * float(v @ q) for n, v, q in products])
        count = sum(n for n, _, _ in products)
        spread = max(_deviation(v, q, math.inf) for _, v, q in products)
        reach = max(drift, 0.0) + 10.0 * spread * math.sqrt(count)
        deviation = max(_deviation(np.minimum(v, reach), q, math.inf) for _, v, q in products)
        step = deviation / _STEPS
        self.excess = 0.0
        laws = []
        for number, values, masses in products:
            self.excess += number * float(masses @ np.maximum(values - reach, 0.0))
            laws.append((_lattice(np.minimum(values, reach), masses, step), number))
        for (batches, weights), (_, values, masses) in zip(kinds, products, strict=True):
            self.excess += batches.count * batches.weight * ratios.beyond * 2.0
            largest = max(float(np.abs(ratios.values) @ ratios.masses), 1.0)
            self.excess += batches.count * batches.weight * weights.beyond * largest
        self.excess = up(self.excess, OPS_8000)
        tilt = _tilt(laws, 0.3 / (deviation * math.sqrt(count)))
        sums = convolve(laws, tilt, _ALIAS)
        self.points = len(sums.law)
        places = sums.base + (sums.first + np.arange(len(sums.law))) * sums.step
        places += ulps(8.0, of=float(np.abs(places).max()) + abs(sums.base))
        self._tilt, self._log_scale, self._stop = tilt, sums.log_scale, float(places[-1])
        self._start = float(places[0])
        self._places, self._law = places, np.maximum(sums.law, 0.0) + sums.bin_error

    def at(self, y: float) -> float:
        """The bound at y."""
        t = self._tilt
        first = int(np.searchsorted(self._places, -y))
        height = y + self._places[first:]
        # weights are relative to their largest, at height 1 / t
        total = float(self._law[first:] @ (height * np.exp(-t * height)))
        peak = math.exp(-1.0) / t
        beyond = max(y + self._stop, 1.0 / t)
        total += _ALIAS * beyond * math.exp(-t * beyond)
        if -y < self._start:
            total += _ALIAS * peak
        log_scale = self._log_scale + t * y
        slack = OPS_8000 + ulps(16.0, of=abs(self._log_scale) + abs(t * self._places[-1]))
        return up(total * math.exp(log_scale), slack) + self.excess


def _products(ratios: Atoms, weights: Atoms, scale: float) -> tuple[Array, Array]:
    values = np.multiply.outer(scale * weights.values, ratios.values).reshape(-1)
    masses = np.multiply.outer(weights.masses, ratios.masses).reshape(-1)
    some = masses > 0.0
    return values[some], masses[some]


def _without_depths(values: Array, masses: Array) -> Array:
    """The values, those so low that hardly any of the mean is below them raised: a larger law."""
    order = np.argsort(values)
    ascending, weight = values[order], np.cumsum(masses[order])
    # the mean of what lies below each value
    below = np.concatenate([[0.0], np.cumsum(weight[:-1] * np.diff(ascending))])
    allowed = _DEPTH * float(np.abs(values) @ masses)
    cut = float(ascending[max(int(np.searchsorted(below, allowed)) - 1, 0)])
    return np.maximum(values, min(cut, 0.0))


def _deviation(values: Array, masses: Array, cap: float) -> float:
    """The standard deviation without what is rare and large."""
    capped = np.clip(values, -cap, cap)
    mean = float(capped @ masses)
    return math.sqrt(max(float((capped - mean) ** 2 @ masses), 0.0))


def _lattice(values: Array, masses: Array, step: float) -> Discrete:
    """Masses moved to neighbouring multiples of ``step``, keeping means or raising them."""
    cell = np.floor(values / step)
    first = int(cell.min())
    index = cell.astype(np.int64) - first
    share = np.clip(values / step - cell + ulps(4.0, of=np.abs(cell) + 1.0), 0.0, 1.0)
    size = int(index.max()) + 2
    total = np.bincount(index, masses * (1.0 - share), size)
    total += np.bincount(index + 1, masses * share, size)
    some = np.flatnonzero(total)
    logs = np.log(total[some]) + OPS_80 + ulps(float(len(values)))
    return Discrete(first * step, step, some, logs, 0.0, 0.0)


def _tilt(laws: Sequence[tuple[Discrete, int]], least: float) -> float:
    """Where the tilted sum has mean 0, or ``least``."""

    def mean(log_tilt: float) -> float:
        tilt, total = math.exp(log_tilt), 0.0
        for law, count in laws:
            logs = law.log_mass + tilt * law.losses
            weights = np.exp(logs - logs.max())
            total += count * float(weights @ law.losses / weights.sum())
        return total

    low = math.log(least)
    if mean(low) >= 0.0:
        return least
    high = low + 1.0
    while mean(high) < 0.0 and high < low + 60.0:
        low, high = high, high + 1.0
    return math.exp(root(mean, low, high, xtol=0.02)) if mean(high) >= 0.0 else math.exp(high)


def upper_delta(
    relation: str, shift: float, log_a: float, direction: int, sizes: Sequence[int], goal: float
) -> float:
    """At most D_a of one epoch of shuffled batches of these sizes, in one direction (theorem 1)."""
    centres = directions(relation, shift)[direction]
    ratios = ratio_atoms(centres, log_a)
    largest = max(sizes)
    others = list(sizes)
    others.remove(largest)  # the hub
    kinds = [
        Batches(others.count(size), size, size / largest) for size in sorted(set(others))
    ]
    records = sum(others)
    alone = float(np.maximum(ratios.values, 0.0) @ ratios.masses) + ratios.beyond
    worst = records / largest * alone  # where the record is seen in its batch
    cap = max(math.exp(gaussian_epsilon(shift, min(_EXCESS * goal / alone, 0.3))), 2.0)
    excess = worst * gaussian_delta(shift, math.log(cap))
    means, rates = _mean_weights(cap, records)
    parts = [
        PositivePart(
            ratios,
            [(kind, batch_weights(kind.size, rate, _spread_factor(records, rate))) for kind in kinds],
        )
        for rate in rates
    ]
    best = _majorant(centres, log_a, shift, means, cap, parts, worst, records)
    return up(best + excess, OPS_8000) * largest / sum(sizes)


def _spread_factor(records: int, rate: float) -> float:
    """At most 1 - P[Bin(records, rate) = records * rate] (lemma 3 of docs/shuffle.md)."""
    return 1.0 - 1.0 / math.sqrt(2.0 * math.pi * records * rate * (1.0 - rate))


def _mean_weights(cap: float, records: int) -> tuple[Array, Array]:
    """Mean weights at which the sum is bounded, ascending, and the rates that they belong to."""
    found = []
    rate = 0.5
    while rate * records >= 1.0 and rate * cap > _LEAST_MEAN:
        found.append(math.floor(rate * records) / records)
        rate /= _RATIO
    rates = np.array(sorted(set(found)))
    return cap * rates, rates


@lru_cache(maxsize=256)
def _laplace(shift: float, cap: float, records: int) -> Array:
    """At least E exp(-rate L) for the mean weight L, for each of the rates (lemma 4)."""
    effective = -np.expm1(-_RATES * cap / records) * records / cap
    x = np.linspace(-_FAR, _FAR, 1601)
    log_mass, error = log_interval(np.concatenate([[-np.inf], x]))
    mass = up(np.exp(log_mass), float(error.max()))
    start = np.concatenate([[-np.inf], x[:-1]])
    weight = np.minimum(np.exp(shift * start - 0.5 * shift * shift), cap)
    values = np.exp(-np.multiply.outer(effective, weight))
    beyond = float(special.ndtr(-_FAR))
    return np.asarray(up(values @ mass + beyond, OPS_8000))


def _majorant(
    centres: Directions,
    log_a: float,
    shift: float,
    means: Array,
    cap: float,
    parts: Sequence[PositivePart],
    worst: float,
    records: int,
) -> float:
    """At most E f(L) + E g(y), for f and g whose sum is above the positive part (lemma 4)."""
    ends = np.append(means[1:], cap)
    most, own = _own_term(centres, log_a, shift)
    heights = np.concatenate([[0.0], np.geomspace(1e-3 * most, most, 16)])
    table = np.array(
        [[mean * part.at(y / mean) for y in heights] for mean, part in zip(means, parts, strict=True)]
    )
    table = np.maximum.accumulate(table, axis=1)
    costs = np.concatenate([[1.0, 1.0], _laplace(shift, cap, records)])
    best = math.inf
    rise = (ends / means)[:, None] * (table - table[:, :1])
    # g takes the cells whose rise is small beside their own value, f the others
    for skip in range(len(means)):
        levels = np.where(np.arange(len(means)) < skip, table[:, -1], table[:, 0])
        main = _cheapest(costs, means, ends, levels, worst, most)
        slope = np.diff(rise[skip:].max(axis=0)) / np.diff(heights)
        slope = np.maximum.accumulate(np.append(slope, float((ends / means)[skip:].max())))
        extra = math.fsum(
            step * own(y) for step, y in zip(np.diff(slope, prepend=0.0), heights, strict=True)
        )
        if DEBUG: print('   skip', skip, means[skip], main, extra)
        best = min(best, main + up(extra, OPS_8000))
    return best


def _cheapest(
    costs: Array, means: Array, ends: Array, levels: Array, worst: float, most: float
) -> float:
    """The least E f(L) for f(L) = A L + B + sum_k D_k exp(-r_k L) above the lines of all cells."""
    rows, targets = [], []
    cells = [(0.0, means[0], most, worst)]
    cells += [
        (low, high, 0.0, level / low) for low, high, level in zip(means, ends, levels, strict=True)
    ]
    for low, high, base, slope in cells:
        marks = np.linspace(low, high, 5)
        for left, right in pairwise(marks):
            middle = 0.5 * (left + right)
            exponential = np.exp(-_RATES * middle)
            for end in (left, right):
                # a convex function is above its tangent at the middle
                tangent = exponential * (1.0 - _RATES * (end - middle))
                rows.append(np.concatenate([[end, 1.0], tangent]))
                targets.append(base + slope * end)
    matrix, target = np.array(rows), np.array(targets)
    scale = float(target.max())
    found = optimize.linprog(costs, A_ub=-matrix, b_ub=-target / scale, method="highs")
    if found.x is None:
        return math.inf
    weights = np.maximum(found.x, 0.0) + 1e-12
    reached = matrix @ weights
    short = float(np.max(target / scale / np.where(reached > 0.0, reached, 1e-300)))
    return up(float(costs @ weights) * max(short, 1.0) * scale, OPS_8000)


def _own_term(centres: Directions, log_a: float, shift: float):
    """The largest height that counts, and y -> E(Y - y)^+ for the term of the hub (lemma 4)."""
    first, second = centres.own
    a = math.exp(log_a)
    if second == 0.0:
        most = max(math.exp(4.5 * shift - 0.5 * shift**2) - a, 1e-3)
        return most, lambda y: gaussian_delta(shift, math.log(a + y))
    if first == 0.0:
        def seen(y: float) -> float:
            rest = 1.0 - y
            return rest * gaussian_delta(shift, log_a - math.log(rest)) if rest > 0.0 else 0.0
        return 1.0, seen
    most = max(math.exp(4.5 * shift - 0.5 * shift**2) - a, 1e-3)

    def replaced(y: float) -> float:
        # e^{sx} - a e^{-sx} = y e^{s^2/2} at the edge of the event
        k = y * math.exp(0.5 * shift**2)
        edge = math.log(0.5 * (k + math.sqrt(k * k + 4.0 * a))) / shift
        value = special.ndtr(shift - edge) - a * special.ndtr(-shift - edge) - y * special.ndtr(-edge)
        return max(float(value), 0.0) + 1e-13 * float(special.ndtr(shift - edge)) + 1e-300
    return most, replaced
