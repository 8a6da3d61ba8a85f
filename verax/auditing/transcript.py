"""Audit the code that draws the batches: run it, attack its noisy sums, bound epsilon below.

A run of the sampler is played on fixed vectors in two worlds, with the target record and with its
ghost, and noise of the claimed size is added to every batch's clipped sum. A score tells the worlds
apart. Data set, score, threshold and direction are chosen on the first quarter of the runs; on the
others, fresh and untouched, the event is counted, and Clopper and Pearson's limits turn the counts
into a bound. See docs/auditing.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from verax import checks
from verax.auditing.confidence import Threshold, best_threshold, epsilon_at_least
from verax.auditing.runs import Factory, RunSource, SampledRuns
from verax.auditing.scores import Score, learn_scores
from verax.auditing.sums import CraftedData, Floats, Sums
from verax.mechanism import Clipping, Individual, Mechanism, Mixed
from verax.privacy.guarantee import Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.samplers.base import Sampler

# Called with how many runs are done, and of how many.
Progress = Callable[[int, int], None]

# Noisy sums held at a time.
BLOCK = 2**20
# Runs in a block, however long they are: the score is learned from the first block.
FEWEST = 16
# One run in four chooses the attack; the bound comes from the others.
CHOOSING = 4
# Scores divide by the square of the noise.
LEAST_NOISE, MOST_NOISE = 1e-100, 1e100


@dataclass(frozen=True)
class SamplerAudit:
    """What was claimed, and what an attack on the drawn batches proves.

    >>> from verax import Mechanism, Poisson, Shuffle
    >>> from verax.auditing import audit_sampler
    >>> claim = Mechanism(Poisson(rate=0.02, steps=50), noise_multiplier=0.7)
    >>> result = audit_sampler(Shuffle(batches=50), claim, delta=1e-3, trials=4000, insecure_seed=1)
    >>> result.refuted, result.lower > 2.0 > result.claim.upper
    (True, True)
    >>> print(result.statement().splitlines()[1])
    Refuted: the batches drawn by Shuffle(batches=50, ...) have epsilon at least 2..., with 95 %...
    """

    lower: float
    """Lower bound on epsilon at ``delta``, right with probability ``confidence``."""
    claim: Bracket
    """The claimed epsilon; the claim is its upper bound."""
    delta: float
    confidence: float
    trials: int
    """Runs drawn in all."""
    tested: int
    """Runs the bound rests on, each played in both worlds; the others chose the attack."""
    hits: int
    """Tested runs in which the event happened in the world it speaks for."""
    false_hits: int
    """Tested runs in which it happened in the other world."""
    attack: str
    """Data set, score and event, in words."""
    mechanism: Mechanism
    """What was claimed to run."""
    drawn: str
    """What drew the batches."""
    participation: float
    """Mean number of rounds a run that the target was in, over all runs drawn."""

    @property
    def refuted(self) -> bool:
        """Whether the attack proves more than the claim allows."""
        return self.lower > self.claim.upper

    def statement(self) -> str:
        """What was claimed, what was proved by attack, what it means and what to do."""
        least, percent = format_bound(self.lower, LOWER, 4), f"{100.0 * self.confidence:g} %"
        first = (
            f"Claimed: epsilon at most {format_bound(self.claim.upper, UPPER, 4)} "
            f"at delta {self.delta!r} "
            f"for {self.mechanism!r}."
        )
        evidence = (
            f"Attack: {self.attack}; seen in {self.hits:,} of {self.tested:,} runs in its own "
            f"world and in {self.false_hits:,} in the other. On average the target was in "
            f"{self.participation:.4g} of {len(self.mechanism.sampler):,} rounds."
        )
        meaning, remedy = (
            "this attack found nothing that contradicts the claim. It does not prove the claim: "
            "that is what the accountant is for.",
            "nothing, or more trials for a sharper bound.",
        )
        if self.refuted:
            meaning, remedy = (
                "the batches that are drawn are not the batches that were priced, and their "
                "privacy is worse than claimed.",
                f"draw the batches with {self.mechanism.sampler!r}, or price the sampler that "
                "really runs and report that epsilon.",
            )
        verdict = "Refuted" if self.refuted else "Not refuted"
        return (
            f"{first}\n{verdict}: the batches drawn by {self.drawn} have epsilon at least {least}, "
            f"with {percent} confidence.\n{evidence}\n"
            f"What it means: {meaning}\nWhat to do: {remedy}"
        )


def audit_sampler(
    batches: Sampler | Factory,
    claim: Mechanism,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    trials: int = 200_000,
    population: int | None = None,
    target: int = 0,
    insecure_seed: int | None = None,
    progress: Progress | None = None,
) -> SamplerAudit:
    """Try to refute that the batches drawn have the privacy claimed for them.

    The two worlds differ in the target's gradient: +1 against 0, or against -1 under ``replace``.
    Under add-remove this is the claim's own pair: where records are sampled independently the sum
    without the record has the law of the sum with its gradient zeroed. For other claims under
    add-remove the other records stay silent, and then removed or zeroed the sum is zero.

    Args:
        batches: a verax sampler, or a function without arguments that starts one run and returns
            its batches, an iterable of index lists, arrays or tensors. Each call must be a fresh
            run, independent of the earlier ones. An index that is in a batch twice is summed twice,
            as the code under audit would.
        claim: what is said to run. Its noise, clipping and relation are played; its sampler is not,
            only priced.
        epsilon: the claimed epsilon, if it is not the one verax proves for ``claim``.
        delta: the delta of the claim.
        confidence: probability that the bound is right. An honest claim is refuted with probability
            at most ``1 - confidence``.
        trials: runs to draw. The bound cannot exceed about log(trials / 5).
        population: number of records. By default what the sampler or the claim declares, or else a
            few per batch; for a function, indices are checked against it only if it is given or
            declared.
        target: the record under attack. Records are not alike for every sampler: where a stream is
            shuffled through a buffer, try the first and the last.
        insecure_seed: repeat an audit exactly. A function under audit keeps its own randomness.
        progress: called now and then with the runs done and the runs to do.

    >>> import random
    >>> from verax import Mechanism, Poisson
    >>> from verax.auditing import audit_sampler
    >>> source = random.Random(0)
    >>> def loader():  # what many training scripts do
    ...     order = source.sample(range(100), 100)
    ...     return [order[i : i + 2] for i in range(0, 100, 2)]
    >>> claim = Mechanism(Poisson(rate=0.02, steps=50), noise_multiplier=0.7)
    >>> audit_sampler(loader, claim, delta=1e-3, trials=4000, insecure_seed=0).refuted
    True
    """
    if not isinstance(claim, Mechanism):
        raise ValueError(f"claim must be a Mechanism, got {claim!r}")
    if claim.noise_multiplier == 0.0:
        raise ValueError(
            "claim must have a positive noise_multiplier, got 0: without noise there is nothing to "
            "audit"
        )
    if not LEAST_NOISE <= claim.noise_multiplier <= MOST_NOISE:
        raise ValueError(
            f"claim must have a noise_multiplier from {LEAST_NOISE:g} to {MOST_NOISE:g}, whose "
            f"square doubles can hold, got {claim.noise_multiplier!r}"
        )
    delta = checks.probability("delta", delta)
    miss = 1.0 - checks.probability("confidence", confidence)
    trials = checks.count("trials", trials, minimum=100)
    seed = checks.seed(insecure_seed)
    claimed = _claimed_bracket(claim, epsilon, delta)
    drawing, playing = np.random.default_rng(seed).spawn(2)
    source = _run_source(batches, claim, population, target, drawing)
    audit = _AttackRunner(source, claim, trials, playing, progress)
    score, threshold = audit.choose(trials // CHOOSING, delta, miss)
    tested = trials - trials // CHOOSING
    hits, false_hits = audit.test(tested, score, threshold)
    towards = (
        "low scores, which speak for the ghost"
        if threshold.reverse
        else "high scores, which speak for the target"
    )
    return SamplerAudit(
        lower=epsilon_at_least(hits, false_hits, tested, delta, miss),
        claim=claimed,
        delta=delta,
        confidence=float(confidence),
        trials=trials,
        tested=tested,
        hits=hits,
        false_hits=false_hits,
        attack=f"{score.name}; {towards}",
        mechanism=claim,
        drawn=repr(batches) if isinstance(batches, Sampler) else "the function given",
        participation=audit.appearances / trials,
    )


class _AttackRunner:
    """Draws runs in blocks, adds noise, scores; counts how far it has come."""

    def __init__(
        self,
        source: RunSource,
        claim: Mechanism,
        trials: int,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        self._run_source, self._claim, self._rng = source, claim, rng
        self._trials, self._progress = trials, progress
        self._done = 0
        self.appearances = 0

    def choose(self, count: int, delta: float, miss: float) -> tuple[Score, Threshold]:
        """The attack with the largest estimated bound; scores are learned from the first block."""
        tests = self._trials - count
        scores: list[Score] = []
        seen: list[list[tuple[Floats, Floats]]] = []
        for runs in self._blocks(count):
            if not scores:
                scores = [
                    score
                    for data in data_sets(self._claim)
                    for score in self._learn_scores(runs, data)
                ]
                seen = [[] for _ in scores]
            for score, values in zip(scores, seen, strict=True):
                values.append(self._play(runs, score))
        best: list[tuple[Score, Threshold]] = []
        for score, values in zip(scores, seen, strict=True):
            both = [np.concatenate(world) for world in zip(*values, strict=True)]
            best.append((score, best_threshold(both[0], both[1], tests, delta, miss)))
        return max(best, key=lambda pair: pair[1].promise)

    def test(self, count: int, score: Score, threshold: Threshold) -> tuple[int, int]:
        """How often the event happens in each world, in ``count`` fresh runs."""
        hits = false_hits = 0
        for runs in self._blocks(count):
            right, wrong = threshold.hits(*self._play(runs, score))
            hits, false_hits = hits + right, false_hits + wrong
        return hits, false_hits

    def _learn_scores(self, runs: SampledRuns, data: CraftedData) -> Iterator[Score]:
        return learn_scores(runs, data, data.sums(runs, self._rng), self._claim.noise_multiplier)

    def _play(self, runs: SampledRuns, score: Score) -> tuple[Floats, Floats]:
        """Scores of the runs' noisy sums with the target and with its ghost.

        Both worlds share the batches and the noise. Inside each world the runs are independent, and
        no more is used.
        """
        sums: Sums = score.data.sums(runs, self._rng)
        noise = self._rng.standard_normal(runs.sizes.shape)
        noise *= self._claim.noise_multiplier
        here = (runs.run, runs.round)
        transcripts = sums.without + noise
        worlds: list[Floats] = []
        for values in (sums.target, sums.ghost):
            transcripts[here] = values + noise[here]
            worlds.append(score(transcripts))
        return worlds[0], worlds[1]

    def _blocks(self, count: int) -> Iterator[SampledRuns]:
        size = max(BLOCK // self._run_source.rounds, FEWEST)
        for start in range(0, count, size):
            runs = self._run_source.draw(min(size, count - start), self._report_progress)
            self.appearances += len(runs.run)
            yield runs

    def _report_progress(self, more: int) -> None:
        self._done += more
        if self._progress is not None:
            self._progress(self._done, self._trials)


def data_sets(claim: Mechanism) -> list[CraftedData]:
    """The data sets the attacker may choose from under the claim's relation."""
    silent, opposed = (
        CraftedData(claim.clipping, claim.relation == "replace", opposed)
        for opposed in (False, True)
    )
    if claim.relation == "add-remove" and not claim.sampler.independent_records:
        # removing the record may move others: only where they are silent is that like zeroing it
        return [silent]
    return [silent, opposed]


