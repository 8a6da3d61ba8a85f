"""Checks that a ``collate_fn`` or ``__getitems__`` treats each record by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax.training.checks.batch_size import alike_at_both_sizes
from verax.training.checks.independence import MixedRecords
from verax.training.checks.snapshot import tensors_equal
from verax.training.checks.trial_runs import (
    Losses,
    check_is_due,
    eval_mode,
    generator_states,
    loss_per_record,
    map_records,
    perturbed_weights,
    repeat_record,
    rounding_tolerance,
    run_repeatably,
    seed_all,
)
from verax.training.data.containers import Column

# Records that are tried, and seeds, if random numbers are drawn on the way.
_FEW = 4
_SEEDS = 4
# Seeds under which an entry that is never drawn stays, and one that is drawn does not.
_MANY_SEEDS = 8


class CollateCheck:
    """A function from records to a batch, checked in batches 1, 2, 4, 8 ...

    A few records of such a batch are kept until the loss is known: with the same random numbers, a
    record must have the same loss among the others as among copies of itself. Padding may differ,
    if the loss does not depend on it.

    Args:
        make: from a list of records, or of their numbers, to a batch.
        in_order: whether the records must keep their places, because clip-groups are cut from the
            batch.
        trial: the same function for trials, with seeds that are set in this process; by default
            itself.
    """

    def __init__(
        self,
        make: Callable[[list[Any]], Any],
        in_order: bool,
        trial: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._make, self._trial, self._in_order = make, trial or make, in_order
        self._batches = 0
        self._few: list[Any] = []

    def __call__(self, records: list[Any]) -> Any:
        """A batch of these records; of some batches, a few records are kept for the check."""
        self._batches += len(records) > 1
        checked = len(records) > 1 and check_is_due(self._batches)
        places = np.linspace(0, len(records) - 1, min(len(records), _FEW)).astype(int).tolist()
        self._few = _copy_records([records[place] for place in places]) if checked else []
        return self._make(records)

    def refuse_mixing(self, model: nn.Module, losses: Losses) -> None:
        """Refuse a function that makes a record's part of the batch depend on other records."""
        few, self._few = self._few, []
        decided = not few
        values = losses if self._in_order else _loss_of_each(losses, len(few))
        same_loss = partial(_same_losses, model, values)
        for seed in range(_SEEDS * self._batches, _SEEDS * (self._batches + 1)) if few else ():
            among, drawn = self._make_batch(few, seed, model)
            again, _ = self._make_batch(few, seed, model)
            if not _same(among, again):
                raise _mixing_error(
                    "changes from one call to the next although all seeds are set again"
                )
            for place, record in enumerate(few):
                alone, theirs = self._make_batch([record] * len(few), seed, model)
                stays = self._in_order or drawn != theirs
                if _record_agrees([among, alone], len(few), place, stays, same_loss):
                    decided = True
                # Otherwise the record may have had other random numbers, which is no mixing.
                elif drawn == theirs:
                    order = " or changes their order" if self._in_order else ""
                    raise _mixing_error(
                        "lets what a record becomes depend on the other records of its "
                        f"batch{order}"
                    )
            if drawn is None:
                break
        if not decided:
            raise _mixing_error(
                "draws as many random numbers as depends on the records: nobody can tell whether "
                "it mixes them"
            )
        if few:
            self._refuse_counting(few[0], len(few), model, losses)

    def _refuse_counting(self, record: Any, few: int, model: nn.Module, losses: Losses) -> None:
        """Refuse a function that makes a record's part depend on how many others there are.

        Copies of one record become the same in batches of all sizes. Where random numbers are
        drawn, that is asked of what is the same under many seeds.
        """
        _, drawn = self._make_batch([record] * few, 0, model)
        seeds = range(1 if drawn is None else _MANY_SEEDS)

        def made(size: int) -> list[Any]:
            return [self._make_batch([record] * size, seed, model)[0] for seed in seeds]

        def values(batch: Any, size: int) -> Callable[[nn.Module], Tensor]:
            each = losses if self._in_order else _loss_of_each(losses, size)
            return lambda model: each(model, batch)

        fewer = made(few)
        for size in (few + 1, 2 * few + 1):
            more = made(size)
            alike = alike_at_both_sizes(fewer, few, more, size)
            if alike is None and drawn is None:  # their shapes differ: see whether that matters
                alike = _close(model, [values(fewer[0], few), values(more[0], size)])
            if alike is False:
                raise _mixing_error(
                    "lets what a record becomes depend on how many records its batch has"
                )

    def _make_batch(self, records: list[Any], seed: int, model: nn.Module) -> tuple[Any, Any]:
        """A batch under a fixed seed; the generators' state after it, or None if unchanged."""

        def made() -> tuple[Any, Any]:
            seed_all(seed)
            before = generator_states()
            try:
                batch = self._trial(_copy_records(records))
            except Exception as error:
                error.add_note(
                    f"verax made a batch of {len(records)} records to see whether collate_fn mixes "
                    "them"
                )
                raise
            after = generator_states()
            return batch, None if after == before else after

        return run_repeatably(model, made)


