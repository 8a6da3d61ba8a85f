"""A client that takes part at random, and then uses some of its records."""

from __future__ import annotations

import math
from dataclasses import replace

from verax.checks import NoGuarantee
from verax.mechanism import Individual, Mechanism, Mixed
from verax.privacy.curves.empty_groups import has_independent_records, none_joins
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_pmf
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.random_participation import (
    LARGEST_UNIT,
    angled_attack,
    attack_cosines,
    both_directions,
    clipped_sum_participation_pair,
    participation_pair,
)
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    no_strong_analysis_error,
    presence_shift,
    prices,
    pricing_of,
    require_one_record,
)
from verax.privacy.samplers.poisson import displacement_in_two_steps
from verax.privacy.strong.displacement import Displacement, displacement_of_batches
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson
from verax.samplers.random_participation import RandomParticipation


@prices(RandomParticipation)
class RandomParticipationPricing(SamplerPricing[RandomParticipation]):
    """A client that takes part at random, and then uses some of its records."""

    slow_bound, slow_attack, slow_groups = False, False, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """One record of the client (docs/random-participation.md, theorems 2 to 4)."""
        sampler = self.sampler
        p, q, records, count = (
            sampler.client_rate,
            sampler.record_rate,
            sampler.records,
            len(sampler),
        )
        if has_independent_records(sampler):
            return pricing_of(Poisson(p * q, count)).analysis(mechanism, group)
        if isinstance(mechanism.clipping, Mixed):
            raise NoGuarantee(
                "no analysis of RandomParticipation with clip-groups is known; "
                "use Individual or Batch"
            )
        require_one_record(mechanism, group, absent=True)
        unit = presence_shift(mechanism)
        exposure = -math.expm1(count * math.log1p(-p * q))
        individual = isinstance(mechanism.clipping, Individual)
        worst = (
            participation_pair(p, q, records, unit, sampler.revealed)
            if individual
            else clipped_sum_participation_pair(p, q, unit, sampler.revealed)
        )
        uppers = both_directions(worst, count)
        if sampler.revealed and individual:
            return Analysis(
                uppers,
                None,
                "participation known: a Poisson round or none "
                "(docs/random-participation.md, theorem 3)",
                "achieved by fixed gradients of full norm in one direction",
                exposure,
            )
        tried = attack_cosines(records * q) if individual and unit <= LARGEST_UNIT else ()
        seen = {
            f"{rank}": PricedRound(angled_attack(p, q, records, unit, lean))
            for rank, lean in enumerate(tried)
        }
        seen["alone"] = PricedRound(
            MixturePair.subsampled(p * q, unit if individual else unit / 2.0)
        )
        how = "the others' gradients 0, or all alike and the record's at an angle"
        why = f"{how} (docs/random-participation.md, section 3)"
        return Analysis(
            uppers,
            {f"remove, {name}": [(rnd, count)] for name, rnd in seen.items()},
            "the number of other records told, their gradients in the worst "
            "directions (docs/random-participation.md, "
            "theorem 2)",
            why,
            exposure,
            refine_attacks=True,
        )

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        """A record's participation, as that of Poisson sampling with the product of the rates."""
        sampler = self.sampler
        tied = not has_independent_records(sampler)
        if tied:
            require_one_record(mechanism, group)
        p, q, count = sampler.client_rate, sampler.record_rate, len(sampler)
        exact = 1.0 in (p, q)
        most = p * q if exact else min(math.nextafter(p * q, 2.0), 1.0)
        least = p * q if exact else math.nextafter(p * q, 0.0)
        told = replace(mechanism, sampler=Poisson(most, count))
        attacked = replace(mechanism, sampler=Poisson(least, count))
        # the client's other records are silent, not opposed
        if not isinstance(mechanism.clipping, Individual):
            attacked = replace(attacked, noise_multiplier=2.0 * mechanism.noise_multiplier)
        found = replace(
            displacement_of_batches(attacked, group),
            upper=displacement_of_batches(told, group).upper,
        )
        # its other records may show that the client takes part: then the record's own coin is all
        # that hides it
        return displacement_in_two_steps(found, told, group, q if tied else most)

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        raise no_strong_analysis_error(self.sampler)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        rate = self.sampler.client_rate * self.sampler.record_rate
        return clip_groups * none_joins(rate / clip_groups, max(population - group, 0))

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        rate = self.sampler.client_rate * self.sampler.record_rate
        absent = binomial_pmf(population - 1, rate)
        return absent, absent * (1.0 - rate), absent * rate

    def known_participation(self) -> Sampler:
        return replace(self.sampler, revealed=True)

    def refuse_larger_group(self, size: int) -> None:
        """Records of one client are protected, so there are no more than it holds."""
        most = self.sampler.most_records
        if size > most:
            raise ValueError(
                f"group must be at most {most}, got {size}: RandomParticipation "
                "protects records of one "
                f"client, and records={self.sampler.records} says that it has "
                f"{most} in all; name a larger records=, "
                "or protect whole clients with Poisson(rate=client_rate, ...)"
            )

    def population_known_to_attack(self, population: int | None) -> int | None:
        """The client's own records, where nothing ties them together."""
        return self.sampler.most_records if has_independent_records(self.sampler) else None
