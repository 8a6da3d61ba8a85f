"""Runs with so little noise that whoever takes part is seen: both bounds in closed form, at any noise above zero.

From above the attacker is told the sampling, as adversary A1 is. From below the attacker looks for the sampling: if
the records move the sums by a vector v out of a finite set, known but for which one it is, then max_v <v, x>/|v| is
large with the records there, and without them it is no larger than so many standard normals may be (docs/proofs.md,
theorem 12). The two differ by the logarithm of the number of vectors, which is little beside |v|^2 / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special

from verax.mechanism import Individual, Mechanism, Mixed, Phases
from verax.privacy.composition import BOTH, LOWER, Sides
from verax.privacy.curve import Curve
from verax.privacy.lattice import Law
from verax.privacy.mixtures import truncated_rate
from verax.privacy.pairs import UNIT, Array
from verax.privacy.strong import StrongCurve, shift_unit, strong
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic
from verax.samplers.poisson import Poisson
from verax.samplers.random_allocation import RandomAllocation
from verax.samplers.random_participation import RandomParticipation
from verax.samplers.shuffle import Shuffle
from verax.samplers.truncated_poisson import TruncatedPoisson
from verax.samplers.without_replacement import WithoutReplacement

LEAST_NOISE = 1e-140
"""Noise below which squares of what it hides overflow; it is then as good as none."""

_SEEN = 100.0  # shift in standard deviations of the noise from which on the two bounds are close
_QUANTILES = 48  # values of |v| that are tried
_MARGINS = np.array([-8.0, -6.0, -5.0, -4.5, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 6.0])
"""How far below |v| the thresholds are."""
_ROUNDED = 64.0 * UNIT  # of a length: more than what rounding it may add
_BEYOND = np.array([2.0, 5.0, 10.0, 20.0, 40.0, 80.0])  # of a threshold, how much less than nothing it costs
_LARGEST = 1e300  # an epsilon that can still be added to
_LEFT_OUT = 1e-3  # of delta: what vectors longer than those looked for may have


def applies(phases: Phases) -> bool:
    """Whether some round's noise is that low."""
    return any(
        0.0 < m.noise_multiplier < 1.0 / _SEEN and not isinstance(m.sampler, Deterministic) for m in phases.mechanisms
    )


def bounds(phases: Phases, group: int, orthogonal: bool) -> tuple[list[Curve], list[Curve], str, str]:
    """Upper curves and attacks, with the theorem on each side."""
    told = strong(Phases(tuple(_told(m, group) for m in phases.mechanisms)), group, None, orthogonal)
    uppers: list[Curve] = [told.curve]
    above = "almost no noise, so the sampling may as well be told: " + told.upper_by
    if phases.relation == "replace" and _only_poisson(phases):
        hidden = Phases(tuple(replace(_told(m), relation="add-remove") for m in phases.mechanisms))
        absent = -math.fsum(group * len(m.sampler) * _log_out(m) for m in phases.mechanisms)
        if math.isfinite(absent):
            removed = strong(hidden, group, None, orthogonal).curve
            uppers = [Added(removed, absent * (1.0 + 1e-12))]
            above += "; removed first, then added, which shows at most where it is missing (docs/proofs.md, lemma 5)"
    searched = tuple(_searched(m) for m in phases.mechanisms)
    if any(isinstance(m.sampler, RandomAllocation) for m in searched):
        group = 1  # the others of the group may be silent
    curve = strong(Phases(searched), group, None, orthogonal).curve
    rounds = sum(len(m.sampler) * _values(m, group) for m in searched)
    least = min(shift_unit(m) for m in searched)
    below = "almost no noise: the likeliest sampling is looked for (docs/proofs.md, theorem 12)"
    return uppers, [Search(curve, rounds, least)], above, below


def _told(mechanism: Mechanism, group: int = 1) -> Mechanism:
    """What the attacker is told of samplers that A1 has no law for: when the record is there.

    Of a group that is allocated at random it is said that all of it is in the same rounds, which is the worst.
    """
    sampler = mechanism.sampler
    if isinstance(sampler, RandomAllocation) and group > 1:
        return replace(mechanism, sampler=Poisson(1.0, sampler.times * sampler.epochs))
    if isinstance(sampler, RandomParticipation):
        return replace(mechanism, sampler=Poisson(sampler.client_rate * sampler.record_rate, sampler.rounds))
    if isinstance(sampler, TruncatedPoisson):  # it may take another's place: as far as two clipped gradients
        noise = mechanism.noise_multiplier * (0.5 if isinstance(mechanism.clipping, Individual) else 1.0)
        return replace(mechanism, sampler=Poisson(sampler.rate, len(sampler)), noise_multiplier=noise)
    return mechanism


_FIXED = (Deterministic, Shuffle, BufferedShuffle, WithoutReplacement)


def _searched(mechanism: Mechanism) -> Mechanism:
    """The run that the attack is on: all but the group's own gradients are 0, or a replaced record's new one is."""
    sampler = mechanism.sampler
    if isinstance(sampler, RandomParticipation):
        mechanism = _told(mechanism)
        if not isinstance(mechanism.clipping, Individual):  # the client's other records are silent, not opposed
            mechanism = replace(mechanism, noise_multiplier=2.0 * mechanism.noise_multiplier)
    elif isinstance(sampler, TruncatedPoisson):
        rate = truncated_rate(sampler.rate, sampler.max_batch, sampler.population)
        mechanism = replace(mechanism, sampler=Poisson(rate, len(sampler)))
    hidden = mechanism.relation == "replace" and isinstance(mechanism.clipping, Individual)
    if hidden and not isinstance(mechanism.sampler, _FIXED):
        return replace(mechanism, relation="zero-out")
    return mechanism  # in batches of one size all others point the other way, as the new record does


