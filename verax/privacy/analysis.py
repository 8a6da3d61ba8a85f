"""From a mechanism to its guarantee: one registered function per sampler.

To price a new sampler, register a function here that returns an :class:`Analysis`. Its ``uppers`` map each direction
of the neighbouring relation to the rounds whose composition dominates the mechanism; its ``lowers`` do the same for
explicit attacks, and are None where the dominating rounds are achieved exactly. Name the theorem on each side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import singledispatch

import numpy as np

from verax.checks import NoGuarantee
from verax.mechanism import Batch, Individual, Mechanism, Mixed, Phases
from verax.privacy import low_noise
from verax.privacy.averages import DEEP_TAIL, FINE, LARGEST_SHIFT, at_most_one_of, one_of
from verax.privacy.black_box import BlackBox, Shared
from verax.privacy.chain import Best, Chain
from verax.privacy.company import declared, in_company, independent
from verax.privacy.composition import Composition, Round
from verax.privacy.curve import Curve
from verax.privacy.directions import Rounds, each_way, join
from verax.privacy.guarantee import Guarantee, orthogonality
from verax.privacy.largest import largest_sum
from verax.privacy.low_noise import LEAST_NOISE
from verax.privacy.mixtures import crowded, distinct_groups, mixture_round, truncated_rate
from verax.privacy.noiseless import Noiseless
from verax.privacy.numerics.distributions import binomial_law
from verax.privacy.pairs import Pair
from verax.privacy.participation import LARGEST_UNIT, Sure, both_ways, leaning, leans, participating, silent
from verax.privacy.revealed import Revealed
from verax.privacy.several import some_of
from verax.privacy.shared_bins import SharedBins
from verax.privacy.shared_bins_attack import ALL_COUNTED, group_attack
from verax.privacy.shared_bins_bound import group_bounds
from verax.privacy.strong import strong
from verax.privacy.subsets import Subset
from verax.privacy.tables import Table
from verax.samplers.allocation import RandomAllocation
from verax.samplers.base import Sampler
from verax.samplers.bins import BallsInBins
from verax.samplers.buffered import BufferedShuffle
from verax.samplers.deterministic import Deterministic
from verax.samplers.participation import RandomParticipation
from verax.samplers.poisson import Poisson
from verax.samplers.replacement import WithoutReplacement
from verax.samplers.shuffle import Shuffle
from verax.samplers.truncated import TruncatedPoisson

MAX_GROUP = 10**6
_CHAINED_FINE = 0.035  # grid points per scale of one record's law, for groups
_FEW_PHASES, _COARSEST = 4, 6.0  # phases that are all priced finely; and how much coarser the grids of many may be
MOST_NOISE = 1e10
"""Noise beyond which likelihood ratios differ from 1 by less than doubles can tell."""
_LEANS = (1.0, 0.5)  # attacks on random allocation that are tried
_MORE_LEANS = (0.7, 0.25, 0.12)  # and where one round's noise is low
_LOW_NOISE = 1.2  # in shifts
_SHARPEST, _SHARPEST_ONE = 60.0, 1e3  # shifts beyond which rounds' scores, or the largest, are too far apart
_ROUGH = 0.1  # grid of an attack on shuffling, whose bracket is wide anyway


@dataclass(frozen=True)
class Group:
    """Which records are protected together: how many, and whether their gradients are orthogonal to each other.

    ``beside`` is how many more records than declared there may be: the rest of a group that is added one by one.
    ``people`` is the number of all records, if a phase declares it. ``phases`` is how many different phases there are:
    the share of each in the whole is the smaller, and so may be its accuracy. ``chained`` says that the triangle
    inequality goes on from one record's bound: tiny deltas count then, and attacks do not.
    """

    size: int = 1
    orthogonal: bool = False
    beside: int = 0
    people: int | None = None
    phases: int = 1
    chained: bool = False

    @property
    def fine(self) -> float:
        """How fine the grid of one of many phases must be."""
        coarser = min(max(math.sqrt(self.phases / _FEW_PHASES), 1.0), _COARSEST)
        return coarser * (_CHAINED_FINE if self.chained else FINE)

    def split(self, mechanism: Mechanism) -> tuple[int, int]:
        """Copies and size: orthogonal records, clipped one by one, are seen apart, like runs with one record each."""
        apart = self.orthogonal and isinstance(mechanism.clipping, Individual)
        return (self.size, 1) if apart else (1, self.size)


@dataclass(frozen=True)
class Analysis:
    """Dominating rounds per direction, attacks per name (None: the dominating rounds themselves), and the theorems."""

    uppers: Mapping[str, Rounds]
    lowers: Mapping[str, Rounds] | None
    upper_by: str
    lower_by: str
    visible: float
    """Probability that without noise an attacker would see the group at all, at most."""
    shown: float | None = None
    """The same, at least, where it is less: the probability that one record alone shows without noise."""
    sure: bool = False
    """Whether the attacks' laws have heavy atoms, so that their curves must be refined from both sides."""
    sharper: Mapping[str, Curve] = field(default_factory=dict)
    """Further upper bounds, by direction, for a run that has no other phases."""
    triangle: bool = False
    """Whether the triangle inequality, from one record to the group, may give less."""


