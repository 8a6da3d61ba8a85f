"""What one batch tells of a record: likelihood ratios on a line, and what is above them all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import LIBRARY_ULPS, OPS_80, ulps, up
from verax.privacy.pairs.gaussian_mixture import log_interval

_CELLS = 240  # of x on either side of the sign change of a ratio
_FAR = 9.5  # standard deviations beyond all centres at which they end
_DEPTH = 1e-5  # of the mean, what is cut off the depths of a ratio


@dataclass(frozen=True)
class Ratio:
    """v(x) = dN(first)/dN(0)(x) - a dN(second)/dN(0)(x) for x standard normal.

    That is what a batch tells, as far as it holds what N(0) stands for: the likelihood with the
    record, minus a times the likelihood without.
    """

    first: float
    second: float

    @property
    def rising(self) -> bool:
        """Whether the ratio is positive to the right of its sign change, not to the left."""
        return self.first > self.second

    def threshold(self, log_a: float) -> float:
        """Where it changes sign."""
        squares = 0.5 * (self.first - self.second) * (self.first + self.second)
        return (log_a + squares) / (self.first - self.second)

    def value(self, x: Array, log_a: float) -> Array:
        """The ratio at x."""
        ahead = np.exp(self.first * x - 0.5 * self.first**2)
        return np.asarray(ahead - np.exp(log_a + self.second * x - 0.5 * self.second**2))

    def in_cells(self, ends: Array, log_a: float) -> tuple[Array, Array, Array]:
        """The probability of each cell, the mean of the ratio over it, and how far off that is."""
        log_mass, _ = log_interval(ends)
        log_first, error_first = log_interval(ends - self.first)
        log_second, error_second = log_interval(ends - self.second)
        ahead, behind = np.exp(log_first), np.exp(log_a + log_second)
        error = ahead * error_first + behind * (error_second + ulps(8.0 + abs(log_a)))
        error[np.isnan(error)] = 0.0  # of an empty cell
        return np.exp(log_mass), ahead - behind, error


@dataclass(frozen=True)
class Geometry:
    """The centres that are worst in one direction of a neighbouring relation (lemmas S1 and S2).

    ``positive`` and ``negative`` are the ratios whose positive and negative part make X*. The
    displaced record moves its new batch by at most ``hub``; there the record's own ratio is
    dN(own[0])/dN(0) - a dN(own[1])/dN(0).
    """

    positive: Ratio
    negative: Ratio
    hub: float
    own: tuple[float, float]


def geometries(s: float, relation: str, clipped_alone: bool) -> tuple[Geometry, Geometry]:
    """Both directions: with the record against without, and without against with.

    ``s`` is the clip norm in standard deviations of the noise; ``clipped_alone`` says that each
    record's gradient is clipped, not the sum over a clip-group.
    """
    if clipped_alone and relation == "zero-out":
        return (
            Geometry(Ratio(2.0 * s, s), Ratio(0.0, -s), s, (s, 0.0)),
            Geometry(Ratio(-s, 0.0), Ratio(s, 2.0 * s), s, (0.0, s)),
        )
    # all within 2 s of each other; the hub's own ones within s of its incomplete clip-group's 0
    both = Geometry(Ratio(2.0 * s, 0.0), Ratio(0.0, -2.0 * s), s, (s, -s))
    return both, both


@dataclass(frozen=True)
class Atoms:
    """A measure on a few values, no smaller than the law it stands for.

    ``beyond`` is what was cut off its ends, as a mean; ``raised`` by how much its mean may be
    above that of the law.
    """

    values: Array
    masses: Array
    beyond: float = 0.0
    raised: float = 0.0


def largest_ratio(geometry: Geometry, log_a: float) -> Atoms:
    """A law above X* of lemma S1: each cell is spread to its ends, and its mean rounded up."""
    positive = _half(geometry.positive, log_a, positive=True)
    negative = _half(geometry.negative, log_a, positive=False)
    parts = ((geometry.positive, 1.0), (geometry.negative, -1.0))
    seen = [
        float(special.ndtr((-sign if ratio.rising else sign) * ratio.threshold(log_a)))
        for ratio, sign in parts
    ]
    zero = max(1.0 - math.fsum(seen), 0.0) + ulps(LIBRARY_ULPS)
    values = np.concatenate([negative.values, [0.0], positive.values])
    masses = np.concatenate([negative.masses, [zero], positive.masses])
    values = _without_depths(values, masses)
    above = float(values @ masses) + positive.beyond + math.expm1(log_a)
    raised = max(above, 0.0) + float(ulps(1e4) * (np.abs(values) @ masses))
    return Atoms(values, masses, positive.beyond, raised)


def _half(ratio: Ratio, log_a: float, positive: bool) -> Atoms:
    """The positive or the negative part of a ratio, in ascending order of its values."""
    edge = ratio.threshold(log_a)
    outward = 1.0 if ratio.rising == positive else -1.0
    centres = max(outward * ratio.first, outward * ratio.second, 0.0)
    reach = max(_FAR + centres, outward * edge + 1.0)
    ends = np.linspace(edge, outward * reach, _CELLS)
    ends = np.append(ends, outward * np.inf)[:: int(outward)]
    mass, mean, error = ratio.in_cells(ends, log_a)
    mass, mean = up(mass, OPS_80 + float(ulps(1e4))), mean + error
    values = ratio.value(ends[np.isfinite(ends)], log_a)
    if outward < 0.0:
        mass, mean, values = mass[::-1], mean[::-1], values[::-1]
    values[0] = 0.0  # the sign change
    low, high = np.minimum(values[:-1], values[1:]), np.maximum(values[:-1], values[1:])
    share = np.clip((mean[:-1] - low * mass[:-1]) / (high - low), 0.0, mass[:-1])
    far, near = (share, mass[:-1] - share) if positive else (mass[:-1] - share, share)
    masses = np.zeros(len(values))
    masses[:-1] += near
    masses[1:] += far
    masses[-1] += mass[-1]
    # a negative value further out is raised to the last one
    beyond = max(float(mean[-1] - values[-1] * mass[-1]), 0.0) if positive else 0.0
    if positive:
        return Atoms(values, masses, beyond)
    return Atoms(values[::-1], masses[::-1], beyond)


def _without_depths(values: Array, masses: Array) -> Array:
    """Ascending values, those raised below which lies hardly any of the mean: a larger law."""
    weight = np.cumsum(masses)
    below = np.concatenate([[0.0], np.cumsum(weight[:-1] * np.diff(values))])
    allowed = _DEPTH * float(np.abs(values) @ masses)
    cut = float(values[max(int(np.searchsorted(below, allowed)) - 1, 0)])
    return np.maximum(values, min(cut, 0.0))
