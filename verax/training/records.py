"""Per-record gradients of any model: by layer rules where they apply, by ``torch.func`` or record by record elsewhere.

Which way a model goes is found out, not assumed: the first batch of every new shape is checked against plain autograd
for two records and for all together. A layer used behind the rules' back, a parameter shared in a way they miss, or
records along another dimension show up there; a model that mixes records (batch norm in any disguise), or a loss that
counts them, is refused.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import verax.training.opaque  # noqa: F401  registers attention and recurrent layers
from verax.training.capture import Layers, Use, watching
from verax.training.chain import NotAChain, Pass, chain_of, keeps_apart
from verax.training.data import part
from verax.training.factors import HALF, Explicit, Kind, counted, merged, single_precision
from verax.training.kept import Kept
from verax.training.layers import trainable
from verax.training.pooling import in_slices

Losses = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch to one loss per record."""

Found = dict[nn.Parameter, Kind]
"""The per-record gradients of every trainable parameter."""

_FOLDED = -1
_FEWEST = 32  # records worked on at once, whatever the model
_FIT = 12.0 * 2**20  # bytes that those worked on at once may leave behind
_AGREE = 1e-3  # relative difference from plain autograd that is still rounding
_AGREE_HALF = 5e-2  # the same in half precision
_ROUNDED = 1e-2  # of that: by how much weights move when asking what rounding can do
_FAILS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_MOVED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # weights that can be moved a little


class MixedRecords(ValueError):  # noqa: N818  it says what is wrong
    """The model lets one record's loss depend on other records, so per-record clipping would not protect anybody."""


class _DoesNotApply(RuntimeError):  # noqa: N818  control flow
    """The rules do not fit what the model does."""


