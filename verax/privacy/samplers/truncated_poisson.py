"""Poisson batches cut to a largest size."""

from __future__ import annotations

import math

from verax.checks import NoGuarantee
from verax.mechanism import Individual, Mechanism
from verax.privacy.composition import Round
from verax.privacy.mixtures import crowded, truncated_rate
from verax.privacy.pairs import Pair
from verax.privacy.pricing import Analysis, Group, one_record_only, price, shift_unit
from verax.privacy.revealed import Revealed
from verax.samplers.truncated_poisson import TruncatedPoisson


@price.register
def _(sampler: TruncatedPoisson, mechanism: Mechanism, group: Group) -> Analysis:
    """A Poisson round, unless the others alone fill the batch: then a sampled record may take another's place."""
    if mechanism.relation != "add-remove":
        raise NoGuarantee(
            f"no analysis of TruncatedPoisson under relation={mechanism.relation!r} is known; use relation='add-remove'"
        )
    one_record_only(mechanism, group)
    unit, count = shift_unit(mechanism), len(sampler)
    others = sampler.population + group.beside  # also for the neighbour that has one record more
    inside = truncated_rate(sampler.rate, sampler.max_batch, sampler.population)
    visible, shown = (-math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0 for rate in (sampler.rate, inside))
    if isinstance(mechanism.clipping, Individual):
        kinds = crowded(sampler.rate, sampler.max_batch, others)
    else:  # a clipped aggregate moves by 2 in any case
        kinds = [(1.0, sampler.rate, 1)]
    attack = "achieved by fixed gradients of full norm in one direction, all the others' being 0"
    if not isinstance(mechanism.clipping, Individual):
        attack = "achieved by an aggregate that turns around where the record is"
    pairs = tuple(Pair.subsampled(rate, unit * places) for _, rate, places in kinds)
    dominating = Revealed(tuple(chance for chance, _, _ in kinds), pairs) if len(pairs) > 1 else pairs[0]
    once = Round(dominating, Pair.subsampled(inside, unit))
    return Analysis(
        {"remove": [(once, count)], "add": [(once.reverse(), count)]}, None,
        "a Poisson round, or a shift of 2 where the batch is full without the record (docs/proofs.md, theorem 8)",
        attack, visible, shown,
    )  # fmt: skip
