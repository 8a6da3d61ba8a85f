"""Per-example gradients of any model: by layer rules, ``torch.func``, or one by one.

Which way a model goes is found out, not assumed: the first batch of every new shape is checked
against plain autograd for two records and for all together. A layer used behind the rules' back, a
parameter shared in a way they miss, or records along another dimension show up there; a model that
mixes records (batch norm in any disguise), or a loss that counts them, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

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
from verax.training.gradients.factors import (
    AnyFactor,
    merge_uses,
    record_count,
)
from verax.training.gradients.functional import FoundGradients, FunctionalGradients
from verax.training.gradients.hooks import WatchedLayers, record_calls
from verax.training.gradients.layer_rules.base import LayerCall
from verax.training.gradients.mlp import ChainPass, NotAChainError, linear_chain
from verax.training.gradients.norms import single_precision
from verax.training.gradients.record_dims import RecordDims
from verax.training.performance.channels_last import ChannelsLast

# Records worked on at once, whatever the model.
_FEWEST = 32
# Bytes that those worked on at once may leave behind.
_FIT = 12.0 * 2**20


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
        self._dims = RecordDims()
        self._checked: set[Any] = set()
        self._mixing = IndependenceCheck(model, losses)
        self._bytes: float | None = None
        self._not_a_chain = False
        self._copy_views = False
        self._rules_failed = False
        self._functional = FunctionalGradients(model, losses)
        self.channels = ChannelsLast()

    def find_layers(self) -> WatchedLayers:
        """The model's layers as they are now; to be called once a round."""
        self._mixing.begin()
        chain = None if self._not_a_chain else linear_chain(self.model)
        if chain is not None:
            return WatchedLayers.of_chain(chain)
        refuse_mixing(self.model)
        return WatchedLayers.of(self.model)

    @property
    def slow(self) -> bool:
        """Whether the rules were found not to apply."""
        return self._rules_failed

    @property
    def known_independent(self) -> bool:
        """Whether no record can have a say in another's loss, whatever the weights are."""
        return self._mixing.known_independent

    def factors(
        self, batch: Any, records: int, layers: WatchedLayers | None = None
    ) -> FoundGradients:
        """Per-example gradients of this batch; ``layers`` if they were looked up already."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.factors(batch, records, layers)
        layers = layers or self.find_layers()
        self._mixing.refuse(batch, records)
        if records == 1:
            return self._functional.one_by_one(batch, 1)
        if layers.chain is not None:
            found = self._by_chain(layers.chain, layers.trained, batch, records)
            if found is not None:
                return found
            self._not_a_chain = True
            layers = self.find_layers()
        if not self._rules_failed and layers.covered:
            try:
                found = self._by_rules_channels_last(layers, batch, records)
                if found is None and not self._copy_views:
                    self._copy_views = True
                    found = self._by_rules_channels_last(layers, batch, records)
            except _UnknownDimensionError:
                return self._functional.factors(batch, records)
            if found is not None:
                return found
            self._rules_failed = True
        return self._functional.factors(batch, records)

    def records_at_once(self, batch: Any, records: int, layers: WatchedLayers, most: int) -> int:
        """How many records to work on at once, so that they stay near the cache."""
        if layers.chain is not None or records <= min(_FEWEST, most):
            return min(records, most)
        if self._bytes is None:
            # unless the rules apply, and know better
            self._bytes = 4.0 * sum(p.numel() for p in layers.trained)
            few = min(_FEWEST, most)
            self.factors(_first_records(batch, records, few), few, layers)
        return min(max(int(_FIT / self._bytes), _FEWEST), most)

    # --- as a chain -------------------------------------------------------------------------------

    def _by_chain(
        self, chain: list[nn.Module], trained: list[nn.Parameter], batch: Any, records: int
    ) -> FoundGradients | None:
        """Without a graph, if the loss does nothing with the model but call it once."""
        key = tuple(chain), tuple(trained), self.model.training
        checked = key in self._checked
        if not checked and records > _FEWEST:
            few = _first_records(batch, records)
            if self._by_chain(chain, trained, few, _FEWEST) is None:
                return None
            checked = True
        try:
            passed, g = self._to_output(chain, batch, records)
            factors = {
                p: kinds[0] if len(kinds) == 1 else merge_uses(kinds)
                for p, kinds in passed.factors(g).items()
            }
            if not checked:
                with torch.enable_grad():
                    usual = loss_per_record(self.losses(self.model, batch), records)
                agrees = self._autograd_agrees(trained, factors, usual, records)
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

    def _by_rules_channels_last(
        self, layers: WatchedLayers, batch: Any, records: int
    ) -> FoundGradients | None:
        try:
            return self.channels.run(
                self.model, batch, lambda laid: self._by_rules(layers, laid, records)
            )
        except _RulesDoNotApplyError:
            return None

    def _by_rules(self, layers: WatchedLayers, batch: Any, records: int) -> FoundGradients | None:
        before = torch.get_rng_state()
        calls, losses = self._recorded_forward(layers, batch, records)
        if not losses.requires_grad:
            return {}
        shape = tuple(call.module for call in calls), tuple(layers.trained), self.model.training
        if shape in self._checked:
            try:
                return self._gradients_of_calls(calls, losses, records)
            except _UnknownDimensionError:
                self._checked.discard(shape)
                raise
        del calls, losses

        def tried() -> bool | None:
            return self._try_rules(layers, batch, records)[1]

        # a branch that begins at zero has no gradient so far, and shows nothing
        with perturbed_weights(self.model):
            apply = run_repeatably(self.model, tried)
        torch.set_rng_state(before)  # looking changes nothing
        factors, agrees = self._try_rules(layers, batch, records)
        if apply and agrees:
            self._checked.add(shape)
        return None if apply is False or agrees is False else factors

    def _recorded_forward(
        self, layers: WatchedLayers, batch: Any, records: int
    ) -> tuple[list[LayerCall], Tensor]:
        with torch.enable_grad(), record_calls(layers, self._copy_views) as tape:
            losses = loss_per_record(self.losses(self.model, batch), records)
        return tape.calls, losses

    def _try_rules(
        self, layers: WatchedLayers, batch: Any, records: int
    ) -> tuple[FoundGradients | None, bool | None]:
        """What the rules find, and whether plain autograd agrees."""
        calls, losses = self._recorded_forward(layers, batch, records)
        try:
            factors = self._gradients_of_calls(calls, losses, records, new=True)
            return factors, False if factors is None else self._autograd_agrees(
                layers.trained, factors, losses, records
            )
        except RuntimeError as error:
            raise _RulesDoNotApplyError from error

    def _gradients_of_calls(
        self, calls: Sequence[LayerCall], losses: Tensor, records: int, new: bool = False
    ) -> FoundGradients | None:
        """The factors of the watched calls; None if the rules do not apply."""
        if not calls or (new and not self._dims.find(calls, losses)):
            return None
        edges = [edge for call in calls for edge in call.edges]
        each = torch.ones_like(losses)
        gradients = torch.autograd.grad(losses, edges, each, allow_unused=True, retain_graph=new)
        if not all(call.intact for call in calls):
            return None
        factors = self._merge_calls(calls, gradients, records)
        if new and factors is not None:
            held = [x for call in calls for x in call.inputs] + [
                g for g in gradients if g is not None
            ]
            numbers = sum(x.numel() for x in held) + sum(
                factor.numbers_formed() for factor in factors.values()
            )
            self._bytes = 4.0 * numbers / records
        return factors

    def _merge_calls(
        self, calls: Sequence[LayerCall], gradients: Sequence[Tensor | None], records: int
    ) -> FoundGradients | None:
        """All calls of each parameter as one factor; None if the numbers of records differ."""
        found: dict[nn.Parameter, list[AnyFactor]] = {}
        at = 0
        for call in calls:
            mine = gradients[at : at + len(call.edges)]
            at += len(call.edges)
            like = next((g for g in mine if g is not None), None)
            if like is None:
                continue
            whole = [torch.zeros_like(like) if g is None else g for g in mine]
            dim = self._dims.of(call.module)
            if dim is None:
                raise _UnknownDimensionError
            for parameter, factor in call.backward(whole, dim if dim >= 0 else -records):
                if record_count(factor) != records:
                    return None
                found.setdefault(parameter, []).append(factor)
        return {parameter: merge_uses(kinds) for parameter, kinds in found.items()}

    def _autograd_agrees(
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


def _first_records(batch: Any, records: int, few: int = _FEWEST) -> Any:
    """The first records of the batch."""
    return map_records(batch, records, lambda x: x[:few])
