"""Weights of the mixtures: exact pmfs, error bounds that hold, and truncation to the safe sides."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.mechanism import Mechanism
from verax.privacy.numerics.distributions import binomial_pmf
from verax.privacy.pairs.gaussian_mixture import Mixture, MixturePair
from verax.privacy.pairs.mixture_weights import distinct_groups, mixture_round
from verax.samplers import TruncatedPoisson


def exact_binomial(trials: int, rate: float, hits: int) -> mpmath.mpf:
    q = mpmath.mpf(rate)
    return mpmath.binomial(trials, hits) * q**hits * (1 - q) ** (trials - hits)


def exact_distinct(trials: int, rate: float, groups: int) -> list[Fraction]:
    """Occupancy by inclusion and exclusion: exactly l groups hit when each record hits group g with
    probability q/m.
    """
    q = Fraction(rate)
    pmf = []
    for hit in range(min(trials, groups) + 1):
        total = Fraction(0)
        for i in range(hit + 1):  # all hits inside a given set of hit - i groups
            total += (
                (-1) ** i * math.comb(hit, i) * (1 - q + q * Fraction(hit - i, groups)) ** trials
            )
        pmf.append(math.comb(groups, hit) * total)
    return pmf


@pytest.mark.parametrize(
    ("trials", "rate"),
    [(1, 0.01), (2, 0.5), (8, 1e-4), (50, 0.3), (1000, 0.01), (10000, 0.3), (100000, 0.02)],
)
def test_binomial_weights_are_within_the_error_that_the_mixture_declares(trials, rate):
    weights = binomial_pmf(trials, rate)
    declared = mixture_round(weights, np.arange(trials + 1.0), trials).pair.up.error
    assert len(weights) == trials + 1
    matter = np.flatnonzero(weights > 1e-60)
    with mpmath.workdps(50):
        for hits in np.unique(np.linspace(matter[0], matter[-1], 60).astype(int)).tolist():
            truth = exact_binomial(trials, rate, hits)
            assert float(abs(mpmath.mpf(float(weights[hits])) / truth - 1)) <= declared, hits


def test_binomial_edges():
    assert binomial_pmf(3, 1.0).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert binomial_pmf(1, 0.25) == pytest.approx([0.75, 0.25], rel=1e-15)
    tiny = binomial_pmf(3, 1e-12)
    assert tiny[1:] == pytest.approx([3e-12, 3e-24, 1e-36], rel=1e-11)


@given(st.integers(1, 12), st.floats(0.001, 1.0), st.integers(1, 6))
def test_distinct_groups_is_the_occupancy_law(trials, rate, groups):
    pmf = distinct_groups(trials, rate, groups)
    truth = exact_distinct(trials, rate, groups)
    assert pmf.sum() == pytest.approx(1.0, rel=1e-13)
    assert pmf == pytest.approx([float(p) for p in truth], rel=1e-11, abs=1e-300)


def test_one_clip_group_is_batch_clipping_and_many_are_individual():
    assert distinct_groups(5, 0.1, 1) == pytest.approx([0.9**5, 1 - 0.9**5], rel=1e-13)
    assert distinct_groups(3, 0.1, 10**9)[:4] == pytest.approx(binomial_pmf(3, 0.1), rel=1e-6)


@pytest.mark.parametrize(
    ("trials", "rate", "groups"), [(5, 0.1, 3), (100, 0.01, 4), (5000, 1e-3, 4)]
)
def test_distinct_groups_are_within_the_error_that_the_mixture_declares(trials, rate, groups):
    pmf = distinct_groups(trials, rate, groups)
    declared = mixture_round(pmf, np.arange(len(pmf), dtype=float), trials).pair.up.error
    with mpmath.workdps(60):
        for hit in range(len(pmf)):
            truth = mpmath.fsum(
                (-1) ** i
                * math.comb(hit, i)
                * (1 - mpmath.mpf(rate) * (groups - hit + i) / groups) ** trials
                for i in range(hit + 1)
            ) * math.comb(groups, hit)
            assert float(abs(mpmath.mpf(float(pmf[hit])) / truth - 1)) <= declared, hit


# --- truncation -----------------------------------------------------------------------------------


def half_line_delta(
    weights: np.ndarray, shifts: np.ndarray, epsilon: float, two_sided: bool
) -> mpmath.mpf:
    """The curve of the whole mixture, nothing truncated, at 30 digits."""
    with mpmath.workdps(30):
        pairs = [
            (mpmath.mpf(float(w)), mpmath.mpf(float(s)))
            for w, s in zip(weights, shifts, strict=True)
            if w > 1e-75
        ]
        total = mpmath.fsum(w for w, _ in pairs)
        pairs = [(w / total, s) for w, s in pairs]
        other = [(w, -s) for w, s in pairs] if two_sided else [(mpmath.mpf(1), mpmath.mpf(0))]
        a = mpmath.exp(epsilon)

        def excess(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.fsum(w * mpmath.npdf(x - s) for w, s in pairs) - a * mpmath.fsum(
                w * mpmath.npdf(x - s) for w, s in other
            )

        low, high = mpmath.mpf(-60), mpmath.mpf(60)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if excess(middle) > 0 else (middle, high)
        return mpmath.fsum(w * mpmath.ncdf(s - high) for w, s in pairs) - a * mpmath.fsum(
            w * mpmath.ncdf(s - high) for w, s in other
        )


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize(
    ("trials", "rate", "unit"), [(60, 0.01, 0.2), (60, 0.97, 0.1), (100, 0.3, 0.05)]
)
def test_truncated_mixtures_bracket_the_whole_one(trials, rate, unit, two_sided):
    weights, shifts = binomial_pmf(trials, rate), unit * np.arange(trials + 1.0)
    once = mixture_round(weights, shifts, len(weights), two_sided)
    for epsilon in (0.0, 2.0):
        truth = half_line_delta(weights, shifts, epsilon, two_sided)
        upper = once.pair.delta(epsilon)[1]
        lower = (once.dominated or once.pair).delta(epsilon)[0]
        assert lower <= float(truth) * (1.0 + 1e-14)
        assert float(truth) * (1.0 - 1e-14) <= upper
        assert upper - lower <= 1e-8 * upper + 1e-14


def test_truncation_drops_components_and_keeps_what_it_owes():
    weights, shifts = binomial_pmf(200, 0.01), 0.1 * np.arange(201.0)
    once = mixture_round(weights, shifts, len(weights))
    assert len(once.pair.up.shifts) < 60
    assert 0.0 < once.pair.up.lost < 1e-59
    assert once.dominated is not None
    assert once.dominated.up.lost == 0.0
    for side in (once.pair.up, once.dominated.up):
        assert float(side.weights.sum()) + side.lost == pytest.approx(1.0, rel=1e-13)


def test_two_points_are_never_truncated():
    once = mixture_round(binomial_pmf(1, 1e-100), np.array([0.0, 1.0]), 1)
    assert once.pair == MixturePair(
        Mixture(once.pair.up.log_weights, (0.0, 1.0), 0.0, once.pair.up.error)
    )
    assert once.pair.up.log_weights[1] == pytest.approx(-100 * math.log(10), rel=1e-14)
    assert once.dominated is None


# --- truncated batches of large populations -------------------------------------------------------


def opposed_attack(
    rate: float, most: int, others: int, noise: float, epsilon: float, event: tuple[float, float]
) -> float:
    """What "the noisy sum is in this interval above -B" proves if all others' gradients are -1 and
    the record's 1.

    Without the record the sum is -min(N, B), N ~ Bin(others, rate). With it, if it is picked: 1 - N
    where there is room; else 2 - B if it takes another's place, which has probability B / (N + 1),
    and -B if it does not. Numbers N more than five standard deviations above B, each of which adds
    to the difference, are left out.
    """
    with mpmath.workdps(25):
        q, low, high = mpmath.mpf(rate), *map(mpmath.mpf, event)
        odds, a = q / (1 - q), mpmath.exp(epsilon)
        ways = (
            mpmath.loggamma(others + 1)
            - mpmath.loggamma(most + 1)
            - mpmath.loggamma(others - most + 1)
        )
        full = mpmath.exp(ways + most * mpmath.log(q) + (others - most) * mpmath.log1p(-q))
        inside = [
            mpmath.ncdf((high - i) / noise) - mpmath.ncdf((low - i) / noise) for i in range(40)
        ]
        chance, crowd, taken = full, mpmath.mpf(0), mpmath.mpf(0)
        for size in range(most, most + int(5 * math.sqrt(others * rate * (1.0 - rate)))):
            crowd, taken = crowd + chance, taken + chance * most / (size + 1)
            chance *= (others - size) * odds / (size + 1)
        gain = (1 - a) * crowd * inside[0] + q * taken * (inside[2] - inside[0])
        chance = full
        for place in range(1, 39):
            size = most - place
            chance *= (size + 1) / ((others - size) * odds)
            gain += chance * ((1 - a) * inside[place] + q * (inside[place + 1] - inside[place]))
        return float(gain)


@pytest.mark.parametrize(
    ("sampler", "noise", "epsilon", "event", "attack"),
    [
        (TruncatedPoisson(0.705870566236443, 1, 705870567, 10**9), 1.0, 3.0, (2.7, 5.45), 0.04953),
        (TruncatedPoisson(0.7048559206221434, 1, 70485593, 10**8), 2.0, 1.0, (3.5, 9.0), 0.03042),
        (TruncatedPoisson(0.1, 1, 10**9, 10**10), 1.0, 1.0, (2.5, 5.75), 0.00970),
        (TruncatedPoisson(0.5, 1, 2**30, 2**31), 1.0, 1.0, (1.7, 5.95), 0.10491),
    ],
)
def test_no_attack_on_truncated_batches_beats_the_bound(sampler, noise, epsilon, event, attack):
    proved = opposed_attack(
        sampler.rate, sampler.max_batch, sampler.population, noise, epsilon, event
    )
    assert proved == pytest.approx(attack, rel=1e-3)
    assert proved <= Mechanism(sampler, noise).guarantee().delta(epsilon).upper <= 1.2 * proved
