"""The law of the normal draws, and the release that rounds as if in real numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special, stats

pytest.importorskip("cryptography")

from verax.randomness import Source, normal
from verax.randomness.exact import Spot, Uniform, below_curve, nearest
from verax.randomness.normal import Leftover, Normals, grid
from verax.randomness.tables import MASS, tables

KEY = bytes(range(32))
ROUNDS = 8
SIZE = 250_000


@pytest.fixture(scope="module")
def rounds() -> np.ndarray:
    """Several rounds of noise of one stream."""
    source = Source.insecure(2024).spawn("noise")
    return np.stack([source.gaussian(np.empty(SIZE), 1.0) for _ in range(ROUNDS)])


def fits(values: np.ndarray, law: str = "norm") -> None:
    assert stats.kstest(values, law).pvalue > 1e-3


def uncorrelated(a: np.ndarray, b: np.ndarray) -> None:
    """Also their sizes, which a shared scale would couple."""
    bound = 4.5 / math.sqrt(len(a))
    assert abs(np.corrcoef(a, b)[0, 1]) < bound
    assert abs(np.corrcoef(np.abs(a), np.abs(b))[0, 1]) < bound


class TestLaw:
    def test_kolmogorov_smirnov(self, rounds):
        fits(rounds.ravel())
        for noise in rounds:
            fits(noise)

    def test_single_precision_is_the_double_rounded(self):
        single = Source.insecure(3).gaussian(np.empty(50_000, dtype=np.float32), 1.7)
        double = Source.insecure(3).gaussian(np.empty(50_000), 1.7)
        assert np.array_equal(single, double.astype(np.float32))

    def test_moments_and_symmetry(self, rounds):
        x = rounds.ravel()
        for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (5, 0), (6, 15)):
            spread = math.sqrt(special.factorial2(4 * power // 2 - 1) - moment**2)
            assert abs((x**power).mean() - moment) < 4.5 * spread / math.sqrt(x.size)
        fits(np.abs(x), "halfnorm")
        assert abs((x > 0).mean() - 0.5) < 4.5 * 0.5 / math.sqrt(x.size)

    def test_tails(self, rounds):
        x = np.abs(rounds.ravel())
        for cut in (2.0, 3.0, 3.3, 4.0, 4.5):
            expected = 2 * special.ndtr(-cut) * x.size
            assert abs((x > cut).sum() - expected) < 4.5 * math.sqrt(expected)

    def test_sigma_scales(self):
        a = Source.insecure(4).gaussian(np.empty(1000), 1.0)
        b = Source.insecure(4).gaussian(np.empty(1000), 3.7)
        np.testing.assert_allclose(b, 3.7 * a, rtol=1e-14, atol=1e-14)


class TestTables:
    """What the fast path rests on, checked without drawing."""

    def test_rectangles_tile_and_lie_below_the_curve(self):
        t = tables()
        assert np.array_equal(t.edge[:-1] + t.width[:-1], t.edge[1:])
        assert t.edge[0] == 0
        assert t.edge[-1] + t.width[-1] == 32
        count = int((t.base > 0).sum())
        assert t.leftover == 2 * count << 52
        far = t.edge[:count] + t.width[:count]
        assert (stats.norm.pdf(far) * t.width[:count] > MASS * (1 + 1e-10)).all()
        for table in (t.slope, t.start):
            assert np.array_equal(table[:count], -table[count : 2 * count])
        assert np.array_equal(t.slope[:count] + t.start[:count], t.edge[:count])
        assert 2 * count / 4096 > 0.997

    def test_masses_add_up(self):
        t = tables()
        inside = special.ndtr(-t.edge) - special.ndtr(-(t.edge + t.width))
        leftover = math.fsum(inside - t.base)
        assert 2 * leftover == pytest.approx(1 - t.leftover / 2**64, rel=1e-11)

    def test_envelope_covers_the_leftover(self):
        t = tables()
        assert sum(t.shares) == 2**64
        assert [sum(t.shares[: j + 1]) for j in range(40)] == t.ends[:40].tolist()
        for edge, width, base, share in zip(t.edge, t.width, t.base, t.shares, strict=True):
            assert share * Fraction(t.unit) > Fraction(float(width * stats.norm.pdf(edge) - base))

    def test_leftover_has_its_own_law(self):
        """Its draws are 1 in 400 of all, too few for a test of the whole to see."""
        t = tables()
        x = Leftover(KEY).take(300_000)
        size = np.abs(x)
        strip = np.searchsorted(t.edge, size, side="right") - 1
        masses = special.ndtr(-t.edge) - special.ndtr(-(t.edge + t.width)) - t.base
        before = np.concatenate(([0], np.cumsum(masses)))
        inside = special.ndtr(-t.edge[strip]) - special.ndtr(-size)
        inside -= t.base[strip] * (size - t.edge[strip]) / t.width[strip]
        fits((before[strip] + inside) / before[-1], "uniform")
        assert abs((x > 0).sum() - x.size / 2) < 4.5 * math.sqrt(x.size) / 2

    def test_leftover_has_the_right_tails(self):
        """As many beyond 5 as in 1.2 thousand million draws."""
        leftover, size = Leftover(KEY), 3_000_000
        x = np.abs(np.concatenate([leftover.take(10_000) for _ in range(size // 10_000)]))
        for cut in (3.3, 4.0, 4.5, 5.0, 5.5):
            expected = 2 * special.ndtr(-cut) / (1 - tables().leftover / 2**64) * size
            assert abs((x > cut).sum() - expected) < 4.5 * math.sqrt(expected)


class Script:
    """A keystream that deals the same given words over and over."""

    def __init__(self, *words: int) -> None:
        self._cycle, self.position = np.array(words, dtype=np.uint64), 0

    def words(self, size: int) -> np.ndarray:
        self.position += size
        return self._cycle[np.arange(self.position - size, self.position) % len(self._cycle)]

    def fill(self, out: np.ndarray) -> None:
        out[:] = self.words(len(out))

    def at(self, position: int) -> int:
        return int(self._cycle[position % len(self._cycle)])


def tail_word(x: float) -> int:
    """A first word of a leftover candidate that picks the strip of x."""
    t = tables()
    return int(t.ends[np.searchsorted(t.edge, x, side="right") - 2])


class TestTail:
    @pytest.mark.parametrize("x", [3.3, 5.9, 8.1, 12.6, 31.9])
    def test_extreme_words_give_extreme_draws(self, x):
        for dtype in (np.float32, np.float64):
            stream = Normals(KEY)
            stream._words = Script(2**64 - 1)
            stream._leftover._words = Script(tail_word(x), 2**63, 0, tail_word(x), 2**63, 1)
            stream._leftover._heights = Script(0)
            out = np.empty(10, dtype=dtype)
            stream.fill(out, 1.0)
            assert (np.abs(np.abs(out) - x) < 0.25).all()
            assert np.array_equal(np.sign(out), [1, -1] * 5)

    @pytest.mark.parametrize("x", [0.0001, 1.0, 3.3, 6.1, 9.9])
    def test_the_curve_decides(self, x):
        """The heights just below and above the curve's, which doubles cannot tell apart."""
        t = tables()
        strip = int(np.searchsorted(t.edge, x, side="right")) - 1
        mass = Fraction(t.unit) * t.shares[strip]
        u = Uniform(2**63, 64, lambda _: 0)
        spot = Spot(1, float(t.edge[strip]), float(t.width[strip]), u)
        at = float(spot.bounds(0)[0])
        base = Fraction(float(t.base[strip]))
        v = (Fraction(spot.width * stats.norm.pdf(at)) - base) / mass
        for nudge, expected in ((-1, True), (1, False)):
            word = math.floor((v + nudge * v / 10**6) * 2**63)
            assert below_curve(spot, Uniform(word, 63, lambda _: 0), base, mass) is expected

    def test_exact_decisions_agree_with_fast_ones(self, monkeypatch):
        leftover = Leftover(KEY)
        words = leftover._words.words(900).reshape(-1, 3)
        fast = leftover.judge(words, 0)
        monkeypatch.setattr(normal, "DOUBT", 1e9)
        exact = leftover.judge(words, 0)
        assert all(np.array_equal(a, b) for a, b in zip(fast, exact, strict=True))
        assert 100 < len(fast[0]) < 250

    def test_further_bits_are_read_until_the_answer_is_certain(self):
        read: list[int] = []

        def more(k: int) -> int:
            read.append(k)
            return 2**64 - 1 if k < 2 else 0

        # u is 1/2 - 2^-180 and a little more; the boundary between two whole numbers is at 1/2.
        u = Uniform(2**51 - 1, 52, more)
        assert nearest(Spot(1, 0.0, 1.0, u), 1.0, 0.0, 1.0) == 0
        assert nearest(Spot(-1, 0.0, 1.0, u), 1.0, 0.0, 1.0) == 0
        assert nearest(Spot(1, 0.0, 1.0, u), 1.0, 2.0**-182, 1.0) == 0
        assert nearest(Spot(1, 0.0, 1.0, u), 1.0, 2.0**-180, 1.0) == 1
        assert max(read) == 2


