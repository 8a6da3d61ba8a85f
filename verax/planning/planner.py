"""One plan: the smallest certified noise for one sampler, batch size and number of epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from verax import checks
from verax.mechanism import Batch, Clipping, Individual, Mechanism, Mixed, Phases
from verax.planning.noise_search import (
    LARGEST_NOISE,
    Found,
    gaussian_fall,
    gaussian_growth,
    gaussian_limit,
    gaussian_shift,
    smallest_noise,
)
from verax.privacy.guarantee import Guarantee
from verax.privacy.pld.composition import Composition
from verax.privacy.samplers.base import pricing_of
from verax.samplers import Sampler
from verax.samplers.registry import planned


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
    if pricing_of(pricing_of(sampler).dominating()).closed_form:
        return 1.0, float(getattr(sampler, sampler.repeats))
    return min(sampler.expected_batch(records) / records, 1.0), float(len(sampler))


def upper_only(mechanism: Mechanism, group: int = 1) -> Guarantee:
    """The guarantee without its attacks: a trivial lower side and the proved upper one.

    >>> from verax import Mechanism, Shuffle
    >>> upper_only(Mechanism(Shuffle(batches=100), noise_multiplier=4.0)).epsilon(delta=1e-5)
    Bracket(lower=0, upper=0.9263...)
    """
    if group > 1:
        return replace(mechanism.guarantee(group), lowers=())
    run = replace(mechanism, sampler=pricing_of(mechanism.sampler).dominating())
    coarse = pricing_of(run.sampler).coarse_bound(run)
    if coarse is None:
        return replace(run.guarantee(), lowers=())
    directions, theorem = coarse
    return Guarantee(
        Phases((run,)), 1, [Composition(rounds) for rounds in directions], (), theorem, ""
    )
