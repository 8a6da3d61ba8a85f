"""Balls in bins: one round of every epoch, picked at random."""

from __future__ import annotations

from verax.mechanism import Mechanism
from verax.privacy.curves.empty_groups import none_joins
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.one_of_many import LARGEST_SHIFT, one_of_many_pairs
from verax.privacy.pairs.rounds import PricedRound, Rounds
from verax.privacy.samplers.allocation import allocation_analysis
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    presence_shift,
    prices,
)
from verax.privacy.strong.curve import one_batch_per_epoch
from verax.privacy.strong.displacement import Displacement, displacement_of_batches
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.base import Sampler
from verax.samplers.deterministic import Deterministic
from verax.samplers.poisson import Poisson

# of the table for one round of many: noise comes out up to 0.2 % larger than with the usual one
_COARSE = 0.06


@prices(BallsInBins)
class BallsInBinsPricing(SamplerPricing[BallsInBins]):
    """One of ``bins`` rounds at random, each epoch anew."""

    slow_bound, slow_attack, slow_groups = True, True, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """One of ``bins`` rounds at random, each epoch anew (docs/proofs.md, theorem 5).

        Groups: docs/allocation.md.
        """
        sampler = self.sampler
        return allocation_analysis(mechanism, group, 1, sampler.bins, sampler.epochs)

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        return displacement_of_batches(mechanism, group)

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        sampler = self.sampler
        return one_batch_per_epoch([(sampler.bins, None)], 1, sampler.epochs, mechanism, group)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        return clip_groups * none_joins(
            1.0 / self.sampler.bins / clip_groups, max(population - group, 0)
        )

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None

    def known_participation(self) -> Sampler:
        return Deterministic(self.sampler.bins, self.sampler.epochs)

    def similar(self) -> Sampler:
        return Poisson(1.0 / self.sampler.bins, len(self.sampler))

    def coarse_bound(self, mechanism: Mechanism) -> tuple[list[Rounds], str] | None:
        """One of many rounds at random (docs/proofs.md, theorem 5), on a coarser grid.

        Any grid is sound.
        """
        bins, unit = self.sampler.bins, presence_shift(mechanism)
        if mechanism.relation == "replace" or bins == 1 or not 0.0 < unit <= LARGEST_SHIFT:
            return None
        once, epochs = PricedRound(one_of_many_pairs(bins, unit, _COARSE)[0]), self.sampler.epochs
        theorem = (
            "one round of many at random: an average of likelihood ratios "
            "(docs/proofs.md, theorem 5)"
        )
        return [[(once, epochs)], [(once.reverse(), epochs)]], theorem