class TestIndependence:
    def test_rounds(self, rounds):
        for i in range(ROUNDS):
            for j in range(i):
                uncorrelated(rounds[i], rounds[j])

    def test_coordinates(self, rounds):
        x = rounds.ravel()
        for lag in (1, 2, 3, 7, 64, 4096, 2**15):
            uncorrelated(x[:-lag], x[lag:])
        cells = np.floor(special.ndtr(x) * 20).astype(int).clip(0, 19)
        pairs = np.bincount(cells[::2] * 20 + cells[1::2], minlength=400)
        assert stats.chisquare(pairs).pvalue > 1e-3

    def test_labels_and_generator(self):
        source = Source.insecure(5)
        streams = [source, source.spawn("noise"), source.spawn("sampling"), source.spawn("noise 2")]
        draws = [stream.gaussian(np.empty(100_000), 1.0) for stream in streams]
        draws.append(special.ndtri(source.generator().random(100_000) + 2.0**-54))
        draws.append(Source.insecure(6).gaussian(np.empty(100_000), 1.0))
        for i, a in enumerate(draws):
            for b in draws[:i]:
                uncorrelated(a, b)

    def test_two_runs_never_share_noise(self):
        seen: set[float] = set()
        for _ in range(20):
            noise = Source.system().spawn("noise").gaussian(np.empty(5000), 1.0)
            assert seen.isdisjoint(noise.tolist())
            seen.update(noise.tolist())


