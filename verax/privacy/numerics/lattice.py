"""Laws on a lattice, added up with every rounding to a known side.

A :class:`LatticePmf` says cell by cell where a non-negative variable lies. Sums of independent
variables are convolutions of positive numbers, computed directly: unlike a Fourier transform that
keeps the relative accuracy of the tails. What is cut off or merged on the way is counted, so that
functions of the variable can be bounded on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8M, UNDERFLOW, down, ulps, up

CELLS = 4096  # more than this are merged in pairs
_CUT = 1e-50  # probability that may be cut off each end of a pmf


@dataclass(frozen=True, eq=False)
class LatticePmf:
    """Probabilities ``weights[i]`` of the cells from ``start + step * i`` to ``spread`` above that.

    Args:
        start: lower end of the first cell.
        step: distance of cells.
        weights: probabilities, each within a factor 1 +- ``error`` of what was meant to be kept.
        spread: width of a cell; 0 where the pmf is known point by point.
        lost: probability that was cut off on the way and may lie anywhere between 0 and ``top``.
        top: the largest value that the variable can take.
        error: bound on the relative error of the weights.

    >>> once = LatticePmf.of([0.0, 1.0], [0.75, 0.25])
    >>> twice = once.plus(once)
    >>> twice.lows.tolist(), twice.weights.tolist()
    ([0.0, 1.0, 2.0], [0.5625, 0.375, 0.0625])
    """

    start: float
    step: float
    weights: Array
    spread: float = 0.0
    lost: float = 0.0
    top: float = 0.0
    error: float = 0.0

    @classmethod
    def of(
        cls,
        values: Array | list[float],
        weights: Array | list[float],
        error: float = 0.0,
        cells: int = CELLS,
    ) -> LatticePmf:
        """A pmf given by its whole-number values, ascending, and their probabilities."""
        places, chances = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
        first, last, lost = significant_slice(chances)
        top = float(places[-1])
        places, chances = places[first:last], chances[first:last]
        step = 1.0
        while (places[-1] - places[0]) / step >= 2 * cells:
            step *= 2.0
        index = ((places - places[0]) // step).astype(np.int64)
        found = np.asarray(np.bincount(index, weights=chances), dtype=float)
        error += ulps(len(chances)) if step > 1.0 else 0.0
        return cls(float(places[0]), step, found, step - 1.0, lost, top, error).merged(cells)

    @classmethod
    def between(cls, low: float, high: float) -> LatticePmf:
        """All that is known is a range."""
        return cls(low, 1.0, np.ones(1), high - low, 0.0, high)

    @cached_property
    def lows(self) -> Array:
        """The lower ends of the cells."""
        return np.asarray(np.maximum(self.start + self.step * np.arange(len(self.weights)), 0.0))

    @cached_property
    def highs(self) -> Array:
        """The upper ends of the cells, none beyond the largest value there is."""
        return np.asarray(np.minimum(self.lows + self.spread, self.top))

    @property
    def mean(self) -> float:
        """The mean, roughly."""
        return float((self.weights * 0.5) @ (self.lows + self.highs))

    def below(self, value: float) -> tuple[float, float]:
        """Bounds on the probability of less than ``value``."""
        return self._bounds(self.highs < value, self.lows < value)

    def above(self, value: float) -> tuple[float, float]:
        """Bounds on the probability of more than ``value``."""
        return self._bounds(self.lows > value, self.highs > value)

    def _bounds(self, surely: NDArray[np.bool_], perhaps: NDArray[np.bool_]) -> tuple[float, float]:
        least, most = float(self.weights[surely].sum()), float(self.weights[perhaps].sum())
        slack = self.error + ulps(len(self.weights))
        return max(down(least, slack), 0.0), min(up(most, slack) + self.lost, 1.0)

    def scaled(self, factor: float) -> LatticePmf:
        """The pmf of ``factor`` times the variable, right to a few units in the last place."""
        if factor == 1.0:
            return self
        start, step, spread, top = (
            factor * x for x in (self.start, self.step, self.spread, self.top)
        )
        return replace(self, start=start, step=step, spread=spread, top=top)

    def merged(self, cells: int = CELLS) -> LatticePmf:
        """The same pmf, less precisely, in at most ``cells`` cells."""
        pmf = self
        while len(pmf.weights) > cells:
            pmf = pmf._paired()
        return pmf

    def _paired(self) -> LatticePmf:
        weights = np.append(self.weights, 0.0) if len(self.weights) % 2 else self.weights
        return replace(
            self,
            step=2.0 * self.step,
            weights=weights[::2] + weights[1::2],
            spread=self.spread + self.step,
            error=self.error + ulps(1.0),
        )

    def _on_step(self, step: float) -> LatticePmf:
        """The same pmf on cells of another width, each value in the cell that starts below it."""
        # so that rounding the quotient leaves no value below its cell
        start = self.start - OPS_8M * step
        index = np.floor((self.lows - start) / step).astype(np.int64)
        weights = np.asarray(np.bincount(index, weights=self.weights), dtype=float)
        return replace(
            self,
            start=start,
            step=step,
            weights=weights,
            spread=self.spread + up(step, 2.0 * OPS_8M),
            error=self.error + ulps(len(self.weights)),
        )

    def plus(self, other: LatticePmf, cells: int = CELLS) -> LatticePmf:
        """The pmf of the sum with an independent variable."""
        a, b = _on_common_step(self, other, cells)
        weights = np.convolve(a.weights, b.weights)
        first, last, cut = significant_slice(weights)
        error = (
            a.error + b.error + a.error * b.error + ulps(min(len(a.weights), len(b.weights)) + 4.0)
        )
        pmf = LatticePmf(
            a.start + b.start + a.step * first,
            a.step,
            weights[first:last],
            a.spread + b.spread,
            up(a.lost + b.lost + cut, ulps(8.0)) + UNDERFLOW,
            a.top + b.top,
            error,
        )
        return pmf.merged(cells)

    def times(self, count: int, cells: int = CELLS) -> LatticePmf:
        """The pmf of the sum of ``count`` independent copies, by repeated doubling."""
        total: LatticePmf | None = None
        double = self
        while True:
            if count % 2:
                total = double if total is None else total.plus(double, cells)
            count //= 2
            if not count:
                return total if total is not None else LatticePmf.of([0.0], [1.0])
            double = double.plus(double, cells)


def significant_slice(weights: Array) -> tuple[int, int, float]:
    """The slice of cells that is worth keeping, and a bound on the probability outside it."""
    if len(weights) == 1:
        return 0, 1, 0.0
    from_left, from_right = np.cumsum(weights), np.cumsum(weights[::-1])
    first = min(int(np.searchsorted(from_left, _CUT)), len(weights) - 1)
    cut = min(int(np.searchsorted(from_right, _CUT)), len(weights) - first - 1)
    lost = (float(from_left[first - 1]) if first else 0.0) + (
        float(from_right[cut - 1]) if cut else 0.0
    )
    return first, len(weights) - cut, up(lost, OPS_8M)


def _on_common_step(a: LatticePmf, b: LatticePmf, cells: int) -> tuple[LatticePmf, LatticePmf]:
    """Both on cells of one width."""
    if len(a.weights) == 1:
        return replace(a, step=b.step), b
    if len(b.weights) == 1:
        return a, replace(b, step=a.step)
    while a.step < b.step and math.remainder(b.step, 2.0 * a.step) == 0.0:
        a = a._paired()
    while b.step < a.step and math.remainder(a.step, 2.0 * b.step) == 0.0:
        b = b._paired()
    if a.step == b.step:
        return a, b
    length = a.step * len(a.weights) + b.step * len(b.weights)
    return a._on_step(length / cells), b._on_step(length / cells)
