"""Shuffled batches of fixed size."""

from __future__ import annotations

import math

from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.empty_groups import alone_in_fixed_batch
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import Law
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.one_of_many import at_least_one_round_of
from verax.privacy.pairs.rounds import Round, each_way
from verax.privacy.samplers.base import (
    Analysis,
    Group,
    SamplerPricing,
    fixed_batches_only,
    prices,
    pricing_of,
)
from verax.privacy.strong.curve import Who, anywhere, once_an_epoch
from verax.privacy.strong.displacement import Moves, seen
from verax.samplers.base import Sampler
from verax.samplers.deterministic import Deterministic
from verax.samplers.shuffle import Shuffle

_ROUGH = 0.1  # grid of an attack on shuffling, whose bracket is wide anyway


@prices(Shuffle)
class ShufflePricing(SamplerPricing[Shuffle]):
    """The data in random order, anew in every epoch or once."""

    slow_bound, slow_attack, slow_groups = False, True, True

    def analysis(self, mechanism: Mechanism, group: Group) -> Analysis:
        """Proved from above by fixed batches (docs/proofs.md, theorem 4), from below by the largest batch sum."""
        sampler = self.sampler
        batches, epochs = sampler.batches, sampler.epochs
        if sampler.reshuffle:
            return shuffled(
                mechanism,
                group,
                batches,
                batches,
                epochs,
                "one record's largest batch sum of every epoch",
            )
        # the same order every time: one epoch, with all its noise averaged
        scale = math.sqrt(epochs)
        why = "one record's largest batch sum over all epochs"
        return shuffled(mechanism, group, batches, batches, epochs, why, scale)

    def moves(self, mechanism: Mechanism, group: Group) -> Moves:
        return seen(mechanism, group, opposed=True)

    def touched(self, mechanism: Mechanism, who: Who) -> Law:
        sampler = self.sampler
        fixed_batches_only(mechanism)
        batches = sampler.batches
        again = 1 if sampler.reshuffle else sampler.epochs
        people = who.population
        if people is not None and people < batches:
            raise ValueError(
                f"population must be at least the number of batches, {batches}, got {people}"
            )
        if people is None and who.size > 1 and not isinstance(mechanism.clipping, Individual):
            law = anywhere(batches, sampler.epochs, mechanism, who, chosen=True)
            if mechanism.relation == "replace":
                return law
            # batches of one record each have it alone, half a unit; in large ones at least one
            # aggregate turns around
            return Law.between(max(0.25 * float(law.lows[0]), float(sampler.epochs)), law.top)
        sizes: list[tuple[int, int | None]] = [(batches, None)]
        if people is not None:
            size, longer = divmod(people, batches)
            sizes = [(longer, size + 1), (batches - longer, size)] if longer else [(batches, size)]
        return once_an_epoch(sizes, again, sampler.epochs // again, mechanism, who)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        size = population // self.sampler.batches
        return alone_in_fixed_batch(clip_groups, group, population, relation, size)

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None

    def dominating(self) -> Sampler:
        """Fixed batches: knowing the order cannot hurt (docs/proofs.md, theorem 4)."""
        return Deterministic(self.sampler.batches, self.sampler.epochs)


def shuffled(
    mechanism: Mechanism,
    group: Group,
    batches: int,
    hidden: int,
    epochs: int,
    why: str,
    persistent: float = 0.0,
) -> Analysis:
    """One record hidden among ``hidden`` batches, anew in every epoch or (``persistent``: sqrt(epochs)) once."""
    fixed = pricing_of(Deterministic(batches, epochs)).analysis(mechanism, group)
    scale = (persistent or 1.0) / mechanism.noise_multiplier
    count = 1 if persistent else epochs
    if isinstance(mechanism.clipping, Individual) and mechanism.relation == "zero-out":
        seen = {
            "opposed": Round(largest_sum(hidden, 2.0 * scale, scale)),
            "silent": at_least_one_round_of(hidden, scale, _ROUGH),
        }
    else:  # the others make up for the record's absence: all sums alike without it
        seen = {"opposed": at_least_one_round_of(hidden, 2.0 * scale, _ROUGH)}
    return Analysis(
        fixed.uppers,
        each_way(seen, count),
        f"shuffling cannot hurt: {fixed.upper_by}",
        f"{why} ('how private is DP-SGD', section 4)",
        1.0,
    )
