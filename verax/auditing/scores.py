"""Score a transcript by its likelihood ratio, under a model of the sampler learned from runs.

The model never enters the guarantee, only the power: any score gives a valid bound. It has two
parts. The *distributions* of a round's clean sum with the target, with its ghost and without
either; and the *placement*, which rounds the target may be in together. Three placements cover the
samplers in use:
independent coins, at most one round of each epoch, a uniform subset of fixed size of each epoch;
each also repeated identically epoch after epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verax.auditing.runs import SampledRuns
from verax.auditing.sums import CraftedData, Floats, Sums

# Values of a distribution of clean sums; rarer ones are left out of the model.
MOST_VALUES = 16
# Log ratios are cut here, so that sums of their exponentials are finite.
LARGEST = 600.0


@dataclass(frozen=True)
class SumDistribution:
    """A distribution of clean sums: values relative to the round's usual sum, and log weights."""

    values: Floats
    log_weights: Floats

    @classmethod
    def of(cls, sums: Floats) -> SumDistribution:
        """The frequencies of the most frequent sums; certainly zero if there are none."""
        values, counts = np.unique(sums if len(sums) else np.zeros(1), return_counts=True)
        most = np.argsort(counts)[::-1][:MOST_VALUES]
        return cls(values[most], np.log(counts[most] / counts[most].sum()))

    def is_zero(self) -> bool:
        """Whether the sum is the usual one for certain."""
        return len(self.values) == 1 and self.values[0] == 0.0

    def log_ratio(self, x: Floats, variance: float) -> Floats:
        """Log density ratio of noisy and usual sum at ``x``: log sum w e^((v x - v^2/2)/z^2)."""
        terms = (
            x * (v / variance) + (w - v * v / (2.0 * variance))
            for v, w in zip(self.values.tolist(), self.log_weights.tolist(), strict=True)
        )
        total: Floats = next(terms)
        for term in terms:
            np.logaddexp(total, term, out=total)
        return total


@dataclass(frozen=True)
class Blocks:
    """At most one round of each block, with probabilities ``chances`` of shape (blocks, rounds).

    Blocks of one round are independent coins.
    """

    chances: Floats

    @property
    def name(self) -> str:
        """In words."""
        length = self.chances.shape[1]
        return "scored round by round" if length == 1 else f"scored as in one of {length} rounds"

    def log_mixture(self, ratios: Floats) -> Floats:
        """Log of the mean over placements of exp(sum of ``ratios`` where the target is)."""
        absent = np.maximum(1.0 - self.chances.sum(axis=1), 0.0)
        likelihoods = np.exp(ratios).reshape(len(ratios), *self.chances.shape)
        mixed = np.einsum("rbt,bt->rb", likelihoods, self.chances) + absent
        total: Floats = np.log(mixed).sum(axis=1)
        return total


@dataclass(frozen=True)
class Subsets:
    """A uniform subset of ``times`` rounds of each block of ``length``."""

    length: int
    times: int

    @property
    def name(self) -> str:
        """In words."""
        return f"scored as in {self.times} of {self.length} rounds"

    def log_mixture(self, ratios: Floats) -> Floats:
        """As for :class:`Blocks`; the mean over subsets of a product, one round after the other.

        a_j, the mean over the j-subsets of the first t rounds, is ((t-j) a_j + j v_t a_{j-1}) / t
        of those before.
        """
        blocks = ratios.reshape(-1, self.length)
        top = blocks.max(axis=1)
        likelihoods = np.exp(blocks - top[:, None])
        mean = np.zeros((self.times + 1, len(blocks)))
        mean[0] = 1.0
        picks = np.arange(1, self.times + 1)[:, None]
        for t in range(1, self.length + 1):
            mean[1:] = (
                np.maximum(t - picks, 0) * mean[1:] + picks * likelihoods[:, t - 1] * mean[:-1]
            ) / t
        each = np.log(np.maximum(mean[-1], 1e-300)) + self.times * top
        total: Floats = each.reshape(len(ratios), -1).sum(axis=1)
        return total