class OneRecordOnly(NoGuarantee):
    """Raised by analyses of one record: larger groups are then priced by the triangle inequality.

    ``absent`` says that only a record's absence can be priced, so that replacing it takes two steps.
    """

    def __init__(self, absent: bool) -> None:
        super().__init__("one record only")
        self.absent = absent


def one_record_only(mechanism: Mechanism, group: Group, absent: bool = False) -> None:
    """Leave groups, and with ``absent`` replacement, to the triangle inequality."""
    if group.size > 1 or (absent and mechanism.relation == "replace"):
        raise OneRecordOnly(absent and mechanism.relation == "replace")


@singledispatch
def price(sampler: Sampler, mechanism: Mechanism, group: Group) -> Analysis:
    """The analysis of one mechanism, chosen by the class of its sampler."""
    raise _unknown(sampler)


def refuse_unknown(sampler: Sampler) -> None:
    """Refuse what has no analysis of its own; also a subclass of a known sampler, which may draw something else."""
    if type(sampler) not in price.registry:
        raise _unknown(sampler)


def _unknown(sampler: Sampler) -> NoGuarantee:
    return NoGuarantee(
        f"no privacy analysis is known for {type(sampler).__name__}, so nobody can say what it costs: use one of "
        "verax's samplers, or register an analysis in verax.privacy.analysis"
    )


def analyse(phases: Phases, group: Group) -> Guarantee:
    """Price every phase and compose them, direction by direction."""
    for mechanism in phases.mechanisms:
        refuse_unknown(mechanism.sampler)
    people = declared(phases) if group.people is None else group.people
    group = replace(group, people=people, phases=len(set(phases.mechanisms)))
    guarantee = replace(_analyse(phases, group), beside=group.beside)
    if group.size > 1 and guarantee.uppers is not guarantee.lowers and not low_noise.applies(phases):
        guarantee = _told_where(guarantee, group)
    if group.orthogonal and group.size > 1:
        return replace(guarantee, assuming=orthogonality(phases.relation))
    return guarantee


def analyse_strong(phases: Phases, group: Group, population: int | None) -> Guarantee:
    """The same for the adversary A1 of paper 000, who is told where the group's records fell."""
    found = strong(phases, group.size, population, group.orthogonal)
    curves: list[Curve] = [found.curve]
    lowers = [*found.attacks] if found.chance > 0.0 else curves
    assuming = "the adversary A1, who is told in which rounds and clip-groups the protected records are"
    if group.orthogonal and group.size > 1:
        assuming += f", and {orthogonality(phases.relation)}"
    return Guarantee(phases, group.size, curves, lowers, found.upper_by, found.lower_by, assuming=assuming)


def _told_where(guarantee: Guarantee, group: Group) -> Guarantee:
    """Telling the attacker where the group's records fell cannot help the defender: one more upper bound."""
    try:
        found = strong(guarantee.mechanism, group.size, None, group.orthogonal)
    except NoGuarantee:
        return guarantee
    uppers = [Best((curve, found.curve)) for curve in guarantee.uppers]
    return replace(guarantee, uppers=uppers, upper_by=f"the smaller of: {guarantee.upper_by}; and {found.upper_by}")


