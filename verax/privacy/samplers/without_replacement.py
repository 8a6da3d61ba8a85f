"""A uniform subset of fixed size, drawn anew in every round."""

from __future__ import annotations

import math

import numpy as np

from verax.mechanism import Individual, Mechanism
from verax.privacy.composition import Round
from verax.privacy.directions import each_way
from verax.privacy.moves import Moves, moves, seen
from verax.privacy.pairs import Pair
from verax.privacy.pricing import Analysis, Group, fixed_batches_only, one_record_only, price, shift_unit
from verax.privacy.tables import Table
from verax.samplers.without_replacement import WithoutReplacement


@price.register
def _(sampler: WithoutReplacement, mechanism: Mechanism, group: Group) -> Analysis:
    """A uniform subset each round, independently (docs/proofs.md, theorem 7)."""
    fixed_batches_only(mechanism)
    one_record_only(mechanism, group)
    rate, count = sampler.batch / sampler.population, len(sampler)
    visible = -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0
    apart = Round(Pair.subsampled(rate, 2.0 / mechanism.noise_multiplier))
    theorem = "a record takes another one's place: a shift of 2, either direction in every round (theorem 7)"
    attack = "fixed gradients of full norm, all the others' pointing the other way"
    if mechanism.relation == "zero-out" and isinstance(mechanism.clipping, Individual):
        unit = shift_unit(mechanism)
        if rate == 1.0:  # every record in every batch: fixed batches
            return Analysis({"any": [(Round(Pair.gaussian(unit)), count)]}, None, "a Gaussian mechanism", attack, 1.0)
        weights = np.array([1.0 - rate, rate])
        opposed = Table.binned((weights, np.array([0.0, 2.0 * unit])), (weights, np.array([0.0, unit])))
        attacks = each_way({"opposed": Round(opposed), "silent": Round(Pair.subsampled(rate, unit))}, count)
    elif rate == 1.0:
        return Analysis({"any": [(apart, count)]}, None, "a Gaussian mechanism", attack, 1.0)
    else:
        attacks = each_way({"opposed": apart}, count)
    if mechanism.relation == "replace":  # either record may be the one to hide, round by round
        attacks["alternate"] = [(apart, count - count // 2), (apart.reverse(), count // 2)]
    return Analysis({"replace": [(Round(apart.pair, symmetric=True), count)]}, attacks, theorem, attack, visible)


@moves.register
def _(sampler: WithoutReplacement, mechanism: Mechanism, group: Group) -> Moves:
    return seen(mechanism, group, opposed=True)
