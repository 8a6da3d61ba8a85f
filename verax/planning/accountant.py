"""The proved upper bound alone, as fast as it can be had: what a search over thousands of plans asks for.

The theorems are those of :mod:`verax.privacy.samplers`; attacks are left out, because a target is met or missed by the
upper bound only.
"""

from __future__ import annotations

from dataclasses import replace

from verax.mechanism import Mechanism, Phases
from verax.privacy.averages import LARGEST_SHIFT, one_of
from verax.privacy.composition import Composition, Round
from verax.privacy.guarantee import Guarantee
from verax.privacy.pricing import shift_unit
from verax.samplers import BallsInBins, BufferedShuffle, Deterministic, RandomAllocation, Sampler, Shuffle

_FINE = 0.06  # of the table for one round of many: noise comes out up to 0.2 % larger than with the accountant's own


def upper_only(mechanism: Mechanism, group: int = 1) -> Guarantee:
    """The guarantee without its attacks: ``epsilon`` and ``delta`` have a trivial lower side and the proved upper one.

    >>> from verax import Mechanism, Shuffle
    >>> upper_only(Mechanism(Shuffle(batches=100), noise_multiplier=4.0)).epsilon(delta=1e-5)
    Bracket(lower=0, upper=0.9263...)
    """
    run = replace(mechanism, sampler=_dominating(mechanism.sampler)) if group == 1 else mechanism
    if (
        isinstance(run.sampler, BallsInBins)
        and group == 1
        and run.relation != "replace"
        and run.sampler.bins > 1
        and 0.0 < shift_unit(run) <= LARGEST_SHIFT
    ):
        return _one_of_many(run, run.sampler)
    return replace(run.guarantee(group), lowers=())


def _dominating(sampler: Sampler) -> Sampler:
    """What the analysis bounds this sampler by for one record, without the price of its attacks."""
    if isinstance(sampler, Shuffle | BufferedShuffle):  # knowing the order cannot hurt (docs/proofs.md, theorem 4)
        return Deterministic(int(sampler.batches), sampler.epochs)
    if isinstance(sampler, RandomAllocation) and sampler.steps % sampler.times == 0:
        # equal blocks with one round picked in each (docs/proofs.md, theorem 6)
        return BallsInBins(sampler.steps // sampler.times, sampler.times * sampler.epochs)
    return sampler


def _one_of_many(run: Mechanism, sampler: BallsInBins) -> Guarantee:
    """One of many rounds at random, each epoch anew (docs/proofs.md, theorem 5), on a coarser grid, which is sound."""
    once = Round(one_of(sampler.bins, shift_unit(run), _FINE)[0])
    uppers = [Composition([(rnd, sampler.epochs)]) for rnd in (once, once.reverse())]
    theorem = "one round of many at random: an average of likelihood ratios (docs/proofs.md, theorem 5)"
    return Guarantee(Phases((run,)), 1, uppers, (), theorem, "")
