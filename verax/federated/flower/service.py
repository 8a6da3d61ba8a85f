"""A client's own process: it answers what a ClientApp on its host passes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from verax import checks
from verax.federated.asynchronous import AsyncClient
from verax.federated.client import Client, Refused
from verax.federated.flower.pipe import END, listening, receive, send
from verax.federated.messages import BadMessage, Message, Model, Receipt, Update, unpack

_HEAD = 256  # bytes that a message may have besides its weights


class ClientService:
    """Answers the packed messages of a server for one client.

    Every model gets an answer of the same length, whether the client takes part or not: with
    central noise a client that stays away sends zeros, which change no sum. (With
    ``noise="visible"`` staying away may be seen, and is.) What is no message is ignored.

    Args:
        client: the client, which must live as long as the run.
        asynchronous: the same client in an :class:`verax.federated.AsyncClient`, for asynchronous
            rounds.
        pace: answers leave at whole multiples of this many seconds after the question came, however
            long the work took: that a client stays away does not show in its speed. Choose it
            longer than a round's work.
        ended: called with the last model when the server says that the run is over.
    """

    def __init__(
        self,
        client: Client,
        asynchronous: AsyncClient | None = None,
        *,
        pace: float = 1.0,
        ended: Callable[[Model], None] | None = None,
    ) -> None:
        self._client, self._asynchronous, self._ended = client, asynchronous, ended
        self._pace = checks.positive("pace", pace)
        self.over = False
        client.rehearse()  # now, and not while a round waits for it

    @property
    def longest(self) -> int:
        """The most bytes that a message for this client can have."""
        return 4 * self._client.dimension + _HEAD

    def reply(self, kind: bytes, pieces: Sequence[bytes]) -> list[bytes]:
        """The packed answers to a request of a ClientApp."""
        start = time.monotonic()
        messages = _unpacked(pieces)
        if kind == END:
            self._end(messages)
            return []
        if self._asynchronous is None:
            answers = _answers(self._client, messages)
        else:
            answers = _unacknowledged(self._asynchronous, messages)
        time.sleep(self._pace - (time.monotonic() - start) % self._pace)
        return [answer.pack() for answer in answers]

    def _end(self, messages: Sequence[Message]) -> None:
        client = self._client
        for model in messages:
            if not isinstance(model, Model):
                continue
            if self._asynchronous is None and client.budget is None and model.round:
                # rounds that it missed count
                client.charge(min(model.round, client.plan.rounds) - 1)
            client.finish()
            self.over = True
            if self._ended is not None:
                self._ended(model)


def serve(
    client: Client,
    address: str,
    asynchronous: AsyncClient | None = None,
    *,
    pace: float = 1.0,
    ended: Callable[[Model], None] | None = None,
    mode: int = 0o600,
) -> None:
    """Answer for a client on a local socket until the server says that the run is over.

    Whoever can open the socket gets what the server gets: each round once, with the noise that the
    plan has clients add.

    Args:
        client: the client, with its data and its ledger.
        address: the path of the socket, such as "/run/verax/client.sock".
        asynchronous: see :class:`ClientService`, as for ``pace`` and ``ended``.
        pace: see there.
        ended: see there.
        mode: who may open the socket, as for files; by default the user who runs this.
    """
    service = ClientService(client, asynchronous, pace=pace, ended=ended)
    with listening(address, mode) as listener:
        while not service.over:
            with listener.accept() as connection:
                try:
                    kind, *pieces = receive(connection, service.longest)
                except (OSError, EOFError, ValueError):
                    continue  # the ClientApp died, or it is none
                answers = service.reply(kind, pieces)
                with suppress(OSError):  # it is gone, and will ask again
                    send(connection, answers)


def _unpacked(pieces: Sequence[bytes]) -> list[Message]:
    found = []
    for piece in pieces:
        with suppress(BadMessage):
            found.append(unpack(piece))
    return found


def _answers(client: Client, messages: Sequence[Message]) -> list[Update]:
    found = []
    for model in messages:
        if not isinstance(model, Model):
            continue
        try:
            update = client.answer(model)
        except Refused:
            continue
        if update is None and client.plan.noise == "central":
            update = Update(
                model.run, client.number, model.round, np.zeros(client.dimension, np.float32)
            )
        if update is not None:
            found.append(update)
    return found


def _unacknowledged(client: AsyncClient, messages: Sequence[Message]) -> list[Update]:
    for message in messages:
        if isinstance(message, Model | Receipt):
            client.receive(message)
    if client.ready:
        client.work()
    return client.outbox
