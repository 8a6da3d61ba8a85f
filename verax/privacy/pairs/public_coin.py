"""A round whose kind is drawn by a public coin: pair i with chance w_i, known to the attacker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_80, down, ulps, up
from verax.privacy.pairs.base import Cells, DominatingPair
from verax.privacy.pairs.gaussian_mixture import MixturePair


@dataclass(frozen=True)
class PublicCoinPair(DominatingPair):
    """Pairs with their chances. Its curve is the average of theirs; its "line" is the loss itself.

    >>> both = PublicCoinPair((0.5, 0.5), (MixturePair.gaussian(1.0), MixturePair.gaussian(2.0)))
    >>> [round(bound, 6) for bound in both.delta(1.0)]
    [0.318399, 0.318399]
    """

    chances: tuple[float, ...]
    pairs: tuple[MixturePair, ...]

    def reverse(self) -> PublicCoinPair:
        return PublicCoinPair(self.chances, tuple(pair.reverse() for pair in self.pairs))

    @property
    def infimum(self) -> float:
        """The smallest loss of any pair."""
        return min(pair.infimum for pair in self.pairs)

    @property
    def supremum(self) -> float:
        """The largest loss of any pair."""
        return max(pair.supremum for pair in self.pairs)

    @property
    def infinite(self) -> float:
        return float(np.dot(self.chances, [pair.infinite for pair in self.pairs]))

    @property
    def bulk(self) -> float:
        """The bulk of the likeliest pair."""
        return self.pairs[int(np.argmax(self.chances))].bulk

    def nodes(self, left: float, far: float) -> tuple[Array, Array]:
        """All pairs' nodes together."""
        parts = [pair.nodes(left, far) for pair in self.pairs]
        loss = np.concatenate([loss for loss, _ in parts])
        mass = np.concatenate(
            [m + np.log(chance) for chance, (_, m) in zip(self.chances, parts, strict=True)]
        )
        order = np.argsort(loss, kind="stable")
        return loss[order], mass[order]

    def boundaries_at(self, grid: Array) -> tuple[Array, float]:
        """The losses themselves, and how far any pair's boundaries miss them."""
        return grid, max(pair.boundaries_at(grid)[1] for pair in self.pairs)

    def log_loss_density(self, x: Array) -> Array:
        logs = [pair.log_loss_density(pair.inverse(x)) for pair in self.pairs]
        return np.asarray(
            special.logsumexp(np.stack(logs), axis=0, b=np.array(self.chances)[:, None])
        )

    def cells(self, boundaries: Array) -> Cells:
        """Masses between consecutive losses, summed over the pairs."""
        p, q, error = [], [], np.zeros(len(boundaries) - 1)
        for chance, pair in zip(self.chances, self.pairs, strict=True):
            part = pair.cells(pair.inverse(boundaries))
            p.append(np.log(chance) + part.log_p)
            q.append(np.log(chance) + part.log_p - part.loss)
            error = np.maximum(error, np.where(np.isfinite(part.log_p), part.error, 0.0))
        log_p, log_q = np.logaddexp.reduce(p), np.logaddexp.reduce(q)
        with np.errstate(invalid="ignore"):
            loss = np.where(np.isfinite(log_p), log_p - log_q, 0.0)
        return Cells(log_p, loss, 2.0 * error + ulps(16.0 + 4.0 * np.abs(loss)))

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds on D_{e^eps}: the average of the pairs'."""
        parts = [pair.delta(epsilon) for pair in self.pairs]
        lower, upper = (
            float(np.dot(self.chances, [part[side] for part in parts])) for side in (0, 1)
        )
        slack = max(OPS_80, ulps(len(parts) + 4.0))
        return down(lower, slack), min(up(upper, slack), 1.0)
