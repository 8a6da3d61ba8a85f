"""Any one quantity as the unknown, with the noise given.

The epsilon or the delta reached; or the most rounds, the fewest records, the largest batch with
which a target is met.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from verax import checks
from verax.planning.noise_search import gaussian_shift
from verax.planning.planner import Plan, Planner, Target, upper_only
from verax.samplers import Sampler
from verax.samplers.registry import planned

MOST = 10**9  # rounds or epochs, and records, up to which a search goes
_LEAST = 1e-12  # an epsilon of zero is reported as this: a target must be positive


def reachable_epsilon(
    target: Target, way: str, batch: int, epochs: int, noise_multiplier: float
) -> Plan:
    """The epsilon that this noise proves; the target's own is not looked at.

    >>> from verax.planning import Target
    >>> run = Target(records=60000, epsilon=1.0, delta=1e-5)
    >>> round(reachable_epsilon(run, "poisson", 600, 10, noise_multiplier=1.0).epsilon, 2)
    1.83
    """
    sampler = planned(way, target.records, batch, epochs)
    found = target.epsilon_at(sampler, checks.positive("noise_multiplier", noise_multiplier))
    if math.isinf(found):
        raise ValueError(
            f"noise_multiplier = {noise_multiplier!r} proves no finite epsilon at delta = "
            f"{target.delta!r} for sampler {way}, batch {batch}, epochs {epochs}: raise the noise "
            "or delta"
        )
    reached = replace(target, epsilon=max(found, _LEAST))
    return Plan(reached, way, batch, epochs, sampler, noise_multiplier, reached.epsilon)


def reachable_delta(
    target: Target, way: str, batch: int, epochs: int, noise_multiplier: float
) -> Plan:
    """The delta that this noise proves at the target's epsilon; the target's delta is not used.

    >>> from verax.planning import Target
    >>> run = Target(records=60000, epsilon=1.0, delta=0.5)
    >>> 1e-3 < reachable_delta(run, "poisson", 600, 10, noise_multiplier=1.0).target.delta < 1e-2
    True
    """
    sampler = planned(way, target.records, batch, epochs)
    run = target.mechanism(sampler, checks.positive("noise_multiplier", noise_multiplier))
    found = upper_only(run, target.group).delta(target.epsilon).upper
    if not 0.0 < found < 1.0:
        raise ValueError(
            f"noise_multiplier = {noise_multiplier!r} proves no delta below 1 at epsilon = "
            f"{target.epsilon!r} for sampler {way}, batch {batch}, epochs {epochs}: raise the "
            "noise or epsilon"
        )
    return Plan(
        replace(target, delta=found), way, batch, epochs, sampler, noise_multiplier, target.epsilon
    )


def most_rounds(target: Target, way: str, batch: int, noise_multiplier: float) -> Plan:
    """The most rounds allowed, in whole epochs where batches are drawn an epoch at a time.

    >>> from verax.planning import Target
    >>> plan = most_rounds(
    ...     Target(records=60000, epsilon=2.0, delta=1e-5), "poisson", 600, noise_multiplier=1.0
    ... )
    >>> 1100 < plan.rounds < 1300
    True
    """
    case = _GivenNoise(target, way, noise_multiplier)
    one = planned(way, target.records, batch, 1)
    by_round = one.by_round

    def run(count: int) -> Sampler:
        return one.repeated(count) if by_round else planned(way, target.records, batch, count)

    guess = case.epochs_times_rate() * target.records / batch * (len(one) if by_round else 1)
    easiest = f"one {'round' if by_round else 'epoch'} of batch {batch}"
    count, epsilon = case.last(run, guess, (1, MOST), easiest)
    sampler = run(count)
    epochs = max(math.floor(len(sampler) * batch / target.records), 1) if by_round else count
    return Plan(target, way, batch, epochs, sampler, noise_multiplier, epsilon)


def fewest_records(
    target: Target, way: str, batch: int, epochs: int, noise_multiplier: float
) -> Plan:
    """The smallest data set, with this batch and these epochs, that meets the target.

    >>> from verax.planning import Target
    >>> run = Target(records=1, epsilon=1.0, delta=1e-5)
    >>> 9e4 < fewest_records(run, "poisson", 600, 10, noise_multiplier=1.2).target.records < 1e5
    True
    """
    checks.count("batch", batch)
    case = _GivenNoise(replace(target, records=MOST), way, noise_multiplier)

    def run(records: int) -> Sampler:
        return planned(way, records, batch, epochs)

    guess = batch * epochs / case.epochs_times_rate()
    easiest = f"batch {batch} and epochs {epochs} with up to {MOST:g} records"
    # the more records, the easier: from the most on downwards
    ends = (MOST, max(batch, target.group))
    records, epsilon = case.last(run, guess, ends, easiest)
    enough = replace(target, records=records)
    return Plan(enough, way, batch, epochs, run(records), noise_multiplier, epsilon)


def largest_batch(target: Target, way: str, epochs: int, noise_multiplier: float) -> Plan:
    """The largest expected batch with which these epochs meet the target; one record more does not.

    >>> from verax.planning import Target
    >>> run = Target(records=60000, epsilon=1.0, delta=1e-5)
    >>> 580 < largest_batch(run, "poisson", 10, noise_multiplier=1.42).batch < 610
    True
    """
    case = _GivenNoise(target, way, noise_multiplier)

    def run(batch: int) -> Sampler:
        return planned(way, target.records, batch, epochs)

    guess = case.epochs_times_rate() * target.records / epochs
    easiest = f"a batch of one record for {epochs} epochs"
    batch, epsilon = case.last(run, guess, (1, target.records), easiest)
    return Plan(target, way, batch, epochs, run(batch), noise_multiplier, epsilon)


@dataclass(frozen=True)
class _GivenNoise:
    """What is given: the target and the noise."""

    target: Target
    way: str
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive("noise_multiplier", self.noise_multiplier)

    def epochs_times_rate(self) -> float:
        """A guess at epochs * batch / records, from mu^2 = rate^2 rounds (e^(1/z^2) - 1)."""
        growth = math.expm1(min(self.noise_multiplier**-2.0, 300.0))
        return gaussian_shift(self.target.epsilon, self.target.delta) ** 2 / growth

    def last(
        self, run: Callable[[int], Sampler], guess: float, ends: tuple[int, int], easiest: str
    ) -> tuple[int, float]:
        """The last number from the easier end on whose run meets the target, and its epsilon.

        An error if not even the easiest does, with its epsilon and the noise that it needs.
        """
        target, noise = self.target, self.noise_multiplier

        def look(number: int) -> float:
            return target.epsilon_at(run(number), noise)

        found = _last_that_meets(
            look, target.epsilon, guess, min(ends), max(ends), rising=ends[0] < ends[1]
        )
        if found is not None:
            return found
        epsilon, needed = look(ends[0]), Planner(target).solve(run(ends[0]))
        raise ValueError(
            f"noise_multiplier = {noise!r} is too little for sampler {self.way}: "
            f"{easiest} has epsilon {epsilon:.4g}, the target is {target.epsilon!r}; allow that "
            "epsilon"
            + (f", or take noise {needed.noise_multiplier!r}" if needed is not None else "")
        )


def _last_that_meets(
    look: Callable[[int], float],
    target: float,
    guess: float,
    lowest: int,
    highest: int,
    rising: bool,
) -> tuple[int, float] | None:
    """The last whole number that meets the target and its bound; None if the easiest does not.

    ``rising`` says whether the bound grows with the number. The next one was seen to fail, or lies
    outside the range.
    """
    known: dict[int, float] = {}

    def excess(number: int) -> float:
        if number not in known:
            known[number] = look(number)
        return (
            math.log(max(known[number], 1e-12) / target) if math.isfinite(known[number]) else 50.0
        )

    number = int(min(max(round(guess), lowest), highest))
    meets, factor = excess(number) <= 0.0, 1.05
    up = meets == rising
    other, end = number, highest if up else lowest
    while (excess(other) <= 0.0) == meets:
        if other == end:
            return (end, known[end]) if meets else None
        number = other
        other = (
            min(math.ceil(other * factor), highest)
            if up
            else max(math.floor(other / factor), lowest)
        )
        factor = factor * factor
    good, bad = (number, other) if meets else (other, number)
    at_good, at_bad = excess(good), excess(bad)
    # regula falsi in logarithms, the stale end's weight halved (the Illinois rule)
    while abs(bad - good) > 1:
        share = min(max(at_good / (at_good - at_bad), 0.02), 0.98) if at_bad > at_good else 0.5
        middle = round(good * (bad / good) ** share)
        middle = min(max(middle, min(good, bad) + 1), max(good, bad) - 1)
        if (value := excess(middle)) <= 0.0:
            good, at_good, at_bad = middle, value, at_bad / 2.0
        else:
            bad, at_bad, at_good = middle, value, at_good / 2.0
    return good, known[good]
