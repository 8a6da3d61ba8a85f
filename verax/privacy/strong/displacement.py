"""How far a group moves the noisy sums: what an attacker may be told of it, and what one can look for.

Where noise hardly hides anything, both bounds follow from the vector v by which the group moves the
sums of all rounds (docs/proofs.md, theorem 12). What is known of v is said by every sampler, next
to its analysis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.numerics.lattice import Law
from verax.privacy.samplers.base import Group, neighbour_shift, pricing_of
from verax.privacy.strong.curve import Who

Laws = Callable[[int], Law]
"""The law of |v|^2 in at most so many cells."""


@dataclass(frozen=True)
class Moves:
    """What is known of v, in standard deviations of the noise.

    Args:
        told: the law of |v|^2 from above, for an attacker who is told v.
        sought: the law of |v|^2 from below, in an attack that looks for v.
        least: the smallest entry of v in that attack, those that are 0 apart.
        places: how many pairs of a round and an entry other than 0 there are in that attack.
        removed: ``told`` if the group were removed instead of replaced; None where that is no
            better.
        absence: the largest loss of the run without the group against the run with it.
    """

    told: Laws
    sought: Laws
    least: float
    places: int
    removed: Laws | None = None
    absence: float = math.inf


def touched(mechanism: Mechanism, group: Group) -> Laws:
    """The law that adversary A1 is priced by."""
    scale = neighbour_shift(mechanism) ** 2

    def law(cells: int) -> Law:
        who = Who(group.size, group.orthogonal, group.people, cells)
        return pricing_of(mechanism.sampler).touched(mechanism, who).scaled(scale)

    return law


def seen(mechanism: Mechanism, group: Group, opposed: bool = False) -> Moves:
    """Moves of a sampler whose law for adversary A1 is exact, or a range that is attained.

    The attack leaves all but the group's gradients 0, and under replacement the new ones, too.
    ``opposed`` says that batches have one size: then all others may point the other way, as the new
    record does.
    """
    told, attacked = touched(mechanism, group), silent(mechanism, opposed)
    return Moves(
        told, touched(attacked, group), neighbour_shift(attacked), places(attacked, group.size)
    )


def silent(mechanism: Mechanism, opposed: bool = False) -> Mechanism:
    """The run that an attack is on which leaves the new gradients 0."""
    hidden = mechanism.relation == "replace" and isinstance(mechanism.clipping, Individual)
    return replace(mechanism, relation="zero-out") if hidden and not opposed else mechanism


def places(mechanism: Mechanism, size: int) -> int:
    """How many pairs of a round and of a move of its sum there are, moves of 0 apart."""
    match mechanism.clipping:
        case Individual():
            values = size
        case Batch():
            values = 1
        case Mixed(groups=groups):
            values = min(size, groups)
    return len(mechanism.sampler) * values
