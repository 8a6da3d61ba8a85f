"""Groups by simulation: algorithm 2 of "optimal group privacy", corrected, with intervals.

Draw runs of T rounds without the group (pmf X) or with it (pmf Y) and add up the log likelihood
ratios L = log dY/dX. With a = e^eps the two directions are

    delta_1 = E_X (1 - a e^L)+,    delta_2 = E_Y (1 - a e^-L)+ = 1 - a + a E_X (1 - e^L / a)+.

The paper estimates both from draws of X. That is unbiased once line 21 multiplies by nu/mu (it
prints mu/nu, which estimates something else: docs/errata.md), but the second one's error carries a
factor of up to a. Drawing it from Y costs the same and carries none. The proved brackets of
:meth:`verax.Mechanism.guarantee` are narrower than either; this is a check that shares only the
one-round mixture with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from verax import checks
from verax.checks import NoGuarantee
from verax.mechanism import GEOMETRIES, Batch, Individual, Mechanism, Mixed
from verax.privacy.analysis import MAX_GROUP
from verax.privacy.guarantee import Bracket
from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_pmf
from verax.privacy.numerics.roots import bisect, bracket
from verax.privacy.numerics.rounding import OPS_8000
from verax.privacy.pairs.gaussian_mixture import Mixture
from verax.privacy.pairs.mixture_weights import distinct_groups
from verax.samplers.poisson import Poisson

SAMPLINGS = ("both", "paper")
WORK = 5_000_000  # rounds drawn by default
_MOST_SAMPLES, _FEWEST_SAMPLES = 200_000, 1000
_BLOCK = 1_000_000  # rounds at once
# standard deviations that are tabulated on either side: further out falls one draw in 10^32
_BEYOND = 12.0
_MOST_NODES = 2**20
_MOST_SHIFT = 1e12  # beyond this a table says nothing
_HUGE = 700.0
_FINE = 0.05  # distance of nodes times the largest shift
# weights left out: one could matter only to a draw of which there is not one in 10^30 runs
_NEVER = 1e-100


def default_samples(mechanism: Mechanism) -> int:
    """How many runs to draw so that a group takes about a second."""
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism must be a Mechanism, got {mechanism!r}; for Phases use guarantee()"
        )
    return min(max(WORK // len(mechanism.sampler), _FEWEST_SAMPLES), _MOST_SAMPLES)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Log likelihood ratios of simulated runs, and intervals with the stated confidence.

    ``absent`` were drawn without the group, ``present`` with it (None if only the former were);
    ``error`` bounds the numerical error of each.
    """

    absent: Array
    present: Array | None
    confidence: float
    error: float

    def delta(self, epsilon: float) -> Bracket:
        """An interval that holds delta(epsilon) with the stated confidence."""
        epsilon, miss = checks.nonnegative("epsilon", epsilon), (1.0 - self.confidence) / 4.0
        if self.present is not None:
            return self._bracket(self._limit(epsilon, miss, -1), self._limit(epsilon, miss, 1))
        low, high = (self._limit(epsilon, miss, side) for side in (-1, 1))
        scale = math.exp(min(epsilon, _HUGE))  # times any radius more than 1
        _, radius = _bernstein(-np.expm1(np.minimum(self.absent - epsilon, 0.0)), miss)
        second, slack = self._second(epsilon), scale * radius + self.error
        return self._bracket(max(low, second - slack, 0.0), min(max(high, second + slack), 1.0))

    def epsilon(self, delta: float) -> Bracket:
        """An interval that holds epsilon(delta) with the stated confidence.

        Each limit on delta(epsilon) falls in epsilon, run by run. So the place where a limit meets
        ``delta`` is on the wrong side of the true epsilon only if the limit at the true epsilon is
        wrong: no search spends confidence.
        """
        delta, miss = checks.probability("delta", delta), (1.0 - self.confidence) / 4.0
        if self.present is None:
            raise ValueError(
                "an interval for epsilon needs sampling='both', "
                "got a simulation with sampling='paper'"
            )
        low = _crossing(lambda e: self._limit(e, miss, -1) > delta, -1)
        high = _crossing(lambda e: self._limit(e, miss, 1) > delta, 1)
        return self._bracket(min(low, high), high)

    def estimate(self, epsilon: float) -> float:
        """Delta as the algorithm would print it: no bound of any kind."""
        epsilon = checks.nonnegative("epsilon", epsilon)
        first = float(np.mean(_excess(-self.absent - epsilon)))
        if self.present is not None:
            return max(first, float(np.mean(_excess(self.present - epsilon))))
        return max(first, self._second(epsilon), 0.0)

    def _second(self, epsilon: float) -> float:
        """1 - a + a E_X (1 - e^L / a)+ from the runs without the group."""
        return 1.0 - float(np.mean(np.exp(np.minimum(self.absent, epsilon))))

    def _limit(self, epsilon: float, miss: float, side: int) -> float:
        """The larger of the directions' limits, each wrong with probability at most ``miss``."""
        pull = epsilon - side * self.error
        means = [float(np.mean(_excess(-self.absent - pull)))]
        if self.present is not None:
            means.append(float(np.mean(_excess(self.present - pull))))
        return max(_chernoff(mean, len(self.absent), miss, side) for mean in means)

    def _bracket(self, low: float, high: float) -> Bracket:
        how = f"{len(self.absent)} simulated runs"
        return Bracket(low, high, f"monte-carlo, confidence {self.confidence:g}", how, how)


