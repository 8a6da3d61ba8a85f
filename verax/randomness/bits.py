"""A numpy Generator on a keystream, for the samplers.

numpy draws one word at a time through a C function pointer. Here that function is Python's, at
about half a microsecond a word, so every method of ``numpy.random.Generator`` works; those the
samplers call for whole arrays are overridden below to read the keystream in bulk. All draws come
from the one keystream, in order, so its key and position are the whole state.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from verax import checks
from verax.randomness.keystream import KEY_BYTES, Keystream, Secret, Words

# Draws below which word by word is as fast.
FEW = 16
NAME = "AES256CTR"
FIELDS = ("bit_generator", "secure", "key", "position")

_Word64 = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_Word32 = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_Double = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)


class _Interface(ctypes.Structure):
    """numpy's ``bitgen_t``."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Word64),
        ("next_uint32", _Word32),
        ("next_double", _Double),
        ("next_raw", _Word64),
    )


class Bits(Secret, np.random.BitGenerator):
    """The words of a keystream as a numpy bit generator.

    Args:
        stream: the keystream, which nothing else may use.
        secure: whether its key is the operating system's; kept in the state, so that it cannot be
            forgotten.
    """

    def __init__(self, stream: Keystream, secure: bool) -> None:
        super().__init__(0)  # the seed is not used
        self.stream, self.secure = stream, secure
        word = _words_for_c(stream)
        # numpy keeps pointers to these functions, so they must live as long as this object.
        self._functions = (
            _Word64(lambda _: word()),
            _Word32(lambda _: word() >> 32),
            _Double(lambda _: (word() >> 11) * 2.0**-53),
        )
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        interface = _Interface.from_address(address(self.capsule, b"BitGenerator"))
        interface.next_uint64, interface.next_uint32, interface.next_double = self._functions
        interface.next_raw = self._functions[0]

    @property
    def state(self) -> Mapping[str, Any]:
        """Key and position, JSON-able. **Secret**: whoever reads it can redraw everything."""
        self.stream.check()
        values = (NAME, self.secure, self.stream.key.hex(), self.stream.position)
        return dict(zip(FIELDS, values, strict=True))

    @state.setter
    def state(self, value: Any) -> None:
        self.stream.check()
        if (
            not isinstance(value, dict)
            or set(value) != set(FIELDS)
            or value["bit_generator"] != NAME
        ):
            raise ValueError(
                f"state must be of a {NAME} bit generator, got {type(value).__name__} "
                "with other fields"
            )
        if value["secure"] is not self.secure:
            raise ValueError(
                f"state must be of a source with secure {self.secure}, got {value['secure']!r}"
            )
        self.stream.move(
            key_from(value["key"]), checks.count("state position", value["position"], 0, 2**64)
        )

    def spawn(self, n_children: int) -> NoReturn:
        """Refused: streams are told apart by their labels."""
        raise TypeError(
            "spawn from the source that made this generator: source.spawn(label).generator()"
        )


def key_from(text: Any) -> bytes:
    """A key out of a state, without ever showing it."""
    if not isinstance(text, str) or len(text) != 2 * KEY_BYTES:
        raise ValueError(
            f"state key must be {2 * KEY_BYTES} hexadecimal digits, got something else"
        )
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(
            f"state key must be {2 * KEY_BYTES} hexadecimal digits, got something else"
        ) from None


def _words_for_c(stream: Keystream) -> Callable[[], int]:
    """Words for C, which cannot be told of an exception: it would take the word for zero.

    After a failure, a fork or an interrupt, C gets fresh words from the operating system, and the
    next bulk draw or look at the state raises.
    """

    def word() -> int:
        try:
            return stream.word()
        except BaseException as error:  # kept, and raised by the stream's next check
            stream.failure = stream.failure or error
            return int.from_bytes(os.urandom(8), "little")

    return word


