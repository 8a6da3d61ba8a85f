"""The state of a run: how far it is, what it proves, and how it is saved and resumed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn, optim

from verax.ledger.ledger import Ledger
from verax.ledger.run import PUBLIC_NUMBER, attacked, released, tells_number
from verax.mechanism import Phases
from verax.privacy.guarantee import Guarantee
from verax.training.checkpoint import (
    Progress,
    RunDeclaration,
    Schedule,
    read_state,
    restore_state,
    training_state,
)
from verax.training.checkpoint_file import write_secret
from verax.training.data.round import RoundSource, refuse_other_number
from verax.training.distributed import Processes, refuse_opened_elsewhere
from verax.training.run_files import RunFiles
from verax.training.seeds import RunSources


class RunState:
    """What a run has declared, drawn and released so far, in all its processes.

    Args:
        model: any module.
        optimizer: over the model's parameters.
        schedule: of the optimizer's step sizes.
        declaration: what runs.
        sources: of the run's randomness.
        processes: that train the model together; None for this one alone.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        schedule: Schedule | None,
        declaration: RunDeclaration,
        sources: RunSources,
        processes: Processes | None,
    ) -> None:
        self._model, self._optimizer, self._schedule = model, optimizer, schedule
        self.declaration, self.sources, self.processes = declaration, sources, processes
        self.files, self.progress = RunFiles(), Progress()
        # Now, so that what nobody can price is not trained either.
        self._priced = declaration.mechanism.guarantee()

    # --- files ------------------------------------------------------------------------------------

    def open(
        self,
        ledger: str | os.PathLike[str] | Ledger | None,
        checkpoint: Path | None,
        diagnostics: str | os.PathLike[str] | None,
        secure: bool,
        inner: Any,
    ) -> None:
        """Open the run's files, in the first of several processes, which then agree on the run."""
        run, processes = self.declaration, self.processes

        def open_files() -> None:
            self.progress = self.files.open(run, secure, ledger, checkpoint, diagnostics)
            if self.progress.resumed and checkpoint is not None:
                # Weights can wait until the run is resumed.
                self.progress.set_from(self._read(checkpoint, "meta"))

        if processes is None:
            open_files()
            return
        if diagnostics is not None:
            raise ValueError(
                "diagnostics are of one process, which sees whole batches: leave them out here"
            )
        processes.on_first(open_files)
        processes.together(lambda: refuse_opened_elsewhere(ledger, processes.first))
        processes.agree(
            {
                "mechanism": repr(run.mechanism),
                "clip_norms": run.clip_norms,
                "records": run.records,
                "parameters": [(p.shape, p.dtype) for p in self._model.parameters()],
                "optimizer": (type(self._optimizer).__name__, repr(self._optimizer.defaults)),
                "inner": type(inner).__name__,
                "schedule": type(self._schedule).__name__,
            }
        )
        self.progress, shared = processes.share((self.progress, self.sources.shared_state()))
        if not processes.first:
            self.sources.restore_shared(*shared)
        processes.broadcast_all((*self._model.parameters(), *self._model.buffers()))

    @property
    def first(self) -> bool:
        """Whether this process writes the ledger: the only one, or the first of several."""
        return self.processes is None or self.processes.first

    @property
    def complete(self) -> bool:
        """Whether every declared round was released."""
        return self.progress.rounds == self.declaration.rounds

    def save(self, path: str | os.PathLike[str], rounds: RoundSource | None) -> None:
        """Write a checkpoint; of several processes the first one writes it."""
        if rounds is not None and not rounds.between_rounds:
            raise ValueError(
                f"round {self.progress.rounds} was drawn but not stepped on; step first, then save"
            )
        if not self.first:
            return
        run, ledger = self.declaration, self.files.ledger
        drawing = None if self.complete else rounds
        state = {
            "mechanism": repr(run.mechanism),
            "clip_norms": run.clip_norms,
            "run": None if ledger is None else ledger.run,
            "records": None if drawing is None else len(drawing.data),
            "rounds": self.progress.rounds,
            "population": run.records,
            "blind": self.progress.unrecorded,
            "sampler": None if drawing is None else drawing.state(),
            **training_state(self._model, self._optimizer, self._schedule),
            **self.sources.state(running=not self.complete),
        }
        write_secret(path, state)
        if self.files.checkpoint is not None:
            self.files.checkpoint.relock(path)

    def load(self, path: str | os.PathLike[str], rounds: RoundSource) -> None:
        """Resume from a checkpoint; of several processes the first one reads it."""
        state: dict[str, Any] = {}

        def read_and_renew() -> None:
            state.update(self._read(path))
            # The secret of the noise stays in this process.
            self.sources.renew(state.pop("seeded"))
            state["groups"] = self.sources.groups.state()

        if self.processes is None:
            read_and_renew()
        else:
            self.processes.on_first(read_and_renew)
            state = self.processes.share(state)
        restore_state(state, self._model, self._optimizer, self._schedule)
        self.sources.restore_shared(state["groups"], state["sampling"])
        if state["records"] is not None:
            refuse_other_number(rounds.data, state["records"])
        if state["sampling"] is not None:
            rounds.start(state["sampler"], skip=state["spent"])
        else:
            rounds.end()
            if self.files.checkpoint is not None:  # it stays as it is
                self.files.checkpoint.close()
        self.progress.set_from(state)

    def _read(self, path: str | os.PathLike[str], device: str = "cpu") -> dict[str, Any]:
        """A checkpoint of this very run, with what the ledger adds to it."""
        return read_state(path, self.declaration, self.files.ledger, self._schedule, device)

    # --- what it cost -----------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the declared run, which holds wherever training stops."""
        assumed = [self._priced.assuming] * bool(self._priced.assuming)
        if self.declaration.records is None and tells_number(self.declaration.mechanism):
            assumed.append(PUBLIC_NUMBER)
        if self.progress.unrecorded:
            assumed.append(
                "that nobody saw a round between the saved state and its loading (a ledger would "
                "know)"
            )
        return replace(self._priced, assuming="; ".join(assumed))

    @property
    def guarantee_so_far(self) -> Guarantee | None:
        """The guarantee of the rounds so far, had their number been fixed beforehand."""
        mechanism, rounds = self.declaration.mechanism, self.progress.rounds
        ran = released(Phases((mechanism,)), rounds, up=True)
        if ran is None:
            return None
        # A part of an epoch is charged as a whole one, but nobody can attack the rest of it.
        found = attacked(ran.guarantee(), mechanism, rounds)
        return replace(found, assuming="that the run was to stop here")
