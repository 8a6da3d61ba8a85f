"""The engine ``flower``: a federation over Flower with all parties on this host."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from verax import checks
from verax.federated.client import Client
from verax.federated.coins import Numbers
from verax.federated.embedded import Embedded
from verax.federated.flower.local import START, LocalFederation, local_federation
from verax.federated.flower.pipe import connect, listening
from verax.federated.flower.server import Waiting, run_rounds
from verax.federated.flower.service import serve
from verax.federated.messages import Model, Update
from verax.federated.plan import Plan
from verax.federated.server import Optimizer
from verax.training.gradients.loss import Criterion

MOST = 32  # clients on one host: each has four processes, of some 400 MB in all
# processes of one host may be slow, and do not get lost
_WAITING = Waiting(gather=START, answers=START, farewell=START)
_PROJECT = """\
[project]
name = "verax-local"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "verax"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
server = ""
"""
_SERVER_APP = """\
from verax.federated.flower.engine import relayed_server_app

app = relayed_server_app()
"""
_CLIENT_APP = """\
from verax.federated.flower import relay_app

app = relay_app(patience=600.0)
"""


class LocalFlower(Embedded):
    """A federation over Flower with all parties on this host, to try it out.

    It takes what :class:`verax.federated.Embedded` takes, apart from ``inner``. Keys and
    certificates are made for the run. Clients keep no ledgers; on hosts of their own they should.

    Args:
        pace: answers leave at multiples of this many seconds, see
            :class:`verax.federated.flower.ClientService`.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        loss: Criterion,
        data: Any,
        sizes: Sequence[int] | Numbers,
        optimizer: Optimizer,
        *,
        insecure_seed: int | None = None,
        pace: float = 0.5,
        **options: Any,
    ) -> None:
        if plan.clients > MOST:
            raise ValueError(
                f"clients must be at most {MOST} for the engine flower on one host, with processes "
                f"for each, got {plan.clients}; the engine embedded runs any number"
            )
        super().__init__(
            plan, model, loss, data, sizes, optimizer, insecure_seed=insecure_seed, **options
        )
        self._loss, self._seed, self._pace = loss, insecure_seed, checks.positive("pace", pace)

    def run(self, after: Callable[[Embedded], None] | None = None) -> None:
        """Run all rounds that are left; ``after`` is called after each of them."""
        records = [self._own(client) for client in range(self.plan.clients)]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="verax-")))
            federation = stack.enter_context(local_federation(folder, self.plan.clients))
            processes = stack.enter_context(self._client_processes(federation, records))

            def check() -> None:
                federation.check()
                for number, process in enumerate(processes):
                    if process.exitcode:
                        raise RuntimeError(f"the process of client {number} has died")

            project = folder / "project"
            project.mkdir()
            (project / "pyproject.toml").write_text(_PROJECT)
            (project / "server_app.py").write_text(_SERVER_APP)
            (project / "client_app.py").write_text(_CLIENT_APP)
            address = os.fspath(folder / "server.sock")
            federation.run(project, server=address)
            with _connected(address, check) as connection:
                self._answer_server_app(connection, federation.keys, check, after)
        self.server.finish()

    def step(self) -> None:
        """Not one round alone: processes are started for all of them."""
        raise NotImplementedError("this engine runs all rounds at once: call run")

    def _answer_server_app(
        self,
        connection: Connection,
        keys: Sequence[bytes],
        check: Callable[[], None],
        after: Callable[[Embedded], None] | None,
    ) -> None:
        """Do what the ServerApp of :func:`relayed_server_app` leaves to the server itself."""
        server = self.server
        connection.send((self.plan, server.model(), keys))
        while server.round < self.plan.rounds:
            for sender, update in _received(connection, check):
                server.receive(update, sender=sender)
            server.step()
            connection.send(server.model())
            if after is not None:
                after(self)
        _received(connection, check)  # the clients know that it is over

    @contextmanager
    def _client_processes(
        self, federation: LocalFederation, records: Sequence[Any]
    ) -> Iterator[list[Any]]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        started: list[Any] = []
        try:
            for number in range(len(records)):
                # By plain pickle: torch's own would let processes share the memory of the weights.
                own = pickle.dumps(
                    (records[number], self._rates_of(number), self.plan, self.model, self._loss)
                )
                party = _ClientProcess(
                    number, own, federation.socket(number), self._seed, self._pace
                )
                started.append(context.Process(target=party, daemon=True))
                started[-1].start()
            yield started
        finally:
            for process in started:
                process.kill()
                process.join()

    def _rates_of(self, client: int) -> tuple[list[float], list[float]]:
        return self._rates.of_all_rounds(self.plan, lambda row: row[client if row.size > 1 else 0])

    def _own(self, client: int) -> Any:
        start = int(self._starts[client])
        chosen = np.arange(start, start + int(self.sizes[client]))
        # A client that is clipped as a whole may mix its records; it gets tensors, where that
        # can no longer be seen.
        return (
            self._data.take(chosen)
            if self.plan.unit == "client"
            else self._worker.take(self._data, chosen)
        )


@dataclass(frozen=True)
class _ClientProcess:
    """What runs in a client's process."""

    number: int
    own: bytes
    address: str
    seed: int | None
    pace: float

    def __call__(self) -> None:
        torch.set_num_threads(1)
        data, (p, q), plan, model, loss = pickle.loads(self.own)
        client = Client(
            self.number,
            data,
            plan,
            model,
            loss,
            client_rates=p,
            record_rates=q,
            insecure_seed=self.seed,
        )
        serve(client, self.address, pace=self.pace)


@contextmanager
def _connected(address: str, check: Callable[[], None]) -> Iterator[Connection]:
    """A connection to the ServerApp, once it is there."""
    deadline = time.monotonic() + START
    while True:
        try:
            connection = connect(address)
            break
        except OSError:
            check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no ServerApp has started within {START:g} s") from None
            time.sleep(0.1)
    with connection:
        yield connection


def _received(connection: Connection, check: Callable[[], None]) -> Any:
    while not connection.poll(1.0):
        check()
    try:
        return connection.recv()
    except (OSError, EOFError):
        raise RuntimeError("the ServerApp has died") from None


def relayed_server_app() -> ServerApp:
    """A ServerApp whose server is in the process that started the run.

    It listens at the address ``server`` of the run's configuration, passes on what clients sent,
    and broadcasts the model that it is given after each round. Both processes are of one user, so
    they exchange pickled objects.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        address = str(context.run_config["server"])
        with listening(address) as listener, listener.accept() as connection:
            plan, model, keys = connection.recv()
            server: Any = _RelayedServer(connection, plan, model)
            run_rounds(grid, server, keys, _WAITING)
            connection.send(None)

    return app


@dataclass
class _RelayedServer:
    """What :func:`run_rounds` needs of a server, which is elsewhere."""

    connection: Connection
    plan: Plan
    last: Model
    updates: list[tuple[int, Update]] = field(default_factory=list)

    @property
    def round(self) -> int:
        return self.last.round

    def model(self) -> Model:
        return self.last

    def receive(self, update: Update, sender: int) -> None:
        self.updates.append((sender, update))

    def step(self) -> None:
        self.connection.send(self.updates)
        self.updates = []
        self.last = self.connection.recv()

    def finish(self) -> None:
        """The server does it itself."""
