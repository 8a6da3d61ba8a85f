"""A client and a server of :mod:`verax.federated` inside Flower's ClientApp and ServerApp.

The apps are ordinary ones and run wherever Flower runs them.
:func:`verax.federated.flower_link.serve` and :func:`verax.federated.flower_node.join` run them over
TLS with node authentication, with one process for the server and one for each client, and without
executing code that the other side has sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import verax.federated.flower_quiet  # noqa: F401 - before flwr

# isort: split
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from verax import checks
from verax.federated import messages
from verax.federated.asynchronous import AsyncClient, AsyncServer
from verax.federated.client import Client, Refused
from verax.federated.messages import BadMessage, Model, Receipt, Update, unpack
from verax.federated.server import Server

_RECORD, _FIELD = "verax", "messages"


# --- what is said ---------------------------------------------------------------------------------


def _written(said: Sequence[messages.Message]) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_FIELD: [message.pack() for message in said]})})


def _read(message: Message) -> list[messages.Message]:
    """What a message of Flower holds; whatever is not ours is ignored."""
    if message.has_error() or _RECORD not in message.content.config_records:
        return []
    found: list[messages.Message] = []
    content = message.content.config_records[_RECORD].get(_FIELD, [])
    for piece in content if isinstance(content, list) else []:
        try:
            found.append(unpack(piece))
        except (BadMessage, TypeError):
            continue
    return found


# --- a client -------------------------------------------------------------------------------------


def client_app(
    client: Client, hand: AsyncClient | None = None, ended: Callable[[Model], None] | None = None
) -> ClientApp:
    """A ClientApp that answers for one client.

    Every model gets an answer of the same length, whether the client takes part or not: with
    central noise a client that stays away sends zeros, which change no sum. (With
    ``noise="visible"`` staying away may be seen, and is.)

    Args:
        client: the client. It must live as long as the app: its coins and its ledger are in it.
        hand: the same client in an :class:`AsyncClient`, for asynchronous rounds.
        ended: called with the last model when the server says that the run is over.

    >>> import torch
    >>> from verax.federated import Plan
    >>> plan = Plan(
    ...     clients=2,
    ...     records=8,
    ...     largest=4,
    ...     client_rate=0.5,
    ...     record_rate=0.5,
    ...     rounds=3,
    ...     noise_multiplier=1.0,
    ... )
    >>> own = torch.randn(4, 3), torch.randint(0, 2, (4,))
    >>> app = client_app(Client(0, own, plan, torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()))
    >>> type(app).__name__
    'ClientApp'
    """
    app = ClientApp()
    client.rehearse()  # now, and not while a round waits for it

    @app.train()
    def train(message: Message, context: Context) -> Message:
        said = _read(message)
        answers = _answers(client, said) if hand is None else _outbox(hand, said)
        return Message(_written(answers), reply_to=message)

    @app.query()
    def over(message: Message, context: Context) -> Message:
        for model in _read(message):
            if isinstance(model, Model):
                if hand is None and client.budget is None and model.round:
                    # rounds that it missed count
                    client.charge(min(model.round, client.plan.rounds) - 1)
                client.finish()
                if ended is not None:
                    ended(model)
        return Message(RecordDict(), reply_to=message)

    return app


def _answers(client: Client, said: Sequence[messages.Message]) -> list[Update]:
    found = []
    for model in said:
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


def _outbox(hand: AsyncClient, said: Sequence[messages.Message]) -> list[Update]:
    for message in said:
        if isinstance(message, Model | Receipt):
            hand.receive(message)
    if hand.ready:
        hand.work()
    return hand.outbox


# --- the server -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waiting:
    """How long a server waits, in seconds. None of it costs privacy.

    Args:
        gather: before the first round, for all clients to be there; after that it begins with those
            that are. (While nobody is there no round begins.)
        answers: in a round, for the answers of those that are there; asynchronously, before a
            client is asked again.
        lost: asynchronously, for a sign of a client, before it is left behind; None for ever.
        poll: between two looks.
        farewell: after the last round, for clients to confirm that they know it was the last.
    """

    gather: float = 60.0
    answers: float = 60.0
    lost: float | None = 600.0
    poll: float = 0.05
    farewell: float = 10.0

    def __post_init__(self) -> None:
        for name in ("gather", "answers", "poll"):
            checks.positive(name, getattr(self, name))
        checks.nonnegative("farewell", self.farewell)
        if self.lost is not None:
            checks.positive("lost", self.lost)


WAITING = Waiting()


def server_app(
    server: Server | AsyncServer,
    keys: Sequence[bytes],
    waiting: Waiting = WAITING,
    after: Callable[[Any], None] | None = None,
) -> ServerApp:
    """A ServerApp that runs the remaining rounds with nodes that have these keys.

    Args:
        server: the server; after a crash the one that ``restart`` returns.
        keys: the public key of client 0, 1, and so on, by which the authenticated node that sent a
            message is known.
        waiting: how long to wait for whom.
        after: called with the server after every round; asynchronously whenever the model's number
            has risen.
    """
    if len(keys) != server.plan.clients or len(set(keys)) != len(keys):
        raise ValueError(
            f"keys must be {server.plan.clients} different public keys, one for each client, "
            f"got {len(keys)} of which {len(set(keys))} differ"
        )
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        fleet = _Fleet(grid, list(keys), waiting)
        fleet.gather()
        if isinstance(server, AsyncServer):
            _Desk(server, fleet, after or (lambda _: None), server.model()).run()
        else:
            while server.round < server.plan.rounds:
                fleet.somebody()
                fleet.ask({client: [server.model()] for client in fleet.free()})
                for client, said in fleet.answers():
                    for update in said:
                        if isinstance(update, Update):
                            server.receive(update, sender=client)
                server.step()
                if after is not None:
                    after(server)
            server.finish()
        fleet.farewell(server.model())

    return app


@dataclass
class _Fleet:
    """The clients that are there, under their numbers; what was asked, and what came back."""

    grid: Grid
    keys: list[bytes]
    waiting: Waiting
    asked: dict[str, int] = field(default_factory=dict)  # by the number of the question
    # clients that have kept a round waiting and not answered since
    silent: set[int] = field(default_factory=set)
    since: dict[int, str] = field(default_factory=dict)  # when each client connected

    def present(self) -> dict[int, int]:
        """Node of each connected client. One that has reconnected owes no answer."""
        numbers = {key: number for number, key in enumerate(self.keys)}
        found = {}
        for node in self.grid.get_nodes():
            if node.public_key in numbers:
                client = numbers[node.public_key]
                found[client] = node.node_id
                if self.since.get(client) != node.last_activated_at:
                    self.since[client] = node.last_activated_at
                    self.silent.discard(client)
                    self.asked = {
                        question: who for question, who in self.asked.items() if who != client
                    }
        return found

    def gather(self) -> None:
        end = time.monotonic() + self.waiting.gather
        while len(self.present()) < len(self.keys) and time.monotonic() < end:
            time.sleep(self.waiting.poll)

    def free(self) -> set[int]:
        """Who is there and owes no answer."""
        return set(self.present()) - set(self.asked.values())

    def somebody(self) -> None:
        """Wait until a client is connected: a round without clients would be wasted."""
        while not set(self.present()) - self.silent:
            for _ in self.heard():
                continue
            # a question that has expired may be asked, and waited for, again
            self.silent &= set(self.asked.values())
            time.sleep(self.waiting.poll)

    def ask(self, what: dict[int, list[messages.Message]], kind: str = MessageType.TRAIN) -> None:
        """Send each of these clients its messages, if it is there."""
        nodes = self.present()
        for client, said in what.items():
            if client in nodes:
                question = Message(
                    _written(said), nodes[client], kind, ttl=2.0 * self.waiting.answers
                )
                self.asked |= {
                    str(number): client for number in self.grid.push_messages([question])
                }

    def heard(self) -> Iterator[tuple[int, list[messages.Message]]]:
        """The answers that have come since the last time, each with the client that was asked."""
        if self.asked:
            for reply in self.grid.pull_messages(list(self.asked)):
                client = self.asked.pop(reply.metadata.reply_to_message_id, None)
                # an error is Flower's: the node is away
                if client is not None and not reply.has_error():
                    self.silent.discard(client)
                    yield client, _read(reply)

    def answers(self, seconds: float | None = None) -> Iterator[tuple[int, list[messages.Message]]]:
        """The answers that come in time, also to questions of earlier rounds.

        Nobody waits for a client that was waited for in vain before, until it answers or connects
        anew.
        """
        end = time.monotonic() + (self.waiting.answers if seconds is None else seconds)
        while True:
            late = time.monotonic() >= end  # asked first: what is there by then is heard
            self.present()  # forgets what was asked of those who have connected anew
            yield from self.heard()
            if late or set(self.asked.values()) <= self.silent:
                break
            time.sleep(self.waiting.poll)
        self.silent |= set(self.asked.values())

    def farewell(self, model: Model) -> None:
        """Everybody gets the last model, and knows that it is the last."""
        self.asked.clear()
        self.silent.clear()
        self.ask({client: [model] for client in self.present()}, MessageType.QUERY)
        for _ in self.answers(self.waiting.farewell):
            pass


@dataclass
class _Desk:
    """Asynchronous rounds: one open question per client, the next when there is news.

    The news is the model that was broadcast: as it was when the last of the rounds below its number
    came in.
    """

    server: AsyncServer
    fleet: _Fleet
    after: Callable[[Any], None]
    model: Model
    open: dict[int, float] = field(default_factory=dict)  # when each client was asked
    # the model and the receipt it was told then
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    sign: dict[int, float] = field(default_factory=dict)  # when each client last answered

    def run(self) -> None:
        start, waiting = time.monotonic(), self.fleet.waiting
        self.sign = dict.fromkeys(range(self.server.plan.clients), start)
        while not self.server.done:
            for client, said in self.fleet.heard():
                self.open.pop(client, None)
                if client in self.sign:
                    self.sign[client] = time.monotonic()
                for update in said:
                    if isinstance(update, Update):
                        self.server.receive(update, sender=client)
            if (newer := self.server.fresh()) is not None:
                self.model = newer
                self.after(self.server)
            self._ask()
            self._leave()
            time.sleep(waiting.poll)

    def _behind(self, client: int) -> bool:
        return self.told.get(client) != self._news(client)

    def _news(self, client: int) -> tuple[int, int]:
        return self.model.round, self.server.receipt(client).below

    def _ask(self) -> None:
        now, waiting = time.monotonic(), self.fleet.waiting
        what: dict[int, list[messages.Message]] = {}
        present = self.fleet.present()
        waited_for = set(self.fleet.asked.values())
        for client in present:
            if client in self.open:
                if client in waited_for and now - self.open[client] < waiting.answers:
                    continue  # otherwise the question, or its answer, is lost
            elif not self._behind(client) and now - self.sign.get(client, now) < waiting.answers:
                continue
            what[client] = [self.server.receipt(client), self.model]
            self.open[client], self.told[client] = now, self._news(client)
        if what:
            self.fleet.ask(what)

    def _leave(self) -> None:
        lost = self.fleet.waiting.lost
        for client, last in list(self.sign.items()):
            if lost is not None and time.monotonic() - last > lost:
                self.server.leave(client)
                del self.sign[client]
