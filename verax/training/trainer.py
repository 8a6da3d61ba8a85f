"""Private training: draw a batch, clip, write the ledger, add the noise, step.

One round is: draw a batch, add up its clipped gradients, each divided by a public number, write the
ledger, add the noise, step. Empty batches are rounds like any other. Whatever leaves the mechanism
stops the run, and the ledger says so.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from verax import checks
from verax.ledger.entries import Norms, norms_of
from verax.ledger.ledger import Ledger, LeftMechanism, read
from verax.ledger.run import NOT_PRIVATE as NOT_PRIVATE
from verax.ledger.run import PUBLIC_NUMBER, attacked, released, tells_number
from verax.mechanism import Batch, Mechanism, Mixed, Phases
from verax.privacy.guarantee import Guarantee
from verax.randomness import Source
from verax.samplers.stream import Batches, resume
from verax.training.checkpoint import (
    StateFile,
    plain,
    random_sources,
    read_state,
    refuse_other_run,
    restore_state,
    settings_of,
    skip_rounds,
)
from verax.training.checkpoint_file import write_secret
from verax.training.checks.validators import refuse_flat, refuse_loss, refuse_run, refuse_schedule
from verax.training.clipping.clipper import MICRO_BATCH, Clipper, Inner, NotFinite
from verax.training.clipping.flat_buffer import Flat
from verax.training.data.dataset import Data, open_dataset
from verax.training.data.round import Round, sizes_of
from verax.training.data.stream import Collate, Stream, WrongLength
from verax.training.diagnostics import Diagnostics
from verax.training.distributed import (
    LeavingMechanism,
    LostProcess,
    add_share,
    clip_aggregate,
    find_processes,
    refuse_opened_elsewhere,
)
from verax.training.gradients.loss import Criterion, PerRecord, same_loss
from verax.training.seeds import Draws
from verax.training.step_guard import SingleCaller, StepGuard

if TYPE_CHECKING:
    from verax.reporting.statement import Statement


class PrivateTrainer:
    """Trains a model by a mechanism, one round at a time.

    Args:
        model: any module. It is left as it is: no wrapper, no new keys in its state.
        optimizer: over the model's parameters; it sees noisy gradients only. L-BFGS is refused: it
            evaluates more often than it releases.
        mechanism: what runs.
        ledger: where to record every release, a new file; or an open ``Ledger``; or None for none.
        inner: for batch and mixed clipping, what a clip-group computes; by default the gradient of
            its mean loss.
        micro_batch: at most how many records are worked on at once (fewer for large models). It
            changes memory and speed, never the result's law.
        clip_norms: a clip norm for every round in place of the mechanism's own: a list, or a
            function of the round's number, chosen without looking at the data and declared before
            the first round. Noise is in proportion, so the guarantee stays the same.
        schedule: a ``torch.optim.lr_scheduler`` of the optimizer, stepped once a round and saved
            with the state.
        state: a file that is kept up to date while the run goes on, and from which it goes on, if
            it is there: after an interruption the same program continues the run, and if it is
            over, loads its weights and says so. It is a secret, see ``save``.
        records: a public number of records, by which updates are scaled (the expected batch is
            computed from it). By default the data set's own number, which is then taken to be
            public: under add-remove it differs between neighbours, and the guarantee names it as an
            assumption.
        processes: None for all processes of ``torch.distributed`` if it was initialised, which then
            train one model together; 1 for a run of this process alone; or a process group.
        diagnostics: a new file for losses and gradient norms of the batches, which **no noise
            protects**: for the eyes of those who may see the data (see
            ``verax.training.diagnostics``). For runs of one process.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.

    >>> import torch
    >>> from verax import Mechanism, Poisson
    >>> from verax.training import PrivateTrainer
    >>> model = torch.nn.Linear(3, 2)
    >>> trainer = PrivateTrainer(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), 0.1),
    ...     Mechanism(Poisson(rate=0.5, steps=4), noise_multiplier=1.0),
    ... )
    >>> data = torch.randn(20, 3), torch.randint(0, 2, (20,))
    >>> for batch in trainer.batches(data):
    ...     trainer.step(batch, torch.nn.CrossEntropyLoss())
    >>> trainer.guarantee.epsilon(delta=1e-3).upper < 6
    True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        mechanism: Mechanism,
        *,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        inner: Inner | None = None,
        micro_batch: int = MICRO_BATCH,
        clip_norms: Norms | None = None,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
        state: str | os.PathLike[str] | None = None,
        records: int | None = None,
        processes: Any = None,
        diagnostics: str | os.PathLike[str] | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        refuse_run(model, optimizer, mechanism, inner)
        refuse_schedule(schedule)
        for parameter in model.parameters():
            parameter.grad = None  # that of public training before this; what comes now is noticed
        self.model, self.optimizer, self._mechanism = model, optimizer, mechanism
        self.micro_batch = checks.count("micro_batch", micro_batch)
        self._inner, self._schedule = inner, schedule
        self._norms = None if clip_norms is None else norms_of(clip_norms, len(mechanism.sampler))
        self._declared_records = None if records is None else checks.count("records", records)
        # now, so that what nobody can price is not trained either
        self._priced = mechanism.guarantee()
        self._secure = insecure_seed is None
        source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self._noise, self._groups, self._sampling = (
            source.spawn(use) for use in ("noise", "clip-groups", "sampling")
        )
        self._draws = Draws(source.spawn("draws"))
        self._sequence: Batches | None = None
        self._indices: NDArray[np.int64] | None = None  # drawn, and not fetched yet
        self._pending: Round | None = None
        self._next = 0
        self._data: Data | Stream | None = None
        self._collate: Collate | None = None
        self._expected = 0.0
        self._held: tuple[Criterion, Clipper] | None = None
        self._total: Flat | None = None
        self._step_guard, self._has_gradient, self._finished = StepGuard(optimizer), False, False
        self._stopped: Exception | None = None
        self._caller = SingleCaller()
        # the program may go elsewhere
        self._state = None if state is None else Path(state).absolute()
        self._file: StateFile | None = None
        self._resumed = False
        self._unrecorded = False  # whether rounds may have been released that nobody wrote down
        self._ledger: Ledger | None = None
        self._peers = find_processes(
            processes, next((p.device for p in model.parameters()), torch.device("cpu"))
        )
        try:
            if self._peers is None:
                self._open(ledger, diagnostics)
            elif diagnostics is not None:
                raise ValueError(
                    "diagnostics are of one process, which sees whole batches: leave them out here"
                )
            else:
                self._join(ledger)
            self._diagnostics = (
                None
                if diagnostics is None
                else Diagnostics(
                    diagnostics,
                    len(mechanism.sampler),
                    mechanism.noise_multiplier,
                    resumed=self._next > 0 or self._resumed,
                )
            )
        except (
            BaseException
        ):  # in a notebook the traceback keeps the trainer, and with it what it opened
            self._ledger = None if isinstance(ledger, Ledger) else self._ledger
            self.close()
            raise

    def _open(
        self, ledger: str | os.PathLike[str] | Ledger | None, diagnostics: Any = None
    ) -> None:
        """Lock the state file, and begin or check the ledger, which must declare this run."""
        if self._state is not None:
            book = ledger.path if isinstance(ledger, Ledger) else ledger
            self._file = StateFile(self._state, {"ledger": book, "diagnostics": diagnostics})
            self._resumed = self._file.hold()
        if ledger is not None:
            if not isinstance(ledger, Ledger):
                begin = partial(
                    Ledger.create,
                    ledger,
                    self.mechanism,
                    population=self._declared_records,
                    insecure_seed=not self._secure,
                    clip_norms=self._norms,
                )
                file = self._file
                ledger = (
                    begin()
                    if file is None
                    else file.ledger(Path(ledger), self.mechanism, begin, self._resumed)
                )
            self._ledger, self._next = ledger, ledger.released
            refuse_other_run(
                ledger, self.mechanism, self._norms, self._declared_records, self._secure
            )
        if self._resumed:
            # weights can wait until it goes on
            self._note(self._checked(self._state or "", "meta"))

    def _join(self, ledger: str | os.PathLike[str] | Ledger | None) -> None:
        """Share one ledger, one secret, one description and the weights with all processes."""
        peers = self._peers
        assert peers is not None  # noqa: S101
        peers.on_first(lambda: self._open(ledger))
        peers.together(lambda: refuse_opened_elsewhere(ledger, peers.first))
        peers.agree(
            {
                "mechanism": repr(self.mechanism),
                "clip_norms": self._norms,
                "records": self._declared_records,
                "parameters": [(p.shape, p.dtype) for p in self.model.parameters()],
                "optimizer": (type(self.optimizer).__name__, repr(self.optimizer.defaults)),
                "inner": type(self._inner).__name__,
                "schedule": type(self._schedule).__name__,
            }
        )
        mine = (
            self._groups.state(),
            self._sampling.state(),
            self._next,
            self._resumed,
            self._secure,
            self._unrecorded,
        )
        groups, sampling, self._next, self._resumed, self._secure, self._unrecorded = peers.share(
            mine
        )
        if not peers.first:
            self._groups, self._sampling = Source.restore(groups), Source.restore(sampling)
        peers.broadcast_all((*self.model.parameters(), *self.model.buffers()))

    # --- the loop ---------------------------------------------------------------------------------

    def batches(self, dataset: Any, collate_fn: Collate | None = None) -> Iterator[Round]:
        """Every batch of the run, drawn by the sampler; step on each before the next.

        Args:
            dataset: tensors, a dictionary of them, a map-style data set, or a stream for samplers
                that read in order.
            collate_fn: for data sets that give records by number, from a list of records to a
                batch; it must treat each record by itself.
        """
        with self._caller.taken("batches"):
            self._begin(dataset, collate_fn)
        while True:
            with self._caller.taken("batches"):
                self._keep()
                drawn = self._fetch()
            if drawn is None:
                return
            yield drawn

    def _begin(self, dataset: Any, collate_fn: Collate | None) -> None:
        """Look at the data, and begin the sampler's sequence or go on with it."""
        if self._stopped is not None:
            raise self._stopped
        if self._finished:
            warnings.warn(
                "the run is over: all its rounds were released, epochs and all",
                UserWarning,
                stacklevel=3,
            )
        self._collate = collate_fn
        self._see(dataset)
        if self._sequence is None:
            if self._resumed:
                self._load(self._state or "", dataset)  # the first process knows where it is
                if self._file is not None and self.rounds == len(self.mechanism.sampler):
                    self._file.tell_over()
            elif self._next > 0:
                raise ValueError(
                    f"the ledger knows {self._next} rounds whose batches this trainer did not "
                    "draw: load() the state that was saved, which knows the sampler's sequence; "
                    "without one, begin another ledger"
                )
            else:
                self._draw()

    def _fetch(self) -> Round | None:
        """Draw the next batch and fetch its records; None after the last round."""
        assert self._sequence is not None  # noqa: S101
        self._indices = next(self._sequence, None) if self._indices is None else self._indices
        self._refuse_pending()
        if self._indices is not None:
            try:
                self._pending = self._round(self._indices)
            except WrongLength as error:
                self._leave(str(error))
            self._indices = None
            return self._pending
        if self.rounds == len(self.mechanism.sampler):
            if self._ledger is not None and not self._ledger.over:
                self._ledger.finish()
            self._finished = True
            self.close()
        return None

    def _refuse_pending(self) -> None:
        """Stop the run if somebody asks for more than the batch that waits to be stepped on."""
        if self._stopped is not None:
            raise self._stopped
        if self._pending is not None:
            self._leave(f"round {self._pending.number} was drawn but not stepped on")

    def _see(self, dataset: Any) -> None:
        """Open the data, whose number of records must stay the same during the run."""
        sampler = self.mechanism.sampler
        seen = open_dataset(
            dataset, sampler, self._declared_records, self.mechanism.clipping, self._collate
        )
        if self._data is not None and len(seen) != len(self._data):
            raise ValueError(
                f"dataset must have the {len(self._data)} records that the run began with, got "
                f"{len(seen)}"
            )
        if self._peers is not None:
            self._peers.agree({"dataset": f"{len(seen)} records"})
        self._data, self._expected = (
            seen,
            sampler.expected_batch(self._declared_records or len(seen)),
        )

    def _draw(self, kept: dict[str, Any] | None = None) -> None:
        """Begin the sampler's sequence, or go on with one that was kept."""
        assert self._data is not None  # noqa: S101
        sampler, records, rng = self.mechanism.sampler, len(self._data), self._sampling.generator()
        drawn = sampler.draw(records, rng) if kept is None else resume(sampler, kept, records, rng)
        self._sequence = cast(Batches, drawn)

    def _round(self, indices: NDArray[np.int64]) -> Round:
        assert self._data is not None  # noqa: S101
        number, records = self._next, len(indices)
        clipping, labels = self.mechanism.clipping, None
        # for the whole batch, whoever works on it; groups lie one behind the other
        if isinstance(clipping, Mixed):
            labels = self._groups.generator().integers(0, clipping.groups, records)
            order = np.argsort(labels, kind="stable")
            indices, labels = indices[order], labels[order]
        if self._peers is None:
            return Round(number, self._data.take(indices, number), records, groups=sizes_of(labels))
        split = self._peers.split(clipping, self._inner, self.model)
        mine = self._peers.mine(records, clipping, labels, split)
        here = len(indices[mine])
        share = here / records if split and records else None
        data = self._data.take(indices, number, mine)
        return Round(number, data, here, share, sizes_of(None if labels is None else labels[mine]))

    def step(self, batch: Round, loss: Criterion) -> None:
        """Clip, add up, record, add noise, and let the optimizer step; also for an empty batch."""
        with self._caller.taken("step"):
            self._step(batch, loss)

    def _step(self, batch: Round, loss: Criterion) -> None:
        if self._stopped is not None:
            raise self._stopped
        peers = self._peers
        try:
            if peers is None:
                total = self._clipped(batch, loss)
                self._release(batch, total)
            else:
                total = peers.together(lambda: self._clipped(batch, loss))
                peers.reduce_to_first(total.buffer)
                peers.on_first(lambda: self._release(batch, total))
                self._pending, self._next = None, batch.number + 1
                peers.broadcast(total.buffer)
        except LeavingMechanism as departure:
            self._leave(departure.reason, departure.private)
        except LostProcess as lost:
            self._stopped = lost
            self.close()
            raise
        total.put_gradients()
        self._step_guard.step()
        for parameter in total.parameters:
            parameter.grad = None
        if self._schedule is not None:
            self._schedule.step()

    def _clipped(self, batch: Round, loss: Criterion) -> Flat:
        """The clipped sum of the batch, or of this process's share, divided as it is added."""
        if self._pending is None or batch is not self._pending:
            raise LeavingMechanism(
                "a batch that this run's sampler did not draw, or an old one, was stepped on"
            )
        parameters = [
            p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        if (foreign := self._step_guard.violation()) is not None:
            raise LeavingMechanism(foreign)
        if batch.records:
            refuse_loss(loss, batch.data)
        clipper = self._clipper(loss)
        if self._data is not None and self._data.watched is not None:
            self._data.watched.refuse_mixing(self.model, clipper.losses)
        over = clipper.denominator(self._expected)
        total = self._total = (
            Flat(parameters, over) if self._total is None else self._total.again(parameters, over)
        )
        if self._norms is not None:
            clipper.clipping = replace(self.mechanism.clipping, norm=self._norms[batch.number])
        try:
            if batch.share is not None:
                add_share(clipper, batch.data, batch.records, batch.share, total)
            else:
                add = (
                    clipper.add
                    if self._diagnostics is None
                    else self._diagnostics.adding(clipper, batch.number)
                )
                add(batch.data, batch.records, total, batch.groups)
        except NotFinite as error:
            raise LeavingMechanism(str(error), private=True) from None
        if batch.records and not self._has_gradient:
            self._has_gradient = self._inner is not None or bool(total.buffer.any())
            if not self._has_gradient:
                refuse_flat(self.model, clipper.losses, batch.data, batch.records)
        return total

    def _release(self, batch: Round, total: Flat) -> None:
        """Record the round, and only then add its noise; in one process of a run."""
        norm = self.mechanism.clipping.norm if self._norms is None else self._norms[batch.number]
        noise = self.mechanism.noise_multiplier
        # whatever the others sent
        if self._peers is not None and isinstance(self.mechanism.clipping, Batch):
            try:
                clip_aggregate(total.buffer, norm)
            except NotFinite as error:
                raise LeavingMechanism(str(error), private=True) from None
        if self._ledger is not None:
            self._ledger.release(batch.number, clip_norm=norm, noise_multiplier=noise)
        self._pending, self._next = None, batch.number + 1
        if noise > 0.0:
            total.add_noise(self._noise, noise * norm)

    def _clipper(self, loss: Criterion) -> Clipper:
        if self._held is None or not same_loss(self._held[0], loss):
            clipper = Clipper(
                self.model,
                PerRecord(loss),
                self.mechanism.clipping,
                self._inner,
                self.micro_batch,
                self._draws,
            )
            self._held = loss, clipper
        return self._held[1]

    def _leave(self, reason: str, private: bool = False) -> NoReturn:
        self._stopped = (
            LeftMechanism(reason)
            if self._ledger is None
            else self._ledger.left(reason, private=private)
        )
        self.close()
        raise self._stopped

    @property
    def mechanism(self) -> Mechanism:
        """What runs; it cannot be changed any more."""
        return self._mechanism

    # --- what it cost -----------------------------------------------------------------------------

    @property
    def first(self) -> bool:
        """Whether this process writes the ledger: the only one, or the first of several."""
        return self._peers is None or self._peers.first

    @property
    def private(self) -> bool:
        """Whether its randomness is secret: no seed was chosen."""
        return self._secure

    @property
    def rounds(self) -> int:
        """How many rounds were released."""
        return self._next

    def count_ledger(self) -> None:
        """Count rounds as the ledger does, which may know one more after an interruption."""
        if self._ledger is not None:
            self._next = max(self._next, read(self._ledger.path).released)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the declared run, which holds wherever training stops."""
        assumed = [self._priced.assuming] * bool(self._priced.assuming)
        if self._declared_records is None and tells_number(self.mechanism):
            assumed.append(PUBLIC_NUMBER)
        if self._unrecorded:
            assumed.append(
                "that nobody saw a round between the saved state and its loading (a ledger would "
                "know)"
            )
        return replace(self._priced, assuming="; ".join(assumed))

    @property
    def so_far(self) -> Guarantee | None:
        """The guarantee of the rounds so far, had their number been fixed beforehand."""
        ran = released(Phases((self.mechanism,)), self._next, up=True)
        if ran is None:
            return None
        # a part of an epoch is charged as a whole one, but nobody can attack the rest of it
        found = attacked(ran.guarantee(), self.mechanism, self._next)
        return replace(found, assuming="that the run was to stop here")

    def statement(self, delta: float, path: str | os.PathLike[str] | None = None) -> Statement:
        """The statement of the run; with a path also written, in the format of its suffix."""
        # reporting depends on training, not the reverse
        from verax.reporting.statement import Statement

        checks.probability("delta", delta)
        guarantee = attacked(self.guarantee, self.mechanism, self.rounds)
        runs = [] if self._ledger is None else [read(self._ledger.path)]
        statement = Statement.of(
            guarantee, delta, runs, private=self._secure, records=self._declared_records
        )
        if path is not None and self.first:
            statement.write(path)
        return statement

    def close(self) -> None:
        """Release ledger, state and data; this trainer can release no more rounds."""
        if self._ledger is not None:
            self._ledger.close()
        if self._file is not None:
            self._file.close()
        if self._data is not None:
            self._data.close()

    # --- stopping and going on --------------------------------------------------------------------

    def _keep(self) -> None:
        """Save the state between two rounds, if there is a file for it and it is due."""
        if (
            self._file is not None
            and self._pending is None
            and self._indices is None
            and self._stopped is None
        ):
            self._file.keep(self._save, late=self.rounds == len(self.mechanism.sampler))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all there is to go on later: weights, optimizer, and the secret of sampling.

        The file is readable by its owner only and must stay secret: it tells who was and will be in
        which batch. (The noise is not in it, unless it came from a seed.) After the last round no
        secret is left in it. Of several processes the first one writes it.
        """
        with self._caller.taken("save"):
            self._save(path)

    def _save(self, path: str | os.PathLike[str]) -> None:
        if self._pending is not None or self._indices is not None:
            raise ValueError(
                f"round {self._next} was drawn but not stepped on; step first, then save"
            )
        if not self.first:
            return
        going = self.rounds < len(self.mechanism.sampler)
        held = {"noise": self._noise, "clip-groups": self._groups, "draws": self._draws.source}
        seeds = {use: source.state() for use, source in held.items() if not source.secure}
        state = {
            "mechanism": repr(self.mechanism),
            "clip_norms": self._norms,
            "run": None if self._ledger is None else self._ledger.run,
            "records": len(self._data) if self._data is not None and going else None,
            "rounds": self._next,
            "population": self._declared_records,
            "blind": self._unrecorded,
            "model": self.model.state_dict(),
            "optimizer": plain(self.optimizer.state_dict()),
            "schedule": None if self._schedule is None else plain(self._schedule.state_dict()),
            "kinds": {
                "optimizer": type(self.optimizer).__name__,
                "schedule": type(self._schedule).__name__,
            },
            "settings": settings_of(self.optimizer),
            "sampler": self._sequence.state() if self._sequence is not None and going else None,
            "sampling": self._sampling.state() if going else None,
            "seeded": seeds or None,  # no secret noise outlives its process
        }
        write_secret(path, state)
        if self._file is not None:
            self._file.written(path)

    def load(self, path: str | os.PathLike[str], dataset: Any) -> None:
        """Resume from a saved state; later rounds in the ledger are drawn and dropped.

        Noise and clip-groups go on from fresh entropy: a round after the state was saved may have
        used what the state would draw next, and the same noise on two sums gives both away. (A
        seeded run, which is not private, repeats itself.) Of several processes, all call this and
        the first one reads the file.
        """
        with self._caller.taken("load"):
            self._load(path, dataset)

    def _load(self, path: str | os.PathLike[str], dataset: Any) -> None:
        state: dict[str, Any] = {}
        if self._peers is None:
            state = self._read(path)
        else:
            self._peers.on_first(lambda: state.update(self._read(path)))
            state = self._peers.share(state)
        restore_state(state, self.model, self.optimizer, self._schedule)
        self._groups = Source.restore(state["groups"])
        if state["sampling"] is not None:
            self._sampling = Source.restore(state["sampling"])
        self._see(dataset)
        assert self._data is not None  # noqa: S101
        if state["records"] not in (None, len(self._data)):
            raise ValueError(
                f"dataset must have the {state['records']} records that the run began with, got "
                f"{len(self._data)}"
            )
        if state["sampling"] is None:
            self._sequence = cast(Batches, iter(()))  # that was all, and stays as it is
            if self._file is not None:
                self._file.close()
        else:
            self._draw(state["sampler"])
        assert self._sequence is not None  # noqa: S101
        skip_rounds(self._sequence, self._schedule, state["spent"])
        self._note(state)

    def _note(self, state: dict[str, Any]) -> None:
        """How far the run is, and what must be said of it."""
        self._next, self._unrecorded, self._secure = (
            state["rounds"] + state["spent"],
            state["blind"],
            state["secure"],
        )

    def _checked(self, path: str | os.PathLike[str], device: str = "cpu") -> dict[str, Any]:
        """A saved state of this very run, with what the ledger adds to it."""
        return read_state(
            path,
            self.mechanism,
            self._norms,
            self._declared_records,
            self._ledger,
            self._schedule,
            device,
        )

    def _read(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The same, from which the secret of the noise is taken out."""
        state = self._checked(path)
        held = random_sources(state.pop("seeded"))
        self._noise, self._draws.source, state["groups"] = (
            held["noise"],
            held["draws"],
            held["clip-groups"].state(),
        )
        return state
