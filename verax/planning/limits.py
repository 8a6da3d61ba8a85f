"""Limits a plan must keep besides its privacy; where none can, the nearest that could is named."""

from __future__ import annotations

from collections.abc import Sequence

from verax import checks
from verax.planning.frontier import RANKINGS, Plan, ranked
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import UPPER


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
