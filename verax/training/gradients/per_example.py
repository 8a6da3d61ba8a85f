"""Per-example gradients of any model: by layer rules, ``torch.func``, or one by one.

Which way a model goes is found out, not assumed: the first batch of every new shape is checked
against plain autograd for two records and for all together. A layer used behind the rules' back, a
parameter shared in a way they miss, or records along another dimension show up there; a model that
mixes records (batch norm in any disguise), or a loss that counts them, is refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from verax.training.checks.independence import (
    IndependenceCheck,
    gradients_of,
    norm_of,
    refuse_mixing,
)
from verax.training.checks.trial_runs import (
    Losses,
    loss_per_record,
    map_records,
    one_hot,
    perturbed_weights,
    rounding_tolerance,
    run_repeatably,
)
from verax.training.data.containers import has_column
from verax.training.data.microbatch import has_entries, part
from verax.training.gradients.factors import (
    AnyFactor,
    Explicit,
    merge_uses,
    record_count,
    single_precision,
    trainable,
)
from verax.training.gradients.hooks import Layers, watching
from verax.training.gradients.layer_rules.base import LayerCall
from verax.training.gradients.mlp import ChainPass, NotAChainError, linear_chain
from verax.training.performance.channels_last import ChannelsLast

FoundGradients = dict[nn.Parameter, AnyFactor]
"""The per-record gradients of every trainable parameter."""

_FOLDED = -1
_ASKED = 8  # records at most that are asked where layers have them
_FEWEST = 32  # records worked on at once, whatever the model
_FIT = 12.0 * 2**20  # bytes that those worked on at once may leave behind


class _RulesDoNotApplyError(RuntimeError):
    """The rules do not fit what the model does."""


class _UnknownDimensionError(Exception):
    """A layer has a gradient, and where its records are is not known so far."""


class PerExampleGradients:
    """Per-record gradients of one model under one loss.

    ``factors(batch)`` returns the trainable parameters' factors, from which norms and clipped sums
    are taken.
    """

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self.model = model
        self.losses = losses
        self._dims: dict[nn.Module, int] = {}
        self._checked: set[Any] = set()
        self._mixing = IndependenceCheck(model, losses)
        self._bytes: float | None = None
        self._not_a_chain = False
        self._copies = False
        self._general = False
        self._loop = False
        self.channels = ChannelsLast()

    def look(self) -> Layers:
        """The model's layers as they are now; to be called once a round."""
        self._mixing.begin()
        chain = None if self._not_a_chain else linear_chain(self.model)
        if chain is not None:
            return Layers.chained(chain)
        refuse_mixing(self.model)
        return Layers.of(self.model)

    @property
    def slow(self) -> bool:
        """Whether the rules were found not to apply."""
        return self._general

    @property
    def known_independent(self) -> bool:
        """Whether no record can have a say in another's loss, whatever the weights are."""
        return self._mixing.known_independent

    def factors(self, batch: Any, records: int, layers: Layers | None = None) -> FoundGradients:
        """Per-example gradients of this batch; ``layers`` if they were looked up already."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.factors(batch, records, layers)
        layers = layers or self.look()
        self._mixing.refuse(batch, records)
        if records == 1:
            return self._one_by_one(batch, 1)
        if layers.chain is not None:
            found = self._by_chain(layers, batch, records)
            if found is not None:
                return found
            self._not_a_chain = True
            layers = self.look()
        if not self._general and layers.covered:
            try:
                found = self._laid_out(layers, batch, records)
                if found is None and not self._copies:
                    self._copies = True
                    found = self._laid_out(layers, batch, records)
            except _UnknownDimensionError:
                return self._by_func(batch, records)
            if found is not None:
                return found
            self._general = True
        return self._by_func(batch, records)

    def fitting(self, batch: Any, records: int, layers: Layers, most: int) -> int:
        """How many records to work on at once, so that they stay near the cache."""
        if layers.chain is not None or records <= min(_FEWEST, most):
            return min(records, most)
        if self._bytes is None:
            # unless the rules apply, and know better
            self._bytes = 4.0 * sum(p.numel() for p in layers.trained)
            few = min(_FEWEST, most)
            self.factors(_few(batch, records, few), few, layers)
        return min(max(int(_FIT / self._bytes), _FEWEST), most)

    # --- as a chain -------------------------------------------------------------------------------

    def _by_chain(self, layers: Layers, batch: Any, records: int) -> FoundGradients | None:
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
            factors = {
                p: kinds[0] if len(kinds) == 1 else merge_uses(kinds)
                for p, kinds in passed.factors(g).items()
            }
            if not checked:
                with torch.enable_grad():
                    usual = loss_per_record(self.losses(self.model, batch), records)
                agrees = self._agrees(layers.trained, factors, usual, records)
                if agrees is False:
                    return None
                if agrees:
                    self._checked.add(key)
        except NotAChainError:
            return None
        except (AttributeError, TypeError, RuntimeError):
            if checked:
                raise
            return None
        return factors

    def _to_output(
        self, chain: list[nn.Module], batch: Any, records: int
    ) -> tuple[ChainPass, Tensor]:
        """Forward, and the gradient of the losses at the output: in closed form, or by autograd."""
        closed = getattr(self.losses, "gradient", None)
        if closed is not None:
            passed = ChainPass(chain, records, closed=True)
            g = closed(passed, batch)
            if g is not None:
                return passed, g
        passed = ChainPass(chain, records)
        with torch.enable_grad():
            losses = loss_per_record(self.losses(cast(nn.Module, passed), batch), records)
        if passed.output is None or not losses.requires_grad:
            raise NotAChainError
        return passed, torch.autograd.grad(losses, passed.output, torch.ones_like(losses))[0]

    # --- by rules ---------------------------------------------------------------------------------

    def _laid_out(self, layers: Layers, batch: Any, records: int) -> FoundGradients | None:
        try:
            return self.channels.tried(
                self.model, batch, lambda laid: self._by_rules(layers, laid, records)
            )
        except _RulesDoNotApplyError:
            return None

    def _by_rules(self, layers: Layers, batch: Any, records: int) -> FoundGradients | None:
        before = torch.get_rng_state()
        uses, losses = self._watched(layers, batch, records)
        if not losses.requires_grad:
            return {}
        shape = tuple(use.module for use in uses), tuple(layers.trained), self.model.training
        if shape in self._checked:
            try:
                return self._of_uses(uses, losses, records)
            except _UnknownDimensionError:
                self._checked.discard(shape)
                raise
        del uses, losses

        def tried() -> bool | None:
            return self._tried(layers, batch, records)[1]

        # a branch that begins at zero has no gradient so far, and shows nothing
        with perturbed_weights(self.model):
            apply = run_repeatably(self.model, tried)
        torch.set_rng_state(before)  # looking changes nothing
        factors, agrees = self._tried(layers, batch, records)
        if apply and agrees:
            self._checked.add(shape)
        return None if apply is False or agrees is False else factors

    def _watched(self, layers: Layers, batch: Any, records: int) -> tuple[list[LayerCall], Tensor]:
        with torch.enable_grad(), watching(layers, self._copies) as tape:
            losses = loss_per_record(self.losses(self.model, batch), records)
        return tape.calls, losses

    def _tried(
        self, layers: Layers, batch: Any, records: int
    ) -> tuple[FoundGradients | None, bool | None]:
        """What the rules find, and whether plain autograd agrees."""
        uses, losses = self._watched(layers, batch, records)
        try:
            factors = self._of_uses(uses, losses, records, new=True)
            return factors, False if factors is None else self._agrees(
                layers.trained, factors, losses, records
            )
        except RuntimeError as error:
            raise _RulesDoNotApplyError from error

    def _of_uses(
        self, uses: Sequence[LayerCall], losses: Tensor, records: int, new: bool = False
    ) -> FoundGradients | None:
        """The factors of the watched calls; None if the rules do not apply."""
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
            numbers = sum(x.numel() for x in held) + sum(
                factor.numbers_formed() for factor in factors.values()
            )
            self._bytes = 4.0 * numbers / records
        return factors

    def _finish(
        self, uses: Sequence[LayerCall], gradients: Sequence[Tensor | None], records: int
    ) -> FoundGradients | None:
        """All uses of each parameter as one factor; None if the numbers of records differ."""
        found: dict[nn.Parameter, list[AnyFactor]] = {}
        at = 0
        for use in uses:
            mine = gradients[at : at + len(use.edges)]
            at += len(use.edges)
            like = next((g for g in mine if g is not None), None)
            if like is None:
                continue
            whole = [torch.zeros_like(like) if g is None else g for g in mine]
            dim = self._dims.get(use.module)
            if dim is None:
                raise _UnknownDimensionError
            for parameter, factor in use.backward(whole, dim if dim >= 0 else -records):
                if record_count(factor) != records:
                    return None
                found.setdefault(parameter, []).append(factor)
        return {parameter: merge_uses(kinds) for parameter, kinds in found.items()}

    def _find_dims(self, uses: Sequence[LayerCall], losses: Tensor) -> bool:
        """Find each layer's record dimension, from one record's gradient; False if none.

        A layer in which no record that is asked has any gradient remains to be found.
        """
        asked = list(dict.fromkeys((len(losses) - 1, 0, len(losses) // 2)))
        for turn in range(_ASKED):
            some = [use for use in uses if use.module not in self._dims]
            if not some:
                return True
            edges = [use.edges[0] for use in some]
            if turn >= len(asked):  # most records are dead there: ask one that is not
                all_of = torch.ones_like(losses)
                whole = torch.autograd.grad(
                    losses, edges, all_of, allow_unused=True, retain_graph=True
                )
                found = _alive(whole, len(losses))
                if found is None:
                    return True
                asked.append(found)
            record = asked[turn]
            pick = one_hot(losses, record)
            gradients = torch.autograd.grad(
                losses, edges, pick, allow_unused=True, retain_graph=True
            )
            for use, g in zip(some, gradients, strict=True):
                if g is None or not bool(g.any()):
                    continue
                dim = _dim_of(g, record, len(losses))
                if dim is None:
                    return False
                self._dims[use.module] = dim
        return True

    def _agrees(
        self, parameters: list[nn.Parameter], factors: FoundGradients, losses: Tensor, records: int
    ) -> bool | None:
        """Whether plain autograd agrees on the sum, the first and the last; None if not finite."""
        squares = [factor.squares() for factor in factors.values()]
        norms = (
            torch.stack(squares).sum(dim=0).sqrt()
            if squares
            else single_precision(torch.zeros_like(losses))
        )
        for pick in (torch.ones_like(losses), one_hot(losses, 0), one_hot(losses, records - 1)):
            truth = gradients_of(losses, parameters, pick)
            size = norm_of(truth)
            if not math.isfinite(size):
                return None
            weights = single_precision(pick)
            # gradients that cancel leave their rounding behind
            size = max(size, float(norms @ weights))
            for parameter, exact in zip(parameters, truth, strict=True):
                factor = factors.get(parameter)
                mine = torch.zeros_like(parameter, dtype=torch.float32)
                if factor is not None:
                    factor.add(weights, mine)
                if not (mine - exact).norm() <= rounding_tolerance([parameter]) * (
                    exact.norm() + 1e-3 * size + 1e-12
                ):
                    return False
        return True

    # --- without rules ----------------------------------------------------------------------------

    def _by_func(self, batch: Any, records: int) -> FoundGradients:
        """One record at a time, vectorised by torch.func if it can be."""
        if not self._loop and not has_column(batch):
            try:
                return self._vectorised(batch, records)
            except (RuntimeError, NotImplementedError, ValueError):
                # data-dependent control flow, or an operation that cannot be vectorised
                self._loop = True
        return self._one_by_one(batch, records)

    def _vectorised(self, batch: Any, records: int) -> FoundGradients:
        whole = _Whole(self.model, self.losses)
        named = {name: p for name, p in whole.named_parameters() if p.requires_grad}

        def one(values: dict[str, Tensor], record: Any) -> Tensor:
            single = pytree.tree_map(
                lambda x, dim: x if dim is None else x.unsqueeze(0), record, dims
            )
            return loss_per_record(torch.func.functional_call(whole, values, (single,)), 1)[0]

        values = {name: p.detach() for name, p in named.items()}
        dims = pytree.tree_map(lambda x: 0 if has_entries(x, records) else None, batch)
        derivative = torch.func.grad(one)
        with warnings.catch_warnings():
            # that some operation is vectorised by a loop is no concern of the caller's
            warnings.simplefilter("ignore")
            gradients = torch.func.vmap(derivative, in_dims=(None, dims), randomness="different")(
                values, batch
            )
        return {named[name]: Explicit(g.detach()) for name, g in gradients.items()}

    def _one_by_one(self, batch: Any, records: int) -> FoundGradients:
        parameters = [p for p in self.model.parameters() if trainable(p)]
        rows: list[list[Tensor]] = [[] for _ in parameters]
        for i in range(records):
            single = part(batch, slice(i, i + 1), records)
            with torch.enable_grad():
                loss = loss_per_record(self.losses(self.model, single), 1)[0]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for row, g, parameter in zip(rows, gradients, parameters, strict=True):
                row.append(torch.zeros_like(parameter) if g is None else g.to_dense())
        return {p: Explicit(torch.stack(row)) for p, row in zip(parameters, rows, strict=True)}


class _Whole(nn.Module):
    """The model and its loss as one module, for functional calls."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Tensor:
        return self._losses(self.model, batch)


