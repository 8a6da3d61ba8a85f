"""The privacy of choosing hyper-parameters by the best of a random number of trials.

Trying settings on the private data and keeping the best one costs privacy. If the number of trials
is drawn from a suitable distribution, the cost is a constant factor, however many trials there are
on average (Liu and Talwar 2019; Papernot and Steinke 2022, arXiv 2110.03620). The bound is theorem
1 of docs/tuning.md, which uses the whole curve of one trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from verax import checks
from verax.mechanism import Mechanism, Phases
from verax.privacy.curves.base import Curve
from verax.privacy.guarantee import Guarantee
from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import root
from verax.privacy.numerics.rounding import OPS_8, OPS_8M, OPS_8000, down, up
from verax.privacy.pld.composition import BOTH, Bounds, Sides

_LINES = 48  # epsilons at which the trade-off of one trial is touched
# trials beyond which a draw is given up: its chance is below 1e-300 for any mean that could be run
_MOST = 10**7
_SMALLEST_GAMMA = 1e-9


class Trials(Protocol):
    """A distribution of the number of trials K, by its generating function f(x) = E[x^K]."""

    @property
    def mean(self) -> float:
        """E[K] = f'(1)."""

    @property
    def some_probability(self) -> float:
        """The chance that there is a trial at all."""

    def log_ratio(self, better: Array, better_beside: Array) -> Array:
        """log f'(1 - better) - log f'(1 - better_beside), elementwise."""


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """K >= 1 with P[K = k] proportional to (1 - gamma)^k Gamma(k + shape) / k!.

    Gamma is found from the mean.

    Shape 1 is the geometric distribution, shape 0 the logarithmic one. The smaller the shape, the
    less it costs and the more K varies.

    >>> trials = TruncatedNegativeBinomial(mean=10.0, shape=1.0)
    >>> round(trials.gamma, 6)  # geometric: one over the mean
    0.1
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not 1.0 < checks.positive("mean", self.mean) <= 1e6:
            raise ValueError(
                f"mean must lie above 1 and be at most 1e6, got {self.mean!r}; "
                "one trial needs no pricing"
            )
        if not -1.0 < checks.real("shape", self.shape) <= 100.0:
            raise ValueError(f"shape must lie in (-1, 100], got {self.shape!r}")
        if self._mean(_SMALLEST_GAMMA) < self.mean:
            raise ValueError(
                f"mean = {self.mean!r} cannot be reached with shape = {self.shape!r}: raise shape"
            )

    def _mean(self, gamma: float) -> float:
        log = math.log(gamma)
        if abs(self.shape) < 1e-9:
            return (1.0 - gamma) / gamma / -log
        return (1.0 - gamma) / gamma * self.shape / -math.expm1(self.shape * log)

    @cached_property
    def gamma(self) -> float:
        """The parameter that gives the mean."""
        top = math.log1p(-1e-9)
        found = root(
            lambda log: math.log(self._mean(math.exp(log)) / self.mean),
            math.log(_SMALLEST_GAMMA),
            top,
            1e-13,
        )
        return math.exp(found)

    @property
    def some_probability(self) -> float:
        """There is always a trial."""
        return 1.0

    def log_ratio(self, better: Array, better_beside: Array) -> Array:
        """f'(x) is proportional to (1 - (1 - gamma) x)^-(shape + 1)."""
        rest = 1.0 - self.gamma
        return np.asarray(
            (self.shape + 1.0)
            * np.log((self.gamma + rest * better_beside) / (self.gamma + rest * better))
        )

    def draw(self, rng: np.random.Generator) -> int:
        """The number of trials to run. It must stay secret: only the best trial is released."""
        small = abs(self.shape) < 1e-9
        log = math.log(self.gamma)
        scale = -1.0 / log if small else self.shape / math.expm1(-self.shape * log)
        chance, left = scale * (1.0 - self.gamma), float(rng.random())
        for k in range(1, _MOST):
            left -= chance
            if left < 0.0:
                return k
            chance *= (1.0 - self.gamma) * (k + (0.0 if small else self.shape)) / (k + 1.0)
        return _MOST


@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean). With K = 0 nothing is released. Cheap for a few trials, dear for many.

    >>> PoissonTrials(mean=3.0).some_probability < 1
    True
    """

    mean: float

    def __post_init__(self) -> None:
        if not 0.0 < checks.positive("mean", self.mean) <= 1e6:
            raise ValueError(f"mean must be at most 1e6, got {self.mean!r}")

    @property
    def some_probability(self) -> float:
        """1 - exp(-mean)."""
        return -math.expm1(-self.mean)

    def log_ratio(self, better: Array, better_beside: Array) -> Array:
        """f'(x) = mean exp(mean (x - 1))."""
        return np.asarray(self.mean * (better_beside - better))

    def draw(self, rng: np.random.Generator) -> int:
        """The number of trials to run. It must stay secret: only the best trial is released."""
        return int(rng.poisson(self.mean))


