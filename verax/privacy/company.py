"""A clipped aggregate turns from -u to u only in company: another record of its clip-group points the other way.

Where the number of records is declared, some clip-group may hold no other record. What an attack achieves that counts
on company in every clip-group of every round is then less by (1 + e^eps) times the probability that it is missing
somewhere (docs/proofs.md, lemma 6). With the others silent the aggregate goes from 0 to u: the same attack at twice the
noise, which needs no company.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verax.mechanism import Individual, Mechanism, Mixed, Phases
from verax.privacy.composition import BOTH, LOWER, UPPER, Composition, Round, Sides
from verax.privacy.curve import Curve
from verax.privacy.guarantee import Guarantee
from verax.privacy.numerics.distributions import binomial_law, hypergeometric_law
from verax.privacy.pairs import UNIT, Array
from verax.privacy.tables import Table
from verax.samplers import BufferedShuffle, Deterministic, Shuffle
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson
from verax.samplers.random_allocation import RandomAllocation
from verax.samplers.random_participation import RandomParticipation
from verax.samplers.truncated_poisson import TruncatedPoisson
from verax.samplers.without_replacement import WithoutReplacement

RARE = 1e-20
"""A chance of missing company up to which no other attack is worth a look."""
_ROUND_UP = 1.0 + 1e-6
_MOST = 2 * 10**6  # records times clip-groups up to which occupied clip-groups are counted
_STEPS = 12  # of the search for the largest epsilon that an attack proves, its charge taken off


def declared(phases: Phases) -> int | None:
    """The number of records, if a phase declares it."""
    known = [m.sampler.population for m in phases.mechanisms if hasattr(m.sampler, "population")]
    return min(known, default=None)


def independent(sampler: RandomParticipation) -> bool:
    """Whether nothing ties the client's records together: a Poisson run with the product of the rates."""
    return sampler.client_rate == 1.0 or (sampler.records == 0 and not sampler.revealed)


def lacking(mechanism: Mechanism, group: int, population: int | None) -> float:
    """At most the probability that in some round some clip-group holds nobody outside the ``group``, and at most 1.

    It is 0 where no clip-group needs company, or if there may be as many records as one likes.

    >>> from verax import Batch, Mixed
    >>> lacking(Mechanism(WithoutReplacement(batch=1, population=4, steps=1), 1.0, Batch(), "zero-out"), 1, 4)
    0.25...
    >>> lacking(Mechanism(Poisson(rate=0.01, steps=100), 1.0, Mixed(groups=4)), 1, None)
    0.0
    """
    sampler, clipping = mechanism.sampler, mechanism.clipping
    if isinstance(sampler, RandomParticipation):
        population = sampler.records + 1 if independent(sampler) else None
    if population is None or isinstance(clipping, Individual):
        return 0.0
    clip_groups = clipping.groups if isinstance(clipping, Mixed) else 1
    return min(len(sampler) * _round(sampler, clip_groups, group, population, mechanism.relation) * _ROUND_UP, 1.0)


def _round(sampler: Sampler, clip_groups: int, group: int, population: int, relation: str) -> float:
    """The same for one round, as a sum over its clip-groups."""
    others, one = max(population - group, 0), 1.0 / clip_groups
    match sampler:
        case TruncatedPoisson(rate=rate, max_batch=most):  # the group takes at most its own number of places
            return clip_groups * (_coins(rate / clip_groups, others) + _coins(one, max(most - group, 0)))
        case Poisson(rate=rate):
            return clip_groups * _coins(rate / clip_groups, others)
        case RandomParticipation(client_rate=p, record_rate=q):
            return clip_groups * _coins(p * q / clip_groups, others)
        case BallsInBins(bins=bins):
            return clip_groups * _coins(1.0 / bins / clip_groups, others)
        case RandomAllocation(times=times, steps=steps):
            return clip_groups * _coins(times / steps / clip_groups, others)
        case WithoutReplacement(batch=size):
            pass
        case Shuffle(batches=batches) | Deterministic(batches=batches) | BufferedShuffle(batches=batches):
            size = population // int(batches)
        case _:
            return 1.0
    if relation == "replace":  # the record itself points the other way before or after: its own clip-group has company
        return (clip_groups - 1) * _coins(one, max(size - group, 0))
    if isinstance(sampler, Deterministic | BufferedShuffle):
        return clip_groups * _coins(one, max(size - group, 0))
    hits = hypergeometric_law(population, min(group, population), min(size, population))
    return clip_groups * math.fsum(
        chance * _coins(one, max(size - hit, 0)) for hit, chance in enumerate(hits.tolist()) if chance > 0.0
    )


def _coins(chance: float, others: int) -> float:
    """Nobody comes, if each of the others does with this chance."""
    return math.exp(others * math.log1p(-chance)) if chance < 1.0 else float(others == 0)


