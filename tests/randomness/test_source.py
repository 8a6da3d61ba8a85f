"""Sources: streams, states, secrets, and what they refuse."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from verax.randomness import Source, normal
from verax.randomness.keystream import Keystream, derive
from verax.randomness.normal import Leftover

KEY = bytes(range(32))


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
        words = np.concatenate(
            [Keystream(derive(KEY, name)).words(200_000) for name in ("words", "more", "spawn")]
        )
        assert np.unique(words).size == words.size

    def test_uneven_pieces_give_the_same_noise(self):
        whole = Source.insecure(13).gaussian(np.empty(200_000), 1.0)
        source, pieces = Source.insecure(13), [1, 2, 70_000, 3, 2**15, 40_001]
        pieces.append(len(whole) - sum(pieces))
        assert np.array_equal(
            np.concatenate([source.gaussian(np.empty(size), 1.0) for size in pieces]), whole
        )

    def test_spawning_is_deterministic_and_a_label_works_once(self):
        def draw() -> list[float]:
            source = Source.insecure(14)
            return [
                float(source.spawn(label).gaussian(np.empty(1), 1.0)[0])
                for label in ("a", "b", "ab", "a ")
            ]

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
        assert np.array_equal(
            source.gaussian(np.empty(5000), 1.0), again.gaussian(np.empty(5000), 1.0)
        )
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
            assert np.array_equal(
                source.gaussian(np.empty(size), scale), whole[at : at + size] * scale
            )
            at += size
            if number % 3 == 0:
                source = Source.restore(source.state())


class TestSecrets:
    def test_system_sources_say_so(self):
        assert Source.system().secure
        assert Source.system().spawn("noise").secure
        assert not Source.insecure(0).secure
        assert not Source.insecure(0).spawn("noise").secure

    @pytest.mark.parametrize("source", [Source.system(), Source.insecure(1)])
    def test_nothing_prints_the_key(self, source):
        source.gaussian(np.empty(3), 1.0)
        shown = [
            source,
            source.generator(),
            source.generator().bit_generator,
            source._guard,
            source._normals,
        ]
        key = source.state()["key"]
        for thing in shown:
            for text in (repr(thing), str(thing), f"{thing}"):
                assert key not in text
                assert repr(source._key) not in text

    def test_copies_are_refused(self):
        source = Source.system()
        source.gaussian(np.empty(3), 1.0)
        for thing in (
            source,
            source.generator(),
            source.generator().bit_generator,
            source._normals,
            source._guard,
        ):
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
    for draw in (lambda: source.gaussian(np.empty(3), 1.0),
                 lambda: source.add_gaussian(np.zeros(3), 1.0), lambda: source.spawn("x"),
                 lambda: source.state(), lambda: source.generator(),
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
        subprocess.run([sys.executable, "-c", code], check=True, timeout=600)

    def test_a_word_that_fails_in_c_is_never_zero(self, monkeypatch):
        """C sees no exception: it gets other entropy, and the next use of the stream raises."""
        rng = Source.insecure(2).generator()
        monkeypatch.setattr(
            Keystream, "check", lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
        )
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
        dealt = np.concatenate((dealt, source.gaussian(np.empty(50_000), 1.0)))
        assert len(np.unique(dealt)) == len(dealt)
        again = Source.restore(source.state())
        more = [later.gaussian(np.empty(100_000), 1.0) for later in (source, again)]
        assert np.array_equal(*more)
        assert not np.isin(more[0], dealt).any()

    def test_needs_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
        with pytest.raises(ImportError, match=r"verax\[train\]"):
            Source.system()


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, 1e-300, 1e300, "1", True])
def test_bad_sigma(bad):
    for method in ("gaussian", "add_gaussian"):
        with pytest.raises(ValueError, match="sigma must"):
            getattr(Source.insecure(0), method)(np.zeros(3), bad)


@pytest.mark.parametrize(
    "bad",
    [
        [0.0],
        np.zeros(3, dtype=int),
        np.zeros(3, dtype=np.float16),
        np.zeros((4, 4)).T[:2],
        np.zeros(9)[::2],
        None,
    ],
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
    for bad in (
        {},
        3,
        good | {"bit_generator": "PCG64"},
        good | {"key": "zz"},
        good | {"key": "z" * 64},
    ):
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
