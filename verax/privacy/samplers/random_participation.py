"""A client that takes part at random, and then uses some of its records."""

from __future__ import annotations

import math
from dataclasses import replace

from verax.checks import NoGuarantee
from verax.mechanism import Individual, Mechanism, Mixed
from verax.privacy.curves.empty_groups import independent, nobody_comes
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_law
from verax.privacy.numerics.lattice import Law
from verax.privacy.pairs.gaussian_mixture import Pair
from verax.privacy.pairs.random_participation import (
    LARGEST_UNIT,
    both_ways,
    leaning,
    leans,
    participating,
    silent,
)
from verax.privacy.pairs.rounds import Round
from verax.privacy.samplers.base import (
    Analysis,
    Group,
    SamplerPricing,
    no_strong_analysis,
    one_record_only,
    presence_shift,
    prices,
    pricing_of,
)
from verax.privacy.samplers.poisson import in_two_steps
from verax.privacy.strong.curve import Who
from verax.privacy.strong.displacement import Moves, seen
from verax.samplers.poisson import Poisson
from verax.samplers.random_participation import RandomParticipation


@prices(RandomParticipation)
class RandomParticipationPricing(SamplerPricing[RandomParticipation]):
    """A client that takes part at random, and then uses some of its records."""

    slow_bound, slow_attack, slow_groups = False, False, True

    def analysis(self, mechanism: Mechanism, group: Group) -> Analysis:
        """One record of a client that takes part at random (docs/random-participation.md, theorems 2 to 4)."""
        sampler = self.sampler
        p, q, records, count = (
            sampler.client_rate,
            sampler.record_rate,
            sampler.records,
            len(sampler),
        )
        if independent(sampler):
            return pricing_of(Poisson(p * q, count)).analysis(mechanism, group)
        if isinstance(mechanism.clipping, Mixed):
            raise NoGuarantee(
                "no analysis of RandomParticipation with clip-groups is known; use Individual or Batch"
            )
        one_record_only(mechanism, group, absent=True)
        unit = presence_shift(mechanism)
        visible = -math.expm1(count * math.log1p(-p * q))
        individual = isinstance(mechanism.clipping, Individual)
        worst = (
            participating(p, q, records, unit, sampler.revealed)
            if individual
            else silent(p, q, unit, sampler.revealed)
        )
        uppers = both_ways(worst, count)
        if sampler.revealed and individual:
            return Analysis(
                uppers,
                None,
                "participation known: a Poisson round or none (docs/random-participation.md, theorem 3)",
                "achieved by fixed gradients of full norm in one direction",
                visible,
            )
        tried = leans(records * q) if individual and unit <= LARGEST_UNIT else ()
        seen = {
            f"{rank}": Round(leaning(p, q, records, unit, lean)) for rank, lean in enumerate(tried)
        }
        seen["alone"] = Round(Pair.subsampled(p * q, unit if individual else unit / 2.0))
        how = "the others' gradients 0, or all alike and the record's at an angle"
        why = f"{how} (docs/random-participation.md, section 3)"
        return Analysis(
            uppers,
            {f"remove, {name}": [(rnd, count)] for name, rnd in seen.items()},
            "the number of other records told, their gradients in the worst directions (docs/random-participation.md, "
            "theorem 2)",
            why,
            visible,
            sure=True,
        )

    def moves(self, mechanism: Mechanism, group: Group) -> Moves:
        """A record's own participation, as that of Poisson sampling with the product of the rates."""
        sampler = self.sampler
        tied = not independent(sampler)
        if tied:
            one_record_only(mechanism, group)
        p, q, count = sampler.client_rate, sampler.record_rate, len(sampler)
        exact = 1.0 in (p, q)
        most = p * q if exact else min(math.nextafter(p * q, 2.0), 1.0)
        least = p * q if exact else math.nextafter(p * q, 0.0)
        told = replace(mechanism, sampler=Poisson(most, count))
        attacked = replace(mechanism, sampler=Poisson(least, count))
        # the client's other records are silent, not opposed
        if not isinstance(mechanism.clipping, Individual):
            attacked = replace(attacked, noise_multiplier=2.0 * mechanism.noise_multiplier)
        found = replace(seen(attacked, group), told=seen(told, group).told)
        # its other records may show that the client takes part: then the record's own coin is all
        # that hides it
        return in_two_steps(found, told, group, q if tied else most)

    def touched(self, mechanism: Mechanism, who: Who) -> Law:
        raise no_strong_analysis(self.sampler)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        rate = self.sampler.client_rate * self.sampler.record_rate
        return clip_groups * nobody_comes(rate / clip_groups, max(population - group, 0))

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        rate = self.sampler.client_rate * self.sampler.record_rate
        absent = binomial_law(population - 1, rate)
        return absent, absent * (1.0 - rate), absent * rate

    def refuse_larger_group(self, size: int) -> None:
        """Records of one client are protected, so there are no more than it holds."""
        most = self.sampler.most_records
        if size > most:
            raise ValueError(
                f"group must be at most {most}, got {size}: RandomParticipation protects records of one "
                f"client, and records={self.sampler.records} says that it has {most} in all; name a larger records=, "
                "or protect whole clients with Poisson(rate=client_rate, ...)"
            )

    def counted_on(self, population: int | None) -> int | None:
        """The client's own records, where nothing ties them together."""
        return self.sampler.most_records if independent(self.sampler) else None
