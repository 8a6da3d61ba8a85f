"""Runs with hardly any noise, in closed form: a record that takes part is seen.

From above the attacker sees the sampling, as adversary A1 does. From below the attacker looks for
the sampling: if the records move the sums by a vector v out of a finite set, known but for which
one it is, then max_v <v, x>/|v| is large with the records there, and without them it is no larger
than as many standard normals may be (docs/proofs.md, theorem 12). The two differ by the logarithm
of the number of vectors, which is little beside |v|^2 / 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from verax.mechanism import Phases
from verax.privacy.curves.base import Curve
from verax.privacy.curves.triangle import SmallestBound
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.numerics.rounding import OPS_8M, OPS_8000, down, ulps, up
from verax.privacy.pld.composition import BOTH, LOWER, Bounds, Sides
from verax.privacy.samplers.base import ProtectedGroup, pricing_of
from verax.privacy.strong.curve import A1_THEOREM, StrongCurve
from verax.privacy.strong.displacement import PmfInCells

LEAST_NOISE = 1e-140
"""Noise below which squares of what it hides overflow; it is then as good as none."""

_SEEN = 100.0  # shift in standard deviations of the noise from which on the two bounds are close
_QUANTILES = 48  # values of |v| that are tried
_MARGINS = np.array([-8.0, -6.0, -5.0, -4.5, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 6.0])
"""How far below |v| the thresholds are."""
_ROUNDED = ulps(64.0)  # of a length: more than what rounding it may add
# of a threshold, how much less than nothing it costs
_BEYOND = np.array([2.0, 5.0, 10.0, 20.0, 40.0, 80.0])
_FARTHEST = -37.0  # standard deviations up to which a probability is a normal double
_LARGEST = 1e300  # an epsilon that can still be added to
_LEFT_OUT = 1e-3  # of delta: what vectors longer than those looked for may have


def applies(phases: Phases) -> bool:
    """Whether some round's noise is that low."""
    return any(
        0.0 < m.noise_multiplier < 1.0 / _SEEN and not pricing_of(m.sampler).closed_form
        for m in phases.mechanisms
    )


def bounds(phases: Phases, group: ProtectedGroup) -> tuple[list[Curve], list[Curve], str, str]:
    """Upper curves and attacks, with the theorem on each side."""
    found = [pricing_of(m.sampler).displacement(m, group) for m in phases.mechanisms]
    upper: Curve = _sum_of_phases([part.upper for part in found])
    above = f"almost no noise, so the sampling may as well be told: {A1_THEOREM}"
    removed = [part.removal for part in found if part.removal is not None]
    if len(removed) == len(found):
        absence = up(math.fsum(part.absence_loss for part in found), ulps(4.0))
        upper = SmallestBound((TwoStepBound(_sum_of_phases(removed), absence), upper))
        above += "; removed first, then added, which shows at most where it is missing"
        above += " (docs/proofs.md, lemma 5)"
    places, least = sum(part.entries for part in found), min(part.smallest for part in found)
    search = SamplingSearch(_sum_of_phases([part.lower for part in found]), places, least)
    below = "almost no noise: the likeliest sampling is looked for (docs/proofs.md, theorem 12)"
    return [upper], [search], above, below


def _sum_of_phases(parts: Sequence[PmfInCells]) -> StrongCurve:
    """The curve of all phases together, for an attacker who knows how far each is moved."""

    def pmfs(cells: int) -> LatticePmf:
        total = LatticePmf.of([0.0], [1.0])
        for part in parts:
            total = total.plus(part(cells), cells)
        return total

    curve = StrongCurve(pmfs)
    curve.pmf()  # so that what has no pmf is refused here
    return curve


