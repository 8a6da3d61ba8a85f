"""A server: it sums updates, adds noise, divides by the expected size, and steps."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import nn

from verax import checks
from verax.federated.messages import RUN_BYTES, Model, Update, Values
from verax.federated.plan import Plan
from verax.federated.saved_state import load_optimizer, read_state, refuse_other_ledger
from verax.ledger.ledger import Ledger, read
from verax.mechanism import Phases
from verax.privacy.guarantee import Guarantee
from verax.randomness import Source
from verax.training.checkpoint import plain, refuse_seed, settings_of
from verax.training.checkpoint_file import refuse_shared, write_secret
from verax.training.checks.validators import refuse_factory, refuse_optimizer

if TYPE_CHECKING:
    from verax.reporting.statement import Statement

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Reason = Literal[
    "another run",
    "unknown client",
    "forged sender",
    "late",
    "early",
    "replayed",
    "shape",
    "not finite",
    "large",
]
"""Why an update is refused."""
_HELD = {"rounds": int, "optimizer": dict, "optimizer_kind": str, "settings": dict}


class Server:
    """The server of one run, at one round at a time.

    Args:
        plan: what runs.
        weights: the first model's trained parameters, flat; see :func:`verax.federated.weights_of`.
        optimizer: from parameters to an optimizer, such as ``lambda p: torch.optim.SGD(p, 0.1)``.
        expected: a public number that sums are divided by, in place of ``plan.expected``, if
            clients have rates of their own: the sum of their expected numbers of records (or of
            clients). Or one for every round.
        ledger: a new file in which every release is recorded before it happens; or an open
            ``Ledger`` of this plan, whose next round is then the first; or None.
        state: a file for the server's state after every round, from which :meth:`restart` goes on.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.

    ``refused`` counts, by reason, the updates that were not used. Refusing one costs no privacy:
    clients count a round as soon as they compute on it. Threads may call it: each call is done
    before the next begins.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Values,
        optimizer: Optimizer,
        *,
        expected: float | Sequence[float] | None = None,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        state: str | os.PathLike[str] | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.plan = plan
        self._weights = nn.Parameter(torch.from_numpy(np.array(weights, dtype=np.float32)))
        if not bool(torch.isfinite(self._weights).all()):
            raise ValueError("weights must be finite, got some that are not")
        refuse_factory(optimizer)
        self._optimizer = optimizer([self._weights])
        refuse_optimizer(self._optimizer)
        self._expected = _each(plan.expected if expected is None else expected, plan.rounds)
        self._source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self._noise = self._source.spawn("noise of the server")
        self._total, self._any = np.zeros(len(self._weights)), False
        self._update = torch.zeros_like(self._weights.detach())
        self._limit = plan.longest(len(self._weights))
        self._heard: set[int] = set()
        self.refused: Counter[Reason] = Counter()
        self._lock = threading.RLock()
        self._state = None if state is None else os.fspath(state)
        if self._state is not None:
            checks.writable("state", self._state)
            refuse_shared(
                self._state, {"ledger": ledger.path if isinstance(ledger, Ledger) else ledger}
            )
        self._round, self._run, self._ledger = (
            0,
            secrets.token_bytes(RUN_BYTES),
            self._recorded(ledger),
        )
        if self._ledger is not None:  # one name and one count for ledger, state and messages
            self._round, self._run = self._ledger.released, bytes.fromhex(self._ledger.run)
        self._save()

    def _recorded(self, ledger: str | os.PathLike[str] | Ledger | None) -> Ledger | None:
        """The ledger of this very run, begun if it is new."""
        if ledger is None:
            return None
        if not isinstance(ledger, Ledger):
            insecure = not self._source.secure
            return Ledger.create(
                ledger, self.plan.mechanism(), insecure_seed=insecure, unit=self.plan.unit
            )
        declared = Phases((self.plan.mechanism(),))
        if ledger.mechanism != declared or ledger.unit != self.plan.unit:
            raise ValueError(
                f"ledger must declare what the plan runs, {declared!r}, "
                f"protecting one {self.plan.unit}, got "
                f"{ledger.mechanism!r}, protecting one {ledger.unit}"
            )
        refuse_seed(ledger, self._source.secure)
        return ledger

    @classmethod
    def restart(
        cls,
        plan: Plan,
        optimizer: Optimizer,
        *,
        ledger: str | os.PathLike[str],
        state: str | os.PathLike[str],
        expected: float | Sequence[float] | None = None,
        insecure_seed: int | None = None,
    ) -> Server:
        """Resume after a crash. Rounds in the ledger but not in the state count as spent.

        The two must be of one run, and the state not ahead of the ledger, whose last lines would
        then be lost. The noise goes on from fresh entropy: a lost round may have used what an old
        state would draw next.
        """
        held = read_state(state, plan, _HELD)
        book = Ledger.open(ledger, plan.mechanism())
        try:
            refuse_other_ledger(held, book)
            server = cls(
                plan,
                held["weights"].numpy(),
                optimizer,
                expected=expected,
                ledger=book,
                insecure_seed=insecure_seed,
            )
            load_optimizer(server._optimizer, held)
        except BaseException:  # in a notebook the traceback keeps the ledger
            book.close()
            raise
        server._state = os.fspath(state)
        return server

    # --- a round ----------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The number of the round that is being collected: how many were released."""
        return self._round

    @property
    def weights(self) -> torch.Tensor:
        """The weights themselves, in the server's own memory."""
        return self._weights.detach()

    def model(self) -> Model:
        """What to broadcast now."""
        return Model(self._run, self._round, self._weights.detach().numpy().copy())

    def receive(self, update: Update, sender: int | None = None) -> Reason | None:
        """Use an update, or say why it is refused; refusals are counted, and the round goes on.

        Args:
            update: what arrived.
            sender: the client that the transport knows to have sent it, if it knows.
        """
        with self._lock:  # the same update must not be found new twice
            reason = self._objection(update, sender)
            if reason is not None:
                self.refused[reason] += 1
                return reason
            self._heard.add(update.client)
            self.add(update.values)
            return None

    def _objection(self, update: Update, sender: int | None) -> Reason | None:
        if update.run != self._run:
            return "another run"
        if update.client >= self.plan.clients:
            return "unknown client"
        if sender is not None and sender != update.client:
            return "forged sender"
        if update.round != self._round:
            return "late" if update.round < self._round else "early"
        if update.client in self._heard:
            return "replayed"
        return objection(update.values, len(self._total), self._limit)

    def add(self, total: Values) -> None:
        """Add a sum that was computed in this process, for many clients at once."""
        with self._lock:
            if self._any:
                self._total += total
            else:
                self._total[:], self._any = total, True

    def step(self, others: Source | None = None, sigma: float = 0.0) -> None:
        """End the round: record it, add noise, divide by the expected size, step.

        Args:
            others: for an engine in which clients send sums without their noise: where their noises
                come from.
            sigma: standard deviation of the sum of these noises.
        """
        with self._lock:
            self._step(others, sigma)

    def _step(self, others: Source | None, sigma: float) -> None:
        plan = self.plan
        if self._round >= plan.rounds:
            raise ValueError(
                f"the {plan.rounds} planned rounds are over; plan more before the first one"
            )
        if self._ledger is not None:
            self._ledger.release(
                self._round, clip_norm=plan.clip_norm, noise_multiplier=plan.noise_multiplier
            )
        expected = self._expected[self._round]
        self._round += 1
        self._heard.clear()
        if not self._any:
            self._total[:] = 0.0
        if plan.noise == "central" and plan.sigma > 0.0:
            self._noise.add_gaussian(self._total, plan.sigma)
        if others is not None and sigma > 0.0:
            others.add_gaussian(self._total, sigma)
        np.divide(self._total, expected, out=self._update.numpy(), casting="same_kind")
        self._any = False
        self._weights.grad = self._update
        self._optimizer.step()
        self._weights.grad = None
        self._save()

    def finish(self) -> None:
        """Close the ledger, the run being over."""
        if self._ledger is not None:
            self._ledger.finish()

    def close(self) -> None:
        """Let another process restart the run."""
        if self._ledger is not None:
            self._ledger.close()

    def _save(self) -> None:
        """Save what :meth:`restart` needs before the model is out; no secret of the noise."""
        if self._state is not None:
            write_secret(
                self._state,
                {
                    "plan": repr(self.plan),
                    "run": self._run.hex(),
                    "rounds": self._round,
                    "weights": self._weights.detach(),
                    "optimizer": plain(self._optimizer.state_dict()),
                    "optimizer_kind": type(self._optimizer).__name__,
                    "settings": settings_of(self._optimizer),
                },
            )

    # --- what it cost -----------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee from the plan's numbers, the largest of all: it covers all clients."""
        return self.plan.guarantee()

    def statement(self, delta: float) -> Statement:
        """What a reviewer signs, with what the ledger says of the run, if there is one."""
        # reporting depends on this room, not the reverse
        from verax.reporting.statement import Statement

        runs = [] if self._ledger is None else [read(self._ledger.path)]
        return Statement.of(self.guarantee, delta, runs, private=self._source.secure)


def objection(values: Values, dimension: int, limit: float) -> Reason | None:
    """What is wrong with the numbers of an update, if anything."""
    if values.shape != (dimension,):
        return "shape"
    if not np.isfinite(values).all():
        return "not finite"
    if float(np.linalg.norm(values.astype(np.float64))) > limit:
        return "large"
    return None


def _each(expected: float | Sequence[float], rounds: int) -> list[float]:
    """What the sum of every round is divided by."""
    given = list(expected) if isinstance(expected, Sequence) else [expected] * rounds
    if len(given) != rounds:
        raise ValueError(
            f"expected must be one number, or one for each of the {rounds} rounds, got {len(given)}"
        )
    return [checks.positive("expected", value) for value in given]
