"""From a mechanism to its guarantee: one registered function per sampler.

To price a new sampler, register a function here that returns an :class:`Analysis`. Its ``uppers`` map each direction
of the neighbouring relation to the rounds whose composition dominates the mechanism; its ``lowers`` do the same for
explicit attacks, and are None where the dominating rounds are achieved exactly. Name the theorem on each side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from verax.checks import NoGuarantee
from verax.mechanism import Batch, Individual, Mechanism, Mixed, Phases
from verax.privacy.composition import Composition, Round
from verax.privacy.curve import Curve
from verax.privacy.events import LargestBatch
from verax.privacy.guarantee import Guarantee
from verax.privacy.mixtures import binomial, distinct_groups, mixture_round
from verax.privacy.noiseless import Noiseless
from verax.privacy.pairs import Pair
from verax.samplers.base import Sampler
from verax.samplers.deterministic import Deterministic
from verax.samplers.poisson import Poisson
from verax.samplers.shuffle import Shuffle

Rounds = Sequence[tuple[Round, int]]
MAX_GROUP = 10**6


@dataclass(frozen=True)
class Analysis:
    """Dominating rounds per direction, attacks per name (None: the dominating rounds themselves), and the theorems."""

    uppers: Mapping[str, Rounds]
    lowers: Mapping[str, Rounds] | None
    upper_by: str
    lower_by: str
    visible: float
    """Probability that without noise an attacker would see the group at all."""
    tests: tuple[Curve, ...] = ()
    """Further lower bounds on this phase alone, by explicit tests; releasing more phases cannot undo them."""


@singledispatch
def price(sampler: Sampler, mechanism: Mechanism, group: int) -> Analysis:
    """The analysis of one mechanism, chosen by the class of its sampler."""
    raise NoGuarantee(
        f"no privacy analysis is known for {type(sampler).__name__}; register one in verax.privacy.analysis"
    )


def analyse(phases: Phases, group: int) -> Guarantee:
    """Price every phase and compose them, direction by direction."""
    if group > MAX_GROUP:
        raise ValueError(f"group must be at most {MAX_GROUP}, got {group}")
    parts = [price(m.sampler, m, group) for m in phases.mechanisms]
    upper_by = "; ".join(dict.fromkeys(part.upper_by for part in parts))
    lower_by = "; ".join(dict.fromkeys(part.lower_by for part in parts))
    if any(m.noise_multiplier == 0.0 for m in phases.mechanisms):
        bare = [p.visible for p, m in zip(parts, phases.mechanisms, strict=True) if m.noise_multiplier == 0.0]
        seen = -math.expm1(math.fsum(math.log1p(-visible) if visible < 1.0 else -math.inf for visible in bare))
        noisy = tuple(m for m in phases.mechanisms if m.noise_multiplier > 0.0)
        rest = analyse(Phases(noisy), group) if noisy else None
        above, below = "no noise: whoever is sampled is exposed", "no noise: read it off"
        if rest is None:
            alone: list[Curve] = [Noiseless(seen)]
            return Guarantee(phases, group, alone, alone, above, below)
        return Guarantee(
            phases,
            group,
            [Noiseless(seen, curve) for curve in rest.uppers],
            [Noiseless(seen, curve) for curve in rest.lowers],
            f"{above}; {rest.upper_by}",
            f"{below}; {rest.lower_by}",
        )
    visible = min(math.fsum(part.visible for part in parts) * (1.0 + 1e-9), 1.0)
    uppers: list[Curve] = [Composition(rounds) for rounds in _join([part.uppers for part in parts])]
    tests = [test for part in parts for test in part.tests]
    if all(part.lowers is None for part in parts) and not tests:
        return Guarantee(phases, group, uppers, uppers, upper_by, lower_by, visible)
    attacks = _join([p.uppers if p.lowers is None else p.lowers for p in parts])
    lowers: list[Curve] = [*tests, *(Composition(rounds) for rounds in attacks if rounds)]
    return Guarantee(phases, group, uppers, lowers, upper_by, lower_by, visible)


def _join(phases: Sequence[Mapping[str, Rounds]]) -> list[Rounds]:
    """Concatenate the phases' rounds direction by direction; a phase that has only one goes with every direction."""
    names = [n for n in max(phases, key=len) if all(n in phase or len(phase) == 1 for phase in phases)]
    return [[item for phase in phases for item in phase.get(n, next(iter(phase.values())))] for n in names]


def shift_unit(mechanism: Mechanism) -> float:
    """How far one sampled record can move the noisy sum, in standard deviations of the noise."""
    return (1.0 if isinstance(mechanism.clipping, Individual) else 2.0) / (mechanism.noise_multiplier or math.inf)


