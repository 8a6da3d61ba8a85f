"""The DP calculator of "Proactive DP": fix some quantities, get the others, in closed form.

:func:`simple` is appendix D.4, :func:`next_phase` appendix E.1. Both stop at the true solution for
gamma, where the paper's stopping rule keeps the first iterate, and both check their whole-numbered
answer with theorem B.4 again. They are for insight: the accountant proves 3 to 5 times less epsilon
for the same run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from verax import checks
from verax.mechanism import Mechanism
from verax.planning.closed_form import theorems
from verax.planning.closed_form.theorems import (
    FailedCondition,
    GrantedGuarantee,
    SampleSizes,
    Work,
    theorem_31,
    theorem_b4,
)
from verax.samplers import Poisson


@dataclass(frozen=True)
class Target:
    """An (epsilon, delta) and the noise multiplier that equation (1) ties to it."""

    epsilon: float
    delta: float
    sigma: float


@dataclass(frozen=True)
class Setting:
    """What the calculator prints: (epsilon, delta, sigma, gamma, theta, k, N, s, T).

    ``batch`` is the mean, ``theta * batch`` the largest. ``granted_by`` names the theorems that
    prove it, if any does.
    """

    epsilon: float
    delta: float
    sigma: float
    gamma: float
    theta: float
    epochs: float
    population: int
    batch: int
    rounds: int
    granted_by: tuple[str, ...]

    def mechanism(self) -> Mechanism:
        """The run for the accountant; with theta > 1 the dearest: the largest batch, fewer rounds.

        Of all sequences with this mean and this maximum it has the largest sum of squares.
        """
        rate = self.theta * self.batch / self.population
        return Mechanism(Poisson(rate, math.ceil(self.rounds / self.theta)), self.sigma)


@dataclass(frozen=True)
class Answer:
    """The fewest rounds that the theorem proves, and 2 gamma times fewer, its asymptotics."""

    minimum: Setting
    asymptotic: Setting


def budget(
    population: int,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
) -> Target:
    """The third of epsilon, delta and sigma from any two; without a delta, it is 1/N.

    >>> round(budget(10_000, sigma=19.29962).epsilon, 4)
    0.0497
    """
    if epsilon is not None and sigma is not None:
        if delta is not None:
            raise ValueError("epsilon, delta and sigma: give two of them, got three")
        room = (checks.positive("sigma", sigma) ** 2 / 2.0 - 1.0) * checks.positive(
            "epsilon", epsilon
        )
        if room <= 0.0:
            raise ValueError(f"sigma must exceed sqrt(2) for the closed form, got {sigma!r}")
        delta = math.exp(-room * (1.0 - 1e-11))
        return Target(epsilon, checks.probability("delta", delta), sigma)
    delta = 1.0 / checks.count("population", population, minimum=2) if delta is None else delta
    if epsilon is not None:
        return Target(epsilon, checks.probability("delta", delta), theorems.sigma(epsilon, delta))
    if sigma is None:
        raise ValueError("give epsilon or sigma, got neither")
    return Target(theorems.epsilon_of(sigma, delta), delta, sigma)


def simple(
    population: int,
    target: Target,
    *,
    epochs: float | None = None,
    batch: int | None = None,
    rounds: int | None = None,
    theta: float = 1.0,
) -> Answer:
    """Complete one of (epochs, batch, rounds) so that theorem B.4 grants the target.

    The largest batches, hence the fewest rounds, for a number of epochs; the most epochs for a
    batch or a number of rounds.

    >>> answer = simple(60_000, budget(60_000, sigma=12.10881), epochs=6)
    >>> answer.minimum.batch, answer.minimum.rounds, answer.asymptotic.batch
    (412, 873, 3042)
    """
    checks.count("population", population, minimum=2)
    if sum(value is not None for value in (epochs, batch, rounds)) != 1:
        raise ValueError("epochs, batch and rounds: give exactly one of them")
    if checks.positive("theta", theta) < 1.0:
        raise ValueError(f"theta must be at least 1, got {theta!r}")

    def verdict(size: int, count: float) -> GrantedGuarantee | FailedCondition:
        return theorem_b4(
            _work(population, size, count, theta), target.sigma, target.epsilon, target.delta
        )

    widest = math.floor(population / theta)
    if epochs is not None:
        total = checks.positive("epochs", epochs) * population
        if total < 1.0:
            raise ValueError(
                f"epochs must be at least 1/population = {1 / population:g}, got {epochs!r}"
            )
        size = _largest(lambda s: verdict(s, total / s), min(widest, math.floor(total)))
        count = math.floor(total / max(size, 1))
    elif batch is not None:
        size = checks.count("batch", batch, maximum=widest)
        count = _largest(lambda t: verdict(size, t), checks.MAX_COUNT)
    else:
        count = checks.count("rounds", rounds)
        size = _largest(lambda s: verdict(s, count), widest)
    if min(size, count) == 0:
        raise checks.NoGuarantee(_why(verdict, max(size, 1), max(count, 1), population))
    minimum = _setting(population, target, size, count, theta)
    asked = minimum.epochs if epochs is None else epochs
    loose = max(1, min(widest, math.floor(2.0 * target.epsilon * population / (theta**2 * asked))))
    again = max(1, math.floor(asked * population / loose))
    return Answer(minimum, _setting(population, target, loose, again, theta))


def _work(population: int, batch: int, rounds: float, theta: float) -> Work:
    return Work(population, rounds, batch * rounds / population, theta)


def _setting(population: int, target: Target, batch: int, rounds: int, theta: float) -> Setting:
    work = _work(population, batch, rounds, theta)
    found = [
        theorem(work, target.sigma, target.epsilon, target.delta)
        for theorem in (theorem_b4, theorem_31)
    ]
    gamma = theorems.gamma(
        theorems.sigma(target.epsilon, target.delta), target.epsilon, work.epochs
    )
    return Setting(
        target.epsilon,
        target.delta,
        target.sigma,
        gamma,
        theta,
        work.epochs,
        population,
        batch,
        rounds,
        tuple(verdict.theorem for verdict in found if isinstance(verdict, GrantedGuarantee)),
    )


def _why(
    verdict: Callable[[int, float], GrantedGuarantee | FailedCondition],
    batch: int,
    rounds: int,
    population: int,
) -> str:
    """Why nothing is granted, and the nearest that is: with this batch, then with the smallest."""
    most = _largest(lambda count: verdict(1, count), checks.MAX_COUNT)
    shown = f"at most {most} rounds, {most / population:.4g} epochs"
    return (
        f"no guarantee in closed form, even with batch {batch} in {rounds} rounds: "
        f"{verdict(batch, rounds)}; batches of one record are granted for {shown}"
    )


def _largest(
    granted: Callable[[int], GrantedGuarantee | FailedCondition], limit: int, first: int = 1
) -> int:
    """The largest count in [first, limit] that is granted, by bisection; 0 if ``first`` is not.

    With b = theta^2 batch / N, condition (34) reads k b gamma_at(b) <= epsilon: smaller batches and
    fewer rounds are granted if larger are.
    """
    low, high = 0, first
    while high <= limit and granted(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while low and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if granted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Phase:
    """The next phase: batch, rounds, noise, and the epsilon of all phases including it.

    The guarantee pretends that earlier rounds had this smaller noise too. It is proved if all
    phases are declared before the first one runs. If this one was chosen after looking at earlier
    releases, use a Rényi filter instead.
    """

    batch: int
    rounds: int
    sigma: float
    epsilon: float
    delta: float
    gamma: float
    theta: float
    sizes: SampleSizes

    @property
    def epochs(self) -> float:
        """k, the gradient work of all phases."""
        return self.sizes.work.epochs

    @property
    def population(self) -> int:
        """N."""
        return self.sizes.population


def next_phase(
    population: int,
    done: tuple[tuple[int, int], ...],
    epochs: float,
    epsilon: float,
    *,
    sigma: float | None = None,
    delta: float | None = None,
) -> Phase:
    """The largest batch for ``epochs`` more epochs, within epsilon for all phases together.

    The search starts at the largest batch so far. The paper starts at 1 and stops at the first
    failure, but the theorem sees the largest batch in every round, so that smaller batches than
    before, in more rounds, are the first to fail.

    Args:
        population: number of records.
        done: earlier phases; none for the first.
        epochs: gradient work of the next phase.
        epsilon: what all phases together may cost.
        sigma: noise of the next phase; by default what epsilon asks for.
        delta: 1/N by default.

    >>> first = next_phase(60_000, (), epochs=6, epsilon=0.15)
    >>> first.batch, round(first.sigma, 3), first.theta
    (408, 12.198, 1.0)
    >>> second = next_phase(60_000, ((408, 882),), epochs=2, epsilon=0.3, sigma=9.0)
    >>> second.batch, round(second.epsilon, 4)
    (499, 0.2992)
    """
    delta = 1.0 / checks.count("population", population, minimum=2) if delta is None else delta
    epsilon, total = (
        checks.positive("epsilon", epsilon),
        checks.positive("epochs", epochs) * population,
    )
    least = theorems.sigma(epsilon, delta)
    noise = least if sigma is None else checks.positive("sigma", sigma)
    if noise < least:
        raise checks.NoGuarantee(
            f"sigma {noise:.5g} is too small for epsilon {epsilon:.4g} at delta {delta:.3g}: it "
            f"must be at least {least:.5g}, or epsilon at least "
            f"{theorems.epsilon_of(noise, delta):.4g}"
        )

    def sizes(batch: int) -> SampleSizes:
        return SampleSizes(population, (*done, (batch, max(1, math.floor(total / batch)))))

    def verdict(batch: int) -> GrantedGuarantee | FailedCondition:
        return theorem_b4(sizes(batch).work, noise, epsilon, delta)

    most = min(population - 1, max(1, math.floor(total)))
    first = min(most, max((size for size, _ in done), default=1))
    batch = _largest(verdict, most, first)
    if batch == 0:
        raise checks.NoGuarantee(
            f"no batch is granted for {epochs:g} more epochs: {verdict(first)}"
        )
    best, work = epsilon, sizes(batch).work
    floor = 0.0 if sigma is None else theorems.epsilon_of(noise, delta)
    if floor < epsilon:
        best = _least_epsilon(work, sigma, floor, epsilon, delta)
    chosen = theorems.sigma(best, delta) if sigma is None else noise
    gamma = theorems.gamma(theorems.sigma(best, delta), best, work.epochs)
    rounds = sizes(batch).blocks[-1][1]
    return Phase(batch, rounds, chosen, best, delta, gamma, work.theta, sizes(batch))


def _least_epsilon(work: Work, noise: float | None, low: float, high: float, delta: float) -> float:
    """The smallest epsilon in [low, high] that theorem B.4 grants, within 1e-9; needs ``high``."""
    if noise is not None and theorem_b4(work, noise, low, delta):
        return low
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        if theorem_b4(work, noise or theorems.sigma(middle, delta), middle, delta):
            high = middle
        else:
            low = middle
    return high
