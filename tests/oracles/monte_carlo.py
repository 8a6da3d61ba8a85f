"""A cross-check by simulation of what a record that picks its rounds at random costs, with a stated confidence.

It shares nothing with the numerics of ``verax.privacy.pairs.one_of_many`` but the likelihood ratio
S of the transcript with the record to the one without. Both directions are expectations over
transcripts without it, of (S - a)_+ and of (1 - a S)_+ with a = e^eps, and both are sampled from
tilted laws under which what is averaged is *bounded*, by W say:

* present against absent: density S^k, for whole k. S^k is an average over k-tuples of rounds; given
  the tuple the scores are independent Gaussians shifted by how often each round occurs, and (S -
  a)_+ / S^k is largest at S = a k / (k - 1). W is then the bound on delta that the moment E S^k
  alone would give, a few times delta.
* absent against present: density e^(-s S), one round's score at a time, and (1 - a S) e^(s S) is
  largest at S = 1/a - 1/s. W is Chernoff's bound.

A bounded variable Z in [0, W] is turned into a coin that shows heads with probability Z / W; heads
are counted and Clopper and Pearson's interval for their probability is exact at any number of
trials. As epsilon grows no coin turns from tails to heads, so the interval may be inverted for an
epsilon without further correction.

Where no tilt is known (several rounds a record, or several epochs and "absent against present") W
is 1, and deltas far below 1 / trials are out of sight: the upper end says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from verax import checks
from verax.mechanism import Mechanism
from verax.privacy.guarantee import Bracket
from verax.privacy.numerics import Array
from verax.privacy.numerics.proportions import (
    fewest_above,
    most_below,
    proportion_at_least,
    proportion_at_most,
)
from verax.privacy.samplers.base import presence_shift
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.random_allocation import RandomAllocation

DIRECTIONS = ("remove", "add")
_HIGHEST_POWER = 255
_MOST_ROUNDS = 10**7
# beyond these likelihood ratios lose their digits, or leave the range of doubles
_SHIFTS = (1e-6, 50.0)
# log of the largest rate of a tilt: deltas at larger epsilons are below _SMALLEST_DELTA
_STEEPEST = 4000.0
# relative error of the largest value of a coin's weight, far above what doubles give
_ROUND_OFF = 1e-9
_SMALLEST_DELTA = 1e-300  # below this doubles lose their digits
_CELLS = 2**21  # scores drawn at once
_PILOT = 4000  # trials that find out where epsilon lies, before those that count
_SEEN, _LEVELS = 40, 30  # heads to see at each of so many levels, on the way there
_REACH = 650.0  # log of the largest product of ratios that is multiplied out
_STEPS = np.arange(-14.0, 14.0, 0.005)  # quadrature of one score, around its mode


def estimate(
    mechanism: Mechanism,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    trials: int = 100_000,
    confidence: float = 0.999,
    directions: tuple[str, ...] = DIRECTIONS,
    insecure_seed: int | None = None,
) -> Bracket:
    """Delta at ``epsilon``, or epsilon at ``delta``, of BallsInBins or RandomAllocation, by simulation.

    Args:
        mechanism: the run; noise above 0, one record added, removed or zeroed out.
        epsilon: where delta is wanted; give this or ``delta``.
        delta: where epsilon is wanted.
        trials: simulated runs for each direction.
        confidence: probability, over the simulation, that both ends of the bracket hold.
        directions: "remove" compares present with absent, "add" absent with present; a guarantee
            needs both.
        insecure_seed: makes the answer repeatable. Nothing private is drawn here.

    >>> from verax import BallsInBins, Mechanism
    >>> run = Mechanism(BallsInBins(bins=10), noise_multiplier=1.0)
    >>> seen = estimate(run, epsilon=1.0, trials=20_000, insecure_seed=0)
    >>> proved = run.guarantee().delta(epsilon=1.0)
    >>> seen.lower < proved.upper and proved.lower < seen.upper
    True
    >>> seen.evidence
    'monte-carlo, confidence 0.999'
    """
    race = _race(mechanism)
    if (epsilon is None) == (delta is None):
        raise ValueError(
            f"give either epsilon or delta, got epsilon={epsilon!r} and delta={delta!r}"
        )
    trials = checks.count("trials", trials)
    confidence = checks.probability("confidence", confidence)
    _check(directions)
    doubt = (1.0 - confidence) / (2.0 * len(directions))
    seed = checks.seed(insecure_seed)
    rng = np.random.default_rng(seed)
    if epsilon is not None:
        level = checks.nonnegative("epsilon", epsilon)
        ends = [_delta(race, direction, level, trials, doubt, rng) for direction in directions]
    else:
        chance = checks.probability("delta", delta)
        ends = [_epsilon(race, direction, chance, trials, doubt, rng) for direction in directions]
    how = f"Clopper-Pearson over {trials} simulated runs for each of: {', '.join(directions)}"
    lower, upper = (max(end[side] for end in ends) for side in (0, 1))
    return Bracket(lower, upper, f"monte-carlo, confidence {confidence:g}", how, how)


def _check(directions: object) -> None:
    chosen = directions if isinstance(directions, Sequence) else ()
    if not chosen or any(d not in DIRECTIONS for d in chosen) or len(set(chosen)) < len(chosen):
        raise ValueError(f"directions must be some of {DIRECTIONS}, got {directions!r}")


@dataclass(frozen=True)
class _Race:
    """``times`` of ``count`` rounds are shifted by ``shift``, afresh in each epoch."""

    times: int
    count: int
    epochs: int
    shift: float


def _race(mechanism: Mechanism) -> _Race:
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism must be a Mechanism, got {mechanism!r}; for Phases use guarantee()"
        )
    sampler = mechanism.sampler
    if mechanism.relation == "replace" or not isinstance(sampler, BallsInBins | RandomAllocation):
        raise checks.NoGuarantee(
            "simulation is for BallsInBins and RandomAllocation with relation='add-remove' or 'zero-out', "
            f"got {type(sampler).__name__} with relation={mechanism.relation!r}; use guarantee()"
        )
    checks.positive("noise_multiplier", mechanism.noise_multiplier)
    times, count = (
        (1, sampler.bins) if isinstance(sampler, BallsInBins) else (sampler.times, sampler.steps)
    )
    if count > _MOST_ROUNDS:
        raise ValueError(
            f"an epoch must have at most {_MOST_ROUNDS} rounds to be simulated, got {count}"
        )
    shift = presence_shift(mechanism)
    if not _SHIFTS[0] <= shift <= _SHIFTS[1]:
        least, most = (mechanism.noise_multiplier * shift / end for end in reversed(_SHIFTS))
        raise ValueError(
            f"noise_multiplier must lie between {least:g} and {most:g} to be simulated, "
            f"got {mechanism.noise_multiplier!r}; use guarantee()"
        )
    return _Race(times, count, sampler.epochs, shift)


def _delta(
    race: _Race, direction: str, epsilon: float, trials: int, doubt: float, rng: np.random.Generator
) -> tuple[float, float]:
    law = _tilted(race, direction, epsilon)
    if law.log_bound(epsilon) < math.log(_SMALLEST_DELTA):
        return 0.0, _SMALLEST_DELTA
    heads, most = (
        int(np.count_nonzero(law.falls(epsilon, trials, rng) > epsilon)),
        math.exp(law.log_bound(epsilon)),
    )
    low, high = proportion_at_least(heads, trials, doubt), proportion_at_most(heads, trials, doubt)
    return min(low * most * (1.0 - _ROUND_OFF), 1.0), min(high * most * (1.0 + _ROUND_OFF), 1.0)


def _epsilon(
    race: _Race, direction: str, delta: float, trials: int, doubt: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Each end is an epsilon at which the interval for delta lies on one side of the delta asked for."""
    start = _place(race, direction, delta, rng)
    law = _tilted(race, direction, start)
    goal = delta / math.exp(law.log_bound(start))
    falls = np.sort(law.falls(start, trials, rng))[::-1]
    many = fewest_above(trials, goal * (1.0 + _ROUND_OFF), doubt)
    few = most_below(trials, goal * (1.0 - _ROUND_OFF), doubt)
    lower = float(falls[many - 1]) if 0 < many <= trials else 0.0
    upper = (float(falls[few]) if few < trials else start) if few >= 0 else math.inf
    return lower if lower > start else 0.0, max(upper, start)


