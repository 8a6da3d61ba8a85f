"""Validators: models, optimizers, schedules and losses that cannot be trained privately."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from verax.mechanism import Clipping, Individual, Mechanism, Phases
from verax.privacy.samplers.base import pricing
from verax.training.checks.trial_runs import (
    MODEL_FAILURES,
    Losses,
    require_gradient,
    run_repeatably,
)
from verax.training.clipping.local_update import Inner
from verax.training.data.containers import Column
from verax.training.data.microbatch import can_be_cut, part

# Records with which it is found out whether a loss has a gradient.
_FEW = 4
# Wrappers that reduce gradients over processes before they are clipped.
WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def refuse_run(model: nn.Module, optimizer: Any, mechanism: Any, inner: Inner | None) -> None:
    """Refuse a run that cannot be trained, before anything is."""
    if isinstance(mechanism, Phases):
        raise ValueError(
            f"mechanism must be one Mechanism, got {len(mechanism.mechanisms)} phases: train them "
            "one after the other, each with a ledger of its own; verax report a.ledger b.ledger "
            "states them together"
        )
    if not isinstance(mechanism, Mechanism):
        raise ValueError(f"mechanism must be a Mechanism, got {mechanism!r}")
    pricing(type(mechanism.sampler))
    refuse_model(model)
    refuse_optimizer(optimizer)
    refuse_inner_for(mechanism.clipping, inner)
    refuse_inner(inner)
    mine = set(model.parameters())
    for group in optimizer.param_groups:
        if any(p not in mine for p in group["params"]):
            raise ValueError(
                "optimizer must hold parameters of the model only, got one that is not the model's"
            )


def refuse_model(model: Any) -> None:
    """Refuse models whose gradients cannot be clipped."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {_named(model)}")
    for module in model.modules():
        if type(module).__name__ in WRAPPERS:
            raise ValueError(
                f"model must be the module itself, got one in {type(module).__name__}, which "
                "reduces gradients before they are clipped: unwrap it; the trainer adds up the "
                "clipped sums of all processes itself"
            )
    for name, parameter in model.named_parameters():
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            raise ValueError(
                f"model must have whole parameters in every process, got {name}, of which each has "
                "a part (a DTensor, as fully_shard and parallelize_module make): neither FSDP2 nor "
                "tensor parallelism is supported, since a record's gradient must be clipped as a "
                "whole. Leave the model as it is: the trainer shares out the records of a batch"
            )
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"model must have real parameters, got {name} of {parameter.dtype}, whose "
                "gradients can be neither clipped nor noised as they are: keep torch.view_as_real "
                "of it as the parameter and use torch.view_as_complex of that in forward, or "
                "freeze it"
            )


def refuse_optimizer(optimizer: Any) -> None:
    """Refuse optimizers that need more than is released, and what is no optimizer."""
    if not hasattr(optimizer, "param_groups"):
        raise ValueError(
            "optimizer must be an optimizer over the model's parameters, such as "
            f"torch.optim.SGD(model.parameters(), 0.1), got {_named(optimizer)}"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "optimizer must take gradients in which every entry has noise, got SparseAdam, which "
            "takes sparse ones only; use Adam (layers may keep sparse=True)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer must take one step per noisy gradient, got LBFGS, which evaluates the loss "
            "several times in every step; use SGD, Adam or another first-order optimizer"
        )


def refuse_schedule(schedule: Any) -> None:
    """Refuse schedules of step sizes that depend on the data, and what is no schedule."""
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            "schedule must not look at the data, got ReduceLROnPlateau, which is steered by a loss "
            "that no noise protects; use one that knows the round only, such as CosineAnnealingLR"
        )
    if schedule is not None and not isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
        raise ValueError(
            f"schedule must be a torch.optim.lr_scheduler of the optimizer, got {_named(schedule)}"
        )


