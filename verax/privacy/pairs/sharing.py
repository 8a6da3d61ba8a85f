"""How the records of a group share rounds that each picks at random.

A *sharing* says in how many rounds there is at least one record of the group, at least two, and so
on. It does not say in which, and given the sharing these are uniform. One sharing is above another
if it is so in every place; then the same rounds, and some more, hold the same records, and some
more, and by Kahane's lemma its pair dominates the other's. So sharings may be rounded up wherever
there are too many to be followed (docs/allocation.md, theorem 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_pmf
from verax.privacy.numerics.roots import last_whole
from verax.privacy.numerics.rounding import OPS_8, OPS_8M, OPS_8000, down, up

Sharing = tuple[int, ...]
"""Numbers of rounds with at least 1, 2, ... records, descending, all above 0."""

_EXACT = 1e-4  # chance from which on a sharing is not rounded up
_RARE = 1e-14  # chance of a sharing that is taken for the worst
# sharings that are followed; where there are more, only the likely numbers of rounds are known
_MOST = 4000
# records times rounds, and pairs that meet on average; the same
_MOST_PICKS, _MOST_MEETINGS = 100, 11.0
_MOST_RECORDS = 32  # records up to which every sharing of one pick each is listed
_TAIL = 1e-12  # chance that more rounds hold that many records than is assumed


@lru_cache(maxsize=256)
def sharings(size: int, times: int, rounds: int) -> tuple[tuple[tuple[float, Sharing], ...], float]:
    """Sharings with probabilities, rounded up, and the probability that none is above the true one.

    >>> found, left = sharings(2, 1, 10)
    >>> [(round(chance, 6), sharing) for chance, sharing in found]
    [(0.9, (2,)), (0.1, (1, 1))]
    """
    meetings = 0.5 * size * (size - 1.0) * times * times / rounds
    if times == 1 and size <= _MOST_RECORDS:
        pmf = _one_pick_each(size, rounds)
    elif size * times > _MOST_PICKS or meetings > _MOST_MEETINGS:
        return _single_sharing_bound(size, times, rounds)
    else:
        pmf = _record_by_record(size, times, rounds)
        if len(pmf) > _MOST:
            return _single_sharing_bound(size, times, rounds)
    pmf = _round_up_rare(pmf)
    found = sorted(((chance, sharing) for sharing, chance in pmf.items()), reverse=True)
    return tuple(found), remaining_probability(pmf.values())


def remaining_probability(chances: Iterable[float]) -> float:
    """At least what is left of probability 1."""
    return max(1.0 - down(math.fsum(chances), OPS_8000), 0.0)


def records_per_round(sharing: Sharing) -> tuple[int, ...]:
    """How many records the rounds hold, in descending order."""
    return tuple(sum(1 for at_least in sharing if at_least > rank) for rank in range(sharing[0]))


@lru_cache(maxsize=_MOST_RECORDS)
def _partitions(total: int) -> tuple[tuple[Sharing, ...], Array]:
    """Every sharing of ``total`` records that pick once, and the log number of ways to it.

    A way says which records are together, not in which round.
    """

    def up_to(largest: int, left: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield ()
        for first in range(min(left, largest), 0, -1):
            for rest in up_to(first, left - first):
                yield (first, *rest)

    found = tuple(up_to(total, total))
    factorials = [math.lgamma(number + 1.0) for number in range(total + 1)]
    # exactly l records: the difference of the rounds with at least l and with at least l + 1
    log_ways = [
        factorials[total]
        - math.fsum(
            (at_least - more) * factorials[held] + factorials[at_least - more]
            for held, (at_least, more) in enumerate(pairwise((*sharing, 0)), start=1)
        )
        for sharing in found
    ]
    return found, np.array(log_ways)


def _one_pick_each(size: int, rounds: int) -> dict[Sharing, float]:
    """The likely sharings of records that pick one round each, from the number of ways to each."""
    found, log_ways = _partitions(size)
    most = min(size, rounds)
    places = np.cumsum(np.log1p(-np.arange(most) / rounds))  # the first round is free to choose
    used = np.array([sharing[0] for sharing in found])
    log_places = np.where(used <= most, places[np.minimum(used, most) - 1], -np.inf)
    chances = np.exp(log_ways + log_places - (size - used) * math.log(rounds))
    return {found[i]: float(chances[i]) for i in np.flatnonzero(chances > _RARE)}


def _record_by_record(size: int, times: int, rounds: int) -> dict[Sharing, float]:
    """The likely sharings, from the picks of one record after the other."""
    pmf: dict[Sharing, float] = {(): 1.0}
    for _ in range(size):
        after: dict[Sharing, float] = {}
        for sharing, chance in pmf.items():
            for more, share in _add_record(sharing, times, rounds, _RARE / chance):
                after[more] = after.get(more, 0.0) + chance * share
        pmf = {sharing: chance for sharing, chance in after.items() if chance > _RARE}
        if len(pmf) > _MOST:
            break
    return pmf


def _add_record(
    sharing: Sharing, times: int, rounds: int, rare: float
) -> Iterator[tuple[Sharing, float]]:
    """One more record's rounds, by how many others they hold, with whole-number probabilities."""
    edges = (rounds, *sharing, 0)
    every = math.comb(rounds, times)

    def pick(level: int, left: int, ways: int) -> Iterator[tuple[tuple[int, ...], int]]:
        there = edges[level] - edges[level + 1]
        if level == 0:
            if left <= there:
                yield (left,), ways * math.comb(there, left)
            return
        for taken in range(min(there, left) + 1):
            for rest, found in pick(level - 1, left - taken, ways * math.comb(there, taken)):
                yield (*rest, taken), found

    for taken, ways in pick(len(edges) - 2, times, 1):
        if (chance := ways / every) > rare:
            more = [at_least + new for at_least, new in zip((*sharing, 0), taken, strict=True)]
            yield tuple(number for number in more if number > 0), chance


