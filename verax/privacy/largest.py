"""What the largest of many batch sums tells about one record: the attack that prices shuffling from below."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from verax.privacy.pairs import Array
from verax.privacy.tables import Table

_STEP = 0.004  # width of the attacker's bins, in standard deviations of the noise
_ERROR = 1e-9  # relative allowance for the masses below: doubles give them to about 1e-11


@lru_cache(maxsize=256)
def largest_sum(batches: int, present: float, absent: float) -> Table:
    """The law of the largest of ``batches`` noisy sums, one of which is shifted, in bins: with the record and without.

    The shifted sum is hidden by the shuffle; it is shifted by ``present`` with the record and by ``absent`` without,
    in standard deviations of the noise ("how private is DP-SGD", theorem 4.2 and after, uses one threshold; all of
    them together are an attacker who sees in which bin the largest sum falls). Being what an attacker computes, it
    may be composed over epochs.

    >>> test = largest_sum(10000, 2.0 / 0.4, 1.0 / 0.4)
    >>> bool(0.2259 < test.delta(4.0)[0] < 0.2438)
    True
    """
    c = np.arange(-9.0, max(present, absent) + 14.0 + math.sqrt(2.0 * math.log(batches)), _STEP)
    p, q = (_masses(c, shift, batches) for shift in (present, absent))
    return Table.seen(p, q, error=_ERROR)


def _masses(c: Array, shift: float, batches: int) -> Array:
    """Mass of the largest sum between consecutive thresholds, from whichever tail keeps more digits."""
    log_below = special.log_ndtr(c - shift) + (batches - 1) * special.log_ndtr(c)
    below, above = np.diff(np.exp(log_below)), -np.diff(-np.expm1(log_below))
    return np.maximum(np.where(log_below[1:] < math.log(0.5), below, above), 0.0)
