"""Uses of group privacy: users, duplicates, poisoned data, the choice of clipping.

Each function takes the description of a run and asks it for guarantees of groups; nothing here is
an analysis of its own. Under add-remove a group is k records added or k removed; under replace it
is k records that change, which also covers any mixture of at most k additions and k removals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from verax import checks
from verax.mechanism import Mechanism, Phases
from verax.privacy.analysis import MAX_GROUP
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, Guarantee
from verax.privacy.numerics.roots import bracket, last_whole
from verax.privacy.numerics.rounding import OPS_8M, OPS_8000, up

MOST_SIZES = 200
"""Group sizes that are priced one by one; between them the next larger one is an upper bound."""
_FINE = 1e-4  # relative width of brackets when two runs are compared
_ROUGH = 3e-3  # and of deltas from which a probability is bounded
# search for the best epsilon, and how close to it is enough
_GOLDEN, _CLOSE = (math.sqrt(5.0) - 1.0) / 2.0, 0.02

Run = Mechanism | Phases


@dataclass(frozen=True)
class Users:
    """All users with the same number of records, and what each of them is promised."""

    records: int
    users: int
    epsilon: Bracket


def user_epsilons(
    run: Run,
    counts: Iterable[int] | Mapping[int, int],
    delta: float,
    *,
    geometry: str = "any",
    rtol: float = DEFAULT_RTOL,
    progress: Callable[[int, int], None] | None = None,
) -> list[Users]:
    """Epsilon of every user from the number of records each has, in ascending order of that number.

    A user with k records is a group of k. More than ``MOST_SIZES`` different numbers share
    brackets: epsilon rises with the group, so a larger group's upper bound and a smaller one's
    lower bound hold.

    Args:
        run: the run.
        counts: records of each user, in any order; or how many users have each number of records.
        delta: where epsilon is read.
        geometry: "orthogonal" if every user's own gradients are orthogonal to each other in every
            round (under replace: old and new ones of different records).
        rtol: relative width of the brackets.
        progress: called with the number of groups done and to do.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> for row in user_epsilons(run, [1, 1, 1, 2, 4], delta=1e-5):
    ...     print(row.records, row.users, row.epsilon)
    1 3 [1.8278, 1.8290]
    2 1 [3.9781, 3.9807]
    4 1 [8.8971, 8.9027]
    """
    checks.probability("delta", delta)
    _require_run(run)
    sizes = _histogram(counts)
    nonzero = [size for size in sizes if size > 0]
    priced: dict[int, Bracket] = {}
    ladder = _ladder(nonzero, MOST_SIZES)
    for done, size in enumerate(ladder):
        if progress is not None:
            progress(done, len(ladder))
        priced[size] = run.guarantee(size, geometry).epsilon(delta, rtol)
    rows = [Users(0, sizes[0], Bracket(0.0, 0.0))] if 0 in sizes else []
    at = 0
    for size in nonzero:
        while ladder[at] < size:
            at += 1
        above, below = priced[ladder[at]], priced[ladder[at if ladder[at] == size else at - 1]]
        shared = (
            above
            if above is below
            else Bracket(
                min(below.lower, above.upper),
                above.upper,
                above.evidence,
                below.lower_by,
                above.upper_by,
            )
        )
        rows.append(Users(size, sizes[size], shared))
    return rows


def _require_run(run: Run) -> None:
    if not isinstance(run, Mechanism | Phases):
        raise ValueError(f"run must be a Mechanism or Phases, got {run!r}")


def _require_iterable(name: str, values: Iterable[int]) -> Iterable[int]:
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must hold whole numbers, such as [{values!r}], got {values!r}")
    return values


def _histogram(counts: Iterable[int] | Mapping[int, int]) -> dict[int, int]:
    if isinstance(counts, Mapping):
        found = Counter(
            {
                checks.count("records of a user", size, minimum=0): checks.count(
                    "users", users, minimum=0
                )
                for size, users in counts.items()
            }
        )
    else:
        found = Counter(
            checks.count("records of a user", size, minimum=0)
            for size in _require_iterable("counts", counts)
        )
    sizes = {size: found[size] for size in sorted(found) if found[size] > 0}
    if not sizes:
        raise ValueError("counts must hold the records of at least one user, got none")
    return sizes


def _ladder(sizes: list[int], most: int) -> list[int]:
    """About ``most`` of the sizes: the first, the last, all small ones, then in proportion."""
    if len(sizes) <= most:
        return sizes
    growth = (sizes[-1] / max(sizes[0], 1)) ** (1.0 / most)
    kept = sizes[:1]
    for size in sizes[1:-1]:
        if size >= kept[-1] * growth:
            kept.append(size)
    return [*kept, sizes[-1]]


def duplicates(
    run: Run, copies: Iterable[int], delta: float, *, rtol: float = DEFAULT_RTOL
) -> dict[int, Bracket]:
    """Epsilon of a record that occurs several times: of telling all its copies from none.

    Copies have the same gradient, which is the worst a group can do: the bracket of a group is
    exact for them.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> duplicates(run, [1, 10], delta=1e-5)
    {1: Bracket(lower=1.8278, upper=1.8290), 10: Bracket(lower=27.89..., upper=27.91...)}
    """
    checks.probability("delta", delta)
    _require_run(run)
    sizes = [checks.count("copies", size) for size in _require_iterable("copies", copies)]
    return {size: run.guarantee(size).epsilon(delta, rtol) for size in sizes}


def largest_group(
    run: Run, epsilon: float, delta: float, *, geometry: str = "any", most: int = 100_000
) -> int:
    """The most records that together still have epsilon at most ``epsilon``; 0 if none.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> largest_group(run, epsilon=8.0, delta=1e-5)
    3
    """
    checks.nonnegative("epsilon", epsilon)
    checks.probability("delta", delta)

    def fits(size: int) -> bool:
        return run.guarantee(size, geometry).epsilon(delta).upper <= epsilon

    return _largest(fits, _at_most(run, most))


def _at_most(run: Run, most: int) -> int:
    """The end of a search over groups: ``most``, or the population if the sampler knows it."""
    _require_run(run)
    phases = run.mechanisms if isinstance(run, Phases) else (run,)
    known = (phase.sampler.declared_population for phase in phases)
    return min(
        [
            checks.count("most", most, maximum=MAX_GROUP),
            *(count for count in known if count is not None),
        ]
    )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest size up to ``most`` that fits, by doubling and halving."""
    low, high = map(int, bracket(lambda size: fits(int(size)), 0, 1, limit=most))
    return last_whole(fits, low, min(high, most + 1))


