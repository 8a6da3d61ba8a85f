"""Dominating pairs: two distributions on a line along which the privacy loss increases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import ulps


@dataclass(frozen=True)
class Cells:
    """Consecutive cells of the line: log P, the loss log P/Q, and a bound on both errors."""

    log_p: Array
    loss: Array
    error: Array


class DominatingPair(ABC):
    """P and Q whose hockey-stick curve D_a(P||Q) is at least that of a round.

    It has everything that ``verax.privacy.pld.discretise`` needs to know. What has a default here
    is for pairs whose line is the loss itself.
    """

    @property
    def is_gaussian(self) -> bool:
        """Whether both sides are single Gaussians, so that closed forms apply."""
        return False

    @property
    def gaussian_shift(self) -> float:
        """The distance of the means of a pair of single Gaussians."""
        return math.nan

    @property
    def infinite(self) -> float:
        """P-mass at infinite loss."""
        return 0.0

    @property
    @abstractmethod
    def infimum(self) -> float:
        """The smallest finite loss, or its limit."""

    @property
    @abstractmethod
    def supremum(self) -> float:
        """The largest loss, or its limit."""

    @property
    @abstractmethod
    def bulk(self) -> float:
        """A loss where much of the mass lies."""

    @property
    def total_mass(self) -> float:
        """The mass of P; upper bounds may have more than 1 (docs/proofs.md, theorem 10)."""
        return 1.0

    @abstractmethod
    def reverse(self) -> DominatingPair:
        """The other direction, Q against P, mirrored so that the loss increases again."""

    @abstractmethod
    def nodes(self, left: float, far: float) -> tuple[Array, Array]:
        """Ascending losses and log P-masses: nodes from ``left`` to ``far`` past the last shift."""

    @abstractmethod
    def boundaries_at(self, grid: Array) -> tuple[Array, float]:
        """The boundaries at these losses, and by how much their losses miss them at most."""

    def inverse(self, loss: Array) -> Array:
        """Boundaries near these losses."""
        return loss

    @abstractmethod
    def log_loss_density(self, x: Array) -> Array:
        """About the log of P's mass per unit of loss at ascending x."""

    def mean_loss_below(self, x: float) -> float:
        """The loss of everything left of x: log P(X < x) - log Q(X < x)."""
        return float(self.cells(np.array([-np.inf, x])).loss[0])

    @abstractmethod
    def cells(self, boundaries: Array) -> Cells:
        """Masses and losses between consecutive boundaries, which may be infinite."""

    @abstractmethod
    def delta(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound on D_{e^eps}(P||Q)."""


def tail_delta(tail: Cells, epsilon: float, around: float, miss: float) -> tuple[float, float]:
    """Bounds on delta(eps) from the event {loss > eps}, whose place is known up to ``miss``.

    ``around`` is the P-mass of an event that holds what the rounding of the place may leave out.
    """
    log_p, error = float(tail.log_p[0]), 2.0 * float(tail.error[0])
    rise = float(tail.loss[0]) - epsilon
    lower = math.exp(log_p - error) * -math.expm1(-max(rise - error, 0.0))
    upper = math.exp(log_p + error) * -math.expm1(-max(rise + error, 0.0))
    return lower, upper + around * math.expm1(miss + ulps(8.0))
