"""The paper's model: equal clip-groups, and c^2, how much of a run an adversary A1 sees."""

from __future__ import annotations

from functools import cache

from verax.privacy.numerics.lattice import Law
from verax.privacy.strong import occupancy
from verax.privacy.strong.curve import StrongCurve

POPULATION, BATCH, CLIP_GROUPS = 60_000, 60, 4  # as many records as MNIST; the batch divides them
SIGMA, DELTA = 2.0, 1e-5  # the paper's sigma


@cache
def exact(sampling: str, groups: int, epochs: int, group: int) -> Law:
    """The law of c^2 in the paper's model, ``groups`` equal clip-groups a round."""
    size = BATCH // groups
    if sampling == "shuffling":
        return occupancy.shuffling(POPULATION, size, groups, epochs, group)
    return occupancy.subsampling(POPULATION, size, groups, POPULATION // BATCH * epochs, group)


def strong_curve(law: Law, sigma: float = SIGMA) -> StrongCurve:
    """What A1 sees at this sigma."""
    return StrongCurve(lambda _: law.scaled(sigma**-2.0))
