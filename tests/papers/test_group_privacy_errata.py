"""Where 'optimal group privacy' is wrong as printed: numbers of docs/errata.md, by quadrature."""

import math

import numpy as np
import pytest
from scipy import stats

from verax import Mechanism, Poisson
from verax.privacy.curves.black_box import BlackBox
from verax.privacy.curves.gaussian import gaussian_delta

NORMAL = stats.norm
X = np.linspace(-14.0, 20.0, 340_001)
WIDTH = X[1] - X[0]


def mixture(group, rate, noise=1.0, places=None):
    weights = stats.binom.pmf(np.arange(group + 1), group, rate)
    places = np.arange(group + 1.0) if places is None else places
    return sum(w * NORMAL.pdf(X, place, noise) for w, place in zip(weights, places, strict=True))


def weighted_variation(p, q, a):
    """Definition 6."""
    return float(np.sum(np.abs(p - a * q)) * WIDTH)


def test_corollary_19_lacks_a_pair_of_brackets():
    """One step, rate .1, noise 1, 4 records, epsilon 1: .0283 by proposition 10, -.831 as printed
    in corollary 19.
    """
    x, y, a = NORMAL.pdf(X), mixture(4, 0.1), math.e
    larger = max(weighted_variation(x, y, a), a * weighted_variation(x, y, 1.0 / a))
    assert 0.5 * (larger + 1.0 - a) == pytest.approx(0.028331, abs=1e-5)
    assert 0.5 * larger + 1.0 - a == pytest.approx(-0.8308, abs=1e-4)


def test_proposition_21_states_a_probability_above_one_and_drops_a_factor():
    """1,000 samples, gamma .05: the printed probability is 2.68. Read as 1 - 2 exp(-2 m gamma^2) it
    would be .987.
    """
    samples, gamma, epsilon = 1000, 0.05, 3.0
    tail = 2.0 * math.exp(-2.0 * samples * gamma**2)
    assert math.exp(1.0 - tail) == pytest.approx(2.68, abs=0.01)
    assert 1.0 - tail == pytest.approx(0.9865, abs=1e-4)
    rng = np.random.default_rng(1)
    scale, weights = math.exp(epsilon), stats.binom.pmf(np.arange(5), 4, 0.5)
    x = rng.standard_normal((2000, samples))
    ratio = sum(w * np.exp(j * x - j * j / 2.0) for j, w in enumerate(weights))
    estimates = 1.0 - scale + scale * np.mean(np.maximum(1.0 - ratio / scale, 0.0), axis=1)
    truth = Mechanism(Poisson(0.5, 1), 1.0).guarantee(4).delta(epsilon).upper
    off = float(np.mean(np.abs(estimates - truth) > gamma))
    assert truth == pytest.approx(0.2448, abs=5e-4)
    assert off == pytest.approx(0.41, abs=0.04)  # in place of .0135 at most


def test_algorithm_1_divides_by_the_size_of_the_data():
    """Full batches, noise 1, 1,000 records of one direction and one opposed to them: both sizes
    enter the average.

    (n + N) / n against (n - 1 + N) / (n + 1), in units of 1/n: means 1.998 apart, not 1, and
    different noise.
    """
    n = 1000
    without = NORMAL.pdf(X, 2.0, 1.0)
    with_it = NORMAL.pdf(X, 2.0 + n * ((n - 1) / (n + 1) - 1.0), n / (n + 1))
    found = float(np.sum(np.maximum(without - math.e * with_it, 0.0)) * WIDTH)
    assert found == pytest.approx(0.5097, abs=1e-4)
    # what theorem 18 says of group size 1
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.1269, abs=1e-4)


def test_algorithm_2_overwrites_the_sampling_rate():
    """BINOM_MIXTURE_PDF sets p to 0, then asks for binomial weights of p: at x = 0 it returns
    1.0003, not .8396.
    """
    total = 0.0
    for j in range(5):
        total += math.exp(-(j**2) / 2.0) * math.comb(4, j) * total**j * (1.0 - total) ** (4 - j)
    right = sum(stats.binom.pmf(j, 4, 0.1) * math.exp(-(j**2) / 2.0) for j in range(5))
    assert total == pytest.approx(1.0003, abs=1e-4)
    assert right == pytest.approx(0.8396, abs=1e-4)


def test_the_proof_of_lemma_14_takes_the_transition_function_the_wrong_way_round():
    """N(0), N(1), N(2) with noise 1: the signs of the two terms change at .5 and 1.5, not at one
    place.

    t_i = a p_i / g_i(a p_1 / t) should be a p_i g_i(t / (a p_1)).
    """

    def transition(r):  # of N(1) to N(2): log nu_Z/nu_X = 2 log nu_Y/nu_X - 1
        return r**2 * math.exp(-1.0)

    def change(threshold, mean):  # where nu_X = threshold * N(mean)
        return (-math.log(threshold) + mean**2 / 2.0) / mean

    assert change(1.0, 1.0) == 0.5
    assert change(transition(1.0), 2.0) == pytest.approx(1.5)
    assert change(1.0 / transition(1.0), 2.0) == pytest.approx(0.5)