class TestRelease:
    """``add_gaussian``: the sum of real numbers, rounded to a grid independent of the data."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("sigma", [1e-12, 0.7, 1.0, 1.3, 3e20])
    @pytest.mark.parametrize("reach", [0.0, 1e-9, 3.0, 900.0])
    def test_is_the_rounded_sum(self, dtype, sigma, reach):
        total = (np.random.default_rng(0).uniform(-reach, reach, 5000) * sigma).astype(dtype)
        out = Source.insecure(8).add_gaussian(total.copy(), sigma).astype(np.float64)
        real = total + Source.insecure(8).gaussian(np.empty(5000), sigma)
        step = Source.grid(sigma)
        assert (out % step == 0).all()
        slack = (
            np.abs(real) * 2.0**-23
            if dtype == np.float32
            else step * 1e-5 + np.abs(real) * 2.0**-52
        )
        assert (np.abs(out - real) <= step / 2 + slack).all()

    def test_grid(self):
        for sigma in (1e-30, 0.999, 1.0, 1.5, 2.0, 1e9):
            step = Source.grid(sigma)
            assert math.frexp(step)[0] == 0.5
            assert 2.0**-21 < step / sigma <= 2.0**-20

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("offset", [0.0, 0.3, 5e3, 1e7])
    def test_exact_rounding_agrees_with_fast(self, monkeypatch, dtype, offset):
        buffer = (np.linspace(-1, 1, 700) + offset).astype(dtype)
        fast = Source.insecure(9).add_gaussian(buffer.copy(), 1.3)
        monkeypatch.setattr(normal, "SLACK", 0.5)
        exact = Source.insecure(9).add_gaussian(buffer.copy(), 1.3)
        assert np.array_equal(fast, exact)

    def test_exact_rounding_of_leftovers(self, monkeypatch):
        monkeypatch.setattr(normal, "BLOCK", 100)
        outcomes = []
        for slack in (normal.SLACK, 0.5):
            monkeypatch.setattr(normal, "SLACK", slack)
            stream = Normals(KEY)
            stream._words = Script(2**64 - 1, 12345 << 40, 2**64 - 1)
            buffer = np.linspace(-1, 1, 330)
            for part in np.split(buffer, (1, 2, 40, 140, 201)):  # blocks of 100 are dealt in pieces
                stream.add(part, 1.1)
            outcomes.append(buffer)
        assert np.array_equal(*outcomes)

    def test_doubtful_sums_are_settled_by_further_bits(self, monkeypatch):
        """Each sum is within a double's error of the boundary between two multiples of the step."""
        size, step = 200, Fraction(grid(1.0))
        stream = Normals(KEY)
        stream.fill(np.empty(size), 1.0)
        ends = [stream._spot(i, size).bounds(3) for i in range(size)]
        buffer = np.array([float(step / 2 - low) for low, _ in ends])
        exact = [
            [math.floor((Fraction(b) + x) / step + Fraction(1, 2)) for x in pair]
            for b, pair in zip(buffer.tolist(), ends, strict=True)
        ]
        assert all(low == high for low, high in exact)
        released = buffer.copy()
        Normals(KEY).add(released, 1.0)
        assert (released / float(step)).tolist() == [low for low, _ in exact]
        monkeypatch.setattr(normal, "SLACK", -1.0)  # no doubts: the doubles decide, and err
        careless = buffer.copy()
        Normals(KEY).add(careless, 1.0)
        assert (careless != released).sum() > size / 10

    def test_low_bits_of_the_sum_do_not_show(self):
        """Sums that differ far below the grid give the same release."""
        base = np.random.default_rng(1).normal(size=20_000)
        one = Source.insecure(10).add_gaussian(base.copy(), 1.0)
        two = Source.insecure(10).add_gaussian(base + 2.0**-45, 1.0)
        assert (one != two).sum() <= 3
        assert set(np.unique(np.abs(one - two))) <= {0.0, Source.grid(1.0)}

    @pytest.mark.parametrize("huge", [1e6, 1e15, 1e30, 1e290])
    def test_far_buffers(self, huge):
        buffer = np.array([huge, -huge, huge / 3, 0.1])
        out = Source.insecure(11).add_gaussian(buffer.copy(), 1.0)
        noise = Source.insecure(11).gaussian(np.empty(4), 1.0)
        np.testing.assert_allclose(out, buffer + noise, rtol=1e-15, atol=2.0**-20)
        assert out[3] % Source.grid(1.0) == 0

    def test_law(self):
        source = Source.insecure(12)
        fits(source.add_gaussian(np.zeros(500_000), 1.0))
        fits((source.add_gaussian(np.full(200_000, 2.5, dtype=np.float32), 2.0) - 2.5) / 2)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_refuses_what_noise_cannot_hide_before_touching_anything(self, bad):
        buffer = np.zeros(100_000)
        buffer[-1] = bad
        with pytest.raises(ValueError, match="buffer must be finite"):
            Source.insecure(0).add_gaussian(buffer, 1.0)
        assert (buffer[:-1] == 0).all()


class TestPositions:
    def test_restored_where_leftovers_wait(self):
        """At every place of a block in which every third draw comes from the leftover."""
        size, whole = 60, None
        for stop in range(size):
            stream = Normals(KEY)
            stream._words = words = Script(2**64 - 1, 12345 << 40, 777 << 44)
            if whole is None:
                whole = np.empty(size)
                stream.fill(whole, 1.0)
                continue
            stream.fill(np.empty(stop), 1.0)
            drawn, candidate = stream.position
            assert (drawn, words.position) == (stop, normal.FIRST)
            later = Normals(KEY, drawn, candidate)
            later._words = Script(2**64 - 1, 12345 << 40, 777 << 44)
            later._words.position = drawn
            rest = np.empty(size - stop)
            later.fill(rest, 1.0)
            assert np.array_equal(rest, whole[stop:])
