"""The inner loops in numpy and compiled: what they promise, and that they agree to the last bit."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from verax.randomness import Source, loops, normal
from verax.randomness.loops import COMPILED, CompiledLoops, NumpyLoops
from verax.randomness.tables import tables

SIZE = 3000
WAYS = [NumpyLoops, CompiledLoops] if COMPILED else [NumpyLoops]
SIZES = (0, 1, 2, 255, 256, 257, 511, 512, 1000, SIZE)
KINDS = (np.float32, np.float64)

needs_both = pytest.mark.skipif(
    not COMPILED, reason="there was no compiler when verax was installed"
)


@pytest.fixture(params=WAYS)
def way(request):
    return request.param(SIZE)


def words(size: int) -> np.ndarray:
    """Random ones, and those at the edges of the tables among them."""
    found = np.random.default_rng(size).integers(0, 2**64, size, dtype=np.uint64)
    edges = [0, 2**52 - 1, 2**52, tables().leftover - 1, tables().leftover, 2**64 - 1]
    found[: len(edges)] = np.array(edges, dtype=np.uint64)[:size]
    return found


def sums(size: int, kind: type) -> np.ndarray:
    return np.random.default_rng(size + 1).normal(0.0, 5.0, size).astype(kind)


class TestEach:
    @pytest.mark.parametrize("size", SIZES)
    def test_draws(self, way, size):
        mine, t = words(size), tables()
        found = np.empty(size)
        late = way.draw(mine.copy(), t, found)
        assert late.tolist() == [i for i, word in enumerate(mine.tolist()) if word >= t.leftover]
        for word, value in zip(mine.tolist(), found.tolist(), strict=True):
            at, u = word >> 52, (word & (2**52 - 1)) / 2**52
            assert value == t.slope[at] * (1.0 + u) + t.start[at]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("size", SIZES)
    def test_sums_are_rounded_to_the_grid_and_doubts_left_alone(self, way, size, kind):
        into, z, step = sums(size, kind), np.random.default_rng(size).normal(size=size), 2.0**-20
        exact = into + 1.7 * z
        near = np.round(exact / step) * step
        doubts = np.flatnonzero(np.abs(exact - near) > 0.4 * step)
        before = into.copy()
        assert way.add(into, z, 1.7, step, 0.4 * step) == doubts.tolist()
        expected = near.astype(kind)
        expected[doubts] = before[doubts]
        assert np.array_equal(into, expected)
        assert size < 100 or 0 < len(doubts) < size / 3

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_largest(self, way, kind):
        assert way.largest(np.empty(0, dtype=kind)) == 0.0
        for size in SIZES[1:]:
            values = sums(size, kind)
            assert way.largest(values) == np.abs(values).max()
            for at in {0, size // 2, size - 1}:
                for bad in (np.inf, -np.inf, np.nan, -np.nan):
                    spoiled = values.copy()
                    spoiled[at] = bad
                    assert not np.isfinite(way.largest(spoiled))

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_buffer_that_is_not_finite_gets_no_noise(self, way, kind, monkeypatch):
        monkeypatch.setattr(normal, "fastest_loops", type(way))
        buffer = sums(SIZE, kind)
        buffer[-1] = np.nan
        before = buffer.copy()
        with pytest.raises(ValueError, match="no noise was added"):
            Source.insecure(0).add_gaussian(buffer, 1.0)
        assert np.array_equal(buffer, before, equal_nan=True)


def test_where_there_is_a_compiler_it_was_used():
    """A kernel that does not compile would go unnoticed: nothing but speed depends on it."""
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    found = headers and shutil.which(os.environ.get("CC", "cc")) is not None
    assert COMPILED or not found or os.environ.get("VERAX_PURE")


@pytest.fixture
def unchecked():
    """As if nothing had been compared yet."""
    loops._compiled_loops_work.cache_clear()
    yield
    loops._compiled_loops_work.cache_clear()


class Damaged:
    """Like the kernel but for one thing: a compiler that reorders sums, or an older kernel."""

    def __init__(self, what):
        self._what = what

    def largest(self, values):
        return (
            float(np.abs(values[:-1]).max())
            if self._what == "largest"
            else float(np.abs(values).max())
        )

    def draw(self, words, slope, start, leftover, draws, late):
        at, u = words >> np.uint64(52), 1.0 + (words & np.uint64(2**52 - 1)) / 2.0**52
        draws[:] = slope[at] * u + start[at] * (1.0 + 2.0**-50 * (self._what == "draws"))
        found = np.flatnonzero(words >= leftover)
        late[: len(found)] = found
        return len(found) - (self._what == "late")

    def add(self, into, draws, sigma, magic, limit, doubts):
        total = into + sigma * draws
        near = total if self._what == "grid" else (total + magic) - magic
        found = np.flatnonzero(np.abs(total - near) > limit)
        if self._what != "doubts":
            near[found] = into[found]
        into[:] = near
        doubts[: len(found)] = found
        return len(found)


@pytest.mark.parametrize("what", ["nothing", "grid", "doubts", "draws", "late", "largest"])
def test_compiled_loops_that_do_something_else_are_not_used(what, unchecked, monkeypatch):
    monkeypatch.setattr(loops, "COMPILED", True)
    monkeypatch.setattr(loops, "_kernel", Damaged(what))
    if what == "nothing":
        assert isinstance(loops.fastest_loops(8), CompiledLoops)
        return
    with pytest.warns(RuntimeWarning, match="install verax again"):
        assert isinstance(loops.fastest_loops(8), NumpyLoops)
    assert isinstance(loops.fastest_loops(8), NumpyLoops)  # said once


@needs_both
class TestBoth:
    def test_the_compiled_ones_are_used(self, unchecked):
        assert isinstance(loops.fastest_loops(8), CompiledLoops)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("sigma", [1e-3, 1.0, 1.3e9])
    def test_releases_are_the_same(self, kind, sigma, monkeypatch):
        found = []
        for ours in (NumpyLoops, CompiledLoops):
            monkeypatch.setattr(normal, "fastest_loops", ours)
            # one in 32 in doubt, so that both meet many
            monkeypatch.setattr(normal, "SLACK", 2.0**-6)
            source = Source.insecure(5)
            for size in (10, 248, 70_000):
                buffer = sums(size, kind)
                far = buffer * kind(2.0**40 * sigma)
                for target in (buffer, far):
                    source.add_gaussian(target, sigma)
                    found.append(target)
            found.append(source.gaussian(np.empty(1000, dtype=kind), sigma))
            found.append(np.array(source.state()["normals"]))
        half = len(found) // 2
        for mine, other in zip(found[:half], found[half:], strict=True):
            assert np.array_equal(mine, other)

    @pytest.mark.parametrize(
        "spoiled",
        [
            {"into": np.zeros(4, dtype=np.int64)},
            {"into": np.zeros((4, 4))[:, 0]},
            {"into": [0.0] * 4},
            {"draws": np.zeros(3)},
            {"draws": np.zeros(4, dtype=np.float32)},
            {"doubts": np.zeros(3, dtype=np.int64)},
            {"doubts": np.zeros(4, dtype=np.int32)},
            {"sigma": "much"},
        ],
    )
    def test_wrong_arrays_are_refused(self, spoiled):
        fine = {
            "into": np.zeros(4),
            "draws": np.ones(4),
            "sigma": 1.0,
            "magic": 1.5 * 2.0**32,
            "limit": 1.0,
        }
        fine["doubts"] = np.zeros(4, dtype=np.int64)
        loops._kernel.add(*fine.values())
        with pytest.raises((TypeError, ValueError)):
            loops._kernel.add(*(fine | spoiled).values())

    def test_short_tables_and_wrong_words_are_refused(self):
        t, places = tables(), np.empty(4, dtype=np.int64)
        fine = [words(4), t.slope, t.start, t.leftover, np.empty(4), places]
        assert loops._kernel.draw(*fine) == 0
        for at, bad in (
            (0, np.empty(4)),
            (1, t.slope[:-1]),
            (2, t.start[:-1]),
            (3, -1),
            (3, 2**64),
            (4, np.empty(3)),
        ):
            with pytest.raises((ValueError, OverflowError, TypeError)):
                loops._kernel.draw(*fine[:at], bad, *fine[at + 1 :])
        for wrong in ((), fine[:-1], [*fine, 1]):
            with pytest.raises(TypeError, match="takes 6 arguments"):
                loops._kernel.draw(*wrong)
            with pytest.raises(TypeError, match="takes 6 arguments"):
                loops._kernel.add(*wrong)

    def test_memory_that_must_not_be_written_is_not(self):
        frozen = np.zeros(4)
        frozen.flags.writeable = False
        with pytest.raises((ValueError, BufferError)):
            loops._kernel.add(
                frozen, np.ones(4), 1.0, 1.5 * 2.0**32, 1.0, np.empty(4, dtype=np.int64)
            )
        assert not frozen.any()
