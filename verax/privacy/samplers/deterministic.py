"""Batches of fixed composition."""

from __future__ import annotations

import math
from typing import ClassVar, TypeVar

from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.curves.empty_groups import fixed_batch_empty_group
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    presence_shift,
    prices,
    refuse_add_remove,
)
from verax.privacy.strong.curve import worst_placement
from verax.privacy.strong.displacement import Displacement, displacement_of_batches
from verax.samplers.base import FixedBatches
from verax.samplers.deterministic import Deterministic

S = TypeVar("S", bound=FixedBatches)


class DataOrderPricing(SamplerPricing[S]):
    """What fixed batches have in common where records keep about the order of the data."""

    known_places: ClassVar[bool]
    """Whether an attack may count on the group's worst places."""

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        return displacement_of_batches(mechanism, group, opposed=True)

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        refuse_add_remove(mechanism)
        batches, epochs = self.sampler.batches, self.sampler.epochs
        return worst_placement(batches, epochs, mechanism, group, chosen=self.known_places)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        size = population // self.sampler.batches
        return fixed_batch_empty_group(
            clip_groups, group, population, relation, size, at_random=False
        )

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None


@prices(Deterministic)
class DeterministicPricing(DataOrderPricing[Deterministic]):
    """The same batches in every epoch, known to everybody."""

    slow_bound, slow_attack, slow_groups, closed_form = False, False, False, True
    known_places = True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """One Gaussian mechanism, the group where it hurts most (docs/proofs.md, theorem 4)."""
        sampler = self.sampler
        refuse_add_remove(mechanism)
        unit, epochs, batches = presence_shift(mechanism), sampler.epochs, sampler.batches
        copies, size = group.split(mechanism)
        match mechanism.clipping:
            case Individual():
                squared = (
                    copies * float(size) ** 2 * (4.0 if mechanism.relation == "replace" else 1.0)
                )
            case Batch():
                squared = float(min(size, batches))
            case Mixed(groups=clip_groups):
                full, rest = divmod(min(size, clip_groups * batches), clip_groups)
                squared = float(full * clip_groups**2 + rest**2)
        worst = PricedRound(MixturePair.gaussian(unit * math.sqrt(squared)))
        theorem = (
            "a Gaussian mechanism, with the group's records where they shift the "
            "sums most (docs/proofs.md, theorem 4)"
        )
        if isinstance(mechanism.clipping, Mixed) and size > 1:
            return Analysis(
                {"any": [(worst, epochs)]},
                {"any": [(PricedRound(MixturePair.gaussian(unit)), epochs)]},
                theorem,
                "one record of the group alone",
                1.0,
            )
        return Analysis(
            {"any": [(worst, epochs)]},
            None,
            theorem,
            "achieved by fixed gradients of full norm",
            1.0,
        )
