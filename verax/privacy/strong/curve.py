"""The strong adversary A1 of "shuffling and batch clipping", who sees the batches.

Given the sampling, a round whose batch touches L clip-groups of the group moves the noisy sum by at
most L units, and the whole run is a Gaussian mechanism with mu = c * unit, c^2 = sum of L^2 over
all rounds. The sampling does not depend on the data, so

    D_a(A1) = sum_c q(c) D_a(N(c unit, 1) || N(0, 1)),

with q the exact pmf of c (definition 5.1): its trade-off curve is that of definition 5.2. By joint
convexity it also bounds the standard adversary A0, who does not see the sampling. Proofs and
units: docs/strong-adversary.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from verax import checks
from verax.mechanism import Batch, Individual, Mechanism, Mixed, Phases
from verax.privacy.curves import gaussian
from verax.privacy.curves.base import Curve
from verax.privacy.curves.empty_groups import (
    AttackWithFailures,
    declared_population,
    empty_group_probability,
)
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import CELLS, LatticePmf
from verax.privacy.numerics.roots import bracket, crossing
from verax.privacy.numerics.rounding import OPS_8000, down, outward, ulps, up
from verax.privacy.pld.composition import BOTH, LOWER, UPPER, Bounds, Sides
from verax.privacy.samplers.base import ProtectedGroup, neighbour_shift, pricing_of
from verax.privacy.strong import occupancy
from verax.privacy.strong.random_mu import mixture_delta, mixture_tradeoff

MOST_TOGETHER = 128  # records whose joint places in shuffled batches are followed exactly
MOST_IN_BATCHES = 4096  # the same if only touched batches count
A1_THEOREM = (
    "adversary A1 sees the sampling: Gaussian curves mixed by the exact law of touched clip-groups "
    "('shuffling and batch clipping', definition 5.2; docs/strong-adversary.md)"
)
_RESOLUTIONS = (CELLS, 8 * CELLS)
_LARGEST = 1e300  # an epsilon that can still be halved
# records times epochs up to which clip-groups redrawn in kept batches are followed exactly
_REPEATED = 256


@dataclass(frozen=True, eq=False)
class StrongCurve:
    """The privacy curve against A1, in both directions at once: a mixture of Gaussian curves.

    ``pmfs`` gives the pmf of mu^2 in at most that many cells; ``exposure`` bounds the probability
    that rounds without noise show the group.
    """

    pmfs: Callable[[int], LatticePmf]
    exposure: tuple[float, float] = (0.0, 0.0)

    @cached_property
    def _known(self) -> dict[int, LatticePmf]:
        return {}

    def pmf(self, cells: int = CELLS) -> LatticePmf:
        """The pmf of mu^2."""
        if cells not in self._known:
            self._known[cells] = self.pmfs(cells)
        return self._known[cells]

    def estimate(self, delta: float) -> float:
        """The epsilon of the average mu."""
        if delta <= self.exposure[0]:
            return math.inf
        return gaussian.gaussian_epsilon(math.sqrt(self.pmf().mean), delta)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on delta(epsilon)."""
        return self._refined(rtol, lambda pmf, side: self._delta(pmf, epsilon, side))

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on epsilon(delta)."""
        return self._refined(rtol, lambda pmf, side: self._epsilon(pmf, delta, side))

    def _refined(
        self, rtol: float, read: Callable[[LatticePmf, int], float]
    ) -> tuple[float, float]:
        lower, upper = 0.0, math.inf
        for cells in _RESOLUTIONS:
            pmf = self.pmf(cells)
            lower, upper = max(lower, read(pmf, LOWER)), min(upper, read(pmf, UPPER))
            if (
                len(pmf.weights) == 1
                or pmf.spread == 0.0
                or upper - lower <= rtol * upper
                or math.isinf(lower)
            ):
                break
        return min(lower, upper), upper

    def _delta(self, pmf: LatticePmf, epsilon: float, side: int) -> float:
        rest = mixture_delta(pmf, epsilon, side)
        seen = self.exposure[side == UPPER]
        return min(seen + outward((1.0 - seen) * rest, side, ulps(4.0)), 1.0)

    def _epsilon(self, pmf: LatticePmf, delta: float, side: int) -> float:
        def excess(epsilon: float) -> float:
            value = self._delta(pmf, epsilon, side)
            return math.log(value / delta) if value > 0.0 else -1e4

        if excess(0.0) <= 0.0:
            return 0.0
        if self.exposure[side == UPPER] >= delta:
            return math.inf
        high = max(gaussian.gaussian_epsilon(math.sqrt(pmf.mean), delta), 1.0)
        _, high = bracket(
            lambda epsilon: excess(epsilon) > 0.0, 0.0, high, limit=sys.float_info.max
        )
        if math.isinf(high):  # a mu whose square is no double
            return math.inf if side == UPPER else _LARGEST
        return crossing(excess, 0.0, high, side)

    def tradeoff(self, alpha: float) -> tuple[float, float]:
        """The least miss rate at false-alarm rate ``alpha``, rounded down and up.

        (Definition 5.2.)
        """
        alpha = checks.real("alpha", alpha)
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
        lower, upper = 0.0, 1.0
        for cells in _RESOLUTIONS:
            pmf = self.pmf(cells)
            seen, unseen = self.exposure[1], 1.0 - self.exposure[0]
            if seen < 1.0:
                lower = max(
                    lower,
                    (1.0 - seen) * mixture_tradeoff(pmf, min(alpha / (1.0 - seen), 1.0), LOWER),
                )
            spent = min(alpha / unseen, 1.0) if unseen > 0.0 else 1.0
            upper = min(upper, unseen * mixture_tradeoff(pmf, spent, UPPER))
            if len(pmf.weights) == 1 or pmf.spread == 0.0 or upper - lower <= 1e-3 * upper:
                break
        return down(lower, ulps(8.0)), min(up(upper, ulps(8.0)), 1.0 - alpha)


@dataclass(frozen=True)
class StrongAnalysis:
    """What a guarantee against A1 is made of; the one curve serves both directions and both sides.

    With a declared number of records, clip-groups lack the company that the curve's attack needs
    with probability ``failure_probability`` at most; ``silent_attack`` is the attack that needs
    none (docs/proofs.md, lemma 6).
    """

    curve: StrongCurve
    upper_by: str
    lower_by: str
    failure_probability: float = 0.0
    silent_attack: StrongCurve | None = None

    @property
    def attacks(self) -> tuple[Curve, ...]:
        """The curves that prove lower bounds."""
        if self.silent_attack is None:
            return (self.curve,)
        return (
            (AttackWithFailures(self.curve, self.failure_probability), self.silent_attack)
            if self.failure_probability < 1.0
            else (self.silent_attack,)
        )

    def tradeoff(self, alpha: float) -> tuple[float, float]:
        """The least miss rate at ``alpha`` false alarms, rounded down, and an attack's."""
        low, high = self.curve.tradeoff(alpha)
        if self.silent_attack is not None:
            counted = (
                self.curve.tradeoff(max(alpha - self.failure_probability, 0.0))[1]
                + self.failure_probability
            )
            high = min(max(high, counted), self.silent_attack.tradeoff(alpha)[1])
        return low, max(low, high)


