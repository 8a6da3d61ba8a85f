"""Allowances for floating-point error in bounds, and why each is enough.

One operation of IEEE 754 errs by at most the unit round-off u = 2**-53, relative to its result. So
n of them err by (1 + u)^n - 1 <= n u (1 + n u). A sum of n terms of one sign errs by at most n u in
whatever order it is added. What is assumed of library functions, and what was measured, is in
docs/proofs.md, section 6. Counts of operations are rounded up by one or more at every call; that
pays for the factor 1 + n u as long as n^2 u < 1, up to n = 9e7.
"""

from __future__ import annotations

import math
from typing import TypeVar

from verax.privacy.numerics import Array

Value = TypeVar("Value", float, Array)
Size = TypeVar("Size", int, float, Array)

UNIT = 2.0**-53
"""Unit round-off of a double."""

# Relative allowances for a number of operations in round figures. 1e-15 is 9.007 u, so it covers
# eight operations with their second order; the others are powers of ten of it.
OPS_8 = 1e-15
# A few dozen operations and library functions of 4 u each.
OPS_80 = 1e-14
# A few hundred library functions of 16 u, or an expression in logarithms of up to some hundreds:
# exp(x) turns the rounding of x, u |x|, into a relative error of its result.
OPS_8000 = 1e-12
# Sums over a whole window, which has at most 2**23 = 8.4e6 points, or weights that are products of
# thousands of factors.
OPS_8M = 1e-9
# The same for products of 10**9 factors.
OPS_8G = 1e-6

# Units allowed for one erfcx, exp, log or ndtr near 0; measured within 8 (docs/proofs.md, 6).
LIBRARY_ULPS = 16.0
# The same for a product of two of them, such as a density times a Mills ratio.
PRODUCT_ULPS = 32.0
# Relative error of ndtr(x) for |x| <= 40: 4 (1 + x^2) u < 8e-13, and the rounding of x of size up
# to 40, which moves log ndtr by 40 times 40 u.
NORMAL_TAIL = 1e-10
# Relative error of ndtr(ndtri(a) - mu) for arguments within 40: 16 u from ndtri, which moves log
# ndtr by 40 times 40 * 16 u < 3e-12, and 8e-13 from ndtr.
NORMAL_TRADEOFF = 1e-11
# Relative error of a difference of two values of ndtri, as far as curves are fitted: 16 u each, of
# values up to 38 whose difference is at least 1e-5 of them.
NORMAL_QUANTILES = 1e-7
# Relative error of the mass of a bin 0.01 standard deviations wide: log_interval errs by
# LIBRARY_ULPS + 2 (x + 1)^2 units over the share of its tail that the bin holds,
# for |x| <= 38 less than 4e-13
# over at least 0.01.
BIN_MASS = 1e-10
# Relative error of the mass of the largest of many sums in a bin 0.004 wide: 1e-11, as log_ndtr
# errs by 8 (1 + x^2) u where it counts, |x| <= 14, over the share of the tail that the bin holds.
LARGEST_SUM_MASS = 1e-9
# Error of the logarithm of a moment bound, relative to the largest logarithm in it: a few dozen
# library functions of 4 u.
MOMENT_LOG = 1e-10
# What underflow may lose where a sum of products of probabilities is added up.
UNDERFLOW = 1e-290


def ulps(count: Size, of: float | Array = 1.0) -> Size:
    """``count`` units of round-off of a number of size ``of``."""
    return UNIT * count * of  # type: ignore[return-value]


def up(value: Value, slack: float) -> Value:
    """A positive value raised by a relative slack."""
    return value * (1.0 + slack)


def down(value: Value, slack: float) -> Value:
    """A positive value lowered by a relative slack."""
    return value * (1.0 - slack)


def outward(value: Value, side: int, slack: float) -> Value:
    """A positive value raised (``side`` 1) or lowered (-1) by a relative slack."""
    return value * (1.0 + side * slack)


def transform_error(points: int) -> float:
    """Error of each frequency of a Fourier transform of a vector whose moduli sum to 1.

    Every output is a sum along a tree of depth log2(points); a complex product and sum are charged
    8 u a level (docs/proofs.md, section 3; measured 0.31 u).
    """
    return ulps(8.0, of=math.log2(points))


def mixture_weight_error(kept: int, trials: int) -> float:
    """Relative error of the probabilities of a count that are worth keeping.

    A product of ratios away from the mode, or a recursion over the trials: eight roundings a step,
    one step for each kept weight (with room: 200) or trial, and a sum over all trials.
    """
    return ulps(2000.0 + 200.0 * kept + 8.0 * trials)


def occupancy_error(population: int) -> float:
    """Relative error of the probabilities of the number of clip-groups with a record.

    A recursion of at most 50 steps a record with five roundings each, on binomial or hypergeometric
    weights of 8 u (2 n + 2).
    """
    return ulps(4000.0 + 250.0 * population)
