"""Batches of fixed composition, and the same batches shuffled: in full, or in a buffer."""

from __future__ import annotations

import math

from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.composition import Round
from verax.privacy.directions import each_way
from verax.privacy.largest import largest_sum
from verax.privacy.moves import Moves, moves, seen
from verax.privacy.pairs import Pair
from verax.privacy.pricing import Analysis, Group, fixed_batches_only, price, shift_unit
from verax.privacy.samplers.one_round import one_round_of
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic
from verax.samplers.shuffle import Shuffle

_ROUGH = 0.1  # grid of an attack on shuffling, whose bracket is wide anyway


@price.register
def _(sampler: Deterministic, mechanism: Mechanism, group: Group) -> Analysis:
    """One Gaussian mechanism, with the group wherever it hurts most (docs/proofs.md, theorem 4)."""
    fixed_batches_only(mechanism)
    unit, epochs, batches = shift_unit(mechanism), sampler.epochs, int(sampler.batches)
    copies, size = group.split(mechanism)
    match mechanism.clipping:
        case Individual():
            squared = copies * float(size) ** 2 * (4.0 if mechanism.relation == "replace" else 1.0)
        case Batch():
            squared = float(min(size, batches))
        case Mixed(groups=clip_groups):
            full, rest = divmod(min(size, clip_groups * batches), clip_groups)
            squared = float(full * clip_groups**2 + rest**2)
    worst = Round(Pair.gaussian(unit * math.sqrt(squared)))
    theorem = (
        "a Gaussian mechanism, with the group's records where they shift the sums most (docs/proofs.md, theorem 4)"
    )
    if isinstance(mechanism.clipping, Mixed) and size > 1:
        return Analysis({"any": [(worst, epochs)]}, {"any": [(Round(Pair.gaussian(unit)), epochs)]}, theorem,
                        "one record of the group alone", 1.0)  # fmt: skip
    return Analysis({"any": [(worst, epochs)]}, None, theorem, "achieved by fixed gradients of full norm", 1.0)


@price.register
def _(sampler: Shuffle, mechanism: Mechanism, group: Group) -> Analysis:
    """Proved from above by fixed batches (docs/proofs.md, theorem 4), from below by the largest batch sum."""
    batches, epochs = int(sampler.batches), sampler.epochs
    if sampler.reshuffle:
        return _shuffled(mechanism, group, batches, batches, epochs, "one record's largest batch sum of every epoch")
    scale = math.sqrt(epochs)  # the same order every time: one epoch, with all its noise averaged
    why = "one record's largest batch sum over all epochs"
    return _shuffled(mechanism, group, batches, batches, epochs, why, scale)


@price.register
def _(sampler: BufferedShuffle, mechanism: Mechanism, group: Group) -> Analysis:
    """As fixed batches from above; from below the last record of the stream, uniform among the last ``buffer`` batches.

    The bracket is as wide as the difference between knowing and not knowing in which of those batches it is.
    """
    why = "the stream's last record and the largest of the last batch sums, as many as the buffer holds"
    return _shuffled(mechanism, group, int(sampler.batches), sampler.buffer, sampler.epochs, why)


def _shuffled(
    mechanism: Mechanism, group: Group, batches: int, hidden: int, epochs: int, why: str, persistent: float = 0.0
) -> Analysis:
    """One record hidden among ``hidden`` batches, anew in every epoch or (``persistent``: sqrt(epochs)) once."""
    fixed = price(Deterministic(batches, epochs), mechanism, group)
    scale = (persistent or 1.0) / mechanism.noise_multiplier
    count = 1 if persistent else epochs
    if isinstance(mechanism.clipping, Individual) and mechanism.relation == "zero-out":
        seen = {
            "opposed": Round(largest_sum(hidden, 2.0 * scale, scale)),
            "silent": one_round_of(hidden, scale, _ROUGH),
        }
    else:  # the others make up for the record's absence: all sums alike without it
        seen = {"opposed": one_round_of(hidden, 2.0 * scale, _ROUGH)}
    return Analysis(
        fixed.uppers, each_way({name: rnd.attack() for name, rnd in seen.items()}, count),
        f"shuffling cannot hurt: {fixed.upper_by}",
        f"{why} ('how private is DP-SGD', section 4)", 1.0,
    )  # fmt: skip


@moves.register(Deterministic)
@moves.register(Shuffle)
@moves.register(BufferedShuffle)
def _(sampler: Deterministic | Shuffle | BufferedShuffle, mechanism: Mechanism, group: Group) -> Moves:
    return seen(mechanism, group, opposed=True)
