"""Numbers to watch a run by: of private data for its owner only, of public data for all.

Losses, gradient norms and fractions clipped of a batch are functions of private data that no noise
protects. They are not in the ledger and no guarantee covers them. Whoever may see the data may see
them too, in a file of their own that only its owner can read; to show it to anybody else is a
release that the epsilon does not count.

Scores of the model on public data are different: models on the way are covered by the guarantee, so
what is computed from them and from public data is free.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verax import checks
from verax.training.checks.trial_runs import mean_loss, without_shortcuts
from verax.training.clipping.clipper import Clipper
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.data.containers import has_target
from verax.training.data.microbatch import slices
from verax.training.data.round import DrawnBatch

NOTE = (
    "Computed from private data without noise: NOT covered by the guarantee. For those who may see "
    "the data; do not release, and delete it with them."
)
# Of one run: of longer ones every so many rounds are looked at.
MOST_LINES = 2_000


class Diagnostics:
    """Writes losses, gradient norms and signal to noise, for the owner of the data only.

    Args:
        path: a new file, by custom the ledger's name with the ending ``.private``; JSON lines with
            a round each.
        rounds: of the run. About 2,000 of them at most are looked at.
        noise_multiplier: of the run.
        resumed: whether the file may exist already and is gone on with.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rounds: int,
        noise_multiplier: float,
        *,
        resumed: bool = False,
    ) -> None:
        self._path, self._noise = os.fspath(path), noise_multiplier
        self._every = max(math.ceil(rounds / MOST_LINES), 1)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resumed else os.O_EXCL)
        try:
            os.close(os.open(self._path, flags, 0o600))
        except OSError as error:
            raise ValueError(
                f"diagnostics must be a new file in an existing directory, got {self._path!r}: "
                f"{error.strerror}"
            ) from error
        _append_line(self._path, {"note": NOTE})

    def add(self, clipper: Clipper, batch: DrawnBatch, into: FlatBuffer, norm: float) -> None:
        """Add the clipped sum of the batch, and write a line if one is due."""
        due = batch.number % self._every == 0
        norms: list[Tensor] = []
        observe = norms.append if due else None
        clipper.add(batch.data, batch.records, into, batch.groups, norm, observe)
        if due:
            self._write(clipper, batch, into, norm, norms)

    def _write(
        self,
        clipper: Clipper,
        batch: DrawnBatch,
        into: FlatBuffer,
        norm: float,
        norms: list[Tensor],
    ) -> None:
        found: dict[str, float] = {"clip_norm": norm}
        if self._noise > 0.0:
            length = self._noise * norm * math.sqrt(len(into.buffer))  # about that of the noise
            found["signal_to_noise"] = (
                into.denominator * float(torch.linalg.vector_norm(into.buffer)) / length
            )
        if norms:
            found |= _norms(torch.cat([some.reshape(-1).float() for some in norms]), norm)
            found |= _scores(clipper, batch.data, batch.records)
        _append(self._path, batch.number + 1, found)


def _norms(norms: Tensor, bound: float) -> dict[str, float]:
    low, middle, high = torch.quantile(norms, norms.new_tensor([0.1, 0.5, 0.9])).tolist()
    clipped = float((norms > bound).float().mean())
    return {"norm_10": low, "norm_50": middle, "norm_90": high, "clipped": clipped}


@torch.no_grad()
@without_shortcuts()
def _scores(clipper: Clipper, batch: Any, records: int) -> dict[str, float]:
    """Mean loss of the batch, and accuracy where outputs are classes, before the step."""
    losses, right = 0.0, 0
    with torch.random.fork_rng(devices=[]):  # diagnostics change no later draw
        for piece, size in slices(batch, clipper.micro_batch, records):
            outputs: list[Any] = []
            handle = clipper.model.register_forward_hook(_collect(outputs))
            try:
                losses += size * float(mean_loss(clipper.losses(clipper.model, piece), size))
            finally:
                handle.remove()
            hits = _right_classes(piece, outputs)
            right = -1 if hits is None or right < 0 else right + hits
    return {"loss": losses / records} | ({"accuracy": right / records} if right >= 0 else {})


def _collect(outputs: list[Any]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs.append(output)

    return hook


def _right_classes(batch: Any, outputs: list[Any]) -> int | None:
    """How many outputs name the right class; None if they are not scores of classes."""
    if not has_target(batch) or len(outputs) != 1:
        return None
    scores, target = outputs[0], batch[-1]
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor):
        return None
    if scores.dim() != 2 or scores.shape[1] < 2 or target.dim() != 1 or target.is_floating_point():
        return None
    return int((scores.argmax(1) == target).sum())


@dataclass(frozen=True)
class PublicLog:
    """Scores of the models on the way on *public* data, in a file that may be shown to anybody.

    Args:
        path: where to, by custom the ledger's name with the ending ``.log``; JSON lines with a
            round each.
        score: from the model to named numbers. It must look at nothing but the model and public
            data: a score on private data would be a release that the guarantee does not cover.
        every: how many rounds lie between two scores; the last round is always scored.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from verax import Deterministic, Mechanism
    >>> from verax.training import fit
    >>> public = torch.randn(50, 3), torch.randint(0, 2, (50,))
    >>> def score(model):
    ...     return {"accuracy": (model(public[0]).argmax(1) == public[1]).float().mean().item()}
    >>> path = Path(tempfile.mkdtemp(), "run.log")
    >>> data, model = (torch.randn(20, 3), torch.randint(0, 2, (20,))), torch.nn.Linear(3, 2)
    >>> run = fit(
    ...     model,
    ...     torch.nn.CrossEntropyLoss(),
    ...     data,
    ...     Mechanism(Deterministic(batches=4, epochs=2), 1.0),
    ...     lambda p: torch.optim.SGD(p, 0.1),
    ...     log=PublicLog(path, score, every=3),
    ... )
    >>> [line.split(",")[0] for line in path.read_text().splitlines()]
    ['{"round": 3', '{"round": 6', '{"round": 8']
    """

    path: str | os.PathLike[str]
    score: Callable[[nn.Module], Mapping[str, float]]
    every: int = 10

    def __post_init__(self) -> None:
        checks.count("every", self.every)

    def after(self, model: nn.Module, rounds: int, last: bool = False) -> None:
        """Write a line, if it is time for one: after ``rounds`` rounds."""
        if last or rounds % self.every == 0:
            found = {name: float(value) for name, value in self.score(model).items()}
            _append(self.path, rounds, found)


def _append(path: str | os.PathLike[str], rounds: int, numbers: Mapping[str, float]) -> None:
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    _append_line(path, {"round": rounds} | finite)


def _append_line(path: str | os.PathLike[str], entry: Mapping[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
