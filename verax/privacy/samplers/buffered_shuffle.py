"""A stream shuffled in a buffer."""

from __future__ import annotations

from verax.mechanism import Mechanism
from verax.privacy.curves.empty_groups import fixed_batch_empty_group
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    prices,
    refuse_add_remove,
)
from verax.privacy.samplers.shuffle import shuffled_analysis
from verax.privacy.strong.curve import worst_placement
from verax.privacy.strong.displacement import Displacement, displacement_of_batches
from verax.samplers.base import Sampler
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic


@prices(BufferedShuffle)
class BufferedShufflePricing(SamplerPricing[BufferedShuffle]):
    """As fixed batches from above; from below the last record of the stream."""

    slow_bound, slow_attack, slow_groups = False, True, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """From below the last record of the stream, uniform among the last ``buffer`` batches.

        The bracket is as wide as the difference between knowing and not knowing in which of those
        batches it is.
        """
        sampler = self.sampler
        why = (
            "the stream's last record and the largest of the last batch sums, as "
            "many as the buffer holds"
        )
        return shuffled_analysis(
            mechanism, group, sampler.batches, sampler.buffer, sampler.epochs, why
        )

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        return displacement_of_batches(mechanism, group, opposed=True)

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        sampler = self.sampler
        refuse_add_remove(mechanism)
        return worst_placement(sampler.batches, sampler.epochs, mechanism, group, chosen=False)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        size = population // self.sampler.batches
        return fixed_batch_empty_group(
            clip_groups, group, population, relation, size, at_random=False
        )

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None

    def dominating(self) -> Sampler:
        """Fixed batches: knowing the order cannot hurt (docs/proofs.md, theorem 4)."""
        return Deterministic(self.sampler.batches, self.sampler.epochs)
