"""The largest of many batch sums: the attack that prices shuffling from below."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import LARGEST_SUM_MASS, ulps
from verax.privacy.pairs.discrete import DiscretePair

_STEP = 0.004  # width of the attacker's bins, in standard deviations of the noise
# log of the probability of a bin, with the record or without it, below which it is not looked at
_LEAST = -600.0
_FAINT = 1e-250  # a tail below which doubles run out


@lru_cache(maxsize=256)
def largest_sum(batches: int, present: float, absent: float) -> DiscretePair:
    """The largest of ``batches`` noisy sums, one of them shifted, in bins: with the record and not.

    The shifted sum is hidden by the shuffle; it is shifted by ``present`` with the record and by
    ``absent`` without, in standard deviations of the noise ("how private is DP-SGD", theorem 4.2
    and after, uses one threshold; all of them together are an attacker who sees in which bin the
    largest sum falls). Being what an attacker computes, it may be composed over epochs.

    >>> test = largest_sum(10000, 2.0 / 0.4, 1.0 / 0.4)
    >>> bool(0.2259 < test.delta(4.0)[0] < 0.2438)
    True
    """
    beyond = 14.0 + math.sqrt(2.0 * math.log(batches))
    ends = [(-9.0, beyond), *((shift - 14.0, shift + beyond) for shift in (present, absent))]
    c = np.unique(
        np.concatenate(
            [_STEP * np.arange(math.floor(low / _STEP), high / _STEP) for low, high in ends]
        )
    )
    log_p, log_q = (_log_masses(c, shift, batches) for shift in (present, absent))
    seen = (np.minimum(log_p, log_q) > -np.inf) & (np.maximum(log_p, log_q) > _LEAST)
    largest = float(np.abs(np.append(log_p[seen], log_q[seen])).max(initial=0.0))
    return DiscretePair.from_log_masses(
        log_p[seen], log_q[seen], error=LARGEST_SUM_MASS + ulps(8.0, of=largest)
    )


def _log_masses(c: Array, shift: float, batches: int) -> Array:
    """Log mass of the largest sum between thresholds, from the tail that keeps more digits."""
    log_below = special.log_ndtr(c - shift) + (batches - 1) * special.log_ndtr(c)
    log_above = np.log(-np.expm1(np.minimum(log_below, -_FAINT)))
    tails = np.logaddexp(
        special.log_ndtr(shift - c), math.log(max(batches - 1, _FAINT)) + special.log_ndtr(-c)
    )
    # their union, but for what is far below any round-off
    log_above = np.where(log_below < -_FAINT, log_above, tails)
    low = log_below[1:] < math.log(0.5)
    near, far = (
        np.where(low, log_below[1:], log_above[:-1]),
        np.where(low, log_below[:-1], log_above[1:]),
    )
    share = -np.expm1(np.minimum(far - near, 0.0))
    return np.asarray(near + np.log(share, out=np.full(len(share), -np.inf), where=share > 0.0))
