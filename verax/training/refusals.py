"""What cannot be trained privately, refused in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from verax.mechanism import Individual, Mechanism
from verax.privacy.analysis import refuse_unknown
from verax.training.clipped import Inner

WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def refuse_run(model: nn.Module, optimizer: Any, mechanism: Any, inner: Inner | None) -> None:
    """Say what cannot be trained, before anything is."""
    if not isinstance(mechanism, Mechanism):
        raise ValueError(f"mechanism must be a Mechanism, got {mechanism!r}")
    refuse_unknown(mechanism.sampler)
    for module in model.modules():
        if type(module).__name__ in WRAPPERS:
            raise ValueError(
                f"model must be the module itself, got one in {type(module).__name__}, which reduces gradients before "
                "they are clipped: unwrap it; the trainer adds up the clipped sums of all processes itself"
            )
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
