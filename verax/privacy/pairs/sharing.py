"""How the records of a group share rounds if each picks several at random: the law behind groups of random allocation.

A *sharing* says in how many rounds there is at least one record of the group, at least two, and so
on. It does not say in which, and given the sharing these are uniform. One sharing is above another
if it is so in every place; then the same rounds, and some more, hold the same records, and some
more, and by Kahane's lemma its pair dominates the other's. So sharings may be rounded up wherever
there are too many to be followed (docs/allocation.md, theorem 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from verax.privacy.numerics.distributions import binomial_law
from verax.privacy.numerics.rounding import OPS_8, OPS_8M, up

Sharing = tuple[int, ...]
"""Numbers of rounds with at least 1, 2, ... records, descending, all above 0."""

_EXACT = 1e-4  # chance from which on a sharing is not rounded up
_RARE = 1e-14  # chance of a sharing that is taken for the worst
# sharings that are followed; where there are more, only the likely numbers of rounds are known
_MOST = 4000
# records times rounds, and pairs that meet on average; the same
_MOST_PICKS, _MOST_MEETINGS = 100, 11.0
_TAIL = 1e-12  # chance that more rounds hold so many records than is supposed


@lru_cache(maxsize=256)
def sharings(size: int, times: int, rounds: int) -> tuple[tuple[tuple[float, Sharing], ...], float]:
    """Sharings with their probabilities, rounded up, and the probability that none of them is above the true one.

    >>> found, left = sharings(2, 1, 10)
    >>> [(round(chance, 6), sharing) for chance, sharing in found]
    [(0.9, (2,)), (0.1, (1, 1))]
    """
    meetings = 0.5 * size * (size - 1.0) * times * times / rounds
    if size * times > _MOST_PICKS or meetings > _MOST_MEETINGS:
        return _usual(size, times, rounds)
    law: dict[Sharing, float] = {(): 1.0}
    for _ in range(size):
        after: dict[Sharing, float] = {}
        for sharing, chance in law.items():
            for more, share in _one_more(sharing, times, rounds, _RARE / chance):
                after[more] = after.get(more, 0.0) + chance * share
        law = {sharing: chance for sharing, chance in after.items() if chance > _RARE}
        if len(law) > _MOST:
            return _usual(size, times, rounds)
    law = _rounded_up(law)
    found = sorted(((chance, sharing) for sharing, chance in law.items()), reverse=True)
    return tuple(found), max(1.0 - math.fsum(law.values()), 0.0) + _TAIL


def parts(sharing: Sharing) -> tuple[int, ...]:
    """How many records the rounds hold, in descending order."""
    return tuple(sum(1 for at_least in sharing if at_least > rank) for rank in range(sharing[0]))


def _one_more(
    sharing: Sharing, times: int, rounds: int, rare: float
) -> Iterator[tuple[Sharing, float]]:
    """One more record picks its rounds: how many of those that hold exactly 0, 1, ... others; in whole numbers."""
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


def _rounded_up(law: dict[Sharing, float]) -> dict[Sharing, float]:
    """All but the likeliest, put together with those about as likely and as deep, at the largest of each number."""
    found: dict[Sharing, float] = {}
    alike: dict[tuple[int, int], tuple[Sharing, float]] = {}
    for sharing, chance in law.items():
        if chance >= _EXACT:
            found[sharing] = chance
            continue
        kind = math.floor(math.log10(chance)), len(sharing)
        above, total = alike.get(kind, (sharing, 0.0))
        alike[kind] = tuple(map(max, above, sharing)), total + chance
    for above, chance in alike.values():
        found[above] = found.get(above, 0.0) + chance
    return found


def _usual(size: int, times: int, rounds: int) -> tuple[tuple[tuple[float, Sharing], ...], float]:
    """One sharing that is hardly ever exceeded in any place.

    The numbers of records in different rounds are negatively associated (Joag-Dev and Proschan
    1983), so the number of rounds with at least l of them has the Chernoff bound of independent
    ones.
    """
    law = binomial_law(size, times / rounds)
    found: list[int] = []
    for number in range(1, size + 1):
        chance = min(up(float(law[number:].sum()), OPS_8M) + OPS_8 / rounds, 1.0)
        most = _quantile(rounds, chance)
        most = min(most, size * times // number, found[-1] if found else rounds)
        if most == 0:
            break
        found.append(most)
    return ((1.0, tuple(found)),), min(_TAIL * size, 1.0)


def _quantile(count: int, chance: float) -> int:
    """A number that ``count`` coins exceed with probability at most 1e-12, by Chernoff's bound."""
    low, high = math.floor(count * chance), count
    while high > low:
        middle = (low + high) // 2
        rate = (middle + 1) / count
        if rate >= 1.0:
            exponent = -math.log(chance) if chance < 1.0 else 0.0
        elif rate <= chance:
            exponent = 0.0
        else:
            exponent = rate * math.log(rate / chance) + (1.0 - rate) * math.log(
                (1.0 - rate) / (1.0 - chance)
            )
        low, high = (low, middle) if count * exponent >= -math.log(_TAIL) else (middle + 1, high)
    return high
