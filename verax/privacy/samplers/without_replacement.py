"""A uniform subset of fixed size, drawn anew in every round."""

from __future__ import annotations

import math

import numpy as np

from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.empty_groups import alone_in_fixed_batch
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import hypergeometric_law
from verax.privacy.numerics.lattice import Law
from verax.privacy.pairs.discrete import Table
from verax.privacy.pairs.gaussian_mixture import Pair
from verax.privacy.pairs.rounds import Round, each_way
from verax.privacy.samplers.base import (
    Analysis,
    Group,
    SamplerPricing,
    fixed_batches_only,
    one_record_only,
    presence_shift,
    prices,
)
from verax.privacy.strong.curve import Who, independent_rounds
from verax.privacy.strong.displacement import Moves, seen
from verax.samplers.without_replacement import WithoutReplacement


@prices(WithoutReplacement)
class WithoutReplacementPricing(SamplerPricing[WithoutReplacement]):
    """A uniform subset of fixed size, drawn anew in every round."""

    slow_bound, slow_attack, slow_groups = False, False, True

    def analysis(self, mechanism: Mechanism, group: Group) -> Analysis:
        """A uniform subset each round, independently (docs/proofs.md, theorem 7)."""
        sampler = self.sampler
        fixed_batches_only(mechanism)
        one_record_only(mechanism, group)
        rate, count = sampler.batch / sampler.population, len(sampler)
        visible = -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0
        apart = Round(Pair.subsampled(rate, 2.0 / mechanism.noise_multiplier))
        theorem = "a record takes another one's place: a shift of 2, either direction in every round (theorem 7)"
        attack = "fixed gradients of full norm, all the others' pointing the other way"
        if mechanism.relation == "zero-out" and isinstance(mechanism.clipping, Individual):
            unit = presence_shift(mechanism)
            if rate == 1.0:  # every record in every batch: fixed batches
                return Analysis(
                    {"any": [(Round(Pair.gaussian(unit)), count)]},
                    None,
                    "a Gaussian mechanism",
                    attack,
                    1.0,
                )
            weights = np.array([1.0 - rate, rate])
            opposed = Table.binned(
                (weights, np.array([0.0, 2.0 * unit])), (weights, np.array([0.0, unit]))
            )
            attacks = each_way(
                {"opposed": Round(opposed), "silent": Round(Pair.subsampled(rate, unit))}, count
            )
        elif rate == 1.0:
            return Analysis({"any": [(apart, count)]}, None, "a Gaussian mechanism", attack, 1.0)
        else:
            attacks = each_way({"opposed": apart}, count)
        if mechanism.relation == "replace":  # either record may be the one to hide, round by round
            attacks["alternate"] = [(apart, count - count // 2), (apart.reverse(), count // 2)]
        return Analysis(
            {"replace": [(Round(apart.pair, symmetric=True), count)]},
            attacks,
            theorem,
            attack,
            visible,
        )

    def moves(self, mechanism: Mechanism, group: Group) -> Moves:
        return seen(mechanism, group, opposed=True)

    def touched(self, mechanism: Mechanism, who: Who) -> Law:
        sampler = self.sampler
        fixed_batches_only(mechanism)
        return independent_rounds(
            hypergeometric_law(sampler.population, who.size, sampler.batch), mechanism, who
        )

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        return alone_in_fixed_batch(clip_groups, group, population, relation, self.sampler.batch)

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        batch = self.sampler.batch
        inside, outside = np.zeros(batch), np.zeros(batch + 1)
        inside[-1], outside[-1] = batch / population, 1.0 - batch / population
        return outside + np.append(inside, 0.0), outside, inside
