"""Rounds picked at random in every epoch: what balls in bins and random allocation share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from verax.mechanism import Mechanism
from verax.privacy.averages import LARGEST_SHIFT
from verax.privacy.composition import Round
from verax.privacy.curve import Curve
from verax.privacy.directions import Rounds
from verax.privacy.largest import largest_sum
from verax.privacy.one_round import at_most_one_round_of, one_round_of
from verax.privacy.pairs import Pair
from verax.privacy.pricing import FEW_PHASES, Analysis, Group, one_record_only, presence_shift
from verax.privacy.several import some_of
from verax.privacy.subsets import Subset

_LEANS = (1.0, 0.5)  # attacks on random allocation that are tried
_MORE_LEANS = (0.7, 0.25, 0.12)  # and where one round's noise is low
_LOW_NOISE = 1.2  # in shifts
_SHARPEST = 1e3  # shift beyond which rounds' scores are too far apart


def rounds_at_random(mechanism: Mechanism, group: Group, times: int, steps: int, epochs: int) -> Analysis:
    """Leaving out few rounds is joining few, and a Gaussian mechanism beside it (docs/allocation.md, theorem 1)."""
    copies, size = group.split(mechanism)
    one_record_only(mechanism, Group(size), absent=True)
    epochs *= copies
    unit, few = presence_shift(mechanism), min(times, steps - times)
    beside = unit * math.sqrt(times - few)
    always: Rounds = [(Round(Pair.gaussian(beside)), epochs)] if times > few else []
    uppers = {"remove": always, "add": always}
    if few > 0:
        size, longer = divmod(steps, few)
        block = one_round_of if few == 1 else at_most_one_round_of  # attacks on several blocks are others
        blocks = [(block(size, unit, group.fine), epochs * (few - longer))]
        blocks += [(block(size + 1, unit, group.fine), epochs * longer)] if longer else []
        back = [(rnd.reverse(), count) for rnd, count in blocks]
        uppers = {"remove": [*blocks, *always], "add": [*back, *always]}
    theorem = "one round of many at random: an average of likelihood ratios (docs/proofs.md, theorem 5)"
    if times > few:
        theorem += "; rounds left out, and a Gaussian mechanism (docs/allocation.md, theorem 1)"
    achieved = "achieved by fixed gradients of full norm in one direction"
    if few == 0 or (few == 1 and unit <= LARGEST_SHIFT):
        return Analysis(uppers, None, theorem, achieved, 1.0)
    uppers = {name: [(Round(rnd.pair), count) for rnd, count in rounds] for name, rounds in uppers.items()}
    usual = _LEANS if group.phases <= FEW_PHASES else _LEANS[:1]  # the sum of many phases is near normal
    leans: tuple[float, ...] = _LEANS + _MORE_LEANS if unit > _LOW_NOISE else usual
    attacks = _attacks(times, steps, unit, epochs, always, leans)
    if few == 1:
        return Analysis(uppers, attacks, theorem, achieved, 1.0, sure=True)
    by = f"{few} blocks of rounds, one round of each (docs/proofs.md, theorem 6): {theorem}"
    sharper: dict[str, Curve] = {}
    if epochs == 1 and Subset.applies(few, steps, unit):
        sharper["remove"] = Subset(few, steps, unit, beside)
        by = f"the smaller of: {by}; and coins given their number (docs/proofs.md, theorem 10)"
    return Analysis(
        uppers,
        attacks,
        by,
        "fixed gradients of full norm, the rounds' scores added up (docs/proofs.md, section 4)",
        1.0,
        sure=True,
        sharper=sharper,
    )


def _attacks(
    times: int, steps: int, unit: float, epochs: int, always: Rounds, leans: Sequence[float]
) -> dict[str, Rounds]:
    """The largest score of a round or the sum of all; the sum of all outputs where scores are too far apart."""
    few = min(times, steps - times)
    if unit > _SHARPEST:
        added_up: Rounds = [(Round(Pair.gaussian(unit * times / math.sqrt(steps))), epochs)]
        return {"remove": added_up, "add": added_up}
    if few == 1:
        seen = {"largest": Round(largest_sum(steps, unit, 0.0))}
    else:
        seen = {f"{lean}": Round(some_of(few, steps, unit, lean)) for lean in leans}
    attacks: dict[str, Rounds] = {f"remove, {name}": [(rnd, epochs), *always] for name, rnd in seen.items()}
    name, first = next(iter(seen.items()))
    return attacks | {f"add, {name}": [(first.reverse(), epochs), *always]}