def strong_analysis(
    run: Mechanism | Phases, group: int = 1, population: int | None = None, orthogonal: bool = False
) -> StrongAnalysis:
    """The privacy of a run for any ``group`` records against the adversary who sees the sampling.

    Args:
        run: a mechanism, or phases declared in advance.
        group: how many records are protected together.
        population: number of records, which shuffled batches need if ``group`` > 1. Without it the
            answer holds for every population; it is then the largest over all of them (mixed
            clipping: a range that contains it).
        orthogonal: the group's gradients are orthogonal to each other in every round (individual
            clipping only); under replace those of different records, old and new.

    >>> from verax import Mechanism, Shuffle
    >>> run = Mechanism(Shuffle(batches=938), noise_multiplier=4.0)
    >>> low, high = strong_analysis(run, group=8, population=60_000).curve.epsilon(
    ...     delta=1e-5, rtol=1e-3
    ... )
    >>> round(low, 4), round(high, 4)
    (2.9749, 2.9749)
    """
    phases = run if isinstance(run, Phases) else Phases((run,))
    size = checks.count("group", group)
    given = None if population is None else checks.count("population", population)
    people = declared_population(phases) or given
    for m in phases.mechanisms:
        most = m.sampler.declared_population or people
        if most is not None and size > most:
            raise ValueError(f"group must be at most the population, {most}, got {size}")
    noisy = [m for m in phases.mechanisms if m.noise_multiplier > 0.0]
    bare = [m for m in phases.mechanisms if m.noise_multiplier == 0.0]
    protected = ProtectedGroup(size, orthogonal, population=people)

    chances = [
        0.0 if m.relation == "replace" else empty_group_probability(m, size, people) for m in noisy
    ]

    def pmfs(cells: int, quiet: bool = False) -> LatticePmf:
        total = LatticePmf.of([0.0], [1.0])
        for m, chance in zip(noisy, chances, strict=True):
            part = pricing_of(m.sampler).touched_clip_groups(m, replace(protected, cells=cells))
            total = total.plus(
                part.scaled((neighbour_shift(m) * (0.5 if quiet and chance > 0.0 else 1.0)) ** 2),
                cells,
            )
        return total

    seen = [pricing_of(m.sampler).touched_clip_groups(m, protected).above(0.0) for m in bare]
    exposure = (
        _any_of([low for low, _ in seen], LOWER),
        _any_of([high for _, high in seen], UPPER),
    )
    curve, chance = StrongCurve(pmfs, exposure), min(math.fsum(chances), 1.0)
    curve.pmf()  # so that what has no analysis is refused here
    return StrongAnalysis(
        curve,
        A1_THEOREM,
        "achieved against adversary A1, who sees the sampling, by fixed updates of full norm",
        chance,
        StrongCurve(partial(pmfs, quiet=True), exposure) if chance > 0.0 else None,
    )


