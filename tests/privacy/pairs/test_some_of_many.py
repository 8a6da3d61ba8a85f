"""k rounds of T at random: the attack against quadrature of the true likelihood ratio, and its pmfs
written out.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special

from verax import Mechanism, RandomAllocation
from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.pairs import some_of_many
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.some_of_many import some_of_many_attack

STEP = 0.03
SCORES = np.arange(-9.0, 9.0, STEP)
WEIGHTS = STEP * np.exp(-SCORES * SCORES / 2.0) / math.sqrt(2.0 * math.pi)


def true_delta(times: int, shift: float, epsilon: float, put: bool) -> float:
    """``times`` of three rounds: the average over all sets of the ratios' products, a + b Y in the
    last ratio Y.

    The expectation over Y is Black's formula, the other two scores are integrated over a grid.
    """
    y = np.exp(shift * SCORES - shift * shift / 2.0)
    first, second = y[:, None], y[None, :]
    constant, slope = (
        (first * second, first + second) if times == 2 else (first + second, np.ones((1, 1)))
    )
    level = 3.0 * math.exp(-epsilon if put else epsilon)
    strike = (level - constant) / slope
    positive = np.maximum(strike, 1e-300)
    upper = shift / 2.0 - np.log(positive) / shift
    call = special.ndtr(upper) - positive * special.ndtr(upper - shift)
    value = np.where(
        strike > 0.0, call - (1.0 - strike if put else 0.0), 0.0 if put else 1.0 - strike
    )
    return float(WEIGHTS @ (slope * value) @ WEIGHTS) / 3.0 * (math.exp(epsilon) if put else 1.0)


def test_the_reference_is_the_definition():
    """Against a sum over a grid of all three scores."""
    x = SCORES[::8]
    y, weight = np.exp(0.7 * x - 0.245), WEIGHTS[::8] * 8.0
    a, b, c = y[:, None, None], y[None, :, None], y[None, None, :]
    ratio = (a * b + a * c + b * c) / 3.0
    for put, gain in (
        (False, np.maximum(ratio - math.e, 0.0)),
        (True, np.maximum(1.0 - math.e * ratio, 0.0)),
    ):
        plain = float(np.einsum("ijk,i,j,k->", gain, weight, weight, weight))
        assert true_delta(2, 0.7, 1.0, put) == pytest.approx(plain, rel=2e-3)


@pytest.mark.parametrize("put", [False, True], ids=["remove", "add"])
@pytest.mark.parametrize(("shift", "epsilon"), [(0.3, 0.2), (0.7, 1.0), (1.0, 2.0)])
def test_two_of_three_rounds_by_quadrature(shift, epsilon, put):
    truth = true_delta(2, shift, epsilon, put)
    best = 0.0
    for lean in (1.0, 0.5, 0.1):
        table = some_of_many_attack(2, 3, shift, lean)
        best = max(best, (table.reverse() if put else table).delta(epsilon)[0])
    assert best <= truth * (1.0 + 1e-4)
    assert best >= 0.85 * truth
    bracket = Mechanism(RandomAllocation(2, 3), 1.0 / shift).guarantee().delta(epsilon)
    worst = max(true_delta(2, shift, epsilon, side) for side in (False, True))
    assert bracket.lower <= worst * (1.0 + 1e-4)
    assert worst * (1.0 - 1e-4) <= bracket.upper


def test_one_round_of_several_is_the_likelihood_ratio_itself_nearly():
    """With k = 1 of 3 the scores' sum is not the ratio; as an attack it stays below it."""
    for epsilon in (0.1, 0.6):
        for put in (False, True):
            table = some_of_many_attack(1, 3, 0.8, 1.0)
            seen, truth = (
                (table.reverse() if put else table).delta(epsilon)[0],
                true_delta(1, 0.8, epsilon, put),
            )
            assert 0.9 * truth <= seen <= truth * (1.0 + 1e-4)