def _round_up_rare(pmf: dict[Sharing, float]) -> dict[Sharing, float]:
    """Unlikely sharings merged with those about as likely and as deep, at the largest numbers."""
    found: dict[Sharing, float] = {}
    alike: dict[tuple[int, int], tuple[Sharing, float]] = {}
    for sharing, chance in pmf.items():
        if chance >= _EXACT:
            found[sharing] = chance
            continue
        kind = math.floor(math.log10(chance)), len(sharing)
        above, total = alike.get(kind, (sharing, 0.0))
        alike[kind] = tuple(map(max, above, sharing)), total + chance
    for above, chance in alike.values():
        found[above] = found.get(above, 0.0) + chance
    return found


def _single_sharing_bound(
    size: int, times: int, rounds: int
) -> tuple[tuple[tuple[float, Sharing], ...], float]:
    """One sharing that is hardly ever exceeded in any place.

    The numbers of records in different rounds are negatively associated (Joag-Dev and Proschan
    1983), so the number of rounds with at least l of them has the Chernoff bound of independent
    ones.
    """
    pmf = binomial_pmf(size, times / rounds)
    found: list[int] = []
    for number in range(1, size + 1):
        chance = min(up(float(pmf[number:].sum()), OPS_8M) + OPS_8 / rounds, 1.0)
        most = _quantile(rounds, chance)
        most = min(most, size * times // number, found[-1] if found else rounds)
        if most == 0:
            break
        found.append(most)
    return ((1.0, tuple(found)),), min(_TAIL * size, 1.0)


def _quantile(count: int, chance: float) -> int:
    """A number that ``count`` coins exceed with probability at most 1e-12, by Chernoff's bound."""

    def too_likely(number: int) -> bool:
        rate = (number + 1) / count
        if rate >= 1.0:
            exponent = -math.log(chance) if chance < 1.0 else 0.0
        elif rate <= chance:
            exponent = 0.0
        else:
            exponent = rate * math.log(rate / chance)
            exponent += (1.0 - rate) * math.log((1.0 - rate) / (1.0 - chance))
        return count * exponent < -math.log(_TAIL)

    return last_whole(too_likely, math.floor(count * chance) - 1, count) + 1
