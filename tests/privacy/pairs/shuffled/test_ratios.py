"""What one batch tells: the three Gaussians of lemma S1, and the law above all ratios."""

import math

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from verax.privacy.pairs.shuffled.ratios import Ratio, geometries, largest_ratio

SHIFTS = (0.05, 0.5, 1.0, 2.0)


def positive_part(first, second, third, a, k):
    """The integral of (N(first) - a N(second) + k N(third))^+ on the line, by quadrature."""
    x = np.linspace(-14.0, 14.0, 40001)
    density = norm.pdf(x - first) - a * norm.pdf(x - second) + k * norm.pdf(x - third)
    return float(integrate.trapezoid(np.maximum(density, 0.0), x))


@pytest.mark.parametrize("direction", [0, 1])
def test_no_three_means_within_reach_are_worse(direction):
    rng = np.random.default_rng(5)
    for _ in range(60):
        s, a = rng.uniform(0.1, 2.0), math.exp(rng.uniform(0.0, 3.0))
        k = rng.choice([-1.0, 1.0]) * math.exp(rng.uniform(-4.0, 3.0))
        g, v = rng.uniform(-s, s, 2)
        means = (g, 0.0) if direction == 0 else (0.0, g)
        worst = {(0, -1.0): (s, 0.0, -s), (0, 1.0): (s, 0.0, s)}
        worst |= {(1, -1.0): (0.0, s, s), (1, 1.0): (0.0, s, -s)}
        largest = worst[direction, math.copysign(1.0, k)]
        found = positive_part(*means, v, a, k)
        assert found <= positive_part(*largest, a, k) + 1e-9


def test_no_three_points_of_the_plane_within_a_distance_are_worse():
    rng = np.random.default_rng(6)
    x = np.linspace(-9.0, 9.0, 241)
    plane = np.stack(np.meshgrid(x, x), axis=-1)
    cell = (x[1] - x[0]) ** 2

    def density(mean):
        return np.exp(-0.5 * ((plane - mean) ** 2).sum(axis=-1)) / (2.0 * math.pi)

    for _ in range(20):
        d, a = rng.uniform(0.2, 2.0), math.exp(rng.uniform(0.0, 2.0))
        k = rng.choice([-1.0, 1.0]) * math.exp(rng.uniform(-3.0, 2.0))
        # three points of a triangle with no side longer than d
        points = [np.zeros(2)]
        while len(points) < 3:
            point = rng.uniform(-d, d, 2)
            if all(np.linalg.norm(point - other) <= d for other in points):
                points.append(point)
        g, b, v = points
        found = np.maximum(density(g) - a * density(b) + k * density(v), 0.0).sum() * cell
        largest = positive_part(d, 0.0, 0.0 if k < 0.0 else d, a, k)
        assert found <= largest + 1e-6


@pytest.mark.parametrize("s", SHIFTS)
@pytest.mark.parametrize(
    ("relation", "alone"), [("zero-out", True), ("replace", True), ("zero-out", False)]
)
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("log_a", [0.0, 0.3, 2.0])
def test_the_law_is_above_every_ratio_and_hardly_above_the_largest(
    s, relation, alone, direction, log_a
):
    geometry = geometries(s, relation, alone)[direction]
    a, atoms = math.exp(log_a), largest_ratio(geometry, log_a)
    assert np.all(np.diff(atoms.values) >= 0.0)
    assert atoms.masses.sum() == pytest.approx(1.0, abs=1e-9)
    mean = float(atoms.values @ atoms.masses)
    assert 1.0 - a <= mean <= 1.0 - a + 1e-3 * a
    x = np.linspace(-12.0, 12.0, 60001)
    weight = norm.pdf(x) * (x[1] - x[0])
    rng = np.random.default_rng(3)
    for k in (-2.0 * a, -0.5, 0.0, 0.3, a, 5.0 * a):
        above = float(np.maximum(atoms.values + k, 0.0) @ atoms.masses) + atoms.beyond
        ratio = geometry.positive if k <= 0.0 else geometry.negative
        largest = float(np.maximum(ratio.value(x, log_a) + k, 0.0) @ weight)
        assert largest * (1.0 - 1e-6) - 1e-9 <= above <= 1.02 * largest + 2e-3 * a
        if relation == "zero-out" and alone:
            for _ in range(5):
                g, v = rng.uniform(-s, s, 2)
                other = Ratio(g - v, -v) if direction == 0 else Ratio(-v, g - v)
                if other.first != other.second:
                    some = float(np.maximum(other.value(x, log_a) + k, 0.0) @ weight)
                    assert some <= above + 1e-9


def test_cells_are_exact_normal_probabilities_and_means():
    ratio = Ratio(1.5, 0.5)
    ends = np.array([-np.inf, -1.0, 0.2, 3.0, np.inf])
    mass, mean, error = ratio.in_cells(ends, 0.7)
    assert mass == pytest.approx(np.diff(norm.cdf(ends)))
    expected = np.diff(norm.cdf(ends - 1.5)) - math.exp(0.7) * np.diff(norm.cdf(ends - 0.5))
    assert np.all(np.abs(mean - expected) <= error + 1e-14)


def test_the_sign_changes_at_the_threshold():
    for ratio in (Ratio(1.0, 0.5), Ratio(0.0, -0.5), Ratio(-0.5, 0.0), Ratio(0.5, 1.0)):
        edge = ratio.threshold(0.4)
        below, above = ratio.value(np.array([edge - 1e-6, edge + 1e-6]), 0.4)
        assert (above > below) == ratio.rising
        assert below * above < 0.0