def simulate(
    mechanism: Mechanism,
    group: int = 1,
    *,
    samples: int | None = None,
    sampling: str = "both",
    confidence: float = 0.99,
    geometry: str = "any",
    insecure_seed: int | None = None,
) -> Simulation:
    """Simulate Poisson rounds with and without a group of records that hurt most.

    Args:
        mechanism: Poisson batches under add-remove or zero-out neighbours; any clipping.
        group: how many records.
        samples: how many runs; by default as many as take about a second.
        sampling: "both" draws each direction from its own pmf; "paper" draws only runs without the
            group, as algorithm 2 does, and can say little about large epsilons.
        confidence: with which an interval holds.
        geometry: "orthogonal" if the group's gradients are, as in
            :meth:`verax.Mechanism.guarantee`.
        insecure_seed: repeat a simulation exactly.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.1, steps=1), noise_multiplier=1.0)
    >>> found = simulate(run, group=4, samples=100_000, insecure_seed=1).delta(epsilon=1.0)
    >>> found.lower < 0.02833 < found.upper, found.evidence
    (True, 'monte-carlo, confidence 0.99')
    """
    checks.choice("sampling", sampling, SAMPLINGS)
    checks.probability("confidence", confidence)
    usual = default_samples(mechanism)
    runs = usual if samples is None else checks.count("samples", samples, minimum=2)
    rounds, mixture = _rounds(mechanism, checks.count("group", group, maximum=MAX_GROUP), geometry)
    table = _Table(mixture)
    seed = checks.seed(insecure_seed)
    absent_rng, present_rng = np.random.default_rng(seed).spawn(2)
    absent = _sums(runs, rounds, lambda shape: table(absent_rng.standard_normal(shape)))
    weights, shifts = np.cumsum(mixture.weights), np.array(mixture.shifts)

    def with_group(shape: tuple[int, int]) -> Array:
        which = np.searchsorted(weights[:-1], present_rng.random(shape), side="right")
        return table(present_rng.standard_normal(shape) + shifts[which])

    present = _sums(runs, rounds, with_group) if sampling == "both" else None
    return Simulation(absent, present, confidence, rounds * (table.error + OPS_8000))


def _rounds(mechanism: Mechanism, group: int, geometry: str) -> tuple[int, Mixture]:
    """The number of rounds, and the mixture of shifts of each (docs/proofs.md, section 1)."""
    checks.choice("geometry", geometry, GEOMETRIES)
    sampler, clipping = mechanism.sampler, mechanism.clipping
    if not isinstance(sampler, Poisson) or mechanism.relation == "replace":
        raise NoGuarantee(
            "the simulation is of Poisson batches under relation 'add-remove' or 'zero-out', got "
            f"{type(sampler).__name__} under {mechanism.relation!r}; use Mechanism.guarantee"
        )
    if mechanism.noise_multiplier == 0.0:
        raise ValueError(
            "the simulation needs a noise_multiplier above 0, got 0: "
            "without noise epsilon is infinite"
        )
    rounds = len(sampler)
    match clipping:
        case Individual() if (
            geometry == "orthogonal"
        ):  # each record is seen in a direction of its own
            rounds, weights, unit = rounds * group, binomial_pmf(1, sampler.rate), 1.0
        case Individual():
            weights, unit = binomial_pmf(group, sampler.rate), 1.0
        case Batch():
            weights, unit = distinct_groups(group, sampler.rate, 1), 2.0
        case Mixed():
            weights, unit = distinct_groups(group, sampler.rate, clipping.groups), 2.0
    places = np.flatnonzero(weights > _NEVER)
    if places[-1] * unit > _MOST_SHIFT * mechanism.noise_multiplier:
        least = places[-1] * unit / _MOST_SHIFT
        raise ValueError(
            f"noise_multiplier must be at least {least:g} to be simulated, "
            f"got {mechanism.noise_multiplier!r}; "
            "use Mechanism.guarantee"
        )
    shifts = places * (unit / mechanism.noise_multiplier)
    return rounds, Mixture(tuple(np.log(weights[places]).tolist()), tuple(shifts.tolist()))


