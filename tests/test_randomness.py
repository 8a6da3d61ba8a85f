"""The noise has the law it claims, to the last bit; nothing is dealt twice; secrets stay secret."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
import threading
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

pytest.importorskip("cryptography")

from verax.randomness import Source, normal
from verax.randomness.bits import BulkGenerator
from verax.randomness.exact import Spot, Uniform, below_curve, nearest
from verax.randomness.keystream import Keystream, derive
from verax.randomness.normal import Leftover, Normals, grid
from verax.randomness.tables import MASS, tables
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
    """``add_gaussian``: the sum of real numbers, rounded to a grid that knows nothing of the data."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("sigma", [1e-12, 0.7, 1.0, 1.3, 3e20])
    @pytest.mark.parametrize("reach", [0.0, 1e-9, 3.0, 900.0])
    def test_is_the_rounded_sum(self, dtype, sigma, reach):
        total = (np.random.default_rng(0).uniform(-reach, reach, 5000) * sigma).astype(dtype)
        out = Source.insecure(8).add_gaussian(total.copy(), sigma).astype(np.float64)
        real = total + Source.insecure(8).gaussian(np.empty(5000), sigma)
        step = Source.grid(sigma)
        assert (out % step == 0).all()
        slack = np.abs(real) * 2.0**-23 if dtype == np.float32 else step * 1e-5 + np.abs(real) * 2.0**-52
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
        """Buffers that put each sum within a double's error of the boundary between two multiples of the step."""
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
        """Sums that differ far below the grid give the same release: what is hidden there stays hidden."""
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


class TestStreams:
    def test_aes_known_answer(self):
        """AES-256 of the zero block under the zero key (NIST's known-answer tests)."""
        block = Keystream(bytes(32)).words(2).tobytes()
        assert block.hex() == "dc95c078a2408989ad48a21492842087"

    def test_any_pieces_give_the_same_words(self):
        whole = Keystream(KEY).words(100_003)
        stream, parts = Keystream(KEY), []
        for size in (1, 0, 2, 3, 512, 1, 70_001):
            parts.append(stream.words(size))
            parts.append(np.array([stream.word() for _ in range(size % 5)], dtype=np.uint64))
        assert np.array_equal(np.concatenate(parts), whole[: stream.position])
        for position in (0, 1, 2, 77, 99_999):
            assert stream.at(position) == whole[position]
            assert np.array_equal(Keystream(KEY, position).words(3), whole[position : position + 3])

    def test_no_word_twice(self):
        words = np.concatenate([Keystream(derive(KEY, name)).words(200_000) for name in ("words", "more", "spawn")])
        assert np.unique(words).size == words.size

    def test_uneven_pieces_give_the_same_noise(self):
        whole = Source.insecure(13).gaussian(np.empty(200_000), 1.0)
        source, pieces = Source.insecure(13), [1, 2, 70_000, 3, 2**15, 40_001]
        pieces.append(len(whole) - sum(pieces))
        assert np.array_equal(np.concatenate([source.gaussian(np.empty(size), 1.0) for size in pieces]), whole)

    def test_spawning_is_deterministic_and_a_label_works_once(self):
        def draw() -> list[float]:
            source = Source.insecure(14)
            return [float(source.spawn(label).gaussian(np.empty(1), 1.0)[0]) for label in ("a", "b", "ab", "a ")]

        assert draw() == draw()
        assert len(set(draw())) == 4
        source = Source.system()
        source.spawn("noise")
        with pytest.raises(ValueError, match="label must not be used twice"):
            source.spawn("noise")

    def test_threads_share_no_noise(self):
        source, parts = Source.insecure(15), [np.empty(5000) for _ in range(8)]
        threads = [threading.Thread(target=source.gaussian, args=(part, 1.0)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = Source.insecure(15).gaussian(np.empty(40_000), 1.0)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(whole))

    @pytest.mark.parametrize("done", [0, 1, 1000, 99_999])
    def test_restores_from_json(self, done):
        source = Source.insecure(16)
        source.spawn("noise")
        source.gaussian(np.empty(done), 1.0)
        source.generator().random(done % 7)
        saved = json.loads(json.dumps(source.state()))
        again = Source.restore(saved)
        assert again.state() == saved
        assert not again.secure
        assert np.array_equal(source.gaussian(np.empty(5000), 1.0), again.gaussian(np.empty(5000), 1.0))
        assert np.array_equal(source.generator().random(50), again.generator().random(50))
        with pytest.raises(ValueError, match="label"):
            again.spawn("noise")

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.integers(0, 3000), max_size=12), st.floats(0.01, 100.0))
    def test_draws_do_not_depend_on_how_they_are_dealt(self, sizes, sigma):
        """Nor on where a source was saved and restored, or on the noise between."""
        whole = Source.insecure(6).gaussian(np.empty(sum(sizes)), 1.0)
        source, at = Source.insecure(6), 0
        for number, size in enumerate(sizes):
            scale = sigma if number % 2 else 1.0
            assert np.array_equal(source.gaussian(np.empty(size), scale), whole[at : at + size] * scale)
            at += size
            if number % 3 == 0:
                source = Source.restore(source.state())

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


