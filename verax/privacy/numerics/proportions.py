"""Clopper and Pearson's limits of a proportion, checked against enclosed binomial tails.

A library's inverse of the incomplete beta function says where to look. What is returned was seen to
be a limit.
"""

from __future__ import annotations

from scipy import special

from verax.privacy.numerics.distributions import binomial_at_least, binomial_at_most
from verax.privacy.numerics.roots import last_whole

_MARGIN = 1e-9  # relative; how far from the library's value the first limit tried is
_WIDER = 4.0  # times as far each further one


def proportion_at_least(hits: int, trials: int, miss: float) -> float:
    """A limit with P[Bin(trials, limit) >= hits] <= miss: too high with that probability at most.

    >>> round(proportion_at_least(10, 10, 0.05), 4)  # 0.05 ** 0.1
    0.7411
    """
    if hits <= 0:
        return 0.0
    limit, margin = float(special.betaincinv(hits, trials - hits + 1.0, miss)), _MARGIN
    while margin < 1.0:
        tried = limit * (1.0 - margin)
        if tried > 0.0 and binomial_at_least(trials, tried, hits).upper <= miss:
            return tried
        margin *= _WIDER
    return 0.0


def proportion_at_most(hits: int, trials: int, miss: float) -> float:
    """A limit with P[Bin(trials, limit) <= hits] <= miss: too low with that probability at most.

    >>> round(proportion_at_most(0, 10, 0.05), 4)  # 1 - 0.05 ** 0.1
    0.2589
    """
    if hits >= trials:
        return 1.0
    limit, margin = float(special.betainccinv(hits + 1.0, float(trials - hits), miss)), _MARGIN
    while (tried := limit * (1.0 + margin)) < 1.0:
        if tried > 0.0 and binomial_at_most(trials, tried, hits).upper <= miss:
            return tried
        margin *= _WIDER
    return 1.0


def fewest_above(trials: int, goal: float, miss: float) -> int:
    """The fewest hits that show a proportion of at least ``goal``, wrongly with chance ``miss``.

    ``trials + 1`` if no number of hits does.

    >>> fewest_above(10, 0.5, 0.05)
    9
    """

    def too_few(hits: int) -> bool:
        return binomial_at_least(trials, min(goal, 1.0), hits).upper > miss

    return last_whole(too_few, 0, trials + 1) + 1


def most_below(trials: int, goal: float, miss: float) -> int:
    """The most hits that show a proportion of at most ``goal``, wrongly with chance ``miss``.

    -1 if no number of hits does.

    >>> most_below(10, 0.5, 0.05)
    1
    """
    if goal >= 1.0:
        return trials
    return last_whole(lambda hits: binomial_at_most(trials, goal, hits).upper <= miss, -1, trials)