@pytest.mark.parametrize(("times", "count", "lean"), [(1, 2, 1.0), (2, 4, 0.5), (3, 5, 1.0)])
def test_the_laws_are_convolutions_of_the_scores(times, count, lean, monkeypatch):
    """The masses with and without the record, by plain convolution, within the stated error; bins
    not merged.
    """
    monkeypatch.setattr(some_of_many, "_MERGE", 1e-9)
    table = some_of_many_attack.__wrapped__(times, count, 1.1, lean)
    plain, shifted = some_of_many._scores(lean * times / count, 1.1)
    pmfs = [np.exp(pmf.log_mass) for pmf in (plain, shifted)]
    assert [pmf.sum() for pmf in pmfs] == pytest.approx([1.0, 1.0], rel=1e-12)
    with_record, without = np.ones(1), np.ones(1)
    for round_ in range(count):
        with_record = np.convolve(with_record, pmfs[1 if round_ < times else 0])
        without = np.convolve(without, pmfs[0])
    sure = (without > 1e-9) & (with_record > 1e-9)  # where plain convolution has digits to compare
    order = np.argsort(np.log(with_record[sure]) - np.log(without[sure]))
    matched = 0
    for p, q in zip(with_record[sure][order][::12], without[sure][order][::12], strict=True):
        miss = np.abs(np.log(table.p / p)) + np.abs(np.log(table.q / q))
        assert miss.min() <= 3.0 * table.error
        matched += 1
    assert matched > 5
    assert table.p.sum() <= 1.0 + 1e-5
    assert table.q.sum() <= 1.0 + 1e-5


def test_what_a_transform_cannot_resolve_is_not_used(monkeypatch):
    """Without tilts nothing below 1e-16 or so is known at all, and no bin to five digits much below
    1e-10.
    """
    full = some_of_many_attack(5, 100, 1.0, 1.0)
    monkeypatch.setattr(some_of_many, "_RARE", (0.0,))
    table = some_of_many_attack.__wrapped__(5, 100, 1.0, 1.0)
    assert min(table.p.min(), table.q.min()) > 1e-11
    assert min(full.p.min(), full.q.min()) < 1e-14
    for epsilon in (0.1, 1.0):
        assert table.delta(epsilon)[0] <= full.delta(epsilon)[1]
        assert table.delta(epsilon)[0] == pytest.approx(full.delta(epsilon)[0], rel=1e-2)


def test_scores_of_a_round_are_gaussian_masses_of_its_cells():
    plain, shifted = some_of_many._scores(0.01, 1.0)
    pair = MixturePair.subsampled(0.01, 1.0)
    x = np.random.default_rng(0).standard_normal(200_000)
    for pmf, moved in ((plain, 0.0), (shifted, 1.0)):
        index = np.clip(
            np.round((pair.loss(x + moved) - pmf.start) / pmf.step), 0, len(pmf.log_mass) - 1
        )
        counts = np.bincount(index.astype(int), minlength=len(pmf.log_mass)) / len(x)
        assert np.abs(np.cumsum(counts) - np.cumsum(np.exp(pmf.log_mass))).max() < 5e-3


def test_every_round_joined_is_a_gaussian_mechanism_and_the_attack_stays_below_it():
    """All but one of many rounds: nearly sqrt(T) u."""
    table = some_of_many_attack(49, 50, 0.2, 1.0)
    for epsilon in (0.5, 2.0):
        assert table.delta(epsilon)[0] <= gaussian_delta(0.2 * math.sqrt(50.0), epsilon)
        assert table.delta(epsilon)[0] >= 0.8 * gaussian_delta(0.2 * math.sqrt(48.0), epsilon)


@pytest.mark.parametrize("shift", [1e-6, 9.0, 40.0, 100.0, 1000.0, 1e6])
@pytest.mark.parametrize(("times", "count"), [(2, 3), (5, 100)])
def test_extreme_noise_gives_a_table_in_no_time(times, count, shift):
    for lean in (1.0, 0.5):
        table = some_of_many_attack(times, count, shift, lean)
        assert isinstance(table, DiscretePair)
        assert len(table.p) >= 1
        assert 0.999 < table.p.sum() <= 1.0 + 1e-4
        assert 0.999 < table.q.sum() <= 1.0 + 1e-4
        low, high = table.delta(1.0)
        assert 0.0 <= low <= high <= 1.0
    bracket = Mechanism(RandomAllocation(times, count), 1.0 / shift).guarantee().epsilon(1e-6)
    assert 0.95 * bracket.upper <= bracket.lower <= bracket.upper < math.inf