class _Table:
    """The log likelihood ratio of one round, log sum_j w_j exp(s_j x - s_j^2 / 2), by cubic pieces.

    Its n-th derivative is the n-th cumulant of the shift given x. The fourth of a variable on an
    interval of length S is at most 3 S^4 / 16 in size (Popoviciu), so pieces of length h err by at
    most h^4 / 384 of that.
    """

    def __init__(self, mixture: Mixture) -> None:
        largest = max(mixture.shifts)
        self._low, high = -_BEYOND, largest + _BEYOND
        pieces = min(
            max(math.ceil((high - self._low) * max(largest, 1.0) / _FINE), 16), _MOST_NODES
        )
        self._step = (high - self._low) / pieces
        x = self._low + self._step * np.arange(pieces + 1.0)
        parts = np.array_split(x, max(1, len(x) * len(mixture.shifts) // 4_000_000))
        with np.errstate(divide="ignore"):  # ratios of 1e-17 and less are first taken for 0
            value = np.concatenate([mixture.log_likelihood(part) for part in parts])
        slope = np.concatenate([mixture.mean_shift(part) for part in parts]) * self._step
        rise = np.diff(value)
        self._cubic = (
            value[:-1],
            slope[:-1],
            3.0 * rise - 2.0 * slope[:-1] - slope[1:],
            slope[:-1] + slope[1:] - 2.0 * rise,
        )
        spread = largest - min(mixture.shifts)
        self.error = self._step**4 / 384.0 * 3.0 * spread**4 / 16.0

    def __call__(self, x: Array) -> Array:
        place = np.clip((x - self._low) / self._step, 0.0, len(self._cubic[0]) - 1e-9)
        piece = place.astype(np.int64)
        u = place - piece
        a, b, c, d = (part[piece] for part in self._cubic)
        return np.asarray(a + u * (b + u * (c + u * d)))


def _sums(runs: int, rounds: int, draw: Callable[[tuple[int, int]], Array]) -> Array:
    """Sums over the rounds of each run, a block of runs, or of rounds of a run, at a time."""

    def blocks(total: int, size: int) -> Iterator[int]:
        for start in range(0, total, size):
            yield min(size, total - start)

    wide = min(rounds, _BLOCK)
    return np.concatenate(
        [
            np.sum([draw((some, length)).sum(axis=1) for length in blocks(rounds, wide)], axis=0)
            for some in blocks(runs, max(_BLOCK // wide, 1))
        ]
    )


def _excess(log_ratio: Array) -> Array:
    """(1 - e^-u)+ of u."""
    return np.asarray(-np.expm1(-np.maximum(log_ratio, 0.0)))


def _chernoff(mean: float, count: int, miss: float, side: int) -> float:
    """A limit on the mean of variables in [0, 1], wrong with probability ``miss`` at most.

    Their mean m exceeds p with probability at most exp(-n kl(m, p)) (Hoeffding 1963, theorem 1);
    solved for p.
    """
    goal = -math.log(miss) / count
    end = 1.0 if side > 0 else 0.0
    return bisect(lambda p: _kl(mean, p) <= goal, mean, end, halvings=60)[1]


def _kl(m: float, p: float) -> float:
    if not 0.0 < p < 1.0:
        return 0.0 if m == p else math.inf
    left = m * math.log(m / p) if m > 0.0 else 0.0
    return left + ((1.0 - m) * math.log((1.0 - m) / (1.0 - p)) if m < 1.0 else 0.0)


def _bernstein(values: Array, miss: float) -> tuple[float, float]:
    """Mean of variables in [0, 1], and its distance from the expectation at level 2 ``miss``.

    (Maurer and Pontil 2009, theorem 4, once for each side.)
    """
    count, log = len(values), math.log(2.0 / miss)
    return float(values.mean()), math.sqrt(
        2.0 * float(values.var(ddof=1)) * log / count
    ) + 7.0 * log / (3.0 * (count - 1))


def _crossing(above: Callable[[float], bool], side: int) -> float:
    """Where a falling limit comes down to its target, rounded up (``side`` 1) or down (-1)."""
    if not above(0.0):
        return 0.0
    low, high = bracket(above, 0.0, 1.0, limit=1e6)
    if high > 1e6:
        return math.inf if side > 0 else low
    return bisect(above, low, high, rtol=1e-6)[side > 0]
