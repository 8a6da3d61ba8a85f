"""Random participation of a federated client: the dominating pair of a round, attacks on it, and who sees what.

The published theorem ("privacy amplification via random participation in federated learning",
theorem 4.1) puts all of the client's records on one line inside mixtures on both sides, which is
not the worst case: the record then hides among the others. What holds is proved in
docs/random-participation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from verax import checks
from verax.mechanism import Mechanism
from verax.privacy.numerics.rounding import ulps
from verax.privacy.pairs.discrete import Table
from verax.privacy.pairs.gaussian_mixture import Array, log_interval
from verax.privacy.pairs.hidden_participation import Glued
from verax.privacy.pld.composition import BOTH, LOWER, Composition, Round, Sides
from verax.samplers import BallsInBins, Deterministic, Poisson, RandomParticipation, Sampler

if TYPE_CHECKING:
    from verax.privacy.guarantee import Guarantee
    from verax.privacy.pairs.public_coin import Revealed
    from verax.reporting.statement import Statement

OBSERVERS = ("public", "client", "network", "server")
BASELINES = ("CS", "WCS", "OLS")
LARGEST_UNIT = 6.0  # with less noise a record alone shows as well as any

_MOST_KINDS = 96  # numbers of other records told apart; more are raised to the next that is
_TAILS = 1e-30  # above the weight of a Binomial's tails that are cut
_FAR = 12.0  # distance from which being away or not is as good as known: e^(-72) of a difference
# of an attack: bins along and across, and losses told apart per e-fold
_COLUMNS, _BIN, _FINE = 100, 0.1, 200.0
_ROUGH = 1e-2  # accuracy of an attack's curve: attacks do not reach the upper bound anyway
_FINER = (0.1, 0.02)  # shares of it that are tried until the curve stays
_STAYS = 0.02
_LEAST = 1e-250  # bins with less mass are left out, which only hides from the attacker


def other_records(records: int, rate: float) -> tuple[Array, Array, float]:
    """Numbers of other records used and their chances, but for tails of at most ``_TAILS``, and a relative error.

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
def participating(
    client_rate: float, record_rate: float, records: int, unit: float, revealed: bool
) -> Glued:
    """The pair that dominates a round, individual clipping, a record moving the sum by ``unit`` noises at most.

    Given i other records the distances are ``unit``, i + 1 and i of them
    (docs/random-participation.md, theorem 2). The curve rises in i, so a number may be raised to a
    larger one, and beyond ``_FAR`` to infinity.
    """
    if revealed:
        return Glued(client_rate, record_rate, (1.0,), (unit,), (math.inf,), (math.inf,))
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
    return Glued(
        client_rate,
        record_rate,
        tuple(weights.tolist()),
        (unit,) * kinds,
        tuple(((far + 1.0) * unit).tolist()),
        tuple((far * unit).tolist()),
        error,
    )


def silent(client_rate: float, record_rate: float, unit: float, revealed: bool) -> Glued:
    """The same for clipped aggregates: any two of the three sums are ``unit`` apart at most."""
    far = (math.inf if revealed else unit,)
    return Glued(client_rate, record_rate, (1.0,), (unit,), far, far)


def both_ways(pair: Glued, count: int) -> dict[str, list[tuple[Round, int]]]:
    """So many rounds in either direction."""
    return {
        name: [(Round(cast("Revealed", law)), count)]
        for name, law in (("remove", pair), ("add", pair.reverse()))
    }


def leans(used: float) -> tuple[float, ...]:
    """Cosines of the attacks worth a try, the best first, if so many other records are used on average.

    Few others: the record may stand for the client. Many: it must not hide among them.
    """
    return (0.0,) if used > 20.0 else (0.0, 0.4) if used > 2.0 else (0.4, 1.0)


