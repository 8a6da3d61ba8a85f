"""What is lost where a clip-group holds no other record that could point the other way.

Where the number of records is declared, some clip-group may hold no other record. What an attack
achieves that counts on company in every clip-group of every round is then less by (1 + e^eps) times
the probability that it is missing somewhere (docs/proofs.md, lemma 6). With the others silent the
aggregate goes from 0 to u: the same attack at twice the noise, which needs no company.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verax.mechanism import Individual, Mechanism, Mixed, Phases
from verax.privacy.curves.base import Curve
from verax.privacy.guarantee import Guarantee
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import hypergeometric_pmf
from verax.privacy.numerics.rounding import OPS_8, OPS_8G, OPS_8000, occupancy_error, up
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import BOTH, LOWER, UPPER, Bounds, Composition, Sides
from verax.privacy.samplers.base import pricing_of
from verax.samplers.random_participation import RandomParticipation

RARE = 1e-20
"""The probability of an empty clip-group up to which no other attack is tried."""
_MOST = 2 * 10**6  # records times clip-groups up to which occupied clip-groups are counted
_APART = 100.0  # noises between aggregates from which on they are too far apart for bins to compare
_BINS, _MOST_BINS = 200.0, 1e8  # per noise, and of all aggregates, up to which there are bins
_STEPS = 12  # of the search for the largest epsilon that an attack proves, its charge taken off


def declared_population(phases: Phases) -> int | None:
    """The number of records, if a phase declares it."""
    known = [m.sampler.declared_population for m in phases.mechanisms]
    return min((count for count in known if count is not None), default=None)


def with_records_of_one_client(phases: Phases, records: int | None) -> Phases:
    """The phases, in each of which the client has at most so many other records.

    What attacks count on: a declared number of records is the most that there are, so one client
    must do with the least of them in every phase.
    """
    if records is None:
        return phases
    return Phases(
        tuple(
            replace(m, sampler=replace(m.sampler, records=records))
            if isinstance(m.sampler, RandomParticipation) and m.sampler.records > records
            else m
            for m in phases.mechanisms
        )
    )


def declared_other_records(phases: Phases) -> int | None:
    """The most other records that a client can have, if a phase says it is one's records."""
    samplers = [m.sampler for m in phases.mechanisms]
    own = [s.records for s in samplers if isinstance(s, RandomParticipation)]
    population = declared_population(phases)
    return min([*own, *([] if population is None else [population - 1])]) if own else None


def has_independent_records(sampler: RandomParticipation) -> bool:
    """Whether the client's records are independent: a Poisson run with the product of the rates."""
    return sampler.client_rate == 1.0 or (sampler.records == 0 and not sampler.revealed)


def empty_group_probability(mechanism: Mechanism, group: int, population: int | None) -> float:
    """At most the probability that in some round a clip-group holds nobody outside the ``group``.

    It is 0 where no clip-group needs company, or if there may be as many records as one likes.

    >>> from verax import Batch, Mixed, Poisson, WithoutReplacement
    >>> empty_group_probability(
    ...     Mechanism(WithoutReplacement(batch=1, population=4, steps=1), 1.0, Batch(), "zero-out"),
    ...     1,
    ...     4,
    ... )
    0.25...
    >>> empty_group_probability(
    ...     Mechanism(Poisson(rate=0.01, steps=100), 1.0, Mixed(groups=4)), 1, None
    ... )
    0.0
    """
    sampler, clipping = mechanism.sampler, mechanism.clipping
    priced = pricing_of(sampler)
    population = priced.population_known_to_attack(population)
    if population is None or isinstance(clipping, Individual):
        return 0.0
    clip_groups = clipping.groups if isinstance(clipping, Mixed) else 1
    once = priced.empty_group_probability(clip_groups, group, population, mechanism.relation)
    return min(up(len(sampler) * once, OPS_8G), 1.0)


def fixed_batch_empty_group(
    clip_groups: int, group: int, population: int, relation: str, size: int, at_random: bool = True
) -> float:
    """At most the probability that in a batch of ``size`` a clip-group is empty but for the group.

    ``at_random`` says that a batch is a uniform subset; otherwise the whole group may be in it.
    """
    one = 1.0 / clip_groups
    # the record itself points the other way before or after: its own clip-group has company
    if relation == "replace":
        return (clip_groups - 1) * none_joins(one, max(size - group, 0))
    if not at_random:
        return clip_groups * none_joins(one, max(size - group, 0))
    hits = hypergeometric_pmf(population, min(group, population), min(size, population))
    return clip_groups * math.fsum(
        chance * none_joins(one, max(size - hit, 0))
        for hit, chance in enumerate(hits.tolist())
        if chance > 0.0
    )


def none_joins(chance: float, others: int) -> float:
    """Nobody comes, if each of the others does with this chance."""
    return math.exp(others * math.log1p(-chance)) if chance < 1.0 else float(others == 0)