def _only_poisson(phases: Phases) -> bool:
    return all(
        isinstance(m.sampler, Poisson | RandomParticipation) and isinstance(m.clipping, Individual)
        for m in phases.mechanisms
    )


def _log_out(mechanism: Mechanism) -> float:
    """Log of the chance that a record is not in a round."""
    sampler = _told(mechanism).sampler
    rate = sampler.rate if isinstance(sampler, Poisson) else 1.0
    return math.log1p(-rate) if rate < 1.0 else -math.inf


def _values(mechanism: Mechanism, group: int) -> int:
    """How many different moves of one round's sum there are, none apart."""
    most = mechanism.clipping.groups if isinstance(mechanism.clipping, Mixed) else group
    return min(group, most) if isinstance(mechanism.clipping, Individual | Mixed) else 1


@dataclass(frozen=True)
class Added:
    """An upper curve of one step of two, the other of which has no larger loss than ``most``."""

    curve: Curve
    most: float

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(delta) + self.most

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Upper bound on epsilon(delta)."""
        return 0.0, self.curve.epsilon(delta, rtol, sides, enough)[1] + self.most

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Upper bound on delta(epsilon)."""
        return 0.0, self.curve.delta(epsilon - self.most, rtol, sides, enough)[1] if epsilon > self.most else 1.0


@dataclass(frozen=True, eq=False)
class Search:
    """The attack max_v <v, x>/|v| >= c, for vectors v with ``law`` of |v|^2 and entries of at least ``least`` or 0.

    With the records there the maximum is at least a normal around |v|; without them it is that of at most N standard
    normals, where v has at most n = |v|^2 / least^2 entries that are not 0, out of ``places`` (round, value): N <= sum
    over j <= n of C(places, j).
    """

    curve: StrongCurve
    places: int
    least: float

    @cached_property
    def _law(self) -> tuple[Array, Array, float]:
        """Lengths |v| in ascending order, rounded down, their chances, and what may be missing."""
        law: Law = self.curve.law()
        error = law.error + UNIT * len(law.weights)
        return np.sqrt(law.lows), law.weights * (1.0 - error), law.lost

    def _up_to(self, left_out: float) -> tuple[Array, Array, float]:
        """Lengths and chances but for the largest ones, and the log of the number of vectors up to those lengths."""
        lengths, chances, _ = self._law
        highs = self.curve.law().highs
        tail = np.cumsum(chances[::-1])[::-1]
        kept = max(int(np.count_nonzero(tail > left_out)), 1)
        entries = min(float(highs[kept - 1]) / self.least / self.least * (1.0 + 1e-9), float(self.places))
        return lengths[:kept], chances[:kept], _log_subsets(self.places, math.floor(entries))

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(delta)

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower bound on epsilon(delta)."""
        lengths, chances, log_number = self._up_to(_LEFT_OUT * delta)
        tail = np.cumsum(chances[::-1])[::-1]
        near = int(np.count_nonzero(tail > delta))  # the longest of these has more than delta
        some = np.unique(np.linspace(max(near - _QUANTILES, 0), max(near - 1, 0), _QUANTILES).astype(np.int64))
        places = (lengths[some, None] * (1.0 - _ROUNDED) - _MARGINS).ravel()
        places = places[places > 1.0]
        found = self._found(lengths, chances, places) - delta * (1.0 + 1e-12)
        useful = found > 0.0
        if not useful.any():
            return 0.0, math.inf
        c = places[useful]
        best = np.log(found[useful]) - log_number + c * c / 2.0 + np.log(c)  # Mills: P[N > c] <= e^(-c^2/2) / c
        return max(float(best.max()) * (1.0 - 1e-12), 0.0), math.inf

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower bound on delta(epsilon)."""
        if LOWER not in sides or epsilon > _LARGEST:
            return 0.0, 1.0
        best = 0.0
        for left_out in (1e-4, 1e-9, 1e-16):
            lengths, chances, log_number = self._up_to(left_out)
            places = np.sqrt(2.0 * (epsilon * (1.0 + 1e-12) + log_number + _BEYOND))
            false = np.exp(-_BEYOND * (1.0 - 1e-9)) / places
            best = max(best, float((self._found(lengths, chances, places) - false).max()))
        return best, 1.0

    def _found(self, lengths: Array, chances: Array, places: Array) -> Array:
        """The chance that the maximum reaches each of the places, with the records there; rounded down."""
        slack = 8.0 * UNIT * lengths
        return np.asarray(special.ndtr(lengths - slack - places[:, None]) @ chances * (1.0 - 1e-12))


def _log_subsets(places: int, most: int) -> float:
    """An upper bound on log sum_{j <= most} C(places, j) (Chernoff: (e places / most)^most), and on places log 2."""
    if most <= 0:
        return 0.0
    if 2 * most >= places:
        return places * math.log(2.0)
    return most * (1.0 + math.log(places / most)) * (1.0 + 1e-12)
