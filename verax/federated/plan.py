"""What a federation runs, in public numbers that clients, server and accountant share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from verax import checks
from verax.mechanism import UNITS, Batch, Individual, Mechanism, Phases
from verax.privacy.guarantee import Guarantee
from verax.samplers import BallsInBins, Poisson, RandomParticipation
from verax.samplers.base import store_fields

NOISES = ("central", "local", "visible")
LEAST_RATE = 2.0**-70  # of which a coin of 128 bits has the exact law
# a standard Gaussian vector is longer than sqrt(dimension) + sqrt(2 _FAR) with a chance of at most
# e^-_FAR
_FAR = 27.7


@dataclass(frozen=True)
class Plan:
    """One federated run of DP-SGD. All of it is public; data and randomness are not in it.

    In every round each client takes part with ``client_rate`` and then uses each of its records
    with ``record_rate``, by coins of its own. Updates are divided by the expected amount of work,
    never by what happened.

    Args:
        clients: number of clients.
        records: number of records of all clients together, by which updates are scaled.
        largest: the most records that any one client holds. A client's guarantee gets worse with
            it.
        client_rate: probability that a client takes part in a round; if clients differ, the largest
            of all.
        record_rate: probability that a client that takes part uses a given record; if clients
            differ, the largest.
        rounds: number of rounds.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        clip_norm: what gradients are clipped to: each record's, or with ``unit="client"`` a
            client's aggregate.
        unit: who is protected: one "record" of a client, or a whole "client".
        noise: who adds it. "central": the server, which is trusted; a client that stays away sends
            nothing. "local": every client, so that no party need be trusted; a client that stays
            away sends noise alone. "visible": every client, but one that stays away sends nothing,
            which all parties may see.
        bins: instead of tossing a coin every round, each client takes part in one round out of
            every ``bins``, chosen at random; for ``unit="client"``, and ``client_rate`` must be 1 /
            bins.

    >>> numbers = dict(
    ...     clients=1000, records=30_000, largest=30, client_rate=0.01, record_rate=0.1, rounds=100
    ... )
    >>> plan = Plan(**numbers, noise_multiplier=1.0)
    >>> plan.expected
    30.0
    >>> plan.guarantee().epsilon(delta=1e-5).upper < 5
    True
    """

    clients: int
    records: int
    largest: int
    client_rate: float
    record_rate: float
    rounds: int
    noise_multiplier: float
    clip_norm: float = 1.0
    unit: str = "record"
    noise: str = "central"
    bins: int | None = None

    def __post_init__(self) -> None:
        store_fields(
            self,
            clients=checks.count("clients", self.clients, maximum=2**32),
            records=checks.count("records", self.records),
            largest=checks.count("largest", self.largest, maximum=2**31),
            client_rate=_drawable("client_rate", self.client_rate),
            record_rate=_drawable("record_rate", self.record_rate),
            rounds=checks.count("rounds", self.rounds),
            noise_multiplier=checks.nonnegative("noise_multiplier", self.noise_multiplier),
            clip_norm=checks.positive("clip_norm", self.clip_norm),
            unit=checks.choice("unit", self.unit, UNITS),
            noise=checks.choice("noise", self.noise, NOISES),
        )
        if self.bins is not None:
            self._check_bins(checks.count("bins", self.bins))

    def _check_bins(self, bins: int) -> None:
        if self.unit != "client" or self.noise == "visible":
            raise checks.NoGuarantee(
                f"bins is for unit='client' with central or local noise, "
                f"got unit={self.unit!r} and noise={self.noise!r}: "
                "no analysis of records of clients that pick rounds is known; leave bins out"
            )
        if self.client_rate != 1.0 / bins:
            raise ValueError(
                f"client_rate must be 1 / bins = {1.0 / bins!r}, got {self.client_rate!r}"
            )
        if self.rounds % bins:
            raise ValueError(f"rounds must be a multiple of bins, {bins}, got {self.rounds!r}")

    @property
    def expected(self) -> float:
        """Divisor of a round's noisy sum: expected records, or clients if these are the unit."""
        if self.unit == "client":
            return self.client_rate * self.clients
        return self.client_rate * self.record_rate * self.records

    @property
    def clipping(self) -> Individual | Batch:
        """What is clipped, in a client."""
        return Batch(self.clip_norm) if self.unit == "client" else Individual(self.clip_norm)

    @property
    def sigma(self) -> float:
        """Noise standard deviation per coordinate, of the server or of each client."""
        return self.noise_multiplier * self.clip_norm

    def longest(self, dimension: int) -> float:
        """Largest norm of an honest message (with local noise: except with chance 1e-12)."""
        norm = self.clip_norm * (1 if self.unit == "client" else self.largest)
        if self.noise != "central":
            norm += self.sigma * (math.sqrt(dimension) + math.sqrt(2.0 * _FAR))
        return norm * (1.0 + 1e-5)  # single precision

    def mechanism(self, records: int | None = None, unit: str | None = None) -> Mechanism:
        """What one client with at most ``records`` other records runs, as the accountant prices it.

        Args:
            records: by default ``largest``, which covers every client, also if one of its records
                is added.
            unit: who is protected; by default the plan's unit. Of a plan for clients, single
                records can be priced too.
        """
        others = self.largest if records is None else checks.count("records", records, minimum=0)
        visible = self.noise == "visible"
        who = self.unit if unit is None else checks.choice("unit", unit, UNITS)
        if who == "record":
            # one record changes what its client sends, in the same rounds
            if self.bins is not None:
                return Mechanism(
                    self._picked(self.bins),
                    self.noise_multiplier,
                    Individual(self.clip_norm),
                    "replace",
                )
            sampler = RandomParticipation(
                self.client_rate, self.record_rate, others, self.rounds, revealed=visible
            )
            return Mechanism(sampler, self.noise_multiplier, self.clipping)
        if self.unit == "record":
            raise checks.NoGuarantee(
                "unit must be 'record' for a plan that clips records: "
                "a client's sum is not clipped; plan with "
                "unit='client' to protect clients"
            )
        # Whoever receives messages from every client knows who the clients are: their data are
        # protected.
        relation = "add-remove" if self.noise == "central" else "zero-out"
        kind: Any = Poisson(self.client_rate, self.rounds)
        if self.bins is not None:
            kind = self._picked(self.bins)
        elif visible:
            kind = RandomParticipation(self.client_rate, 1.0, 0, self.rounds, revealed=True)
        return Mechanism(kind, self.noise_multiplier, Individual(self.clip_norm), relation)

    def phases(
        self,
        records: int,
        record_rates: Sequence[float],
        client_rates: Sequence[float] | None = None,
    ) -> Phases:
        """The same with rates for every round, all declared in advance."""
        client_rates = [self.client_rate] * self.rounds if client_rates is None else client_rates
        for name, rates in (("record_rates", record_rates), ("client_rates", client_rates)):
            if len(rates) != self.rounds:
                raise ValueError(
                    f"{name} must have one rate for each of the {self.rounds} rounds, "
                    f"got {len(rates)}"
                )
        found = []
        for (p, q), same in groupby(zip(client_rates, record_rates, strict=True)):
            found.append(
                replace(self, client_rate=p, record_rate=q, rounds=len(list(same))).mechanism(
                    records
                )
            )
        return Phases(tuple(found))

    def _picked(self, bins: int) -> BallsInBins:
        return BallsInBins(bins, self.rounds // bins)

    def guarantee(self, records: int | None = None, unit: str | None = None) -> Guarantee:
        """The proved privacy of one client's records, or of a client; see :meth:`mechanism`."""
        found = self.mechanism(records, unit).guarantee()
        assuming = "; ".join([found.assuming] * bool(found.assuming) + [self.assumed])
        return replace(found, assuming=assuming, unit=self.unit if unit is None else unit)

    @property
    def assumed(self) -> str:
        """Who sees what, in words."""
        people = "that the number of clients and of records is public"
        match self.noise:
            case "central":
                seen = "that the server is trusted and nobody else sees who takes part"
            case "local":
                seen = "that nobody but the client sees whether its message holds more than noise"
            case _:
                seen = "nothing about the server, which may see who takes part"
        return f"{seen}, and {people}"


def _drawable(name: str, value: Any) -> float:
    """A rate of which a coin of 128 bits has the exact law."""
    rate = checks.rate(name, value)
    if rate < LEAST_RATE:
        raise ValueError(f"{name} must be at least 2^-70, got {value!r}")
    return rate
