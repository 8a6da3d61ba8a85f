"""The upper bound on one epoch: against brute force, attacks, fixed batches and known values."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.pairs.shuffled import attack
from verax.privacy.pairs.shuffled.hub import Epoch, upper_delta
from verax.privacy.pairs.shuffled.ratios import geometries

LINE = np.linspace(-10.0, 10.0, 401)
CELL = (LINE[1] - LINE[0]) ** 2


def two_rounds(answers, present, absent):
    """Densities of two rounds with one record each on a grid: x is record 0, in either order.

    ``answers(y)`` is what the other record answers in the first round, and in the second given y.
    """
    first, second = answers
    y, later = LINE[:, None], LINE[None, :]

    def law(own):
        one = norm.pdf(y - own(0)) * norm.pdf(later - second(y))
        other = norm.pdf(y - first) * norm.pdf(later - own(1))
        return 0.5 * (one + other)

    return law(present), law(absent)


def divergence(p, q, a):
    return float(np.maximum(p - a * q, 0.0).sum() * CELL)


@pytest.mark.parametrize("s", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
def test_two_batches_of_one_record_are_never_worse(s, epsilon):
    a, epoch, rng = math.exp(epsilon), Epoch(2, 2), np.random.default_rng(7)
    bounds = [
        min(upper_delta(g, epsilon, epoch, 1e-2), 1.0) for g in geometries(s, "zero-out", True)
    ]
    for _ in range(20):
        v, low, high, cut = *rng.uniform(-s, s, 3), rng.uniform(-2.0, 2.0)
        own = rng.uniform(-s, s, 2)
        p, q = two_rounds(
            (v, lambda y, low=low, high=high, cut=cut: np.where(y > cut, high, low)),
            lambda t, own=own: own[t],
            lambda t: 0.0,
        )
        assert divergence(p, q, a) <= bounds[0] + 1e-6
        assert divergence(q, p, a) <= bounds[1] + 1e-6


@pytest.mark.parametrize(
    ("noise", "epsilon", "adaptive", "conjectured"),
    [(4.0, 0.5, 5.875e-4, 4.679e-4), (2.0, 0.5, 3.529e-2, 3.333e-2), (1.0, 0.0, 0.36438, 0.36089)],
)
def test_the_conjectured_pair_is_not_the_worst(noise, epsilon, adaptive, conjectured):
    s, a = 1.0 / noise, math.exp(epsilon)

    def other(y):
        # with the record where it seems to be in the first batch, against it where not
        return np.where(norm.pdf(y - s) > a * norm.pdf(y), s, -s)

    p, q = two_rounds((-s, other), lambda t: s, lambda t: 0.0)
    assert divergence(p, q, a) == pytest.approx(adaptive, rel=2e-3)
    p, q = two_rounds((-s, lambda y: -s), lambda t: s, lambda t: 0.0)
    assert divergence(p, q, a) == pytest.approx(conjectured, rel=2e-3)
    bound = upper_delta(geometries(s, "zero-out", True)[0], epsilon, Epoch(2, 2), adaptive)
    assert bound >= adaptive


@pytest.mark.parametrize(("records", "batches"), [(3, 3), (5, 3), (6, 3)])
def test_three_batches_are_never_worse(records, batches):
    s, epsilon, rng = 0.5, 0.4, np.random.default_rng(8)
    a, epoch = math.exp(epsilon), Epoch(records, batches)
    size, longer = divmod(records, batches)
    sizes = [size + (t < longer) for t in range(batches)]
    slots = [t for t, many in enumerate(sizes) for _ in range(many)]
    x = np.linspace(-6.0, 6.0, 41)
    grid = np.meshgrid(x, x, x, indexing="ij")
    bounds = [upper_delta(g, epsilon, epoch, 1e-2) for g in geometries(s, "zero-out", True)]
    for _ in range(2):
        answers = rng.choice([-s, s], (records, batches)) * rng.choice([1.0, 0.5], (records, 1))
        p, q, orders = 0.0, 0.0, set(itertools.permutations(slots))
        for order in orders:
            sums = np.zeros(batches)
            for record, t in enumerate(order):
                sums[t] += answers[record, t]
            without = sums.copy()
            without[order[0]] -= answers[0, order[0]]
            for law, means in (("p", sums), ("q", without)):
                density = math.prod(norm.pdf(g - m) for g, m in zip(grid, means, strict=True))
                p, q = (p + density, q) if law == "p" else (p, q + density)
        cell = (x[1] - x[0]) ** 3 / len(orders)
        assert np.maximum(p - a * q, 0.0).sum() * cell <= bounds[0] + 1e-4
        assert np.maximum(q - a * p, 0.0).sum() * cell <= bounds[1] + 1e-4


@pytest.mark.parametrize(
    ("noise", "batches", "size", "epsilon"),
    [
        (1.0, 1000, 1024, 3.05),
        (1.5, 1000, 1024, 0.40),
        (2.0, 1000, 1024, 0.1045),
        (2.0, 10_000, 1024, 0.0265),
        (3.0, 1000, 64, 0.047),
        (1.0, 1000, 256, 3.15),
        (5.0, 1000, 32, 0.024),
    ],
)
def test_known_runs_have_at_most_this_epsilon_at_1e_5(noise, batches, size, epsilon):
    """Docs/shuffle.md has the table; batches that are not shuffled cost 4.38, 2.75, 1.99, ..."""
    s, epoch = 1.0 / noise, Epoch(size * batches, batches)
    forth, back = geometries(s, "zero-out", True)
    assert upper_delta(forth, epsilon, epoch, 1e-5) <= 1e-5
    assert upper_delta(back, epsilon, epoch, 1e-5) <= 1e-5
    assert gaussian_delta(s, epsilon) > 5e-4


@pytest.mark.parametrize("noise", [1.2, 2.0, 8.0])
@pytest.mark.parametrize("batches", [2, 40])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("alone", [True, False])
def test_bounds_are_above_attacks(noise, batches, relation, alone):
    s, epoch = 1.0 / noise, Epoch(40 * batches + 1, batches)
    both = zip(geometries(s, relation, alone), attack.ratios(s, relation, alone), strict=True)
    for geometry, ratios in both:
        for epsilon in (0.0, 0.05, 0.8):
            bound = upper_delta(geometry, epsilon, epoch, 1e-4)
            for ratio in ratios:
                event = attack.event(ratio, epsilon, batches)
                if event is not None:
                    assert event[1] - math.exp(epsilon) * event[0] <= bound


def test_larger_batches_hide_the_record_better():
    geometry = geometries(0.5, "zero-out", True)[0]
    bounds = [
        upper_delta(geometry, 0.15, Epoch(100 * size, 100), 1e-3) for size in (1, 10, 100, 1000)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 1.5 * bounds[-1]


def test_one_batch_more_or_less_of_one_record_hardly_matters():
    geometry = geometries(0.5, "zero-out", True)[0]
    even = upper_delta(geometry, 0.3, Epoch(10_000, 100), 1e-4)
    odd = upper_delta(geometry, 0.3, Epoch(10_037, 100), 1e-4)
    assert odd == pytest.approx(even, rel=0.05)


def test_an_epoch_knows_its_batches():
    epoch = Epoch(11, 4)  # 3 + 3 + 3 + 2
    assert (epoch.hub, epoch.others) == (3, 8)
    assert [(kind.count, kind.size) for kind in epoch.kinds] == [(2, 3), (1, 2)]
    assert [(kind.count, kind.size) for kind in Epoch(9, 3).kinds] == [(2, 3)]
