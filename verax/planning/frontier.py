"""All plans that meet a privacy target: which there are, which are best, and which to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from verax import checks
from verax.planning.noise_search import LARGEST_NOISE, gaussian_shift, smallest_noise
from verax.planning.planner import Plan, Planner, Target
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import UPPER
from verax.samplers import Poisson
from verax.samplers.registry import planned

Progress = Callable[[int, int], None]
_MOST_VALUES = 10_000  # of a range


def frontier(
    target: Target,
    batches: Iterable[int],
    epochs: Iterable[int],
    ways: Sequence[str] = ("poisson",),
    *,
    rounds_at_least: int = 1,
    rounds_at_most: int | None = None,
    progress: Progress | None = None,
) -> list[Plan]:
    """The smallest certified noise for every sampler, batch size and number of epochs allowed.

    Args:
        target: what must hold.
        batches: expected batch sizes.
        epochs: how often a record is expected to be used.
        ways: names of samplers, as in :func:`verax.planning.plannable`.
        rounds_at_least: leave out runs with fewer rounds.
        rounds_at_most: leave out runs with more rounds.
        progress: called with the number of plans done and to do.

    >>> target = Target(records=60000, epsilon=1.0, delta=1e-5)
    >>> plans = frontier(target, batches=[600], epochs=[5, 10, 20])
    >>> [round(plan.noise_multiplier, 1) for plan in plans]
    [1.1, 1.4, 1.8]
    """
    sizes = sorted({checks.count("batch", batch, maximum=target.records) for batch in batches})
    passes = sorted({checks.count("epochs", value) for value in epochs})
    for name, values in (("batches", sizes), ("epochs", passes), ("ways", list(ways))):
        if not values:
            raise ValueError(f"{name} must hold at least one value, got none")
    most = math.inf if rounds_at_most is None else checks.count("rounds_at_most", rounds_at_most)
    points = [
        (way, batch, count)
        for way in dict.fromkeys(ways)
        for batch in sizes
        for count in passes
        if rounds_at_least <= len(planned(way, target.records, batch, count)) <= most
    ]
    if not points:
        raise ValueError(_no_rounds(target, sizes, passes, ways, rounds_at_least, most))
    planner = Planner(target)
    plans = []
    for done, (way, batch, count) in enumerate(points):
        if progress is not None:
            progress(done, len(points))
        plans.append(planner.plan(way, batch, count))
    return plans


def _no_rounds(
    target: Target,
    sizes: Sequence[int],
    passes: Sequence[int],
    ways: Sequence[str],
    least: int,
    most: float,
) -> str:
    """Which bound on the rounds cannot be met, and the nearest that can."""
    counts = sorted(
        {
            (len(planned(way, target.records, batch, count)), batch, count)
            for way in ways
            for batch in sizes
            for count in passes
        }
    )
    fewest, batch, count = counts[0]
    if fewest > most:
        return (
            f"rounds_at_most = {most:.0f} leaves no plan: batch {batch}, the largest, and epochs "
            f"{count}, the fewest, take {fewest} rounds; allow {fewest} rounds, or a batch of "
            f"{math.ceil(count * target.records / most)}"
            + (f" (there are only {target.records} records)" if count > most else "")
        )
    longest, batch, count = counts[-1]
    if longest < least:
        return (
            f"rounds_at_least = {least} leaves no plan: batch {batch} and epochs {count}, the "
            f"most, make {longest} rounds; ask for {longest} rounds, or allow "
            f"{math.ceil(least * batch / target.records)} epochs"
        )
    below, above = (
        max((c for c in counts if c[0] < least), default=None),
        next(c for c in counts if c[0] > most),
    )
    near = " and ".join(
        f"{c[0]} (batch {c[1]}, epochs {c[2]})" for c in (below, above) if c is not None
    )
    return f"no plan has between {least} and {most:.0f} rounds; the nearest have {near}"


def full_batch_signal(target: Target) -> float:
    """Signal to noise with every record in every round: the same for any number of rounds.

    It is what the budget buys at most without subsampling; of a plan's ``signal_of_run`` it is the
    natural measure.

    >>> round(full_batch_signal(Target(records=60000, epsilon=1.0, delta=1e-5)))
    160...
    """
    found = smallest_noise(
        lambda noise: target.epsilon_at(Poisson(1.0, 1), noise),
        target.epsilon,
        1.0 / gaussian_shift(target.epsilon, target.delta),
        1.0,
    )
    if found is None:
        raise ValueError(
            f"epsilon = {target.epsilon!r} needs a noise multiplier above {LARGEST_NOISE:g}: "
            "raise epsilon"
        )
    return Plan(
        target, "poisson", target.records, 1, Poisson(1.0, 1), found.noise_multiplier, found.epsilon
    ).signal


def undominated(plans: Sequence[Plan]) -> list[Plan]:
    """The Pareto-optimal plans in signal over the run, work and rounds.

    Work counts as equal within 2 %, which rounding up to whole rounds may add.

    >>> target = Target(records=60000, epsilon=1.0, delta=1e-5)
    >>> plans = frontier(target, batches=[150, 600], epochs=[10])
    >>> [plan.batch for plan in undominated(plans)]
    [600]
    """
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (-p.signal_of_run, p.work, p.rounds)):
        if not any(
            other.work <= 1.02 * plan.work and other.rounds <= plan.rounds for other in best
        ):
            best.append(plan)
    return best


RANKINGS: dict[str, Callable[[Plan], float]] = {
    "signal": lambda plan: -plan.signal_of_run,
    "noise": lambda plan: plan.noise_multiplier,
    "ratio": lambda plan: plan.ratio,
    "work": lambda plan: plan.work,
    "rounds": lambda plan: float(plan.rounds),
}
"""What plans can be ranked by, best first; ties go to more signal over the run, then less work,
then fewer rounds.
"""


def ranked(plans: Iterable[Plan], by: str = "signal") -> list[Plan]:
    """The plans, best first by one of :data:`RANKINGS`.

    >>> target = Target(records=60000, epsilon=1.0, delta=1e-5)
    >>> plans = frontier(target, batches=[600], epochs=[5, 10])
    >>> (
    ...     [plan.epochs for plan in ranked(plans, "noise")],
    ...     [plan.epochs for plan in ranked(plans, "signal")],
    ... )
    ([5, 10], [10, 5])
    """
    first = RANKINGS[checks.choice("rank", by, tuple(RANKINGS))]
    return sorted(
        plans, key=lambda plan: (first(plan), -plan.signal_of_run, plan.work, plan.rounds)
    )


def within(
    plans: Sequence[Plan], *, noise_at_most: float | None = None, ratio_at_most: float | None = None
) -> list[Plan]:
    """The plans with at most this noise multiplier and this noise-to-batch ratio.

    >>> from verax.planning import Target, frontier
    >>> plans = frontier(
    ...     Target(records=60000, epsilon=1.0, delta=1e-5), batches=[600, 1200], epochs=[10]
    ... )
    >>> [plan.batch for plan in within(plans, noise_at_most=1.5)]
    [600]
    >>> within(plans, noise_at_most=1.0)
    Traceback (most recent call last):
    ValueError: noise_at_most = 1.0 leaves no plan: the least is 1.415... epsilon 1.829... there
    """
    kept = list(plans)
    for name, limit, by in (
        ("noise_at_most", noise_at_most, "noise"),
        ("ratio_at_most", ratio_at_most, "ratio"),
    ):
        if limit is None:
            continue
        checks.positive(name, limit)
        left = [plan for plan in kept if RANKINGS[by](plan) <= limit]
        if kept and not left:
            best = ranked(kept, by)[0]
            raise ValueError(_nearest(name, limit, best, RANKINGS[by](best)))
        kept = left
    return kept


def _nearest(name: str, limit: float, plan: Plan, value: float) -> str:
    """The plan that comes closest, and the epsilon at which it would do."""
    noise = plan.noise_multiplier * limit / value
    epsilon = plan.target.epsilon_at(plan.sampler, noise)
    return (
        f"{name} = {limit!r} leaves no plan: the least is {format_bound(value, UPPER)} "
        f"(sampler {plan.way}, batch {plan.batch}, epochs {plan.epochs}); allow that much, "
        f"or epsilon {format_bound(epsilon, UPPER)} there"
    )


def spread(low: int, high: int, count: int | None = None, ratio: float = 2.0) -> list[int]:
    """Whole numbers from ``low`` to ``high`` in equal factors: ``count``, or ``ratio`` apart.

    Fewer than ``count`` where neighbours round to the same whole number.

    >>> spread(64, 8192)
    [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    >>> spread(1, 100, count=5)
    [1, 3, 10, 32, 100]
    """
    low = checks.count("the start of a range", low)
    high = checks.count("the end of a range", high, minimum=low)
    if count is None:
        count = 1 + math.ceil(math.log(high / low) / math.log(ratio) - 1e-9)
    count = checks.count("the number of values of a range", count, maximum=_MOST_VALUES)
    steps = max(count - 1, 1)
    values = {round(low * (high / low) ** (i / steps)) for i in range(count)}
    return sorted(values | ({high} if count > 1 else set()))


def usual_batches(records: int) -> list[int]:
    """Powers of two from about a thousandth to at most a fifth of the records.

    >>> usual_batches(60000)
    [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    """
    low = max(round(math.log2(records / 1000.0)), 0) if records > 1 else 0
    high = max(math.floor(math.log2(max(records / 5.0, 1.0))), low)
    return [2**power for power in range(low, high + 1) if 2**power <= records]
