"""The proved upper bound alone, computed fast enough for a search over thousands of plans.

The theorems are those of :mod:`verax.privacy.samplers`; attacks are left out, because a target is
met or missed by the upper bound only.
"""

from __future__ import annotations

from dataclasses import replace

from verax.mechanism import Mechanism, Phases
from verax.privacy.guarantee import Guarantee
from verax.privacy.pld.composition import Composition
from verax.privacy.samplers.base import pricing_of


def upper_only(mechanism: Mechanism, group: int = 1) -> Guarantee:
    """The guarantee without its attacks: a trivial lower side and the proved upper one.

    >>> from verax import Mechanism, Shuffle
    >>> upper_only(Mechanism(Shuffle(batches=100), noise_multiplier=4.0)).epsilon(delta=1e-5)
    Bracket(lower=0, upper=0.9263...)
    """
    if group > 1:
        return replace(mechanism.guarantee(group), lowers=())
    run = replace(mechanism, sampler=pricing_of(mechanism.sampler).dominating())
    coarse = pricing_of(run.sampler).coarse_bound(run)
    if coarse is None:
        return replace(run.guarantee(), lowers=())
    directions, theorem = coarse
    return Guarantee(
        Phases((run,)), 1, [Composition(rounds) for rounds in directions], (), theorem, ""
    )