def refuse_factory(optimizer: Any) -> None:
    """Refuse what is no function from parameters to an optimizer."""
    if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
        raise ValueError(
            "optimizer must be a function from parameters to an optimizer, such as "
            f"lambda p: torch.optim.SGD(p, 0.1), got {_named(optimizer)}"
        )


def refuse_factories(model: nn.Module, optimizer: Any, schedule: Any) -> None:
    """Refuse what makes no optimizer or schedule, and models with nothing to train."""
    refuse_model(model)
    refuse_factory(optimizer)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "model must have parameters that are trained, got one in which all are frozen, or none"
        )
    made = isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    if schedule is not None and (made or not callable(schedule)):
        raise ValueError(
            "schedule must be a function from the optimizer to a schedule, such as "
            f"lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100), got {_named(schedule)}"
        )


def refuse_flat(model: nn.Module, losses: Losses, batch: Any, records: int) -> None:
    """Refuse losses without a gradient: a run would be charged and train on noise only."""
    if not any(p.requires_grad for p in model.parameters()) or not can_be_cut(batch, records):
        return
    few = part(batch, slice(_FEW), records)

    def connected() -> Tensor:
        with torch.enable_grad():
            return losses(model, few)

    try:
        found = run_repeatably(model, connected)
    except MODEL_FAILURES:  # with all records it may work; if not, the step fails
        return
    require_gradient(found)


def refuse_loss(loss: Any, batch: Any) -> None:
    """Refuse criteria of torch for batches that are no tuples of inputs and target."""
    if not callable(loss):
        raise ValueError(
            f"loss must be a torch criterion or a function that returns losses, got {loss!r}"
        )
    criterion = isinstance(loss, nn.modules.loss._Loss)
    own = criterion and type(loss).forward.__module__.startswith("torch.")
    if own and isinstance(batch, Mapping | Tensor | Column):
        name, mapping = type(loss).__name__, isinstance(batch, Mapping)
        arguments = 'model(batch["x"]), batch["y"]' if mapping else "model(batch), batch"
        raise ValueError(
            "loss must be a function of model and batch for batches that are no tuples, got "
            f"{name} for a {type(batch).__name__}: pass one such as lambda model, batch: "
            f'nn.{name}(reduction="none")({arguments}), or data as a tuple (inputs, targets)'
        )


def refuse_inner(inner: Any) -> None:
    """Refuse what is no function that a clip-group can compute."""
    if inner is None:
        return
    kind = isinstance(inner, type) and issubclass(inner, torch.optim.Optimizer)
    fits = callable(inner) and not kind and not isinstance(inner, torch.optim.Optimizer)
    if fits:
        try:
            inspect.signature(inner).bind(*["model", "losses", "batch", "records", "parameters"])
        except TypeError:
            fits = False
        except ValueError:  # it has no signature
            return
    if not fits:
        raise ValueError(
            "inner must be LocalSteps(lambda p: torch.optim.Adam(p, 0.01), steps=3) or another "
            "function of model, losses, batch, records and parameters that returns a tensor per "
            f"parameter, got {_named(inner)}"
        )


def refuse_inner_for(clipping: Clipping, inner: Inner | None) -> None:
    """Refuse an inner algorithm under individual clipping."""
    if inner is not None and isinstance(clipping, Individual):
        raise ValueError(
            "inner is for batch and mixed clipping: individual clipping clips every record's "
            "gradient"
        )


def refuse_statistics(model: nn.Module) -> None:
    """Refuse running statistics of a batch norm, which no clipping or noise protects."""
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.modules.batchnorm._NormBase)
            and module.training
            and module.track_running_stats
        ):
            raise ValueError(
                f"{name or 'the model'} ({type(module).__name__}) keeps running statistics of "
                "private data that no noise protects: set track_running_stats=False"
            )


def _named(value: Any) -> str:
    """The value in one line; optimizers print several."""
    if isinstance(value, torch.optim.Optimizer):
        return f"an optimizer ({type(value).__name__})"
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)
