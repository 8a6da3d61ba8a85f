"""Poisson batches cut to a largest size."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from verax.checks import NoGuarantee
from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.empty_groups import none_joins
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import (
    binomial_at_least,
    binomial_at_most,
    binomial_pmf,
    pmf_error,
)
from verax.privacy.numerics.lattice import CELLS, LatticePmf
from verax.privacy.numerics.rounding import ulps, up
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.mixture_weights import truncated_rate, truncated_round_cases
from verax.privacy.pairs.public_coin import PublicCoinPair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.samplers.base import (
    Analysis,
    ProtectedGroup,
    SamplerPricing,
    no_strong_analysis_error,
    presence_shift,
    prices,
    require_one_record,
)
from verax.privacy.strong.displacement import (
    Displacement,
    PmfInCells,
    a1_displacement,
    displacement_of_batches,
)
from verax.samplers.poisson import Poisson
from verax.samplers.truncated_poisson import TruncatedPoisson


@prices(TruncatedPoisson)
class TruncatedPoissonPricing(SamplerPricing[TruncatedPoisson]):
    """A Poisson round, cut to a largest batch."""

    slow_bound, slow_attack, slow_groups = False, False, True

    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """A Poisson round, unless the others alone fill the batch.

        Then a sampled record may take another's place.
        """
        sampler = self.sampler
        if mechanism.relation != "add-remove":
            raise NoGuarantee(
                f"no analysis of TruncatedPoisson under relation={mechanism.relation!r} is known; "
                "use relation='add-remove'"
            )
        require_one_record(mechanism, group)
        unit, count = presence_shift(mechanism), len(sampler)
        # also for the neighbour that has one record more
        others = sampler.population + group.extra_records
        inside = truncated_rate(sampler.rate, sampler.max_batch, sampler.population)
        exposure, least_exposure = (
            -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0
            for rate in (sampler.rate, inside)
        )
        if isinstance(mechanism.clipping, Individual):
            kinds = truncated_round_cases(sampler.rate, sampler.max_batch, others)
        else:  # a clipped aggregate moves by 2 in any case
            kinds = [(1.0, sampler.rate, 1)]
        attack = (
            "achieved by fixed gradients of full norm in one direction, all the others' being 0"
        )
        if not isinstance(mechanism.clipping, Individual):
            attack = "achieved by an aggregate that turns around where the record is"
        pairs = tuple(MixturePair.subsampled(rate, unit * places) for _, rate, places in kinds)
        dominating = (
            PublicCoinPair(tuple(chance for chance, _, _ in kinds), pairs)
            if len(pairs) > 1
            else pairs[0]
        )
        once = PricedRound(dominating, MixturePair.subsampled(inside, unit))
        return Analysis(
            {"remove": [(once, count)], "add": [(once.reverse(), count)]},
            None,
            "a Poisson round, or a shift of 2 where the batch is full without "
            "the record (docs/proofs.md, theorem 8)",
            attack,
            exposure,
            least_exposure,
        )

    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        """From above its coins and whether there is room for all; from below the likelier attack.

        That is on the whole group where there is room, or on one record of it.
        """
        sampler = self.sampler
        inside = truncated_rate(sampler.rate, sampler.max_batch, sampler.population)
        alone = displacement_of_batches(
            replace(mechanism, sampler=Poisson(inside, len(sampler))), ProtectedGroup()
        )
        if isinstance(mechanism.clipping, Individual):
            alone = replace(alone, upper=_squared_moves_from_above(sampler, mechanism, group))
            together = _squared_moves_from_below(sampler, mechanism, group)
            if group.size == 1 or together(CELLS).mean < alone.lower(CELLS).mean:
                return alone
            return replace(alone, lower=together, entries=len(sampler) * group.size)
        # an aggregate moves by 2 in any case
        free = replace(mechanism, sampler=Poisson(sampler.rate, len(sampler)))
        return replace(alone, upper=a1_displacement(free, group))

    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        raise no_strong_analysis_error(self.sampler)

    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        others, most = max(population - group, 0), self.sampler.max_batch
        room = max(most - group, 0)  # the group takes at most its own number of places
        alone = none_joins(self.sampler.rate / clip_groups, others) + none_joins(
            1.0 / clip_groups, room
        )
        return clip_groups * alone

    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        rate, most = self.sampler.rate, self.sampler.max_batch
        absent, sizes = (
            _truncate_pmf(binomial_pmf(count, rate), most) for count in (population - 1, population)
        )
        inside = sizes[1:] * np.arange(1.0, len(sizes)) / population
        return absent, sizes * (1.0 - np.arange(float(len(sizes))) / population), inside


def _squared_moves_from_above(
    sampler: TruncatedPoisson, mechanism: Mechanism, group: ProtectedGroup
) -> PmfInCells:
    """The group's squared moves from above (docs/proofs.md, theorem 8).

    With room for the whole group its j sampled records move the sum by j at most, else by 2j.
    """
    room = sampler.max_batch - group.size
    crowd = binomial_at_least(
        sampler.population + group.extra_records, sampler.rate, room + 1
    ).upper
    hits = binomial_pmf(group.size, sampler.rate)
    j = np.minimum(np.arange(float(len(hits))), float(sampler.max_batch))
    if group.orthogonal:  # but those whose places they take need not be
        joined, taken = j, np.ceil(up((np.sqrt(j) + j) ** 2, ulps(8.0)))
    else:
        joined, taken = j**2, 4.0 * j**2
    squares, chances = (
        np.concatenate([joined, taken]),
        np.concatenate([(1.0 - crowd) * hits, crowd * hits]),
    )
    possible = np.concatenate([np.full(len(j), crowd < 1.0), np.full(len(j), crowd > 0.0)])
    order = np.argsort(squares, kind="stable")
    order = order[possible[order]]
    return _sum_of_rounds(mechanism, squares[order], chances[order], pmf_error(hits))


def _squared_moves_from_below(
    sampler: TruncatedPoisson, mechanism: Mechanism, group: ProtectedGroup
) -> PmfInCells:
    """The group's hits in rounds with room for all of it (docs/proofs.md, theorem 12).

    Nothing in the other rounds.
    """
    others, room = sampler.population - group.size, sampler.max_batch - group.size
    free = binomial_at_most(others, sampler.rate, room).lower
    hits = binomial_pmf(group.size, sampler.rate)
    chances = free * hits
    chances[0] += 1.0 - free
    squares = np.arange(float(len(hits))) ** (1 if group.orthogonal else 2)
    return _sum_of_rounds(mechanism, squares, chances, pmf_error(hits))


def _sum_of_rounds(
    mechanism: Mechanism, squares: Array, chances: Array, error: float
) -> PmfInCells:
    """The pmf of the sum over all rounds of squared moves with these chances in each."""

    def pmf(cells: int) -> LatticePmf:
        once = LatticePmf.of(squares, chances, error + ulps(8.0), cells)
        rounds = once.times(len(mechanism.sampler), cells)
        return rounds.scaled(presence_shift(mechanism) ** 2)

    return pmf


def _truncate_pmf(pmf: Array, most: int) -> Array:
    """Larger numbers are lowered to ``most``."""
    return np.append(pmf[:most], pmf[most:].sum()) if len(pmf) > most + 1 else pmf
