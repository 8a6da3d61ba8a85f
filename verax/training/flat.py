"""One buffer for all trained parameters: clipped sums are added to it, then noise, then it is the gradient."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import nn


def same(parameters: list[nn.Parameter], others: list[nn.Parameter]) -> bool:
    """Whether these are the very same parameters, in order."""
    return len(parameters) == len(others) and all(map(operator.is_, parameters, others))


class Flat:
    """One buffer for all trained parameters, with a view of each."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("model must have at least one trainable parameter in the optimizer, got none")
        sizes = [p.numel() for p in self.parameters]
        first = self.parameters[0]
        self.buffer = torch.zeros(sum(sizes), dtype=torch.float32, device=first.device)
        self.views = {
            p: piece.view_as(p) for p, piece in zip(self.parameters, self.buffer.split(sizes), strict=True)
        }  # fmt: skip

    def again(self, parameters: list[nn.Parameter]) -> Flat:
        """Empty, for these parameters: the same buffer if they are the same."""
        if same(parameters, self.parameters):
            self.buffer.zero_()
            return self
        return Flat(parameters)

    def put_gradients(self, denominator: float) -> None:
        """Set every parameter's gradient to its share of the buffer, divided."""
        self.buffer.div_(denominator)
        for parameter, view in self.views.items():
            parameter.grad = view if view.dtype is parameter.dtype else view.to(parameter.dtype)
