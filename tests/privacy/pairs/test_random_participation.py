"""Random participation: the corrected theorem against brute force, the published one against
counterexamples.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from verax import (
    Batch,
    Mechanism,
    Mixed,
    NoGuarantee,
    Phases,
    Poisson,
    RandomParticipation,
)
from verax.federated.observers import BASELINES, baseline
from verax.papers.random_participation.published import published
from verax.privacy.pairs.hidden_participation import HiddenParticipationPair
from verax.privacy.pairs.random_participation import (
    angled_attack,
    other_records,
    participation_pair,
)
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import Composition

CASES = [(0.001, 0.1, 30), (0.1, 0.001, 1000)]  # the two of the paper's section 6


def run(p, q, records, noise, rounds=1, **more):
    return Mechanism(RandomParticipation(p, q, records, rounds), noise, **more).guarantee()


def claimed(p, q, records, noise, epsilon):
    return published(RandomParticipation(p, q, records, 1), noise, epsilon, published_unsound=True)


# --- the published theorem ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "records", "noise", "epsilon", "printed", "truth"),
    [
        (0.1, 0.001, 1000, 0.646, 0.015, 5.1e-20, 2.29e-7),
        (0.5, 0.1, 30, 1.0, 0.5, 2.8e-10, 2.186e-4),
    ],
)
def test_counterexamples_to_the_published_theorem(p, q, records, noise, epsilon, printed, truth):
    """With the other gradients 0 the run is Poisson sampling with rate pq, in closed form."""
    larger = math.log1p(math.expm1(epsilon) / (p * q))
    middle, half = -noise * larger, 0.5 / noise
    poisson = (
        p * q * (stats.norm.cdf(middle + half) - math.exp(larger) * stats.norm.cdf(middle - half))
    )
    assert poisson == pytest.approx(truth, rel=2e-3)
    formula = claimed(p, q, records, noise, epsilon)
    assert formula == pytest.approx(printed, rel=0.02)
    assert formula < poisson / 1e5
    bracket = run(p, q, records, noise).delta(epsilon)
    assert formula < poisson <= bracket.lower <= bracket.upper
    assert published_by_quadrature(p, q, records, noise, epsilon) == pytest.approx(
        formula, rel=1e-3
    )


def published_by_quadrature(p, q, records, noise, epsilon):
    """Equation (6) as printed, with the root of equation (7), in 60 digits."""
    with mpmath.workdps(60):
        p, q, s, eps = mpmath.mpf(p), mpmath.mpf(q), mpmath.mpf(noise), mpmath.mpf(epsilon)
        larger = 1 + mpmath.expm1(eps) / (p * q)
        part = mpmath.exp(eps) / larger
        c1 = (1 - part) * (1 - p) / (1 - p * q)
        c2 = p * (1 - q) / (1 - p * q) * (1 - part) + part
        hits = [i for i in range(records + 1) if records * float(q) > i / 60]
        weights = [mpmath.binomial(records, i) * q**i * (1 - q) ** (records - i) for i in hits]

        def equation(z):
            up = mpmath.fsum(
                w * mpmath.npdf(z, i + 1, s) for i, w in zip(hits, weights, strict=True)
            )
            stay = mpmath.fsum(w * mpmath.npdf(z, i, s) for i, w in zip(hits, weights, strict=True))
            return mpmath.log(up) - mpmath.log(larger * (c2 * stay + c1 * mpmath.npdf(z, 0, s)))

        z = mpmath.findroot(equation, (-10, 40), solver="anderson", tol=1e-30)
        tail = [1 - mpmath.ncdf(z, i, s) for i in range(hits[-1] + 2)]
        total = mpmath.fsum(
            w * (tail[i + 1] - larger * c2 * tail[i]) for i, w in zip(hits, weights, strict=True)
        )
        return float(p * q * (total - larger * c1 * tail[0]))


def test_the_printed_noise_does_not_follow_from_the_printed_equation():
    """For section 6.1 the paper names noise 1.065 at (0.015, 1e-6); its equation (6) gives 1.34e-5
    there.
    """
    assert claimed(0.001, 0.1, 30, 1.065, 0.015) == pytest.approx(1.344e-5, rel=1e-3)
    assert run(0.001, 0.1, 30, 1.065).delta(0.015).lower > 1e-5
    assert run(0.1, 0.001, 1000, 0.646).delta(0.015).lower > 2.5e-6


def test_the_published_formula_must_be_asked_for():
    with pytest.raises(ValueError, match=r"^published_unsound must be True .*guarantee\(\)$"):
        published(RandomParticipation(0.1, 0.1, 10, 1), 1.0, 0.1)


# --- one round against brute force ----------------------------------------------------------------


def on_a_line(p, q, i, unit, epsilon, other_way=False):
    """Both bounds of the theorem for i other records, by the trapezoidal rule."""
    x = np.linspace(-12.0 - unit, 12.0 + (i + 1) * unit, 60_001)
    away, without = stats.norm.pdf(x), stats.norm.pdf(x - i * unit)
    moved = stats.norm.pdf(x - (i - 1 if other_way else i + 1) * unit)
    absent = (1 - p) * away + p * without
    present = absent + p * q * (moved - without)
    first, second = (absent, present) if other_way else (present, absent)
    return float(np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0.0), x))


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.3])
@pytest.mark.parametrize(
    ("p", "q", "records", "noise"), [(0.5, 0.3, 4, 1.0), (0.05, 0.6, 9, 0.7), (0.3, 0.9, 6, 3.0)]
)
def test_one_round_is_the_sum_of_the_theorem(p, q, records, noise, epsilon):
    unit = 1.0 / noise
    pair = participation_pair(p, q, records, unit, False)
    chances = stats.binom.pmf(np.arange(records + 1), records, q)
    for other_way in (False, True):
        expected = sum(
            w * on_a_line(p, q, i, unit, epsilon, other_way) for i, w in enumerate(chances)
        )
        low, high = (pair.reverse() if other_way else pair).delta(epsilon)
        assert low <= expected * (1 + 1e-6) + 1e-10
        assert high >= expected * (1 - 1e-6) - 1e-10
        assert high - low <= 1e-9


def planes(rng, others):
    """Gradients of norm at most 1 in the plane: the others', then the record's; also aligned and
    orthogonal ones.
    """
    kind = rng.integers(4)
    angle = {0: rng.uniform(0, 2 * np.pi, others + 1), 1: np.zeros(others + 1)}.get(
        kind, np.zeros(others + 1)
    )
    angle[-1] = {0: angle[-1], 1: 0.0, 2: np.pi / 2, 3: np.pi}[kind]
    size = np.ones(others + 1) if rng.integers(2) else rng.uniform(0.3, 1.0, others + 1)
    return np.stack([size * np.cos(angle), size * np.sin(angle)], axis=1)


def in_the_plane(p, q, gradients, noise):
    """Densities with and without the last record, every subset of the others listed, on a grid of
    the plane.
    """
    *others, record = gradients / noise
    places = [np.zeros(2)] + [
        np.sum(s, axis=0)
        for n in range(1, len(others) + 1)
        for s in itertools.combinations(others, n)
    ]
    sizes = [0] + [n for n in range(1, len(others) + 1) for _ in itertools.combinations(others, n)]
    span = len(gradients) / noise + 8.0
    axis = np.linspace(-span, span, 241)
    density = {}

    def normal(place):
        key = tuple(place)
        if key not in density:
            density[key] = np.multiply.outer(
                stats.norm.pdf(axis - place[0]), stats.norm.pdf(axis - place[1])
            )
        return density[key]

    absent = (1 - p) * normal(np.zeros(2))
    extra = np.zeros_like(absent)
    for place, size in zip(places, sizes, strict=True):
        chance = q**size * (1 - q) ** (len(others) - size)
        absent = absent + p * chance * normal(place)
        extra = extra + p * q * chance * (normal(place + record) - normal(place))
    return absent + extra, absent, (axis[1] - axis[0]) ** 2


def test_no_geometry_of_the_plane_beats_the_theorem():
    """Exact two-dimensional integrals over random gradients; some come close, so the bound has
    little to give.
    """
    rng = np.random.default_rng(7)
    best = 0.0
    for _ in range(40):
        p, q, others = rng.uniform(0.05, 0.95), rng.uniform(0.1, 0.95), int(rng.integers(1, 4))
        noise = rng.uniform(0.6, 2.5)
        present, absent, area = in_the_plane(p, q, planes(rng, others), noise)
        pair = participation_pair(p, q, others, 1.0 / noise, False)
        for epsilon in (0.0, 0.05, 0.2, 0.6):
            a = math.exp(epsilon)
            for first, second, pmf in ((present, absent, pair), (absent, present, pair.reverse())):
                found = float(np.maximum(first - a * second, 0.0).sum()) * area
                bound = pmf.delta(epsilon)[1]
                # the grid's error; on a grid 8 times as fine it is 1e-6
                assert found <= bound * (1 + 4e-4)
                best = max(best, found / bound) if epsilon > 0.0 and bound > 1e-6 else best
    assert best > 0.9


@pytest.mark.parametrize("lean", [0.0, 0.4, -0.5])
def test_the_attack_is_the_plane_seen_in_bins(lean):
    p, q, others, noise = 0.3, 0.4, 3, 0.9
    record = np.array([lean, math.sqrt(1 - lean**2)])
    present, absent, area = in_the_plane(p, q, np.array([[1.0, 0.0]] * others + [record]), noise)
    table = angled_attack(p, q, others, 1.0 / noise, lean)
    for epsilon in (0.0, 0.1, 0.5, 1.0):
        for first, second, pmf in ((present, absent, table), (absent, present, table.reverse())):
            found = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum()) * area
            low = pmf.delta(epsilon)[0]
            assert low <= found * (1 + 1e-6) + 1e-9
            assert low >= 0.97 * found - 1e-5


def test_orthogonal_others_tell_the_posterior_of_participation():
    """Given x along the others the record is Poisson sampled with rate q P[takes part | x]:
    integrated another way.
    """
    p, q, records, noise, epsilon = 0.2, 0.2, 12, 1.1, 0.3
    unit = 1.0 / noise
    x = np.linspace(-9.0, 9.0 + records * unit, 4001)
    weights = stats.binom.pmf(np.arange(records + 1), records, q)
    used = p * sum(w * stats.norm.pdf(x - i * unit) for i, w in enumerate(weights))
    density = (1 - p) * stats.norm.pdf(x) + used
    rate = q * used / density
    larger = np.log1p(math.expm1(epsilon) / rate)
    given = rate * (
        special.ndtr(unit / 2 - larger / unit)
        - np.exp(larger + special.log_ndtr(-unit / 2 - larger / unit))
    )
    truth = float(np.trapezoid(density * given, x))
    low = angled_attack(p, q, records, unit, 0.0).delta(epsilon)[0]
    assert low <= truth
    assert low == pytest.approx(truth, rel=5e-3)
    assert truth <= run(p, q, records, noise).delta(epsilon).upper


def test_far_tails_in_sixty_digits():
    p, q, i, unit, epsilon = 0.1, 0.01, 3, 1.25, 6.0
    with mpmath.workdps(60):
        a, s = mpmath.exp(epsilon), mpmath.mpf(unit)

        def gap(x):
            others = (a - 1) * (1 - mpmath.mpf(p)) * mpmath.npdf(x) + mpmath.mpf(p) * (
                a - 1 + q
            ) * mpmath.npdf(x - i * s)
            return mpmath.log(mpmath.mpf(p) * q * mpmath.npdf(x - (i + 1) * s)) - mpmath.log(others)

        x = mpmath.findroot(gap, (0, 60), solver="ridder", tol=1e-40)
        tails = [mpmath.ncdf(m * s - x) for m in (0, i, i + 1)]
        pm, qm = mpmath.mpf(p), mpmath.mpf(q)
        truth = float(
            pm * qm * tails[2] - (a - 1) * (1 - pm) * tails[0] - pm * (a - 1 + qm) * tails[1]
        )
    low, high = HiddenParticipationPair(
        p, q, (1.0,), (unit,), ((i + 1) * unit,), (i * unit,)
    ).delta(epsilon)
    assert truth < 1e-14
    assert low * (1 - 1e-9) <= truth <= high * (1 + 1e-9)
    assert high <= low * (1 + 1e-6)


@settings(deadline=None, max_examples=15)
@given(
    st.floats(1e-3, 0.999),
    st.floats(1e-3, 1.0),
    st.floats(0.05, 4.0),
    st.one_of(st.just(0.0), st.floats(1e-3, 9.0)),
    st.floats(1e-9, 9.0),
    st.sampled_from([1, -1]),
)
def test_the_pair_is_a_pair(p, q, shift, absent, more, sign):
    """Masses sum to one on both sides, losses rise along the cells, distances obey the triangle
    inequality.
    """
    pair = HiddenParticipationPair(
        p, q, (0.25, 0.75), (shift,) * 2, (shift + absent, math.inf), (absent, math.inf), sign=sign
    )
    grid = np.sort(np.concatenate([np.linspace(-3.0, 3.0, 41), [0.0, more, -more]]))
    cells = pair.cells(np.concatenate([[-np.inf], np.unique(grid), [np.inf]]))
    mass = np.exp(cells.log_p)
    assert mass.sum() == pytest.approx(1.0, abs=1e-11)
    assert (mass * np.exp(-cells.loss)).sum() == pytest.approx(1.0, abs=1e-11)
    assert pair.boundaries_at(np.unique(grid))[1] < 1e-12
    filled = mass > 1e-200
    ends = np.concatenate([[-np.inf], np.unique(grid), [np.inf]])
    slack = 1e-9 + 3.0 * cells.error[filled]
    assert (cells.loss[filled] >= ends[:-1][filled] - slack).all()
    assert (cells.loss[filled] <= ends[1:][filled] + slack).all()


# --- many rounds ----------------------------------------------------------------------------------


def draws(rng, p, q, records, unit, size, lean=0.0):
    """Losses of the attack in the plane under P, by its densities: what the others do is averaged,
    not told.
    """
    number = rng.binomial(records, q, size)
    here, used = rng.random(size) < p, rng.random(size) < q
    x = rng.normal(size=size) + unit * here * (number + lean * used)
    y = rng.normal(size=size) + unit * here * used * math.sqrt(1 - lean**2)
    weights = stats.binom.pmf(np.arange(records + 1), records, q)
    away, without, moved = np.exp(-(x**2) / 2), np.zeros(size), np.zeros(size)
    for i, w in enumerate(weights):
        without += w * np.exp(-((x - i * unit) ** 2) / 2)
        moved += w * np.exp(-((x - (i + lean) * unit) ** 2) / 2)
    shift = unit * math.sqrt(1 - lean**2)
    absent = (1 - p) * away + p * without
    return np.log1p(p * q * (moved * np.exp(shift * y - shift**2 / 2) - without) / absent)


def pair_draws(rng, p, q, records, unit, size):
    """Losses of the dominating pair under P, by its definition: aligned branch, opposed branch, or
    the atom at 0.
    """
    number = rng.binomial(records, q, size)
    loss = np.zeros(size)
    for i in np.unique(number):
        who = np.flatnonzero(number == i)
        m = i * unit

        def ratio(x, sign, m=m):
            here = 1 / (1 + (1 - p) / p * np.exp(m**2 / 2 - m * x))
            return np.log1p(q * here * np.expm1(sign * unit * (x - m) - unit**2 / 2))

        def drawn(sign, count, m=m):
            there, used = rng.random(count) < p, rng.random(count) < q
            return rng.normal(size=count) + np.where(there, m + sign * unit * used, 0.0)

        x = drawn(1, len(who))
        up = x > m + unit / 2
        loss[who[up]] = ratio(x[up], 1)
        edge = m - unit / 2
        chance = (1 - p) * special.ndtr(-edge) + p * (
            (1 - q) * special.ndtr(unit / 2) + q * special.ndtr(-unit / 2)
        )
        taken = (1 - p) * special.ndtr(-m - unit / 2) + p * (
            (1 - q) * special.ndtr(-unit / 2) + q * special.ndtr(unit / 2)
        )
        rest = who[~up]
        rest = rest[rng.random(len(rest)) < chance / (1 - taken)]
        z = drawn(-1, 30 * len(rest) + 1000)
        loss[rest] = ratio(z[z > edge][: len(rest)], -1)
    return loss


def test_many_rounds_by_monte_carlo():
    """The composed upper bound is the composed pair; the composed attack lies below it and above
    the lower bound.
    """
    p, q, records, noise, rounds, epsilon, size = 0.3, 0.3, 5, 1.0, 12, 1.0, 40_000
    rng = np.random.default_rng(11)
    bracket = run(p, q, records, noise, rounds).delta(epsilon)

    def estimate(losses):
        values = np.maximum(-np.expm1(epsilon - losses), 0.0)
        return values.mean(), 4 * values.std() / math.sqrt(size)

    mean, error = estimate(
        sum(pair_draws(rng, p, q, records, 1 / noise, size) for _ in range(rounds))
    )
    assert abs(mean - bracket.upper) <= error + 2e-3 * mean
    attack, error = estimate(sum(draws(rng, p, q, records, 1 / noise, size) for _ in range(rounds)))
    assert attack - error <= bracket.upper
    assert bracket.lower >= 0.98 * attack - error


def test_two_rounds_by_quadrature():
    """The composed curve of two rounds, from the one-round curve alone: delta_2(eps) = E[...] over
    a fine partition.
    """
    p, q, records, noise, epsilon = 0.4, 0.5, 3, 1.0, 0.4
    pair = participation_pair(p, q, records, 1.0 / noise, False)
    ends = np.concatenate([[-np.inf], np.linspace(-0.9, 6.0, 401), [np.inf]])
    cells = pair.cells(ends)
    mass, loss = np.exp(cells.log_p), cells.loss
    some = mass > 1e-7
    # D of the rest at the epsilon that is left
    second = np.array([pair.delta(epsilon - x)[0] for x in loss[some]])
    # sum over the first round of q(x) D(P e^x || e^eps Q) = p(x) D_{eps - x}
    expected = float(mass[some] @ second)
    low, high = Composition([(PricedRound(pair), 2)]).delta(epsilon, 1e-4)
    assert low <= expected * (1 + 1e-3)
    assert high >= expected * (1 - 1e-3)
    assert high - low <= 1e-3 * high


@pytest.mark.parametrize(("p", "q", "records"), CASES)
def test_noise_for_the_papers_two_cases(p, q, records):
    """Single-round noise for (0.015, 1e-6): corrected, orthogonal attack, and the baselines."""
    known = {30: (2.490, 1.7877, 7.665, 22.497), 1000: (0.8151, 0.70878, 0.8739, 1.1035)}[records]
    sampler = RandomParticipation(p, q, records, 1)

    def noise(delta):
        return optimize.brentq(
            lambda z: math.log(max(delta(z), 1e-300) / 1e-6), 0.4, 40.0, xtol=1e-4
        )

    assert noise(
        lambda z: participation_pair(p, q, records, 1 / z, False).delta(0.015)[1]
    ) == pytest.approx(known[0], rel=2e-4)
    orthogonal = noise(
        lambda z: max(angled_attack(p, q, records, 1 / z, 0.0).delta(0.015)[0], 1e-300)
    )
    assert orthogonal == pytest.approx(known[1], rel=3e-3)
    leaned = noise(lambda z: max(angled_attack(p, q, records, 1 / z, 0.4).delta(0.015)[0], 1e-300))
    assert orthogonal < leaned < known[0]
    for name, value in zip(("WCS", "OLS"), known[2:], strict=True):
        assert noise(
            lambda z, n=name: float(baseline(n, sampler, z).guarantee().delta(0.015))
        ) == pytest.approx(value, rel=2e-4)
    assert noise(
        lambda z: float(baseline("CS", sampler, z).guarantee().delta(0.015))
    ) == pytest.approx(0.5674, rel=2e-4)


@settings(deadline=None, max_examples=5)
@given(
    st.floats(0.01, 0.9),
    st.floats(0.01, 0.9),
    st.integers(1, 200),
    st.floats(0.6, 6.0),
    st.integers(1, 50),
)
def test_between_its_baselines(p, q, records, noise, rounds):
    sampler = RandomParticipation(p, q, records, rounds)
    mine = Mechanism(sampler, noise).guarantee().epsilon(1e-5)
    cs, wcs, ols = (baseline(name, sampler, noise).guarantee().epsilon(1e-5) for name in BASELINES)
    assert mine.lower <= mine.upper
    assert cs.lower <= mine.upper * (1 + 1e-9)
    assert mine.upper <= wcs.upper * (1 + 3e-3)
    assert wcs.lower <= ols.upper * (1 + 1e-9)
    assert mine.lower >= 0.97 * cs.lower - 1e-6


def test_it_rises_with_records_and_rounds_and_falls_with_noise():
    by_records = [run(0.2, 0.1, d, 1.0, 20).epsilon(1e-5).upper for d in (1, 5, 20, 100)]
    by_rounds = [run(0.2, 0.1, 20, 1.0, n).epsilon(1e-5).upper for n in (1, 5, 20, 100)]
    by_noise = [run(0.2, 0.1, 20, z, 20).epsilon(1e-5).upper for z in (4.0, 2.0, 1.0, 0.5)]
    for values in (by_records, by_rounds, by_noise):
        assert values == sorted(values)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_known_participation_is_p_times_poisson(epsilon):
    """Theorem 5.2 of the paper simplifies to this."""
    sampler = RandomParticipation(0.07, 0.2, 50, 1)
    poisson = Mechanism(Poisson(0.2, 1), 1.3).guarantee().delta(epsilon)
    found = baseline("WCS", sampler, 1.3).guarantee().delta(epsilon)
    assert found.lower <= 0.07 * poisson.upper
    assert found.upper >= 0.07 * poisson.lower
    assert found.upper == pytest.approx(0.07 * poisson.upper, rel=1e-6)


def test_known_participation_of_many_rounds_is_exact():
    """Averaged over the number of rounds it took part in."""
    p, q, noise, rounds, epsilon = 0.3, 0.2, 1.0, 6, 0.5
    found = (
        Mechanism(RandomParticipation(p, q, 9, rounds, revealed=True), noise)
        .guarantee()
        .delta(epsilon, 1e-4)
    )
    chances = stats.binom.pmf(np.arange(rounds + 1), rounds, p)
    parts = [
        Mechanism(Poisson(q, n), noise).guarantee().delta(epsilon, 1e-4)
        for n in range(1, rounds + 1)
    ]
    assert found.lower <= sum(w * part.upper for w, part in zip(chances[1:], parts, strict=True))
    assert found.upper >= sum(w * part.lower for w, part in zip(chances[1:], parts, strict=True))
    assert found.width <= 2e-4 * found.upper


def test_the_edges_are_poisson_sampling():
    for same, other in (
        (RandomParticipation(1.0, 0.05, 100, 30), Poisson(0.05, 30)),
        (RandomParticipation(0.2, 0.05, 0, 30), Poisson(0.2 * 0.05, 30)),
        (RandomParticipation(1.0, 0.05, 100, 30, revealed=True), Poisson(0.05, 30)),
    ):
        a, b = (Mechanism(s, 1.0).guarantee().epsilon(1e-5) for s in (same, other))
        assert (a.lower, a.upper) == (b.lower, b.upper)
    near = Mechanism(RandomParticipation(0.2, 0.05, 1, 30), 1.0).guarantee().epsilon(1e-5)
    assert near.upper > Mechanism(Poisson(0.01, 30), 1.0).guarantee().epsilon(1e-5).lower


def test_every_client_has_its_own_guarantee_from_its_own_numbers():
    """Phases of different rates, records and noise; their sum lies between the easiest and the
    hardest all along.
    """
    parts = [(0.1, 0.1, 20, 1.5), (0.3, 0.05, 50, 1.0), (0.05, 0.2, 10, 2.0)]
    mechanisms = [Mechanism(RandomParticipation(p, q, d, 10), z) for p, q, d, z in parts]
    together = Phases(tuple(mechanisms)).guarantee().epsilon(1e-5)
    alone = [m.guarantee().epsilon(1e-5) for m in mechanisms]
    tripled = [run(p, q, d, z, 30).epsilon(1e-5) for p, q, d, z in parts]
    assert max(a.lower for a in alone) <= together.upper
    assert min(t.lower for t in tripled) <= together.upper
    assert together.upper <= max(t.upper for t in tripled)
    twice = (mechanisms[0] + mechanisms[0]).guarantee().epsilon(1e-5)
    assert twice.upper == pytest.approx(run(0.1, 0.1, 20, 1.5, 20).epsilon(1e-5).upper, rel=1e-9)
    mixed = (mechanisms[0] + Mechanism(Poisson(0.01, 10), 1.0)).guarantee().epsilon(1e-5)
    assert alone[0].lower <= mixed.lower <= mixed.upper


def test_many_distinct_rounds():
    rng = np.random.default_rng(3)
    rounds = [
        Mechanism(RandomParticipation(float(p), float(q), int(d), 1), 1.5)
        for p, q, d in zip(
            rng.uniform(0.05, 0.2, 25),
            rng.uniform(0.05, 0.1, 25),
            rng.integers(10, 60, 25),
            strict=True,
        )
    ]
    found = Phases(tuple(rounds)).guarantee().epsilon(1e-5, rtol=0.01)
    assert (
        run(0.05, 0.05, 10, 1.5, 25).epsilon(1e-5).lower
        <= found.upper
        <= run(0.2, 0.1, 60, 1.5, 25).epsilon(1e-5).upper
    )
    least = min(phase.sampler.records for phase in rounds)
    samplers = [replace(phase.sampler, records=least) for phase in rounds]
    consistent = Phases(tuple(Mechanism(sampler, 1.5) for sampler in samplers))
    alike = consistent.guarantee().epsilon(1e-5, rtol=0.01)
    assert alike.lower > 0.7 * alike.upper
    # one client has the least of them in every phase, for all that an attack knows
    assert found.lower == pytest.approx(alike.lower, rel=1e-6)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
def test_a_thousand_rounds_of_a_thousand_records(rate):
    bracket = Mechanism(RandomParticipation(0.1, rate, 1000, 1000), 1.0).guarantee().epsilon(1e-5)
    assert bracket.lower > 0.65 * bracket.upper


@pytest.mark.parametrize(
    ("p", "q", "records"), [*CASES, (0.9, 0.9, 10), (0.3, 1.0, 5), (0.01, 0.01, 10**6)]
)
@pytest.mark.parametrize("noise", [0.05, 1e5])
def test_extreme_noise_is_priced(p, q, records, noise):
    bracket = run(p, q, records, noise, 30).epsilon(1e-9)
    assert 0.0 <= bracket.lower <= bracket.upper < math.inf
    assert bracket.upper > 100.0 if noise < 1.0 else bracket.upper < 1e-3


def test_numbers_of_other_records_are_binomial():
    for records, rate in ((30, 0.1), (1000, 0.999), (10**6, 1e-3), (1, 1e-9), (0, 0.5), (5, 1.0)):
        number, chances, error = other_records(records, rate)
        assert error < 1e-10
        assert chances == pytest.approx(stats.binom.pmf(number, records, rate), rel=1e-9, abs=1e-40)
        assert 1.0 - stats.binom.cdf(number[-1], records, rate) < 1e-15


# --- other descriptions ---------------------------------------------------------------------------


def test_clipped_aggregates():
    """Any two of the three sums may be 2 apart: worse than Poisson sampling with pq, no worse than
    with q.
    """
    sampler = RandomParticipation(0.2, 0.1, 10, 5)
    found = Mechanism(sampler, 1.0, Batch()).guarantee().epsilon(1e-5)
    hidden, shown = (
        Mechanism(Poisson(rate, 5), 1.0, Batch()).guarantee().epsilon(1e-5) for rate in (0.02, 0.1)
    )
    assert hidden.lower <= found.upper <= shown.upper * 1.001
    known = (
        Mechanism(RandomParticipation(0.2, 0.1, 10, 5, revealed=True), 1.0, Batch())
        .guarantee()
        .epsilon(1e-5)
    )
    assert found.upper <= known.upper * 1.001
    with pytest.raises(NoGuarantee, match="Individual or Batch"):
        Mechanism(sampler, 1.0, Mixed(groups=3)).guarantee()


def test_groups_and_replacement_go_by_the_triangle_inequality():
    one, three = (
        run(0.2, 0.1, 10, 3.0, 5),
        Mechanism(RandomParticipation(0.2, 0.1, 10, 5), 3.0).guarantee(group=3),
    )
    assert one.epsilon(1e-5).upper < three.epsilon(1e-5).upper < math.inf
    assert "black box" in three.upper_by
    replaced = run(0.2, 0.1, 10, 3.0, 5, relation="replace").epsilon(1e-5)
    assert one.epsilon(1e-5).upper < replaced.upper < math.inf
    zeroed = run(0.2, 0.1, 10, 3.0, 5, relation="zero-out").epsilon(1e-5)
    assert zeroed == one.epsilon(1e-5)
    apart = Mechanism(RandomParticipation(0.2, 0.1, 10, 5), 3.0).guarantee(
        group=3, geometry="orthogonal"
    )
    assert apart.epsilon(1e-5).upper >= one.epsilon(1e-5).upper


def test_without_noise_whoever_is_sampled_is_seen():
    guarantee = run(0.5, 0.5, 3, 0.0, 4)
    assert guarantee.epsilon(1e-3).upper == math.inf
    assert guarantee.delta(5.0).lower == pytest.approx(1 - 0.75**4)
