"""Balls in bins and random allocation: a fixed number of rounds, picked at random in every epoch."""

from __future__ import annotations

import math

from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.averages import LARGEST_SHIFT
from verax.privacy.composition import Composition, Round
from verax.privacy.curve import Curve
from verax.privacy.directions import Rounds, each_way
from verax.privacy.largest import largest_sum
from verax.privacy.lattice import Law
from verax.privacy.moves import Moves, moves, places, seen, silent
from verax.privacy.pairs import Pair
from verax.privacy.pricing import Analysis, Group, one_record_only, price, shift_unit
from verax.privacy.samplers.one_round import one_round_of
from verax.privacy.several import some_of
from verax.privacy.shared_bins import SharedBins
from verax.privacy.shared_bins_attack import ALL_COUNTED, group_attack
from verax.privacy.shared_bins_bound import group_bounds
from verax.privacy.strong import shift_unit as seen_unit
from verax.privacy.subsets import Subset
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.random_allocation import RandomAllocation

_LEANS = (1.0, 0.5)  # attacks on random allocation that are tried
_MORE_LEANS = (0.7, 0.25, 0.12)  # and where one round's noise is low
_LOW_NOISE = 1.2  # in shifts
_SHARPEST, _SHARPEST_ONE = 60.0, 1e3  # shifts beyond which rounds' scores, or the largest, are too far apart


@price.register
def _(sampler: BallsInBins, mechanism: Mechanism, group: Group) -> Analysis:
    """One of ``bins`` rounds at random, each epoch anew (docs/proofs.md, theorem 5; groups: docs/allocation.md)."""
    _, size = group.split(mechanism)
    if size > 1 and mechanism.relation != "replace" and not isinstance(mechanism.clipping, Mixed):
        return _sharing_bins(sampler, mechanism, size)
    return _allocated(mechanism, group, 1, sampler.bins, sampler.epochs)


def _sharing_bins(sampler: BallsInBins, mechanism: Mechanism, size: int) -> Analysis:
    epochs = sampler.epochs
    together = SharedBins(size, sampler.bins, shift_unit(mechanism), isinstance(mechanism.clipping, Individual))
    if sampler.bins == 1:
        once = Round(Pair.gaussian(together.reach))
        same: Rounds = [(once, epochs)]
        return Analysis(
            {"remove": same, "add": same}, None, "a Gaussian mechanism", "fixed gradients of full norm", 1.0
        )
    forth, near, back = (Round(pair) for pair in group_bounds(together, epochs))
    attacks = each_way({"together": Round(group_attack(together))}, epochs)
    if size > ALL_COUNTED:
        attacks = {name: rounds for name, rounds in attacks.items() if name.startswith("remove")}
    return Analysis(
        {"remove": [(forth, epochs)], "add": [(back, epochs)]},
        attacks,
        "records of a group that may share bins (docs/allocation.md, theorems 2 to 4)",
        "fixed gradients of full norm in one direction, the bins' scores added up (docs/allocation.md, theorem 2)",
        1.0,
        sure=True,
        sharper={"remove": Composition([(near, epochs)])} if near.pair is not forth.pair else {},
        triangle=True,
    )


@price.register
def _(sampler: RandomAllocation, mechanism: Mechanism, group: Group) -> Analysis:
    """``times`` of ``steps`` rounds at random, each epoch anew (docs/proofs.md, theorems 5 and 6)."""
    if sampler.times == 1:
        return price(BallsInBins(sampler.steps, sampler.epochs), mechanism, group)
    return _allocated(mechanism, group, sampler.times, sampler.steps, sampler.epochs)


