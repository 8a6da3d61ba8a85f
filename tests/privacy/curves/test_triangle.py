"""The triangle inequality: its formula, its inverse, and worst cases of two bins and two records
written out.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special

from verax import BallsInBins, Batch, Individual, Mechanism, RandomAllocation, WithoutReplacement
from verax.privacy.curves.gaussian import black_box_group, gaussian_delta
from verax.privacy.curves.triangle import SmallestBound, TriangleInequality
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld.composition import Composition


def gaussian(shift: float) -> Composition:
    return Composition([(PricedRound(MixturePair.gaussian(shift)), 1)])


@dataclass(frozen=True)
class Line:
    """A curve with delta = at e^-epsilon, to see what is asked of it."""

    at: float
    cost: float

    def estimate(self, delta: float) -> float:
        return self.cost

    def delta(self, epsilon, rtol, sides=(), enough=0.0):
        return 0.0, self.at * math.exp(-epsilon)

    def epsilon(self, delta, rtol, sides=(), enough=0.0):
        raise AssertionError("not needed")


# --- the formula ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 4.0])
def test_equal_steps_are_the_black_box_of_group_privacy(steps, epsilon):
    """(k eps, (e^(k eps) - 1)/(e^eps - 1) delta): "optimal group privacy", theorem 4, without its
    extra factor k.
    """
    found = TriangleInequality(((gaussian(0.5), steps),)).delta(epsilon, 1e-3)[1]
    each = epsilon / steps
    total = (
        black_box_group(each, gaussian_delta(0.5, each), steps)[1]
        if each > 0.0
        else steps * gaussian_delta(0.5, 0.0)
    )
    assert found == pytest.approx(min(total, 1.0), rel=1e-9)
    assert found >= min(total, 1.0) * (1.0 - 1e-12)


def test_unequal_links_are_added_up_in_order():
    """Three steps of one kind and two of another, epsilon in proportion to what they cost: written
    out.
    """
    one, other = Line(1e-3, 0.2), Line(1e-5, 0.6)
    epsilon = 2.5
    shares = [epsilon * c / 1.8 for c in (0.6, 1.2)]
    each = [shares[0] / 3.0] * 3 + [shares[1] / 2.0] * 2
    deltas = [1e-3 * math.exp(-each[0])] * 3 + [1e-5 * math.exp(-each[3])] * 2
    total, used = 0.0, 0.0
    for mine, bound in zip(each, deltas, strict=True):
        total += math.exp(used) * bound
        used += mine
    assert used == pytest.approx(epsilon)
    assert TriangleInequality(((one, 3), (other, 2))).delta(epsilon, 1e-3) == (
        0.0,
        pytest.approx(total, rel=1e-11),
    )


def test_any_division_is_an_upper_bound_for_gaussians():
    """Steps of shifts 1 and 2 lead to a shift of 3 at most."""
    for epsilon in (0.0, 1.0, 5.0, 12.0):
        for links in (((gaussian(1.0), 1), (gaussian(2.0), 1)), ((gaussian(1.0), 3),)):
            assert TriangleInequality(links).delta(epsilon, 1e-3)[1] >= gaussian_delta(3.0, epsilon)


def test_epsilon_is_an_end_that_holds():
    for links in (((gaussian(0.5), 2),), ((gaussian(0.3), 1), (gaussian(0.6), 1))):
        chain = TriangleInequality(links)
        for delta in (1e-9, 1e-3, 0.2):
            lower, upper = chain.epsilon(delta, 1e-3)
            assert lower == 0.0
            assert chain.delta(upper, 1e-3)[1] <= delta
            assert upper == 0.0 or chain.delta(0.99 * upper, 1e-3)[1] > delta
    assert TriangleInequality(((gaussian(0.1), 2),)).epsilon(0.9, 1e-3) == (0.0, 0.0)


def test_what_overflows_is_trivial():
    assert TriangleInequality(((gaussian(50.0), 9),)).delta(5000.0, 1e-3) == (0.0, 1.0)


def test_the_best_of_several_bounds_counts():
    best = SmallestBound((gaussian(1.0), TriangleInequality(((gaussian(0.5), 2),))))
    assert best.delta(1.0, 1e-3)[1] == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-9)
    assert best.delta(1.0, 1e-3)[0] == best.epsilon(1e-5, 1e-3)[0] == 0.0
    assert best.epsilon(1e-5, 1e-3)[1] == gaussian(1.0).epsilon(1e-5, 1e-3)[1]
    assert best.estimate(1e-5) == min(curve.estimate(1e-5) for curve in best.curves)


# --- never above what is printed: two bins, every choice of gradients on a line -------------------

EDGES = np.concatenate([[-np.inf], np.arange(-9.0, 9.01, 0.1), [np.inf]])
EPSILONS = (0.0, 0.2, 1.0, 3.0)


def bins(points: list[tuple[float, tuple[float, float]]]) -> np.ndarray:
    """The pmf of two noisy sums with these weights and means, seen in a grid of bins."""
    line = {m: np.diff(special.ndtr(EDGES - m)) for m in {m for _, mean in points for m in mean}}
    return sum(weight * np.multiply.outer(line[a], line[b]) for weight, (a, b) in points)


def assert_never_above(pmfs, bounds) -> float:
    """The largest share of the bound that is attained."""
    worst = 0.0
    for p, q in pmfs:
        for epsilon, bound in zip(EPSILONS, bounds, strict=True):
            attained = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())
            assert attained <= bound * (1.0 + 1e-9) + 1e-13, epsilon
            worst = max(worst, attained / max(bound, 1e-9))
    return worst


def one_record(
    noise: float, gradients: tuple[int, int], base: tuple[int, int] = (0, 0)
) -> np.ndarray:
    """The record moves the sum of the bin it falls into; ``base`` is what the sums are
    without it.
    """
    a, b = (g / noise for g in gradients)
    x, y = (g / noise for g in base)
    return bins([(0.5, (a, y)), (0.5, (x, b))])


@pytest.mark.parametrize("noise", [0.8, 2.0])
def test_replacing_a_record(noise):
    guarantee = Mechanism(BallsInBins(2), noise, relation="replace").guarantee()
    bounds = [guarantee.delta(epsilon).upper for epsilon in EPSILONS]
    choices = list(itertools.product((1, 0, -1), repeat=2))
    pmfs = [(one_record(noise, old), one_record(noise, new)) for old in choices for new in choices]
    assert assert_never_above(pmfs, bounds) > 0.7
    assert "lemma 5" in guarantee.upper_by


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_batch_clipping(relation):
    """Aggregates between -1 and 1: the record's bin shows one aggregate with it, another with its
    replacement.
    """
    guarantee = Mechanism(BallsInBins(2), 2.0, Batch(), relation).guarantee()
    bounds = [guarantee.delta(epsilon).upper for epsilon in EPSILONS]
    pmfs = []
    for base in itertools.product((1, -1), repeat=2):
        for old in itertools.product((1, -1), repeat=2):
            news = [base] if relation == "zero-out" else list(itertools.product((1, -1), repeat=2))
            pairs = [(one_record(2.0, old, base), one_record(2.0, new, base)) for new in news]
            pmfs += pairs + [(q, p) for p, q in pairs]
    assert assert_never_above(pmfs, bounds) > (0.9 if relation == "zero-out" else 0.4)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_two_records(relation):
    noise = 1.5
    guarantee = Mechanism(BallsInBins(2), noise, relation=relation).guarantee(2)
    bounds = [guarantee.delta(epsilon).upper for epsilon in EPSILONS]

    def group(first, second) -> np.ndarray:
        points = []
        for places in itertools.product((0, 1), repeat=2):
            mean = [0.0, 0.0]
            for place, gradients in zip(places, (first, second), strict=True):
                mean[place] += gradients[place] / noise
            points.append((0.25, (mean[0], mean[1])))
        return bins(points)

    full = list(itertools.product((1, -1), repeat=2))
    present = [group(a, b) for a in full for b in full]
    if relation == "add-remove":
        nobody = bins([(1.0, (0.0, 0.0))])
        pmfs = [pair for pmf in present for pair in ((pmf, nobody), (nobody, pmf))]
    else:
        pmfs = [(p, q) for p in present[::3] for q in present[::5]]
    assert assert_never_above(pmfs, bounds) > 0.3


def test_groups_cost_more_and_what_is_known_from_below_is_one_record():
    for sampler in (RandomAllocation(2, 20), WithoutReplacement(2, 40, 5)):
        mechanism = Mechanism(sampler, 1.5, Individual())
        one, two = (mechanism.guarantee(k).epsilon(1e-5, rtol=0.01) for k in (1, 2))
        assert one.upper < two.upper
        assert one.lower <= two.lower * 1.02
        assert one.lower < two.lower or "one record alone" in two.lower_by
        assert two.upper > 1.8 * one.upper