@pytest.mark.parametrize(
    ("times", "count", "shift"), [(2, 3, 1000.0), (5, 100, 1000.0), (5, 100, 100.0)]
)
def test_shifts_far_apart_show_how_often_the_record_was_there(times, count, shift):
    """The loss is k u^2 / 2 less the log of the number of sets, and a normal of variance k u^2;
    nearly.
    """
    known = times * shift**2 / 2.0 - math.log(math.comb(count, times))
    for quantile in (-1.0, 0.0, 1.0):
        epsilon = known + quantile * math.sqrt(times) * shift
        seen = some_of_many_attack(times, count, shift, 1.0).delta(epsilon)[0]
        assert special.ndtr(-quantile) - 0.06 <= seen <= special.ndtr(-quantile) + 1e-3


def test_more_of_the_rounds_show_more():
    seen = [some_of_many_attack(k, 20, 1.0, 1.0).delta(1.0)[0] for k in (1, 2, 5, 10, 19)]
    assert seen == sorted(seen)
    assert seen[0] < 0.2 * seen[-1]


# --- most of the rounds ---------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "steps"), [(2, 3), (3, 5), (4, 6), (5, 6)])
def test_leaving_out_rounds_is_joining_as_many_beside_a_gaussian_mechanism(times, steps):
    """Moments of the likelihood ratio, over all pairs and triples of sets (docs/allocation.md,
    theorem 1).
    """
    shift, few = 0.6, steps - times
    beside = shift * math.sqrt(times - few)

    def moments(size: int) -> tuple[float, float]:
        sets = [set(rounds) for rounds in itertools.combinations(range(steps), size)]
        pairs = np.array([[len(a & b) for b in sets] for a in sets])
        second = np.exp(shift**2 * pairs)
        triples = np.einsum("ab,bc,ac->", second, second, second)
        return float(second.mean()), float(triples) / len(sets) ** 3

    most, least = moments(times), moments(few)
    assert most[0] == pytest.approx(least[0] * math.exp(beside**2))
    assert most[1] == pytest.approx(least[1] * math.exp(3.0 * beside**2))


@pytest.mark.parametrize("put", [False, True], ids=["remove", "add"])
@pytest.mark.parametrize(("shift", "epsilon"), [(0.5, 0.5), (1.0, 2.0), (1.0, 4.0)])
def test_two_of_three_rounds_are_known_exactly(shift, epsilon, put):
    guarantee = Mechanism(RandomAllocation(2, 3), 1.0 / shift).guarantee()
    curve = guarantee.uppers[1 if put else 0]
    low, high = curve.delta(epsilon, 1e-3)
    truth = true_delta(2, shift, epsilon, put)
    assert low <= truth * (1.0 + 1e-3)
    assert truth * (1.0 - 1e-3) <= high <= low * 1.002


@pytest.mark.parametrize(
    ("times", "steps", "noise", "width"),
    [
        (500, 1000, 0.5, 0.01),
        (500, 1000, 0.3, 0.01),
        (500, 1000, 1.0, 0.04),
        (999, 1000, 1.0, 0.001),
        (900, 1000, 0.5, 0.01),
        (2, 3, 1.0, 0.001),
        (3, 4, 0.5, 0.002),
        (600, 1000, 0.5, 0.01),
        (5, 100, 0.02, 0.01),
    ],
)
def test_a_large_share_of_the_rounds_is_known_to_a_few_percent(times, steps, noise, width):
    bracket = Mechanism(RandomAllocation(times, steps), noise).guarantee().epsilon(1e-5)
    assert bracket.lower >= (1.0 - width) * bracket.upper > 0.0
