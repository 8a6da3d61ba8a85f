"""Shuffled batches of fixed size."""

from __future__ import annotations

import math
from dataclasses import replace

from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.empty_groups import fixed_batch_empty_group
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.rounds import PricedRound, both_directions_of_attacks
from verax.privacy.pairs.shuffled.epoch import (
    LARGEST_SHIFT,
    Neighbours,
    attacked_epoch,
    dominating_epoch,
)
from verax.privacy.pairs.shuffled.hub import Epoch
from verax.privacy.pld.composition import Composition
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    prices,
    pricing_of,
    refuse_add_remove,
)
from verax.privacy.strong.curve import one_batch_per_epoch, worst_placement
from verax.privacy.strong.displacement import Displacement, displacement_of_batches
from verax.samplers.base import Sampler
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic
from verax.samplers.shuffle import Shuffle

_THEOREM = "records exchanged with the first batch of every epoch (docs/shuffle.md, theorem S2)"
_ATTACK = "one record against all others, in every epoch (docs/shuffle.md, attacks)"


@prices(Shuffle)
class ShufflePricing(SamplerPricing[Shuffle]):
    """The data in random order, anew in every epoch or once."""

    slow_bound, slow_attack, slow_groups = False, True, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """What an exchange with the first batch hides (docs/shuffle.md), or fixed batches."""
        sampler = self.sampler
        batches, epochs = sampler.batches, sampler.epochs
        # the same order every time: one epoch, with all its noise averaged
        scale, count = (1.0, epochs) if sampler.reshuffle else (math.sqrt(epochs), 1)
        analysis = shuffled_analysis(mechanism, group, sampler, batches, count, scale)
        neighbours = _neighbours(mechanism)
        known = sampler.population is not None and 0.0 < neighbours.shift <= LARGEST_SHIFT
        if not known or batches == 1 or not sampler.reshuffle or group.size > 1:
            return analysis
        records = sampler.population or batches
        epoch = PricedRound(dominating_epoch(neighbours, Epoch(records, batches)))
        fixed = Composition(analysis.uppers["any"])
        directions = {"remove": [(epoch, epochs)], "add": [(epoch.reverse(), epochs)]}
        return replace(
            analysis,
            uppers=directions,
            upper_by=_THEOREM,
            extra_uppers=dict.fromkeys(directions, fixed),
        )

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        return displacement_of_batches(mechanism, group, opposed=True)

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        sampler = self.sampler
        refuse_add_remove(mechanism)
        batches = sampler.batches
        again = 1 if sampler.reshuffle else sampler.epochs
        population = group.population
        if population is not None and population < batches:
            raise ValueError(
                f"population must be at least the number of batches, {batches}, got {population}"
            )
        if population is None and group.size > 1 and not isinstance(mechanism.clipping, Individual):
            pmf = worst_placement(batches, sampler.epochs, mechanism, group, chosen=True)
            if mechanism.relation == "replace":
                return pmf
            # batches of one record each have it alone, half a unit; in large ones at least one
            # aggregate turns around
            return LatticePmf.between(
                max(0.25 * float(pmf.lows[0]), float(sampler.epochs)), pmf.top
            )
        sizes: list[tuple[int, int | None]] = [(batches, None)]
        if population is not None:
            size, longer = divmod(population, batches)
            sizes = [(longer, size + 1), (batches - longer, size)] if longer else [(batches, size)]
        return one_batch_per_epoch(sizes, again, sampler.epochs // again, mechanism, group)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        size = population // self.sampler.batches
        return fixed_batch_empty_group(clip_groups, group, population, relation, size)

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None

    def dominating(self) -> Sampler:
        """Fixed batches: knowing the order cannot hurt (docs/proofs.md, theorem 4)."""
        return Deterministic(self.sampler.batches, self.sampler.epochs)


def shuffled_analysis(
    mechanism: Mechanism,
    group: ProtectedGroup,
    sampler: Shuffle | BufferedShuffle,
    hidden: int,
    epochs: int,
    scale: float = 1.0,
) -> Analysis:
    """Fixed batches from above; from below one record hidden among ``hidden`` batches, ``epochs`` times.

    ``scale`` is by how much the record shows more than in one epoch.
    """
    fixed = pricing_of(Deterministic(sampler.batches, sampler.epochs)).analysis(mechanism, group)
    neighbours = _neighbours(mechanism, scale)
    if 0.0 < neighbours.shift <= LARGEST_SHIFT and hidden > 1:
        attack = attacked_epoch(neighbours, hidden)
    elif neighbours.clipped_alone and neighbours.relation == "zero-out":
        attack = largest_sum(hidden, 2.0 * neighbours.shift, neighbours.shift)
    else:  # the others make up for the record's absence: all sums alike without it
        attack = largest_sum(hidden, 2.0 * neighbours.shift, 0.0)
    return Analysis(
        fixed.uppers,
        both_directions_of_attacks({"sum": PricedRound(attack)}, epochs),
        f"shuffling cannot hurt: {fixed.upper_by}",
        _ATTACK,
    )


def _neighbours(mechanism: Mechanism, scale: float = 1.0) -> Neighbours:
    alone = isinstance(mechanism.clipping, Individual)
    return Neighbours(scale / mechanism.noise_multiplier, mechanism.relation, alone)