Placement = Blocks | Subsets


@dataclass(frozen=True)
class Score:
    """The log likelihood ratio of target against ghost, for one data set and one placement."""

    data: CraftedData
    placement: Placement
    repeats: int
    """How many times in a run the placement is repeated identically."""
    usual: Floats
    """The clean sum of each round that lacks the target, rounded to a whole number."""
    target: SumDistribution
    ghost: SumDistribution
    without: SumDistribution
    variance: float

    @property
    def name(self) -> str:
        """In words."""
        again = f", the same {self.repeats} times over" if self.repeats > 1 else ""
        return f"{self.data.name}; {self.placement.name}{again}"

    def __call__(self, transcripts: Floats) -> Floats:
        """One score per row of noisy sums; high for the target, low for the ghost."""
        x = transcripts - self.usual
        without = 0.0 if self.without.is_zero() else self.without.log_ratio(x, self.variance)
        total = np.zeros(len(x))
        for sums, sign in ((self.target, 1.0), (self.ghost, -1.0)):
            if sums.is_zero() and self.without.is_zero():
                # Indistinguishable from absence: the ratio is one.
                continue
            by_round = sums.log_ratio(x, self.variance) - without
            ratios = by_round.reshape(len(x), self.repeats, -1).sum(axis=1)
            total += sign * self.placement.log_mixture(np.clip(ratios, -LARGEST, LARGEST))
        return total


def learn_scores(runs: SampledRuns, data: CraftedData, sums: Sums, noise: float) -> Iterator[Score]:
    """The scores worth trying, learned from these runs."""
    present = runs.present
    elsewhere = ~present
    usual = np.where(elsewhere, sums.without, 0.0).sum(axis=0) / np.maximum(
        elsewhere.sum(axis=0), 1
    )
    usual = np.rint(np.where(elsewhere.any(axis=0), usual, sums.without.mean(axis=0)))
    here = usual[runs.round]
    target, ghost = (SumDistribution.of(sums.target - here), SumDistribution.of(sums.ghost - here))
    without = SumDistribution.of((sums.without - usual)[elsewhere])
    repeats, placements = find_placements(present)
    for placement in placements:
        yield Score(data, placement, repeats, usual, target, ghost, without, noise**2)


def find_placements(present: NDArray[np.bool_]) -> tuple[int, list[Placement]]:
    """How often the placement repeats itself in every run, and the placements it may follow."""
    count, rounds = present.shape
    repeats = next(n for n in _divisors(rounds)[::-1] if _constant(present.reshape(count, n, -1)))
    once = present[:, : rounds // repeats]
    period = once.shape[1]
    chances = shrunk_frequencies(once)
    found: list[Placement] = [Blocks(chances.reshape(period, 1))]
    hits = {length: once.reshape(count, -1, length).sum(axis=2) for length in _divisors(period)}
    single = max((length for length in hits if hits[length].max() <= 1), default=1)
    if single > 1:
        found.append(Blocks(chances.reshape(-1, single)))
        return repeats, found
    for length, seen in hits.items():
        times = int(seen[0, 0])
        if 1 < times < length and (seen == times).all():
            found.append(Subsets(length, times))
            break
    return repeats, found


def shrunk_frequencies(present: NDArray[np.bool_]) -> Floats:
    """Each round's probability of the target: its frequency, shrunk to the mean (James and Stein).

    Where the frequencies differ no more than by chance, this is the mean itself; where they differ
    plainly, theirs.
    """
    count, rounds = present.shape
    frequency: Floats = present.mean(axis=0)
    mean = float(frequency.mean())
    spread = float(((frequency - mean) ** 2).sum()) * count
    if rounds == 1 or spread == 0.0:
        return frequency
    kept = max(0.0, 1.0 - (rounds - 1) * mean * (1.0 - mean) / spread)
    chances: Floats = mean + kept * (frequency - mean)
    return chances


def _constant(parts: NDArray[np.bool_]) -> bool:
    return bool((parts == parts[:, :1]).all())


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