def test_the_derivative_in_appendix_a2_has_half_the_logarithm():
    """For a = 1/2, noise 1 and distance 1 the sign changes at 1.193; the printed argument of erf
    stands for .847.
    """
    a = 0.5
    place = float(X[np.argmax(NORMAL.pdf(X) < a * NORMAL.pdf(X, 1.0))])
    assert place == pytest.approx((1.0 - 2.0 * math.log(a)) / 2.0, abs=1e-3)
    assert (1.0 - math.log(a)) / 2.0 == pytest.approx(0.8466, abs=1e-4)
    near, far = (place / math.sqrt(2.0)) ** 2, ((place - 1.0) / math.sqrt(2.0)) ** 2
    # not the square root of a
    assert math.exp(-near) == pytest.approx(a * math.exp(-far), rel=1e-3)


def test_the_transition_function_of_appendix_a3_lacks_a_square_and_the_variance():
    """Noise 2, mean 3, c = 2: at ratio 1 the other ratio is e^-2.25; the printed g(1) is e^-6."""
    noise, mean, c = 2.0, 3.0, 2.0
    x = mean / 2.0  # where the first ratio is 1
    other = (2.0 * c * mean * x - (c * mean) ** 2) / (2.0 * noise**2)
    assert other == pytest.approx((c - c * c) * mean**2 / (2.0 * noise**2)) == pytest.approx(-2.25)
    assert (c - c * c) * mean == -6.0


def test_equation_2_of_appendix_a5_has_the_wrong_weight():
    """Rate .1, noise 1, alpha .05: the left side is .0958; the right side .605 with (1-p)^2, and
    .0936 with p^2.
    """
    p, alpha = 0.1, 0.05

    def power(rate, shift=1.0):
        return 1.0 - NORMAL.cdf(NORMAL.ppf(1.0 - rate) - shift)

    def sampled(rate):
        return (1.0 - p) * rate + p * power(rate)

    common = (1.0 - p) ** 2 * alpha + 2.0 * p * (1.0 - p) * power(alpha)
    left = sampled(sampled(alpha))
    assert left == pytest.approx(0.0958, abs=1e-4)
    assert common + (1.0 - p) ** 2 * power(power(alpha)) == pytest.approx(0.6046, abs=1e-4)
    assert common + p**2 * power(alpha, 2.0) == pytest.approx(0.0936, abs=1e-4)
    assert power(power(alpha)) == pytest.approx(power(alpha, 2.0))
    assert common + p**2 * power(alpha, 2.0) <= left


@pytest.mark.parametrize(
    ("rate", "group", "stated", "exact"),
    [(0.1, 4, 0.016580, 0.0014542), (0.01, 16, 1.2622e-3, 4.943e-8)],
)
def test_orthogonal_gradients_are_better_than_the_square_root(rate, group, stated, exact):
    """Section 6 puts sqrt(B(k, p)) on one line. Each record has a direction of its own: k runs with
    one record each.
    """
    y = mixture(group, rate, places=np.sqrt(np.arange(group + 1.0)))
    x = NORMAL.pdf(X)
    line = max(float(np.sum(np.maximum(p - math.e * q, 0.0)) * WIDTH) for p, q in ((y, x), (x, y)))
    assert line == pytest.approx(stated, rel=1e-4)
    # one record, as many rounds as records
    apart = Mechanism(Poisson(rate, group), 1.0).guarantee().delta(1.0)
    assert apart.lower <= exact * 1.001
    assert exact <= apart.upper * 1.001
    own = Mechanism(Poisson(rate, 1), 1.0).guarantee(group, "orthogonal").delta(1.0)
    assert (own.lower, own.upper) == (apart.lower, apart.upper)


def test_a_smaller_rate_is_not_always_more_graceful():
    """100 steps, one record with epsilon 1 at 1e-5 (to 4 digits): 8 records cost more at rate .1
    than at rate 1.
    """
    small, full = Mechanism(Poisson(0.1, 100), 3.9417), Mechanism(Poisson(1.0, 100), 37.3060)
    for run in (small, full):
        one = run.guarantee().epsilon(1e-5, 1e-5)
        assert one.lower > 0.9999
        assert one.upper < 1.0001
    assert small.guarantee(8).epsilon(1e-5, 1e-4).lower > 10.949
    assert full.guarantee(8).epsilon(1e-5, 1e-4).upper < 10.900


def test_the_black_box_does_not_say_the_same_of_every_rate():
    """Figure 3's settings, 2 records, delta 1e-5: 3.05 at rate .001 and 2.18 at rate 1."""
    found = [
        BlackBox(Mechanism(Poisson(rate, 100), noise).guarantee()).epsilon(2, 1e-5)
        for rate, noise in ((0.001, 0.5755), (1.0, 37.306))
    ]
    assert found == pytest.approx([3.054, 2.176], abs=0.01)
