"""From a mechanism to certified upper bounds on its Rényi log-moments, direction by direction.

The log-moment of order alpha = 1 + s is s D_alpha = log E_P[exp(s Z)] with Z the privacy loss. It
is read off the dominating rounds of ``verax.privacy.samplers``, so what is spent here is what is
priced there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from verax.checks import NoGuarantee
from verax.mechanism import Mechanism
from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect
from verax.privacy.numerics.rounding import MOMENT_LOG, ulps, up
from verax.privacy.pairs.gaussian_mixture import Mixture, MixturePair
from verax.privacy.pairs.public_coin import PublicCoinPair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.renyi.accountant import log_moment
from verax.privacy.samplers.base import OneRecordOnly, ProtectedGroup, analysis_of

DIRECTIONS = ("remove", "add")


def log_moments(mechanism: Mechanism, orders: Array, group: int = 1) -> Mapping[str, Array]:
    """Upper bounds on the mechanism's log-moments at ``orders``, the group removed and added.

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> {name: f"{bound[0]:.4f}" for name, bound in log_moments(run, np.array([2.0])).items()}
    {'remove': '0.1718', 'add': '0.1602'}
    """
    if mechanism.noise_multiplier == 0.0:
        return dict.fromkeys(DIRECTIONS, np.full(orders.shape, np.inf))
    try:
        uppers = analysis_of(mechanism, ProtectedGroup(group)).uppers
    except OneRecordOnly as limit:
        raise _unknown_moments_error(
            mechanism, f"a group of {group} under relation={mechanism.relation!r}"
        ) from limit
    found = {}
    for name in DIRECTIONS:
        rounds = uppers[name] if name in uppers else next(iter(uppers.values()))
        total = np.zeros(orders.shape)
        for rnd, count in rounds:
            total += count * _round_moments(mechanism, rnd, orders)
        found[name] = up(total, ulps(4.0, of=len(rounds) + 1.0))
    return found


def _round_moments(mechanism: Mechanism, rnd: PricedRound, orders: Array) -> Array:
    if isinstance(rnd.pair, PublicCoinPair):  # a public coin picks the pair: moments average
        return _average_moments(
            rnd.pair.chances, [_pair_moments(mechanism, pair, orders) for pair in rnd.pair.pairs]
        )
    if not isinstance(rnd.pair, MixturePair):
        raise _unknown_moments_error(mechanism, type(mechanism.sampler).__name__)
    # the larger of two curves: docs/budget.md, section 4
    if rnd.symmetric and not rnd.pair.is_gaussian:
        return _average_moments(
            (1.0, 1.0),
            [_pair_moments(mechanism, pair, orders) for pair in (rnd.pair, rnd.pair.reverse())],
        )
    return _pair_moments(mechanism, rnd.pair, orders)


def _average_moments(weights: Sequence[float], logs: Sequence[Array]) -> Array:
    """log(1 + sum_i w_i (exp(k_i) - 1)), rounded up; also where the exponentials overflow."""
    values, w = np.array(logs), np.array(weights)[:, None]
    top = values.max(axis=0)
    small = np.log1p((w * np.expm1(np.minimum(values, 1.0))).sum(axis=0))
    large = top + np.log((w * np.exp(values - top)).sum(axis=0))  # leaves out 1 - sum_i w_i <= 0
    return np.asarray(up(np.where(top <= 1.0, small, large), ulps(32.0)) + 1e-300)


def _pair_moments(mechanism: Mechanism, pair: MixturePair, orders: Array) -> Array:
    """One side must be N(0, 1): that is what ``verax.privacy.renyi.accountant`` integrates."""
    if pair.is_gaussian:
        return np.asarray(up(orders * (orders - 1.0) * (pair.gaussian_shift**2 / 2.0), ulps(8.0)))
    if pair.down.trivial:
        return _mixture_moments(mechanism, pair.up, orders, "remove")
    if pair.up.trivial:
        return _mixture_moments(mechanism, pair.down, orders, "add")
    raise _unknown_moments_error(
        mechanism,
        f"relation={mechanism.relation!r} with {type(mechanism.clipping).__name__} clipping",
    )


def _mixture_moments(mechanism: Mechanism, side: Mixture, orders: Array, direction: str) -> Array:
    if side.lost > 0.0:
        raise _unknown_moments_error(
            mechanism, f"a group whose mixture has more than {len(side.shifts)} components"
        )
    bound = log_moment(side.weights.tolist(), side.shifts, orders, direction)[1]
    # weights off by a factor of 1 + error: its power
    return np.asarray(bound + 2.0 * orders * side.error)


def _unknown_moments_error(mechanism: Mechanism, what: str) -> NoGuarantee:
    return NoGuarantee(
        f"no certified Rényi moments are known for {what}, so an adaptive budget "
        f"cannot price {mechanism!r}; use "
        "Poisson, WithoutReplacement, TruncatedPoisson, Shuffle or Deterministic "
        "batches of one record's relation"
    )


def log_delta_bound(s: Array, logs: Array, epsilon: float) -> float:
    """An upper bound on the log delta that weighted log-moments prove at ``epsilon``.

    It bounds the largest log(1 - exp(epsilon - z)) - log(sum_k exp(logs[k] + s[k] z)) over z >
    epsilon.

    With logs = log weights - log-moments this is the log of the delta that docs/budget.md, theorem
    1, proves. In u = z - epsilon it is concave, so a tangent left of the top, followed to a point
    right of it, bounds it.

    >>> s, moment = np.array([9.0]), np.array([0.9])  # one order: the known conversion
    >>> from verax.privacy.renyi.accountant import delta_from_rdp
    >>> abs(log_delta_bound(s, -moment, 1.0) - math.log(delta_from_rdp([10.0], [0.1], 1.0))) < 1e-6
    True
    """
    if not np.isfinite(logs).any():
        return 0.0

    def value_and_slope(u: float) -> tuple[float, float]:
        terms = logs + s * (epsilon + u)
        top = float(terms.max())
        shares = np.exp(terms - top)
        total = float(shares.sum())
        return math.log(-math.expm1(-u)) - top - math.log(total), 1.0 / math.expm1(u) - float(
            s @ shares
        ) / total

    left, right = 1e-9, 700.0
    if value_and_slope(left)[1] <= 0.0 or value_and_slope(right)[1] >= 0.0:
        return 0.0
    left, right = bisect(
        lambda u: value_and_slope(u)[1] > 0.0, left, right, rtol=1e-7, geometric=True
    )
    value, slope = value_and_slope(left)
    bound = value + slope * (right - left)
    return min(
        0.0, bound + MOMENT_LOG * (1.0 + abs(bound) + float(np.abs(logs[np.isfinite(logs)]).max()))
    )
