"""The files that a run leaves: its ledger, and the checkpoint that it resumes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from verax.ledger.clip_norms import schedule_of
from verax.ledger.ledger import Ledger, LeftMechanism, RunOver, read
from verax.training.checkpoint import Progress, RunDeclaration, refuse_seed
from verax.training.checkpoint_file import CheckpointFile


class RunFiles:
    """The ledger and the checkpoint file of a run, as far as it has them.

    Of several processes only the first one opens them.
    """

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.checkpoint: CheckpointFile | None = None

    def open(
        self,
        run: RunDeclaration,
        secure: bool,
        ledger: str | os.PathLike[str] | Ledger | None,
        checkpoint: Path | None,
        diagnostics: str | os.PathLike[str] | None,
    ) -> Progress:
        """Lock the checkpoint, and begin or check the ledger, which must declare this run."""
        progress = Progress(secure=secure)
        if checkpoint is not None:
            path = ledger.path if isinstance(ledger, Ledger) else ledger
            others = {"ledger": path, "diagnostics": diagnostics}
            self.checkpoint = CheckpointFile(checkpoint, others)
            progress.resumed = self.checkpoint.lock()
        if ledger is not None:
            if not isinstance(ledger, Ledger):
                ledger = self._open_ledger(Path(ledger), run, progress)
            self.ledger, progress.rounds = ledger, ledger.released
            refuse_other_run(ledger, run, secure)
        return progress

    def _open_ledger(self, path: Path, run: RunDeclaration, progress: Progress) -> Ledger:
        """The ledger of the run that is resumed, or a new one."""
        if self.checkpoint is None or not progress.resumed:
            return Ledger.create(
                path,
                run.mechanism,
                population=run.records,
                insecure_seed=not progress.secure,
                clip_norms=run.clip_norms,
            )
        kept = self.checkpoint.path
        if not path.exists():
            raise ValueError(
                f"ledger must be that of the run in {kept}, got {path}, which is not there: "
                "bring it back, leave it out if that run had none, or take the state away to begin "
                "anew"
            )
        try:
            return Ledger.open(path, run.mechanism, finished=True)
        except RunOver as error:
            error.add_note(f'The last weights that were kept are in {kept}, under "model".')
            raise

    def released(self) -> int:
        """How many rounds the ledger records on disk."""
        return 0 if self.ledger is None else read(self.ledger.path).released

    def left(self, reason: str, private: bool) -> LeftMechanism:
        """Record that the run left its mechanism; the error to raise."""
        if self.ledger is None:
            return LeftMechanism(reason)
        return self.ledger.left(reason, private=private)

    def finish(self) -> None:
        """Record that the run ended as planned, unless that is recorded."""
        if self.ledger is not None and not self.ledger.over:
            self.ledger.finish()

    def close(self) -> None:
        """Release ledger and checkpoint."""
        for file in (self.ledger, self.checkpoint):
            if file is not None:
                file.close()


def refuse_other_run(ledger: Ledger, run: RunDeclaration, secure: bool) -> None:
    """Refuse a ledger that declares another run than the one to be trained."""
    norms = None if run.clip_norms is None else schedule_of(run.clip_norms, run.rounds)
    declared: tuple[tuple[str, Any, Any], ...] = (
        ("mechanism", ledger.mechanism.mechanisms, (run.mechanism,)),
        ("clip_norms", ledger.clip_norms, norms),
    )
    for what, theirs, mine in declared:
        if theirs != mine:
            raise ValueError(
                f"ledger must declare the {what} that is trained, {mine!r}, got one with {theirs!r}"
            )
    known = ledger.released > 0 or ledger.population is not None
    if ledger.population != run.records and known:
        raise ValueError(
            f"records must be the {ledger.population} that {ledger.path} declares, got "
            f"{run.records}"
        )
    refuse_seed(ledger, secure)
