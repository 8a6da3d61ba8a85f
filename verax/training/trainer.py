"""Private training: draw a batch, clip, write the ledger, add the noise, step.

One round is: draw a batch, add up its clipped gradients, each divided by a public number, write the
ledger, add the noise, step. Empty batches are rounds like any other. Whatever leaves the mechanism
stops the run, and the ledger says so.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from verax import checks
from verax.ledger.clip_norms import Norms, norms_of
from verax.ledger.ledger import Ledger, read
from verax.ledger.run import attacked
from verax.mechanism import Batch, Mechanism
from verax.privacy.guarantee import Guarantee
from verax.training.checkpoint import RunDeclaration
from verax.training.checks.validators import refuse_run, refuse_schedule
from verax.training.clipping.clipper import MICRO_BATCH, NotFiniteError
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.clipping.local_update import Inner
from verax.training.data.dataset import Data, open_dataset
from verax.training.data.round import DrawnBatch, RoundSource, refuse_other_number
from verax.training.data.stream import Collate, Stream, StreamLengthError
from verax.training.diagnostics import Diagnostics
from verax.training.distributed import (
    LeavingMechanismError,
    LostProcess,
    can_split,
    clip_aggregate,
    find_processes,
)
from verax.training.gradient_step import GradientStep
from verax.training.gradients.loss import Criterion
from verax.training.run_state import RunState
from verax.training.seeds import RunSources
from verax.training.step_guard import SingleCaller

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
        state: a file that is kept up to date while the run goes on, and from which it resumes, if
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
        self.model, self.optimizer = model, optimizer
        self.micro_batch = checks.count("micro_batch", micro_batch)
        self._inner = inner
        norms = None if clip_norms is None else norms_of(clip_norms, len(mechanism.sampler))
        population = None if records is None else checks.count("records", records)
        declaration = RunDeclaration(mechanism, norms, population)
        sources, group = RunSources(insecure_seed), find_processes(processes, model)
        self._run = RunState(model, optimizer, schedule, declaration, sources, group)
        self._rounds: RoundSource | None = None
        self._stopped: Exception | None = None
        self._finished = False
        self._caller = SingleCaller()
        # Absolute: the program may go elsewhere.
        self._state_path = None if state is None else Path(state).absolute()
        try:
            self._run.open(ledger, self._state_path, diagnostics, insecure_seed is None, inner)
            log = None if diagnostics is None else self._open_diagnostics(diagnostics)
        except BaseException:
            # In a notebook the traceback keeps the trainer, and with it what it opened.
            if isinstance(ledger, Ledger):
                self._run.files.ledger = None
            self.close()
            raise
        self._gradient_step = GradientStep(
            model, optimizer, schedule, declaration, inner, self.micro_batch, sources.draws, log
        )

    def _open_diagnostics(self, path: str | os.PathLike[str]) -> Diagnostics:
        resumed = self.rounds > 0 or self._run.progress.resumed
        noise = self.mechanism.noise_multiplier
        return Diagnostics(path, len(self.mechanism.sampler), noise, resumed=resumed)

    # --- the loop ---------------------------------------------------------------------------------

    def batches(self, dataset: Any, collate_fn: Collate | None = None) -> Iterator[DrawnBatch]:
        """Every batch of the run, drawn by the sampler; step on each before the next.

        Args:
            dataset: tensors, a dictionary of them, a map-style data set, or a stream for samplers
                that read in order.
            collate_fn: for data sets that give records by number, from a list of records to a
                batch; it must treat each record by itself.
        """
        with self._caller.hold("batches"):
            rounds = self._begin(dataset, collate_fn)
        while True:
            with self._caller.hold("batches"):
                self._save_if_due(rounds)
                batch = self._next_batch(rounds)
            if batch is None:
                return
            yield batch

    def _begin(self, dataset: Any, collate_fn: Collate | None) -> RoundSource:
        """Look at the data, and begin the sampler's sequence or resume it."""
        if self._stopped is not None:
            raise self._stopped
        if self._finished:
            warnings.warn(
                "the run is over: all its rounds were released, epochs and all",
                UserWarning,
                stacklevel=3,
            )
        data, checkpoint = self._open_data(dataset, collate_fn), self._run.files.checkpoint
        if self._rounds is not None:
            self._rounds.data = data
            return self._rounds
        rounds = self._round_source(data)
        if self._run.progress.resumed:
            # Of several processes the first one knows where it is.
            self._run.load(self._state_path or "", rounds)
            if checkpoint is not None and self._run.complete:
                checkpoint.warn_over()
        elif self.rounds > 0:
            raise ValueError(
                f"the ledger knows {self.rounds} rounds whose batches this trainer did not "
                "draw: load() the state that was saved, which knows the sampler's sequence; "
                "without one, begin another ledger"
            )
        else:
            rounds.start()
        self._rounds = rounds
        return rounds

    def _open_data(self, dataset: Any, collate_fn: Collate | None) -> Data | Stream:
        """Open the data, whose number of records must stay the same during the run."""
        mechanism, records = self.mechanism, self._run.declaration.records
        data = open_dataset(dataset, mechanism.sampler, records, mechanism.clipping, collate_fn)
        if self._rounds is not None:
            refuse_other_number(data, len(self._rounds.data))
        if self._run.processes is not None:
            self._run.processes.agree({"dataset": f"{len(data)} records"})
        return data

    def _round_source(self, data: Data | Stream) -> RoundSource:
        run = self._run
        population = run.declaration.records or len(data)
        return RoundSource(self.mechanism, data, run.sources, population, run.processes)

    def _next_batch(self, rounds: RoundSource) -> DrawnBatch | None:
        """Draw the next batch and fetch its records; None after the last round."""
        drawn = rounds.draw()
        if self._stopped is not None:
            raise self._stopped
        if rounds.pending is not None:
            self._leave(f"round {rounds.pending.number} was drawn but not stepped on")
        if drawn:
            split = can_split(self.mechanism.clipping, self._inner, self.model)
            try:
                return rounds.fetch(self.rounds, split)
            except StreamLengthError as error:
                self._leave(str(error))
        if self._run.complete:
            self._run.files.finish()
            self._finished = True
            self.close()
        return None

    def _save_if_due(self, rounds: RoundSource) -> None:
        """Save the state between two rounds, if there is a file for it and it is due."""
        file = self._run.files.checkpoint
        if file is not None and rounds.between_rounds and self._stopped is None:
            file.save_if_due(self._save, late=self._run.complete)

    def step(self, batch: DrawnBatch, loss: Criterion) -> None:
        """Clip, add up, record, add noise, and let the optimizer step; also for an empty batch."""
        with self._caller.hold("step"):
            if self._stopped is not None:
                raise self._stopped
            try:
                total = self._noisy_sum(batch, loss)
            except LeavingMechanismError as departure:
                self._leave(departure.reason, departure.private)
            except LostProcess as lost:
                self._stopped = lost
                self.close()
                raise
            self._gradient_step.apply(total)

    def _noisy_sum(self, batch: DrawnBatch, loss: Criterion) -> FlatBuffer:
        """The clipped sum of the batch with its noise, in every process."""
        processes = self._run.processes
        if processes is None:
            total = self._clipped_sum(batch, loss)
            self._release(batch, total)
        else:
            total = processes.together(lambda: self._clipped_sum(batch, loss))
            processes.reduce_to_first(total.buffer)
            processes.on_first(lambda: self._release(batch, total))
            self._count(batch)
            processes.broadcast(total.buffer)
        return total

    def _clipped_sum(self, batch: DrawnBatch, loss: Criterion) -> FlatBuffer:
        rounds = self._rounds
        if rounds is None or rounds.pending is None or batch is not rounds.pending:
            raise LeavingMechanismError(
                "a batch that this run's sampler did not draw, or an old one, was stepped on"
            )
        check = rounds.data.collate_check
        return self._gradient_step.clipped_sum(batch, loss, rounds.expected_batch, check)

    def _release(self, batch: DrawnBatch, total: FlatBuffer) -> None:
        """Record the round, and only then add its noise; in one process of a run."""
        norm = self._run.declaration.clip_norm(batch.number)
        noise, ledger = self.mechanism.noise_multiplier, self._run.files.ledger
        # Whatever the others sent.
        if self._run.processes is not None and isinstance(self.mechanism.clipping, Batch):
            try:
                clip_aggregate(total.buffer, norm)
            except NotFiniteError as error:
                raise LeavingMechanismError(str(error), private=True) from None
        if ledger is not None:
            ledger.release(batch.number, clip_norm=norm, noise_multiplier=noise)
        self._count(batch)
        if noise > 0.0:
            total.add_noise(self._run.sources.noise, noise * norm)

    def _count(self, batch: DrawnBatch) -> None:
        """Count the batch's round as released."""
        self._run.progress.rounds = batch.number + 1
        if self._rounds is not None:
            self._rounds.pending = None

    def _leave(self, reason: str, private: bool = False) -> NoReturn:
        self._stopped = self._run.files.left(reason, private)
        self.close()
        raise self._stopped

    # --- what it cost -----------------------------------------------------------------------------

    @property
    def mechanism(self) -> Mechanism:
        """What runs; it cannot be changed any more."""
        return self._run.declaration.mechanism

    @property
    def first(self) -> bool:
        """Whether this process writes the ledger: the only one, or the first of several."""
        return self._run.first

    @property
    def private(self) -> bool:
        """Whether its randomness is secret: no seed was chosen."""
        return self._run.progress.secure

    @property
    def rounds(self) -> int:
        """How many rounds were released."""
        return self._run.progress.rounds

    def count_ledger(self) -> None:
        """Count rounds as the ledger does, which may know one more after an interruption."""
        self._run.progress.rounds = max(self.rounds, self._run.files.released())

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the declared run, which holds wherever training stops."""
        return self._run.guarantee

    @property
    def so_far(self) -> Guarantee | None:
        """The guarantee of the rounds so far, had their number been fixed beforehand."""
        return self._run.guarantee_so_far

    def statement(self, delta: float, path: str | os.PathLike[str] | None = None) -> Statement:
        """The statement of the run; with a path also written, in the format of its suffix."""
        # reporting depends on training, not the reverse
        from verax.reporting.statement import Statement

        checks.probability("delta", delta)
        guarantee, ledger = self.guarantee, self._run.files.ledger
        statement = Statement.of(
            attacked(guarantee, self.mechanism, self.rounds),
            delta,
            [] if ledger is None else [read(ledger.path)],
            private=self.private,
            records=self._run.declaration.records,
        )
        if path is not None and self.first:
            statement.write(path)
        return statement

    # --- saving and resuming ----------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that it takes to resume: weights, optimizer, and the secret of sampling.

        The file is readable by its owner only and must stay secret: it tells who was and will be in
        which batch. (The noise is not in it, unless it came from a seed.) After the last round no
        secret is left in it. Of several processes the first one writes it.
        """
        with self._caller.hold("save"):
            self._save(path)

    def _save(self, path: str | os.PathLike[str]) -> None:
        self._run.save(path, self._rounds)

    def load(self, path: str | os.PathLike[str], dataset: Any) -> None:
        """Resume from a saved state; later rounds in the ledger are drawn and dropped.

        Noise and clip-groups go on from fresh entropy: a round after the state was saved may have
        used what the state would draw next, and the same noise on two sums gives both away. (A
        seeded run, which is not private, repeats itself.) Of several processes, all call this and
        the first one reads the file.
        """
        with self._caller.hold("load"):
            data = self._open_data(dataset, None)
            rounds = self._rounds or self._round_source(data)
            rounds.data = data
            self._run.load(path, rounds)
            self._rounds = rounds

    def close(self) -> None:
        """Release ledger, state and data; this trainer can release no more rounds."""
        self._run.files.close()
        if self._rounds is not None:
            self._rounds.data.close()
