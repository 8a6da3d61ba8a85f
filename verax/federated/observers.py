"""Who sees what of a federated run: the run as the public, clients, network and server see it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from verax import checks
from verax.mechanism import Mechanism
from verax.privacy.samplers.base import pricing_of
from verax.samplers import Poisson, RandomParticipation, Sampler

if TYPE_CHECKING:
    from verax.privacy.guarantee import Guarantee
    from verax.reporting.statement import Statement

OBSERVERS = ("public", "client", "network", "server")
BASELINES = ("CS", "WCS", "OLS")


def baseline(name: str, sampler: RandomParticipation, noise_multiplier: float) -> Mechanism:
    """A run that random participation is compared with.

    Always CS <= random participation <= WCS <= OLS.

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
    """What one kind of observer can learn, and in words who is protected how.

    ``mechanism`` is the run as that observer sees it.
    """

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

    sampler: Sampler
    central_noise: float = 0.0
    local_noise: float = 0.0
    senders: int = 1
    always_send: bool = True
    colluding: int = 1

    def __post_init__(self) -> None:
        if pricing_of(self.sampler).known_participation() is None:
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
                sees = (
                    f"up to {self.colluding} of the other clients, who see the models "
                    "and know their own noise"
                )
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
        visible = pricing_of(self.sampler).known_participation() if seen else None
        run = Mechanism(visible or self.sampler, noise, relation="zero-out")
        return Protection(observer, run, words, self.unit)

    @property
    def _telling(self) -> bool:
        """Whether the sum's variance may tell who took part: absent clients' noise is missing."""
        return self.local_noise > 0.0 and not self.always_send

    def _summed(self, senders: int) -> float:
        """Noise in the sum of all messages.

        If absent clients send nothing, only this client's own noise is sure.
        """
        return math.hypot(
            self.central_noise, self.local_noise * math.sqrt(senders if self.always_send else 1)
        )