def _analyse(phases: Phases, group: Group) -> Guarantee:
    most = min([MAX_GROUP, *(m.sampler.population for m in phases.mechanisms if hasattr(m.sampler, "population"))])
    if group.size > most:
        raise ValueError(f"group must be at most {most}, got {group.size}")
    for m in phases.mechanisms:
        if isinstance(m.sampler, RandomParticipation) and group.size > (most := m.sampler.records + 1):
            raise ValueError(
                f"group must be at most {most}, got {group.size}: RandomParticipation protects records of one "
                f"client, and records={m.sampler.records} says that it has {most} in all; name a larger records=, "
                "or protect whole clients with Poisson(rate=client_rate, ...)"
            )
    if any(m.noise_multiplier == 0.0 for m in phases.mechanisms):
        return _noiseless(phases, group)
    if any(m.noise_multiplier < LEAST_NOISE for m in phases.mechanisms):
        return _hardly_any_noise(phases, group)
    if any(m.noise_multiplier > MOST_NOISE and not isinstance(m.sampler, Deterministic) for m in phases.mechanisms):
        return _hardly_any_signal(phases, group)
    try:
        found = _composed(phases, group)
        size = group.size + group.beside
        return in_company(found, size, group.people, lambda quiet: _composed(quiet, group).lowers)
    except OneRecordOnly as limit:
        return _chained(phases, group, limit.absent)


def _hardly_any_noise(phases: Phases, group: Group) -> Guarantee:
    """Noise that leaves the range of doubles when squared: as good as none from above, and more of it from below."""

    def with_noise(noise: float) -> Guarantee:
        changed = [replace(m, noise_multiplier=max(noise, m.noise_multiplier)) for m in phases.mechanisms]
        if noise == 0.0:
            low = [m.noise_multiplier < LEAST_NOISE for m in phases.mechanisms]
            changed = [replace(m, noise_multiplier=0.0) if s else m for m, s in zip(changed, low, strict=True)]
        return _analyse(Phases(tuple(changed)), group)

    none, more = with_noise(0.0), with_noise(LEAST_NOISE)
    below = f"less noise than {LEAST_NOISE:g} shows no less: {more.lower_by}"
    return replace(more, mechanism=phases, uppers=none.uppers, upper_by=none.upper_by, lower_by=below)


def _hardly_any_signal(phases: Phases, group: Group) -> Guarantee:
    """Noise so large that doubles cannot tell likelihood ratios from 1: less of it from above, nothing from below."""
    less = [replace(m, noise_multiplier=min(m.noise_multiplier, MOST_NOISE)) for m in phases.mechanisms]
    found = _analyse(Phases(tuple(less)), group)
    above = f"more noise than {MOST_NOISE:g} shows no more: {found.upper_by}"
    below = "nothing can be told from so much noise"
    return replace(found, mechanism=phases, lowers=[], upper_by=above, lower_by=below)


def _with_low_noise(phases: Phases, group: Group) -> Guarantee:
    for m in phases.mechanisms:  # what is refused is so at any noise
        with suppress(OneRecordOnly):
            price(m.sampler, replace(m, noise_multiplier=1.0), group)
        if isinstance(m.sampler, RandomParticipation) and not independent(m.sampler):
            one_record_only(m, group)
    return Guarantee(phases, group.size, *low_noise.bounds(phases, group.size, group.orthogonal))


def _composed(phases: Phases, group: Group) -> Guarantee:
    if low_noise.applies(phases):
        return _with_low_noise(phases, group)
    prices = {m: price(m.sampler, m, group) for m in dict.fromkeys(phases.mechanisms)}
    parts = [prices[m] for m in phases.mechanisms]
    upper_by = "; ".join(dict.fromkeys(part.upper_by for part in parts))
    lower_by = "; ".join(dict.fromkeys(part.lower_by for part in parts))
    visible = min(math.fsum(part.visible for part in parts) * (1.0 + 1e-9), 1.0)
    uppers: list[Curve] = [Composition(rounds) for rounds in join([part.uppers for part in parts])]
    if len(parts) == 1 and (sharper := parts[0].sharper):
        named = zip(parts[0].uppers, uppers, strict=True)
        uppers = [Best((curve, sharper[name])) if name in sharper else curve for name, curve in named]
    if all(part.lowers is None for part in parts):
        return Guarantee(phases, group.size, uppers, uppers, upper_by, lower_by, visible)
    attacks = join([p.uppers if p.lowers is None else p.lowers for p in parts])
    attack = Sure if any(part.sure for part in parts) else Composition
    lowers: list[Curve] = [attack(rounds) for rounds in attacks]
    if any(part.triangle for part in parts):
        alone = Group(beside=group.size - 1, chained=True)
        shared = Shared(BlackBox(analyse(phases, alone)), group.size)
        uppers = [Best((curve, shared)) for curve in uppers]
        upper_by = f"the smaller of: {upper_by}; and the triangle inequality (docs/proofs.md, lemma 5)"
    return Guarantee(phases, group.size, uppers, lowers, upper_by, lower_by, visible)


