"""How far a group moves the noisy sums: every sampler says it, and no placement of the group is
left out.
"""

import itertools

import mpmath
import pytest

from verax import Batch, Individual, Mechanism, Mixed, RandomAllocation, TruncatedPoisson
from verax.privacy.samplers.base import ProtectedGroup, pricing_of


def squares(clipping, hits):
    """The possible squares of how many clip-groups of one round are touched by so many records."""
    match clipping:
        case Individual():
            return {hits**2}
        case Batch():
            return {min(hits, 1)}
        case Mixed(groups=groups):
            return {len(set(picks)) ** 2 for picks in itertools.product(range(groups), repeat=hits)}


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=2), Mixed(groups=4)])
@pytest.mark.parametrize(
    ("times", "steps", "size"), [(1, 3, 2), (2, 3, 2), (2, 4, 3), (3, 3, 2), (1, 2, 3)]
)
def test_the_range_of_a_group_allocated_at_random_is_that_of_all_placements(
    clipping, times, steps, size
):
    run = Mechanism(RandomAllocation(times, steps), 1.0, clipping)
    found = pricing_of(run.sampler).displacement(run, ProtectedGroup(size))
    seen = set()
    subsets = list(itertools.combinations(range(steps), times))
    for rounds in itertools.product(subsets, repeat=size):
        hits = [sum(step in chosen for chosen in rounds) for step in range(steps)]
        totals = {0}
        for hit in hits:
            totals = {total + square for total in totals for square in squares(clipping, hit)}
        seen |= totals
    unit = 1.0 if isinstance(clipping, Individual) else 4.0
    assert found.upper(64).highs[-1] >= unit * max(seen)
    assert found.lower(64).lows[0] <= unit * min(seen)
    assert found.lower(64).highs[-1] >= unit * max(seen)
    if isinstance(clipping, Individual):
        assert found.upper(64).highs[-1] == max(seen)


@pytest.mark.parametrize(
    ("rate", "most", "people", "size"),
    [(0.5, 3, 5, 2), (1.0, 3, 3, 2), (0.2, 2, 6, 3), (0.4, 9, 6, 2)],
)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_what_truncated_batches_show_is_covered_for_all_coins(rate, most, people, size, orthogonal):
    """With j hits of the group and n others, min(j, most) of them may be in and max(n + j - most,
    0) may give way.
    """
    run = Mechanism(TruncatedPoisson(rate, 1, most, people), 1.0)
    pmf = pricing_of(run.sampler).displacement(run, ProtectedGroup(size, orthogonal)).upper(64)

    def tail(chances, value):
        return mpmath.fsum(chance for square, chance in chances if square >= value - 1e-9)

    with mpmath.workdps(50):
        q = mpmath.mpf(rate)
        worst = []
        for j, others in itertools.product(range(size + 1), range(people + 1)):
            chance = mpmath.binomial(size, j) * q**j * (1 - q) ** (size - j)
            chance *= mpmath.binomial(people, others) * q**others * (1 - q) ** (people - others)
            inside = min(j, most)
            away = min(others, most) - (most - inside) if others + j > most else 0
            own = mpmath.sqrt(inside) if orthogonal else inside
            worst.append(((own + away) ** 2, chance))
        told = list(zip(pmf.highs.tolist(), (pmf.weights * (1 + 1e-12)).tolist(), strict=True))
        for square, _ in worst:
            assert tail(worst, square) <= tail(told, square)


@pytest.mark.parametrize(
    ("rate", "most", "people", "size"),
    [(0.5, 3, 5, 2), (0.2, 2, 6, 3), (0.4, 9, 6, 2), (0.1, 1, 10, 5), (0.3, 5, 9, 4)],
)
def test_what_is_looked_for_in_truncated_batches_is_there(rate, most, people, size):
    """One round, the group's gradients alike: as many as are in the batch is how far the sum
    moves.
    """
    run = Mechanism(TruncatedPoisson(rate, 1, most, people), 1.0)
    pmf = pricing_of(run.sampler).displacement(run, ProtectedGroup(size)).lower(64)
    with mpmath.workdps(50):
        q, inside = mpmath.mpf(rate), [mpmath.mpf(0)] * (size + 1)
        for picked in range(people + 1):
            chance = mpmath.binomial(people, picked) * q**picked * (1 - q) ** (people - picked)
            kept = min(picked, most)
            for j in range(min(size, kept) + 1):
                ways = mpmath.binomial(size, j) * mpmath.binomial(people - size, kept - j)
                inside[j] += chance * ways / mpmath.binomial(people, kept)
        for low in pmf.lows.tolist():
            if low > 0.0:
                there = mpmath.fsum(
                    chance for j, chance in enumerate(inside) if j * j >= low - 1e-9
                )
                assert float(pmf.weights[pmf.lows >= low].sum()) <= there * (1 + 1e-12)