@dataclass(frozen=True)
class AttackWithFailures:
    """An attack that needs something which is missing with probability at most ``chance``.

    With P, Q the pmfs it counts on and P', Q' the true ones, P'(A) - e^eps Q'(A) >= P(A) - e^eps
    Q(A) - (1 + e^eps) chance for every event A. Upper bounds are left alone.
    """

    curve: Curve
    chance: float

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(delta)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        lower, upper = self.curve.delta(epsilon, rtol, sides, enough)
        return max(lower - self._charge(epsilon), 0.0), upper

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on epsilon(delta).

        If the curve is at least delta plus the charge at e up to some epsilon, the true one is at
        least delta up to the smaller one of epsilon and e: any e proves something.
        """
        most, upper = self.curve.epsilon(delta, rtol, sides, enough)
        if sides == (UPPER,) or most == 0.0:
            return 0.0, upper
        low, high = 0.0, min(most, -math.log(self.chance))
        place = high
        for _ in range(_STEPS):
            paid = up(delta + self._charge(place), OPS_8)
            proved = self.curve.epsilon(paid, rtol, (LOWER,))[0] if paid < 1.0 else 0.0
            low = max(low, min(place, proved))
            high = place if proved < place else high
            if high - low <= 0.1 * rtol * high:
                break
            place = 0.5 * (low + high)
        return low, upper

    def _charge(self, epsilon: float) -> float:
        return up((1.0 + math.exp(min(epsilon, 700.0))) * self.chance, OPS_8000)


def opposed_aggregate_pair(mechanism: Mechanism, population: int | None) -> DiscretePair | None:
    """One round in which all others point one way and the record turns its aggregate around.

    What the attacker sees is the sum over clip-groups: -1 for each that holds others, 1 for the
    record's. How many hold others has an exact pmf where rounds are independent.
    """
    sampler, clipping = mechanism.sampler, mechanism.clipping
    clip_groups = clipping.groups if isinstance(clipping, Mixed) else 1
    population = sampler.most_records or population
    unit = 1.0 / mechanism.noise_multiplier
    bins = _BINS * unit * clip_groups * clip_groups
    if unit > _APART or bins > _MOST_BINS:
        return None
    if population is None or mechanism.relation == "replace" or population * clip_groups > _MOST:
        return None
    known = pricing_of(sampler).others_in_batch(population)
    if known is None:
        return None
    absent, outside, inside = known
    hold, beside = np.arange(clip_groups + 1.0), np.arange(float(clip_groups))
    away = _occupancy_pmf(outside, clip_groups, clip_groups), -hold
    here = _occupancy_pmf(inside, clip_groups, clip_groups - 1), 1.0 - beside
    weights, places = (np.concatenate(both) for both in zip(away, here, strict=True))
    table = DiscretePair.from_mixtures(
        (weights, unit * places), (_occupancy_pmf(absent, clip_groups, clip_groups), -unit * hold)
    )
    return replace(table, error=table.error + occupancy_error(population))


def _occupancy_pmf(numbers: Array, clip_groups: int, wanted: int) -> Array:
    """The distribution of how many of the ``wanted`` clip-groups are hit, given that of records."""
    hit = np.arange(wanted + 1.0)
    grow, stay = (wanted - hit) / clip_groups, (clip_groups - wanted + hit) / clip_groups
    pmf, total = np.zeros(wanted + 1), np.zeros(wanted + 1)
    pmf[0] = 1.0
    for weight in numbers.tolist():
        total += weight * pmf
        moved = pmf * grow
        pmf *= stay
        pmf[1:] += moved[:-1]
    return total


def account_for_empty_groups(
    found: Guarantee,
    group: int,
    population: int | None,
    lowers_of: Callable[[Phases], Sequence[Curve]],
) -> Guarantee:
    """The guarantee with the lower bounds that the declared number of records allows."""
    runs = found.mechanism.mechanisms
    chances = [empty_group_probability(m, group, population) for m in runs]
    total = math.fsum(chances)
    if total == 0.0:
        return found
    charged: list[Curve] = (
        [AttackWithFailures(curve, total) for curve in found.lowers] if total < 1.0 else []
    )
    if total <= RARE:
        return replace(
            found, uppers=charged if found.uppers is found.lowers else found.uppers, lowers=charged
        )
    lonely = [chance > RARE for chance in chances]
    quiet = [
        replace(m, noise_multiplier=m.noise_multiplier * (1 + some))
        for m, some in zip(runs, lonely, strict=True)
    ]
    left = math.fsum(chance for chance in chances if chance <= RARE)
    silent = lowers_of(Phases(tuple(quiet)))
    charged += [AttackWithFailures(curve, left) for curve in silent] if left > 0.0 else silent
    if (
        len(runs) == group == 1
        and (table := opposed_aggregate_pair(runs[0], population)) is not None
    ):
        once = PricedRound(table)
        charged += [Composition([(rnd, len(runs[0].sampler))]) for rnd in (once, once.reverse())]
    how = "where a clip-group may hold no other record, what is left of it then, "
    how += "or the others' gradients 0"
    return replace(
        found, lowers=charged, lower_by=f"{found.lower_by}; {how} (docs/proofs.md, lemma 6)"
    )