class Records:
    """Per-record gradients of one model under one loss.

    ``factors(batch)`` returns the trainable parameters' factors, from which norms and clipped sums are taken.
    """

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self.model = model
        self.losses = losses
        self._dims: dict[nn.Module, int] = {}
        self._checked: set[Any] = set()
        self._apart: dict[bool, tuple[int, int]] = {}  # by mode: records not seen to mix, in how many batches
        self._bytes: float | None = None
        self._knotted = False
        self._copies = False
        self._general = False
        self._loop = False
        self.channels = ChannelsLast()

    def look(self) -> Layers:
        """The model as it is now: layers may have been frozen, replaced or put in another mode since last time."""
        chain = None if self._knotted else chain_of(self.model)
        if chain is not None:
            return Layers.chained(chain)
        refuse_mixing(self.model)
        return Layers.of(self.model)

    @property
    def slow(self) -> bool:
        """Whether the rules were found not to apply."""
        return self._general

    @property
    def known_apart(self) -> bool:
        """Whether no record can have a say in another's loss, whatever the weights are."""
        return getattr(self.losses, "apart", False) and keeps_apart(self.model)

    def factors(self, batch: Any, records: int, layers: Layers | None = None) -> Found:
        """Per-record gradients of this batch; ``layers`` if the model was looked at for it already."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.factors(batch, records, layers)
        layers = layers or self.look()
        self._look_again(batch, records)
        if records == 1:
            return self._one_by_one(batch, 1)
        if layers.chain is not None:
            found = self._by_chain(layers, batch, records)
            if found is not None:
                return found
            self._knotted = True
            layers = self.look()
        if not self._general and layers.covered:
            found = self._laid_out(layers, batch, records)
            if found is None and not self._copies:
                self._copies = True
                found = self._laid_out(layers, batch, records)
            if found is not None:
                return found
            self._general = True
        return self._by_func(batch, records)

    def _look_again(self, batch: Any, records: int) -> None:
        """Look for mixing where more records go together than before, and after 1, 2, 4, 8 ... batches."""
        mode = self.model.training
        seen, batches = self._apart.get(mode, (0, 0))
        if records > 1 and (records > 2 * seen or doubled(batches)):
            if not self.known_apart:
                self._refuse_other_mixing(batch, records)
            seen = max(records, seen)
        self._apart[mode] = seen, batches + (records > 1)

    def fitting(self, batch: Any, records: int, layers: Layers, most: int) -> int:
        """How many records to work on at once, at most ``most``: what they leave behind is to stay near the cache."""
        if layers.chain is not None or records <= min(_FEWEST, most):
            return min(records, most)
        if self._bytes is None:
            self._bytes = 4.0 * sum(p.numel() for p in layers.trained)  # unless the rules apply, and know better
            few = min(_FEWEST, most)
            self.factors(_few(batch, records, few), few, layers)
        return min(max(int(_FIT / self._bytes), _FEWEST), most)

    def _refuse_other_mixing(self, batch: Any, records: int) -> None:
        """No record's loss may depend on the others, or on how many they are.

        Neither with the weights as they are nor with weights nearby: a branch that begins at zero is closed so far.
        """
        self._compare(batch, records)
        self._compare_parts(batch, records)
        with _nearby(self.model):
            self._compare(batch, records)

    def _compare(self, batch: Any, records: int) -> None:
        """With the same randomness, a record's loss and gradient must not change when all others become copies of it.

        Gradients are compared, too, since in them mixing shows however small the losses are.
        """
        ends = 0, records - 1
        (usual, gradients), (again, _) = self._seen(batch, records, ends), self._seen(batch, records)
        allowed = rounding_of([usual, *self.model.parameters()])
        if not torch.allclose(usual, again, rtol=allowed, atol=1e-5, equal_nan=True):
            raise MixedRecords(
                "a record's loss changes from one pass to the next although all seeds are set again, so that nobody "
                "can tell whether it depends on other records: let the model draw from torch's own generator, and "
                "keep nothing from pass to pass"
            )
        for record, mine in zip(ends, gradients, strict=True):
            alone, (other,) = self._seen(of_each(batch, records, partial(copies, record=record)), records, [record])
            first, second = float(usual[record]), float(alone[record])
            if abs(first - second) > allowed * (abs(first) + abs(second)) + 1e-5:
                raise MixedRecords(
                    f"a record's loss depends on the other records of its batch ({first:.6g} among them, {second:.6g} "
                    "among copies of itself): use layers that treat records one by one, or batch clipping (Batch or "
                    "Mixed)"
                )
            if self._differs(mine, other, partial(self._seen, batch, records, [record]), allowed):
                raise MixedRecords(
                    "the gradient of a record's loss depends on the other records of its batch (it is another one "
                    "among copies of itself): use layers that treat records one by one, or batch clipping (Batch or "
                    "Mixed)"
                )

    def _compare_parts(self, batch: Any, records: int) -> None:
        """A record's gradient must not change when others are left out: half of them, or one, which changes parity.

        In eval mode, since what is drawn at random depends on shapes. Where that fails, or is random still, nothing can
        be told.
        """
        tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)]
        if not all(x.dim() and len(x) == records for x in tensors):
            return
        ends = 0, records - 1
        with _evaluating(self.model):
            try:
                (usual, gradients), (again, _) = self._seen(batch, records, ends), self._seen(batch, records, seed=1)
            except _FAILS:
                return
            allowed = rounding_of([usual, *self.model.parameters()])
            if not torch.allclose(usual, again, rtol=allowed, atol=1e-5, equal_nan=True):
                return
            half = records // 2
            for start, few in dict.fromkeys([(0, half), (records - half, half), (1, records - 1)]):
                record, mine = (ends[0], gradients[0]) if start == 0 else (ends[1], gradients[1])
                try:
                    _, (other,) = self._seen(part(batch, slice(start, start + few)), few, [record - start])
                except _FAILS:
                    continue
                if self._differs(mine, other, partial(self._seen, batch, records, [record]), allowed):
                    raise MixedRecords(
                        "the gradient of a record's loss depends on how many records are in its batch (it is another "
                        f"one among {few} of {records}): return every record's own loss, not divided by their number, "
                        "or use batch clipping (Batch or Mixed)"
                    )

    def _seen(
        self, batch: Any, records: int, asked: Sequence[int] = (), seed: int = 0
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """All losses, and the gradients of the records asked for, with the same randomness every time."""
        parameters = [p for p in self.model.parameters() if trainable(p)]

        def look() -> tuple[Tensor, list[list[Tensor]]]:
            with torch.set_grad_enabled(bool(asked)), _bearing_channels_last(self.model):
                losses = one_each(self.losses(self.model, batch), records)
                return losses.detach(), [_gradient(losses, parameters, record) for record in asked]

        return repeatable(self.model, look, seed)

    def _differs(
        self, first: list[Tensor], second: list[Tensor], look: Callable[[], tuple[Tensor, list[list[Tensor]]]],
        allowed: float,
    ) -> bool:  # fmt: skip
        """Whether two gradients are not the same one, rounded; ``look`` takes the first again.

        Where parts cancel, as in a record that is fitted well, rounding is all that is left. So they must differ by
        more than the first does with weights that are moved by as little as rounding does.
        """
        if not first or not second:
            return False
        apart, size = _distance(first, second), _norm(first) + _norm(second)
        if not math.isfinite(apart + size) or apart <= allowed * size:
            return False
        with _nearby(self.model, _ROUNDED * allowed):
            _, (moved,) = look()
        return not moved or apart > 2.0 * _distance(first, moved)

    # --- as a chain -------------------------------------------------------------------------------------------------

    def _by_chain(self, layers: Layers, batch: Any, records: int) -> Found | None:
        """Without a graph, if the loss does nothing with the model but call it once."""
        assert layers.chain is not None  # noqa: S101
        key = tuple(layers.chain), tuple(layers.trained), self.model.training
        checked = key in self._checked
        if not checked and records > _FEWEST:
            if self._by_chain(layers, _few(batch, records), _FEWEST) is None:
                return None
            checked = True
        try:
            passed, g = self._to_output(layers.chain, batch, records)
            factors = {p: kinds[0] if len(kinds) == 1 else merged(kinds) for p, kinds in passed.factors(g).items()}
            if not checked:
                with torch.enable_grad():
                    usual = one_each(self.losses(self.model, batch), records)
                agrees = self._agrees(layers.trained, factors, usual, records)
                if agrees is False:
                    return None
                if agrees:
                    self._checked.add(key)
        except NotAChain:
            return None
        except (AttributeError, TypeError, RuntimeError):
            if checked:
                raise
            return None
        return factors

    def _to_output(self, chain: list[nn.Module], batch: Any, records: int) -> tuple[Pass, Tensor]:
        """Forward, and the gradient of the losses at the output: in closed form, or by autograd."""
        closed = getattr(self.losses, "gradient", None)
        if closed is not None:
            passed = Pass(chain, records, closed=True)
            g = closed(passed, batch)
            if g is not None:
                return passed, g
        passed = Pass(chain, records)
        with torch.enable_grad():
            losses = one_each(self.losses(cast(nn.Module, passed), batch), records)
        if passed.output is None or not losses.requires_grad:
            raise NotAChain
        return passed, torch.autograd.grad(losses, passed.output, torch.ones_like(losses))[0]

    # --- by rules ---------------------------------------------------------------------------------------------------

    def _laid_out(self, layers: Layers, batch: Any, records: int) -> Found | None:
        try:
            return self.channels.tried(self.model, batch, lambda laid: self._by_rules(layers, laid, records))
        except _DoesNotApply:
            return None

    def _by_rules(self, layers: Layers, batch: Any, records: int) -> Found | None:
        with torch.enable_grad(), watching(layers, self._copies) as tape:
            losses = one_each(self.losses(self.model, batch), records)
        if not losses.requires_grad:
            return {}
        shape = tuple(use.module for use in tape.uses), tuple(layers.trained), self.model.training
        new = shape not in self._checked
        try:
            factors = self._of_uses(tape.uses, losses, records, new)
            agrees = self._agrees(layers.trained, factors, losses, records) if new and factors is not None else None
        except RuntimeError as error:
            if new:
                raise _DoesNotApply from error
            raise
        if agrees:
            self._checked.add(shape)
        return None if agrees is False else factors

    def _of_uses(self, uses: Sequence[Use], losses: Tensor, records: int, new: bool) -> Found | None:
        """The factors of what was watched; None if the rules do not apply, as far as they can tell."""
        if not uses or (new and not self._find_dims(uses, losses)):
            return None
        edges = [edge for use in uses for edge in use.edges]
        each = torch.ones_like(losses)
        gradients = torch.autograd.grad(losses, edges, each, allow_unused=True, retain_graph=new)
        if not all(use.intact for use in uses):
            return None
        factors = self._finish(uses, gradients, records)
        if new and factors is not None:
            held = [x for use in uses for x in use.inputs] + [g for g in gradients if g is not None]
            numbers = sum(x.numel() for x in held) + sum(factor.formed() for factor in factors.values())
            self._bytes = 4.0 * numbers / records
        return factors

    def _finish(self, uses: Sequence[Use], gradients: Sequence[Tensor | None], records: int) -> Found | None:
        """All uses of every parameter as one factor; None if some use has another number of records."""
        found: dict[nn.Parameter, list[Kind]] = {}
        at = 0
        for use in uses:
            mine = gradients[at : at + len(use.edges)]
            at += len(use.edges)
            like = next((g for g in mine if g is not None), None)
            if like is None:
                continue
            whole = [torch.zeros_like(like) if g is None else g for g in mine]
            dim = self._dims.get(use.module, 0)
            for parameter, factor in use.finish(whole, dim if dim >= 0 else -records):
                if counted(factor) != records:
                    return None
                found.setdefault(parameter, []).append(factor)
        return {parameter: merged(kinds) for parameter, kinds in found.items()}

    def _find_dims(self, uses: Sequence[Use], losses: Tensor) -> bool:
        """Where each layer has its records: where the loss of one record has its gradient. False if nowhere."""
        record = len(losses) - 1
        edges = [use.edges[0] for use in uses]
        gradients = torch.autograd.grad(losses, edges, _only_one(losses, record), allow_unused=True, retain_graph=True)
        for use, g in zip(uses, gradients, strict=True):
            if g is None or use.module in self._dims:
                continue
            dim = _dim_of(g, record, len(losses))
            if dim is None:
                return False
            self._dims[use.module] = dim
        return True

    def _agrees(
        self, parameters: list[nn.Parameter], factors: Found, losses: Tensor, records: int
    ) -> bool | None:  # fmt: skip
        """Whether the sum of all gradients, the first and the last are what plain autograd says; None if not finite."""
        squares = [factor.squares() for factor in factors.values()]
        norms = torch.stack(squares).sum(dim=0).sqrt() if squares else single_precision(torch.zeros_like(losses))
        for pick in (torch.ones_like(losses), _only_one(losses, 0), _only_one(losses, records - 1)):
            truth = _gradients(losses, parameters, pick)
            size = _norm(truth)
            if not math.isfinite(size):
                return None
            weights = single_precision(pick)
            size = max(size, float(norms @ weights))  # gradients that cancel leave their rounding behind
            for parameter, exact in zip(parameters, truth, strict=True):
                factor = factors.get(parameter)
                mine = torch.zeros_like(parameter, dtype=torch.float32)
                if factor is not None:
                    factor.add(weights, mine)
                if not (mine - exact).norm() <= rounding_of([parameter]) * (exact.norm() + 1e-3 * size + 1e-12):
                    return False
        return True

    # --- without rules ----------------------------------------------------------------------------------------------

    def _by_func(self, batch: Any, records: int) -> Found:
        """One record at a time, vectorised by torch.func if it can be."""
        if not self._loop:
            try:
                return self._vectorised(batch, records)
            except (RuntimeError, NotImplementedError, ValueError):
                self._loop = True  # data-dependent control flow, or an operation that cannot be vectorised
        return self._one_by_one(batch, records)

    def _vectorised(self, batch: Any, records: int) -> Found:
        whole = _Whole(self.model, self.losses)
        named = {name: p for name, p in whole.named_parameters() if p.requires_grad}

        def one(values: dict[str, Tensor], record: Any) -> Tensor:
            single = pytree.tree_map(lambda t: t.unsqueeze(0) if isinstance(t, Tensor) else t, record)
            return one_each(torch.func.functional_call(whole, values, (single,)), 1)[0]

        values = {name: p.detach() for name, p in named.items()}
        dims = pytree.tree_map(lambda t: 0 if isinstance(t, Tensor) else None, batch)
        derivative = torch.func.grad(one)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some operation is vectorised by a loop is no concern of the caller's
            gradients = torch.func.vmap(derivative, in_dims=(None, dims), randomness="different")(values, batch)
        return {named[name]: Explicit(g.detach()) for name, g in gradients.items()}

    def _one_by_one(self, batch: Any, records: int) -> Found:
        parameters = [p for p in self.model.parameters() if trainable(p)]
        rows: list[list[Tensor]] = [[] for _ in parameters]
        for i in range(records):
            single = pytree.tree_map(lambda t, i=i: t[i : i + 1] if isinstance(t, Tensor) else t, batch)
            with torch.enable_grad():
                loss = one_each(self.losses(self.model, single), 1)[0]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for row, g, parameter in zip(rows, gradients, parameters, strict=True):
                row.append(torch.zeros_like(parameter) if g is None else g.to_dense())
        return {p: Explicit(torch.stack(row)) for p, row in zip(parameters, rows, strict=True)}


Result = TypeVar("Result")


class ChannelsLast:
    """Images with their channels last in memory, where convolutions are faster, and pooling by slices.

    The values are the same; a model that takes a ``view`` of an activation may refuse their order: it gets its own.
    """

    def __init__(self) -> None:
        self._borne = True

    def tried(self, model: nn.Module, batch: Any, work: Callable[[Any], Result]) -> Result:
        """What the work makes of the batch."""
        with _bearing_channels_last(model):
            if not self._borne or not any(isinstance(module, nn.Conv2d) for module in model.modules()):
                return work(batch)
            try:
                with in_slices(model):
                    return work(pytree.tree_map(_channels_last, batch))
            except RuntimeError:
                self._borne = False
                return work(batch)


@contextmanager
def _bearing_channels_last(model: nn.Module) -> Iterator[None]:
    """Group norms get what needs no gradient in the usual order, until the block ends.

    On a processor torch's derivative of a group norm reads memory that is not there if its input has the channels last
    and needs no gradient, and takes the process with it.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    handles = [norm.register_forward_pre_hook(_in_usual_order, with_kwargs=True) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_usual_order(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    def usual(x: Any) -> Any:
        return x.contiguous() if isinstance(x, Tensor) and not x.requires_grad else x

    return tuple(map(usual, args)), {name: usual(x) for name, x in kwargs.items()}


class _Whole(nn.Module):
    """The model and its loss as one module, for functional calls."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Tensor:
        return self._losses(self.model, batch)


def doubled(count: int) -> bool:
    """Whether it is 0, 1, 2, 4, 8 ...: when to look again at what is looked at less and less."""
    return count & (count - 1) == 0


def _few(batch: Any, records: int, few: int = _FEWEST) -> Any:
    """The first records of the batch."""
    return of_each(batch, records, lambda x: x[:few])


@contextmanager
def _nearby(model: nn.Module, share: float = 0.1) -> Iterator[None]:
    """The model with all weights moved by a share of their size, until the block ends.

    Their memory and versions stay as they are.
    """
    kept = [(p, p.data) for p in model.parameters() if trainable(p) and p.dtype in _MOVED]
    made = torch.Generator().manual_seed(0)
    try:
        for parameter, value in kept:
            size = float(value.detach().float().square().mean().sqrt()) if value.numel() else 0.0
            noise = torch.randn(value.shape, generator=made).to(value)
            parameter.data = value + (share * size if size > 0.0 else share) * noise
        yield
    finally:
        for parameter, value in kept:
            parameter.data = value


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model and all within in eval mode, until the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def repeatable(model: nn.Module, work: Callable[[], Result], seed: int = 0) -> Result:
    """What the work gives with fixed randomness and without gradients; randomness and buffers are left as they were."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    kept = Kept(model)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  that of whoever uses it
    with torch.no_grad(), torch.random.fork_rng(devices):
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            return work()
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            kept.restore()


def copies(x: Tensor, record: int) -> Tensor:
    """As many copies of one record as there are records."""
    return x[record : record + 1].expand_as(x).contiguous()


def of_each(batch: Any, records: int, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with a change of its tensors; those that do not have one entry for each record are left as they are."""

    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, Tensor) and x.dim() and len(x) == records else x

    return pytree.tree_map(changed, batch)


def _gradient(losses: Tensor, parameters: list[nn.Parameter], record: int) -> list[Tensor]:
    """That of one record's loss; nothing if it has none, or none that autograd can take."""
    if not losses.requires_grad or not parameters:
        return []
    try:
        return _gradients(losses, parameters, _only_one(losses, record))
    except RuntimeError:
        return []


def _gradients(losses: Tensor, parameters: list[nn.Parameter], pick: Tensor) -> list[Tensor]:
    """Those of the losses, weighted; the graph is kept."""
    found = torch.autograd.grad(losses, parameters, pick, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(found, parameters, strict=True)]


def _norm(tensors: Iterable[Tensor]) -> float:
    """Of all together, in double precision: squares of small numbers vanish in single."""
    return math.hypot(*(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in tensors))


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    return _norm(x - y for x, y in zip(first, second, strict=True))


def rounding_of(tensors: Sequence[Tensor]) -> float:
    """Up to which relative difference two ways to compute with these tensors agree."""
    return _AGREE_HALF if any(x.dtype in HALF for x in tensors) else _AGREE


def _channels_last(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
        return x
    return x.contiguous(memory_format=torch.channels_last)


def _dim_of(g: Tensor, record: int, records: int) -> int | None:
    """Where the records are: dimension 0 or 1, or _FOLDED if they are blocks of dimension 0."""
    for dim in range(min(g.dim(), 2)):
        if g.shape[dim] == records and _only(g, dim, record):
            return dim
    if g.shape[0] % records == 0 and _only(g.unflatten(0, (records, -1)), 0, record):
        return _FOLDED
    return None


def _only_one(losses: Tensor, record: int) -> Tensor:
    picked = torch.zeros_like(losses)
    picked[record] = 1.0
    return picked


def _only(g: Tensor, dim: int, record: int) -> bool:
    """Whether the gradient vanishes for all records but one."""
    rest = g.detach().clone()
    rest.select(dim, record).zero_()
    return not bool(rest.any())


def one_each(losses: Tensor, records: int) -> Tensor:
    """One loss per record, or an error that says what to do."""
    if losses.dim() == 2 and losses.shape[1] == 1:
        losses = losses[:, 0]
    if losses.dim() != 1 or len(losses) != records:
        raise ValueError(
            f"loss must return one value per record, shape ({records},), got shape {tuple(losses.shape)}; "
            "use reduction='none' and average over everything but the first dimension"
        )
    return losses


_NORMS = nn.modules.batchnorm._NormBase


def refuse_mixing(model: nn.Module) -> None:
    """Refuse layers whose outputs for one record depend on the others in the batch, or that store batch statistics."""
    if not any(isinstance(module, _NORMS) for module in model.modules()):
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise MixedRecords(
                f"{name or 'the model'} ({type(module).__name__}) normalises over the batch, which mixes records: use "
                "nn.GroupNorm or nn.LayerNorm, put it in eval mode, or use batch clipping (Batch or Mixed)"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.training and module.track_running_stats:
            raise MixedRecords(
                f"{name or 'the model'} ({type(module).__name__}) keeps running statistics of the batch, which no "
                "noise protects: set track_running_stats=False"
            )
