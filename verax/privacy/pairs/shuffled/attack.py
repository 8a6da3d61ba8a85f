"""Attacks on one epoch of shuffled batches: what everybody's answers can be made to show.

All others answer alike, with v, and the record with u. For an event A that does not depend on the
order of the rounds, P(A) - a Q(A) = E[X 1_A] for X the ratio of one round (docs/shuffle.md). Here A
says that a sum of lattice values, one for each round, is positive; its probability given one round
is that of a sum of the others, which is on the lattice, so nothing is lost to discretisation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8000, ulps
from verax.privacy.pairs.gaussian_mixture import log_interval
from verax.privacy.pairs.shuffled.ratios import Ratio
from verax.privacy.pairs.shuffled.sums import centring_tilt, exceeded_once
from verax.privacy.pld.convolve import TiltedPmf, convolve
from verax.privacy.pld.discretise import DiscretePld

_CELLS = 800  # of what an attacker sees of one round
_FAR = 9.0  # standard deviations beyond all centres at which they end
_STEPS = 20.0  # lattice points to a standard deviation of one round
_ALIAS = 1e-9
_MOST_POINTS = 2**20


def ratios(s: float, relation: str, clipped_alone: bool) -> tuple[tuple[Ratio, ...], ...]:
    """What one round shows if the others answer against the record, not at all, or with it."""
    absent = -s if relation == "replace" else 0.0
    if clipped_alone:
        answers = (-s, 0.0, s)
        forth = tuple(Ratio(s - v, absent - v) for v in answers)
        back = tuple(Ratio(absent - v, s - v) for v in answers)
        return forth, back
    # the record turns an aggregate around; whoever is displaced makes no difference
    return (Ratio(2.0 * s, 0.0),), (Ratio(0.0, 2.0 * s),)


def event(ratio: Ratio, log_a: float, batches: int) -> tuple[float, float] | None:
    """(Q(A), P(A)) for the event of about the largest P(A) - a Q(A), the one up, the other down.

    None where the sums cannot be had.
    """
    low, high = sorted((ratio.first, ratio.second))
    inner = np.linspace(min(low, 0.0) - _FAR, max(high, 0.0) + _FAR, _CELLS)
    ends = np.concatenate([[-np.inf], inner, [np.inf]])
    mass, mean, _ = ratio.in_cells(ends, log_a)
    mass /= mass.sum()
    values = mean / np.maximum(mass, 1e-300)
    values[[0, -1]] = values[[1, -2]]
    # values as large as the drift decide the sum
    drift = max(-batches * float(mass @ values), 0.0)
    cap = max(drift, exceeded_once(values, mass, batches), exceeded_once(-values, mass, batches))
    capped = np.clip(values, -cap, cap)
    deviation = math.sqrt(max(float(mass @ (capped - float(mass @ capped)) ** 2), 1e-290))
    reach = drift + 8.0 * deviation * math.sqrt(batches)
    step = deviation / _STEPS
    index = np.rint(np.clip(values, -reach, reach) / step).astype(np.int64)
    seen, unseen = (_probabilities(centre, ends) for centre in (ratio.first, ratio.second))
    # what rounding to the lattice adds up to is taken off again, about
    bias = float(mass @ (index * step - capped)) * batches / step
    limits = np.unique(np.rint(np.linspace(-1.0, 2.0, 31) * bias).astype(np.int64))
    if batches == 1:
        inside = (index > 0).astype(np.float64)
        return min(float(unseen @ inside) * (1.0 + OPS_8000), 1.0), float(seen @ inside) * (
            1.0 - OPS_8000
        )
    first = int(index.min())
    total = np.bincount(index - first, mass)
    some = np.flatnonzero(total)
    law = DiscretePld(first * step, step, some, np.log(total[some]), 0.0, 0.0)
    tilt = centring_tilt([(law, batches - 1)], 0.3 / (deviation * math.sqrt(batches)))
    try:
        sums = convolve([(law, batches - 1)], tilt, _ALIAS, _MOST_POINTS)
    except (FloatingPointError, MemoryError):
        return None
    edges = limits[:, None] - index
    # the masses of cells are off by less than this, once for each round
    below, above = _above(sums, tilt, edges, first * (batches - 1), OPS_8000 * batches)
    p = np.maximum(below @ seen * (1.0 - OPS_8000), 0.0)
    q = np.minimum(above @ unseen * (1.0 + OPS_8000), 1.0)
    best = int(np.argmax(p - math.exp(log_a) * q))
    return float(q[best]), float(p[best])


def _probabilities(centre: float, ends: Array) -> Array:
    """The probability of each cell for N(centre)."""
    return np.asarray(np.exp(log_interval(ends - centre)[0]))


def _above(
    sums: TiltedPmf, tilt: float, edges: NDArray[np.int64], origin: int, slack: float
) -> tuple[Array, Array]:
    """Lower and upper bounds on the probability that the sum exceeds each multiple of the step."""
    # exact places, in steps
    index = origin + sums.first + np.arange(len(sums.pmf))
    logs = sums.log_scale - tilt * sums.step * index
    weight = np.exp(np.minimum(logs, 600.0))
    law = np.maximum(sums.pmf, 0.0)
    low, high = np.maximum(law - sums.bin_error, 0.0), law + sums.bin_error
    tails = [np.append(np.cumsum((part * weight)[::-1])[::-1], 0.0) for part in (low, high)]
    place = np.clip(np.searchsorted(index, edges, side="right"), 0, len(index))
    # mass wrapped around, or outside the window, weighs at most as much as at the edge itself
    at_edge = np.exp(np.minimum(sums.log_scale - tilt * sums.step * edges, 600.0)) * _ALIAS
    off = slack + float(
        ulps(8.0 * len(index) + 16.0 * (abs(sums.log_scale) + float(np.abs(logs).max())))
    )
    lower = np.clip(tails[0][place] * (1.0 - off) - 2.0 * at_edge, 0.0, 1.0)
    upper = np.clip(tails[1][place] * (1.0 + off) + 2.0 * at_edge, 0.0, 1.0)
    return lower, upper
