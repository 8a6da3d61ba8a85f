"""How far a group moves the noisy sums of a run.

Where noise hardly hides anything, both bounds follow from the vector v by which the group moves the
sums of all rounds (docs/proofs.md, theorem 12). What is known of v is said by every sampler, next
to its analysis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.samplers.base import ProtectedGroup, neighbour_shift, pricing_of

PmfInCells = Callable[[int], LatticePmf]
"""The pmf of |v|^2, by the largest number of cells it may have."""


@dataclass(frozen=True)
class Displacement:
    """What is known of v, in standard deviations of the noise.

    Args:
        upper: the pmf of |v|^2 from above, for an attacker who knows v.
        lower: the pmf of |v|^2 from below, in an attack that looks for v.
        smallest: the smallest entry of v in that attack other than 0.
        entries: how many pairs of a round and an entry other than 0 there are in that attack.
        removal: ``upper`` if the group were removed instead of replaced; None where that is no
            better.
        absence_loss: the largest loss of the run without the group against the run with it.
    """

    upper: PmfInCells
    lower: PmfInCells
    smallest: float
    entries: int
    removal: PmfInCells | None = None
    absence_loss: float = math.inf


def a1_displacement(mechanism: Mechanism, group: ProtectedGroup) -> PmfInCells:
    """The pmf of |v|^2 that adversary A1 is priced by."""
    scale = neighbour_shift(mechanism) ** 2
    pricing = pricing_of(mechanism.sampler)

    def pmf(cells: int) -> LatticePmf:
        return pricing.touched_clip_groups(mechanism, replace(group, cells=cells)).scaled(scale)

    return pmf


def displacement_of_batches(
    mechanism: Mechanism, group: ProtectedGroup, opposed: bool = False
) -> Displacement:
    """The displacement where the pmf for adversary A1 is exact, or a range that is attained.

    The attack leaves all but the group's gradients 0, and under replacement the new ones, too.
    ``opposed`` says that batches have one size: then all others may point the other way, as the new
    record does.
    """
    attacked = attacked_mechanism(mechanism, opposed)
    return Displacement(
        a1_displacement(mechanism, group),
        a1_displacement(attacked, group),
        neighbour_shift(attacked),
        count_of_moves(attacked, group.size),
    )


def attacked_mechanism(mechanism: Mechanism, opposed: bool = False) -> Mechanism:
    """The run that an attack is on which leaves the new gradients 0."""
    hidden = mechanism.relation == "replace" and isinstance(mechanism.clipping, Individual)
    return replace(mechanism, relation="zero-out") if hidden and not opposed else mechanism


def count_of_moves(mechanism: Mechanism, size: int) -> int:
    """How many pairs of a round and of a move of its sum there are, moves of 0 apart."""
    match mechanism.clipping:
        case Individual():
            values = size
        case Batch():
            values = 1
        case Mixed(groups=groups):
            values = min(size, groups)
    return len(mechanism.sampler) * values
