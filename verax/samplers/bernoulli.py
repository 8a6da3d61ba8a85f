"""Independent coins for many records at once, with the exact distribution.

Heads are found by their gaps: with U uniform on (0, 1), floor(ln U / ln(1 - p)) tails precede the
next head, since P[ln U / ln(1-p) >= k] = P[U <= (1-p)^k] = (1-p)^k. The work is one logarithm a
head instead of one coin a record.

Rounding does not bend the distribution. U is a real number of which 64 bits are drawn first. Where
double precision proves the whole number (its error is bounded by ``SLACK`` below), it is taken; the
other draws, about one in 10^9 at p = 1e-3, are decided in decimal arithmetic with further bits of
U, as many as it takes. So the only approximation left is that of the bit generator itself.
"""

from __future__ import annotations

import decimal
import math

import numpy as np

from verax.samplers.base import Indices

# Draws at a time: the working arrays stay in the processor's cache.
CHUNK = 2**15
# A smaller first word leaves more of ln U open than SLACK allows for.
LEAST = 2**45
# Bounds the error of the computed ln U: 2^-53 from rounding the word to a double, 1/LEAST < 3e-14
# from the bits not drawn, and |ln U| < 14 times a few units of 2^-53 for the logarithm and the
# division by ln(1-p), together below 1e-13. The other half is margin for a careless logarithm.
SLACK = 2e-13


def heads(rng: np.random.Generator, population: int, rate: float) -> Indices:
    """The records whose independent coin of probability ``rate`` shows heads, in order."""
    return _by_coin(rng, population, rate) if rate >= 0.5 else _by_gap(rng, population, rate)


def _by_coin(rng: np.random.Generator, population: int, rate: float) -> Indices:
    """One uniform a record. Exact: doubles from 1/2 on, like numpy's uniforms, are k 2^-53."""
    parts = [
        np.flatnonzero(rng.random(min(CHUNK, population - start)) < rate) + start
        for start in range(0, population, CHUNK)
    ]
    return np.concatenate(parts).astype(np.int64, copy=False)


def _by_gap(rng: np.random.Generator, population: int, rate: float) -> Indices:
    parts: list[Indices] = []
    start = 0
    while True:
        mean = (population - start) * rate
        # A little more than will be needed; fewer where sums of gaps, each at most population,
        # could overflow.
        size = min(int(mean + 4 * math.sqrt(mean)) + 8, CHUNK, 2**62 // (population + 1))
        places = tails_before_heads(rng, size, rate, population)
        places += 1
        np.cumsum(places, out=places)
        places += start - 1
        if places[-1] >= population:
            parts.append(places[: np.searchsorted(places, population)])
            return np.concatenate(parts) if len(parts) > 1 else parts[0]
        parts.append(places)
        start = int(places[-1]) + 1


def tails_before_heads(rng: np.random.Generator, size: int, rate: float, limit: int) -> Indices:
    """Numbers of tails, at most ``limit``, before each of ``size`` successive heads."""
    words = rng.integers(0, 2**64, size, dtype=np.uint64)
    scale = -math.log1p(-rate)
    slack = SLACK / scale
    with np.errstate(divide="ignore", over="ignore"):
        tails = words * 2.0**-64
        np.log(tails, out=tails)
        np.divide(tails, -scale, out=tails)
    # + 0.5: clear of the whole numbers, so never doubtful
    np.minimum(tails, limit + 0.5, out=tails)
    whole = tails.astype(np.int64)
    np.subtract(tails, whole, out=tails)
    if words.min() < LEAST or tails.min() < slack or tails.max() > 1 - slack:
        doubtful = (words < LEAST) | (tails < slack) | (tails > 1 - slack)
        for i in np.flatnonzero(doubtful):
            whole[i] = exact_tails_before_head(rng, int(words[i]), rate, limit)
    return whole


def exact_tails_before_head(rng: np.random.Generator, word: int, rate: float, limit: int) -> int:
    """floor(ln U / ln(1-rate)), at most ``limit``, for a uniform U whose first bits are ``word``.

    The value lies between those at the two ends of what U can be; further bits are drawn until
    these agree.
    """
    bits = 64
    while True:
        with decimal.localcontext() as context:
            # Both logarithms stay well inside the margin although they cancel, U near 1 and 1-rate
            # near 1.
            context.prec = 20 + bits - math.floor(math.log10(rate))
            step, unit = (1 - decimal.Decimal(rate)).ln(), decimal.Decimal(2) ** bits
            margin = 1 + decimal.Decimal(10) ** (-bits // 2)
            low = min(limit, int(((word + 1) / unit).ln() / step / margin))
            high = min(limit, int((word / unit).ln() / step * margin)) if word else limit
        if low == high:
            return low
        word = word << 64 | int(rng.integers(0, 2**64, dtype=np.uint64))
        bits += 64
