"""Asynchronous rounds: each client at its own pace ('Proactive DP', appendix A).

Clients add their own noise, so staleness, loss and repetition change how fast the model learns and
never what a round costs. A message is sent until its receipt arrives; the server uses each round of
each client once.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch

from verax import checks
from verax.federated.client import Client, Refused
from verax.federated.messages import RUN_BYTES, Model, Receipt, Update, Values
from verax.federated.plan import Plan
from verax.federated.saved_state import read_state
from verax.federated.server import Reason, objection
from verax.training.checkpoint_file import write_secret

Delay = Callable[[int, int], bool]
"""Whether a client with model k may work on its round i: the function that paper 004 calls
Upsilon(k, i).
"""

Step = Callable[[float], float]
"""From the records that a client has used before (a public number) to the step size of each record.
"""


@dataclass(frozen=True)
class Behind:
    """A client may work on round i while its model is at most ``rounds`` behind: k >= i - rounds.

    >>> permitted = Behind(1)
    >>> permitted(0, 1), permitted(0, 2)
    (True, False)
    """

    rounds: int = 1

    def __post_init__(self) -> None:
        checks.count("rounds", self.rounds, minimum=0)

    def __call__(self, k: int, i: int) -> bool:
        """Whether round i may begin with model k."""
        return k >= i - self.rounds


ONE_BEHIND = Behind(1)


@dataclass(frozen=True)
class Diminishing:
    """Step size after t records: ``first / (1 + beta t)``, with ``root`` sqrt(t) for t.

    Args:
        first: the step size of the first round, for each record.
        beta: how fast it diminishes; 0 for a constant.
        root: whether with the square root of t, as for objectives that are not strongly convex.

    >>> Diminishing(0.1, beta=0.01)(100.0)
    0.05
    >>> Diminishing(0.1, beta=0.1, root=True)(100.0)
    0.05
    """

    first: float
    beta: float = 0.0
    root: bool = False

    def __post_init__(self) -> None:
        checks.positive("first", self.first)
        checks.nonnegative("beta", self.beta)

    def __call__(self, records: float) -> float:
        """The step size after this many records."""
        return self.first / (1.0 + self.beta * (math.sqrt(records) if self.root else records))


class AsyncClient:
    """A client that works while its model is fresh, and sends updates until acknowledged.

    Args:
        client: the client, of a plan with local noise.
        step: the step size of a record, known to all parties, such as ``Diminishing(0.1,
            beta=0.01)``.
        permitted: how far its model may be behind.
        record_rate: for a client with a budget: from the round's number and how far the model is
            behind to the rate of the round's records. It may depend on speed and on anything
            received, not on the data.

    ``outbox`` holds what was not acknowledged yet. Models of another run, another shape, or not
    finite are ignored, and counted in ``ignored``.
    """

    def __init__(
        self,
        client: Client,
        step: Step,
        permitted: Delay = ONE_BEHIND,
        record_rate: Callable[[int, int], float] | None = None,
    ) -> None:
        _local(client.plan)
        self._client, self._step, self._permitted, self._rate = client, step, permitted, record_rate
        self._run = b""
        self._k = -1
        self._weights: Values = np.empty(0, dtype=np.float32)
        self._waiting: dict[int, Update] = {}
        self._lost = client.spent
        self._lock = threading.RLock()
        self.ignored = 0

    @property
    def round(self) -> int:
        """The number of the client's next round."""
        return self._client.spent

    @property
    def done(self) -> bool:
        """Whether all rounds were worked on and acknowledged."""
        return self.round == self._client.plan.rounds and not self._waiting and not self._lost

    @property
    def ready(self) -> bool:
        """Whether the next round may begin; if not, a newer model must arrive first."""
        i = self.round
        return self._k >= 0 and i < self._client.plan.rounds and self._permitted(self._k, i)

    @property
    def outbox(self) -> list[Update]:
        """What was not acknowledged yet, oldest first: send it, and again after a while."""
        return [self._waiting[number] for number in sorted(self._waiting)]

    def receive(self, message: Model | Receipt) -> None:
        """Take a message of the server, whenever and however often it comes."""
        with self._lock:
            if isinstance(message, Receipt):
                self._acknowledged(message)
            elif self._sound(message) and message.round > self._k:
                self._run, self._k = message.run, message.round
                self._weights = message.weights.copy()

    def _sound(self, model: Model) -> bool:
        try:
            self._client.refuse_weights(model.weights)
        except Refused:
            self.ignored += 1
            return False
        if self._run and model.run != self._run:
            self.ignored += 1
            return False
        return True

    def _acknowledged(self, receipt: Receipt) -> None:
        if receipt.client != self._client.number or (self._run and receipt.run != self._run):
            self.ignored += 1
            return
        # Rounds of which a crash left no message are paid for; nothing is sent in their place but
        # that they are over.
        for number in range(receipt.below, self._lost):
            nothing = np.zeros(self._client.dimension, dtype=np.float32)
            self._waiting[number] = Update(
                receipt.run, self._client.number, number, nothing, self._client.seen(number)
            )
        self._lost = 0
        for number in [n for n in self._waiting if n < receipt.below]:
            del self._waiting[number]

    def work(self) -> Update:
        """Count a round, sample, clip, sum, add noise, move the own model, fill the outbox."""
        with self._lock:  # a round is worked on once
            if not self.ready:
                raise ValueError(
                    f"round {self.round} must wait for a newer model than {self._k}, "
                    "or is beyond the plan"
                )
            client, i = self._client, self.round
            client.charge(i, None if self._rate is None else self._rate(i, i - self._k))
            values = client.noisy(client.contribution(i, self._weights))
            seen = client.seen(i)
            self._weights -= np.float32(self._step(seen)) * values
            update = self._waiting[i] = Update(self._run, client.number, i, values, seen)
            return update


