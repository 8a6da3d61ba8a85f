"""Shuffled batches of fixed size."""

from __future__ import annotations

import math
from dataclasses import replace

from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.base import Curve
from verax.privacy.curves.empty_groups import fixed_batch_empty_group
from verax.privacy.curves.shuffled_epoch import ShuffledEpoch
from verax.privacy.curves.triangle import SmallestBound
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.one_of_many import one_round_from_below
from verax.privacy.pairs.rounds import PricedRound, both_directions_of_attacks
from verax.privacy.pairs.shuffled.epoch import (
    FEWER_LOSSES,
    LARGEST_SHIFT,
    SMALLEST_SHIFT,
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
        """Fixed batches from above, or what shuffling hides where sizes are known."""
        sampler = self.sampler
        batches, epochs = sampler.batches, sampler.epochs
        if sampler.reshuffle:
            why = "one record's largest batch sum of every epoch"
            analysis = shuffled_analysis(mechanism, group, batches, batches, epochs, why)
            return self._amplified(analysis, mechanism) if group.size == 1 else analysis
        # the same order every time: one epoch, with all its noise averaged
        scale = math.sqrt(epochs)
        why = "one record's largest batch sum over all epochs"
        return shuffled_analysis(mechanism, group, batches, batches, epochs, why, scale)

    def _amplified(self, analysis: Analysis, mechanism: Mechanism) -> Analysis:
        """The analysis of fixed batches, with what fresh shuffles hide where sizes are known."""
        sampler = self.sampler
        neighbours = Neighbours(
            1.0 / mechanism.noise_multiplier,
            mechanism.relation,
            isinstance(mechanism.clipping, Individual),
        )
        usual = SMALLEST_SHIFT <= neighbours.shift <= LARGEST_SHIFT
        if sampler.population is None or sampler.batches == 1 or not usual:
            return analysis
        dealt = Epoch(sampler.population, sampler.batches)
        epoch = PricedRound(dominating_epoch(neighbours, dealt))
        attack = PricedRound(attacked_epoch(neighbours, sampler.batches))
        attacks = both_directions_of_attacks({"sum": attack}, sampler.epochs)
        directions = {
            "remove": [(epoch, sampler.epochs)],
            "add": [(epoch.reverse(), sampler.epochs)],
        }
        others: dict[str, Curve] = {}
        if sampler.epochs == 1:
            others = {
                name: ShuffledEpoch(neighbours, dealt, way) for way, name in enumerate(directions)
            }
        else:
            bounded = PricedRound(dominating_epoch(neighbours, dealt, FEWER_LOSSES))
            fixed = Composition(analysis.uppers["any"])
            for name, rnd in (("remove", bounded), ("add", bounded.reverse())):
                others[name] = SmallestBound((fixed, Composition([(rnd, sampler.epochs)])))
        return replace(
            analysis,
            uppers=directions,
            upper_by=_THEOREM,
            lowers={**(analysis.lowers or {}), **attacks},
            lower_by=f"{analysis.lower_by}; {_ATTACK}",
            extra_uppers=others,
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
