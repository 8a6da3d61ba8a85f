"""Random participation of a federated client: the dominating pair of a round, and attacks on it.

The published theorem ("privacy amplification via random participation in federated learning",
theorem 4.1) puts all of the client's records on one line inside mixtures on both sides, which is
not the worst case: the record then hides among the others. What holds is proved in
docs/random-participation.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import ulps
from verax.privacy.pairs.discrete import DiscretePair
from verax.privacy.pairs.gaussian_mixture import log_interval
from verax.privacy.pairs.hidden_participation import HiddenParticipationPair
from verax.privacy.pairs.rounds import PricedRound

if TYPE_CHECKING:
    from verax.privacy.pairs.public_coin import PublicCoinPair

LARGEST_UNIT = 6.0  # with less noise a record alone shows as well as any

_MOST_KINDS = 96  # numbers of other records told apart; more are raised to the next that is
_TAILS = 1e-30  # above the weight of a Binomial's tails that are cut
_FAR = 12.0  # distance from which being away or not is as good as known: e^(-72) of a difference
# of an attack: bins along and across, and losses told apart per e-fold
_COLUMNS, _BIN, _FINE = 100, 0.1, 200.0
_LEAST = 1e-250  # bins with less mass are left out, which only hides from the attacker


def other_records(records: int, rate: float) -> tuple[Array, Array, float]:
    """Numbers of other records used, their chances, and the relative error of those.

    Tails of at most ``_TAILS`` are left out.

    The window is by Bernstein's inequality: at t = 12 sd + 50 the exponent t^2 / (2 var + 2t/3) is
    at least 70.
    """
    mean, spread = records * rate, math.sqrt(records * rate * (1.0 - rate))
    first = max(int(mean - 12.0 * spread - 50.0), 0)
    last = min(int(mean + 12.0 * spread + 50.0) + 1, records)
    number = np.arange(first, last + 1, dtype=np.float64)
    if rate >= 1.0:
        return np.array([float(records)]), np.ones(1), 0.0
    ratios = (records + 1.0 - number[1:]) / number[1:] * (rate / (1.0 - rate))
    mode = min(max(int((records + 1) * rate) - first, 0), len(ratios))
    left, right = np.cumprod(1.0 / ratios[:mode][::-1])[::-1], np.cumprod(ratios[mode:])
    chances = np.concatenate([left, [1.0], right])
    chances /= math.fsum(chances.tolist())
    # five roundings a step away from the mode
    return number, chances, ulps(16.0 + 8.0 * len(number))


@lru_cache(maxsize=64)
def participation_pair(
    client_rate: float, record_rate: float, records: int, unit: float, revealed: bool
) -> HiddenParticipationPair:
    """The pair that dominates a round under individual clipping.

    A record moves the sum by at most ``unit`` standard deviations of the noise.

    Given i other records the distances are ``unit``, i + 1 and i of them
    (docs/random-participation.md, theorem 2). The curve rises in i, so a number may be raised to a
    larger one, and beyond ``_FAR`` to infinity.
    """
    if revealed:
        return HiddenParticipationPair(
            client_rate, record_rate, (1.0,), (unit,), (math.inf,), (math.inf,)
        )
    number, chances, error = other_records(records, record_rate)
    known = number * unit > _FAR + math.sqrt(2.0 * abs(math.log(client_rate)))
    lot = np.minimum(np.cumsum(~known), np.count_nonzero(~known))
    size = -(-int(lot[-1]) // _MOST_KINDS) if lot[-1] else 1
    lots = np.where(known, int(lot[-1]) // size + 1, (lot - 1) // size).astype(np.int64)
    weights = np.bincount(lots, weights=chances)
    most = np.zeros(len(weights))
    np.maximum.at(most, lots, np.where(known, np.inf, number))
    kept = weights > 0.0
    weights, far = np.append(weights[kept], _TAILS), np.append(most[kept], np.inf)
    kinds = len(weights)
    return HiddenParticipationPair(
        client_rate,
        record_rate,
        tuple(weights.tolist()),
        (unit,) * kinds,
        tuple(((far + 1.0) * unit).tolist()),
        tuple((far * unit).tolist()),
        error,
    )


def clipped_sum_participation_pair(
    client_rate: float, record_rate: float, unit: float, revealed: bool
) -> HiddenParticipationPair:
    """The same for clipped aggregates: any two of the three sums are ``unit`` apart at most."""
    far = (math.inf if revealed else unit,)
    return HiddenParticipationPair(client_rate, record_rate, (1.0,), (unit,), far, far)


def both_directions(
    pair: HiddenParticipationPair, count: int
) -> dict[str, list[tuple[PricedRound, int]]]:
    """``count`` rounds, in both directions."""
    return {
        name: [(PricedRound(cast("PublicCoinPair", pmf)), count)]
        for name, pmf in (("remove", pair), ("add", pair.reverse()))
    }


def attack_cosines(used: float) -> tuple[float, ...]:
    """Cosines of the attacks worth a try, the best first.

    ``used`` is how many other records are used on average.

    Few others: the record may stand for the client. Many: it must not hide among them.
    """
    return (0.0,) if used > 20.0 else (0.0, 0.4) if used > 2.0 else (0.4, 1.0)


@lru_cache(maxsize=64)
def angled_attack(
    client_rate: float, record_rate: float, records: int, unit: float, lean: float
) -> DiscretePair:
    """What an attacker sees of a round in bins, the record's gradient at an angle to the others'.

    The others' gradients are all alike.

    ``lean`` is the cosine of the angle; 0 is the orthogonal construction, 1 what the paper takes
    for the worst case. Along the others' direction the attacker learns whether the client took
    part, across it whether the record did.
    """
    number, chances, error = other_records(records, record_rate)
    along, across = lean * unit, math.sqrt(1.0 - lean * lean) * unit
    last = min(float(number[-1]) * unit, _FAR + math.sqrt(2.0 * abs(math.log(client_rate))))
    bins = (
        (_COLUMNS, np.arange(-12.0, 12.0 + across, _BIN))
        if across > 0.0
        else (4 * _COLUMNS, np.empty(0))
    )
    x = np.concatenate([[-np.inf], np.linspace(-6.0, last + 6.0, bins[0]), [np.inf]])
    y = np.concatenate([[-np.inf], bins[1], [np.inf]])
    places = (number * unit)[:, None]
    (silent, e1), (still, e2), (shifted, e3) = (
        _bin_masses(x),
        _bin_masses(y),
        _bin_masses(y - across),
    )
    (used, e4), (moved, e5) = (_bin_masses(x - places - more) for more in (0.0, along))
    used, moved = chances @ used, chances @ moved
    here, away = client_rate, 1.0 - client_rate
    q = np.multiply.outer(away * silent + here * used, still).ravel()
    p = np.multiply.outer(away * silent + here * (1.0 - record_rate) * used, still).ravel()
    p += here * record_rate * np.multiply.outer(moved, shifted).ravel()
    return _merge_close_losses(p, q, e2 + e3 + max(e1, e4, e5) + error + ulps(64.0 + len(number)))


def _bin_masses(ends: Array) -> tuple[Array, float]:
    """Masses of N(0, 1) between these ends and the largest relative error of those that count."""
    log_mass, error = log_interval(ends)
    return np.exp(log_mass), float(error[log_mass > math.log(_LEAST)].max(initial=0.0))


def _merge_close_losses(p: Array, q: Array, error: float) -> DiscretePair:
    """Bins of nearly the same loss put together, finely where losses are of their usual size."""
    kept = (p > _LEAST) & (q > _LEAST)
    p, q = p[kept], q[kept]
    loss = np.log(p) - np.log(q)
    scale = math.sqrt(float(p @ loss**2) / float(p.sum())) + 1e-12
    place = np.floor(_FINE * np.arcsinh(loss / scale))
    lot = (place - place.min()).astype(np.int64)
    many = ulps(float(np.bincount(lot).max()))
    p, q = (np.bincount(lot, weights=mass).astype(np.float64) for mass in (p, q))
    return DiscretePair.from_masses(p[q > 0.0], q[q > 0.0], error=error + many)