class TestSecrets:
    def test_system_sources_say_so(self):
        assert Source.system().secure
        assert Source.system().spawn("noise").secure
        assert not Source.insecure(0).secure
        assert not Source.insecure(0).spawn("noise").secure

    @pytest.mark.parametrize("source", [Source.system(), Source.insecure(1)])
    def test_nothing_prints_the_key(self, source):
        source.gaussian(np.empty(3), 1.0)
        shown = [source, source.generator(), source.generator().bit_generator, source._guard, source._normals]
        key = source.state()["key"]
        for thing in shown:
            for text in (repr(thing), str(thing), f"{thing}"):
                assert key not in text
                assert repr(source._key) not in text

    def test_copies_are_refused(self):
        source = Source.system()
        source.gaussian(np.empty(3), 1.0)
        for thing in (source, source.generator(), source.generator().bit_generator, source._normals, source._guard):
            for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="must not be copied or pickled"):
                    duplicate(thing)
        with pytest.raises(TypeError, match="label"):
            source.generator().spawn(2)

    def test_a_fork_never_repeats_its_parent(self):
        code = """
import os, sys, numpy as np
from verax.randomness import Source
source = Source.insecure(1)
source.gaussian(np.empty(10), 1.0)
rng = source.generator()
rng.binomial(100, 0.5)
read, write = os.pipe()
if os.fork() == 0:
    said = []
    for draw in (lambda: source.gaussian(np.empty(3), 1.0), lambda: source.add_gaussian(np.zeros(3), 1.0),
                 lambda: source.spawn("x"), lambda: source.state(), lambda: source.generator(),
                 lambda: rng.integers(0, 9, 99), lambda: rng.bit_generator.state):
        try:
            draw()
            said.append("went on")
        except RuntimeError as error:
            said.append("refused" if "fork" in str(error) else "other")
    os.write(write, repr((said, rng.bytes(16))).encode())
    os._exit(0)
os.wait()
said, words = eval(os.read(read, 4096))
assert said == ["refused"] * 7, said
assert words != rng.bytes(16)
assert Source.insecure(1).gaussian(np.empty(3), 1.0).shape == (3,)
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_a_word_that_fails_in_c_is_never_zero(self, monkeypatch):
        """C cannot be told of an exception: it goes on with other entropy and the next look at the stream raises."""
        rng = Source.insecure(2).generator()
        monkeypatch.setattr(Keystream, "check", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        values = [rng.integers(0, 2**64, dtype=np.uint64) for _ in range(8)]
        monkeypatch.undo()
        assert 0 not in values
        assert len(set(values)) == 8
        with pytest.raises(RuntimeError, match="cut short"):
            rng.random(100)

    def test_an_interrupted_draw_ends_the_source(self):
        class Interrupted:
            def update_into(self, *_):
                raise KeyboardInterrupt

        source = Source.insecure(3)
        source.gaussian(np.empty(normal.FIRST), 1.0)
        source._normals._words._cipher = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            source.gaussian(np.empty(3), 1.0)
        with pytest.raises(RuntimeError, match="cut short"):
            source.gaussian(np.empty(3), 1.0)

    @pytest.mark.parametrize("where", ["take", "judge"])
    def test_an_interrupt_while_drawing_ahead_repeats_nothing(self, monkeypatch, where):
        source = Source.insecure(3)
        dealt = source.gaussian(np.empty(5000), 1.0)
        with monkeypatch.context() as patched:
            patched.setattr(Leftover, where, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                source.gaussian(np.empty(200_000), 1.0)
        again = Source.restore(source.state())
        for later in (source, again):
            assert not np.isin(later.gaussian(np.empty(100_000), 1.0), dealt).any()

    def test_needs_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
        with pytest.raises(ImportError, match=r"verax\[train\]"):
            Source.system()


class TestGenerator:
    @staticmethod
    def generator(seed: int) -> BulkGenerator:
        rng = Source.insecure(seed).generator()
        assert isinstance(rng, BulkGenerator)
        return rng

    @pytest.mark.parametrize("bound", [1, 2, 3, 10, 255, 256, 257, 1000, 2**16, 2**20 + 7, 2**31, 3 * 2**30])
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
        assert set(rng.integers(max(info.min, -3), 5, 999, dtype=dtype).tolist()) == set(range(max(info.min, -3), 5))

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
        assert stats.chisquare([orders.count(order) for order in permutations(range(4))]).pvalue > 1e-3
        for population, size in ((7, 2), (4, 3)):
            drawn = [tuple(rng._subset(population, size)) for _ in range(12_000)]
            assert stats.chisquare([drawn.count(p) for p in permutations(range(population), size)]).pvalue > 1e-3

    def test_equal_keys_are_drawn_again(self):
        rng = self.generator(5)
        for words, order in (((8, 8, 16, 32), [0, 1]), ((8, 8, 32, 16), [1, 0])):
            rng._stream = Script(*words)
            assert rng._order(2).tolist() == order
            assert rng._stream.position == 4

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

    @pytest.mark.parametrize(("population", "size"), [(20, 20), (1000, 400), (1000, 600), (10**12, 1000), (2**53, 100)])
    def test_choice_without_replacement(self, population, size):
        drawn = self.generator(7).choice(population, size, replace=False, shuffle=False)
        assert np.unique(drawn).size == size == drawn.size
        assert drawn.min() >= 0
        assert drawn.max() < population

    def test_inclusion_is_uniform(self):
        rng = self.generator(8)
        counts = np.bincount(np.concatenate([rng.choice(100, 30, replace=False) for _ in range(4000)]))
        # Hypergeometric: the counts of a round are negatively correlated, which the factor 99/70 undoes.
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
        run = sampler.batches(200, self.generator(11))
        whole = [batch.tolist() for batch in sampler.batches(200, self.generator(11))]
        assert len(whole) == len(sampler)
        for done in range(len(sampler)):
            saved = json.loads(json.dumps(run.state()))
            again = resume(sampler, saved, 200, self.generator(99))
            assert [batch.tolist() for batch in again] == whole[done:]
            next(run)
        with pytest.raises(ValueError, match="secure"):
            resume(sampler, saved, 200, Source.system().generator())


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, 1e-300, 1e300, "1", True])
def test_bad_sigma(bad):
    for method in ("gaussian", "add_gaussian"):
        with pytest.raises(ValueError, match="sigma must"):
            getattr(Source.insecure(0), method)(np.zeros(3), bad)


@pytest.mark.parametrize(
    "bad",
    [[0.0], np.zeros(3, dtype=int), np.zeros(3, dtype=np.float16), np.zeros((4, 4)).T[:2], np.zeros(9)[::2], None],
)
def test_bad_buffers(bad):
    for method, name in (("gaussian", "out"), ("add_gaussian", "buffer")):
        with pytest.raises(ValueError, match=f"{name} must be"):
            getattr(Source.insecure(0), method)(bad, 1.0)


def test_read_only_buffers_are_refused():
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        Source.insecure(0).add_gaussian(frozen, 1.0)


@pytest.mark.parametrize("seed", [None, 1.5, "x", True])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="insecure_seed"):
        Source.insecure(seed)


@pytest.mark.parametrize("label", ["", None, 3])
def test_bad_labels(label):
    with pytest.raises(ValueError, match="label"):
        Source.insecure(0).spawn(label)


def test_bad_states():
    source = Source.insecure(0)
    good = source.generator().bit_generator.state
    for bad in ({}, 3, good | {"bit_generator": "PCG64"}, good | {"key": "zz"}, good | {"key": "z" * 64}):
        with pytest.raises(ValueError, match="state"):
            source.generator().bit_generator.state = bad
    for bad in ({}, None, source.state() | {"key": "12"}, source.state() | {"secure": 1}):
        with pytest.raises(ValueError, match="state"):
            Source.restore(bad)


def test_empty_and_shaped_buffers():
    source = Source.insecure(17)
    assert source.gaussian(np.empty(0), 1.0).size == 0
    assert source.add_gaussian(np.empty(0), 1.0).size == 0
    shaped = source.add_gaussian(np.zeros((3, 4, 5), dtype=np.float32), 1.0)
    assert shaped.shape == (3, 4, 5)
    assert (shaped != 0).all()
