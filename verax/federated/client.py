"""A client: data, coins, noise and ledger. Only updates leave it."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from verax import checks
from verax.federated.coins import Coins, Numbers, Rates
from verax.federated.messages import Model, Update, Values
from verax.federated.plan import Plan
from verax.federated.worker import Worker
from verax.ledger.ledger import Ledger
from verax.privacy.guarantee import Guarantee
from verax.privacy.renyi.filter import Budget
from verax.randomness import Source
from verax.training.checkpoint import refuse_seed
from verax.training.clipping.clipper import MICRO_BATCH
from verax.training.clipping.local_update import Inner
from verax.training.data.dataset import Data
from verax.training.gradients.loss import Criterion
from verax.training.seeds import Draws

if TYPE_CHECKING:
    from verax.reporting.statement import Statement

_LOOK = 4  # records with which it is seen beforehand whether a data set's own batches mix them


class Refused(ValueError):  # noqa: N818 - public name, says what happened
    """The client will not answer this model. Nothing was computed, spent or sent."""


class Client:
    """One client. It takes part by its own coin, and answers every round at most once.

    Whether it takes part, which records it uses and where its randomness comes from never leaves
    it: not in its messages, its ledger or its errors. The ledger counts every round it is asked
    for, and those it missed.

    Args:
        number: which client it is, from 0.
        data: tensors, a dictionary of tensors or a map-style data set: the client's own records.
            Where records are protected, a data set's ``__getitems__`` must treat each by itself.
        plan: what runs; this client may have rates of its own (``dataclasses.replace(plan,
            client_rate=...)``).
        model: a module of its own; the server's weights are put into it.
        loss: a torch criterion of outputs and targets, or for dictionaries of data a function of
            model and batch.
        ledger: a new file, or a ledger opened with ``Ledger.open`` to go on after a crash; or None
            for none.
        records: a public bound on the number of its records, for its guarantee; by default their
            number.
        client_rates: one for every round in place of the plan's, declared in advance.
        record_rates: the same for records.
        budget: in place of a ledger, for rates that are chosen as one goes (asynchronous rounds):
            every round is spent from it before it is computed, and no round runs that would exceed
            it.
        inner: where the client's aggregate is clipped, what it is (see ``Worker``).
        micro_batch: how many records are worked on at once.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.
            Clients and server with the same seed draw what :class:`verax.federated.Embedded` with
            that seed draws.

    >>> import torch
    >>> from verax.federated import Client, Plan, Server, weights_of
    >>> plan = Plan(
    ...     clients=2,
    ...     records=40,
    ...     largest=20,
    ...     client_rate=0.5,
    ...     record_rate=0.5,
    ...     rounds=3,
    ...     noise_multiplier=1.0,
    ... )
    >>> def module():
    ...     return torch.nn.Linear(3, 2)
    >>> def own():
    ...     return torch.randn(20, 3), torch.randint(0, 2, (20,))
    >>> clients = [Client(i, own(), plan, module(), torch.nn.CrossEntropyLoss()) for i in range(2)]
    >>> server = Server(plan, weights_of(module()), lambda p: torch.optim.SGD(p, 0.1))
    >>> for _ in range(plan.rounds):
    ...     for client in clients:
    ...         update = client.answer(server.model())
    ...         if update is not None:
    ...             _ = server.receive(update)
    ...     server.step()
    >>> server.round, clients[0].spent
    (3, 3)
    """

    def __init__(
        self,
        number: int,
        data: Any,
        plan: Plan,
        model: nn.Module,
        loss: Criterion,
        *,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        records: int | None = None,
        client_rates: Sequence[float] | None = None,
        record_rates: Sequence[float] | None = None,
        budget: Budget | None = None,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        insecure_seed: int | None = None,
    ) -> None:
        self.number = checks.count("number", number, minimum=0, maximum=plan.clients - 1)
        self.plan = plan
        self._data = Data(data)
        if plan.unit == "record":  # else all its records are clipped at once, and may be mixed
            self._data.watch(in_order=False)
        bound = len(self._data) if records is None else checks.count("records", records)
        if not len(self._data) <= bound <= plan.largest:
            raise ValueError(
                f"records must be at least the client's own number and at most "
                f"the plan's largest, {plan.largest}, "
                f"got {bound}; plan with a larger one"
            )
        self.records = bound
        self._rates = (
            [plan.record_rate] * plan.rounds
            if record_rates is None
            else [*map(float, record_rates)]
        )
        self._client_rates = (
            [plan.client_rate] * plan.rounds
            if client_rates is None
            else [*map(float, client_rates)]
        )
        self.mechanism = plan.phases(bound, self._rates, self._client_rates)
        if budget is not None and ledger is not None:
            raise ValueError(
                "budget and ledger must not both be given: each of them counts the rounds"
            )
        self.budget = budget
        source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self.private = source.secure
        draws = Draws(source.spawn(f"draws of client {self.number}"))
        self._worker = Worker(model, loss, plan, inner, micro_batch, draws=draws)
        # a first look before any round, where a refusal tells that it takes part
        if self._data.collate_check is not None:
            self._worker.take(self._data, np.arange(min(len(self._data), _LOOK)))
        self._noise = source.spawn(f"noise of client {self.number}")
        self._ledger = self._opened(ledger)
        self._spent = 0 if self._ledger is None else self._ledger.released
        if budget is not None:
            spent = [phase.sampler.record_rate for phase in budget.phases]  # type: ignore[attr-defined]
            self._rates[: len(spent)] = spent
            self._spent = len(budget.phases)
        # a seed gives the same key again
        self._coins = Coins(source.spawn("lots"), self._spent if self.private else 0)
        self._run: bytes | None = None
        self._lock = threading.RLock()

    def _opened(self, ledger: str | os.PathLike[str] | Ledger | None) -> Ledger | None:
        if ledger is None:
            return None
        if not isinstance(ledger, Ledger):
            return Ledger.create(
                ledger, self.mechanism, insecure_seed=not self.private, unit=self.plan.unit
            )
        if ledger.mechanism != self.mechanism or ledger.unit != self.plan.unit:
            raise ValueError(
                f"ledger must declare what this client runs, {self.mechanism!r}, "
                f"protecting one {self.plan.unit}"
            )
        refuse_seed(ledger, self.private)
        return ledger

    # --- a round ----------------------------------------------------------------------------------

    @property
    def dimension(self) -> int:
        """Number of trained parameters."""
        return self._worker.dimension

    @property
    def spent(self) -> int:
        """Rounds counted as released; only this round or a later one can be answered."""
        return self._spent

    def rehearse(self) -> None:
        """Work on one record and discard the result: the first work of a process is slow.

        (torch then imports what it needs, a second of CPU time for some models.)
        """
        self._worker.total(
            self._data.take(np.arange(min(len(self._data), 1))), min(len(self._data), 1)
        )

    def answer(self, model: Model) -> Update | None:
        """This client's update of a round; None if it does not take part.

        A round is answered once: were it asked for again, a second answer would cost again. Rounds
        that were missed are counted as if they had been answered.

        Raises:
            Refused: the round was answered before or is not part of the plan, or the model is of
                another run, another shape or not finite.
        """
        with self._lock:  # a round is answered once, also if two threads ask
            self._refuse(model)
            self._worker.load(model.weights)
            self.charge(model.round)
            return self._sealed(model, self.contribution(model.round))

    def _sealed(self, model: Model, found: Values | None) -> Update | None:
        if self.plan.noise == "central":
            return (
                None if found is None else Update(model.run, self.number, model.round, found.copy())
            )
        if self.plan.noise == "visible" and found is None:
            return None
        return Update(model.run, self.number, model.round, self.noisy(found))

    def _refuse(self, model: Model) -> None:
        if self._run is None:
            self._run = model.run
        if model.run != self._run:
            raise Refused("the model belongs to another run than the one this client joined")
        if model.round < self._spent:
            raise Refused(
                f"round {model.round} is spent, the next is {self._spent}: "
                "to repeat one would cost again"
            )
        if model.round >= self.plan.rounds:
            raise Refused(
                f"round {model.round} is beyond the {self.plan.rounds} planned rounds, "
                "which count from 0"
            )
        self.refuse_weights(model.weights)

    def refuse_weights(self, weights: Values) -> None:
        """Raise unless these can be put into the client's model."""
        if len(weights) != self._worker.dimension:
            raise Refused(
                f"the model must have {self._worker.dimension} weights, got {len(weights)}"
            )
        if not np.isfinite(weights).all():
            raise Refused("the model's weights must be finite")

    def contribution(self, number: int, weights: Values | None = None) -> Values | None:
        """The clipped sum of a round, without noise: **secret**. None if the client stays away.

        Args:
            number: of the round, which must have been charged.
            weights: where; by default at the last model.
        """
        if weights is not None:
            self._worker.load(weights)
        me = np.array([self.number])
        if not taking_part(self._coins, self.plan, number, me, self._client_rates[number]).size:
            return None
        chosen = used(
            self._coins,
            self._rates[number],
            number,
            me,
            np.array([len(self._data)]),
            np.zeros(1, np.int64),
        )
        return self._worker.total(self._worker.take(self._data, chosen), len(chosen))

    def charge(self, number: int, record_rate: float | None = None) -> None:
        """Count all rounds up to this one as released, before anything of it is computed.

        Args:
            number: of the round.
            record_rate: with a budget: the rate of this round's records, chosen now.
        """
        with self._lock:
            while self._spent <= number:
                self._charge_next(record_rate)

    def _charge_next(self, record_rate: float | None) -> None:
        if self.budget is not None:
            self._rates[self._spent] = record_rate or self._rates[self._spent]
            rates = {
                "client_rate": self._client_rates[self._spent],
                "record_rate": self._rates[self._spent],
            }
            self.budget.spend(replace(self.plan, **rates, rounds=1).mechanism(self.records))  # type: ignore[arg-type]
        elif record_rate is not None:
            raise ValueError(
                "record_rate must not be chosen on the way without a budget: declare record_rates"
            )
        elif self._ledger is not None:
            plan = self.plan
            self._ledger.release(
                self._spent, clip_norm=plan.clip_norm, noise_multiplier=plan.noise_multiplier
            )
        self._spent += 1

    def seen(self, number: int) -> float:
        """Expected number of records used before a round, from public numbers."""
        rates = zip(self._client_rates[:number], self._rates[:number], strict=True)
        return self.records * math.fsum(p * q for p, q in rates)

    def noisy(self, found: Values | None) -> Values:
        """A contribution, or none, under this client's own noise."""
        total = np.zeros(self._worker.dimension) if found is None else found.astype(np.float64)
        if self.plan.sigma > 0.0:
            self._noise.add_gaussian(total, self.plan.sigma)
        return total.astype(np.float32)

    # --- what it cost -----------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of this client for the whole plan, from its own numbers only."""
        return replace(self.mechanism.guarantee(), assuming=self.plan.assumed, unit=self.plan.unit)

    def statement(self, delta: float) -> Statement:
        """What the client's owner can sign, in words."""
        # reporting depends on this room, not the reverse
        from verax.reporting.statement import Statement

        if self.budget is not None:
            return self.budget.statement(private=self.private, unit=self.plan.unit)
        return Statement.of(self.guarantee, delta, private=self.private)

    def finish(self) -> None:
        """Close the client's ledger, the run being over."""
        if self._ledger is not None:
            self._ledger.finish()


def taking_part(coins: Coins, plan: Plan, number: int, clients: Numbers, rate: Rates) -> Numbers:
    """Indices of the clients that take part in a round; with bins the rate is theirs."""
    if plan.bins is not None:
        epoch, now = divmod(number, plan.bins)
        # under an earlier key some may have taken part: none may do so twice
        if epoch * plan.bins < coins.since:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(coins.picks(plan.bins, epoch, clients) == now)
    return np.flatnonzero(coins.clients(rate, number, clients))


def used(
    coins: Coins, rate: Rates, number: int, clients: Numbers, sizes: Numbers, starts: Numbers
) -> Numbers:
    """Indices of the records used by participants; ``starts`` are their first records."""
    chosen = np.flatnonzero(coins.records(rate, number, clients, sizes))
    owners = np.searchsorted(np.cumsum(sizes), chosen, side="right")
    return chosen - (np.cumsum(sizes) - sizes)[owners] + starts[owners]
