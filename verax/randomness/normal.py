"""Normal draws with the exact law, 64 bits at a time.

A draw is a real number: ``edge + width * u`` in one of the rectangles of
``verax.randomness.tables``, or in a strip of what they leave over. The first word gives the
rectangle and 52 bits of u; the other bits of u are read only where rounding to the grid hangs on
them. So what is dealt is the rounding of a real number whose law is normal, but for a probability
below 2e-224 of a draw beyond 32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verax.randomness.exact import Spot, Uniform, below_curve, nearest
from verax.randomness.keystream import Keystream, Secret, Words, derive
from verax.randomness.loops import PLACE, Buffer, fastest_loops
from verax.randomness.tables import PLACE_BITS, Floats, tables

Numbers = NDArray[np.int64]

# Values at a time: enough to make the cost of a call small, little enough for the second-level
# caches.
BLOCK = 2**16
# Values that are drawn ahead at first; twice as many every time, up to a block.
FIRST = 2**8
# The grid's step is more than 2^-21 and at most 2^-20 standard deviations.
FINENESS = 20
SLACK = 2.0**-24
"""Bounds the error, in steps, of a computed draw. The draw is off by less than 2^-46 standard
deviations: at most 66 units of 2^-53 for the product, the sum and the scaling of a number below 32,
and for the bits of u not read. A standard deviation is less than 2^21 steps; that makes 2^-25."""
DOUBT = 2.0**-40
"""Bounds the relative error of the leftover's comparison: a number below 32 that is off by 2^-47,
its square and the exponential of that make less than 2^-41; the few other roundings are of the
order of 2^-53."""
# Steps; where the buffer reaches farther, whole steps are set aside before the noise is added.
FAR = 2.0**32
# Words reserved for the further bits of one number.
READ_AHEAD = 2**16


def grid(sigma: float) -> float:
    """The step, a power of two, of the grid that a release with noise ``sigma`` is rounded to."""
    return math.ldexp(0.5, math.frexp(sigma)[1] - FINENESS)


def reader(stream: Keystream, serial: int) -> Callable[[int], int]:
    """Reads the further words of the number ``serial``: the same ones whenever it is asked."""
    return lambda k: stream.at(serial * READ_AHEAD + k)


class Leftover(Secret):
    """Draws from what the rectangles leave of the curve, by rejection, in candidate order.

    A candidate takes three words: its strip; its place in it; its height, and its sign in the last
    bit.
    """

    def __init__(self, key: bytes, candidate: int = 0) -> None:
        self._words = Keystream(derive(key, "candidates"), 3 * candidate)
        self._places, self._heights = (
            Keystream(derive(key, "places")),
            Keystream(derive(key, "heights")),
        )
        self._tables = tables()
        self._values: Floats = np.empty(0)
        self._serials: Numbers = np.empty(0, dtype=np.int64)
        self._used, self._ahead = 0, 2**6

    def candidate(self, back: int = 0) -> int:
        """The first candidate needed by the draws to come and by the last ``back`` draws."""
        at = self._used - back
        return int(self._serials[at]) if at < len(self._serials) else self._words.position // 3

    def take(self, size: int) -> Floats:
        """The next ``size`` draws."""
        while len(self._values) - self._used < size:
            # candidates that an interrupt left unjudged are passed over
            first = self._words.position // 3
            serials, values = self.judge(self._words.words(3 * self._ahead).reshape(-1, 3), first)
            values = np.concatenate((self._values[self._used :], values))
            serials = np.concatenate((self._serials[self._used :], serials))
            self._values, self._serials, self._used = values, serials, 0
            self._ahead = min(2 * self._ahead, 2**13)
        self._used += size
        return self._values[self._used - size : self._used]

    def judge(self, words: Words, first: int) -> tuple[Numbers, Floats]:
        """The accepted of the candidates ``first, first + 1, ...``: their numbers and values."""
        t = self._tables
        strips = np.searchsorted(t.ends, words[:, 0], side="right")
        width, base, weight = t.width[strips], t.base[strips], t.weight[strips]
        x = t.edge[strips] + width * (words[:, 1] * 2.0**-64)
        curve = width * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        height = base + weight * (words[:, 2] * 2.0**-64)
        accepted = height < curve
        for i in np.flatnonzero(np.abs(height - curve) <= DOUBT * (base + weight + curve)).tolist():
            v = Uniform(int(words[i, 2]) >> 1, 63, reader(self._heights, first + i))
            strip = int(strips[i])
            mass = Fraction(t.unit) * t.shares[strip]
            accepted[i] = below_curve(
                self._spot(first + i, words[i]), v, Fraction(float(t.base[strip])), mass
            )
        chosen = np.flatnonzero(accepted)
        sign = 1.0 - 2.0 * (words[chosen, 2] & np.uint64(1))
        return (chosen + first).astype(np.int64), sign * x[chosen]

    def spot(self, back: int) -> Spot:
        """The exact place of the draw dealt ``back`` draws ago."""
        serial = int(self._serials[self._used - back])
        return self._spot(serial, [self._words.at(3 * serial + k) for k in range(3)])

    def _spot(self, serial: int, words: Any) -> Spot:
        t = self._tables
        strip = int(np.searchsorted(t.ends, np.uint64(words[0]), side="right"))
        u = Uniform(int(words[1]), 64, reader(self._places, serial))
        return Spot(-1 if int(words[2]) & 1 else 1, float(t.edge[strip]), float(t.width[strip]), u)


class Normals(Secret):
    """A stream of normal draws, drawn some at a time and dealt in order.

    Args:
        key: 32 secret bytes.
        drawn: how many draws to pass over.
        candidate: where among the leftover's candidates the stream then stands.
    """

    def __init__(self, key: bytes, drawn: int = 0, candidate: int = 0) -> None:
        self._words, self._more = (
            Keystream(derive(key, "words"), drawn),
            Keystream(derive(key, "more")),
        )
        self._leftover = Leftover(derive(key, "leftover"), candidate)
        self._tables, self._loops = tables(), fastest_loops(BLOCK)
        self._bits, self._x = np.empty(BLOCK, dtype=np.uint64), np.empty(BLOCK)
        # which of the draws come from the leftover
        self._late: Numbers = np.empty(0, dtype=np.int64)
        self._ahead, self._drawn, self._dealt = FIRST, 0, 0

    @property
    def position(self) -> tuple[int, int]:
        """``drawn`` and ``candidate`` for a stream of the same key that continues from here."""
        waiting = len(self._late) - int(np.searchsorted(self._late, self._dealt))
        return self._words.position - self._drawn + self._dealt, self._leftover.candidate(waiting)

    def fill(self, out: Buffer, sigma: float) -> None:
        """Overwrite the flat ``out`` with draws of standard deviation sigma, as doubles."""
        start = 0
        while start < len(out):
            draws = self._deal(len(out) - start)
            np.multiply(draws, sigma, out=out[start : start + len(draws)], casting="same_kind")
            start += len(draws)

    def add(self, buffer: Buffer, sigma: float) -> None:
        """Add draws of standard deviation sigma to ``buffer``, rounded to the grid exactly."""
        highest = self._loops.largest(buffer)
        if not math.isfinite(highest):
            raise ValueError(
                "buffer must be finite, got one with infinities or nan; no noise was added"
            )
        step = grid(sigma)
        reach = highest / step
        limit = (0.5 - SLACK - min(reach, FAR) * 2.0**-52) * step
        start = 0
        while start < len(buffer):
            draws = self._deal(len(buffer) - start)
            size = len(draws)
            part = buffer[start : start + size]
            start += size
            rest = np.fmod(part, step, dtype=np.float64) if reach > FAR else part
            aside = part - rest if reach > FAR else None
            for i in self._loops.add(rest, draws, sigma, step, limit):
                rest[i] = nearest(self._spot(i, size), sigma, float(rest[i]), step) * step
            # Every rounding from here on, in this sum or to single precision, looks at a sum on the
            # grid only.
            if aside is not None:
                part[...] = rest + aside

    def _deal(self, most: int) -> Floats:
        """Some of the next draws, at most so many, to within 2^-46."""
        if self._dealt == self._drawn:
            self._draw(min(max(most, self._ahead), BLOCK))
            self._ahead = min(2 * self._ahead, BLOCK)
        first, self._dealt = self._dealt, min(self._dealt + most, self._drawn)
        return self._x[first : self._dealt]

    def _draw(self, size: int) -> None:
        """Draw ahead, in units of the standard deviation."""
        # whatever interrupts this, no draw is dealt twice
        self._drawn, self._dealt, self._late = 0, 0, self._late[:0]
        words, draws = self._bits[:size], self._x[:size]
        self._words.fill(words)
        late = self._loops.draw(words, self._tables, draws)
        draws[late] = self._leftover.take(len(late))
        self._late, self._drawn = late, size

    def _spot(self, i: int, size: int) -> Spot:
        """The exact place of draw ``i`` of the ``size`` that were dealt last."""
        at = self._dealt - size + i
        serial = self._words.position - self._drawn + at
        word = self._words.at(serial)
        if word >= self._tables.leftover:
            return self._leftover.spot(len(self._late) - int(np.searchsorted(self._late, at)))
        slope = float(self._tables.slope[word >> PLACE_BITS])
        edge = abs(float(self._tables.start[word >> PLACE_BITS]) + slope)
        u = Uniform(word & int(PLACE), PLACE_BITS, reader(self._more, serial))
        return Spot(1 if slope > 0 else -1, edge, abs(slope), u)
