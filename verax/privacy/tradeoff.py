"""Trade-off curves (f-DP): the least miss rate beta at every false-alarm rate alpha.

A curve is computed as a maximum of lines beta >= 1 - delta - e^eps alpha, one per (eps, delta) that
holds. Any finite set of true lines is a certified lower bound on the curve, and so is whatever is
built from such bounds by operations that only go down. Its vertices are kept for evaluation; errors
of rounding are charged by ``OPS_80``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from verax import checks
from verax.privacy.curves.gaussian import gaussian_delta
from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect
from verax.privacy.numerics.rounding import NORMAL_QUANTILES, OPS_8M, OPS_80, ulps, up

FLOOR = 1e-3  # rates of errors below which the tightest Gaussian is not asked to fit
_LINES = 400  # of a curve made from a formula or a product


@dataclass(frozen=True, eq=False)
class TradeOff:
    """Vertices of a convex, decreasing, piecewise linear curve from alpha 0 to 1.

    ``above`` is never below the truth.

    Called with false-alarm rates it gives the least miss rates.

    >>> curve = TradeOff.gaussian(1.0)
    >>> float(np.round(curve(0.05), 4))
    0.7405
    >>> round(curve.advantage, 4), round(curve.mu, 3)
    (0.3829, 1.0)
    """

    alpha: Array
    beta: Array
    above: TradeOff | None = None

    # --- making them ------------------------------------------------------------------------------

    @staticmethod
    def from_deltas(
        epsilons: ArrayLike,
        deltas: ArrayLike,
        symmetric: bool = True,
        above: TradeOff | None = None,
    ) -> TradeOff:
        """The curve implied by these (eps, delta), in both directions if ``symmetric``.

        If not, eps may be negative.
        """
        eps, delta = np.asarray(epsilons, dtype=np.float64), np.asarray(deltas, dtype=np.float64)
        slopes, heights = np.exp(eps), 1.0 - delta
        if symmetric:
            slopes, heights = (
                np.concatenate([slopes, 1.0 / slopes]),
                np.concatenate([heights, heights / slopes]),
            )
        return TradeOff._from_lines(slopes, heights, above)

    @staticmethod
    def _from_lines(slopes: Array, heights: Array, above: TradeOff | None = None) -> TradeOff:
        """The maximum of 0 and the lines heights - slopes * alpha.

        The steepest first, dropping those never on top.
        """
        slopes, heights = np.append(slopes, 0.0), np.append(heights, 0.0)
        order = np.lexsort((-heights, -slopes))
        kept: list[tuple[float, float]] = []
        starts: list[float] = []
        for slope, height in zip(slopes[order].tolist(), heights[order].tolist(), strict=True):
            if kept and kept[-1][0] == slope:
                continue
            start = 0.0
            while kept:
                start = (kept[-1][1] - height) / (kept[-1][0] - slope)
                if start > starts[-1]:
                    break
                kept.pop()
                starts.pop()
                start = 0.0
            if start < 1.0:
                kept.append((slope, height))
                starts.append(max(start, 0.0))
        alpha = np.array([*starts, 1.0])
        lines = np.array(kept)
        beta = np.append(
            lines[:, 1] - lines[:, 0] * alpha[:-1], max(lines[-1, 1] - lines[-1, 0], 0.0)
        )
        return TradeOff(alpha, np.clip(beta - OPS_80, 0.0, 1.0), above)

    @staticmethod
    def gaussian(mu: float) -> TradeOff:
        """G_mu: telling N(mu, 1) from N(0, 1)."""
        checks.nonnegative("mu", mu)
        if mu == 0.0:
            return TradeOff(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
        eps = np.linspace(0.0, mu * mu / 2.0 + 7.5 * mu, _LINES)
        return TradeOff.from_deltas(eps, [gaussian_delta(mu, e, 1) for e in eps.tolist()])

    # --- reading them -----------------------------------------------------------------------------

    @overload
    def __call__(self, alpha: float) -> float: ...
    @overload
    def __call__(self, alpha: ArrayLike) -> Array: ...
    def __call__(self, alpha: ArrayLike) -> Array | float:
        """The least miss rate at each false-alarm rate, rounded down."""
        rates = np.asarray(alpha, dtype=np.float64)
        if not ((rates >= 0.0) & (rates <= 1.0)).all():
            raise ValueError(f"alpha must lie in [0, 1], got {alpha!r}")
        values = np.maximum(np.interp(rates, self.alpha, self.beta) - OPS_80, 0.0)
        return float(values) if values.ndim == 0 else np.asarray(values)

    def beta_at(self, alpha: float) -> float:
        """The least miss rate at one false-alarm rate."""
        return self(float(alpha))

    @property
    def advantage(self) -> float:
        """The most by which true alarms can exceed false ones (total variation), rounded up."""
        return float(np.max(1.0 - self.alpha - self.beta)) + 2.0 * OPS_80

    def delta(self, epsilon: float) -> float:
        """The delta at which the curve grants this epsilon, in both directions."""
        slope = math.exp(min(checks.nonnegative("epsilon", epsilon), 700.0))
        forth = float(np.max(1.0 - self.beta - slope * self.alpha))
        back = float(np.max(1.0 - self.alpha - slope * self.beta))
        return min(max(forth, back, 0.0) + 2.0 * OPS_80, 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon the curve grants at this delta; infinite if it grants none.

        Error rates below 1e-14 are not told from 0, so epsilons above about 30 come out as
        infinite; those of a mechanism are better asked of its guarantee.
        """
        checks.probability("delta", delta)
        with np.errstate(divide="ignore", invalid="ignore"):
            forth = np.log(1.0 - self.beta - delta + 2.0 * OPS_80) - np.log(
                np.maximum(self.alpha - OPS_80, 0.0)
            )
            back = np.log(1.0 - self.alpha - delta + 2.0 * OPS_80) - np.log(
                np.maximum(self.beta - OPS_80, 0.0)
            )
        return float(
            max(
                np.max(forth, where=~np.isnan(forth), initial=0.0),
                np.max(back, where=~np.isnan(back), initial=0.0),
            )
        )

    @cached_property
    def mu(self) -> float:
        """The tightest Gaussian curve below this one where both error rates are above ``FLOOR``."""
        return self.tightest_gaussian(FLOOR)

    def tightest_gaussian(self, floor: float) -> float:
        """The smallest mu with G_mu <= f wherever alpha and G_mu's beta are at least ``floor``.

        No Gaussian is below a subsampled mechanism's curve all the way: its tails are heavier. So
        the floor is part of the answer.
        """
        edges = self.alpha[(self.alpha >= floor) & (self(self.alpha) >= floor)]
        last = float(np.interp(-floor, -self.beta, self.alpha))
        points = np.unique(
            np.clip(np.concatenate([[floor], edges, [last]]), floor, max(last, floor))
        )
        inside = points[:-1, None] + np.diff(points)[:, None] * np.linspace(0.0, 1.0, 17)
        rates = np.unique(np.concatenate([points, inside.reshape(-1)]))
        beta = self(rates)
        needed = -special.ndtri(rates) - special.ndtri(np.maximum(beta, 1e-300))
        return up(max(float(needed.max()), 0.0), NORMAL_QUANTILES)

    @cached_property
    def regret(self) -> float:
        """How much is lost by saying only ``mu``.

        The smallest k with f(alpha + k) - k <= G_mu(alpha) for all alpha.

        (Gomez et al. 2025.) Below about .01 the Gaussian says nearly all there is to say.
        """
        alpha = np.concatenate([np.geomspace(1e-9, 0.5, 400), np.linspace(0.5, 1.0, 200)])
        goal = special.ndtr(-special.ndtri(alpha) - self.mu)

        def fits(lost: float) -> bool:
            return bool((self(np.minimum(alpha + lost, 1.0)) - lost <= goal).all())

        return bisect(fits, 1.0, 0.0, atol=1e-7)[0]

    # --- new ones from old ones -------------------------------------------------------------------

    def inverse(self) -> TradeOff:
        """The curve with alpha and beta exchanged: the other direction."""
        alpha, beta = self.beta[::-1], self.alpha[::-1]
        if alpha[0] > 0.0:
            alpha, beta = np.append(0.0, alpha), np.append(beta[0], beta)
        if alpha[-1] < 1.0:
            alpha, beta = np.append(alpha, 1.0), np.append(beta, 0.0)
        alpha, first = np.unique(alpha, return_index=True)
        return TradeOff(alpha, np.minimum.reduceat(beta, first))

    def convex(self) -> TradeOff:
        """The double conjugate: the lower convex hull."""
        hull: list[tuple[float, float]] = []
        for point in zip(self.alpha.tolist(), self.beta.tolist(), strict=True):
            while len(hull) > 1 and _is_above_chord(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        alpha, beta = np.array(hull).T
        return TradeOff(alpha, beta)

    def symmetric(self) -> TradeOff:
        """The best curve for both directions: the hull of the smaller of f and its inverse."""
        other = self.inverse()
        alpha = np.union1d(self.alpha, other.alpha)
        return TradeOff(alpha, np.minimum(self(alpha), other(alpha))).convex()

    def tensor(self, other: TradeOff) -> TradeOff:
        """The curve of both mechanisms run on the same data.

        Every pair of linear pieces, reordered by slope.

        >>> both = TradeOff.gaussian(0.6).tensor(TradeOff.gaussian(0.8))
        >>> bool(abs(both(0.1) - TradeOff.gaussian(1.0)(0.1)) < 1e-3)
        True
        """
        (a0, b0), (a1, b1) = self._pieces(), other._pieces()
        alphas, betas = np.multiply.outer(a0, a1).reshape(-1), np.multiply.outer(b0, b1).reshape(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(alphas > 0.0, betas / alphas, np.inf)
        order = np.argsort(-ratio, kind="stable")
        # with the likeliest first: alpha spent, and beta that is left, after each
        alpha = np.append(0.0, np.cumsum(alphas[order]))
        beta = np.append(np.cumsum(betas[order][::-1])[::-1], 0.0)
        slopes = np.unique(ratio[np.isfinite(ratio) & (ratio > 0.0)])
        if len(slopes) > 2 * _LINES:
            even = np.exp(np.linspace(math.log(slopes[0]), math.log(slopes[-1]), _LINES))
            slopes = np.concatenate([even, slopes[:: len(slopes) // _LINES]])
        heights = np.array([float(np.min(beta + slope * alpha)) for slope in slopes.tolist()])
        return TradeOff._from_lines(slopes, heights - ulps(len(alphas)))

    def _pieces(self) -> tuple[Array, Array]:
        """The alpha- and beta-mass of each linear piece, what drops at 0 first.

        Both add up to one.
        """
        start = 1.0 - self.beta[0]
        return np.append(0.0, np.diff(self.alpha)), np.append(start, -np.diff(self.beta))

    def group(self, size: int) -> TradeOff:
        """The black box for ``size`` records: 1 - (1 - f) applied ``size`` times.

        G_mu becomes G_(size mu).

        >>> bool(abs(TradeOff.gaussian(0.5).group(2)(0.1) - TradeOff.gaussian(1.0)(0.1)) < 1e-3)
        True
        """
        checks.count("size", size)
        power = np.concatenate(
            [np.geomspace(1e-12, 0.1, _LINES // 2), np.linspace(0.1, 1.0, _LINES // 2)]
        )
        value, slope = power, np.ones_like(power)
        pieces = -np.diff(self.beta) / np.diff(self.alpha)
        for _ in range(size):
            piece = np.clip(
                np.searchsorted(self.alpha, value, side="right") - 1, 0, len(pieces) - 1
            )
            slope = slope * pieces[piece]
            value = np.minimum(1.0 - self(np.minimum(value, 1.0)), 1.0)
        # 1 - f is concave, so its powers lie below their tangents
        heights = 1.0 - value + slope * power - size * OPS_80 * (1.0 + slope)
        if (
            np.abs(self.inverse()(self.alpha) - self(self.alpha)).max() < OPS_8M
        ):  # both directions alike: so are the group's
            some = slope > 0.0
            heights, slope = (
                np.append(heights, heights[some] / slope[some]),
                np.append(slope, 1.0 / slope[some]),
            )
        return TradeOff._from_lines(slope, heights)


def _is_above_chord(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) <= (b[1] - a[1]) * (c[0] - a[0])


def from_brackets(
    epsilons: Sequence[float], lowers: Sequence[float], uppers: Sequence[float]
) -> TradeOff:
    """A certified curve from brackets on delta at ascending epsilons, with its companion above.

    The first epsilon is 0.

    From below each upper bound is a line. From above: D is convex in a = e^eps with D(0) = 1, so to
    the right of a grid point it falls at most as fast as between the point before and this one, and
    it never rises: between grid points it is at least the larger of the two. The companion is the
    conjugate of that, with corners at the grid points and where the one bound takes over from the
    other.
    """
    a, low, high = np.exp(np.asarray(epsilons)), np.asarray(lowers), np.asarray(uppers)
    before, above = np.append(0.0, a[:-1]), np.append(1.0, high[:-1])
    fall = np.maximum((above - low) / (a - before), 1e-300)
    after = np.append(low[1:], 0.0)
    corner = a + np.maximum(low - after, 0.0) / fall
    corner[:-1] = np.minimum(corner[:-1], a[1:])
    companion = TradeOff.from_deltas(
        np.log(np.concatenate([a, corner])), np.concatenate([low, after])
    )
    lifted = TradeOff(companion.alpha, np.minimum(companion.beta + 4.0 * OPS_80, 1.0))
    return TradeOff.from_deltas(epsilons, uppers, above=lifted)
