"""Random allocation: several rounds of every epoch, picked at random."""

from __future__ import annotations

from verax.checks import NoGuarantee
from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.curves.empty_groups import none_joins
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.samplers.allocation import allocation_analysis
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    neighbour_shift,
    prices,
)
from verax.privacy.strong.curve import certain_value
from verax.privacy.strong.displacement import (
    Displacement,
    attacked_mechanism,
    count_of_moves,
    displacement_of_batches,
)
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson
from verax.samplers.random_allocation import RandomAllocation


@prices(RandomAllocation)
class RandomAllocationPricing(SamplerPricing[RandomAllocation]):
    """``times`` of ``steps`` rounds at random, each epoch anew."""

    slow_bound, slow_attack, slow_groups = True, True, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """``times`` of ``steps`` rounds at random (docs/proofs.md, theorems 5 and 6)."""
        sampler = self.sampler
        return allocation_analysis(mechanism, group, sampler.times, sampler.steps, sampler.epochs)

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        """Of a group no pmf is known, but from the mildest places to the worst."""
        sampler = self.sampler
        _, size = group.split(mechanism)
        if size == 1:
            return displacement_of_batches(mechanism, group)
        attacked = attacked_mechanism(mechanism)
        least, most = _squares(sampler, mechanism, size)
        unit, silent_unit = neighbour_shift(mechanism), neighbour_shift(attacked)
        worst = LatticePmf.between(most, most).scaled(unit**2)
        some = LatticePmf.between(least, most).scaled(silent_unit**2)
        return Displacement(
            lambda _: worst, lambda _: some, silent_unit, count_of_moves(attacked, size)
        )

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        sampler = self.sampler
        if group.size > 1 and not group.is_counted_singly(mechanism):
            raise NoGuarantee(
                "adversary A1 has no analysis of RandomAllocation for groups, "
                f"got group={group.size}; "
                "use adversary='A0', or BallsInBins"
            )
        return certain_value(group.size * sampler.times * sampler.epochs)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        rate = self.sampler.times / self.sampler.steps
        return clip_groups * none_joins(rate / clip_groups, max(population - group, 0))

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None

    def similar(self) -> Sampler:
        return Poisson(self.sampler.times / self.sampler.steps, len(self.sampler))

    def dominating(self) -> Sampler:
        """Equal blocks with one round picked in each (docs/proofs.md, theorem 6)."""
        times, steps = self.sampler.times, self.sampler.steps
        return (
            self.sampler
            if steps % times
            else BallsInBins(steps // times, times * self.sampler.epochs)
        )


def _squares(sampler: RandomAllocation, mechanism: Mechanism, size: int) -> tuple[float, float]:
    """The least and the largest sum over all rounds of the squared number of touched clip-groups.

    There are ``size * times`` touches an epoch, if no two fall together. Individual clipping counts
    all of them: spread evenly is mildest, all records in the same rounds worst. Clipped aggregates
    count those of one clip-group once: all together is mildest, and worst as many as possible in
    one round, in different clip-groups.
    """
    touches, steps = size * sampler.times, sampler.steps
    match mechanism.clipping:
        case Individual():
            each, more = divmod(touches, steps)
            least, most = more * (each + 1) ** 2 + (steps - more) * each**2, size * touches
        case Batch():
            least, most = sampler.times, min(touches, steps)
        case Mixed(groups=groups):
            together = min(size, groups)
            full, rest = divmod(min(touches, together * steps), together)
            least, most = sampler.times, full * together**2 + rest**2
    return float(least * sampler.epochs), float(most * sampler.epochs)
