"""Poisson sampling: every round an independent draw."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.curves.empty_groups import none_joins
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_pmf
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.numerics.rounding import OPS_8000, up
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.mixture_weights import distinct_groups, mixture_round
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    presence_shift,
    prices,
)
from verax.privacy.strong.curve import independent_batches
from verax.privacy.strong.displacement import Displacement, a1_displacement, displacement_of_batches
from verax.samplers.base import Sampler
from verax.samplers.poisson import Poisson
from verax.samplers.random_participation import RandomParticipation


@prices(Poisson)
class PoissonPricing(SamplerPricing[Poisson]):
    """Every round is an independent draw of independent records."""

    slow_bound, slow_attack, slow_groups = False, False, False

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """Every round is an independent draw: the pairs of docs/proofs.md, section 1, composed."""
        sampler = self.sampler
        copies, size = group.split(mechanism)
        unit, count = presence_shift(mechanism), len(sampler) * copies
        exposure = (
            -math.expm1(count * size * math.log1p(-sampler.rate)) if sampler.rate < 1 else 1.0
        )
        clipping, replaced = mechanism.clipping, mechanism.relation == "replace"
        match clipping:
            case Individual():
                weights = binomial_pmf(size, sampler.rate)
                theorem = (
                    "theorem 18 of 'optimal group privacy': a Binomial mixture of "
                    "shifts against none"
                )
                theorem = (
                    "orthogonal records are seen apart (docs/proofs.md, theorem 9)"
                    if copies > 1
                    else theorem
                )
            case Batch():
                weights = binomial_pmf(
                    1, -math.expm1(size * math.log1p(-sampler.rate)) if sampler.rate < 1 else 1.0
                )
                theorem = (
                    "batch clipping: a shift of 2 if any of the group is sampled "
                    "(docs/proofs.md, theorem 2)"
                )
            case Mixed():
                weights = distinct_groups(size, sampler.rate, clipping.groups)
                theorem = (
                    "mixed clipping: a shift of 2 per clip-group touched "
                    "(docs/proofs.md, theorem 2)"
                )
        shifts = unit * np.arange(len(weights), dtype=float)
        if replaced and isinstance(clipping, Individual):
            return Analysis(
                {"replace": [(mixture_round(weights, shifts, size, two_sided=True), count)]},
                None,
                "opposite-sided mixtures (docs/proofs.md, theorem 1)",
                "achieved by gradients that point in opposite directions",
                exposure,
            )
        once = mixture_round(weights, shifts, size)
        directions = {"remove": [(once, count)], "add": [(once.reverse(), count)]}
        attack = "achieved by fixed gradients of full norm in one direction"
        if not replaced:
            return Analysis(directions, None, theorem, attack, exposure)
        if once.pair.is_gaussian:
            return Analysis({"replace": [(once, count)]}, None, theorem, attack, exposure)
        if isinstance(once.pair, MixturePair) and once.pair.up.two_point:
            dominating = PricedRound(once.pair, symmetric=True)
            theorem += ", either direction in every round (theorem 3)"
        else:
            dominating = mixture_round(weights, shifts, size, two_sided=True)
            theorem += ", on opposite sides (theorem 1)"
        return Analysis(
            {"replace": [(dominating, count)]},
            {**directions, "alternate": [(once, count - count // 2), (once.reverse(), count // 2)]},
            theorem,
            "achieved by gradients that hide the old record in some rounds and "
            "the new one in the others",
            exposure,
        )

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        """As adversary A1 sees them; under replacement also in two steps."""
        sampler = self.sampler
        return displacement_in_two_steps(
            displacement_of_batches(mechanism, group), mechanism, group, sampler.rate
        )

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        sampler = self.sampler
        return independent_batches(binomial_pmf(group.size, sampler.rate), mechanism, group)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        return clip_groups * none_joins(self.sampler.rate / clip_groups, max(population - group, 0))

    def known_participation(self) -> Sampler:
        return RandomParticipation(self.sampler.rate, 1.0, 0, len(self.sampler), revealed=True)

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        return None


def displacement_in_two_steps(
    found: Displacement, mechanism: Mechanism, group: ProtectedGroup, rate: float
) -> Displacement:
    """Replacement as removal and addition.

    Whatever else is known, a record's own coin hits with ``rate`` at most.

    Then the run with the group is the run without it with probability (1 - rate)^(records times
    rounds) at least, so no loss of the second step exceeds the logarithm of its inverse
    (docs/proofs.md, theorem 12).
    """
    if (
        mechanism.relation != "replace"
        or not isinstance(mechanism.clipping, Individual)
        or rate >= 1.0
    ):
        return found
    removal = a1_displacement(replace(mechanism, relation="add-remove"), group)
    absence = up(-group.size * len(mechanism.sampler) * math.log1p(-rate), OPS_8000)
    return replace(found, removal=removal, absence_loss=absence)
