"""Clip norms that change from round to round, as a run declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from verax import checks

# Clip norms of all rounds: norms, and for how many rounds each.
NormSchedule = tuple[tuple[float, int], ...]
# Clip norms of the rounds, by their numbers from 0.
Norms = Callable[[int], float] | Sequence[float]


def schedule_of(norms: Sequence[float], rounds: int) -> NormSchedule:
    """A clip norm for every round, as a ledger declares it.

    >>> schedule_of([2.0, 2.0, 1.0], 3)
    ((2.0, 2), (1.0, 1))
    """
    if len(norms) != rounds:
        raise ValueError(
            f"clip_norms must have one norm for each of the {rounds} rounds, got {len(norms)}"
        )
    each = (
        checks.positive(f"clip_norms of round {number}", norm) for number, norm in enumerate(norms)
    )
    return tuple((norm, len(list(same))) for norm, same in groupby(each))


def norms_of(norms: Norms, rounds: int) -> list[float]:
    """The clip norm of every round; a function is called for all rounds at once."""
    if not callable(norms) and not isinstance(norms, Iterable):
        raise ValueError(
            f"clip_norms must be a list of {rounds} norms or a function of the round's number, "
            f"got {norms!r}: one norm for all rounds is the clipping's own, such as "
            "Individual(norm=1.0)"
        )
    found = [norms(number) for number in range(rounds)] if callable(norms) else list(norms)
    return [norm for norm, times in schedule_of(found, rounds) for _ in range(times)]
