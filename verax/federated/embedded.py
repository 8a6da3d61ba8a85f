"""A whole federation in one process: one draw of coins and one clipping pass a round."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from verax import checks
from verax.federated.client import taking_part, used
from verax.federated.coins import Coins, Numbers
from verax.federated.plan import LEAST_RATE, Plan
from verax.federated.server import Optimizer, Server
from verax.federated.worker import Worker, weights_of
from verax.ledger.ledger import Ledger
from verax.privacy.guarantee import Bracket, Guarantee
from verax.randomness import Source
from verax.training.clipping.clipper import MICRO_BATCH
from verax.training.clipping.local_update import Inner
from verax.training.data.dataset import Data
from verax.training.gradients.loss import Criterion
from verax.training.seeds import Draws

if TYPE_CHECKING:
    from verax.reporting.statement import Statement


class Embedded:
    """Clients and server of a plan; with one seed, the same weights as separate objects.

    (Up to rounding: sums are taken in another order. With local noise only the law is the same,
    since the sum of all clients' noises is drawn at once.)

    Args:
        plan: what runs.
        model: any module, trained in place.
        loss: a torch criterion of outputs and targets, or for dictionaries of data a function of
            model and batch.
        data: the records of all clients, client after client; a data set's ``__getitems__`` must
            treat each by itself.
        sizes: how many of them each client holds.
        optimizer: from parameters to an optimizer, such as ``lambda p: torch.optim.SGD(p, 0.1)``.
        ledger: a new file in which every release is recorded before it happens.
        state: a file for the server's state after every round; with :meth:`restart` the run goes on
            from there.
        client_rates: where clients differ, the rate of each, or a row of them for every round,
            declared in advance; none above the plan's. What each client holds is then taken to be
            public, as updates are divided by the size that is expected.
        record_rates: the same for records.
        inner: where a client's aggregate is clipped, what it is (see ``Worker``).
        micro_batch: how many records are worked on at once.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.

    >>> import torch
    >>> from verax.federated import Embedded, Plan
    >>> plan = Plan(
    ...     clients=50,
    ...     records=500,
    ...     largest=10,
    ...     client_rate=0.2,
    ...     record_rate=0.5,
    ...     rounds=5,
    ...     noise_multiplier=1.0,
    ... )
    >>> data = torch.randn(500, 3), torch.randint(0, 2, (500,))
    >>> model = torch.nn.Linear(3, 2)
    >>> run = Embedded(
    ...     plan,
    ...     model,
    ...     torch.nn.CrossEntropyLoss(),
    ...     data,
    ...     [10] * 50,
    ...     lambda p: torch.optim.SGD(p, 0.1),
    ... )
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
        client_rates: ArrayLike | None = None,
        record_rates: ArrayLike | None = None,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        insecure_seed: int | None = None,
        server: Server | None = None,
    ) -> None:
        self.plan = plan
        self._data, self.sizes = Data(data), _checked(sizes, plan)
        # records of many clients are taken at once
        self._data.watch(in_order=plan.unit == "client")
        if int(self.sizes.sum()) != len(self._data):
            raise ValueError(
                f"sizes must add up to the {len(self._data)} records of data, "
                f"got {int(self.sizes.sum())}"
            )
        self._starts = np.cumsum(self.sizes) - self.sizes
        self._clients = np.arange(plan.clients)
        self._rates = _Rates.of(plan, client_rates, record_rates)
        source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self.server = server or Server(
            plan,
            weights_of(model),
            optimizer,
            expected=self._rates.expected(plan, self.sizes),
            ledger=ledger,
            state=state,
            insecure_seed=insecure_seed,
        )
        self.model, self._lock = model, threading.RLock()
        try:
            self._set_up(loss, inner, micro_batch, source)
        except BaseException:  # in a notebook the traceback keeps the ledger
            self.server.close()
            raise

    def _set_up(
        self, loss: Criterion, inner: Inner | None, micro_batch: int, source: Source
    ) -> None:
        plan, model = self.plan, self.model
        size = len(weights_of(model))
        if size != len(self.server.weights):
            raise ValueError(
                f"model must have the {len(self.server.weights)} weights of the run, "
                f"got one with {size}"
            )
        # a seed: the same key again
        self._coins = Coins(source.spawn("lots"), self.server.round if source.secure else 0)
        self._noise = source.spawn("noise of all clients")
        now = self.server.weights.clone()
        draws = Draws(source.spawn("draws"))
        self._worker = Worker(model, loss, plan, inner, micro_batch, self.server.weights, draws)
        self._worker.weights.copy_(now)

    @classmethod
    def restart(
        cls,
        plan: Plan,
        model: nn.Module,
        loss: Criterion,
        data: Any,
        sizes: Sequence[int] | Numbers,
        optimizer: Optimizer,
        *,
        ledger: str | os.PathLike[str],
        state: str | os.PathLike[str],
        client_rates: ArrayLike | None = None,
        record_rates: ArrayLike | None = None,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        insecure_seed: int | None = None,
    ) -> Embedded:
        """Go on after a crash, from the server's ledger and state; see :meth:`Server.restart`."""
        expected = _Rates.of(plan, client_rates, record_rates).expected(plan, _checked(sizes, plan))
        server = Server.restart(
            plan,
            optimizer,
            ledger=ledger,
            state=state,
            expected=expected,
            insecure_seed=insecure_seed,
        )
        return cls(
            plan,
            model,
            loss,
            data,
            sizes,
            optimizer,
            client_rates=client_rates,
            record_rates=record_rates,
            inner=inner,
            micro_batch=micro_batch,
            insecure_seed=insecure_seed,
            server=server,
        )

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
        with self._lock:  # two threads must not both add their sums of one round
            self._step()

    def _step(self) -> None:
        plan, number = self.plan, self.server.round
        client_rate, record_rate = self._rates.at(number)
        here = taking_part(self._coins, plan, number, self._clients, client_rate)
        if here.size:
            rate = record_rate[here] if record_rate.size > 1 else record_rate
            chosen = used(self._coins, rate, number, here, self.sizes[here], self._starts[here])
            if plan.unit == "record":
                self.server.add(
                    self._worker.total(self._worker.take(self._data, chosen), len(chosen))
                )
            else:
                self._add_clients(here, chosen)
        # The noises of all clients that send, added up: one Gaussian of the sum of their variances.
        senders = {"central": 0, "local": plan.clients, "visible": here.size}[plan.noise]
        self.server.step(self._noise, math.sqrt(senders) * plan.sigma)

    def _add_clients(self, here: Numbers, chosen: Numbers) -> None:
        """Clients' aggregates, each clipped."""
        ends = np.searchsorted(chosen, self._starts[here] + self.sizes[here])
        counts = np.diff(ends, prepend=0)
        self.server.add(
            self._worker.totals(self._worker.take(self._data, chosen), counts[counts > 0].tolist())
        )

    # --- what it cost -----------------------------------------------------------------------------

    def guarantees(self) -> tuple[Guarantee, Guarantee]:
        """For the fewest records and smallest rates of any client, and the most and largest.

        Every client's own lies between (docs/random-participation.md, theorem 5).
        """
        return self._priced(int(self.sizes.min()), np.min), self._priced(
            int(self.sizes.max()), np.max
        )

    def epsilons(self, delta: float) -> tuple[Bracket, Bracket]:
        """Epsilons of these two at a delta, the first at most the second.

        Each is a bound by itself, and the first may have been rounded up further; by theorem 5 the
        second bounds both.
        """
        least, most = (guarantee.epsilon(delta) for guarantee in self.guarantees())
        if least.upper > most.upper:
            least = replace(
                least, lower=min(least.lower, most.upper), upper=most.upper, upper_by=most.upper_by
            )
        return least, most

    def guarantee_of(self, client: int) -> Guarantee:
        """The guarantee of one client's records (or of all it has), from its own numbers only."""
        checks.count("client", client, minimum=0, maximum=self.plan.clients - 1)
        return self._priced(int(self.sizes[client]), lambda row: row[client if row.size > 1 else 0])

    def _priced(self, records: int, which: Callable[[NDArray[np.float64]], Any]) -> Guarantee:
        p, q = self._rates.of_all_rounds(self.plan, which)
        found = self.plan.phases(records, q, p).guarantee()
        return replace(found, assuming=self.plan.assumed, unit=self.plan.unit)

    def statement(self, delta: float) -> Statement:
        """What a reviewer signs."""
        return self.server.statement(delta)


