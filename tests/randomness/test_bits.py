"""The numpy Generator of a source."""

from __future__ import annotations

import json
import math
from itertools import islice, permutations
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from verax.randomness import Source
from verax.randomness.bits import BulkGenerator
from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Poisson,
    RandomAllocation,
    Sampler,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
    resume,
)


def fits(values: np.ndarray, law: str = "norm") -> None:
    assert stats.kstest(values, law).pvalue > 1e-3


class TestGenerator:
    @staticmethod
    def generator(seed: int) -> BulkGenerator:
        rng = Source.insecure(seed).generator()
        assert isinstance(rng, BulkGenerator)
        return rng

    @pytest.mark.parametrize(
        "bound", [1, 2, 3, 10, 255, 256, 257, 1000, 2**16, 2**20 + 7, 2**31, 3 * 2**30]
    )
    def test_integers_are_uniform(self, bound):
        drawn = self.generator(bound).integers(0, bound, 200_000, dtype=np.uint32)
        assert drawn.max() < bound
        cells = min(bound, 50)
        edges = [-(-bound * j // cells) for j in range(cells + 1)]
        counts = np.histogram(drawn, bins=np.array(edges, dtype=float) - 0.5)[0]
        shares = np.diff(edges) / bound
        if cells > 1:
            assert stats.chisquare(counts, shares * drawn.size).pvalue > 1e-3

    def test_no_remainder_is_favoured(self):
        """Multiplying without rejection would deal every third number twice as often."""
        drawn = self.generator(1).integers(0, 3 * 2**30, 100_000)
        assert stats.chisquare(np.bincount(drawn % 3)).pvalue > 1e-3

    @pytest.mark.parametrize("bound", [2**32 + 1, 3 * 2**40, 2**63 + 5, 2**64 - 1, 2**64])
    def test_large_integers_are_uniform(self, bound):
        drawn = self.generator(1).integers(0, bound, 50_000, dtype=np.uint64)
        assert int(drawn.max()) < bound
        fits(drawn / float(bound), "uniform")

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
    def test_integer_ranges(self, dtype):
        rng, info = self.generator(2), np.iinfo(dtype)
        for low, high in ((info.min, info.max), (max(info.min, -3), 5), (1, 1)):
            drawn = rng.integers(low, high, (40, 50), dtype=dtype, endpoint=True)
            assert drawn.dtype == dtype
            assert drawn.shape == (40, 50)
            assert low <= int(drawn.min())
            assert int(drawn.max()) <= high
        assert set(rng.integers(max(info.min, -3), 5, 999, dtype=dtype).tolist()) == set(
            range(max(info.min, -3), 5)
        )

    @pytest.mark.parametrize(("low", "high"), [(5, 5), (0, 300), (-1, 3)])
    def test_bad_ranges_are_numpys_errors(self, low, high):
        with pytest.raises(ValueError, match=r"low|high"):
            self.generator(3).integers(low, high, 100, dtype=np.uint8)

    def test_random(self):
        rng = self.generator(4)
        drawn = rng.random((300, 100))
        fits(drawn.ravel(), "uniform")
        assert (drawn * 2**53 % 1 == 0).all()
        assert 0 <= rng.random() < 1
        assert rng.random(50, dtype=np.float32).dtype == np.float32

    def test_orders_and_subsets_are_uniform(self):
        rng = self.generator(5)
        orders = [tuple(rng._order(4)) for _ in range(12_000)]
        assert (
            stats.chisquare([orders.count(order) for order in permutations(range(4))]).pvalue > 1e-3
        )
        for population, size in ((7, 2), (4, 3)):
            drawn = [tuple(rng._subset(population, size)) for _ in range(12_000)]
            assert (
                stats.chisquare(
                    [drawn.count(p) for p in permutations(range(population), size)]
                ).pvalue
                > 1e-3
            )

    def test_equal_keys_are_drawn_again(self):
        rng = self.generator(5)
        for words, order in (((8, 8, 16, 32), [0, 1]), ((8, 8, 32, 16), [1, 0])):
            dealt = iter(words)
            rng._stream = SimpleNamespace(
                words=lambda n, dealt=dealt: np.array(list(islice(dealt, n)), dtype=np.uint64)
            )
            assert rng._order(2).tolist() == order
            assert not list(dealt)

    @pytest.mark.parametrize("size", [16, 1000, 2**16, 2**19])
    def test_permutations(self, size):
        rng = self.generator(6)
        order = rng.permutation(size)
        assert np.array_equal(np.sort(order), np.arange(size))
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 4.5 / math.sqrt(size)
        shuffled = np.arange(size)
        rng.shuffle(shuffled)
        assert np.array_equal(np.sort(shuffled), np.arange(size))
        assert not np.array_equal(shuffled, order)

    @pytest.mark.parametrize(
        ("population", "size"), [(20, 20), (1000, 400), (1000, 600), (10**12, 1000), (2**53, 100)]
    )
    def test_choice_without_replacement(self, population, size):
        drawn = self.generator(7).choice(population, size, replace=False, shuffle=False)
        assert np.unique(drawn).size == size == drawn.size
        assert drawn.min() >= 0
        assert drawn.max() < population

    def test_inclusion_is_uniform(self):
        rng = self.generator(8)
        counts = np.bincount(
            np.concatenate([rng.choice(100, 30, replace=False) for _ in range(4000)])
        )
        # Hypergeometric: the counts of a round are negatively correlated, which the factor 99/70
        # undoes.
        assert stats.chi2.sf(((counts - 1200) ** 2).sum() / 1200 * 99 / 70, 99) > 1e-3

    def test_everything_else_works_word_by_word(self):
        rng = self.generator(9)
        fits(rng.standard_normal(3000))
        assert 300 < rng.binomial(1000, 0.4) < 500
        assert rng.choice(5, p=[0, 0, 1, 0, 0]) == 2
        assert rng.multinomial(10, [0.5, 0.5]).sum() == 10
        assert sorted(rng.permutation(5)) == list(range(5))
        assert rng.bit_generator.random_raw(2).dtype == np.uint64

    def test_state_is_the_position(self):
        rng = self.generator(10)
        rng.random(100), rng.integers(0, 5), rng.binomial(9, 0.5)
        saved = json.loads(json.dumps(rng.bit_generator.state))
        first = rng.random(20), rng.integers(5), rng.permutation(100)
        rng.bit_generator.state = saved
        again = rng.random(20), rng.integers(5), rng.permutation(100)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))

    @pytest.mark.parametrize(
        "sampler",
        [
            Poisson(0.1, 6),
            Poisson(0.7, 6),
            TruncatedPoisson(0.2, 6, 45, 200),
            Shuffle(4, 3),
            BufferedShuffle(5, 2, 2),
            BallsInBins(4, 3),
            RandomAllocation(3, 8, 2),
            WithoutReplacement(40, 200, 6),
        ],
        ids=repr,
    )
    def test_samplers_draw_and_resume(self, sampler: Sampler):
        run = sampler.draw(200, self.generator(11))
        whole = [batch.tolist() for batch in sampler.draw(200, self.generator(11))]
        assert len(whole) == len(sampler)
        for done in range(len(sampler)):
            saved = json.loads(json.dumps(run.state()))
            again = resume(sampler, saved, 200, self.generator(99))
            assert [batch.tolist() for batch in again] == whole[done:]
            next(run)
        with pytest.raises(ValueError, match="secure"):
            resume(sampler, saved, 200, Source.system().generator())
