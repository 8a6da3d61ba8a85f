"""Train a model by a mechanism, with a progress bar that shows the epsilon so far."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from verax import checks
from verax.ledger.clip_norms import Norms
from verax.ledger.ledger import Ledger
from verax.ledger.run import at_most
from verax.mechanism import Mechanism
from verax.privacy.guarantee import Guarantee, format_bound
from verax.privacy.pld.composition import UPPER
from verax.training.checkpoint_file import refuse_shared
from verax.training.checks.validators import refuse_factories
from verax.training.clipping.clipper import MICRO_BATCH
from verax.training.clipping.local_update import Inner
from verax.training.data.stream import Collate
from verax.training.diagnostics import PublicLog
from verax.training.gradients.loss import Criterion
from verax.training.trainer import PrivateTrainer

if TYPE_CHECKING:
    from verax.reporting.statement import Statement

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
ScheduleFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
# How often the epsilon so far is computed.
_UPDATES = 20


@dataclass(frozen=True, eq=False)
class Fitted:
    """A finished run: the model was trained in place; this says what it cost."""

    trainer: PrivateTrainer
    delta: float

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the run."""
        return self.trainer.guarantee

    def statement(
        self, path: str | os.PathLike[str] | None = None, delta: float | None = None
    ) -> Statement:
        """The statement of the run; with a path also written, in the format of its suffix."""
        return self.trainer.statement(self.delta if delta is None else delta, path)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a model was trained; the trainer knows what was released, and what it cost.

    Args:
        trainer: closed, so that another can resume from its state.
    """

    def __init__(self, trainer: PrivateTrainer) -> None:
        super().__init__(
            f"{trainer.rounds} of {len(trainer.mechanism.sampler)} rounds were released, and are "
            "spent; with state= the same call goes on from there"
        )
        self.trainer = trainer


def fit(
    model: nn.Module,
    loss: Criterion,
    dataset: Any,
    mechanism: Mechanism,
    optimizer: OptimizerFactory,
    *,
    ledger: str | os.PathLike[str] | Ledger | None = None,
    delta: float = 1e-5,
    inner: Inner | None = None,
    micro_batch: int = MICRO_BATCH,
    clip_norms: Norms | None = None,
    schedule: ScheduleFactory | None = None,
    state: str | os.PathLike[str] | None = None,
    records: int | None = None,
    processes: Any = None,
    collate_fn: Collate | None = None,
    log: PublicLog | None = None,
    diagnostics: str | os.PathLike[str] | None = None,
    progress: bool = True,
    insecure_seed: int | None = None,
) -> Fitted:
    """Run the whole mechanism on a model and a data set.

    Args:
        model: any module, trained in place.
        loss: a torch criterion of outputs and targets, or for dictionaries of data a function of
            model and batch; under batch and mixed clipping it may return the mean of the batch.
        dataset: tensors or arrays, a dictionary or table of them, a map-style data set, or a stream
            for samplers that read it in order.
        mechanism: what runs: the sampler that draws the batches, the clipping, the noise.
        optimizer: from parameters to an optimizer, such as ``lambda p: torch.optim.Adam(p, 1e-3)``.
        ledger: a new file in which every release is recorded before it happens; or that of the run
            in ``state``.
        delta: of the epsilon that is shown and stated.
        inner: for batch and mixed clipping, what a clip-group computes.
        micro_batch: at most how many records are worked on at once (fewer for large models).
        clip_norms: a clip norm for every round, as a list or a function of the round's number,
            chosen without looking at the data. Noise is in proportion, so the guarantee stays the
            same.
        schedule: from the optimizer to a ``torch.optim.lr_scheduler`` for its step sizes, stepped
            once a round.
        state: a file that is kept up to date while the run goes on, and from which it goes on, if
            it is there: after an interruption the same call continues the run, and if it is over,
            loads its weights and says so. It tells who is in which batch until the last round, so
            it must stay as secret as the data.
        records: a public number of records by which updates are scaled; by default the data set's
            own.
        processes: None for all processes of ``torch.distributed``, if it was initialised; 1 for
            this one alone.
        collate_fn: for data sets that give records by number, from a list of records to a batch; it
            must treat each record by itself.
        log: scores on public data, to be written down on the way.
        diagnostics: a new file for losses and gradient norms of the batches, which **no noise
            protects**: for the eyes of those who may see the data. By custom the ledger's name with
            the ending ``.private``.
        progress: whether to show a bar, if standard error is a terminal.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.

    >>> import torch
    >>> from verax import BallsInBins, Mechanism
    >>> from verax.training import fit
    >>> data = torch.randn(60, 3), torch.randint(0, 2, (60,))
    >>> model = torch.nn.Linear(3, 2)
    >>> run = fit(
    ...     model,
    ...     torch.nn.CrossEntropyLoss(),
    ...     data,
    ...     Mechanism(BallsInBins(bins=6, epochs=2), 2.0),
    ...     optimizer=lambda p: torch.optim.SGD(p, 0.1),
    ... )
    >>> run.guarantee.epsilon(delta=1e-3).upper < 2
    True
    """
    checks.probability("delta", delta)
    refuse_factories(model, optimizer, schedule)
    if state is not None and log is not None:
        refuse_shared(state, {"log": log.path})
    chosen = optimizer([p for p in model.parameters() if p.requires_grad])
    sizes = None if schedule is None else schedule(chosen)
    trainer = PrivateTrainer(
        model,
        chosen,
        mechanism,
        ledger=ledger,
        inner=inner,
        micro_batch=micro_batch,
        clip_norms=clip_norms,
        schedule=sizes,
        state=state,
        records=records,
        processes=processes,
        diagnostics=diagnostics,
        insecure_seed=insecure_seed,
    )
    try:
        with _progress_bar(len(mechanism.sampler), progress and trainer.first) as show:
            for batch in trainer.batches(dataset, collate_fn):
                trainer.step(batch, loss)
                if log is not None and trainer.first:
                    log.after(model, trainer.rounds, last=trainer.rounds == len(mechanism.sampler))
                show(trainer, delta)
    except BaseException as error:
        # In a notebook its traceback would keep trainer and ledger.
        trainer.close()
        if isinstance(error, KeyboardInterrupt):
            trainer.count_ledger()
            raise Interrupted(trainer) from error
        raise
    return Fitted(trainer, delta)


@contextmanager
def _progress_bar(rounds: int, wanted: bool) -> Iterator[Callable[[PrivateTrainer, float], None]]:
    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda trainer, delta: None
        return
    every = max(rounds // _UPDATES, 1)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=rounds)
        stated = cache(lambda trainer, delta: trainer.guarantee.epsilon(delta))

        def show(trainer: PrivateTrainer, delta: float) -> None:
            bar.update(task, completed=trainer.rounds)
            if trainer.rounds % every and trainer.rounds != rounds:
                return
            found = stated(trainer, delta)
            if trainer.rounds < rounds and (so_far := trainer.so_far) is not None:
                found = at_most(so_far.epsilon(delta, rtol=0.02), found)
            bar.update(
                task, description=f"training, epsilon {format_bound(found.upper, UPPER)} so far"
            )

        yield show