def few_records(sampler: Sampler, clipping: Clipping) -> int:
    """Records for about two in a batch; more for clip-groups, so that hardly one stays empty."""
    match clipping:
        case Individual():
            wanted = 2
        case Mixed(groups=groups):
            wanted = 8 * groups
        case _:
            wanted = 8
    many = 2**50
    return max(2, math.ceil(wanted * many / sampler.expected_batch(many) * (1.0 - 1e-12)))


def _claimed_bracket(claim: Mechanism, epsilon: float | None, delta: float) -> Bracket:
    if epsilon is not None:
        return Bracket(
            0.0, checks.nonnegative("epsilon", epsilon), "stated", "none", "stated by the caller"
        )
    try:
        return claim.guarantee().epsilon(delta)
    except checks.NoGuarantee as error:
        raise checks.NoGuarantee(
            f"{error}; to audit a number from elsewhere, state it with epsilon="
        ) from error


def _run_source(
    batches: Sampler | Factory,
    claim: Mechanism,
    population: int | None,
    target: int,
    rng: np.random.Generator,
) -> RunSource:
    """The checked source of runs, with the number of records it draws from."""
    known = population if population is None else checks.count("population", population)
    for sampler in (batches, claim.sampler):
        declared = sampler.declared_population if isinstance(sampler, Sampler) else None
        if declared is not None and known not in (None, declared):
            raise ValueError(
                f"population must be the {declared} that {sampler!r} declares, got {known!r}"
            )
        known = known if declared is None else declared
    rounds = len(claim.sampler)
    if isinstance(batches, Sampler):
        sampler = batches
        records = few_records(batches, claim.clipping) if known is None else known
        target = checks.count("target", target, minimum=0, maximum=records - 1)
        return RunSource(lambda: sampler.draw(records, rng), rounds, target, records)
    if not callable(batches):
        raise ValueError(
            "batches must be a verax sampler or a function that starts a run and returns its "
            f"batches, such as lambda: batch_sampler, got {batches!r}"
        )
    most = checks.MAX_COUNT if known is None else known - 1
    target = checks.count("target", target, minimum=0, maximum=most)
    return RunSource(batches, rounds, target, known)