def probability_after(
    run: Run, probability: float, records: int, *, geometry: str = "any"
) -> Bracket:
    """How likely an event of training can be once up to ``records`` records are poisoned.

    With delta(eps) of that group, P'(A) <= e^eps P(A) + delta and, from A's complement, P'(A) <= 1
    - e^-eps (1 - P(A) - delta); the smallest over eps is one minus the trade-off curve at P(A)
    (Dong, Roth and Su 2019, proposition 2.12). The lower bound is the same for the complement. It
    holds for the mean of any score in [0, 1] too.

    Args:
        run: the run; under add-remove records are added or removed, under replace they change.
        probability: of the event on the clean data, over the randomness of training.
        records: how many are poisoned at most.
        geometry: "orthogonal" if the poisoned records' gradients are orthogonal in every round.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=100), noise_multiplier=2.0)
    >>> probability_after(run, 0.9, records=4)
    Bracket(lower=0.855..., upper=0.933...)
    """
    _require_share("probability", probability)
    _require_run(run)
    return _bracket_after(run.guarantee(checks.count("records", records), geometry), probability)


def _require_share(name: str, value: float) -> float:
    number = checks.real(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return number


def _bracket_after(guarantee: Guarantee, probability: float) -> Bracket:
    why = "the trade-off curve of the group"
    return Bracket(
        max(1.0 - _most_likely(guarantee, 1.0 - probability), 0.0),
        _most_likely(guarantee, probability),
        "proved",
        why,
        why,
    )


def _most_likely(guarantee: Guarantee, probability: float) -> float:
    """The largest probability after poisoning of an event that had this one before.

    Below the rate where misses equal false alarms, (1 - delta(0)) / 2, lines of the first kind
    touch the trade-off curve, above it those of the second; in e^eps the first kind is convex and
    the second quasi-convex, so a search by golden section ends near the best.
    """
    start = guarantee.delta(0.0, _ROUGH).upper
    rare = probability <= 0.5 * (1.0 - start)

    def bound(epsilon: float) -> float:
        delta = guarantee.delta(epsilon, _ROUGH).upper
        if rare:
            return (
                math.exp(min(epsilon + math.log(probability), 1.0)) if probability > 0.0 else 0.0
            ) + delta
        return 1.0 - math.exp(-epsilon) * (1.0 - probability - delta)

    least = min(probability + start, 1.0)
    far = guarantee.epsilon(max(min(probability, 1.0 - probability), 1e-9) * 1e-2, 0.1).upper
    low, high = 0.0, far if math.isfinite(far) else 0.0
    left, right = (high * (1.0 - _GOLDEN), high * _GOLDEN) if high > 0.0 else (0.0, 0.0)
    at_left, at_right = (bound(left), bound(right)) if high > 0.0 else (least, least)
    while high - low > _CLOSE * high:
        least = min(least, at_left, at_right)
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = bound(right)
    return min(least + OPS_8000, 1.0)


@dataclass(frozen=True)
class Certificate:
    """How many poisoned records a prediction survives, and what is left of its lead."""

    records: int
    relation: str
    top: float
    """The predicted class has at least this probability..."""
    runner_up: float
    """... and every other class at most this one."""


def certified_poisoning(
    run: Run,
    top: float,
    runner_up: float | None = None,
    *,
    geometry: str = "any",
    most: int = 100_000,
) -> Certificate:
    """The most poisoned records that provably leave the likeliest prediction the likeliest.

    The probabilities are over the randomness of training, on clean data: ``top`` is a lower bound
    on the predicted class's, ``runner_up`` an upper bound on every other class's (say from many
    trained models, with a confidence).

    Args:
        run: the run; under add-remove records are added or removed, under replace they change.
        top: at least this likely is the predicted class.
        runner_up: at most this likely is any other class; by default what ``top`` leaves.
        geometry: "orthogonal" if the poisoned records' gradients are orthogonal in every round.
        most: where the search ends.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=100), noise_multiplier=2.0)
    >>> certificate = certified_poisoning(run, top=0.95)
    >>> certificate.records, certificate.top > certificate.runner_up
    (31, True)
    """
    top = _require_share("top", top)
    other = 1.0 - top if runner_up is None else _require_share("runner_up", runner_up)
    if top + other > up(1.0, OPS_8M):
        raise ValueError(
            f"top and runner_up must add up to at most 1, got {top!r} and {runner_up!r}"
        )
    if top <= other:
        raise ValueError(
            f"nothing to certify: top must be above runner_up, got {top!r} and {other!r}"
        )
    found = {0: (top, other)}

    def survives(records: int) -> bool:
        guarantee = run.guarantee(records, geometry)
        rest = _most_likely(guarantee, 1.0 - top)
        found[records] = (
            max(1.0 - rest, 0.0),
            rest if other == 1.0 - top else _most_likely(guarantee, other),
        )
        return found[records][0] > found[records][1]

    records = _largest(survives, _at_most(run, most))
    return Certificate(records, run.relation, *found[records])


def crossover(
    first: Run, second: Run, delta: float, *, most: int = 100_000
) -> tuple[int, int] | None:
    """Where the second run becomes cheaper: last group proved dearer, first proved cheaper.

    None if the second is not proved dearer for one record, or not proved cheaper for any group up
    to ``most``. The two numbers are consecutive unless brackets touch.

    >>> from verax import Batch, Mechanism, Poisson
    >>> sampler = Poisson(rate=0.1, steps=100)
    >>> crossover(Mechanism(sampler, 2.0), Mechanism(sampler, 2.0, Batch()), delta=1e-5)
    (14, 15)
    """
    checks.probability("delta", delta)
    known: dict[tuple[int, int], Bracket] = {}

    def epsilon(which: int, size: int) -> Bracket:
        if (which, size) not in known:
            known[which, size] = (first, second)[which].guarantee(size).epsilon(delta, _FINE)
        return known[which, size]

    def dearer(size: int) -> bool:
        return epsilon(1, size).lower > epsilon(0, size).upper

    def not_cheaper(size: int) -> bool:
        return epsilon(1, size).upper >= epsilon(0, size).lower

    most = min(_at_most(first, most), _at_most(second, most))
    last = _largest(dearer, most)
    first_cheaper = _largest(not_cheaper, most) + 1
    return (last, first_cheaper) if last > 0 and first_cheaper <= most else None
