"""Pairs with finitely many losses, such as what an attacker sees in bins.

A table stands where a :class:`verax.privacy.pairs.gaussian_mixture.Pair` stands: it can be
discretised, composed and read off. Its "line" is the sequence of its atoms, each one unit long and
centred at 0 as a whole, so that reversing mirrors it. A boundary inside an atom splits it, which
for a lower bound is an attacker who tosses a coin there. Masses are kept as logarithms: where
losses are in the thousands, the smaller mass of an atom is far below the range of doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import BIN_MASS, outward, ulps
from verax.privacy.pairs.base import Cells, DominatingPair
from verax.privacy.pairs.gaussian_mixture import log_interval

_BIN = 0.01  # width of an attacker's bins, in standard deviations of the noise
_LEAST = 1e-290  # bins with less mass are left out, which only hides from the attacker


@dataclass(frozen=True, eq=False)
class DiscretePair(DominatingPair):
    """Mass exp(``log_p[i]``) of P at each loss log p/q, ascending; ``infinite`` P-mass besides.

    ``missing`` is Q-mass where P has none, at loss -infinity. ``error`` bounds how far the
    logarithms of p and of p/q may each be off.

    >>> coin = DiscretePair.from_masses(np.array([0.25, 0.75]), np.array([0.5, 0.5]))
    >>> [round(bound, 6) for bound in coin.delta(0.0)]
    [0.25, 0.25]
    """

    log_p: Array
    loss_values: Array
    infinite: float = 0.0
    missing: float = 0.0
    error: float = 0.0

    @staticmethod
    def from_masses(
        p: Array, q: Array, infinite: float = 0.0, missing: float = 0.0, error: float = 0.0
    ) -> DiscretePair:
        """A table from masses in any order; atoms that only one of P and Q sees go to the ends."""
        infinite += float(p[q <= 0.0].sum())
        missing += float(q[p <= 0.0].sum())
        seen = (p > 0.0) & (q > 0.0)
        return DiscretePair.from_log_masses(
            np.log(p[seen]), np.log(q[seen]), infinite, missing, error
        )

    @staticmethod
    def from_log_masses(
        log_p: Array, log_q: Array, infinite: float = 0.0, missing: float = 0.0, error: float = 0.0
    ) -> DiscretePair:
        """A table from logarithms of masses, in any order and as small as one likes."""
        loss = log_p - log_q
        order = np.argsort(loss, kind="stable")
        largest = max(float(np.abs(log_p).max(initial=0.0)), float(np.abs(log_q).max(initial=0.0)))
        return DiscretePair(
            log_p[order], loss[order], infinite, missing, error + ulps(8.0 + 2.0 * largest)
        )

    @staticmethod
    def from_mixtures(up: tuple[Array, Array], down: tuple[Array, Array]) -> DiscretePair:
        """Two Gaussian mixtures on a line, as (weights, shifts) of P and of Q, seen in bins.

        For attacks whose likelihood ratio need not increase along the line. What is further than 16
        standard deviations from every shift is left out.
        """
        shifts = np.concatenate([up[1], down[1]])
        x = np.arange(shifts.min() - 16.0, shifts.max() + 16.0, _BIN)
        p, q = (
            sum(w * np.exp(log_interval(x - m)[0]) for w, m in zip(*side, strict=True))
            for side in (up, down)
        )
        return DiscretePair.from_bins(p, q, error=BIN_MASS + ulps(len(shifts)))

    @staticmethod
    def from_bins(p: Array, q: Array, error: float) -> DiscretePair:
        """What an attacker sees in bins of these masses: those too small to be known are left out.

        If that is all of them, the attacker is blind.
        """
        kept = (p > _LEAST) & (q > _LEAST)
        return (
            DiscretePair.from_masses(p[kept], q[kept], error=error)
            if kept.any()
            else DiscretePair.from_masses(np.ones(1), np.ones(1))
        )

    def reverse(self) -> DiscretePair:
        """Q against P; the same object every time, so that equal rounds stay equal."""
        return self._reversed

    @cached_property
    def _reversed(self) -> DiscretePair:
        missing = self.missing * math.exp(2.0 * self.error)
        return DiscretePair(
            self.log_q[::-1], -self.loss_values[::-1], missing, self.infinite, 2.0 * self.error
        )

    @cached_property
    def p(self) -> Array:
        """The masses of P; 0 where they are below the range of doubles."""
        return np.asarray(np.exp(self.log_p))

    @cached_property
    def log_q(self) -> Array:
        """The logarithms of the masses of Q."""
        return self.log_p - self.loss_values

    @cached_property
    def q(self) -> Array:
        """The masses of Q; 0 where they are below the range of doubles."""
        return np.asarray(np.exp(self.log_q))

    @property
    def total_mass(self) -> float:
        return float(self.p.sum())

    @property
    def infimum(self) -> float:
        return float(self.loss_values[0])

    @property
    def supremum(self) -> float:
        return math.inf if self.infinite > 0.0 else float(self.loss_values[-1]) + self.error

    @cached_property
    def bulk(self) -> float:
        """The loss at the median of P."""
        return float(self.loss_values[np.searchsorted(np.cumsum(self.p), 0.5 * self.p.sum())])

    @property
    def _middle(self) -> float:
        return 0.5 * len(self.log_p)

    def nodes(self, left: float, far: float) -> tuple[Array, Array]:
        """Losses and log masses of P, for sketches."""
        return self.loss_values, self.log_p

    def boundaries_at(self, grid: Array) -> tuple[Array, float]:
        """Boundaries between atoms below and above each loss, and how far off losses may be."""
        return np.searchsorted(self.loss_values, grid).astype(np.float64) - self._middle, self.error

    def inverse(self, loss: Array) -> Array:
        """Boundaries near the given losses, also inside atoms."""
        places = np.arange(len(self.log_p)) + 0.5 - self._middle
        return np.asarray(
            np.interp(loss, self.loss_values, places, left=-self._middle, right=self._middle)
        )

    def log_loss_density(self, x: Array) -> Array:
        places = np.arange(len(self.log_p)) + 0.5 - self._middle
        gaps = np.gradient(self.loss_values) if len(self.log_p) > 1 else np.ones(1)
        return np.asarray(np.interp(x, places, self.log_p - np.log(np.maximum(gaps, 1e-12))))

    def cells(self, boundaries: Array) -> Cells:
        """Log P and loss between consecutive boundaries; atoms are split in proportion."""
        size = len(self.log_p)
        ends = np.clip(boundaries + self._middle, 0.0, float(size))
        marks = np.union1d(ends, np.arange(math.ceil(ends[0]), math.floor(ends[-1]) + 1.0))
        middle, length = (marks[:-1] + marks[1:]) / 2.0, np.diff(marks)
        atom = np.minimum(middle.astype(np.int64), size - 1)
        count = len(boundaries) - 1
        cell = np.minimum(np.searchsorted(ends, middle, side="right") - 1, count - 1)
        log_p = self.log_p[atom] + np.log(length)
        log_q = log_p - self.loss_values[atom]
        most = float(np.bincount(cell, minlength=1).max(initial=1))
        largest = max(float(np.abs(logs).max(initial=0.0)) for logs in (log_p, log_q))
        log_p, log_q = (log_sums(logs, cell, count) for logs in (log_p, log_q))
        loss = np.subtract(log_p, log_q, out=np.zeros(count), where=log_p > -np.inf)
        return Cells(log_p, loss, np.full(count, self.error + ulps(4.0, of=most + 16.0 + largest)))

    def delta(self, epsilon: float) -> tuple[float, float]:
        above = self.loss_values > epsilon - 4.0 * self.error
        p, loss, slack = (
            self.p[above],
            self.loss_values[above],
            2.0 * self.error + ulps(len(self.log_p)),
        )
        lower, upper = (
            outward(float(p @ -np.expm1(-np.maximum(loss - epsilon + off, 0.0))), side, slack)
            for side, off in ((-1, -self.error), (1, self.error))
        )
        return lower, min(upper + self.infinite, 1.0)


def log_sums(logs: Array, cell: NDArray[np.int64], count: int) -> Array:
    """Logarithms of the sums of exp(logs) in ``count`` cells; -infinity in empty ones."""
    top = np.full(count, -np.inf)
    np.maximum.at(top, cell, logs)
    sums = np.bincount(cell, weights=np.exp(logs - top[cell]), minlength=count)
    return top + np.log(np.maximum(sums, 1.0))  # the largest term alone makes 1