def _noiseless(phases: Phases, group: Group) -> Guarantee:
    """Phases without noise show whomever they sample; the others are priced as usual."""
    bare = [replace(m, noise_multiplier=1.0) for m in phases.mechanisms if m.noise_multiplier == 0.0]
    most, least = 0.0, 0.0  # logarithms of the probability of staying unseen
    for m in bare:
        try:
            part, size = price(m.sampler, m, group), 1
        except OneRecordOnly:
            alone = replace(m, relation="zero-out") if m.relation == "replace" else m
            part, size = price(alone.sampler, alone, Group()), group.size
        most += _log_unseen(min(size * part.visible, 1.0))
        least += _log_unseen(part.visible if part.shown is None else part.shown)
    noisy = tuple(m for m in phases.mechanisms if m.noise_multiplier > 0.0)
    rest = analyse(Phases(noisy), group) if noisy else None
    uppers, lowers = ([*rest.uppers], [*rest.lowers]) if rest else ([None], [None])
    return Guarantee(
        phases,
        group.size,
        [Noiseless(-math.expm1(most), curve) for curve in uppers],
        [Noiseless(-math.expm1(least), curve) for curve in lowers],
        "; ".join(["no noise: whoever is sampled is exposed"] + ([rest.upper_by] if rest else [])),
        "; ".join(["no noise: read it off"] + ([rest.lower_by] if rest else [])),
    )


def _log_unseen(visible: float) -> float:
    return math.log1p(-visible) if visible < 1.0 else -math.inf


def _chained(phases: Phases, group: Group, absent: bool) -> Guarantee:
    """The triangle inequality, from one record to a group, and over its absence to its replacement."""
    size = group.size
    if absent:
        present = Phases(tuple(replace(m, relation="zero-out") for m in phases.mechanisms))
        one = analyse(present, Group(beside=size - 1))
        chains = [Chain(((one.uppers[0], size), (one.uppers[-1], size)))]
        steps, how = 2 * size, f"{size} removed and {size} added"
    else:
        one = analyse(phases, Group(beside=size - 1))
        chains = [Chain(((curve, size),)) for curve in one.uppers]
        steps, how = size, f"{size} steps"
    shared = Shared(BlackBox(one), steps)
    uppers: list[Curve] = [Best((chain, shared)) for chain in chains]
    how = f"black box: {how} by the triangle inequality with the best shares of epsilon (docs/proofs.md, lemma 5)"
    visible = min(size * one.visible * (1.0 + 1e-9), 1.0)
    alone = f"one record alone: {one.lower_by}"
    return Guarantee(phases, size, uppers, one.lowers, f"{how}, each: {one.upper_by}", alone, visible)


def shift_unit(mechanism: Mechanism) -> float:
    """How far one sampled record can move the noisy sum, in standard deviations of the noise."""
    return (1.0 if isinstance(mechanism.clipping, Individual) else 2.0) / (mechanism.noise_multiplier or math.inf)