@price.register
def _(sampler: Poisson, mechanism: Mechanism, group: int) -> Analysis:
    """Every round is an independent draw, so the pairs of docs/proofs.md, section 1, compose round by round."""
    unit, count = shift_unit(mechanism), len(sampler)
    visible = -math.expm1(count * group * math.log1p(-sampler.rate)) if sampler.rate < 1 else 1.0
    clipping, replaced = mechanism.clipping, mechanism.relation == "replace"
    match clipping:
        case Individual():
            weights = binomial(group, sampler.rate)
            theorem = "theorem 18 of 'optimal group privacy': a Binomial mixture of shifts against none"
        case Batch():
            weights = binomial(1, -math.expm1(group * math.log1p(-sampler.rate)) if sampler.rate < 1 else 1.0)
            theorem = "batch clipping: a shift of 2 if any of the group is sampled (docs/proofs.md, theorem 2)"
        case Mixed():
            weights = distinct_groups(group, sampler.rate, clipping.groups)
            theorem = "mixed clipping: a shift of 2 per clip-group touched (docs/proofs.md, theorem 2)"
    shifts = unit * np.arange(len(weights), dtype=float)
    if replaced and isinstance(clipping, Individual):
        return Analysis(
            {"replace": [(mixture_round(weights, shifts, group, two_sided=True), count)]}, None,
            "opposite-sided mixtures (docs/proofs.md, theorem 1)",
            "achieved by gradients that point in opposite directions", visible,
        )  # fmt: skip
    once = mixture_round(weights, shifts, group)
    directions = {"remove": [(once, count)], "add": [(once.reverse(), count)]}
    attack = "achieved by fixed gradients of full norm in one direction"
    if not replaced:
        return Analysis(directions, None, theorem, attack, visible)
    if once.pair.is_gaussian:
        return Analysis({"replace": [(once, count)]}, None, theorem, attack, visible)
    if once.pair.up.two_point:
        dominating = Round(once.pair, symmetric=True)
        theorem += ", either direction in every round (theorem 3)"
    else:
        dominating = mixture_round(weights, shifts, group, two_sided=True)
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
def _(sampler: Deterministic, mechanism: Mechanism, group: int) -> Analysis:
    """One Gaussian mechanism, with the group wherever it hurts most (docs/proofs.md, theorem 4)."""
    fixed_batches_only(mechanism)
    unit, epochs, batches = shift_unit(mechanism), sampler.epochs, int(sampler.batches)
    match mechanism.clipping:
        case Individual():
            squared = float(group) ** 2 * (4.0 if mechanism.relation == "replace" else 1.0)
        case Batch():
            squared = float(min(group, batches))
        case Mixed(groups=clip_groups):
            full, rest = divmod(min(group, clip_groups * batches), clip_groups)
            squared = float(full * clip_groups**2 + rest**2)
    worst = Round(Pair.gaussian(unit * math.sqrt(squared)))
    theorem = (
        "a Gaussian mechanism, with the group's records where they shift the sums most (docs/proofs.md, theorem 4)"
    )
    if isinstance(mechanism.clipping, Mixed) and group > 1:
        return Analysis({"any": [(worst, epochs)]}, {"any": [(Round(Pair.gaussian(unit)), epochs)]}, theorem,
                        "one record of the group alone", 1.0)  # fmt: skip
    return Analysis({"any": [(worst, epochs)]}, None, theorem, "achieved by fixed gradients of full norm", 1.0)


@price.register
def _(sampler: Shuffle, mechanism: Mechanism, group: int) -> Analysis:
    """Proved from above by fixed batches (docs/proofs.md, theorem 4), from below by the largest batch sum."""
    fixed_batches_only(mechanism)
    batches, epochs = int(sampler.batches), sampler.epochs
    fixed = price(Deterministic(batches, epochs), mechanism, group)
    scale = (1.0 if sampler.reshuffle else math.sqrt(epochs)) / (mechanism.noise_multiplier or math.inf)
    known = isinstance(mechanism.clipping, Individual) and mechanism.relation == "zero-out"
    test = LargestBatch(batches, 2.0 * scale, scale if known else 0.0)
    span = "over all epochs" if not sampler.reshuffle else "in one epoch"
    return Analysis(
        fixed.uppers, {name: [] for name in fixed.uppers},
        f"shuffling cannot hurt: {fixed.upper_by}",
        f"one record's largest batch sum {span} ('how private is DP-SGD', section 4)", 1.0, (test,),
    )  # fmt: skip