class BulkGenerator(Secret, np.random.Generator):
    """A numpy Generator whose array draws read the keystream in bulk; the values differ."""

    def __init__(self, bits: Bits) -> None:
        super().__init__(bits)
        self._stream = bits.stream

    def _words(self, size: int) -> Words:
        with self.bit_generator.lock:
            return self._stream.words(size)

    def _below(self, bound: int, size: int) -> NDArray[np.unsignedinteger]:
        """Independent uniform whole numbers below ``bound``, at most 2^64."""
        bits = (bound - 1).bit_length()
        if bound == 1 << bits:
            width = max(8, 1 << (bits - 1).bit_length() if bits else 0)
            parts: NDArray[np.unsignedinteger] = self._words(-(-size * width // 64)).view(
                f"u{width // 8}"
            )[:size]
            return np.right_shift(parts, width - bits) if bits else np.zeros_like(parts)
        if bound < 1 << 32:
            return self._scaled(bound, size)
        drawn: Words = np.right_shift(self._words(size), 64 - bits)
        while (again := np.flatnonzero(drawn >= bound)).size:
            drawn[again] = np.right_shift(self._words(again.size), 64 - bits)
        return drawn

    def _scaled(self, bound: int, size: int) -> Words:
        """Lemire's multiplication (2019), on 32 bits: results that would be biased are redrawn."""
        product = self._words(-(-size // 2)).view(np.uint32)[:size] * np.uint64(bound)
        unfair = 2**32 % bound
        while (again := np.flatnonzero(product.astype(np.uint32) < unfair)).size:
            product[again] = np.right_shift(self._words(again.size), 32) * np.uint64(bound)
        result: Words = np.right_shift(product, 32)
        return result

    def _order(self, size: int) -> NDArray[np.int64]:
        """A uniform permutation: the order of uniform keys, redrawn if two are equal."""
        bits = (size - 1).bit_length()
        while True:
            keys = self._words(size)
            if bits <= 18:  # key and place in one word: sorting is faster than argsorting
                keys, order = _sort_with_places(np.right_shift(keys, bits), bits)
            else:
                order = np.argsort(keys)
                keys = keys[order]
            if not (keys[1:] == keys[:-1]).any():
                return order.astype(np.int64, copy=False)

    def _subset(self, population: int, size: int) -> NDArray[np.int64]:
        """The first ``size`` distinct ones of independent uniform numbers, in drawing order."""
        if 2 * size > population:
            return self._order(population)[:size]
        drawn, first = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
        while first.size < size:
            missing = size - first.size
            more = self._below(population, missing + missing * size // population + 8)
            drawn = np.concatenate((drawn, more.astype(np.uint64, copy=False)))
            numbers, places = _sort_with_places(drawn, drawn.size.bit_length())
            first = places[np.concatenate(([True], numbers[1:] != numbers[:-1]))]
        first.sort()
        return drawn[first[:size]].astype(np.int64)

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Any:
        """As numpy's; in bulk for one range of any integer type."""
        bottom, top = (0, low) if high is None else (low, high)
        kind = np.dtype(dtype)
        if (
            kind.kind in "iu"
            and _is_whole_number(bottom)
            and _is_whole_number(top)
            and (count := _number_of_draws(size)) >= FEW
        ):
            bottom, span = int(bottom), int(top) - int(bottom) + bool(endpoint)
            if np.iinfo(kind).min <= bottom and 1 <= span <= np.iinfo(kind).max - bottom + 1:
                drawn = self._below(span, count)
                if bottom:
                    drawn = drawn.astype(np.uint64) + np.uint64(bottom % 2**64)
                return drawn.astype(kind).reshape(size)
        return super().integers(low, high, size, dtype, endpoint)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """As numpy's, multiples of 2^-53; in bulk for arrays of doubles."""
        if (
            np.dtype(dtype) == np.float64
            and out is None
            and (count := _number_of_draws(size)) >= FEW
        ):
            return (np.right_shift(self._words(count), 11) * 2.0**-53).reshape(size)
        return super().random(size, dtype, out)

    def permutation(self, x: Any, axis: int = 0) -> Any:
        """As numpy's; in bulk for numbers and flat arrays."""
        if _is_whole_number(x) and x >= FEW:
            return self._order(int(x))
        if isinstance(x, np.ndarray) and x.ndim == 1 and len(x) >= FEW:
            return x[self._order(len(x))]
        return super().permutation(x, axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """As numpy's; in bulk for flat arrays."""
        if isinstance(x, np.ndarray) and x.ndim == 1 and len(x) >= FEW:
            x[...] = x[self._order(len(x))]
        else:
            super().shuffle(x, axis)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """As numpy's; in bulk for a flat draw of different numbers."""
        plain = not replace and p is None and _is_whole_number(a) and _is_whole_number(size)
        if plain and FEW <= size <= a and int(a).bit_length() + int(size).bit_length() <= 60:
            return self._subset(int(a), int(size))
        return super().choice(a, size, replace, p, axis, shuffle)


def _sort_with_places(keys: Words, bits: int) -> tuple[Words, NDArray[np.int64]]:
    """The keys in increasing order and their places, by a stable sort of one word for both."""
    packed = np.left_shift(keys, bits) | np.arange(keys.size, dtype=np.uint64)
    packed.sort()
    return np.right_shift(packed, bits), (packed & np.uint64((1 << bits) - 1)).astype(np.int64)


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number_of_draws(size: Any) -> int:
    """How many draws a numpy ``size`` asks for; 0 for none that is an array's."""
    shape = size if isinstance(size, tuple | list) else (size,)
    return math.prod(map(int, shape)) if all(map(_is_whole_number, shape)) else 0
