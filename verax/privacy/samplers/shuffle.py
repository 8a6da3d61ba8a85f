"""Shuffled batches of fixed size."""

from __future__ import annotations

import math
from dataclasses import replace

from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.empty_groups import fixed_batch_empty_group
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.one_of_many import one_round_from_below
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
from verax.samplers.deterministic import Deterministic
from verax.samplers.shuffle import Shuffle

_THEOREM = "records exchanged with the first batch of every epoch (docs/shuffle.md, theorem S2)"
_ATTACK = "one record against all others, in every epoch (docs/shuffle.md, attacks)"
_ROUGH = 0.1  # grid of an attack on shuffling, whose bracket is wide anyway


@prices(Shuffle)
class ShufflePricing(SamplerPricing[Shuffle]):
    """The data in random order, anew in every epoch or once."""

    slow_bound, slow_attack, slow_groups = False, True, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """Fixed batches from above (docs/proofs.md, theorem 4), the largest sum from below."""
        sampler = self.sampler
        batches, epochs = sampler.batches, sampler.epochs
        # the same order every time: one epoch, with all its noise averaged
        scale, count = (1.0, epochs) if sampler.reshuffle else (math.sqrt(epochs), 1)
        shift = scale / mechanism.noise_multiplier
        if not 0.0 < shift <= LARGEST_SHIFT or batches == 1:
            why = "one record's largest batch sum"
            return shuffled_analysis(mechanism, group, batches, batches, count, why, scale)
        fixed = pricing_of(Deterministic(batches, epochs)).analysis(mechanism, group)
        neighbours = Neighbours(
            shift, mechanism.relation, isinstance(mechanism.clipping, Individual)
        )
        attacks = {"sum": PricedRound(attacked_epoch(neighbours, batches))}
        analysis = Analysis(
            fixed.uppers,
            both_directions_of_attacks(attacks, count),
            f"shuffling cannot hurt: {fixed.upper_by}",
            _ATTACK,
        )
        if sampler.population is None or not sampler.reshuffle or group.size > 1:
            return analysis
        epoch = PricedRound(dominating_epoch(neighbours, Epoch(sampler.population, batches)))
        directions = {"remove": [(epoch, epochs)], "add": [(epoch.reverse(), epochs)]}
        known = Composition(fixed.uppers["any"])
        return replace(
            analysis,
            uppers=directions,
            upper_by=_THEOREM,
            extra_uppers=dict.fromkeys(directions, known),
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
    batches: int,
    hidden: int,
    epochs: int,
    why: str,
    persistent: float = 0.0,
) -> Analysis:
    """One record hidden among ``hidden`` batches, anew in every epoch or once.

    Once if ``persistent`` is given, the square root of the number of epochs.
    """
    fixed = pricing_of(Deterministic(batches, epochs)).analysis(mechanism, group)
    scale = (persistent or 1.0) / mechanism.noise_multiplier
    count = 1 if persistent else epochs
    if isinstance(mechanism.clipping, Individual) and mechanism.relation == "zero-out":
        seen = {
            "opposed": PricedRound(largest_sum(hidden, 2.0 * scale, scale)),
            "silent": one_round_from_below(hidden, scale, _ROUGH),
        }
    else:  # the others make up for the record's absence: all sums alike without it
        seen = {"opposed": one_round_from_below(hidden, 2.0 * scale, _ROUGH)}
    return Analysis(
        fixed.uppers,
        both_directions_of_attacks(seen, count),
        f"shuffling cannot hurt: {fixed.upper_by}",
        f"{why} ('how private is DP-SGD', section 4)",
        1.0,
    )