def _few(batch: Any, records: int, few: int = _FEWEST) -> Any:
    """The first records of the batch."""
    return map_records(batch, records, lambda x: x[:few])


def _dim_of(g: Tensor, record: int, records: int) -> int | None:
    """Where the records are: dimension 0 or 1, or _FOLDED if they are blocks of dimension 0."""
    for dim in range(min(g.dim(), 2)):
        if g.shape[dim] == records and _only(g, dim, record):
            return dim
    if g.shape[0] % records == 0 and _only(g.unflatten(0, (records, -1)), 0, record):
        return _FOLDED
    return None


def _alive(gradients: Sequence[Tensor | None], records: int) -> int | None:
    """A record that has a gradient in one of these, if there is one."""
    for g in gradients:
        if g is None or not bool(g.any()):
            continue
        if g.shape[0] % records == 0:
            return int(g.reshape(records, -1).any(dim=1).nonzero()[0])
        if g.dim() > 1 and g.shape[1] == records:
            return int(g.movedim(1, 0).reshape(records, -1).any(dim=1).nonzero()[0])
    return None


def _only(g: Tensor, dim: int, record: int) -> bool:
    """Whether the gradient vanishes for all records but one."""
    rest = g.detach().clone()
    rest.select(dim, record).zero_()
    return not bool(rest.any())
