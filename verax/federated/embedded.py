"""A whole federation in one process: a round is one draw of coins and one clipping pass, however many clients."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from verax.federated.client import taking_part, used
from verax.federated.lots import Lots, Numbers
from verax.federated.plan import Plan
from verax.federated.server import Optimizer, Server
from verax.federated.work import Worker, weights_of
from verax.privacy.guarantee import Guarantee
from verax.randomness import Source
from verax.training.clipped import MICRO_BATCH, Inner
from verax.training.data import Data
from verax.training.ledger import Ledger
from verax.training.losses import Criterion

if TYPE_CHECKING:
    from verax.reporting.statement import Statement


class Embedded:
    """Clients and server of a plan together; with the same seed they end with the weights of the objects one by one.

    (Up to rounding: sums are taken in another order. With local noise only the law is the same, since the sum of all
    clients' noises is drawn at once.)

    Args:
        plan: what runs.
        model: any module, trained in place.
        loss: a torch criterion of outputs and targets, or for dictionaries of data a function of model and batch.
        data: the records of all clients, client after client.
        sizes: how many of them each client holds.
        optimizer: from parameters to an optimizer, such as ``lambda p: torch.optim.SGD(p, 0.1)``.
        ledger: a new file in which every release is recorded before it happens.
        state: a file for the server's state after every round; with :meth:`restart` the run goes on from there.
        inner: where a client's aggregate is clipped, what it is (see ``Worker``).
        micro_batch: how many records are worked on at once.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.

    >>> import torch
    >>> from verax.federated import Embedded, Plan
    >>> plan = Plan(
    ...     clients=50, records=500, largest=10, client_rate=0.2, record_rate=0.5, rounds=5, noise_multiplier=1.0
    ... )
    >>> data = torch.randn(500, 3), torch.randint(0, 2, (500,))
    >>> model = torch.nn.Linear(3, 2)
    >>> run = Embedded(plan, model, torch.nn.CrossEntropyLoss(), data, [10] * 50, lambda p: torch.optim.SGD(p, 0.1))
    >>> run.run()
    >>> run.round
    5
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
        ledger: str | os.PathLike[str] | Ledger | None = None,
        state: str | os.PathLike[str] | None = None,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        insecure_seed: int | None = None,
        server: Server | None = None,
    ) -> None:
        self.plan = plan
        self._data, self.sizes = Data(data), _checked(sizes, plan)
        if int(self.sizes.sum()) != len(self._data):
            raise ValueError(f"sizes must add up to the {len(self._data)} records of data, got {int(self.sizes.sum())}")
        self._starts = np.cumsum(self.sizes) - self.sizes
        self._clients = np.arange(plan.clients)
        source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self.server = server or Server(
            plan, weights_of(model), optimizer, ledger=ledger, state=state, insecure_seed=insecure_seed
        )
        self._lots = Lots(source.spawn("lots"), self.server.round if source.secure else 0)  # a seed: the same key again
        self._noise = source.spawn("noise of all clients")
        self.model = model
        now = self.server.weights.clone()
        self._worker = Worker(model, loss, plan, inner, micro_batch, self.server.weights)
        self._worker.weights.copy_(now)

    @classmethod
    def restart(
        cls, plan: Plan, model: nn.Module, loss: Criterion, data: Any, sizes: Sequence[int] | Numbers,
        optimizer: Optimizer, *, ledger: str | os.PathLike[str], state: str | os.PathLike[str],
        inner: Inner | None = None, micro_batch: int = MICRO_BATCH, insecure_seed: int | None = None,
    ) -> Embedded:  # fmt: skip
        """Go on after a crash, from the server's ledger and state; see :meth:`Server.restart`."""
        server = Server.restart(plan, optimizer, ledger=ledger, state=state, insecure_seed=insecure_seed)
        return cls(
            plan, model, loss, data, sizes, optimizer, inner=inner, micro_batch=micro_batch,
            insecure_seed=insecure_seed, server=server,
        )  # fmt: skip

    @property
    def round(self) -> int:
        """How many rounds were released."""
        return self.server.round

    def run(self, after: Callable[[Embedded], None] | None = None) -> None:
        """All rounds that are left; ``after`` is called after each of them."""
        while self.server.round < self.plan.rounds:
            self.step()
            if after is not None:
                after(self)
        self.server.finish()

    def step(self) -> None:
        """One round."""
        plan, number = self.plan, self.server.round
        here = taking_part(self._lots, plan, number, self._clients)
        if here.size:
            chosen = used(self._lots, plan.record_rate, number, here, self.sizes[here], self._starts[here])
            if plan.unit == "record":
                self.server.add(self._worker.total(self._data.take(chosen), len(chosen)))
            else:
                self._add_clients(here, chosen)
        # The noises of all clients that send, added up: one Gaussian of the sum of their variances.
        senders = {"central": 0, "local": plan.clients, "visible": here.size}[plan.noise]
        self.server.step(self._noise, math.sqrt(senders) * plan.sigma)

    def _add_clients(self, here: Numbers, chosen: Numbers) -> None:
        """Clients' aggregates, each clipped."""
        ends = np.searchsorted(chosen, self._starts[here] + self.sizes[here]).tolist()
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            if end > start:
                self.server.add(self._worker.total(self._data.take(chosen[start:end]), end - start))

    # --- what it cost -----------------------------------------------------------------------------------------------

    def guarantees(self) -> tuple[Guarantee, Guarantee]:
        """Of the clients with the fewest and with the most records; all others lie between."""
        return self.plan.guarantee(int(self.sizes.min())), self.plan.guarantee(int(self.sizes.max()))

    def statement(self, delta: float) -> Statement:
        """What a reviewer signs."""
        return self.server.statement(delta)


def _checked(sizes: Sequence[int] | Numbers, plan: Plan) -> Numbers:
    found = np.asarray(sizes, dtype=np.int64)
    if found.shape != (plan.clients,):
        raise ValueError(f"sizes must have one number for each of the {plan.clients} clients, got {found.shape}")
    if found.min() < 1 or found.max() > plan.largest:
        raise ValueError(
            f"sizes must lie between 1 and the plan's largest, {plan.largest}, got {found.min()} to {found.max()}"
        )
    return found
