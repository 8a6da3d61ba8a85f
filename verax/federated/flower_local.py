"""Flower on one host: the server in this process, and every client in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from verax import checks
from verax.federated.client import Client
from verax.federated.coins import Numbers
from verax.federated.embedded import Embedded
from verax.federated.flower import Waiting, client_app, server_app
from verax.federated.flower_keys import new_certificates, new_key
from verax.federated.flower_link import serve
from verax.federated.flower_node import join
from verax.federated.plan import Plan
from verax.federated.server import Optimizer, Server
from verax.training.gradients.loss import Criterion

MOST = 64  # processes on one host
_HOST = "127.0.0.1"
_GATHER = 300.0  # seconds that processes have to start in


class OneHost(Embedded):
    """A federation over Flower with all parties on this machine, to try it out.

    It takes what :class:`verax.federated.Embedded` takes, apart from ``inner``. Keys and
    certificates are made for the run. Clients keep no ledgers; on hosts of their own they should.

    Args:
        pace: answers leave at multiples of this many seconds, see
            :func:`verax.federated.flower_node.join`.
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
                f"clients must be at most {MOST} for the engine flower on one host, "
                f"a process each, got {plan.clients}; the engine embedded runs any number"
            )
        super().__init__(
            plan, model, loss, data, sizes, optimizer, insecure_seed=insecure_seed, **options
        )
        self._loss, self._seed, self._pace = loss, insecure_seed, checks.positive("pace", pace)

    def run(self, after: Callable[[Embedded], None] | None = None) -> None:
        """All rounds that are left; ``after`` is called after each of them."""
        owned = [self._own(client) for client in range(self.plan.clients)]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        with tempfile.TemporaryDirectory() as folder:
            new_certificates(folder, [_HOST])
            keys = [new_key(Path(folder) / f"{client}.key") for client in range(self.plan.clients)]
            people: list[Any] = []

            def begin(port: int) -> None:
                for client, held in enumerate(owned):
                    # By plain pickle: torch's own would let processes share the memory of the
                    # weights.
                    own = pickle.dumps(
                        (held, self._rates_of(client), self.plan, self.model, self._loss)
                    )
                    party = _Party(client, own, folder, port, self._seed, self._pace)
                    people.append(context.Process(target=party, daemon=True))
                    people[-1].start()

            def shown(server: Server) -> None:
                if after is not None:
                    after(self)

            try:
                app = server_app(self.server, keys, Waiting(gather=_GATHER), shown)
                serve(
                    app,
                    keys,
                    Path(folder) / "server.pem",
                    Path(folder) / "server.key",
                    _HOST,
                    0,
                    begin,
                )
            finally:
                for person in people:
                    person.join(5.0)
                    person.kill()
                    person.join()

    def step(self) -> None:
        """Not one round alone: processes are started for all of them."""
        raise NotImplementedError("this engine runs all rounds at once: call run")

    def _rates_of(self, client: int) -> tuple[list[float], list[float]]:
        return self._rates.of_all_rounds(self.plan, lambda row: row[client if row.size > 1 else 0])

    def _own(self, client: int) -> Any:
        start = int(self._starts[client])
        chosen = np.arange(start, start + int(self.sizes[client]))
        # A client that is clipped as a whole may mix its records; it gets tensors, in which nobody
        # sees it any more.
        return (
            self._data.take(chosen)
            if self.plan.unit == "client"
            else self._worker.take(self._data, chosen)
        )


@dataclass(frozen=True)
class _Party:
    """A client's process."""

    number: int
    own: bytes
    folder: str
    port: int
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
        key = os.path.join(self.folder, f"{self.number}.key")
        root = os.path.join(self.folder, "ca.pem")
        join(client_app(client), key, root, f"{_HOST}:{self.port}", self.pace)
