"""Losses as people write them, turned into one loss per record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax.training.data.containers import Column, has_target
from verax.training.data.microbatch import has_entries
from verax.training.gradients.norms import constant

Criterion = Callable[..., Tensor]
"""A loss: from outputs and targets (tuples of data), or from the model and the batch
(dictionaries), to losses.
"""


class PerExampleLoss:
    """A criterion as one loss per record, whatever its own reduction is.

    Tuples are (inputs..., target): the criterion gets the model's output and the target. For other
    batches it gets the model and the batch. A criterion that reduces is applied record by record.
    """

    def __init__(self, loss: Criterion) -> None:
        self._reduction = getattr(loss, "reduction", None)
        self._criterion: Criterion = loss
        if isinstance(loss, nn.Module) and self._reduction in ("mean", "sum"):
            each = copy.copy(loss)
            each.reduction = "none"
            self._criterion = each

    @property
    def apart(self) -> bool:
        """Whether a record's loss is known to depend on no other record's output."""
        return type(self._criterion) in _CLOSED_FORMS and _is_unmodified(self._criterion)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """One loss per record."""
        criterion = self._criterion
        if has_target(batch):
            *inputs, target = batch
            outputs = model(*inputs)
            self._refuse_pairs(outputs, target)
            found = criterion(outputs, target)
        else:
            found = criterion(model, batch)
            outputs = target = None
        if not isinstance(found, Tensor):
            raise ValueError(
                f"loss must return a tensor with one value per record, got {type(found).__name__}"
            )
        if found.dim() == 0 and outputs is not None:  # reduced: ask again, record by record
            found = _one_by_one(criterion, outputs, target)
        if found.dim() > 1 and len(found) == _records_in(batch if target is None else target):
            found = found.flatten(1)
            found = (
                found.sum(dim=1)
                if self._reduction == "sum"
                else found.sum(dim=1) / self._parts_counted(found, target)
            )
        return found

    def _refuse_pairs(self, outputs: Any, target: Any) -> None:
        """Refuse shapes that torch would broadcast, which compares records with each other."""
        tensors = isinstance(outputs, Tensor) and isinstance(target, Tensor)
        if type(self._criterion) in _ELEMENTWISE and tensors and outputs.shape != target.shape:
            mine, theirs = (
                ", ".join(["records", *map(str, x.shape[1:])]) for x in (outputs, target)
            )
            raise ValueError(
                f"loss {type(self._criterion).__name__} needs outputs and targets of one shape, "
                f"got ({mine}) and ({theirs}), which would compare records with each other: "
                "reshape the targets, or flatten the outputs"
            )

    def _parts_counted(self, found: Tensor, target: Any) -> Tensor | int:
        """Over how many parts a record's mean is taken, without ignored classes."""
        ignored = getattr(self._criterion, "ignore_index", None)
        if ignored is None or not isinstance(target, Tensor) or target.is_floating_point():
            return found.shape[1]
        return (target != ignored).flatten(1).sum(dim=1).clamp(min=1)

    def gradient(self, model: Callable[..., Tensor], batch: Any) -> Tensor | None:
        """The gradient of each record's loss at the output; None without a closed form."""
        closed = _CLOSED_FORMS.get(type(self._criterion))
        if closed is None or not has_target(batch):
            return None
        *inputs, target = batch
        outputs = model(*inputs)
        g = closed(self._criterion, outputs, target)
        # that of the target, if it has more digits
        if g is not None and g.dtype is not outputs.dtype:
            g = g.to(outputs.dtype)
        if (
            g is not None
            and self._reduction != "sum"
            and not isinstance(self._criterion, nn.CrossEntropyLoss)
        ):
            g = g / (g.numel() // len(g))  # of the mean over a record's outputs
        return g


def same_loss(first: Criterion, second: Criterion) -> bool:
    """Whether they are one loss, or two of torch's own kinds with the same settings.

    >>> (
    ...     same_loss(nn.CrossEntropyLoss(), nn.CrossEntropyLoss()),
    ...     same_loss(nn.MSELoss(), nn.MSELoss(reduction="sum")),
    ... )
    (True, False)
    """
    if first is second:
        return True
    if type(first) is not type(second) or type(first).__module__ != nn.modules.loss.__name__:
        return False
    settings = [
        {key: value for key, value in vars(loss).items() if key[0] != "_"}
        for loss in (first, second)
    ]
    tensors = any(isinstance(value, Tensor) for value in settings[0].values())
    plain = all(
        _is_unmodified(loss) and not list(loss.buffers())
        for loss in (first, second)
        if isinstance(loss, nn.Module)
    )
    return plain and not tensors and settings[0] == settings[1]


def _is_unmodified(loss: Any) -> bool:
    """Whether nobody changed what a torch loss computes."""
    return not (loss._forward_hooks or loss._forward_pre_hooks or "forward" in vars(loss))


def _records_in(batch: Any) -> int | None:
    """How many records there are, by the first leaf that can have an entry for each."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Column) or (isinstance(leaf, Tensor) and leaf.dim() > 0):
            return len(leaf)
    return None


def _one_by_one(criterion: Criterion, outputs: Any, target: Any) -> Tensor:
    """A loss that reduces, of every record by itself: vectorised if it can be."""
    whole, records = (outputs, target), _records_in(target)
    leaves = pytree.tree_leaves(whole)
    if records is None or not all(
        has_entries(x, records) and isinstance(x, Tensor) for x in leaves
    ):
        raise ValueError(
            "loss must return one value per record unless the model's output is tensors with an "
            "entry for each record, got a reduced loss and an output of type "
            f"{type(outputs).__name__}: use reduction='none'"
        )
    try:
        return torch.func.vmap(
            lambda one: criterion(*pytree.tree_map(lambda x: x.unsqueeze(0), one))
        )(whole)
    except RuntimeError:  # it looks at values, say
        singles = (pytree.tree_map(lambda x, i=i: x[i : i + 1], whole) for i in range(records))
        return torch.stack([criterion(*single) for single in singles])


def _cross_entropy(loss: Any, outputs: Tensor, target: Tensor) -> Tensor | None:
    """Probabilities minus the one of the target."""
    usual = loss.weight is None and loss.label_smoothing == 0.0 and loss.ignore_index < 0
    if not usual or outputs.dim() != 2 or target.dim() != 1 or target.dtype != torch.int64:
        return None
    # a class to be ignored; on a processor the scatter refuses it
    if not target.is_cpu and int(target.min()) < 0:
        return None
    few = outputs.shape[1] < 8  # the softmax of short rows is slower than this
    g = torch.log_softmax(outputs, dim=1).exp_() if few else torch.softmax(outputs, dim=1)
    index = target.unsqueeze(1)
    try:
        return g.scatter_add_(1, index, constant(-1.0, g.dtype, g.device).expand_as(index))
    except RuntimeError:
        return None


def _logistic(loss: Any, outputs: Tensor, target: Tensor) -> Tensor | None:
    """Probability minus target."""
    if loss.weight is not None or loss.pos_weight is not None or outputs.shape != target.shape:
        return None
    return torch.sigmoid(outputs) - target


def _square(loss: Any, outputs: Tensor, target: Tensor) -> Tensor | None:
    """Twice the distance."""
    return 2.0 * (outputs - target) if outputs.shape == target.shape else None


_CLOSED_FORMS: dict[type, Callable[[Any, Tensor, Tensor], Tensor | None]] = {
    nn.CrossEntropyLoss: _cross_entropy,
    nn.BCEWithLogitsLoss: _logistic,
    nn.MSELoss: _square,
}
_ELEMENTWISE = frozenset(
    (
        *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
        *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss),
    )
)