class AsyncServer:
    """A server that applies updates as they come; model k is out once all rounds below k are in.

    Args:
        plan: what runs, with local noise; ``plan.rounds`` is the number of rounds of every client.
        weights: the first model's trained parameters, flat.
        step: the step size of a record; the same as the clients'.
        permitted: how far a client's model may be behind; updates that no honest client can have
            made are refused.
        state: a file for the server's state, written before an update is acknowledged;
            :meth:`restart` reads it.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Values,
        step: Step,
        permitted: Delay = ONE_BEHIND,
        state: str | os.PathLike[str] | None = None,
    ) -> None:
        _local(plan)
        self.plan, self._step, self._permitted = plan, step, permitted
        self._weights = np.array(weights, dtype=np.float64)
        self._limit = plan.longest(len(self._weights))
        self._run = secrets.token_bytes(RUN_BYTES)
        self._below = dict.fromkeys(range(plan.clients), 0)
        self._ahead: dict[int, set[int]] = {client: set() for client in range(plan.clients)}
        self._gone: set[int] = set()
        self._broadcast = -1
        self.refused: Counter[Reason] = Counter()
        self._lock = threading.RLock()
        self._state = None if state is None else os.fspath(state)
        self._save()

    @classmethod
    def restart(
        cls, plan: Plan, step: Step, state: str | os.PathLike[str], permitted: Delay = ONE_BEHIND
    ) -> AsyncServer:
        """Resume after a crash; clients send again what was not acknowledged."""
        held = read_state(state, plan, {"below": dict, "gone": list, "ahead": dict})
        server = cls(plan, np.zeros(len(held["weights"]), dtype=np.float32), step, permitted)
        server._weights = held["weights"].numpy().copy()
        server._run = bytes.fromhex(held["run"])
        server._below, server._gone = dict(held["below"]), set(held["gone"])
        server._ahead = {client: set(rounds) for client, rounds in held["ahead"].items()}
        server._state = os.fspath(state)
        return server

    @property
    def round(self) -> int:
        """The model's number k: it has all rounds below k of all clients that have not left."""
        return min(self._left_to_wait(), default=self.plan.rounds)

    @property
    def done(self) -> bool:
        """Whether all rounds of all clients that have not left are in."""
        return self.round >= self.plan.rounds

    def _left_to_wait(self) -> list[int]:
        return [below for client, below in self._below.items() if client not in self._gone]

    def model(self) -> Model:
        """The newest model, for a client that asks."""
        return Model(self._run, self.round, self._weights.astype(np.float32))

    def fresh(self) -> Model | None:
        """The model to broadcast, if its number has risen since the last time; otherwise None."""
        k = self.round
        if k <= self._broadcast:
            return None
        self._broadcast = k
        return self.model()

    def receipt(self, client: int) -> Receipt:
        """Which rounds of a client have arrived; send it after each update and each return."""
        return Receipt(self._run, client, self._below[client])

    def receive(self, update: Update, sender: int | None = None) -> Reason | None:
        """Apply an update at once, or return why it is refused; repeats are refused."""
        with self._lock:  # the same update must not be found new twice
            reason = self._objection(update, sender)
            if reason is not None:
                self.refused[reason] += 1
                return reason
            self._weights -= self._step(update.seen) * update.values.astype(np.float64)
            ahead = self._ahead[update.client]
            ahead.add(update.round)
            while self._below[update.client] in ahead:
                ahead.remove(self._below[update.client])
                self._below[update.client] += 1
            self._save()
            return None

    def _objection(self, update: Update, sender: int | None) -> Reason | None:
        if update.run != self._run:
            return "another run"
        if update.client not in self._below:
            return "unknown client"
        if sender is not None and sender != update.client:
            return "forged sender"
        if update.round < self._below[update.client] or update.round in self._ahead[update.client]:
            return "replayed"
        if update.client in self._gone:
            return "late"
        if update.round >= self.plan.rounds or not self._permitted(self.round, update.round):
            return "early"
        return objection(update.values, len(self._weights), self._limit)

    def leave(self, client: int) -> None:
        """Wait no longer for a client: it has died, or its budget is used up."""
        if client not in self._below:
            raise ValueError(
                f"client must be one of the {self.plan.clients} clients, got {client!r}"
            )
        with self._lock:
            self._gone.add(client)
            self._save()

    def _save(self) -> None:
        if self._state is not None:
            write_secret(
                self._state,
                {
                    "plan": repr(self.plan),
                    "run": self._run.hex(),
                    "weights": torch.from_numpy(self._weights),
                    "below": self._below,
                    "gone": sorted(self._gone),
                    "ahead": {client: sorted(rounds) for client, rounds in self._ahead.items()},
                },
            )


