"""Exact decisions about real numbers known to some bits only, by reading further bits.

The fast code decides in double precision wherever its error cannot matter, and asks here otherwise.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache


@dataclass(frozen=True)
class Uniform:
    """A uniform real number in [0, 1): its first ``bits`` bits, and a reader of those after."""

    word: int
    bits: int
    more: Callable[[int], int]

    def bounds(self, extra: int) -> tuple[Fraction, Fraction]:
        """The ends of what it can be, once ``extra`` further words are read."""
        word = self.word
        for k in range(extra):
            word = word << 64 | self.more(k)
        unit = 1 << (self.bits + 64 * extra)
        return Fraction(word, unit), Fraction(word + 1, unit)


@dataclass(frozen=True)
class Spot:
    """The real number ``sign * (edge + width * u)``."""

    sign: int
    edge: float
    width: float
    u: Uniform

    def bounds(self, extra: int) -> tuple[Fraction, Fraction]:
        """Its two ends, in the order of u's."""
        edge, width = Fraction(self.edge), Fraction(self.width)
        low, high = (self.sign * (edge + width * end) for end in self.u.bounds(extra))
        return low, high


def nearest(spot: Spot, scale: float, offset: float, step: float) -> int:
    """The whole number nearest to ``(scale * spot + offset) / step``."""
    extra = 0
    while True:
        low, high = (
            math.floor((Fraction(scale) * end + Fraction(offset)) / Fraction(step) + Fraction(1, 2))
            for end in spot.bounds(extra)
        )
        if low == high:
            return low
        extra += 1


def below_curve(spot: Spot, v: Uniform, base: Fraction, weight: Fraction) -> bool:
    """Whether ``base + weight * v`` is less than the spot's width times the density there."""
    extra = 0
    while True:
        near, far = (abs(end) for end in spot.bounds(extra))
        low, high = (base + weight * end for end in v.bounds(extra))
        with decimal.localcontext() as context:
            context.prec = 50 + 20 * extra
            # far above the rounding of the few operations below
            margin = Decimal(10) ** (10 - context.prec)
            if _decimal(high) < _curve(far, spot.width) * (1 - margin):
                return True
            if _decimal(low) > _curve(near, spot.width) * (1 + margin):
                return False
        extra += 1


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _curve(x: Fraction, width: float) -> Decimal:
    """``width`` times the normal density at x; decreasing in x."""
    return (
        Decimal(width) * (-_decimal(x * x) / 2).exp() / (2 * _pi(decimal.getcontext().prec)).sqrt()
    )


@cache
def _pi(precision: int) -> Decimal:
    """By Gauss and Legendre's arithmetic-geometric mean, in a context of that precision."""
    a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal(1) / 4, Decimal(1)
    while abs(a - b) > Decimal(10) ** (3 - precision):
        mean = (a + b) / 2
        a, b, t, p = mean, (a * b).sqrt(), t - p * (a - mean) ** 2, 2 * p
    return (a + b) ** 2 / (4 * t)
