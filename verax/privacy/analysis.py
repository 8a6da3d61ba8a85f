"""From a run to its guarantee: price its phases, compose their rounds, handle groups and extremes.

What one sampler costs is said in ``verax.privacy.samplers``, one family a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from verax.checks import NoGuarantee
from verax.mechanism import Mechanism, Phases
from verax.privacy.curves import low_noise
from verax.privacy.curves.base import Curve
from verax.privacy.curves.black_box import BlackBox, BlackBoxCurve
from verax.privacy.curves.empty_groups import (
    account_for_empty_groups,
    declared_other_records,
    declared_population,
    with_records_of_one_client,
)
from verax.privacy.curves.exposure import NoiselessRounds
from verax.privacy.curves.low_noise import LEAST_NOISE
from verax.privacy.curves.phase_by_phase import BasicComposition, StrongestAttack
from verax.privacy.curves.refined_attack import RefinedAttack
from verax.privacy.curves.triangle import SmallestBound, TriangleInequality
from verax.privacy.guarantee import Guarantee, orthogonality_assumption
from verax.privacy.numerics.rounding import OPS_8M, up
from verax.privacy.pairs.rounds import join_attacks, join_phases
from verax.privacy.pld.composition import Composition
from verax.privacy.samplers.base import (
    Analysis,
    OneRecordOnly,
    ProtectedGroup,
    analysis_of,
    pricing,
    pricing_of,
)
from verax.privacy.strong.curve import strong_analysis

MAX_GROUP = 10**6
MOST_NOISE = 1e10
"""Noise beyond which likelihood ratios differ from 1 by less than doubles can tell."""


def analyse(phases: Phases, group: ProtectedGroup) -> Guarantee:
    """Price every phase and compose them, direction by direction."""
    for mechanism in phases.mechanisms:
        pricing(type(mechanism.sampler))  # what nobody can price is refused here
    group = replace(_with_declared_numbers(group, phases), phases=len(set(phases.mechanisms)))
    ordered = _in_canonical_order(phases)
    guarantee = replace(_analyse(ordered, group), extra_records=group.extra_records)
    exact = guarantee.uppers is guarantee.lowers
    if group.size > 1 and not exact and not low_noise.applies(phases):
        guarantee = _with_further_bounds(guarantee, group)
    guarantee = replace(guarantee, mechanism=phases, last_resort=_LastResort(ordered, group))
    if group.orthogonal and group.size > 1:
        return replace(guarantee, assuming=orthogonality_assumption(phases.relation))
    return guarantee


def _in_canonical_order(phases: Phases) -> Phases:
    """The phases in an order that does not depend on the one they are given in."""
    return Phases(tuple(sorted(phases.mechanisms, key=repr)))


def _phase_by_phase(phases: Phases) -> list[Phases]:
    """Each different phase by itself, as often as it is run."""
    counts = Counter(phases.mechanisms)
    return [Phases((mechanism,) * count) for mechanism, count in counts.items()]


def _with_declared_numbers(group: ProtectedGroup, phases: Phases) -> ProtectedGroup:
    """The group with what the phases declare, unless it is known from more phases than these."""
    population, others = group.population, group.other_records
    return replace(
        group,
        population=declared_population(phases) if population is None else population,
        other_records=declared_other_records(phases) if others is None else others,
    )


def analyse_strong(phases: Phases, group: ProtectedGroup, population: int | None) -> Guarantee:
    """The same for adversary A1, who knows in which batches the group's records are."""
    if any(0.0 < m.noise_multiplier < LEAST_NOISE for m in phases.mechanisms):
        none, more = (
            analyse_strong(_no_less_noise(phases, noise), group, population)
            for noise in (0.0, LEAST_NOISE)
        )
        return replace(more, mechanism=phases, uppers=none.uppers, upper_by=none.upper_by)
    found = strong_analysis(_in_canonical_order(phases), group.size, population, group.orthogonal)
    curves: list[Curve] = [found.curve]
    lowers = [*found.attacks] if found.failure_probability > 0.0 else curves
    assuming = (
        "the adversary A1, who is told in which rounds and clip-groups the protected records are"
    )
    if group.orthogonal and group.size > 1:
        assuming += f", and {orthogonality_assumption(phases.relation)}"
    return Guarantee(
        phases, group.size, curves, lowers, found.upper_by, found.lower_by, assuming=assuming
    )