def _record_agrees(
    batches: list[Any],
    records: int,
    place: int,
    stays: bool,
    same_loss: Callable[[Any, Any], bool],
) -> bool:
    """Whether a record became the same in two batches: entry by entry, or by its loss.

    If it does not stay in its place, any record of the one may have the loss of any of the other.
    """
    first, second = (_one_record(batch, records, place) for batch in batches)
    if _same(first, second):
        return True
    if stays:
        tensors = _tensors(first), _tensors(second)
        if [x.shape for x in tensors[0]] == [x.shape for x in tensors[1]] and not _same(*tensors):
            # It is not padding. Layers that normalise over a clip-group would hide it.
            return False
        batches = [
            map_records(batch, records, partial(repeat_record, record=place)) for batch in batches
        ]
    return same_loss(*batches)


def _loss_of_each(losses: Losses, records: int) -> Losses:
    """The same losses, or an error if there is not one for each record."""
    return lambda model, batch: loss_per_record(losses(model, batch), records)


def _same_losses(model: nn.Module, losses: Losses, first: Any, second: Any) -> bool:
    """Whether two batches share a loss, with perturbed weights: zero weights hide the rest."""
    return _close(model, [lambda model: losses(model, first), lambda model: losses(model, second)])


def _close(model: nn.Module, losses: list[Callable[[nn.Module], Tensor]]) -> bool:
    with eval_mode(model), perturbed_weights(model):
        x, y = (run_repeatably(model, partial(one, model)).reshape(-1) for one in losses)
    allowed = rounding_tolerance([x, y, *model.parameters()])
    return bool(torch.isclose(x[:, None], y, rtol=allowed, atol=1e-5, equal_nan=True).any())


def _mixing_error(what: str) -> MixedRecords:
    return MixedRecords(
        "what makes batches of records (the loader's collate_fn, or the data set's __getitems__) "
        f"{what}, so that clipping would protect nobody: change each record by itself in the data "
        "set's __getitem__, drawing from the generators of torch, numpy or Python; what has no "
        "entry for each record must be the same whatever they are, and however many; where it "
        "pads, let the model skip the padding (a mask, or packed sequences), or pad to a fixed "
        "length; or use batch clipping (Batch)"
    )


def _copy_records(records: list[Any]) -> list[Any]:
    """A copy of each record, or the records themselves if one cannot be copied."""
    try:
        return [copy.deepcopy(record) for record in records]
    except (RuntimeError, TypeError):
        return records


def _one_record(batch: Any, records: int, place: int) -> Any:
    """One record's part of a batch, and what belongs to all."""
    return map_records(batch, records, lambda x: x[place : place + 1])


def _same(first: Any, second: Any) -> bool:
    """Whether two batches have the same entries."""
    both = [pytree.tree_leaves(batch) for batch in (first, second)]
    return len(both[0]) == len(both[1]) and all(map(_equal, *both))


def _equal(x: Any, y: Any) -> bool:
    """Whether two leaves are the same; NaN equals NaN."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return tensors_equal(x, y)
    if isinstance(x, Column) and isinstance(y, Column):
        return len(x) == len(y) and all(map(_equal, x, y))
    return type(x) is type(y) and bool(x == y or (x != x and y != y))


def _tensors(batch: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)]
