"""The inner loops of normal draws, over blocks of numbers: in numpy, and compiled where a compiler was at hand.

Both do the same to the last bit. Numpy takes a dozen passes over a block where ``_kernel.c`` takes three, in less than
half the time; that is built when verax is installed, and nothing but speed depends on it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from verax.randomness.keystream import Words
from verax.randomness.tables import INDEX_BITS, PLACE_BITS, Floats, Tables

try:
    from verax.randomness import _kernel
except ImportError:  # there was no compiler
    _kernel = None  # type: ignore[assignment]

Buffer = NDArray[np.float32] | NDArray[np.float64]
Places = NDArray[np.int64]

COMPILED = _kernel is not None
PLACE = np.uint64(2**PLACE_BITS - 1)
ONE = np.float64(1).view(np.uint64)
MAGIC = 1.5 * 2.0**52  # a double that is added to this, and less than a quarter of it, loses all but its whole part


class Loops(Protocol):
    """Work on at most so many numbers at a time; the arrays it needs for that are its own."""

    def largest(self, values: Buffer) -> float:
        """The largest absolute value; infinite or not a number if one of them is."""

    def draw(self, words: Words, tables: Tables, draws: Floats) -> Places:
        """Turn words, which are lost, into draws of the rectangles; where the words fall in none."""

    def add(self, into: Buffer, draws: Floats, sigma: float, step: float, limit: float) -> list[int]:
        """Add sigma times the draws and round to a multiple of the step; where the rounding moved by more than limit.

        What is there stays as it was.
        """


class InNumpy:
    """One operation after the other."""

    def __init__(self, size: int) -> None:
        self._index = np.empty(size, dtype=np.uint64)
        self._first, self._second = np.empty((2, size))

    def largest(self, values: Any) -> float:
        """To find where it is takes a third of the time of a reduction."""
        return float(max(values.item(values.argmax()), -values.item(values.argmin()))) if len(values) else 0.0

    def draw(self, words: Words, tables: Tables, draws: Floats) -> Places:
        """Look up two tables by the first bits, and read the rest as a double between 1 and 2."""
        index, start = self._index[: len(words)], self._first[: len(words)]
        np.right_shift(words, 64 - INDEX_BITS, out=index)
        tables.slope.take(index.view(np.int64), out=draws, mode="clip")
        tables.start.take(index.view(np.int64), out=start, mode="clip")
        late: Places = (words >= tables.leftover).nonzero()[0]
        np.bitwise_and(words, PLACE, out=words)
        np.bitwise_or(words, ONE, out=words)
        np.multiply(draws, words.view(np.float64), out=draws)
        np.add(draws, start, out=draws)
        return late

    def add(self, into: Any, draws: Floats, sigma: float, step: float, limit: float) -> list[int]:
        """``(total + magic) - magic`` is the multiple of the step nearest to total: its last bit counts steps."""
        error, near = self._first[: len(into)], self._second[: len(into)]
        magic = np.array(MAGIC * step)
        np.multiply(draws, sigma, out=error)
        near[...] = into  # in double precision: faster than leaving the conversion to the operation that follows
        np.add(error, near, out=error)
        np.add(error, magic, out=near)
        np.subtract(near, magic, out=near)
        np.subtract(error, near, out=error)
        doubts: list[int] = []
        if self.largest(error) > limit:
            doubts = np.flatnonzero(np.abs(error) > limit).tolist()
            near[doubts] = into[doubts]
        into[...] = near
        return doubts


class Compiled:
    """One pass for each of the three."""

    def __init__(self, size: int) -> None:
        self._places = np.empty(size, dtype=np.int64)

    def largest(self, values: Buffer) -> float:
        """From the bits of the numbers."""
        return _kernel.largest(values)

    def draw(self, words: Words, tables: Tables, draws: Floats) -> Places:
        """Both tables at once."""
        count = _kernel.draw(words, tables.slope, tables.start, tables.leftover, draws, self._places)
        return self._places[:count].copy()

    def add(self, into: Buffer, draws: Floats, sigma: float, step: float, limit: float) -> list[int]:
        """Without going through memory in between."""
        count = _kernel.add(into, draws, sigma, MAGIC * step, limit, self._places)
        return self._places[:count].tolist() if count else []


def fastest(size: int) -> Loops:
    """The compiled ones if there are any."""
    return Compiled(size) if COMPILED else InNumpy(size)