def _with_further_bounds(guarantee: Guarantee, group: ProtectedGroup) -> Guarantee:
    """The guarantee with two more upper bounds; which is the smallest depends on the question.

    One record's curve says something of the group, and telling the attacker where the group's
    records fell cannot help the defender.
    """
    others: dict[str, Curve] = {}
    if not all(isinstance(curve, BlackBoxCurve) for curve in guarantee.uppers):
        steps, theorem = _record_by_record(guarantee.mechanism, group)
        others[theorem] = steps
    if any(0.0 < m.noise_multiplier < LEAST_NOISE for m in guarantee.mechanism.mechanisms):
        return guarantee  # nothing is finite there
    with suppress(NoGuarantee):
        told = strong_analysis(guarantee.mechanism, group.size, None, group.orthogonal)
        others[told.upper_by] = told.curve
    if not others:
        return guarantee
    names = (guarantee.upper_by, *others)
    uppers = [SmallestBound((curve, *others.values()), names) for curve in guarantee.uppers]
    return replace(guarantee, uppers=uppers, upper_by=f"the smallest of: {'; and '.join(names)}")


@dataclass(frozen=True)
class _LastResort:
    """Bounds for where all others are infinite; each of their curves holds in every direction."""

    phases: Phases
    group: ProtectedGroup

    def bounds(self) -> Iterator[tuple[list[Curve], str]]:
        """The sampling told to the attacker; and the phases' own bounds added up."""
        if all(m.noise_multiplier >= LEAST_NOISE for m in self.phases.mechanisms):
            with suppress(NoGuarantee):
                uppers, _, theorem, _ = low_noise.bounds(_no_more_noise(self.phases), self.group)
                yield uppers, theorem.removeprefix("almost no noise, so ")
        phases = _phase_by_phase(self.phases)
        if len(phases) > 1:
            alone = tuple(_epsilons_of(analyse(phase, self.group)) for phase in phases)
            theorem = "epsilons and deltas of the phases added up (basic composition)"
            yield [BasicComposition(alone)], theorem


def _epsilons_of(guarantee: Guarantee) -> Callable[[float], float]:
    return lambda delta: guarantee.epsilon(delta).upper


def _record_by_record(phases: Phases, group: ProtectedGroup) -> tuple[BlackBoxCurve, str]:
    """The triangle inequality, from one record to the group, and its name."""
    one = analyse(phases, replace(_one_record(group), for_triangle=True))
    how = (
        f"black box: {group.size} steps by the triangle inequality with the best shares of epsilon"
    )
    return BlackBoxCurve(
        BlackBox(one), group.size
    ), f"{how} (docs/proofs.md, lemma 5), each: {one.upper_by}"


def _one_record(group: ProtectedGroup) -> ProtectedGroup:
    """Any record of the group, the others of which may be there or not."""
    return ProtectedGroup(
        extra_records=group.extra_records + group.size - 1,
        population=group.population,
        other_records=group.other_records,
    )


def _analyse(phases: Phases, group: ProtectedGroup) -> Guarantee:
    if group.size > MAX_GROUP:
        raise ValueError(f"group must be at most {MAX_GROUP}, got {group.size}")
    for m in phases.mechanisms:
        pricing_of(m.sampler).refuse_larger_group(group.size)
    if any(m.noise_multiplier == 0.0 for m in phases.mechanisms):
        return _noiseless(phases, group)
    if any(m.noise_multiplier < LEAST_NOISE for m in phases.mechanisms):
        return _no_weaker_than_a_phase(_hardly_any_noise(phases, group), group)
    if any(
        m.noise_multiplier > MOST_NOISE and not pricing_of(m.sampler).closed_form
        for m in phases.mechanisms
    ):
        return _no_weaker_than_a_phase(_hardly_any_signal(phases, group), group)
    try:
        composed = _compose_phases(phases, group)
    except OneRecordOnly as limit:
        found = _by_triangle_inequality(phases, group, limit.absent)
        return _no_weaker_than_a_phase(found, group)
    found = _with_declared_records(composed, group)
    if low_noise.applies(phases) or found.lowers is not composed.lowers:
        return _no_weaker_than_a_phase(found, group)
    return found