@dataclass(frozen=True)
class Charged:
    """An attack that counts on something that is missing with probability ``chance``, on either side at most.

    With P, Q the laws it counts on and P', Q' the true ones, P'(A) - e^eps Q'(A) >= P(A) - e^eps Q(A) - (1 + e^eps)
    chance for every event A. Upper bounds are left alone.
    """

    curve: Curve
    chance: float

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(delta)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on delta(epsilon)."""
        lower, upper = self.curve.delta(epsilon, rtol, sides, enough)
        return max(lower - self._charge(epsilon), 0.0), upper

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on epsilon(delta).

        If the curve is at least delta plus the charge at e up to some epsilon, the true one is at least delta up to the
        smaller one of epsilon and e: any e proves something.
        """
        most, upper = self.curve.epsilon(delta, rtol, sides, enough)
        if sides == (UPPER,) or most == 0.0:
            return 0.0, upper
        low, high = 0.0, min(most, -math.log(self.chance))
        place = high
        for _ in range(_STEPS):
            paid = (delta + self._charge(place)) * (1.0 + 1e-15)
            proved = self.curve.epsilon(paid, rtol, (LOWER,))[0] if paid < 1.0 else 0.0
            low = max(low, min(place, proved))
            high = place if proved < place else high
            if high - low <= 0.1 * rtol * high:
                break
            place = 0.5 * (low + high)
        return low, upper

    def _charge(self, epsilon: float) -> float:
        return (1.0 + math.exp(min(epsilon, 700.0))) * self.chance * (1.0 + 1e-12)


def turning(mechanism: Mechanism, population: int | None) -> Table | None:
    """One round as it is, if all others point one way and the record turns its aggregate around; None if not known.

    What the attacker sees is the sum over clip-groups: -1 for each that holds others, 1 for the record's. How many hold
    others has an exact law where rounds are independent.
    """
    sampler, clipping = mechanism.sampler, mechanism.clipping
    clip_groups = clipping.groups if isinstance(clipping, Mixed) else 1
    if isinstance(sampler, RandomParticipation):
        population = sampler.records + 1
    if population is None or mechanism.relation == "replace" or population * clip_groups > _MOST:
        return None
    known = _batches(sampler, population)
    if known is None:
        return None
    absent, outside, inside = known
    hold, beside = np.arange(clip_groups + 1.0), np.arange(float(clip_groups))
    away = _occupied(outside, clip_groups, clip_groups), -hold
    here = _occupied(inside, clip_groups, clip_groups - 1), 1.0 - beside
    weights, places = (np.concatenate(both) for both in zip(away, here, strict=True))
    unit = 1.0 / mechanism.noise_multiplier
    table = Table.binned((weights, unit * places), (_occupied(absent, clip_groups, clip_groups), -unit * hold))
    return replace(table, error=table.error + UNIT * (4000.0 + 250.0 * population))


def _batches(sampler: Sampler, population: int) -> tuple[Array, Array, Array] | None:
    """The law of the number of others in a batch, from 0 on: without the record, and with it if it is out, or in."""
    match sampler:
        case TruncatedPoisson(rate=rate, max_batch=most):
            absent, sizes = (_cut(binomial_law(count, rate), most) for count in (population - 1, population))
            inside = sizes[1:] * np.arange(1.0, len(sizes)) / population
            return absent, sizes * (1.0 - np.arange(float(len(sizes))) / population), inside
        case WithoutReplacement(batch=batch):
            inside, outside = np.zeros(batch), np.zeros(batch + 1)
            inside[-1], outside[-1] = batch / population, 1.0 - batch / population
            return outside + np.append(inside, 0.0), outside, inside
        case RandomParticipation(client_rate=p, record_rate=q):
            absent = binomial_law(population - 1, p * q)
            return absent, absent * (1.0 - p * q), absent * (p * q)
    return None


def _cut(law: Array, most: int) -> Array:
    """Larger numbers are lowered to ``most``."""
    return np.append(law[:most], law[most:].sum()) if len(law) > most + 1 else law


def _occupied(numbers: Array, clip_groups: int, wanted: int) -> Array:
    """The law of how many of the ``wanted`` clip-groups are hit by so many records, given the law of their number."""
    hit = np.arange(wanted + 1.0)
    grow, stay = (wanted - hit) / clip_groups, (clip_groups - wanted + hit) / clip_groups
    law, total = np.zeros(wanted + 1), np.zeros(wanted + 1)
    law[0] = 1.0
    for weight in numbers.tolist():
        total += weight * law
        moved = law * grow
        law *= stay
        law[1:] += moved[:-1]
    return total


def in_company(
    found: Guarantee, group: int, population: int | None, lowers_of: Callable[[Phases], Sequence[Curve]]
) -> Guarantee:
    """The guarantee with lower bounds that the declared number of records allows for; ``lowers_of`` prices attacks."""
    runs = found.mechanism.mechanisms
    chances = [lacking(m, group, population) for m in runs]
    total = math.fsum(chances)
    if total == 0.0:
        return found
    charged: list[Curve] = [Charged(curve, total) for curve in found.lowers] if total < 1.0 else []
    if total <= RARE:
        return replace(found, uppers=charged if found.uppers is found.lowers else found.uppers, lowers=charged)
    lonely = [chance > RARE for chance in chances]
    quiet = [replace(m, noise_multiplier=m.noise_multiplier * (1 + some)) for m, some in zip(runs, lonely, strict=True)]
    left = math.fsum(chance for chance in chances if chance <= RARE)
    silent = lowers_of(Phases(tuple(quiet)))
    charged += [Charged(curve, left) for curve in silent] if left > 0.0 else silent
    if len(runs) == group == 1 and (table := turning(runs[0], population)) is not None:
        once = Round(table)
        charged += [Composition([(rnd, len(runs[0].sampler))]) for rnd in (once, once.reverse())]
    how = "where a clip-group may hold no other record, what is left of it then, or the others' gradients 0"
    return replace(found, lowers=charged, lower_by=f"{found.lower_by}; {how} (docs/proofs.md, lemma 6)")
