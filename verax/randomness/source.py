"""Where all randomness of a run comes from: one secret key."""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import numpy as np

from verax import checks
from verax.randomness.bits import Bits, BulkGenerator, key_from
from verax.randomness.keystream import KEY_BYTES, Keystream, Secret, derive
from verax.randomness.normal import Normals, grid

_KINDS = np.dtype(np.float32), np.dtype(np.float64)
FIELDS = ("secure", "key", "spawned", "normals", "generator")
Array = TypeVar("Array", bound=np.ndarray[Any, np.dtype[Any]])


class Source(Secret):
    """Secret randomness: normal draws and a numpy Generator, all derived from one key.

    Make one with :meth:`system`, split it with :meth:`spawn`. It may be shared by threads, not by
    processes.

    >>> import numpy as np
    >>> from verax.randomness import Source
    >>> source = Source.system()
    >>> noise, sampling = source.spawn("noise"), source.spawn("sampling")
    >>> total = np.array([3.0, -1.0, 0.5])
    >>> _ = noise.add_gaussian(total, sigma=2.0)
    >>> bool((total % Source.grid(2.0) == 0).all())
    True
    >>> sampling.generator().permutation(5).shape
    (5,)
    """

    def __init__(self, key: bytes, secure: bool) -> None:
        self._key, self._secure = key, secure
        self._spawned: set[str] = set()
        self._lock = threading.Lock()
        self._guard = Keystream(derive(key, "guard"))
        self._normals: Normals | None = None
        self._generator: BulkGenerator | None = None

    @classmethod
    def system(cls) -> Source:
        """A fresh source, keyed with 32 bytes of the operating system's entropy."""
        return cls(os.urandom(KEY_BYTES), secure=True)

    @classmethod
    def insecure(cls, seed: int) -> Source:
        """For tests and research: the same seed gives the same randomness, so none is private."""
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ValueError(f"insecure_seed must be a whole number, got {seed!r}")
        return cls(derive(b"", "insecure seed", str(int(seed))), secure=False)

    @property
    def secure(self) -> bool:
        """Whether the key is the operating system's; if not, the run is not private."""
        return self._secure

    def __repr__(self) -> str:
        return f"<Source, {'secure' if self._secure else 'not private'}>"

    def spawn(self, label: str) -> Source:
        """An independent source for one use, say ``"noise"``; each label works once.

        >>> source = Source.insecure(7)
        >>> a = source.spawn("noise").generator().integers(0, 2**32)
        >>> b = Source.insecure(7).spawn("noise").generator().integers(0, 2**32)
        >>> bool(a == b)
        True
        """
        self._guard.check()
        label = _checked_label(label)
        with self._lock:
            if label in self._spawned:
                raise ValueError(
                    f"label must not be used twice, got {label!r} again: keep the source it first "
                    "gave"
                )
            self._spawned.add(label)
        return Source(derive(self._key, "spawn", label), self._secure)

    def generator(self) -> np.random.Generator:
        """The source's one numpy Generator. Its bit generator's state is secret."""
        self._guard.check()
        with self._lock:
            if self._generator is None:
                self._generator = BulkGenerator(
                    Bits(Keystream(derive(self._key, "generator")), self._secure)
                )
            return self._generator

    def gaussian(self, out: Array, sigma: float) -> Array:
        """Fill a float32 or float64 array with independent N(0, sigma^2) draws.

        Not for releases: adding it to a secret sum in floating point would show low bits of the
        sum. Use :meth:`add_gaussian`, which rounds so that they do not.

        >>> import numpy as np
        >>> round(float(Source.insecure(0).gaussian(np.empty(10_000), sigma=2.0).std()), 1)
        2.0
        """
        flat, sigma = _flat_view("out", out), _checked_deviation(sigma)
        self._guard.check()
        with self._lock:
            self._stream().fill(flat, sigma)
        return out

    def add_gaussian(self, buffer: Array, sigma: float) -> Array:
        """Add N(0, sigma^2) noise in place and round to multiples of ``Source.grid(sigma)``.

        The result is what rounding the sum of real numbers gives, whatever the floating-point
        arithmetic did: a post-processing of the Gaussian mechanism, so it is exactly as private.
        See docs/noise.md. If it is interrupted, part of the buffer has no noise: throw it away.
        """
        flat, sigma = _flat_view("buffer", buffer), _checked_deviation(sigma)
        self._guard.check()
        with self._lock:
            self._stream().add(flat, sigma)
        return buffer

    @staticmethod
    def grid(sigma: float) -> float:
        """The step that :meth:`add_gaussian` rounds to: the largest power of two <= sigma / 2^20.

        >>> Source.grid(1.0) == 2.0**-20
        True
        """
        return grid(_checked_deviation(sigma))

    def state(self) -> dict[str, Any]:
        """Everything :meth:`restore` needs, JSON-able.

        **Secret**: whoever reads it can redraw the randomness, past and future. Keep it with the
        raw data, readable by its owner only.
        """
        self._guard.check()
        with self._lock:
            normals = None if self._normals is None else list(self._normals.position)
            bits = None if self._generator is None else self._generator.bit_generator.state
            values = (self._secure, self._key.hex(), sorted(self._spawned), normals, bits)
            return dict(zip(FIELDS, values, strict=True))

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Source:
        """Go on from :meth:`state`, drawing what the interrupted source would have drawn next.

        Only for repeating interrupted work exactly: the same noise on another sum would give both
        sums away.
        """
        state = _checked_state(state)
        source = cls(key_from(state["key"]), state["secure"])
        source._spawned = set(state["spawned"])
        if state["normals"] is not None:
            drawn, candidate = (
                checks.count("state normals", value, 0, 2**64) for value in state["normals"]
            )
            source._normals = Normals(derive(source._key, "normals"), drawn, candidate)
        if state["generator"] is not None:
            source.generator().bit_generator.state = state["generator"]
        return source

    def _stream(self) -> Normals:
        if self._normals is None:
            self._normals = Normals(derive(self._key, "normals"))
        return self._normals


def _checked_label(label: Any) -> str:
    if not isinstance(label, str) or not label:
        raise ValueError(f"label must be a word, got {label!r}")
    return label


def _checked_state(state: Any) -> dict[str, Any]:
    if (
        not isinstance(state, dict)
        or set(state) != set(FIELDS)
        or not isinstance(state["secure"], bool)
    ):
        raise ValueError(
            f"state must be what a source's state() returned, got {type(state).__name__} with "
            "other fields"
        )
    return state


def _checked_deviation(sigma: Any) -> float:
    value = checks.positive("sigma", sigma)
    if not 1e-200 <= value <= 1e200:
        raise ValueError(f"sigma must lie between 1e-200 and 1e200, got {sigma!r}")
    return value


def _flat_view(name: str, array: Any) -> Any:
    """The array's own memory as a flat array; a silent copy would leave the caller unnoised."""
    if not isinstance(array, np.ndarray) or array.dtype not in _KINDS:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} must be a numpy array of float32 or float64, got {kind}")
    if not array.flags.carray:
        raise ValueError(f"{name} must be contiguous, aligned and writeable, got one that is not")
    array = array if type(array) is np.ndarray else array.view(np.ndarray)
    return array if array.ndim == 1 else array.reshape(-1)