def strong_tradeoff(
    run: Mechanism | Phases,
    alpha: float | Sequence[float] | Array,
    group: int = 1,
    population: int | None = None,
    orthogonal: bool = False,
) -> tuple[Array, Array]:
    """The trade-off curve against A1, definition 5.2: beta(alpha) rounded down and up.

    See :func:`strong_analysis`.

    >>> from verax import Mechanism, Shuffle
    >>> low, high = strong_tradeoff(
    ...     Mechanism(Shuffle(batches=100), noise_multiplier=1.0), [0.05, 0.5]
    ... )
    >>> low.round(6).tolist(), high.round(6).tolist()  # one record, one epoch: G_1
    ([0.740489, 0.158655], [0.740489, 0.158655])
    """
    found = strong_analysis(run, group, population, orthogonal)
    places = np.asarray(alpha, dtype=float)
    pairs = np.array([found.tradeoff(a) for a in places.reshape(-1).tolist()]).reshape(-1, 2)
    return pairs[:, 0].reshape(places.shape), pairs[:, 1].reshape(places.shape)


def _any_of(chances: Sequence[float], side: int) -> float:
    """The probability of at least one of several independent events, rounded to one side."""
    if any(chance >= 1.0 for chance in chances):
        return 1.0
    return min(
        outward(-math.expm1(math.fsum(math.log1p(-chance) for chance in chances)), side, OPS_8000),
        1.0,
    )


# --- the pmf of c^2 -------------------------------------------------------------------------------


def independent_batches(hits: Array, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
    """Rounds with independent batches and the pmf of the group's records in one."""
    counts, power = None, 2
    match mechanism.clipping:
        case Individual():
            power = 1 if group.orthogonal else 2
        case Batch():
            power = 0
        case Mixed(groups=groups):
            counts = occupancy.occupied_bins_pmfs(groups)
    steps = len(mechanism.sampler)
    return occupancy.independent_rounds_pmf(hits, counts, steps, power, group.cells)


def one_batch_per_epoch(
    sizes: Sequence[tuple[int, int | None]],
    again: int,
    fresh: int,
    mechanism: Mechanism,
    group: ProtectedGroup,
) -> LatticePmf:
    """Every record in one batch, ``again`` times the same one, ``fresh`` times anew."""
    clipping, size = mechanism.clipping, group.size
    if size == 1 or group.is_counted_singly(mechanism):
        return certain_value(size * again * fresh)
    limit = MOST_IN_BATCHES if isinstance(clipping, Batch) else MOST_TOGETHER
    if size > limit or (isinstance(clipping, Mixed) and again > 1 and size * again > _REPEATED):
        batches = sum(count for count, _ in sizes)
        return worst_placement(batches, again * fresh, mechanism, group, chosen=False)
    match clipping:
        case Batch():
            pmf = occupancy.epoch_pmf(size, sizes, None).scaled(float(again))
        case Individual():
            each = occupancy.one_group_per_record
            pmf = occupancy.epoch_pmf(size, sizes, each).scaled(float(again))
        case Mixed(groups=groups):
            counts = partial(occupancy.occupied_bins_pmfs, groups)
            pmf = occupancy.epoch_pmf(size, sizes, counts, repeats=again)
    return pmf.merged(group.cells).times(fresh, group.cells)


def worst_placement(
    batches: int, epochs: int, mechanism: Mechanism, group: ProtectedGroup, chosen: bool
) -> LatticePmf:
    """The group in its worst places from above (docs/proofs.md, theorem 4).

    From below in bad places if ``chosen``, else in the mildest.
    """
    size = group.size
    match mechanism.clipping:
        case Individual():
            most = size if group.orthogonal else size * size
            each, more = divmod(size, batches)
            even = more * (each + 1) ** 2 + (batches - more) * each**2
            least = most if chosen or group.orthogonal else even
        case Batch():
            most = min(size, batches)
            least = most if chosen else 1
        case Mixed(groups=groups):
            whole, rest = divmod(min(size, groups * batches), groups)
            most = whole * groups**2 + rest**2
            least = min(size, batches) if chosen else 1
    return LatticePmf.between(float(least * epochs), float(most * epochs))


def certain_value(value: int) -> LatticePmf:
    """The pmf that has one value."""
    return LatticePmf.between(float(value), float(value))
