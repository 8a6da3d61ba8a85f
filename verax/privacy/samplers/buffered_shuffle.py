"""A stream shuffled in a buffer."""

from __future__ import annotations

from verax.mechanism import Mechanism
from verax.privacy.samplers.base import Analysis, ProtectedGroup, prices
from verax.privacy.samplers.deterministic import DataOrderPricing
from verax.privacy.samplers.shuffle import shuffled_analysis
from verax.samplers.base import Sampler
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic


@prices(BufferedShuffle)
class BufferedShufflePricing(DataOrderPricing[BufferedShuffle]):
    """As fixed batches from above; from below the last record of the stream."""

    slow_bound, slow_attack, slow_groups = False, True, True
    known_places = False

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

    def dominating(self) -> Sampler:
        """Fixed batches: knowing the order cannot hurt (docs/proofs.md, theorem 4)."""
        return Deterministic(self.sampler.batches, self.sampler.epochs)
