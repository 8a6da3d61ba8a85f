"""Rounds picked at random in every epoch: what balls in bins and random allocation share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from verax.mechanism import Individual, Mechanism, Mixed
from verax.privacy.curves.base import Curve
from verax.privacy.curves.random_subset import RandomSubsetBound
from verax.privacy.pairs.largest_sum import largest_sum
from verax.privacy.pairs.one_of_many import (
    DEEP_TAIL,
    FINE,
    LARGEST_SHIFT,
    one_round_from_above,
    one_round_of_many,
)
from verax.privacy.pairs.rounds import PricedRound, Rounds, both_directions_of_attacks
from verax.privacy.pairs.shared_bins import SharedBins
from verax.privacy.pairs.shared_bins_attack import ALL_COUNTED, group_attack
from verax.privacy.pairs.shared_bins_bound import group_bounds
from verax.privacy.pairs.some_of_many import some_of_many_attack
from verax.privacy.pld.composition import Composition
from verax.privacy.samplers.base import (
    FEW_PHASES,
    Analysis,
    ProtectedGroup,
    presence_shift,
    require_one_record,
)

_LEANS = (1.0, 0.5)  # attacks on random allocation that are tried
_MORE_LEANS = (0.7, 0.25, 0.12)  # and where one round's noise is low
_LOW_NOISE = 1.2  # in shifts
_FEW_RECORDS, _FOLLOWED_FEW, _FOLLOWED = 4, 2, 16
"""Up to how many records a group is small; in how many different phases the ways of sharing rounds
are followed, for small groups and for others. One record's curve soon proves as much of small ones,
and tables take a while."""
_SHARPEST = 1e3  # shift beyond which rounds' scores are too far apart


def allocation_analysis(
    mechanism: Mechanism, group: ProtectedGroup, times: int, steps: int, epochs: int
) -> Analysis:
    """A group whose records each join ``times`` of ``steps`` rounds, picked anew in every epoch."""
    _, size = group.split(mechanism)
    alone = size == 1 or mechanism.relation == "replace" or isinstance(mechanism.clipping, Mixed)
    analyse = rounds_at_random if alone else sharing_rounds
    return analyse(mechanism, group, times, steps, epochs)


def rounds_at_random(
    mechanism: Mechanism, group: ProtectedGroup, times: int, steps: int, epochs: int
) -> Analysis:
    """One record that joins ``times`` of ``steps`` rounds, picked anew in every epoch.

    Leaving out few rounds is joining few beside a Gaussian mechanism (docs/allocation.md, theorem
    1).
    """
    copies, size = group.split(mechanism)
    require_one_record(mechanism, ProtectedGroup(size), absent=True)
    epochs *= copies
    unit, few = presence_shift(mechanism), min(times, steps - times)
    constant_shift = unit * math.sqrt(times - few)
    always: Rounds = [(PricedRound.gaussian(constant_shift), epochs)] if times > few else []
    uppers = {"remove": always, "add": always}
    if few > 0:
        size, longer = divmod(steps, few)
        # attacks on several blocks are others
        block = one_round_of_many if few == 1 else one_round_from_above
        if group.for_triangle:
            block = partial(one_round_from_above, log_tail=DEEP_TAIL)
        blocks = [(block(size, unit, group.grid_step), epochs * (few - longer))]
        blocks += [(block(size + 1, unit, group.grid_step), epochs * longer)] if longer else []
        back = [(rnd.reverse(), count) for rnd, count in blocks]
        uppers = {"remove": [*blocks, *always], "add": [*back, *always]}
    theorem = (
        "one round of many at random: an average of likelihood ratios (docs/proofs.md, theorem 5)"
    )
    if times > few:
        theorem += "; rounds left out, and a Gaussian mechanism (docs/allocation.md, theorem 1)"
    achieved = "achieved by fixed gradients of full norm in one direction"
    extra_uppers: dict[str, Curve] = {}
    if few > 1 and epochs == 1 and RandomSubsetBound.applies(few, steps, unit):
        extra_uppers["remove"] = RandomSubsetBound(few, steps, unit, constant_shift)
    if group.for_triangle:
        return Analysis(uppers, {}, theorem, "no attack was looked for", extra_uppers=extra_uppers)
    if few == 0 or (few == 1 and unit <= LARGEST_SHIFT):
        return Analysis(uppers, None, theorem, achieved)
    uppers = {
        name: [(PricedRound(rnd.pair), count) for rnd, count in rounds]
        for name, rounds in uppers.items()
    }
    # the sum of many phases is near normal
    usual = _LEANS if group.phases <= FEW_PHASES else _LEANS[:1]
    leans: tuple[float, ...] = _LEANS + _MORE_LEANS if unit > _LOW_NOISE else usual
    attacks = _allocation_attacks(times, steps, unit, epochs, always, leans)
    if few == 1:
        return Analysis(uppers, attacks, theorem, achieved, refine_attacks=True)
    by = f"{few} blocks of rounds, one round of each (docs/proofs.md, theorem 6): {theorem}"
    if extra_uppers:
        by = f"the smaller of: {by}; and coins given their number (docs/proofs.md, theorem 10)"
    return Analysis(
        uppers,
        attacks,
        by,
        "fixed gradients of full norm, the rounds' scores added up (docs/proofs.md, section 4)",
        refine_attacks=True,
        extra_uppers=extra_uppers,
    )


def _allocation_attacks(
    times: int, steps: int, unit: float, epochs: int, always: Rounds, leans: Sequence[float]
) -> dict[str, Rounds]:
    """The largest score of a round, or the sum of all scores.

    The sum of all outputs where scores are too far apart.
    """
    few = min(times, steps - times)
    if unit > _SHARPEST:
        added_up: Rounds = [(PricedRound.gaussian(unit * times / math.sqrt(steps)), epochs)]
        return {"remove": added_up, "add": added_up}
    if few == 1:
        seen = {"largest": PricedRound(largest_sum(steps, unit, 0.0))}
    else:
        seen = {
            f"{lean}": PricedRound(some_of_many_attack(few, steps, unit, lean)) for lean in leans
        }
    attacks: dict[str, Rounds] = {
        f"remove, {name}": [(rnd, epochs), *always] for name, rnd in seen.items()
    }
    name, first = next(iter(seen.items()))
    return attacks | {f"add, {name}": [(first.reverse(), epochs), *always]}


def sharing_rounds(
    mechanism: Mechanism, group: ProtectedGroup, times: int, bins: int, epochs: int
) -> Analysis:
    """A group whose records may meet in a round (docs/allocation.md, theorems 2 to 5)."""
    _, size = group.split(mechanism)
    unit, adds_up = presence_shift(mechanism), isinstance(mechanism.clipping, Individual)
    few = min(times, bins - times) if adds_up else times
    together = SharedBins(size, bins, unit, adds_up, few)
    always: Rounds = []
    if times > few:
        always = [(PricedRound.gaussian(unit * size * math.sqrt(times - few)), epochs)]
    if few in (0, bins):
        same = always or [(PricedRound.gaussian(together.reach), epochs)]
        return Analysis(
            {"remove": same, "add": same},
            None,
            "a Gaussian mechanism",
            "fixed gradients of full norm",
        )
    if group.phases > (_FOLLOWED_FEW if size <= _FEW_RECORDS else _FOLLOWED):
        forth = near = back = PricedRound.gaussian(together.reach)
    else:
        forth, near, back = (
            PricedRound(pair)
            for pair in group_bounds(together, epochs, group.grid_step / FINE, group.phases)
        )
    if few == 1:
        attacks = both_directions_of_attacks(
            {"together": PricedRound(group_attack(together, group.grid_step / FINE))}, epochs
        )
        attacks = {name: [*rounds, *always] for name, rounds in attacks.items()}
        if size > ALL_COUNTED:
            attacks = {
                name: rounds for name, rounds in attacks.items() if name.startswith("remove")
            }
        by = "the bins' scores added up (docs/allocation.md, theorem 2)"
    else:
        seen = few * (size if adds_up else 1) / math.sqrt(bins)
        added_up: Rounds = [(PricedRound.gaussian(unit * seen), epochs), *always]
        attacks = {"remove, added up": added_up, "add, added up": added_up}
        alone: Rounds = (
            [(PricedRound.gaussian(unit * math.sqrt(times - few)), epochs)] if times > few else []
        )
        attacks |= _allocation_attacks(times, bins, unit, epochs, alone, _LEANS)
        by = "all outputs added up, or one record's scores (docs/allocation.md, theorem 5)"
    return Analysis(
        {"remove": [(forth, epochs), *always], "add": [(back, epochs), *always]},
        attacks,
        "records of a group that may share rounds (docs/allocation.md, theorems 2 to 5)",
        f"fixed gradients of full norm in one direction, {by}",
        refine_attacks=True,
        extra_uppers={"remove": Composition([(near, epochs), *always])}
        if near.pair is not forth.pair
        else {},
    )