@price.register
def _(sampler: Poisson, mechanism: Mechanism, group: Group) -> Analysis:
    """Every round is an independent draw, so the pairs of docs/proofs.md, section 1, compose round by round."""
    copies, size = group.split(mechanism)
    unit, count = shift_unit(mechanism), len(sampler) * copies
    visible = -math.expm1(count * size * math.log1p(-sampler.rate)) if sampler.rate < 1 else 1.0
    clipping, replaced = mechanism.clipping, mechanism.relation == "replace"
    match clipping:
        case Individual():
            weights = binomial_law(size, sampler.rate)
            theorem = "theorem 18 of 'optimal group privacy': a Binomial mixture of shifts against none"
            theorem = "orthogonal records are seen apart (docs/proofs.md, theorem 9)" if copies > 1 else theorem
        case Batch():
            weights = binomial_law(1, -math.expm1(size * math.log1p(-sampler.rate)) if sampler.rate < 1 else 1.0)
            theorem = "batch clipping: a shift of 2 if any of the group is sampled (docs/proofs.md, theorem 2)"
        case Mixed():
            weights = distinct_groups(size, sampler.rate, clipping.groups)
            theorem = "mixed clipping: a shift of 2 per clip-group touched (docs/proofs.md, theorem 2)"
    shifts = unit * np.arange(len(weights), dtype=float)
    if replaced and isinstance(clipping, Individual):
        return Analysis(
            {"replace": [(mixture_round(weights, shifts, size, two_sided=True), count)]}, None,
            "opposite-sided mixtures (docs/proofs.md, theorem 1)",
            "achieved by gradients that point in opposite directions", visible,
        )  # fmt: skip
    once = mixture_round(weights, shifts, size)
    directions = {"remove": [(once, count)], "add": [(once.reverse(), count)]}
    attack = "achieved by fixed gradients of full norm in one direction"
    if not replaced:
        return Analysis(directions, None, theorem, attack, visible)
    if once.pair.is_gaussian:
        return Analysis({"replace": [(once, count)]}, None, theorem, attack, visible)
    if isinstance(once.pair, Pair) and once.pair.up.two_point:
        dominating = Round(once.pair, symmetric=True)
        theorem += ", either direction in every round (theorem 3)"
    else:
        dominating = mixture_round(weights, shifts, size, two_sided=True)
        theorem += ", on opposite sides (theorem 1)"
    return Analysis(
        {"replace": [(dominating, count)]},
        {**directions, "alternate": [(once, count - count // 2), (once.reverse(), count // 2)]},
        theorem,
        "achieved by gradients that hide the old record in some rounds and the new one in the others", visible,
    )  # fmt: skip


def fixed_batches_only(mechanism: Mechanism) -> None:
    """Refuse add-remove for samplers whose batches have fixed sizes: adding a record would move others."""
    if mechanism.relation == "add-remove":
        raise NoGuarantee(
            f"{type(mechanism.sampler).__name__} has fixed batch sizes, so adding or removing a record moves other "
            "records between batches and no add-remove analysis is sound; use relation='zero-out' or 'replace'"
        )


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
        seen = {"opposed": Round(largest_sum(hidden, 2.0 * scale, scale)), "silent": _one_of(hidden, scale, _ROUGH)}
    else:  # the others make up for the record's absence: all sums alike without it
        seen = {"opposed": _one_of(hidden, 2.0 * scale, _ROUGH)}
    return Analysis(
        fixed.uppers, each_way({name: rnd.attack() for name, rnd in seen.items()}, count),
        f"shuffling cannot hurt: {fixed.upper_by}",
        f"{why} ('how private is DP-SGD', section 4)", 1.0,
    )  # fmt: skip


@price.register
def _(sampler: BallsInBins, mechanism: Mechanism, group: Group) -> Analysis:
    """One of ``bins`` rounds at random, each epoch anew (docs/proofs.md, theorem 5; groups: docs/allocation.md)."""
    _, size = group.split(mechanism)
    if size > 1 and mechanism.relation != "replace" and not isinstance(mechanism.clipping, Mixed):
        return _sharing_bins(mechanism, size, 1, sampler.bins, sampler.epochs)
    return _allocated(mechanism, group, 1, sampler.bins, sampler.epochs)


def _sharing_bins(mechanism: Mechanism, size: int, times: int, bins: int, epochs: int) -> Analysis:
    """A group whose records may meet in a round; leaving out few rounds is joining few, where shifts add up."""
    unit, adds_up = shift_unit(mechanism), isinstance(mechanism.clipping, Individual)
    few = min(times, bins - times) if adds_up else times
    together = SharedBins(size, bins, unit, adds_up, few)
    always: Rounds = []
    if times > few:
        always = [(Round(Pair.gaussian(unit * size * math.sqrt(times - few))), epochs)]
    if few in (0, bins):
        same = always or [(Round(Pair.gaussian(together.reach)), epochs)]
        return Analysis(
            {"remove": same, "add": same}, None, "a Gaussian mechanism", "fixed gradients of full norm", 1.0
        )
    forth, near, back = (Round(pair) for pair in group_bounds(together, epochs))
    if few == 1:
        attacks = each_way({"together": Round(group_attack(together))}, epochs)
        attacks = {name: [*rounds, *always] for name, rounds in attacks.items()}
        if size > ALL_COUNTED:
            attacks = {name: rounds for name, rounds in attacks.items() if name.startswith("remove")}
        by = "the bins' scores added up (docs/allocation.md, theorem 2)"
    else:
        seen = few * (size if adds_up else 1) / math.sqrt(bins)
        added_up: Rounds = [(Round(Pair.gaussian(unit * seen)), epochs), *always]
        attacks = {"remove, added up": added_up, "add, added up": added_up}
        alone: Rounds = [(Round(Pair.gaussian(unit * math.sqrt(times - few))), epochs)] if times > few else []
        attacks |= _attacks(times, bins, unit, epochs, alone)
        by = "all outputs added up, or one record's scores (docs/allocation.md, theorem 5)"
    return Analysis(
        {"remove": [(forth, epochs), *always], "add": [(back, epochs), *always]},
        attacks,
        "records of a group that may share rounds (docs/allocation.md, theorems 2 to 5)",
        f"fixed gradients of full norm in one direction, {by}",
        1.0,
        sure=True,
        sharper={"remove": Composition([(near, epochs), *always])} if near.pair is not forth.pair else {},
        triangle=True,
    )


@price.register
def _(sampler: RandomAllocation, mechanism: Mechanism, group: Group) -> Analysis:
    """``times`` of ``steps`` rounds at random, each epoch anew (docs/proofs.md, theorems 5 and 6)."""
    if sampler.times == 1:
        return price(BallsInBins(sampler.steps, sampler.epochs), mechanism, group)
    _, size = group.split(mechanism)
    if size > 1 and mechanism.relation != "replace" and not isinstance(mechanism.clipping, Mixed):
        return _sharing_bins(mechanism, size, sampler.times, sampler.steps, sampler.epochs)
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
        blocks = [(_one_of(size, unit, group.fine, group.chained), epochs * (few - longer))]
        blocks += [(_one_of(size + 1, unit, group.fine, group.chained), epochs * longer)] if longer else []
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


def _one_of(count: int, unit: float, fine: float = FINE, chained: bool = False) -> Round:
    """One round of ``count`` shifted; where factors leave the range of doubles, the attacker is told which."""
    if chained and count > 1 and unit <= LARGEST_SHIFT:
        return Round(at_most_one_of(count, unit, fine, DEEP_TAIL))
    if count == 1:
        return Round(Pair.gaussian(unit))
    if unit > LARGEST_SHIFT:
        return Round(Pair.gaussian(unit), largest_sum(count, unit, 0.0))
    return Round(*one_of(count, unit, fine))


@price.register
def _(sampler: WithoutReplacement, mechanism: Mechanism, group: Group) -> Analysis:
    """A uniform subset each round, independently (docs/proofs.md, theorem 7)."""
    fixed_batches_only(mechanism)
    one_record_only(mechanism, group)
    rate, count = sampler.batch / sampler.population, len(sampler)
    visible = -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0
    apart = Round(Pair.subsampled(rate, 2.0 / mechanism.noise_multiplier))
    theorem = "a record takes another one's place: a shift of 2, either direction in every round (theorem 7)"
    attack = "fixed gradients of full norm, all the others' pointing the other way"
    if mechanism.relation == "zero-out" and isinstance(mechanism.clipping, Individual):
        unit = shift_unit(mechanism)
        if rate == 1.0:  # every record in every batch: fixed batches
            return Analysis({"any": [(Round(Pair.gaussian(unit)), count)]}, None, "a Gaussian mechanism", attack, 1.0)
        weights = np.array([1.0 - rate, rate])
        opposed = Table.binned((weights, np.array([0.0, 2.0 * unit])), (weights, np.array([0.0, unit])))
        attacks = each_way({"opposed": Round(opposed), "silent": Round(Pair.subsampled(rate, unit))}, count)
    elif rate == 1.0:
        return Analysis({"any": [(apart, count)]}, None, "a Gaussian mechanism", attack, 1.0)
    else:
        attacks = each_way({"opposed": apart}, count)
    if mechanism.relation == "replace":  # either record may be the one to hide, round by round
        attacks["alternate"] = [(apart, count - count // 2), (apart.reverse(), count // 2)]
    return Analysis({"replace": [(Round(apart.pair, symmetric=True), count)]}, attacks, theorem, attack, visible)


@price.register
def _(sampler: TruncatedPoisson, mechanism: Mechanism, group: Group) -> Analysis:
    """A Poisson round, unless the others alone fill the batch: then a sampled record may take another's place."""
    if mechanism.relation != "add-remove":
        raise NoGuarantee(
            f"no analysis of TruncatedPoisson under relation={mechanism.relation!r} is known; use relation='add-remove'"
        )
    one_record_only(mechanism, group)
    unit, count = shift_unit(mechanism), len(sampler)
    others = sampler.population + group.beside  # also for the neighbour that has one record more
    inside = truncated_rate(sampler.rate, sampler.max_batch, sampler.population)
    visible, shown = (-math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0 for rate in (sampler.rate, inside))
    if isinstance(mechanism.clipping, Individual):
        kinds = crowded(sampler.rate, sampler.max_batch, others)
    else:  # a clipped aggregate moves by 2 in any case
        kinds = [(1.0, sampler.rate, 1)]
    attack = "achieved by fixed gradients of full norm in one direction, all the others' being 0"
    if not isinstance(mechanism.clipping, Individual):
        attack = "achieved by an aggregate that turns around where the record is"
    pairs = tuple(Pair.subsampled(rate, unit * places) for _, rate, places in kinds)
    dominating = Revealed(tuple(chance for chance, _, _ in kinds), pairs) if len(pairs) > 1 else pairs[0]
    once = Round(dominating, Pair.subsampled(inside, unit))
    return Analysis(
        {"remove": [(once, count)], "add": [(once.reverse(), count)]}, None,
        "a Poisson round, or a shift of 2 where the batch is full without the record (docs/proofs.md, theorem 8)",
        attack, visible, shown,
    )  # fmt: skip


@price.register
def _(sampler: RandomParticipation, mechanism: Mechanism, group: Group) -> Analysis:
    """One record of a client that takes part at random (docs/random-participation.md, theorems 2 to 4)."""
    p, q, records, count = sampler.client_rate, sampler.record_rate, sampler.records, len(sampler)
    if independent(sampler):
        return price(Poisson(p * q, count), mechanism, group)
    if isinstance(mechanism.clipping, Mixed):
        raise NoGuarantee("no analysis of RandomParticipation with clip-groups is known; use Individual or Batch")
    one_record_only(mechanism, group, absent=True)
    unit = shift_unit(mechanism)
    visible = -math.expm1(count * math.log1p(-p * q))
    individual = isinstance(mechanism.clipping, Individual)
    worst = participating(p, q, records, unit, sampler.revealed) if individual else silent(p, q, unit, sampler.revealed)
    uppers = both_ways(worst, count)
    if sampler.revealed and individual:
        return Analysis(
            uppers, None, "participation known: a Poisson round or none (docs/random-participation.md, theorem 3)",
            "achieved by fixed gradients of full norm in one direction", visible,
        )  # fmt: skip
    tried = leans(records * q) if individual and unit <= LARGEST_UNIT else ()
    seen = {f"{rank}": Round(leaning(p, q, records, unit, lean)) for rank, lean in enumerate(tried)}
    seen["alone"] = Round(Pair.subsampled(p * q, unit if individual else unit / 2.0))
    why = "the others' gradients 0, or all alike and the record's at an angle (docs/random-participation.md, section 3)"
    return Analysis(
        uppers, {f"remove, {name}": [(rnd, count)] for name, rnd in seen.items()},
        "the number of other records told, their gradients in the worst directions (docs/random-participation.md, "
        "theorem 2)", why, visible, sure=True,
    )  # fmt: skip
