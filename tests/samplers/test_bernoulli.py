"""Gaps proved in doubles agree with exact arithmetic, and doubtful ones are decided."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from verax.samplers import bernoulli


def exact(word: int, rate: float) -> tuple[int, int]:
    """The least and greatest gap for U in [word, word + 1) / 2^64, in rational arithmetic."""
    keep, power, k = 1 - Fraction(rate), Fraction(1), 0
    least = None
    while True:  # gap k: keep^(k+1) < U <= keep^k
        power *= keep
        if least is None and power < Fraction(word + 1, 2**64):
            least = k
        if word and power < Fraction(word, 2**64):
            assert least is not None
            return least, k
        k += 1


@settings(deadline=None, max_examples=150)
@given(st.integers(2**40, 2**64 - 1), st.floats(0.05, 0.499))
def test_exact_gap_agrees_with_rational_arithmetic(word: int, rate: float) -> None:
    least, most = exact(word, rate)
    assert (
        least
        <= bernoulli.exact_tails_before_head(np.random.default_rng(0), word, rate, 10**9)
        <= most
    )


@pytest.mark.parametrize("k", range(1, 30))
def test_exact_gap_on_the_boundary(k: int) -> None:
    boundary = 3**k * 2 ** (64 - 2 * k)  # U = (3/4)^k exactly begins this word
    rng = np.random.default_rng(k)
    assert bernoulli.exact_tails_before_head(rng, boundary - 1, 0.25, 99) == k
    assert bernoulli.exact_tails_before_head(rng, boundary, 0.25, 99) == k - 1


def test_a_word_that_straddles_a_boundary_is_split_in_proportion() -> None:
    rate, k, runs = 0.3, 5, 600
    place = (1 - Fraction(rate)) ** k * 2**64
    word = int(place)
    rng = np.random.default_rng(1)
    drawn = [bernoulli.exact_tails_before_head(rng, word, rate, 99) for _ in range(runs)]
    assert set(drawn) == {k - 1, k}
    assert stats.binomtest(drawn.count(k), runs, float(place - word)).pvalue > 1e-4


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-20, 1e-3, 0.4999])
def test_extreme_words_and_rates(word: int, rate: float) -> None:
    assert (
        0 <= bernoulli.exact_tails_before_head(np.random.default_rng(0), word, rate, 2**53) <= 2**53
    )


@pytest.mark.parametrize("rate", [0.45, 0.1, 1e-3, 1e-6, 1e-10])
def test_doubles_and_decimals_give_the_same_gaps(rate: float) -> None:
    words = np.random.default_rng(2).integers(0, 2**64, 300, dtype=np.uint64)
    fast = bernoulli.tails_before_heads(np.random.default_rng(2), 300, rate, 2**50)
    slow = [
        bernoulli.exact_tails_before_head(np.random.default_rng(0), int(word), rate, 2**50)
        for word in words
    ]
    assert fast.tolist() == slow


@pytest.mark.parametrize("slack", [bernoulli.SLACK, 1.0])
@pytest.mark.parametrize("rate", [0.07, 0.3])
def test_gaps_are_geometric(slack: float, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bernoulli, "SLACK", slack)  # 1.0 sends every draw through decimals
    size = 1500
    drawn = np.minimum(
        bernoulli.tails_before_heads(np.random.default_rng(3), size, rate, 10**6), 10
    )
    chances = np.append(rate * (1 - rate) ** np.arange(10), (1 - rate) ** 10)
    assert stats.chisquare(np.bincount(drawn, minlength=11), chances * size).pvalue > 1e-4


@pytest.mark.parametrize(
    ("population", "rate"), [(2**53, 1e-14), (2**53, 5e-324), (2**40, 1e-9), (1, 0.2), (1, 0.9)]
)
def test_any_population(population: int, rate: float) -> None:
    rng = np.random.default_rng(4)
    sizes = []
    for _ in range(10):
        drawn = bernoulli.heads(rng, population, rate)
        assert drawn.dtype == np.int64
        assert (np.diff(drawn) > 0).all()
        assert not len(drawn) or 0 <= drawn[0] <= drawn[-1] < population
        sizes.append(len(drawn))
    mean = 10 * population * rate
    assert abs(sum(sizes) - mean) <= 5 * mean**0.5


def test_memory_is_that_of_the_batch() -> None:
    tracemalloc.start()
    bernoulli.heads(np.random.default_rng(5), 10**9, 1e-5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