def tuned(
    mechanism: Mechanism | Phases | Sequence[Mechanism | Phases], trials: Trials, *, group: int = 1
) -> Tuned:
    """The guarantee of running a random number of trials and releasing the best one only.

    Args:
        mechanism: what one trial runs; or all the settings it may pick, at random by a distribution
            fixed beforehand.
        trials: the distribution of the number of trials, which is drawn with
            :meth:`TruncatedNegativeBinomial.draw`.
        group: how many records are protected together.

    With several settings the bracket is of the worst distribution of picking: the upper bound holds
    for every distribution, the lower bound for the one that always picks the costliest setting.
    Your own distribution may cost less than the lower bound.

    A trial's score may depend on its own output only (or on public data); a score measured on
    private data must be part of the mechanism, with noise.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=2.0)
    >>> tuned(run, TruncatedNegativeBinomial(mean=10.0)).epsilon(delta=1e-5)
    Bracket(lower=0.62..., upper=0.95...)
    """
    settings = [mechanism] if isinstance(mechanism, Mechanism | Phases) else list(mechanism)
    if not settings:
        raise ValueError("mechanism must be a Mechanism or a list of at least one, got none")
    ones = [setting.guarantee(group) for setting in settings]
    relations = sorted({one.mechanism.relation for one in ones})
    if len(relations) > 1:
        raise checks.NoGuarantee(
            f"all settings must share one neighbouring relation, got {' and '.join(relations)}"
        )
    first = ones[0]
    # a random pick among the settings: no worse than the worst of them (joint convexity)
    one = replace(
        first,
        uppers=[curve for g in ones for curve in g.uppers],
        lowers=[curve for g in ones for curve in g.lowers],
        upper_by="; ".join(dict.fromkeys(g.upper_by for g in ones)),
        lower_by="; ".join(dict.fromkeys(g.lower_by for g in ones)),
        exposure=max(g.exposure for g in ones),
    )
    one = replace(one, lowers=one.uppers) if all(g.uppers is g.lowers for g in ones) else one
    picked = (
        ", for the law that always picks the costliest of the settings" if len(ones) > 1 else ""
    )
    return Tuned(
        first.mechanism,
        group,
        [_BestOfTrials(one, trials)],
        [_RareAttack(curve, trials.some_probability) for curve in one.lowers],
        "the best of a random number of trials (docs/tuning.md, theorem 1); each "
        f"trial: {one.upper_by}",
        f"trials that all score the same, so that the first is released{picked}; "
        f"each trial: {one.lower_by}",
        min(up(trials.mean * one.exposure, OPS_8M), 1.0),
        f"that the number of trials is drawn from {trials!r} and kept secret, and "
        "that only the best trial is released",
        one=one,
        trials=trials,
        settings=tuple(settings),
    )


@dataclass(frozen=True)
class Tuned(Guarantee):
    """A :class:`Guarantee` that covers the search for hyper-parameters.

    ``one`` is that of a single trial.
    """

    one: Guarantee | None = None
    trials: Trials | None = None
    settings: tuple[Mechanism | Phases, ...] = ()


@dataclass(frozen=True)
class _BestOfTrials:
    """delta(eps) <= E[K] delta_one(eps - r), where exp(r) bounds f'(q) / f'(q').

    (docs/tuning.md, theorem 1.)
    """

    one: Guarantee
    trials: Trials

    @cached_property
    def shift(self) -> float:
        """The largest log f'(1 - p) / f'(1 - p') over what one trial allows.

        It allows p' <= e^t p + delta_one(t) for every t.
        """
        reach = self.one.epsilon(min(1e-4, 1e-2 / self.trials.mean), rtol=0.05).upper
        if not math.isfinite(reach):
            reach = 20.0
        slopes = np.exp(np.linspace(0.0, max(reach, 1e-3), _LINES))
        offsets = np.array([self.one.delta(float(t), rtol=0.01).upper for t in np.log(slopes)])
        slopes = np.append(up(slopes, OPS_8), 0.0)  # p' <= 1 is one more line
        offsets = np.append(offsets, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # parallel lines do not meet
            corners = (offsets[:, None] - offsets) / (slopes - slopes[:, None])
        p = np.append(corners[np.isfinite(corners) & (corners > 0.0) & (corners < 1.0)], [0.0, 1.0])
        beside = (slopes[:, None] * p + offsets[:, None]).min(axis=0)
        # between corners the ratio is monotone: linear over linear, or the exponential of a linear
        # function
        return up(max(0.0, float(self.trials.log_ratio(p, np.minimum(beside, 1.0)).max())), OPS_8M)

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        share = min(delta / self.trials.mean, 0.5)
        return max(curve.estimate(share) for curve in self.one.uppers) + self.shift

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Nothing is known from below."""
        share = delta / up(self.trials.mean, OPS_8M)
        if share >= 1.0:  # hardly ever is there a trial at all
            return 0.0, 0.0
        return 0.0, up(self.one.epsilon(share, rtol).upper + self.shift, OPS_8000)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Nothing is known from below."""
        left = epsilon - self.shift
        if left <= 0.0:
            return 0.0, 1.0
        return 0.0, min(
            up(self.trials.mean, OPS_8M) * self.one.delta(down(left, OPS_8000), rtol).upper, 1.0
        )


@dataclass(frozen=True)
class _RareAttack:
    """An attack that has something to see with this ``chance`` only."""

    curve: Curve
    chance: float

    def estimate(self, delta: float) -> float:
        """A rough epsilon."""
        return self.curve.estimate(min(delta / self.chance, 0.5))

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """delta(eps) of the curve, times the chance."""
        share = delta / down(self.chance, OPS_8000)
        return (
            (0.0, math.inf)
            if share >= 1.0
            else (self.curve.epsilon(share, rtol, sides, enough)[0], math.inf)
        )

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """delta(eps) of the curve, times the chance."""
        return down(self.curve.delta(epsilon, rtol, sides, enough)[0] * self.chance, OPS_8000), 1.0
