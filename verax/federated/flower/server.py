"""A ServerApp that runs the rounds of a server of :mod:`verax.federated`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from verax import checks
from verax.federated import messages
from verax.federated.asynchronous import AsyncServer
from verax.federated.flower.client import pieces_of, record_of
from verax.federated.messages import BadMessage, Model, Update, unpack
from verax.federated.server import Server


@dataclass(frozen=True)
class Waiting:
    """How long a server waits, in seconds. None of it costs privacy.

    Args:
        gather: before the first round, for all clients to connect; after that it begins with those
            that have. (While none is connected no round begins.)
        answers: in a round, for the answers of connected clients; asynchronously, before a
            client is asked again.
        lost: asynchronously, for a message of a client, before it is left behind; None for ever.
        poll: between two looks.
        farewell: after the last round, for clients to confirm that they know it was the last.
    """

    gather: float = 60.0
    answers: float = 60.0
    lost: float | None = 600.0
    poll: float = 0.2
    farewell: float = 20.0

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
    """A ServerApp that runs the remaining rounds; see :func:`run_rounds` for the arguments."""
    _check_keys(keys, server.plan.clients)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_rounds(grid, server, keys, waiting, after)

    return app


def run_rounds(
    grid: Grid,
    server: Server | AsyncServer,
    keys: Sequence[bytes],
    waiting: Waiting = WAITING,
    after: Callable[[Any], None] | None = None,
) -> None:
    """Run the remaining rounds with the SuperNodes that have these keys, in a ServerApp's main.

    Args:
        grid: what Flower gives the ServerApp.
        server: the server; after a crash the one that ``restart`` returns.
        keys: the public key of client 0, 1, and so on, by which the authenticated SuperNode that
            sent a message is known; see :func:`verax.federated.flower.read_public_keys`.
        waiting: how long to wait for which client.
        after: called with the server after every round; asynchronously whenever the model's number
            has risen.
    """
    _check_keys(keys, server.plan.clients)
    clients = _Clients(grid, list(keys), waiting)
    clients.gather()
    if isinstance(server, AsyncServer):
        _AsynchronousRounds(server, clients, after or (lambda _: None), server.model()).run()
    else:
        while server.round < server.plan.rounds:
            clients.wait_for_one()
            clients.ask({client: [server.model()] for client in clients.free()})
            for client, answers in clients.answers():
                for update in answers:
                    server.receive(update, sender=client)
            server.step()
            if after is not None:
                after(server)
        server.finish()
    clients.farewell(server.model())


def _check_keys(keys: Sequence[bytes], clients: int) -> None:
    if len(keys) != clients or len(set(keys)) != len(keys):
        raise ValueError(
            f"keys must be {clients} different public keys, one for each client, "
            f"got {len(keys)} of which {len(set(keys))} differ"
        )


def _updates(message: Message) -> list[Update]:
    found = []
    for piece in pieces_of(message):
        with suppress(BadMessage):
            update = unpack(piece)
            if isinstance(update, Update):
                found.append(update)
    return found


@dataclass
class _Clients:
    """The connected clients, by number; what they were asked, and what they answered.

    Flower authenticates every SuperNode by its key, and accepts an answer only with the identifier
    of the question, which only the SuperNode that was asked has seen.
    """

    grid: Grid
    keys: list[bytes]
    waiting: Waiting
    asked: dict[str, int] = field(default_factory=dict)  # client, by the question's identifier
    # clients that have kept a round waiting and not answered since
    silent: set[int] = field(default_factory=set)
    since: dict[int, str] = field(default_factory=dict)  # when each client connected

    def connected(self) -> dict[int, int]:
        """Node of each connected client. One that has reconnected owes no answer."""
        numbers = {key: number for number, key in enumerate(self.keys)}
        found = {}
        for node in self.grid.get_nodes():
            client = numbers.get(node.public_key)
            if client is None:
                continue
            found[client] = node.node_id
            if self.since.get(client) != node.last_activated_at:
                self.since[client] = node.last_activated_at
                self.silent.discard(client)
                self.asked = {
                    question: other for question, other in self.asked.items() if other != client
                }
        return found

    def gather(self) -> None:
        """Wait until all clients are connected, or time is up."""
        end = time.monotonic() + self.waiting.gather
        while len(self.connected()) < len(self.keys) and time.monotonic() < end:
            time.sleep(self.waiting.poll)

    def free(self) -> set[int]:
        """The connected clients that owe no answer."""
        return set(self.connected()) - set(self.asked.values())

    def wait_for_one(self) -> None:
        """Wait until a client is connected: a round without clients would be wasted."""
        while not set(self.connected()) - self.silent:
            for _ in self.arrived():
                continue
            # a question that has expired may be asked, and waited for, again
            self.silent &= set(self.asked.values())
            time.sleep(self.waiting.poll)

    def ask(self, what: dict[int, list[messages.Message]], kind: str = MessageType.TRAIN) -> None:
        """Send each of these clients its messages, if it is connected."""
        nodes = self.connected()
        for client, content in what.items():
            if client in nodes:
                record = record_of([message.pack() for message in content])
                question = Message(record, nodes[client], kind, ttl=2.0 * self.waiting.answers)
                for identifier in self.grid.push_messages([question]):
                    self.asked[str(identifier)] = client

    def arrived(self) -> Iterator[tuple[int, list[Update]]]:
        """The answers that have come since the last time, each with the client that was asked."""
        if self.asked:
            for reply in self.grid.pull_messages(list(self.asked)):
                client = self.asked.pop(reply.metadata.reply_to_message_id, None)
                # an error is Flower's: the node has left, or cannot reach its client
                if client is not None and not reply.has_error():
                    self.silent.discard(client)
                    yield client, _updates(reply)

    def answers(self, seconds: float | None = None) -> Iterator[tuple[int, list[Update]]]:
        """The answers that come in time, also to questions of earlier rounds.

        A client that was waited for in vain before is not waited for, until it answers or connects
        anew.
        """
        end = time.monotonic() + (self.waiting.answers if seconds is None else seconds)
        while True:
            late = time.monotonic() >= end  # asked first: what has come by then is used
            self.connected()  # forgets what was asked of those that have connected anew
            yield from self.arrived()
            if late or set(self.asked.values()) <= self.silent:
                break
            time.sleep(self.waiting.poll)
        self.silent |= set(self.asked.values())

    def farewell(self, model: Model) -> None:
        """Send every client the last model, as the last."""
        self.asked.clear()
        self.silent.clear()
        self.ask({client: [model] for client in self.connected()}, MessageType.QUERY)
        for _ in self.answers(self.waiting.farewell):
            pass


@dataclass
class _AsynchronousRounds:
    """Asynchronous rounds: one open question per client, the next when there is news.

    The news is the model that was broadcast: as it was when the last of the rounds below its number
    came in.
    """

    server: AsyncServer
    clients: _Clients
    after: Callable[[Any], None]
    model: Model
    open: dict[int, float] = field(default_factory=dict)  # when each client was asked
    # the numbers of the model and of the receipt that each client was sent then
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)  # when each client last answered

    def run(self) -> None:
        """Receive, broadcast and ask until the rounds of all clients are in."""
        self.last = dict.fromkeys(range(self.server.plan.clients), time.monotonic())
        while not self.server.done:
            for client, updates in self.clients.arrived():
                self.open.pop(client, None)
                if client in self.last:
                    self.last[client] = time.monotonic()
                for update in updates:
                    self.server.receive(update, sender=client)
            if (newer := self.server.fresh()) is not None:
                self.model = newer
                self.after(self.server)
            self._ask()
            self._leave()
            time.sleep(self.clients.waiting.poll)

    def _news(self, client: int) -> tuple[int, int]:
        return self.model.round, self.server.receipt(client).below

    def _ask(self) -> None:
        now, waiting = time.monotonic(), self.clients.waiting
        what: dict[int, list[messages.Message]] = {}
        connected = self.clients.connected()
        waited_for = set(self.clients.asked.values())
        for client in connected:
            news = self._news(client)
            if client in self.open:
                if client in waited_for and now - self.open[client] < waiting.answers:
                    continue  # otherwise the question, or its answer, is lost
            elif (
                self.sent.get(client) == news and now - self.last.get(client, now) < waiting.answers
            ):
                continue
            what[client] = [self.server.receipt(client), self.model]
            self.open[client], self.sent[client] = now, news
        if what:
            self.clients.ask(what)

    def _leave(self) -> None:
        lost = self.clients.waiting.lost
        for client, last in list(self.last.items()):
            if lost is not None and time.monotonic() - last > lost:
                self.server.leave(client)
                del self.last[client]
