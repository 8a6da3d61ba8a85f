"""One buffer for all trained parameters: clipped sums, then noise, then the gradient."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import nn

from verax.randomness import Source


def same_parameters(parameters: list[nn.Parameter], others: list[nn.Parameter]) -> bool:
    """Whether these are the very same parameters, in order."""
    return len(parameters) == len(others) and all(map(operator.is_, parameters, others))


class FlatBuffer:
    """One buffer for all trained parameters, with a view of each.

    Args:
        parameters: those trained.
        denominator: what sums are divided by as they are added, so that nothing is left to be
            divided in the end.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], denominator: float = 1.0) -> None:
        self.parameters, self.denominator = list(parameters), denominator
        if not self.parameters:
            raise ValueError(
                "model must have at least one trainable parameter in the optimizer, got none"
            )
        sizes = [p.numel() for p in self.parameters]
        first = self.parameters[0]
        self.buffer = torch.zeros(sum(sizes), dtype=torch.float32, device=first.device)
        self.views = {
            p: piece.view_as(p)
            for p, piece in zip(self.parameters, self.buffer.split(sizes), strict=True)
        }

    def reset_for(self, parameters: list[nn.Parameter], denominator: float) -> FlatBuffer:
        """Empty, for these parameters: the same buffer if they are the same."""
        if not same_parameters(parameters, self.parameters):
            return FlatBuffer(parameters, denominator)
        self.denominator = denominator
        self.buffer.zero_()
        return self

    def add_noise(self, source: Source, deviation: float) -> None:
        """Add Gaussian noise, divided as the sums are."""
        flat = self.buffer.cpu()
        source.add_gaussian(flat.numpy(), deviation / self.denominator)
        if flat is not self.buffer:
            self.buffer.copy_(flat)

    def put_gradients(self) -> None:
        """Make every parameter's view its gradient."""
        for parameter, view in self.views.items():
            parameter.grad = view if view.dtype is parameter.dtype else view.to(parameter.dtype)
