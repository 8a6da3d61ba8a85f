"""The bell curve cut into rectangles of equal mass and a remainder, one side of zero at a time.

Rectangle j stands on [edge_j, edge_j + width_j), below the curve, with mass 2^-12 exactly. Drawing
from the curve is drawing a rectangle and a uniform place in it, or, with the small probability that
remains, a place between the rectangles and the curve or in the tail. Edges and widths are multiples
of 2^-44, so they are doubles and fit together without a gap. See docs/noise.md, section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from verax.randomness.keystream import Words

Floats = NDArray[np.float64]

INDEX_BITS = 12
PLACE_BITS = 52
MASS = 2.0**-INDEX_BITS
GRAIN = 2.0**-44
# The law ends here: beyond lies a probability below 2e-224.
LAST = 32.0
# Width of the strips of the tail.
STRIP = 0.25
# The rectangles stay this much below the curve, the envelope above: far more than rounding errors.
MARGIN = 2.0**-30


@dataclass(frozen=True)
class Tables:
    """What the fast path looks up by a word's first 12 bits, and the strips of the remainder."""

    slope: Floats
    """Signed width of each rectangle: the positive ones, their mirror images, then zeros."""
    start: Floats
    """Signed edge less signed width: the place is ``start + slope * (1 + u)``."""
    leftover: int
    """The first word that falls in no rectangle."""
    edge: Floats
    """Left edge of each strip: those above the rectangles, then those of the tail."""
    width: Floats
    base: Floats
    """Mass of the rectangle that the strip stands on."""
    ends: Words
    """Running sums of the strips' shares, all but the last; the shares sum to 2^64."""
    shares: tuple[int, ...]
    unit: float
    """Share times unit is the mass of the envelope above the leftover in the strip."""
    weight: Floats
    """That mass, rounded."""


def height(x: float) -> float:
    """The standard normal density."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def rectangles() -> list[tuple[float, float]]:
    """Edges and widths, outwards from zero until no further rectangle fits below the curve."""
    found: list[tuple[float, float]] = []
    edge = 0.0
    while True:
        width, wider = 0.0, GRAIN
        # The narrowest rectangle solves width * height(edge + width) = mass: climb to it from
        # below.
        while width < wider < 1:
            width = math.ceil(wider / GRAIN) * GRAIN
            wider = MASS * (1 + 2 * MARGIN) / height(edge + width)
        if wider >= 1:
            return found
        if width * height(edge + width) < MASS * (1 + MARGIN):
            raise ArithmeticError(f"the rectangle at {edge} must lie below the curve")
        found.append((edge, width))
        edge += width


@cache
def tables() -> Tables:
    """Built once, in some 30 ms."""
    edge, width = np.array(rectangles()).T
    count = len(edge)
    slope, start = np.zeros((2, 1 << INDEX_BITS))
    slope[:count], start[:count] = width, edge - width
    slope[count : 2 * count], start[count : 2 * count] = -width, width - edge

    tail = edge[-1] + width[-1]
    cuts = np.concatenate(
        ([tail], np.arange(math.floor(tail / STRIP) + 1, LAST / STRIP + 1) * STRIP)
    )
    edge, width = np.concatenate((edge, cuts[:-1])), np.concatenate((width, np.diff(cuts)))
    base = np.where(np.arange(len(edge)) < count, MASS, 0.0)
    # The curve falls, so what is left of it in a strip is highest on the left.
    envelope = width * [height(x) for x in edge.tolist()] * (1 + MARGIN) - base
    unit = math.fsum(envelope) * 2.0**-64 * (1 + 2 * MARGIN)
    shares = [math.ceil(mass / unit * (1 + MARGIN)) + 1 for mass in envelope.tolist()]
    # the spare share makes the highest strip's envelope looser, no more
    shares[-1] += (1 << 64) - sum(shares)
    if shares[-1] * unit < envelope[-1]:
        raise ArithmeticError("the shares of the strips must leave room for the last")
    return Tables(
        slope=slope,
        start=start,
        leftover=2 * count << (64 - INDEX_BITS),
        edge=edge,
        width=width,
        base=base,
        ends=np.array(list(accumulate(shares[:-1])), dtype=np.uint64),
        shares=tuple(shares),
        unit=unit,
        weight=np.array([share * unit for share in shares]),
    )
