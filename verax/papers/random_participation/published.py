"""Theorem 4.1 of the paper as it is printed, which is no upper bound."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from verax import checks
from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import root
from verax.privacy.pairs.random_participation import other_records
from verax.samplers import RandomParticipation


def published(
    sampler: RandomParticipation,
    noise_multiplier: float,
    epsilon: float,
    *,
    published_unsound: bool = False,
) -> float:
    """Delta of one round by equation (6), **which is no upper bound**; for comparison only.

    It falls below delta of a run in which the client's other gradients are 0, that is of Poisson
    sampling with client_rate * record_rate: docs/random-participation.md, section 1.

    Args:
        sampler: the client; only one round of it is priced.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        epsilon: where, at least 0.
        published_unsound: must be True, to say that you know.

    >>> from verax import Mechanism, Poisson
    >>> sampler = RandomParticipation(client_rate=0.5, record_rate=0.1, records=30, rounds=1)
    >>> claimed = published(sampler, 1.0, epsilon=0.5, published_unsound=True)
    >>> claimed < 3e-10 and Mechanism(Poisson(0.05, 1), 1.0).guarantee().delta(0.5).lower > 2e-4
    True
    """
    if published_unsound is not True:
        raise ValueError(
            "published_unsound must be True to evaluate a formula that proves nothing, got "
            f"{published_unsound!r}; for a guarantee use "
            "Mechanism(sampler, noise_multiplier).guarantee()"
        )
    unit = 1.0 / checks.positive("noise_multiplier", noise_multiplier)
    p, q, pq = sampler.client_rate, sampler.record_rate, sampler.client_rate * sampler.record_rate
    larger = 1.0 + math.expm1(checks.nonnegative("epsilon", epsilon)) / pq  # e^eps'
    part = math.exp(epsilon) / larger
    c1 = (1.0 - part) * (1.0 - p) / (1.0 - pq) if pq < 1.0 else 0.0
    c2 = (1.0 - part) * p * (1.0 - q) / (1.0 - pq) + part if pq < 1.0 else 1.0
    number, chances, _ = other_records(sampler.records, q)
    number, chances = number[chances > 1e-25], chances[chances > 1e-25]
    log_chances = np.log(chances)[:, None]

    def logs(x: Array) -> tuple[Array, Array]:
        """Log densities of both sides of equation (27), the second times alpha'."""
        places = (number * unit)[:, None]
        up = special.logsumexp(log_chances - (x - places - unit) ** 2 / 2.0, axis=0)
        stay = special.logsumexp(log_chances - (x - places) ** 2 / 2.0, axis=0)
        with np.errstate(divide="ignore"):
            return up, math.log(larger) + np.logaddexp(
                np.log(c1) - x * x / 2.0, math.log(c2) + stay
            )

    def excess(x: float) -> float:
        up, other = logs(np.array([x]))
        return float(up[0] - other[0])

    high = float(number[-1] + 1.0) * unit + 40.0
    start = root(excess, -40.0, high, xtol=1e-12) if excess(-40.0) < 0.0 < excess(high) else -40.0
    x = np.asarray(start + 0.01 * np.arange(2 * int((high - start) / 0.02) + 1), dtype=np.float64)
    up, other = logs(x)
    density = np.exp(up) * -np.expm1(np.minimum(other - up, 0.0))
    simpson = density[0] + density[-1] + 4.0 * density[1::2].sum() + 2.0 * density[2:-1:2].sum()
    return float(pq * simpson * 0.01 / 3.0 / math.sqrt(2.0 * math.pi))