@dataclass(frozen=True)
class TwoStepBound:
    """An upper curve of one step of two, the other of which has no larger loss than ``most``."""

    curve: Curve
    most: float

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(delta) + self.most

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        return 0.0, math.nextafter(self.curve.epsilon(delta, rtol, sides)[1] + self.most, math.inf)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        left = math.nextafter(epsilon - self.most, 0.0)
        return 0.0, self.curve.delta(left, rtol, sides, enough)[1] if epsilon > self.most else 1.0


@dataclass(frozen=True, eq=False)
class SamplingSearch:
    """The attack max_v <v, x>/|v| >= c, where |v|^2 has distribution ``pmf``.

    With the records there the maximum is at least a normal around |v|; without them it is that of
    at most N standard normals, where v has at most n = |v|^2 / least^2 entries that are not 0, out
    of ``places`` (round, value): N <= sum over j <= n of C(places, j).
    """

    curve: StrongCurve
    places: int
    least: float

    @cached_property
    def _law(self) -> tuple[Array, Array, float]:
        """Lengths |v| in ascending order, rounded down, their chances, and what may be missing."""
        pmf: LatticePmf = self.curve.pmf()
        error = pmf.error + ulps(len(pmf.weights))
        return np.sqrt(pmf.lows), down(pmf.weights, error), pmf.lost

    def _up_to(self, left_out: float) -> tuple[Array, Array, float]:
        """Lengths and probabilities but for the largest, and the log number of vectors up to it."""
        lengths, chances, _ = self._law
        highs = self.curve.pmf().highs
        tail = np.cumsum(chances[::-1])[::-1]
        kept = max(int(np.count_nonzero(tail > left_out)), 1)
        entries = min(
            up(float(highs[kept - 1]) / self.least / self.least, OPS_8M), float(self.places)
        )
        return lengths[:kept], chances[:kept], _log_subsets(self.places, math.floor(entries))

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(delta)

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        lengths, chances, log_number = self._up_to(_LEFT_OUT * delta)
        tail = np.cumsum(chances[::-1])[::-1]
        near = int(np.count_nonzero(tail > delta))  # the longest of these has more than delta
        some = np.unique(
            np.linspace(max(near - _QUANTILES, 0), max(near - 1, 0), _QUANTILES).astype(np.int64)
        )
        places = (down(lengths[some, None], _ROUNDED) - _MARGINS).ravel()
        places = places[places > 1.0]
        found = self._detection_probability(lengths, chances, places) - up(delta, OPS_8000)
        useful = found > 0.0
        if not useful.any():
            return 0.0, math.inf
        c = places[useful]
        logs = np.log(found[useful])
        best = logs - log_number + c * c / 2.0 + np.log(c)  # Mills: P[N > c] <= e^(-c^2/2) / c
        best -= ulps(16.0, of=c * c + log_number - logs)
        return max(float(best.max()), 0.0), math.inf

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        if LOWER not in sides or epsilon > _LARGEST:
            return 0.0, 1.0
        best = 0.0
        for left_out in (1e-4, 1e-9, 1e-16):
            lengths, chances, log_number = self._up_to(left_out)
            places = np.sqrt(2.0 * (up(epsilon, OPS_8000) + log_number + _BEYOND))
            false = np.exp(-down(_BEYOND, OPS_8M)) / places
            best = max(
                best, float((self._detection_probability(lengths, chances, places) - false).max())
            )
        return best, 1.0

    def _detection_probability(self, lengths: Array, chances: Array, places: Array) -> Array:
        """The probability that the maximum reaches each place, with the records; rounded down."""
        above = lengths - ulps(8.0, of=lengths) - places[:, None]
        reached = np.where(above > _FARTHEST, special.ndtr(above), 0.0)
        return np.asarray(down(reached @ chances, OPS_8000))


def _log_subsets(places: int, most: int) -> float:
    """An upper bound on log sum_{j <= most} C(places, j): Chernoff's, and places log 2."""
    if most <= 0:
        return 0.0
    if 2 * most >= places:
        return places * math.log(2.0)
    return up(most * (1.0 + math.log(places / most)), OPS_8000)