@dataclass(frozen=True, eq=False)
class _Rates:
    """Rates of clients and records: a row per round or one, a column per client or one."""

    clients: NDArray[np.float64]
    records: NDArray[np.float64]

    @classmethod
    def of(cls, plan: Plan, clients: ArrayLike | None, records: ArrayLike | None) -> _Rates:
        """Rates as given, in place of the plan's."""
        if clients is not None and plan.bins is not None:
            raise ValueError(
                f"client_rates must not be given with bins: "
                f"every client takes part once in {plan.bins}"
            )
        return cls(
            _table("client_rates", clients, plan.client_rate, plan),
            _table("record_rates", records, plan.record_rate, plan),
        )

    def at(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Those of a round."""
        return self.clients[min(number, len(self.clients) - 1)], self.records[
            min(number, len(self.records) - 1)
        ]

    def of_all_rounds(
        self, plan: Plan, which: Callable[[NDArray[np.float64]], Any]
    ) -> tuple[list[float], list[float]]:
        """One rate of each row, for every round."""
        p, q = ([float(which(row)) for row in table] for table in (self.clients, self.records))
        return p * (plan.rounds // len(p)), q * (plan.rounds // len(q))

    def expected(self, plan: Plan, sizes: Numbers) -> list[float] | None:
        """What the sum of each round is divided by, if it is not what the plan says."""
        if self.clients.size == self.records.size == 1:
            return None
        weights = np.ones(plan.clients) if plan.unit == "client" else self.records * sizes
        found: list[float] = np.broadcast_to(
            (self.clients * weights).sum(axis=1), (plan.rounds,)
        ).tolist()
        return found


def _table(name: str, given: ArrayLike | None, largest: float, plan: Plan) -> NDArray[np.float64]:
    found = np.array(largest if given is None else given, dtype=np.float64, ndmin=2)
    if given is None:
        return found
    if found.shape not in ((1, plan.clients), (plan.rounds, plan.clients)):
        raise ValueError(
            f"{name} must have one rate for each of the {plan.clients} clients, "
            "or a row of them for each of the "
            f"{plan.rounds} rounds, got shape {np.shape(given)}"
        )
    if not (found.min() >= LEAST_RATE and found.max() <= largest):
        raise ValueError(
            f"{name} must lie between 2^-70 and the plan's {name[:-1]}, {largest!r}, "
            "the largest of all, "
            f"got {found.min()} to {found.max()}"
        )
    return found


def _checked(sizes: Sequence[int] | Numbers, plan: Plan) -> Numbers:
    found = np.asarray(sizes, dtype=np.int64)
    if found.shape != (plan.clients,):
        raise ValueError(
            f"sizes must have one number for each of the {plan.clients} clients, got {found.shape}"
        )
    if found.min() < 1 or found.max() > plan.largest:
        raise ValueError(
            f"sizes must lie between 1 and the plan's largest, {plan.largest}, "
            f"got {found.min()} to {found.max()}"
        )
    return found
