"""A uniform subset of fixed size, drawn anew in every round."""

from __future__ import annotations

import math

import numpy as np

from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.empty_groups import fixed_batch_empty_group
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import hypergeometric_pmf
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound, both_directions_of_attacks
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    presence_shift,
    prices,
    refuse_add_remove,
    require_one_record,
)
from verax.privacy.strong.curve import independent_batches
from verax.privacy.strong.displacement import Displacement, displacement_of_batches
from verax.samplers.without_replacement import WithoutReplacement


@prices(WithoutReplacement)
class WithoutReplacementPricing(SamplerPricing[WithoutReplacement]):
    """A uniform subset of fixed size, drawn anew in every round."""

    slow_bound, slow_attack, slow_groups = False, False, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """A uniform subset each round, independently (docs/proofs.md, theorem 7)."""
        sampler = self.sampler
        refuse_add_remove(mechanism)
        require_one_record(mechanism, group)
        rate, count = sampler.batch / sampler.population, len(sampler)
        exposure = -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0
        apart = PricedRound(MixturePair.subsampled(rate, 2.0 / mechanism.noise_multiplier))
        theorem = (
            "a record takes another one's place: a shift of 2, either direction in "
            "every round (theorem 7)"
        )
        attack = "fixed gradients of full norm, all the others' pointing the other way"
        if mechanism.relation == "zero-out" and isinstance(mechanism.clipping, Individual):
            unit = presence_shift(mechanism)
            if rate == 1.0:  # every record in every batch: fixed batches
                return Analysis(
                    {"any": [(PricedRound(MixturePair.gaussian(unit)), count)]},
                    None,
                    "a Gaussian mechanism",
                    attack,
                    1.0,
                )
            weights = np.array([1.0 - rate, rate])
            opposed = DiscretePair.from_mixtures(
                (weights, np.array([0.0, 2.0 * unit])), (weights, np.array([0.0, unit]))
            )
            attacks = both_directions_of_attacks(
                {
                    "opposed": PricedRound(opposed),
                    "silent": PricedRound(MixturePair.subsampled(rate, unit)),
                },
                count,
            )
        elif rate == 1.0:
            return Analysis({"any": [(apart, count)]}, None, "a Gaussian mechanism", attack, 1.0)
        else:
            attacks = both_directions_of_attacks({"opposed": apart}, count)
        if mechanism.relation == "replace":  # either record may be the one to hide, round by round
            attacks["alternate"] = [(apart, count - count // 2), (apart.reverse(), count // 2)]
        return Analysis(
            {"replace": [(PricedRound(apart.pair, symmetric=True), count)]},
            attacks,
            theorem,
            attack,
            exposure,
        )

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        return displacement_of_batches(mechanism, group, opposed=True)

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        sampler = self.sampler
        refuse_add_remove(mechanism)
        return independent_batches(
            hypergeometric_pmf(sampler.population, group.size, sampler.batch), mechanism, group
        )

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        return fixed_batch_empty_group(clip_groups, group, population, relation, self.sampler.batch)

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        batch = self.sampler.batch
        inside, outside = np.zeros(batch), np.zeros(batch + 1)
        inside[-1], outside[-1] = batch / population, 1.0 - batch / population
        return outside + np.append(inside, 0.0), outside, inside
