"""Dominating pairs of one round: Gaussian mixtures on a line, evaluated in log space.

A pair is P = sum_i p_i N(m_i, 1) against Q = sum_j q_j N(-n_j, 1) with all m_i, n_j >= 0, in units
of the noise's standard deviation. Relative to the base N(0, 1) the likelihood of P rises in x and
that of Q falls, so the privacy loss log P(x)/Q(x) increases in x: every event that matters is a
half line, and every probability a Gaussian cdf.

Every pair of docs/proofs.md, section 1, has this shape. "Present against absent" is a mixture
against N(0); "absent against present" is its reverse (mirror the line); replacing a record puts one
mixture on each side. That opposite-sided mixtures dominate is proved in docs/proofs.md, theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import LIBRARY_ULPS, UNIT, ulps
from verax.privacy.pairs.base import Cells, DominatingPair, tail_delta

_FAR = 1e8  # where the search for an inverse stops: nothing has mass there
_MOST_NODES = 20_000  # of a quadrature rule
_BLOCK = 2_000_000  # components times cells worked on at once
_MANY = 64  # components of which it pays to leave some out
_STRETCH = 128  # points worked on at once where it does
# a component is left out where its density is below e^-60 of another's: less than any round-off
_FAINT = 60.0


@dataclass(frozen=True)
class Mixture:
    """Log weights and non-negative shifts of one side; weights may be as small as 1e-300.

    ``lost`` is weight left out of the components; on the side of P it stands for mass at infinite
    loss. ``error`` bounds the relative error of the weights.
    """

    log_weights: tuple[float, ...]
    shifts: tuple[float, ...]
    lost: float = 0.0
    error: float = 0.0

    @cached_property
    def weights(self) -> Array:
        """The weights themselves."""
        return np.asarray(np.exp(np.array(self.log_weights)))

    @cached_property
    def columns(self) -> tuple[Array, Array]:
        """Log weights and shifts as columns."""
        return np.array(self.log_weights)[:, None], np.array(self.shifts)[:, None]

    @property
    def trivial(self) -> bool:
        """Whether this side is N(0, 1) itself."""
        return self.shifts == (0.0,)

    @property
    def two_point(self) -> bool:
        """Whether this side is (1-q) N(0) + q N(m), for which the loss inverts in closed form."""
        return len(self.shifts) == 2 and self.shifts[0] == 0.0 and self.lost == 0.0

    @cached_property
    def _wide(self) -> bool:
        """Whether there are many components, none of which has most of the weight."""
        return len(self.shifts) > _MANY and float(self.weights.max()) < 0.5

    def components_near(self, low: float, high: float) -> slice:
        """The components that matter between two points.

        Log densities relative to each other are linear in x and rise with the shift. So a component
        that is faint at ``low``, and has a smaller shift than the largest one there, is faint all
        the way; likewise at ``high``.
        """
        if not self._wide:
            return slice(None)
        first, stop = 0, len(self.shifts)
        if math.isfinite(low):
            logs = (self.columns[0] + _likelihoods(self.columns[1], np.array([low])))[:, 0]
            first = int(np.argmax(logs >= logs.max() - _FAINT))
        if math.isfinite(high):
            logs = (self.columns[0] + _likelihoods(self.columns[1], np.array([high])))[:, 0]
            stop -= int(np.argmax(logs[::-1] >= logs.max() - _FAINT))
        return slice(first, max(stop, first + 1))

    def _stretches(self, x: Array) -> Iterator[tuple[slice, slice]]:
        """Parts of x, and the components that matter there."""
        if not self._wide:
            yield slice(None), slice(None)
            return
        for start in range(0, len(x), _STRETCH):
            part = slice(start, start + _STRETCH)
            yield part, self.components_near(float(x[part].min()), float(x[part].max()))

    def log_average(self, log_ratios: Array, near: slice = slice(None)) -> Array:
        """log(sum_i w_i exp(e_i)) over rows, to the last digits near 0 and where it is huge.

        ``near`` says which components the rows are of.
        """
        if len(self.shifts) == 1:
            return np.asarray(log_ratios[0])
        if self._wide:
            return _log_sum(self.columns[0][near] + log_ratios)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            excess = self.weights @ np.expm1(log_ratios) - self.lost
            result = np.log1p(excess)
        bad = ~((excess > -0.5) & (excess < 1e300))
        if bad.any():
            result[bad] = _log_sum(self.columns[0] + log_ratios[:, bad])
        return np.asarray(result)

    def log_likelihood(self, x: Array) -> Array:
        """log of the density relative to N(0, 1) at x."""
        result = np.empty_like(x)
        for part, near in self._stretches(x):
            result[part] = self.log_average(_likelihoods(self.columns[1][near], x[part]), near)
        return result

    def mean_shift(self, x: Array) -> Array:
        """Derivative of the log likelihood: the mean of the shift given x."""
        if len(self.shifts) == 1:
            return np.full_like(x, self.shifts[0])
        result = np.empty_like(x)
        for part, near in self._stretches(x):
            logs = self.columns[0][near] + _likelihoods(self.columns[1][near], x[part])
            posterior = np.exp(logs - logs.max(axis=0))
            result[part] = (self.columns[1][near] * posterior).sum(axis=0) / posterior.sum(axis=0)
        return result


def _likelihoods(shifts: Array, x: Array) -> Array:
    return np.asarray(shifts * x - shifts * shifts / 2.0)


def _log_sum(logs: Array) -> Array:
    top = logs.max(axis=0)
    return np.asarray(top + np.log(np.exp(logs - top).sum(axis=0)))


TRIVIAL = Mixture((0.0,), (0.0,))


def log_interval(y: Array) -> tuple[Array, Array]:
    """Log of the N(0,1)-mass of each cell between consecutive boundaries, and a bound on its error.

    Tail masses are differences of scaled complementary error functions, so they keep their relative
    accuracy in either tail, however far out; what is lost is the ratio of the tail to the cell,
    which the returned bound carries.
    """
    size = np.abs(y)
    scaled = special.erfcx(size * math.sqrt(0.5))
    left, right = size[..., :-1], size[..., 1:]
    rising = left <= right
    near, far = np.where(rising, left, right), np.where(rising, right, left)
    scaled_near = np.where(rising, scaled[..., :-1], scaled[..., 1:])
    scaled_far = np.where(rising, scaled[..., 1:], scaled[..., :-1])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # of the tail, what lies beyond
        share = np.exp((near - far) * (far + near) / 2.0) * scaled_far / scaled_near
        share[np.isinf(far)] = 0.0
        # a cell too thin to see: all that is known is that it is tiny
        share = np.minimum(share, 1.0 - UNIT)
        log_mass = np.log(scaled_near * (0.5 - 0.5 * share)) - near * near / 2.0
        error = ulps(LIBRARY_ULPS + 2.0 * (near + 1.0) ** 2) / (1.0 - share)
    empty = ~(y[..., 1:] > y[..., :-1])
    log_mass[empty], error[empty] = -np.inf, 0.0
    straddle = (y[..., :-1] < 0.0) & (y[..., 1:] > 0.0)
    if straddle.any():
        mass = special.ndtr(y[..., 1:][straddle]) - special.ndtr(y[..., :-1][straddle])
        log_mass[straddle], error[straddle] = np.log(mass), ulps(LIBRARY_ULPS) / mass
    return log_mass, error


@dataclass(frozen=True)
class MixturePair(DominatingPair):
    """P = ``up`` (shifts to the right) against Q = ``down`` (shifts to the left), unit variance.

    >>> pair = MixturePair.subsampled(rate=0.5, shift=1.0)
    >>> float(np.round(pair.loss(np.array([0.5]))[0], 6))
    0.0
    """

    up: Mixture
    down: Mixture = TRIVIAL

    @staticmethod
    def gaussian(shift: float) -> MixturePair:
        """N(shift) against N(0)."""
        return MixturePair(Mixture((0.0,), (float(shift),)))

    @staticmethod
    def subsampled(rate: float, shift: float) -> MixturePair:
        """(1-rate) N(0) + rate N(shift) against N(0)."""
        if rate >= 1.0:
            return MixturePair.gaussian(shift)
        return MixturePair(
            Mixture((float(np.log1p(-rate)), float(np.log(rate))), (0.0, float(shift)))
        )

    def reverse(self) -> MixturePair:
        """The other direction, Q against P, mirrored so that the loss increases again."""
        return MixturePair(self.down, self.up)

    @property
    def is_gaussian(self) -> bool:
        """Whether both sides are single Gaussians, so that closed forms apply."""
        return all(len(side.shifts) == 1 and side.lost == 0.0 for side in (self.up, self.down))

    @property
    def gaussian_shift(self) -> float:
        return self.up.shifts[0] + self.down.shifts[0]

    @property
    def max_shift(self) -> float:
        """The largest shift on either side."""
        return max(*self.up.shifts, *self.down.shifts)

    @property
    def infinite(self) -> float:
        return self.up.lost

    @cached_property
    def bulk(self) -> float:
        """The loss at 0."""
        return float(self.loss(np.zeros(1))[0])

    def nodes(self, left: float, far: float) -> tuple[Array, Array]:
        """Losses and log masses of P at even steps along the line."""
        end = max(self.up.shifts) + far
        size = min(
            math.ceil((end - left) / min(0.125, 0.5 / max(self.max_shift, 1e-9))), _MOST_NODES
        )
        x = np.linspace(left, end, size)
        return self.loss(x), self.log_density(x) + math.log(x[1] - x[0])

    def boundaries_at(self, grid: Array) -> tuple[Array, float]:
        """The x of each loss, and by how much their losses miss those at most."""
        boundaries = self.inverse(grid)
        finite = np.isfinite(boundaries)
        return boundaries, float(
            np.abs(self.loss(boundaries[finite]) - grid[finite]).max(initial=0.0)
        )

    def log_loss_density(self, x: Array) -> Array:
        return np.asarray(self.log_density(x) - np.log(self.slope(x)))

    def loss(self, x: Array) -> Array:
        """log P(x)/Q(x), increasing in x."""
        return self.up.log_likelihood(x) - self.down.log_likelihood(-x)

    def slope(self, x: Array) -> Array:
        """Derivative of the loss."""
        return self.up.mean_shift(x) + self.down.mean_shift(-x)

    def log_density(self, x: Array) -> Array:
        """log of P's density."""
        return np.asarray(self.up.log_likelihood(x) - x * x / 2.0 - 0.5 * math.log(2.0 * math.pi))

    @cached_property
    def infimum(self) -> float:
        """The loss at minus infinity: finite only if Q is N(0) and P keeps weight at 0."""
        if not self.down.trivial or 0.0 not in self.up.shifts:
            return -np.inf
        if len(self.up.shifts) == 2 and self.up.lost == 0.0:
            return float(np.log1p(-np.exp(self.up.log_weights[1 - self.up.shifts.index(0.0)])))
        return self.up.log_weights[self.up.shifts.index(0.0)]

    @cached_property
    def supremum(self) -> float:
        return -self.reverse().infimum

    def inverse(self, loss: Array) -> Array:
        """The x with the given loss; -inf (+inf) below (above) the range of the loss."""
        if self.is_gaussian:
            return loss / self.gaussian_shift + (self.up.shifts[0] - self.down.shifts[0]) / 2.0
        if self.down.trivial and self.up.two_point:
            return self._inverse_subsampled(loss)
        if self.up.trivial and self.down.two_point:
            return -self.reverse()._inverse_subsampled(-loss)
        return self._inverse_newton(loss)

    def _inverse_subsampled(self, loss: Array) -> Array:
        m, log_q = self.up.shifts[1], self.up.log_weights[1]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            small = np.log(np.expm1(loss) + np.exp(log_q))
            large = loss + np.log1p(np.expm1(log_q) * np.exp(-loss) if log_q < 0 else 0.0)
            x = (np.where(loss > 30.0, large, small) - log_q) / m + m / 2.0
        return np.where(loss <= self.infimum, -np.inf, x)

    def _inverse_newton(self, loss: Array) -> Array:
        """Newton's method from a table, kept inside a shrinking bracket; the loss is increasing."""
        target = np.clip(loss, self.infimum, self.supremum)
        low, high = -1.0, 1.0
        while low > -_FAR and float(self.loss(np.array([low]))[0]) > target.min():
            low *= 2.0
        while high < _FAR and float(self.loss(np.array([high]))[0]) < target.max():
            high *= 2.0
        table = np.linspace(low, high, 512)
        values = np.maximum.accumulate(self.loss(table))
        place = np.clip(np.searchsorted(values, target), 1, len(table) - 1)
        below, above = table[place - 1], table[place]
        x = np.clip(np.interp(target, values, table), below, above)
        left = np.arange(len(x))  # those still on their way
        for _ in range(100):
            at, goal = x[left], target[left]
            miss = self.loss(at) - goal
            below[left] = np.where(miss < 0.0, at, below[left])
            above[left] = np.where(miss > 0.0, at, above[left])
            unsettled = np.abs(miss) > ulps(8.0, of=1.0 + np.abs(goal))
            left, at, miss = left[unsettled], at[unsettled], miss[unsettled]
            if not left.size:
                break
            low_end, high_end = below[left], above[left]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = at - miss / self.slope(at)
            x[left] = np.where(
                (step > low_end) & (step < high_end), step, (low_end + high_end) / 2.0
            )
            left = left[np.abs(x[left] - at) > 4e-16 * (1.0 + np.abs(at))]
            if not left.size:
                break
        x = np.where(loss <= self.infimum, -np.inf, x)
        return np.where(loss >= self.supremum, np.inf, x)

    def mean_loss_below(self, x: float) -> float:
        base = special.log_ndtr(x)
        # the common case, without arrays
        if self.down.trivial and self.up.two_point and self.up.log_weights[1] < -1.0:
            return math.log1p(
                math.exp(self.up.log_weights[1])
                * math.expm1(special.log_ndtr(x - self.up.shifts[1]) - base)
            )
        up = self.up.log_average(special.log_ndtr(x - self.up.columns[1]) - base)
        down = self.down.log_average(special.log_ndtr(x + self.down.columns[1]) - base)
        return float(up[0] - down[0])

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound on D_{e^eps}(P||Q): the event {loss > eps} is a half line."""
        x = self.inverse(np.array([epsilon]))
        if np.isposinf(x[0]):
            return 0.0, self.up.lost
        tail = self._cells(np.array([x[0], np.inf]))
        # holds what a rounded x misses
        around = math.exp(float(self._cells(np.array([x[0] - 0.1, np.inf])).log_p[0]))
        over = float(self.loss(x)[0]) - epsilon if np.isfinite(x[0]) else 0.0
        if abs(over) > 1.0:  # too far out for the inverse; but left of x no loss exceeds that at x
            most = math.exp(float(tail.log_p[0]) + 2.0 * float(tail.error[0])) + self.up.lost
            return 0.0, min(most, 1.0) if over < 0.0 else 1.0
        lower, upper = tail_delta(tail, epsilon, around, abs(over))
        return lower, min(upper + self.up.lost, 1.0)

    def cells(self, boundaries: Array) -> Cells:
        """Masses of P and Q between consecutive boundaries (which may be infinite)."""
        components = len(self.up.shifts) + len(self.down.shifts)
        block = _STRETCH if components > 2 * _MANY else max(_BLOCK // components, 2)
        if len(boundaries) <= block + 1:
            return self._cells(boundaries)
        parts = [
            self._cells(boundaries[i : i + block + 1]) for i in range(0, len(boundaries) - 1, block)
        ]
        return Cells(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("log_p", "loss", "error")
            )
        )

    def _cells(self, boundaries: Array) -> Cells:
        base, base_error = log_interval(boundaries)
        sides, error = [], np.zeros_like(base)
        for mixture, sign in ((self.up, 1.0), (self.down, -1.0)):
            if mixture.trivial:
                sides.append(np.zeros_like(base))
                error += base_error
                continue
            ends = sorted((sign * float(boundaries[0]), sign * float(boundaries[-1])))
            near = mixture.components_near(*ends)
            log_weights, shifts = mixture.columns[0][near], mixture.columns[1][near]
            mass, mass_error = log_interval(boundaries - sign * shifts)
            ratios = np.subtract(
                mass,
                base,
                out=np.zeros_like(mass),
                where=np.broadcast_to(base > -np.inf, mass.shape),
            )
            ratios[shifts[:, 0] == 0.0] = 0.0
            sides.append(mixture.log_average(ratios, near))
            share = np.exp(log_weights + ratios - sides[-1])  # of the cell's mass, each component's
            # a component without any mass in the cell has no share of the error either
            there = np.isfinite(ratios)
            off = mass_error + ulps(
                LIBRARY_ULPS + 2.0 * np.abs(ratios, out=np.zeros_like(ratios), where=there)
            )
            error += (
                np.multiply(share, off, out=np.zeros_like(share), where=there).sum(axis=0)
                + mixture.error
            )
        loss = sides[0] - sides[1]
        return Cells(base + sides[0], loss, error + ulps(4.0 * np.abs(loss) + 4.0))
