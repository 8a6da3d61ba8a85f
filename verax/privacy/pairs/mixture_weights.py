"""Weights of Gaussian mixtures: how many records or clip-groups of a group a round touches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_at_least, binomial_at_most
from verax.privacy.numerics.rounding import down, mixture_weight_error, ulps
from verax.privacy.pairs.gaussian_mixture import Mixture, MixturePair
from verax.privacy.pairs.rounds import PricedRound

_FEW = 64  # components that are never worth rounding
_NEGLIGIBLE = 1e-60  # total weight that may be rounded away, to the safe side on either bound


def distinct_groups(trials: int, rate: float, groups: int) -> Array:
    """Pmf of the number of distinct clip-groups hit if sampled records pick one uniformly."""
    most = min(trials, groups)
    pmf = np.zeros(most + 1)
    pmf[0] = 1.0
    hit = np.arange(most + 1.0)
    grow, stay = rate * (groups - hit) / groups, (1.0 - rate) + rate * hit / groups
    for _ in range(trials):
        moved = pmf * grow
        pmf *= stay
        pmf[1:] += moved[:-1]
    return pmf


def truncated_rate(rate: float, max_batch: int, population: int) -> float:
    """The probability that a record is in a Poisson batch cut to ``max_batch``, rounded down.

    The mean size E min(X, B) of a batch, X ~ Bin(n, q), over n: q P[Bin(n-1, q) < B] + B/n P[X >
    B].
    """
    if max_batch >= population:
        return rate
    if rate >= 1.0:
        return max_batch / population
    room = binomial_at_most(population - 1, rate, max_batch - 1).lower
    full = binomial_at_least(population, rate, max_batch + 1).lower
    return down(rate * room + max_batch / population * full, ulps(4.0))


def truncated_round_cases(
    rate: float, max_batch: int, others: int
) -> list[tuple[float, float, int]]:
    """Rounds with room in the batch and without: their chance, the record's rate, its shift.

    With room its rate is ``rate`` and its shift 1. If N >= B others are there it is in with
    probability rate * B / (N + 1) and takes the place of another, a shift of 2. That rate is
    rounded up to ``rate``, so that the crowded round is the worse one and the bound also holds
    where there are fewer others: with B / (N + 1) it would not, as truncation may hide the record
    more than it helps to find it. So the chance of a crowd may be rounded up too.
    """
    if max_batch > others:
        return [(1.0, rate, 1)]
    crowd = binomial_at_least(others, rate, max_batch).upper
    kinds = [(1.0 - crowd, rate, 1), (crowd, rate, 2)]
    return [kind for kind in kinds if kind[0] > 0.0]


def mixture_round(
    weights: Array, shifts: Array, trials: int, two_sided: bool = False
) -> PricedRound:
    """The mixture against N(0), or its mirror image; negligible components go to the safe side.

    D_a rises in every shift (lemma 14 and proposition 17 of "optimal group privacy"), so for the
    upper bound rare small shifts are raised and rare large ones sent to infinity, for the lower
    bound rare large shifts are lowered and small ones set to 0.
    """
    if trials == 1 and len(weights) == 2:
        rate, shift = float(weights[1]), float(shifts[1])
        side = replace(MixturePair.subsampled(rate, shift).up, error=ulps(4.0))
        return PricedRound(MixturePair(side, side) if two_sided else MixturePair(side))
    kept = int(np.count_nonzero(weights > _NEGLIGIBLE))
    error = mixture_weight_error(kept, trials)
    below, above = np.cumsum(weights), np.cumsum(weights[::-1])[::-1]
    first = int(np.searchsorted(below, _NEGLIGIBLE))
    last = len(weights) - 1 - int(np.searchsorted(above[::-1], _NEGLIGIBLE))
    last = max(last, first + 1)
    if len(weights) <= _FEW or (first == 0 and last >= len(weights) - 1):
        side = _mixture(weights, shifts, 0.0, error)
        return PricedRound(MixturePair(side, side) if two_sided else MixturePair(side))
    raised, lowered = weights[first : last + 1].copy(), weights[first : last + 1].copy()
    lost = float(weights[last + 1 :].sum())
    head = float(weights[:first].sum())
    raised[0] += head
    lowered[-1] += lost
    upper = _mixture(raised, shifts[first : last + 1], lost, error)
    low_shifts = shifts[first : last + 1]
    if head > 0.0 and low_shifts[0] > 0.0:
        lowered, low_shifts = np.concatenate([[head], lowered]), np.concatenate([[0.0], low_shifts])
    lower = _mixture(lowered, low_shifts, 0.0, error)
    if two_sided:
        return PricedRound(MixturePair(upper, upper), MixturePair(lower, lower))
    return PricedRound(MixturePair(upper), MixturePair(lower))


def _mixture(weights: Array, shifts: Array, lost: float, error: float) -> Mixture:
    keep = weights > 0.0
    weights, shifts = weights[keep], shifts[keep]
    logs = np.log(weights)
    if shifts[0] == 0.0 and weights[0] > 0.5:  # 1 minus the rest keeps more digits
        logs[0] = math.log1p(-float(weights[1:].sum()) - lost)
    return Mixture(tuple(logs.tolist()), tuple(shifts.tolist()), lost, error)