def _allocated(mechanism: Mechanism, group: Group, times: int, steps: int, epochs: int) -> Analysis:
    """Leaving out few rounds is joining few, and a Gaussian mechanism beside it (docs/allocation.md, theorem 1)."""
    copies, size = group.split(mechanism)
    one_record_only(mechanism, Group(size), absent=True)
    epochs *= copies
    unit, few = shift_unit(mechanism), min(times, steps - times)
    beside = unit * math.sqrt(times - few)
    always: Rounds = [(Round(Pair.gaussian(beside)), epochs)] if times > few else []
    uppers = {"remove": always, "add": always}
    if few > 0:
        size, longer = divmod(steps, few)
        blocks = [(one_round_of(size, unit, group.fine), epochs * (few - longer))]
        blocks += [(one_round_of(size + 1, unit, group.fine), epochs * longer)] if longer else []
        back = [(rnd.reverse(), count) for rnd, count in blocks]
        uppers = {"remove": [*blocks, *always], "add": [*back, *always]}
    theorem = "one round of many at random: an average of likelihood ratios (docs/proofs.md, theorem 5)"
    if times > few:
        theorem += "; rounds left out, and a Gaussian mechanism (docs/allocation.md, theorem 1)"
    achieved = "achieved by fixed gradients of full norm in one direction"
    if few == 0 or (few == 1 and unit <= LARGEST_SHIFT):
        return Analysis(uppers, None, theorem, achieved, 1.0)
    uppers = {name: [(Round(rnd.pair), count) for rnd, count in rounds] for name, rounds in uppers.items()}
    attacks = _attacks(times, steps, unit, epochs, always)
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


def _attacks(times: int, steps: int, unit: float, epochs: int, always: Rounds) -> dict[str, Rounds]:
    """The largest score of a round or the sum of all; the sum of all outputs where scores are too far apart."""
    few = min(times, steps - times)
    if unit > (_SHARPEST if few > 1 else _SHARPEST_ONE):
        added_up: Rounds = [(Round(Pair.gaussian(unit * times / math.sqrt(steps))), epochs)]
        return {"remove": added_up, "add": added_up}
    leans = _LEANS + (_MORE_LEANS if unit > _LOW_NOISE else ())
    if few == 1:
        seen = {"largest": Round(largest_sum(steps, unit, 0.0))}
    else:
        seen = {f"{lean}": Round(some_of(few, steps, unit, lean)) for lean in leans}
    attacks: dict[str, Rounds] = {f"remove, {name}": [(rnd, epochs), *always] for name, rnd in seen.items()}
    name, first = next(iter(seen.items()))
    return attacks | {f"add, {name}": [(first.reverse(), epochs), *always]}


@moves.register
def _(sampler: BallsInBins, mechanism: Mechanism, group: Group) -> Moves:
    return seen(mechanism, group)


@moves.register
def _(sampler: RandomAllocation, mechanism: Mechanism, group: Group) -> Moves:
    """Of a group no law is known, but from the mildest places to the worst."""
    _, size = group.split(mechanism)
    if size == 1:
        return seen(mechanism, group)
    attacked = silent(mechanism)
    least, most = _squares(sampler, mechanism, size)
    unit, silent_unit = seen_unit(mechanism), seen_unit(attacked)
    worst = Law.between(most, most).scaled(unit**2)
    some = Law.between(least, most).scaled(silent_unit**2)
    return Moves(lambda _: worst, lambda _: some, silent_unit, places(attacked, size))


def _squares(sampler: RandomAllocation, mechanism: Mechanism, size: int) -> tuple[float, float]:
    """The least and the largest sum over all rounds of the squared number of touched clip-groups.

    There are ``size * times`` touches an epoch, if no two fall together. Individual clipping counts all of them: spread
    evenly is mildest, all records in the same rounds worst. Clipped aggregates count those of one clip-group once: all
    together is mildest, and worst as many as possible in one round, in different clip-groups.
    """
    touches, steps = size * sampler.times, sampler.steps
    match mechanism.clipping:
        case Individual():
            each, more = divmod(touches, steps)
            least, most = more * (each + 1) ** 2 + (steps - more) * each**2, size * touches
        case Batch():
            least, most = sampler.times, min(touches, steps)
        case Mixed(groups=groups):
            together = min(size, groups)
            full, rest = divmod(min(touches, together * steps), together)
            least, most = sampler.times, full * together**2 + rest**2
    return float(least * sampler.epochs), float(most * sampler.epochs)