def _place(race: _Race, direction: str, delta: float, rng: np.random.Generator) -> float:
    """An epsilon a little below the one at delta, or as near as a few trials come; any start is valid."""
    start = 0.0
    for _ in range(_LEVELS):
        law = _tilted(race, direction, start)
        falls = np.sort(law.falls(start, _PILOT, rng))[::-1]
        heads = 2.0 * delta / math.exp(law.log_bound(start)) * _PILOT
        fresh = max(float(falls[min(max(int(heads), _SEEN), _PILOT - 1)]), start)
        if heads > _SEEN or fresh <= start:
            return fresh
        start = fresh
    return start


class _Powers:
    """Present against absent, sampled from the density S^power."""

    def __init__(self, race: _Race, power: int) -> None:
        self.race, self.power = race, power
        self._logs = _tuples(race.count, race.shift, 4 ** math.ceil(math.log(power + 1.0, 4.0)))

    @property
    def log_moment(self) -> float:
        """log E S^power."""
        once = float(self._logs[0, self.power]) - self.power * math.log(self.race.count)
        return self.race.epochs * once if self.power > 1 else 0.0

    def log_bound(self, epsilon: float) -> float:
        """log of the largest value of E S^k (S - a)_+ / S^k."""
        k = self.power
        return (
            self.log_moment
            + (1 - k) * epsilon
            + float(special.xlogy(k - 1, k - 1) - special.xlogy(k, k))
        )

    def falls(self, start: float, trials: int, rng: np.random.Generator) -> Array:
        """For each trial a coin that shows heads with probability Z/W(start): the epsilon where it turns to tails."""
        log_s = np.zeros(trials)
        for _ in range(self.race.epochs):
            log_s += self._likelihoods(trials, rng)
        price = (
            np.log(rng.random(trials))
            + self.log_bound(start)
            - self.log_moment
            + (self.power - 1) * log_s
        )
        with np.errstate(divide="ignore"):
            return np.asarray(log_s + np.log(-np.expm1(np.minimum(price, 0.0))))

    def _likelihoods(self, trials: int, rng: np.random.Generator) -> Array:
        """log S of one epoch."""
        race = self.race
        rows = max(_CELLS // race.count, 1)
        found = np.empty(trials)
        for first in range(0, trials, rows):
            scores = rng.standard_normal((min(rows, trials - first), race.count))
            if race.times > 1:
                scores[:, : race.times] += race.shift
            else:
                hits = self._hits(len(scores), rng)
                scores[:, : hits.shape[1]] += race.shift * hits
            found[first : first + rows] = _log_ratio(race, scores)
        return found

    def _hits(self, trials: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """How often a random tuple holds each of its rounds; which rounds they are does not matter.

        The round of the tuple's first entry occurs m times with a chance proportional to the ways
        to choose the others of the m, times e^(u^2 m (m-1) / 2), times the weight of what is left.
        """
        hits = np.zeros((trials, min(self.power, self.race.count)), dtype=np.int64)
        left = np.full(trials, self.power)
        for used in range(hits.shape[1]):
            for rest in np.unique(left[left > 0]).tolist():
                times = np.arange(1, rest + 1)
                logs = _ways(rest, self.race.shift) + self._logs[used + 1, rest - times]
                chances = np.exp(logs - logs.max())
                who = np.flatnonzero(left == rest)
                hits[who, used] = rng.choice(times, len(who), p=chances / chances.sum())
            left -= hits[:, used]
        return hits


def _ways(rest: int, shift: float) -> Array:
    """Log of the weight of one round being hit m = 1, ..., rest times, the first entry among them."""
    m = np.arange(1.0, rest + 1.0)
    ways = special.gammaln(rest) - special.gammaln(m) - special.gammaln(rest - m + 1.0)
    return np.asarray(ways + 0.5 * (shift * shift) * m * (m - 1.0))


@lru_cache(maxsize=8)
def _tuples(count: int, shift: float, power: int) -> Array:
    """Log of the total weight of tuples: entry [j, i] for i entries over count - j rounds, as far as i <= power - j."""
    logs = np.full((power + 1, power + 1), -np.inf)
    logs[:, 0] = 0.0
    for used in range(power - 1, -1, -1):
        rounds = count - used
        for size in range(1, power - used + 1):
            if rounds > 0:
                parts = _ways(size, shift) + logs[used + 1, size - 1 :: -1][:size]
                logs[used, size] = math.log(rounds) + special.logsumexp(parts)
    return logs


class _Fading:
    """Absent against present, sampled from the density e^(-rate S); with rate 0 as it is."""

    def __init__(self, race: _Race, log_rate: float) -> None:
        self.race, self.log_rate = race, log_rate

    def log_bound(self, epsilon: float) -> float:
        """log of the largest value of E e^(-rate S) (1 - a S)_+ e^(rate S)."""
        above = self.log_rate - epsilon
        return self.log_norm + (math.expm1(above) - above if above > 0.0 else 0.0)

    @cached_property
    def log_norm(self) -> float:
        """log E e^(-rate S), by quadrature of one score around its mode."""
        if self.log_rate == -math.inf:
            return 0.0
        x = self._mode + _STEPS
        logs = -x * x / 2.0 - self._at_mode * np.exp(self.race.shift * _STEPS)
        one = special.logsumexp(logs) + math.log((_STEPS[1] - _STEPS[0]) / math.sqrt(2.0 * math.pi))
        return self.race.count * float(one)

    @cached_property
    def _mode(self) -> float:
        """Where x^2/2 + rate Y(x) / count is smallest: y = -u x solves y e^y = u^2 e^(-u^2/2) rate / count."""
        u = self.race.shift
        log_weight = self.log_rate - math.log(self.race.count)
        return -float(special.wrightomega(log_weight + 2.0 * math.log(u) - u * u / 2.0)) / u

    @property
    def _at_mode(self) -> float:
        """rate Y / count there."""
        return -self._mode / self.race.shift

    def falls(self, start: float, trials: int, rng: np.random.Generator) -> Array:
        """As in :class:`_Powers`."""
        log_s = np.zeros(trials)
        rows = max(_CELLS // self.race.count, 1)
        for _ in range(self.race.epochs):
            for first in range(0, trials, rows):
                scores = self._scores((min(rows, trials - first), self.race.count), rng)
                log_s[first : first + rows] += _log_ratio(self.race, scores)
        price = np.log(rng.random(trials)) + self.log_bound(start) - self.log_norm
        price -= np.exp(self.log_rate + log_s)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1(np.minimum(price, 0.0))) - log_s)

    def _scores(self, shape: tuple[int, int], rng: np.random.Generator) -> Array:
        """Scores of density e^(-x^2/2 - rate Y(x) / count): Gaussians around its mode, thinned, Y being convex."""
        if self.log_rate == -math.inf:
            return rng.standard_normal(shape)
        u = self.race.shift
        scores = np.empty(shape[0] * shape[1])
        missing = np.arange(len(scores))
        while missing.size:
            step = rng.standard_normal(missing.size)
            kept = rng.random(missing.size) < np.exp(
                -self._at_mode * (np.expm1(u * step) - u * step)
            )
            scores[missing[kept]] = self._mode + step[kept]
            missing = missing[~kept]
        return scores.reshape(shape)


def _tilted(race: _Race, direction: str, epsilon: float) -> _Powers | _Fading:
    """The law under which delta at this epsilon has the smallest bound."""
    if direction == "remove":
        best, power = _Powers(race, 1), 2
        while race.times == 1 and power <= _HIGHEST_POWER:
            higher = _Powers(race, power)
            if higher.log_bound(epsilon) > best.log_bound(epsilon):
                break
            best, power = higher, power + 1
        return best
    if race.times > 1 or race.epochs > 1:
        return _Fading(race, -math.inf)
    fading = _Fading(race, min(epsilon, _STEEPEST))
    while fading.log_rate < _STEEPEST:
        faster = _Fading(race, fading.log_rate + math.log(1.2))
        if faster.log_bound(epsilon) >= fading.log_bound(epsilon):
            break
        fading = faster
    return fading


def _log_ratio(race: _Race, scores: Array) -> Array:
    """log S: the average over all sets of ``times`` rounds of the product of their likelihood ratios."""
    logs = race.shift * scores - race.shift**2 / 2.0
    if race.times == 1:
        top = logs.max(axis=1)
        return np.asarray(top + np.log(np.exp(logs - top[:, None]).mean(axis=1)))
    size = np.arange(1.0, race.times + 1.0)
    reach = np.partition(np.abs(logs), race.count - race.times, axis=1)[
        :, race.count - race.times :
    ].sum(axis=1)
    if reach.max() > _REACH:
        return _log_average(logs, size)
    ratios = np.exp(logs)
    # over the sets of 0, 1, ... of the rounds so far
    averages = np.zeros((len(scores), race.times + 1))
    averages[:, 0] = 1.0
    for t in range(race.count):
        share = np.minimum(size / (t + 1.0), 1.0)
        averages[:, 1:] = (1.0 - share) * averages[:, 1:] + share * ratios[:, t, None] * averages[
            :, :-1
        ]
    return np.asarray(np.log(averages[:, -1]))


def _log_average(logs: Array, size: Array) -> Array:
    """The same, for products that leave the range of doubles."""
    found = np.full((len(logs), len(size) + 1), -np.inf)
    found[:, 0] = 0.0
    for t in range(logs.shape[1]):
        share = np.minimum(size / (t + 1.0), 1.0)
        with np.errstate(divide="ignore"):
            without, within = np.log1p(-share), np.log(share)
        found[:, 1:] = np.logaddexp(
            without + found[:, 1:], within + logs[:, t, None] + found[:, :-1]
        )
    return np.asarray(found[:, -1])