def _with_declared_records(found: Guarantee, group: ProtectedGroup) -> Guarantee:
    """The guarantee with the lower bounds that the declared numbers of records allow."""
    phases = found.mechanism
    attacked = with_records_of_one_client(phases, group.other_records)
    if attacked != phases:
        found = replace(found, mechanism=attacked, lowers=_compose_phases(attacked, group).lowers)
    size = group.size + group.extra_records
    found = account_for_empty_groups(
        found, size, group.population, lambda quiet: _compose_phases(quiet, group).lowers
    )
    return replace(found, mechanism=phases)


def _no_weaker_than_a_phase(found: Guarantee, group: ProtectedGroup) -> Guarantee:
    """The guarantee with attacks on single phases, where one on all of them may be weaker."""
    phases = _phase_by_phase(found.mechanism)
    if len(phases) == 1 or group.for_triangle or found.uppers is found.lowers:
        return found
    alone = [curve for phase in phases for curve in _analyse(phase, group).lowers]
    return replace(found, lowers=[StrongestAttack((*found.lowers, *alone))])


def _hardly_any_noise(phases: Phases, group: ProtectedGroup) -> Guarantee:
    """Noise whose square leaves doubles: none from above, more of it from below."""
    none, more = (_analyse(_no_less_noise(phases, noise), group) for noise in (0.0, LEAST_NOISE))
    below = f"less noise than {LEAST_NOISE:g} shows no less: {more.lower_by}"
    return replace(
        more, mechanism=phases, uppers=none.uppers, upper_by=none.upper_by, lower_by=below
    )


def _no_less_noise(phases: Phases, noise: float) -> Phases:
    """The phases with this noise in place of noise whose square leaves doubles."""
    changed = (
        replace(m, noise_multiplier=noise) if m.noise_multiplier < LEAST_NOISE else m
        for m in phases.mechanisms
    )
    return Phases(tuple(changed))


def _no_more_noise(phases: Phases) -> Phases:
    """The phases with noise whose square is a double, and that still shows in likelihood ratios."""
    return Phases(
        tuple(
            replace(m, noise_multiplier=min(m.noise_multiplier, MOST_NOISE))
            for m in phases.mechanisms
        )
    )


def _hardly_any_signal(phases: Phases, group: ProtectedGroup) -> Guarantee:
    """Noise so large that likelihood ratios round to 1.

    Less of it is priced from above, nothing is known from below.
    """
    found = _analyse(_no_more_noise(phases), group)
    above = f"more noise than {MOST_NOISE:g} shows no more: {found.upper_by}"
    below = "nothing can be told from so much noise"
    return replace(found, mechanism=phases, lowers=[], upper_by=above, lower_by=below)


def _low_noise_guarantee(phases: Phases, group: ProtectedGroup) -> Guarantee:
    # what is refused is so at any noise
    parts = [_analysis_of_some(replace(m, noise_multiplier=1.0), group) for m in phases.mechanisms]
    exposure = min(up(math.fsum(size * part.exposure for part, size in parts), OPS_8M), 1.0)
    return Guarantee(phases, group.size, *low_noise.bounds(phases, group), exposure)


def _analysis_of_some(mechanism: Mechanism, group: ProtectedGroup) -> tuple[Analysis, int]:
    """The analysis of the group, or that of one record's absence, and how many such there are."""
    try:
        return analysis_of(mechanism, group), 1
    except OneRecordOnly:
        alone = (
            replace(mechanism, relation="zero-out")
            if mechanism.relation == "replace"
            else mechanism
        )
        return analysis_of(alone, ProtectedGroup()), group.size


