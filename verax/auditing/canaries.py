"""Audit a training run by canaries: planted at random, guessed from what one run released.

Each of m canaries is in the data by a fair coin of its own. After the run some are guessed to be in
or out. If the run is (epsilon, delta) private, the number of right guesses among r is
stochastically at most a Binomial(r, q) with q = e^epsilon / (1 + e^epsilon), up to a term in delta
("privacy auditing with one (1) training run", Steinke, Nasr and Jagielski 2023, corollary 5.4); so
many right guesses refute a small epsilon. See docs/canaries.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verax import checks
from verax.auditing.sums import Floats
from verax.privacy.guarantee import Bracket, Guarantee, format_bound
from verax.privacy.numerics.distributions import binomial_at_least, binomial_pmf, pmf_error
from verax.privacy.numerics.rounding import ulps, up
from verax.privacy.pld.composition import LOWER, UPPER

# Trains once with the canaries that are in; returns a score each, higher if it seems to be in.
TrainAndScore = Callable[[NDArray[np.bool_]], ArrayLike]

# One canary in 16, 8, ... is guessed: several tries, each with its share of the confidence.
SHARES = (16, 8, 4, 2, 1)
# Steps of the search, in epsilon, and where it ends.
_FIRST_STEP, _LAST_STEP = 0.05, 1e-4
_LARGEST_EPSILON = 50.0
# Relative error of e^epsilon / (1 + e^epsilon).
_ROUND_OFF = ulps(8.0)
# Below this, binomial probabilities lose their digits.
_UNDERFLOW = 1e-290


def right_guesses_at_most(
    canaries: int, guesses: int, right: int, delta: float, between: tuple[float, float]
) -> float:
    """An upper bound on P(``right`` or more right guesses), for any epsilon between these two.

    With W Binomial(guesses, q): P(W >= right) + 2 m delta max_i P(right - i <= W < right) / i. The
    first term rises in epsilon and is taken at its end. The second need not; each probability of
    the Binomial is taken where it is largest in between, which is where q is nearest to its share.
    """
    low, high = (1.0 / (1.0 + math.exp(-epsilon)) for epsilon in between)
    low, high = low * (1.0 - _ROUND_OFF), min(high * (1.0 + _ROUND_OFF), 1.0)
    enough = binomial_at_least(guesses, high, right).upper
    if delta > 0.0 and right > 0:
        masses = largest_probabilities(guesses, low, high)[right - 1 :: -1]
        windows = np.cumsum(masses) / np.arange(1.0, right + 1.0)
        enough += 2.0 * canaries * delta * float(windows.max()) * up(1.0, ulps(2.0, of=right + 8.0))
    return min(enough, 1.0)


def largest_probabilities(trials: int, low: float, high: float) -> Floats:
    """Upper bounds on the probability of each number of hits, over all rates between these.

    That is the rate nearest to k / n. Where it is k / n itself, Stirling's series, which lies
    between its partial sums, gives sqrt(n / (2 pi k (n - k))) e^(s(n) - r(k) - r(n - k)) with s(n)
    = 1/12n - 1/360n^3 + 1/1260n^5 from above and r(k) = s(k) - 1/1680k^7 from below.
    """
    at_low, at_high = binomial_pmf(trials, low), binomial_pmf(trials, high)
    k = np.arange(trials + 1.0)
    most = np.where(k < trials * low, at_low, at_high) * (1.0 + pmf_error(at_low)) + _UNDERFLOW
    share = k / trials
    inside = (k > 0.0) & (k < trials) & (share > low - _ROUND_OFF) & (share < high + _ROUND_OFF)
    k, rest = k[inside], trials - k[inside]
    exponent = float(_stirling_above(float(trials))) - _stirling_below(k) - _stirling_below(rest)
    most[inside] = up(np.sqrt(trials / (2.0 * math.pi * k * rest)) * np.exp(exponent), ulps(32.0))
    return np.asarray(most)


def _stirling_above(n: Floats | float) -> Floats:
    return np.asarray((1.0 / 12.0 - (1.0 / 360.0 - 1.0 / (1260.0 * n**2)) / n**2) / n)


def _stirling_below(k: Floats) -> Floats:
    return _stirling_above(k) - 1.0 / (1680.0 * k**7)


def epsilon_from_guesses(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """The lower bound on epsilon at ``delta`` that ``right`` of ``guesses`` prove.

    The number of guesses must not depend on how they turned out. All epsilons from 0 up to the
    bound are refuted, not only the bound itself, so that the confidence holds although the bound is
    chosen by looking at ``right``.

    >>> epsilon_from_guesses(
    ...     canaries=1000, guesses=100, right=75, delta=1e-4, confidence=0.95
    ... )  # published: 0.673
    0.67...
    """
    canaries = checks.count("canaries", canaries)
    guesses = checks.count("guesses", guesses, maximum=canaries)
    right = checks.count("right", right, minimum=0, maximum=guesses)
    if delta != 0.0:
        checks.probability("delta", delta)
    miss = 1.0 - checks.probability("confidence", confidence)
    epsilon, step = 0.0, _FIRST_STEP
    while step > _LAST_STEP and epsilon < _LARGEST_EPSILON:
        between = (epsilon, epsilon + step)
        if right_guesses_at_most(canaries, guesses, right, delta, between) <= miss:
            epsilon += step
        else:
            step /= 2.0
    return epsilon


@dataclass(frozen=True)
class CanaryAudit:
    """What was claimed of a run, and what guesses at its canaries prove."""

    lower: float
    """Lower bound on epsilon at ``delta``, right with probability ``confidence``."""
    claim: Bracket
    """The claimed epsilon; the claim is its upper bound."""
    delta: float
    confidence: float
    canaries: int
    guesses: int
    """Of the best try: the highest scores were guessed in, as many of the lowest out."""
    right: int
    tries: int
    """Numbers of guesses that were tried, each at an equal share of what may go wrong."""

    @property
    def refuted(self) -> bool:
        """Whether the guesses prove more than the claim allows."""
        return self.lower > self.claim.upper

    def statement(self) -> str:
        """What was claimed, what was proved, and what it means."""
        verdict = "Refuted" if self.refuted else "Not refuted"
        meaning = (
            "the run is less private than claimed: what ran is not what was priced, or a bug leaks "
            "records"
            if self.refuted
            else "these guesses do not contradict the claim. They do not prove it: that is what "
            "the accountant is for"
        )
        claimed, least = (
            format_bound(self.claim.upper, UPPER, 4),
            format_bound(self.lower, LOWER, 4),
        )
        return (
            f"Claimed: epsilon at most {claimed} at delta {self.delta!r}.\n"
            f"{verdict}: the run has epsilon at least {least}, with "
            f"{100.0 * self.confidence:g} % confidence.\n"
            f"Attack: {self.right:,} of {self.guesses:,} guesses at {self.canaries:,} canaries "
            f"were right.\nWhat it means: {meaning}."
        )


def audit_canaries(
    run: TrainAndScore,
    canaries: int,
    claim: Guarantee | float,
    *,
    delta: float = 1e-5,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
    insecure_seed: int | None = None,
) -> CanaryAudit:
    """Try to refute what is claimed of a training run, by one run with canaries.

    Args:
        run: trains once and scores the canaries. It is told which are in, by an array of truth
            values, and must use that for nothing but its data: canaries that are out are left out
            (or, if the claim is under zero-out, count for nothing), and scores are computed from
            what the run released, alike for all canaries. Updates must be scaled by a public number
            of records (``fit(..., records=...)``).
        canaries: how many there are. Good ones are records the model has no other reason to fit,
            such as odd inputs with random labels, each unlike the others.
        claim: the guarantee of the run, for one record; or an epsilon that somebody states at
            ``delta``.
        delta: the delta of the claim.
        confidence: probability that the bound is right. An honest claim is refuted with probability
            at most ``1 - confidence``.
        guesses: numbers of guesses to try, each half in and half out; by default several shares of
            the canaries.
        insecure_seed: repeat the coins of the canaries exactly; the run keeps its own randomness.

    >>> import numpy as np
    >>> from verax import Deterministic, Mechanism
    >>> noise = np.random.default_rng(1)
    >>> def run(included):  # every canary has a coordinate of its own, which is released with noise
    ...     return included + 0.5 * noise.standard_normal(included.size)
    >>> honest = Mechanism(Deterministic(1), noise_multiplier=0.5).guarantee()
    >>> audit = audit_canaries(run, 1000, honest, insecure_seed=1)
    >>> audit.refuted, audit.lower > 2.0
    (False, True)
    >>> audit_canaries(run, 1000, 1.0, insecure_seed=1).refuted
    True
    """
    canaries = checks.count("canaries", canaries, minimum=2)
    delta = checks.probability("delta", delta)
    miss = 1.0 - checks.probability("confidence", confidence)
    tries = _numbers_of_guesses(canaries, guesses)
    claimed = _claimed_bracket(claim, delta)
    seed = checks.seed(insecure_seed)
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    scores: Floats = np.asarray(run(included.copy()), dtype=np.float64)
    if scores.shape != (canaries,) or np.isnan(scores).any():
        raise ValueError(
            f"run must return {canaries} scores, one for each canary, got an array of "
            f"{scores.shape}"
        )
    # Equal scores in random order.
    order = np.lexsort((rng.random(canaries), scores))
    found = []
    for count in tries:
        half = count // 2
        right = int((~included[order[:half]]).sum()) + int(included[order[canaries - half :]].sum())
        lower = epsilon_from_guesses(canaries, count, right, delta, 1.0 - miss / len(tries))
        found.append((lower, right, count))
    lower, right, count = max(found)
    return CanaryAudit(lower, claimed, delta, float(confidence), canaries, count, right, len(tries))


def _numbers_of_guesses(canaries: int, guesses: Sequence[int] | None) -> list[int]:
    """Even numbers of guesses, fixed before anything runs."""
    if guesses is None:
        return sorted({max(2 * (canaries // (2 * share)), 2) for share in SHARES})
    chosen = sorted(
        {checks.count("guesses", count, minimum=2, maximum=canaries) for count in guesses}
    )
    if not chosen or any(count % 2 for count in chosen):
        raise ValueError(
            f"guesses must be even numbers, half of them in and half out, got {list(guesses)!r}"
        )
    return chosen


def _claimed_bracket(claim: Guarantee | float, delta: float) -> Bracket:
    if not isinstance(claim, Guarantee):
        return Bracket(
            0.0, checks.nonnegative("claim", claim), "stated", "none", "stated by the caller"
        )
    if claim.group != 1 or claim.mechanism.relation == "replace":
        raise ValueError(
            "claim must be for one record under add-remove or zero-out, as a canary is in or out, "
            f"got group={claim.group} under {claim.mechanism.relation}"
        )
    return claim.epsilon(delta)
