"""One run in several processes: each clips its share, the first one adds the noise.

All processes know the secret that draws the batches and the clip-groups. The secret of the noise
never leaves the first one, so noise is added once, whatever happens elsewhere. See
docs/training.md, section 6.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from verax.ledger.ledger import Ledger
from verax.mechanism import Batch, Clipping, Mixed
from verax.training.clipping.clipper import NORM_MARGIN, Clipper, NotFiniteError
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.clipping.local_update import Inner
from verax.training.data.microbatch_size import has_batch_norm

T = TypeVar("T")
_LOST = re.compile(
    r"gloo/transport|connection|timed out|timeout|broken pipe|peer|socket|nccl", re.IGNORECASE
)
"""What backends say of a broken or silent connection: gloo has no exception of its own for it."""


class LostProcess(RuntimeError):
    """Another process of the run was lost, so this one stopped; the ledger is complete."""


class LeavingMechanismError(Exception):
    """The run is about to leave its mechanism: raised in all processes, and recorded."""

    def __init__(self, reason: str, private: bool = False) -> None:
        super().__init__(reason, private)
        self.reason, self.private = reason, private


class Processes:
    """The processes of one run, which take every step together.

    Make it in all of them, in the same order.

    Args:
        group: a process group of ``torch.distributed``; None for all processes.
        device: where the model is, and messages travel from.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes the ledger and adds the noise."""
        return bool(self.rank == 0)

    # --- doing things together --------------------------------------------------------------------

    def share(self, value: Any) -> Any:
        """The first process's value, in all of them."""
        held = [value if self.first else None]
        with self._detect_lost_process():
            dist.broadcast_object_list(held, group_src=0, group=self._group, device=self._device)
        return held[0]

    def agree(self, facts: dict[str, Any]) -> None:
        """Fail in all processes if one has other facts than the first."""
        theirs = self.share(facts)

        def same() -> None:
            for what, here in facts.items():
                if here != theirs[what]:
                    raise ValueError(
                        f"{what} must be the same in all processes, got {here!r}, the first has "
                        f"{theirs[what]!r}"
                    )

        self.together(same)

    def together(self, work: Callable[[], T]) -> T:
        """Do something in every process. If it fails in one of them it fails in all."""
        try:
            done = work()
        except Exception as error:
            self._share_failure(error)
            raise
        self._share_failure(None)
        return done

    def on_first(self, work: Callable[[], None]) -> None:
        """Do something in the first process only, while the others wait for it."""
        self.together(work if self.first else lambda: None)

    def _share_failure(self, mine: Exception | None) -> None:
        """Raise a departure in all processes, and the text of an error where it did not happen."""
        with self._detect_lost_process():
            failed = torch.tensor([int(mine is not None)], device=self._device)
            dist.all_reduce(failed, dist.ReduceOp.MAX, group=self._group)
            if not failed.item():
                return
            departure = isinstance(mine, LeavingMechanismError)
            message = None if mine is None else f"{type(mine).__name__}: {mine}"
            heard: list[Any] = [None] * self.size
            dist.all_gather_object(heard, mine if departure else message, group=self._group)
        for found in heard:
            if isinstance(found, LeavingMechanismError):
                raise found from mine
        if mine is None:
            rank = next(rank for rank, words in enumerate(heard) if words is not None)
            raise LostProcess(f"process {rank} of this run failed, so all stopped: {heard[rank]}")

    def reduce_to_first(self, buffer: Tensor) -> None:
        """Add the buffers of all processes in the first one's."""
        with self._detect_lost_process():
            dist.reduce(buffer, group_dst=0, group=self._group)

    def broadcast(self, buffer: Tensor) -> None:
        """Copy the first process's buffer to all."""
        with self._detect_lost_process():
            dist.broadcast(buffer, group_src=0, group=self._group)

    def broadcast_all(self, tensors: Iterable[Tensor]) -> None:
        """Copy the first process's tensors, weights say, to all."""
        with torch.no_grad():
            for tensor in tensors:
                copied = tensor.detach().contiguous()
                self.broadcast(copied)
                tensor.copy_(copied)

    @contextmanager
    def _detect_lost_process(self) -> Iterator[None]:
        """Raise ``LostProcess`` for a connection that breaks or times out."""
        try:
            yield
        except RuntimeError as error:
            if not is_lost_connection(error):
                raise
            raise LostProcess(
                "another process of this run was lost or did not answer in time, so this one "
                "stopped; what was released is in the ledger. Start all processes again: open the "
                f"ledger and load the last saved state ({str(error).splitlines()[0]})"
            ) from error

    # --- who works on what ------------------------------------------------------------------------

    def share_of(
        self, records: int, clipping: Clipping, labels: NDArray[np.int64] | None, split: bool
    ) -> Any:
        """The places in the batch of this process's records."""
        # A clip-group belongs to one process.
        if isinstance(clipping, Mixed) and labels is not None:
            return np.flatnonzero(labels % self.size == self.rank)
        if isinstance(clipping, Batch) and not split:
            return slice(None) if self.first else slice(0)
        return slice(records * self.rank // self.size, records * (self.rank + 1) // self.size)


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because of another process, not of something here.

    >>> (
    ...     is_lost_connection(RuntimeError("Connection closed by peer")),
    ...     is_lost_connection(RuntimeError("not enough memory")),
    ... )
    (True, False)
    """
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and _LOST.search(str(error)) is not None


def find_processes(given: Any, model: nn.Module) -> Processes | None:
    """The processes to train in: those of a group, all there are, or none but this one.

    Args:
        given: None for all processes if ``torch.distributed`` was initialised, 1 for this one
            alone, or a group.
        model: what they train.
    """
    if isinstance(given, int) and given == 1:
        return None
    ready = dist.is_available() and dist.is_initialized()
    if given is not None and (not ready or not isinstance(given, dist.ProcessGroup)):
        raise ValueError(
            "processes must be None (all processes of torch.distributed), 1 (this one alone) "
            f"or a process group, got {given!r}"
        )
    if not ready:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                f"this process was started as one of {os.environ['WORLD_SIZE']} (WORLD_SIZE), but "
                "torch.distributed is not initialised: each would train and release on its own, "
                "and together they would cost more than any of them says. Call "
                "torch.distributed.init_process_group() first, or pass processes=1 for separate "
                "runs"
            )
        return None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return Processes(given, device) if dist.get_world_size(given) > 1 else None


@contextmanager
def launched() -> Iterator[bool]:
    """Join the processes that torchrun started, if it did; whether this is the first of them.

    >>> with launched() as first:
    ...     first
    True
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield not dist.is_initialized() or dist.get_rank() == 0
        return
    dist.init_process_group()
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


def can_split(clipping: Clipping, inner: Inner | None, model: nn.Module) -> bool:
    """Whether the batch's one clip-group can be split: the mean of independent records."""
    return isinstance(clipping, Batch) and inner is None and not has_batch_norm(model)


def add_share(clipper: Clipper, batch: Any, records: int, share: float, into: FlatBuffer) -> None:
    """Add these records' share of the whole batch's mean gradient, not clipped yet."""
    if records == 0:
        return
    found = clipper.aggregate(batch, records, into.parameters)
    for parameter, g in zip(into.parameters, found, strict=True):
        into.views[parameter].add_(g.to(into.buffer.dtype), alpha=share / into.denominator)


def clip_aggregate(buffer: Tensor, norm: float) -> None:
    """Clip a batch's aggregate that was added up over the processes."""
    size = math.sqrt(float(buffer.double().square().sum()))
    if not math.isfinite(size):
        raise NotFiniteError("the aggregate of a clip-group is not finite")
    if size > norm * NORM_MARGIN:
        buffer.mul_(norm * NORM_MARGIN / size)


def refuse_opened_elsewhere(ledger: Any, first: bool) -> None:
    """A ledger has one writer: the first process."""
    if isinstance(ledger, Ledger) and not first:
        raise ValueError("ledger must be opened by the first process only: pass None in the others")
