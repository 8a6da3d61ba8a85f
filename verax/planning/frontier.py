"""All plans that meet a privacy target: the smallest certified noise per batch size and epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from verax import checks
from verax.mechanism import Batch, Clipping, Individual, Mechanism, Mixed
from verax.planning.accountant import upper_only
from verax.planning.central_limit import (
    gaussian_fall,
    gaussian_growth,
    gaussian_limit,
    gaussian_shift,
)
from verax.planning.search import LARGEST_NOISE, Found, smallest_noise
from verax.privacy.samplers.base import pricing_of
from verax.samplers import Deterministic, Poisson, Sampler
from verax.samplers.registry import planned

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Target:
    """The privacy target: any ``group`` of the ``records`` has at most ``epsilon`` at ``delta``.

    An empty ``relation`` means each sampler's own: add-remove, or zero-out for batches of fixed
    size.
    """

    records: int
    epsilon: float
    delta: float
    clipping: Clipping = Individual()
    relation: str = ""
    group: int = 1

    def __post_init__(self) -> None:
        checks.count("records", self.records)
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta)
        checks.count("group", self.group, maximum=self.records)

    def mechanism(self, sampler: Sampler, noise_multiplier: float) -> Mechanism:
        """The run with these batches and this noise."""
        return Mechanism(sampler, noise_multiplier, self.clipping, self.relation)

    def epsilon_at(self, sampler: Sampler, noise_multiplier: float) -> float:
        """The proved upper bound on the epsilon of that run."""
        return (
            upper_only(self.mechanism(sampler, noise_multiplier), self.group)
            .epsilon(self.delta)
            .upper
        )


@dataclass(frozen=True)
class Plan:
    """A run that meets its target, and what it costs.

    ``epsilon`` is the proved upper bound that was seen at exactly this noise; less noise by a part
    in a few hundred would not do (for an analysis that is exact; a better theorem may allow less).
    """

    target: Target
    way: str
    batch: int
    epochs: int
    sampler: Sampler = field(repr=False)
    noise_multiplier: float
    epsilon: float

    @property
    def mechanism(self) -> Mechanism:
        """The run, ready to be trained."""
        return self.target.mechanism(self.sampler, self.noise_multiplier)

    @property
    def rounds(self) -> int:
        """Rounds of communication: how often a noisy sum is released."""
        return len(self.sampler)

    @property
    def work(self) -> float:
        """Records touched: the expected number of gradients of single records over the run."""
        return self.rounds * self.sampler.expected_batch(self.target.records)

    @property
    def signal(self) -> float:
        """Signal to noise of one round: the largest clean sum over the noise in one direction.

        Both in units of the clip norm. With individual clipping that is expected batch / noise
        multiplier, reached if all gradients of the batch have full norm and agree. A clipped
        aggregate has length 1, ``m`` clip-groups ``m``.
        """
        return _length(self) / self.noise_multiplier if self.noise_multiplier > 0.0 else math.inf

    @property
    def signal_of_run(self) -> float:
        """Signal to noise of all rounds' average: sqrt(rounds) times that of one."""
        return math.sqrt(self.rounds) * self.signal

    @property
    def ratio(self) -> float:
        """Noise-to-batch ratio: noise per coordinate of an update of norm 1; 1 / signal."""
        return self.noise_multiplier / _length(self)


def _length(plan: Plan) -> float:
    """The divisor of the noisy sum: the expected batch, or the number of clipped aggregates."""
    match plan.target.clipping:
        case Individual():
            return plan.sampler.expected_batch(plan.target.records)
        case Batch():
            return 1.0
        case Mixed(groups=groups):
            return float(groups)


class Planner:
    """Solves for the noise of plans that meet one target.

    A plan depends on the target and on its own sampler alone: asked in another order, beside other
    plans or in another program, it has the same noise to the last digit.

    >>> planner = Planner(Target(records=60000, epsilon=1.0, delta=1e-5))
    >>> plan = planner.plan("poisson", batch=600, epochs=10)
    >>> plan.noise_multiplier, plan.rounds, round(plan.signal), round(plan.signal_of_run)
    (1.415..., 1000, 424, 134...)
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._mu = gaussian_shift(target.epsilon, target.delta)
        self._growth = gaussian_growth(self._mu, target.delta)

    def plan(self, way: str, batch: int, epochs: int) -> Plan:
        """The plan with the least noise, or an error that says how far off the target is."""
        target, sampler = self.target, planned(way, self.target.records, batch, epochs)
        found = self.solve(sampler)
        if found is None:
            least = target.epsilon_at(sampler, LARGEST_NOISE)
            raise ValueError(
                f"epsilon = {target.epsilon!r} at delta = {target.delta!r} is out of reach of "
                f"sampler {way}, batch {batch}, epochs {epochs}: even a noise multiplier of "
                f"{LARGEST_NOISE:g} has {least:.3g}; raise epsilon to "
                f"that{', lower group' if target.group > 1 else ''} or raise delta"
            )
        return Plan(target, way, batch, epochs, sampler, found.noise_multiplier, found.epsilon)

    def solve(self, sampler: Sampler) -> Found | None:
        """The least noise for this sampler; None if there is none."""
        target = self.target
        rate, rounds = _participation(sampler, target.records)
        guess = gaussian_limit(self._mu, rate, rounds) * _sensitivity(target, sampler)
        fall = gaussian_fall(self._growth, guess)
        return smallest_noise(
            lambda noise: target.epsilon_at(sampler, noise), target.epsilon, guess, fall
        )


def _sensitivity(target: Target, sampler: Sampler) -> float:
    """How far one record moves a clipped sum, in clip norms; the noise is about proportional."""
    alone = isinstance(target.clipping, Individual)
    return 1.0 if alone and target.mechanism(sampler, 1.0).relation != "replace" else 2.0


def _participation(sampler: Sampler, records: int) -> tuple[float, float]:
    """The rate and number of rounds of a record; one round an epoch where batches are fixed.

    A guess at the noise is made of these; it need not be exact.
    """
    if isinstance(pricing_of(sampler).dominating(), Deterministic):
        return 1.0, float(getattr(sampler, sampler.repeats))
    return min(sampler.expected_batch(records) / records, 1.0), float(len(sampler))


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