def _compose_phases(phases: Phases, group: ProtectedGroup) -> Guarantee:
    if low_noise.applies(phases):
        return _low_noise_guarantee(phases, group)
    analyses = {m: analysis_of(m, group) for m in dict.fromkeys(phases.mechanisms)}
    parts = [analyses[m] for m in phases.mechanisms]
    upper_by = "; ".join(dict.fromkeys(part.upper_by for part in parts))
    lower_by = "; ".join(dict.fromkeys(part.lower_by for part in parts))
    exposure = min(up(math.fsum(part.exposure for part in parts), OPS_8M), 1.0)
    uppers: list[Curve] = [
        Composition(rounds) for rounds in join_phases([part.uppers for part in parts])
    ]
    if len(parts) == 1 and (extra_uppers := parts[0].extra_uppers):
        named = zip(parts[0].uppers, uppers, strict=True)
        uppers = [
            SmallestBound((curve, extra_uppers[name])) if name in extra_uppers else curve
            for name, curve in named
        ]
    if all(part.lowers is None for part in parts):
        return Guarantee(phases, group.size, uppers, uppers, upper_by, lower_by, exposure)
    attacks = join_attacks([p.uppers if p.lowers is None else p.lowers for p in parts])
    attack = RefinedAttack if any(part.refine_attacks for part in parts) else Composition
    lowers: list[Curve] = [attack(rounds) for rounds in attacks]
    return Guarantee(phases, group.size, uppers, lowers, upper_by, lower_by, exposure)


def _noiseless(phases: Phases, group: ProtectedGroup) -> Guarantee:
    """Phases without noise show whomever they sample; the others are priced as usual."""
    bare = [
        replace(m, noise_multiplier=1.0) for m in phases.mechanisms if m.noise_multiplier == 0.0
    ]
    most, least = 0.0, 0.0  # logarithms of the probability of staying unseen
    for m in bare:
        part, size = _analysis_of_some(m, group)
        most += _log_complement(min(size * part.exposure, 1.0))
        least += _log_complement(
            part.exposure if part.least_exposure is None else part.least_exposure
        )
    noisy = tuple(m for m in phases.mechanisms if m.noise_multiplier > 0.0)
    rest = analyse(Phases(noisy), group) if noisy else None
    uppers, lowers = ([*rest.uppers], [*rest.lowers]) if rest else ([None], [None])
    return Guarantee(
        phases,
        group.size,
        [NoiselessRounds(-math.expm1(most), curve) for curve in uppers],
        [NoiselessRounds(-math.expm1(least), curve) for curve in lowers],
        "; ".join(["no noise: whoever is sampled is exposed"] + ([rest.upper_by] if rest else [])),
        "; ".join(["no noise: read it off"] + ([rest.lower_by] if rest else [])),
    )


def _log_complement(exposure: float) -> float:
    return math.log1p(-exposure) if exposure < 1.0 else -math.inf


def _by_triangle_inequality(phases: Phases, group: ProtectedGroup, absent: bool) -> Guarantee:
    """The triangle inequality, from one record to a group or over its absence to a replacement."""
    size = group.size
    if absent:
        present = Phases(tuple(replace(m, relation="zero-out") for m in phases.mechanisms))
        one = analyse(present, _one_record(group))
        chain = TriangleInequality(((one.uppers[0], size), (one.uppers[-1], size)))
        curve: Curve = SmallestBound((chain, BlackBoxCurve(BlackBox(one), 2 * size)))
        how = f"black box: {size} removed and {size} added by the triangle inequality"
        how += " with the best shares of epsilon"
        upper_by = f"{how} (docs/proofs.md, lemma 5), each: {one.upper_by}"
    else:
        shared, upper_by = _record_by_record(phases, group)
        curve, one = (
            shared,
            analyse(phases, _one_record(group)),
        )
    exposure = min(up(size * one.exposure, OPS_8M), 1.0)
    return Guarantee(
        phases, size, [curve], one.lowers, upper_by, f"one record alone: {one.lower_by}", exposure
    )
