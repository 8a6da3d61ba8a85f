"""Private training: the mechanism's own sampler draws the batches, the ledger is written before the noise is added.

One round is: draw a batch, add up its clipped gradients, write the ledger, add the noise, divide, step. Empty batches
are rounds like any other. Whatever leaves the mechanism stops the run, and the ledger says so.
"""

from __future__ import annotations

import copy
import html
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax import checks
from verax.mechanism import Individual, Mechanism, Phases
from verax.privacy.guarantee import Guarantee
from verax.randomness import Source
from verax.samplers.stream import Batches, resume
from verax.training.clipped import MICRO_BATCH, Clipper, Flat, Inner, NotFinite
from verax.training.data import Data
from verax.training.ledger import Ledger, LeftMechanism
from verax.training.ran import released
from verax.training.records import Losses

Criterion = Callable[..., Tensor]
"""A loss: from outputs and targets (tuples of data), or from the model and the batch (dictionaries), to losses."""

NOT_PRIVATE = "The randomness of this run came from a seed that somebody chose: it is NOT private."


@dataclass(frozen=True, eq=False)
class Round:
    """One batch as the sampler drew it: its number in the run, its records, and how many they are (a secret)."""

    number: int
    data: Any
    records: int


class PrivateTrainer:
    """Trains a model by a mechanism, one round at a time.

    Args:
        model: any module. It is left as it is: no wrapper, no new keys in its state.
        optimizer: over the model's parameters; it sees noisy gradients only. L-BFGS is refused: it evaluates more often
            than it releases.
        mechanism: what runs.
        ledger: where to record every release, a new file; or an open ``Ledger``; or None for none.
        inner: for batch and mixed clipping, what a clip-group computes; by default the gradient of its mean loss.
        micro_batch: how many records are worked on at once. It changes memory and speed, never the result's law.
        insecure_seed: for tests and research only: makes the run repeatable, and not private.

    >>> import torch
    >>> from verax import Mechanism, Poisson
    >>> from verax.training import PrivateTrainer
    >>> model = torch.nn.Linear(3, 2)
    >>> trainer = PrivateTrainer(
    ...     model, torch.optim.SGD(model.parameters(), 0.1), Mechanism(Poisson(rate=0.5, steps=4), noise_multiplier=1.0)
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
        insecure_seed: int | None = None,
    ) -> None:
        if not isinstance(mechanism, Mechanism):
            raise ValueError(f"mechanism must be a Mechanism, got {mechanism!r}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "optimizer must take one step per noisy gradient, got LBFGS, which evaluates the loss several times in "
                "every step; use SGD, Adam or another first-order optimizer"
            )
        if inner is not None and isinstance(mechanism.clipping, Individual):
            raise ValueError("inner is for batch and mixed clipping: individual clipping clips every record's gradient")
        mine = set(model.parameters())
        for group in optimizer.param_groups:
            if any(p not in mine for p in group["params"]):
                raise ValueError("optimizer must hold parameters of the model only, got one that is not the model's")
        self.model, self.optimizer, self.mechanism = model, optimizer, mechanism
        self.micro_batch = checks.count("micro_batch", micro_batch)
        self._inner = inner
        self._source = Source.system() if insecure_seed is None else Source.insecure(insecure_seed)
        self._noise, self._groups, self._sampling = (
            self._source.spawn(use) for use in ("noise", "clip-groups", "sampling")
        )
        self._ledger = self._open(ledger)
        self._drawn: Batches | None = None
        self._pending: Round | None = None
        self._next = 0 if self._ledger is None else self._ledger.released
        self._data: Data | None = None
        self._clippers: dict[int, tuple[Any, Clipper]] = {}
        self._over = ""

    def _open(self, ledger: str | os.PathLike[str] | Ledger | None) -> Ledger | None:
        if ledger is None or isinstance(ledger, Ledger):
            return ledger
        return Ledger.create(Path(ledger), self.mechanism, insecure_seed=not self._source.secure)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def batches(self, dataset: Any) -> Iterator[Round]:
        """Every batch of the run, as the mechanism's sampler draws them; each must be stepped on before the next."""
        if self._over:
            raise LeftMechanism(self._over)
        self._data = Data(dataset)
        if self._drawn is None:
            rng = self._sampling.generator()
            self._drawn = cast(Batches, self.mechanism.sampler.batches(len(self._data), rng))
        assert self._drawn is not None  # noqa: S101
        for indices in self._drawn:
            if self._pending is not None:
                self._left(f"round {self._pending.number} was drawn but not stepped on")
            self._pending = Round(self._next, self._data.take(indices), len(indices))
            yield self._pending
        if self._pending is None and self._ledger is not None and self.rounds == len(self.mechanism.sampler):
            self._ledger.finish()

    def step(self, batch: Round, loss: Criterion) -> None:
        """Clip, add up, record, add noise, and let the optimizer step; also for an empty batch."""
        if self._over:
            raise LeftMechanism(self._over)
        if batch is not self._pending:
            self._left("a batch that this run's sampler did not draw, or an old one, was stepped on")
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        if any(p.grad is not None and bool(p.grad.any()) for p in parameters):
            self._left("gradients that were not clipped were found in the model; call backward() nowhere else")
        total = Flat(parameters)
        clipper = self._clipper(loss)
        try:
            clipper.add(batch.data, batch.records, total, self._groups.generator())
        except NotFinite as error:
            self._left(str(error), private=True)
        norm, noise = self.mechanism.clipping.norm, self.mechanism.noise_multiplier
        if self._ledger is not None:
            self._ledger.release(batch.number, clip_norm=norm, noise_multiplier=noise)
        self._pending, self._next = None, batch.number + 1
        if noise > 0.0:
            flat = total.buffer.cpu()
            self._noise.add_gaussian(flat.numpy(), noise * norm)
            if flat is not total.buffer:
                total.buffer.copy_(flat)
        assert self._data is not None  # noqa: S101
        total.put_gradients(clipper.denominator(self.mechanism.sampler.expected_batch(len(self._data))))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _clipper(self, loss: Criterion) -> Clipper:
        held = self._clippers.get(id(loss))
        if held is None or held[0] is not loss:
            held = (loss, Clipper(self.model, per_record(loss), self.mechanism.clipping, self._inner, self.micro_batch))
            self._clippers = {id(loss): held}
        return held[1]

    def _left(self, reason: str, private: bool = False) -> NoReturn:
        error = LeftMechanism(reason) if self._ledger is None else self._ledger.left(reason, private=private)
        self._over = str(error)
        raise error

    # --- what it cost -----------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many rounds were released."""
        return self._next

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the declared run. It holds wherever training stops, whatever the reason."""
        return self.mechanism.guarantee()

    @property
    def so_far(self) -> Guarantee | None:
        """The guarantee of the rounds released so far, had their number been fixed beforehand; to show progress."""
        ran = released(Phases((self.mechanism,)), self._next, up=True)
        return None if ran is None else replace(ran.guarantee(), assuming="that the run was to stop here")

    def statement(self, delta: float, path: str | os.PathLike[str] | None = None) -> str:
        """What a reviewer signs, in words; with a path also written there, as a page if it ends in ``.html``."""
        text = self.guarantee.statement(delta)
        if not self._source.secure:
            text = f"{NOT_PRIVATE}\n{text}"
        if path is not None:
            target = Path(path)
            page = "<!doctype html><meta charset=utf-8><title>Privacy statement</title>"
            body = "".join(f"<p>{html.escape(line)}</p>" for line in text.splitlines())
            target.write_text(page + body if target.suffix == ".html" else text + "\n", encoding="utf-8")
        return text

    # --- stopping and going on --------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all there is to go on later: weights, optimizer, and the secrets of sampling and noise.

        The file is readable by its owner only and must stay secret: it tells who will be in which batch.
        """
        if self._pending is not None:
            raise ValueError(f"round {self._pending.number} was drawn but not stepped on; step first, then save")
        state = {
            "mechanism": repr(self.mechanism),
            "rounds": self._next,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": None if self._drawn is None else self._drawn.state(),
            "noise": self._noise.state(),
            "groups": self._groups.state(),
            "sampling": self._sampling.state(),
        }
        target = Path(path)
        fresh = target.with_name(target.name + ".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)

    def load(self, path: str | os.PathLike[str], dataset: Any) -> None:
        """Go on from a saved state. Rounds the ledger knows but the state does not are spent: drawn, and dropped.

        Noise goes on from fresh entropy: a round after the state was saved may have used what the state would draw
        next, and the same noise on two sums gives both away. (A seeded run, which is not private, repeats itself.)
        """
        state = torch.load(path, weights_only=False)
        if state["mechanism"] != repr(self.mechanism):
            raise ValueError(f"path must hold a run of {self.mechanism!r}, got one of {state['mechanism']}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._groups, self._sampling = Source.restore(state["groups"]), Source.restore(state["sampling"])
        self._noise = Source.restore(state["noise"])
        self._source = self._noise
        if self._noise.secure:
            self._source = Source.system()
            self._noise = self._source.spawn("noise")
        self._data = Data(dataset)
        if state["sampler"] is not None:
            rng = self._sampling.generator()
            self._drawn = cast(Batches, resume(self.mechanism.sampler, state["sampler"], len(self._data), rng))
        spent = 0 if self._ledger is None else self._ledger.released - state["rounds"]
        if spent < 0:
            raise ValueError(
                f"path must not be ahead of the ledger, got {state['rounds']} rounds, the ledger knows fewer"
            )
        if self._drawn is not None:
            for _ in range(spent):
                next(self._drawn)
        self._next = state["rounds"] + spent


def per_record(loss: Criterion) -> Losses:
    """From a criterion to one loss per record, whatever its own reduction is: never a silent factor of the batch size.

    Tuples are (inputs..., target): the criterion gets the model's output and the target. For other batches it gets the
    model and the batch. A criterion that reduces is applied record by record.
    """
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and reduction in ("mean", "sum"):
        each = copy.copy(loss)
        each.reduction = "none"
        criterion: Criterion = each
    else:
        criterion = loss

    def losses(model: nn.Module, batch: Any) -> Tensor:
        if isinstance(batch, tuple | list):
            *inputs, target = batch
            outputs = model(*inputs)
            found = criterion(outputs, target)
            records = len(target)
        else:
            found = criterion(model, batch)
            records = len(next(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)))
            outputs = target = None
        if found.dim() == 0 and outputs is not None:  # reduced: ask again, record by record
            single = torch.func.vmap(lambda out, goal: criterion(out.unsqueeze(0), goal.unsqueeze(0)))
            found = single(outputs, target)
        if found.dim() > 1 and len(found) == records:
            found = found.flatten(1).sum(dim=1) if reduction == "sum" else found.flatten(1).mean(dim=1)
        return found

    return losses