@lru_cache(maxsize=64)
def leaning(
    client_rate: float, record_rate: float, records: int, unit: float, lean: float
) -> Table:
    """What an attacker sees of a round in bins: the others' gradients all alike, the record's at an angle to them.

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
    (silent, e1), (still, e2), (shifted, e3) = _seen(x), _seen(y), _seen(y - across)
    (used, e4), (moved, e5) = (_seen(x - places - more) for more in (0.0, along))
    used, moved = chances @ used, chances @ moved
    here, away = client_rate, 1.0 - client_rate
    q = np.multiply.outer(away * silent + here * used, still).ravel()
    p = np.multiply.outer(away * silent + here * (1.0 - record_rate) * used, still).ravel()
    p += here * record_rate * np.multiply.outer(moved, shifted).ravel()
    return _merged(p, q, e2 + e3 + max(e1, e4, e5) + error + ulps(64.0 + len(number)))


def _seen(ends: Array) -> tuple[Array, float]:
    """Masses of N(0, 1) between these ends and the largest relative error of those that count."""
    log_mass, error = log_interval(ends)
    return np.exp(log_mass), float(error[log_mass > math.log(_LEAST)].max(initial=0.0))


def _merged(p: Array, q: Array, error: float) -> Table:
    """Bins of nearly the same loss put together, finely where losses are of their usual size."""
    kept = (p > _LEAST) & (q > _LEAST)
    p, q = p[kept], q[kept]
    loss = np.log(p) - np.log(q)
    scale = math.sqrt(float(p @ loss**2) / float(p.sum())) + 1e-12
    place = np.floor(_FINE * np.arcsinh(loss / scale))
    lot = (place - place.min()).astype(np.int64)
    many = ulps(float(np.bincount(lot).max()))
    p, q = (np.bincount(lot, weights=mass).astype(np.float64) for mass in (p, q))
    return Table.of(p[q > 0.0], q[q > 0.0], error=error + many)


class Sure(Composition):
    """An attack whose law has heavy atoms, which coarse grids may tell badly: its lower bound is refined till it stays.

    Any of them is valid.
    """

    def epsilon(
        self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0
    ) -> tuple[float, float]:
        """Lower and upper bound on epsilon(delta)."""
        if sides != (LOWER,):
            return super().epsilon(delta, rtol, sides, enough)
        return _steady(lambda finer: super(Sure, self).epsilon(delta, finer, sides, enough), rtol)

    def delta(
        self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0
    ) -> tuple[float, float]:
        """Lower and upper bound on delta(epsilon)."""
        if sides != (LOWER,):
            return super().delta(epsilon, rtol, sides, enough)
        return _steady(lambda finer: super(Sure, self).delta(epsilon, finer, sides, enough), rtol)


def _steady(bounds: Callable[[float], tuple[float, float]], rtol: float) -> tuple[float, float]:
    best = bounds(max(rtol, _ROUGH))
    for finer in _FINER:
        found = bounds(max(rtol, _ROUGH) * finer)
        steady = best[0] > 0.0 and found[0] <= best[0] * (1.0 + _STAYS)
        best = max(best, found)
        if steady:
            break
    return best


def baseline(name: str, sampler: RandomParticipation, noise_multiplier: float) -> Mechanism:
    """A run that random participation is compared with; always CS <= random participation <= WCS <= OLS.

    "CS" (centralized shuffling): every record by its own coin of probability client_rate *
    record_rate, what it would be if the records were dealt out anew each round. "WCS" (weak client
    sampling): the same run, its participation known. "OLS" (only local sampling): the client always
    takes part.

    >>> sampler = RandomParticipation(client_rate=0.1, record_rate=0.1, records=100, rounds=1)
    >>> [round(float(baseline(name, sampler, 1.0).guarantee().delta(0.1)), 6) for name in BASELINES]
    [7.3e-05, 0.001847, 0.018472]
    """
    p, q, rounds = sampler.client_rate, sampler.record_rate, sampler.rounds
    match checks.choice("baseline", name, BASELINES):
        case "CS":
            return Mechanism(Poisson(p * q, rounds), noise_multiplier)
        case "WCS":
            return Mechanism(
                RandomParticipation(p, q, sampler.records, rounds, revealed=True), noise_multiplier
            )
    return Mechanism(Poisson(q, rounds), noise_multiplier)


@dataclass(frozen=True)
class Protection:
    """What one kind of observer can learn: the run as that observer sees it, and in words who is protected how."""

    observer: str
    mechanism: Mechanism
    words: str
    unit: str = "record"

    def guarantee(self) -> Guarantee:
        """The privacy of the run in the eyes of the observer."""
        return replace(self.mechanism.guarantee(), unit=self.unit)

    def statement(self, delta: float) -> Statement:
        """The same with its numbers; also as JSON and as a page."""
        # reporting depends on this module, not the reverse
        from verax.reporting.statement import Statement

        return Statement.of(self.guarantee(), delta, context=self.words)


@dataclass(frozen=True)
class Federation:
    """Who adds how much noise to what; :meth:`against` prices the run for each kind of observer.

    With a :class:`RandomParticipation` the unit of protection is one record of the client, which
    clips the gradient of each record. With :class:`Poisson` or :class:`BallsInBins` it is the whole
    client, which clips the sum (or the update) that it sends; the sampler then says in which rounds
    it takes part.

    Args:
        sampler: how this client takes part.
        central_noise: noise multiplier of what the server adds to the sum of all messages.
        local_noise: noise multiplier of what every client adds to its own message.
        senders: how many clients, this one included, surely send honest noise of their own in every
            round.
        always_send: whether a client that stays away sends pure noise (or, without local noise, an
            encrypted zero), so that nobody sees its absence.
        colluding: how many of those senders a curious client may know the noise of, its own
            included.

    >>> one = RandomParticipation(client_rate=0.1, record_rate=0.1, records=100, rounds=10)
    >>> trusted = Federation(one, central_noise=1.0)
    >>> round(float(trusted.against("public").guarantee().epsilon(1e-5)), 2)
    1.76
    >>> float(trusted.against("server").guarantee().epsilon(1e-5))
    inf
    """

    sampler: RandomParticipation | Poisson | BallsInBins
    central_noise: float = 0.0
    local_noise: float = 0.0
    senders: int = 1
    always_send: bool = True
    colluding: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, RandomParticipation | Poisson | BallsInBins):
            raise ValueError(
                f"sampler must be RandomParticipation, Poisson or BallsInBins, got {self.sampler!r}"
            )
        checks.nonnegative("central_noise", self.central_noise)
        checks.nonnegative("local_noise", self.local_noise)
        checks.count("senders", self.senders)
        checks.count("colluding", self.colluding)

    @property
    def unit(self) -> str:
        """What is protected as a whole."""
        return "record" if isinstance(self.sampler, RandomParticipation) else "client"

    def against(self, observer: str) -> Protection:
        """The run as an observer sees it.

        "public" sees the models; a curious "client" sees them too and knows some of the noise; the
        "network" also sees who sends; the "server" sees every message by itself, so only the
        client's own noise counts.
        """
        match checks.choice("observer", observer, OBSERVERS):
            case "server":
                noise, seen = self.local_noise, not self.always_send
                sees = "the server, which reads this client's messages one by one"
            case "network":
                noise, seen = self._summed(self.senders), not self.always_send
                sees = "those who see the models and who sends in which round, but no message"
            case "client":
                noise, seen = self._summed(max(self.senders - self.colluding, 1)), self._telling
                sees = f"up to {self.colluding} of the other clients, who see the models and know their own noise"
            case _:
                noise, seen = self._summed(self.senders), self._telling
                sees = "those who see the models"
        if observer != "server" and self.central_noise > 0.0:
            sees += "; the server is trusted to add its noise"
        known = (
            "its participation is known to them"
            if seen
            else "they cannot tell whether it takes part"
        )
        who = (
            "Any one record of this client"
            if self.unit == "record"
            else "This client, with all its records,"
        )
        words = (
            f"{who} is protected from {sees}; {known}. Noise that protects: {noise:.6g} clip norms."
        )
        return Protection(
            observer, Mechanism(self._seen(seen), noise, relation="zero-out"), words, self.unit
        )

    @property
    def _telling(self) -> bool:
        """Whether the sum's variance may tell who took part: an absent client's noise is missing."""
        return self.local_noise > 0.0 and not self.always_send

    def _summed(self, senders: int) -> float:
        """Noise in the sum of all messages. If absent clients send nothing, only this client's own noise is sure."""
        return math.hypot(
            self.central_noise, self.local_noise * math.sqrt(senders if self.always_send else 1)
        )

    def _seen(self, known: bool) -> Sampler:
        """The sampler, or what is left of it where participation is known."""
        match self.sampler:
            case sampler if not known:
                return sampler
            case RandomParticipation() as sampler:
                return replace(sampler, revealed=True)
            case Poisson(rate=rate, steps=steps):
                return RandomParticipation(rate, 1.0, 0, steps, revealed=True)
            case BallsInBins(bins=bins, epochs=epochs):
                return Deterministic(bins, epochs)