def together(
    server: AsyncServer,
    clients: Sequence[AsyncClient],
    turns: Iterable[int] | None = None,
    after: Callable[[AsyncServer], None] | None = None,
) -> None:
    """Run all parties in one process, one client at a time.

    Args:
        server: the server.
        clients: client 0, 1, and so on.
        turns: whose turn it is, again and again: a client comes as often as it is fast. By default
            all clients in order.
        after: called with the server whenever the model's number has risen.

    A client whose turn it is gets the last model that was broadcast and its receipt, works if it
    may, and sends.

    >>> import torch
    >>> from verax.federated import Client, Diminishing, Plan, weights_of
    >>> plan = Plan(
    ...     2,
    ...     40,
    ...     20,
    ...     client_rate=1.0,
    ...     record_rate=0.5,
    ...     rounds=3,
    ...     noise_multiplier=1.0,
    ...     noise="local",
    ... )
    >>> def client(i):
    ...     own = torch.randn(20, 3), torch.randint(0, 2, (20,))
    ...     return AsyncClient(
    ...         Client(i, own, plan, torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()),
    ...         Diminishing(0.1),
    ...     )
    >>> server = AsyncServer(plan, weights_of(torch.nn.Linear(3, 2)), Diminishing(0.1))
    >>> together(server, [client(0), client(1)], turns=[0, 0, 1, 0, 1, 1])
    >>> server.round
    3
    """
    model, idle = server.fresh() or server.model(), 0
    for number in cycle(range(len(clients))) if turns is None else turns:
        client = clients[number]
        client.receive(model)
        client.receive(server.receipt(number))
        idle += 1
        if client.ready:
            client.work()
            idle = 0
        for update in client.outbox:
            server.receive(update, sender=number)
        client.receive(server.receipt(number))
        if (newer := server.fresh()) is not None:
            model = newer
            if after is not None:
                after(server)
        if server.done:
            return
        if turns is None and idle > len(clients):
            raise ValueError(
                f"permitted must let a client work with model {server.round}, "
                "the newest there can be"
            )


def _local(plan: Plan) -> None:
    if plan.noise != "local":
        raise ValueError(
            f"noise must be 'local' for asynchronous rounds, got {plan.noise!r}: "
            "an update is used as soon as it "
            "arrives, so every client adds its own noise and always sends"
        )
