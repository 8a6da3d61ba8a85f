"""The inner loops of normal draws, over blocks of numbers: in numpy, and compiled if possible.

Both do the same to the last bit, which is checked before the compiled ones are first used. Numpy
takes a dozen passes over a block where ``_kernel.c`` takes three, in less than half the time; that
is built when verax is installed, and nothing but speed depends on it.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from verax.randomness.keystream import Words
from verax.randomness.tables import INDEX_BITS, PLACE_BITS, Floats, Tables, tables

try:
    from verax.randomness import _kernel
except ImportError:  # there was no compiler
    _kernel = None  # type: ignore[assignment]

Buffer = NDArray[np.float32] | NDArray[np.float64]
Places = NDArray[np.int64]

COMPILED = _kernel is not None
# Numbers on which the two are compared.
CHECKED = 600
PLACE = np.uint64(2**PLACE_BITS - 1)
ONE = np.float64(1).view(np.uint64)
# A double that is added to this, and less than a quarter of it, loses all but its whole part.
MAGIC = 1.5 * 2.0**52


class Loops(Protocol):
    """Work on at most so many numbers at a time; the arrays it needs for that are its own."""

    def largest(self, values: Buffer) -> float:
        """The largest absolute value; infinite or not a number if one of them is."""

    def draw(self, words: Words, table: Tables, draws: Floats) -> Places:
        """Turn words into draws of the rectangles, in place; return where none was hit."""

    def add(
        self, into: Buffer, draws: Floats, sigma: float, step: float, limit: float
    ) -> list[int]:
        """Add sigma times the draws, round to the step; return where it moved beyond the limit.

        What is there stays as it was.
        """


class NumpyLoops:
    """One operation after the other."""

    def __init__(self, size: int) -> None:
        self._index = np.empty(size, dtype=np.uint64)
        self._first, self._second = np.empty((2, size))

    def largest(self, values: Any) -> float:
        """To find where it is takes a third of the time of a reduction."""
        return (
            float(max(values.item(values.argmax()), -values.item(values.argmin())))
            if len(values)
            else 0.0
        )

    def draw(self, words: Words, table: Tables, draws: Floats) -> Places:
        """Look up two tables by the first bits, and read the rest as a double between 1 and 2."""
        index, start = self._index[: len(words)], self._first[: len(words)]
        np.right_shift(words, 64 - INDEX_BITS, out=index)
        table.slope.take(index.view(np.int64), out=draws, mode="clip")
        table.start.take(index.view(np.int64), out=start, mode="clip")
        late: Places = (words >= table.leftover).nonzero()[0]
        np.bitwise_and(words, PLACE, out=words)
        np.bitwise_or(words, ONE, out=words)
        np.multiply(draws, words.view(np.float64), out=draws)
        np.add(draws, start, out=draws)
        return late

    def add(self, into: Any, draws: Floats, sigma: float, step: float, limit: float) -> list[int]:
        """``(total + magic) - magic`` is the multiple of the step nearest to the total."""
        error, near = self._first[: len(into)], self._second[: len(into)]
        magic = np.array(MAGIC * step)
        np.multiply(draws, sigma, out=error)
        # in double precision: faster than leaving the conversion to the operation that follows
        near[...] = into
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


class CompiledLoops:
    """One pass for each of the three."""

    def __init__(self, size: int) -> None:
        self._places = np.empty(size, dtype=np.int64)

    def largest(self, values: Buffer) -> float:
        """From the bits of the numbers."""
        return _kernel.largest(values)

    def draw(self, words: Words, table: Tables, draws: Floats) -> Places:
        """Both tables at once."""
        count = _kernel.draw(words, table.slope, table.start, table.leftover, draws, self._places)
        return self._places[:count].copy()

    def add(
        self, into: Buffer, draws: Floats, sigma: float, step: float, limit: float
    ) -> list[int]:
        """Without going through memory in between."""
        count = _kernel.add(into, draws, sigma, MAGIC * step, limit, self._places)
        return self._places[:count].tolist() if count else []


def loops_agree(one: Loops, other: Loops) -> bool:
    """Whether both treat some hundred numbers alike, also those that show how sums round."""
    rng, t = np.random.default_rng(0), tables()
    words = rng.integers(0, 2**64, CHECKED, dtype=np.uint64)
    words[:4] = 0, t.leftover - 1, t.leftover, 2**64 - 1
    into = rng.normal(0.0, 100.0, CHECKED)
    into[-1], bad = -1000.0, np.array([1.0, np.nan, 2.0])
    results = []
    for loops in (one, other):
        draws, double, single = np.empty(CHECKED), into.copy(), into.astype(np.float32)
        late = loops.draw(words.copy(), t, draws).tolist()
        for size in (CHECKED, 3):
            doubts = [
                loops.add(sums[:size], draws[:size], 1.7, 2.0**-20, 0.4 * 2.0**-20)
                for sums in (double, single)
            ]
        largest = (
            loops.largest(into),
            loops.largest(into.astype(np.float32)),
            np.isfinite(loops.largest(bad)),
        )
        results.append((late, doubts, largest, draws.tobytes(), double.tobytes(), single.tobytes()))
    return results[0] == results[1]


@cache
def _compiled_loops_work() -> bool:
    """Whether what the compiler made, of this source or an older one, does what it should."""
    if not COMPILED:
        return False
    fine = loops_agree(CompiledLoops(CHECKED), NumpyLoops(CHECKED))
    if not fine:
        warnings.warn(
            "the compiled loops of the noise do not do what numpy does, so numpy does it: "
            "install verax again, without compiler flags that reorder sums",
            RuntimeWarning,
            stacklevel=2,
        )
    return fine


def fastest_loops(size: int) -> Loops:
    """The compiled ones, if there are any and they do the same."""
    return CompiledLoops(size) if _compiled_loops_work() else NumpyLoops(size)
