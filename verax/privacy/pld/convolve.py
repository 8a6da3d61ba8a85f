"""Composition of many rounds: tilt, transform, multiply, transform back, with every error bounded.

For rounds with loss pmfs p_j (count T_j) and a tilt t >= 0 the tilted pmfs w_j = p_j e^{t x} / Z_j
are convolved by FFT and

    delta(eps) = prod_j Z_j^{T_j} e^{-t eps} sum_{x > eps} r(x) e^{-t (x - eps)} (1 - e^{-(x -
    eps)}),

with r the convolution (docs/proofs.md, section 3). With t at the saddle point the sum is of order
one, so errors that are tiny beside 1 are tiny beside delta, be it 1e-30. Bounds charged
(docs/proofs.md, section 3): aliasing by Chernoff's inequality for the discrete pmf itself,
round-off of the transforms and of the powers frequency by frequency, rounding of the losses as a
shift of epsilon, mass at infinity as itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8M, OPS_80, UNIT, transform_error, ulps, up
from verax.privacy.pld.discretise import DiscretePld

_LOG_DEAD = -80.0  # log of the modulus below which a frequency is dropped (and charged)
MAX_POINTS = 2**23
_FARTHEST = 1e15  # beyond a window, from which on an epsilon is taken for that
# of Chernoff's bound, in units of 1 / the largest loss
_RARE_RATES = np.array([5.0, 20.0, 80.0, 320.0])


@dataclass(frozen=True)
class PrivacyLossDistribution:
    """A composed PLD on a window of the grid; delta(eps) is read with errors on the safe side."""

    sign: int  # +1: an upper bound on delta, -1: a lower bound
    tilt: float
    start: float
    step: float
    pmf: Array  # tilted probabilities of start + i * step
    log_scale: float  # sum of T_j log Z_j
    bin_error: float
    alias: float  # mass that may lie outside the window, on either side
    infinite: float
    shift: float
    mean: float  # of the tilted pmf, as a loss
    spread: float  # its standard deviation
    decay: Array  # e^{-t k step}
    decay_next: Array  # e^{-(t+1) k step}

    @property
    def stop(self) -> float:
        """The right end of the window."""
        return self.start + self.step * len(self.pmf)

    def delta(self, epsilon: float) -> float:
        """A bound on D_{e^eps}, from above or below according to ``sign``."""
        # delta falls, and beyond that place its logarithm would leave doubles
        epsilon = min(epsilon, abs(self.stop) + _FARTHEST)
        epsilon -= self.sign * (self.shift + ulps(4.0, of=abs(self.start) + abs(self.stop)))
        first = min(max(math.floor((epsilon - self.start) / self.step) + 1, 0), len(self.pmf))
        gap = max(self.start + self.step * first - epsilon, 0.0)
        # far left of the window nothing is known but the trivial bound
        if gap > 600.0 / (1.0 + self.tilt) and first == 0:
            return 1.0 if self.sign > 0 else 0.0
        terms = min(len(self.pmf) - first, len(self.decay))
        window = self.pmf[first : first + terms]
        total = float(window @ self.decay[:terms])
        value = math.exp(-self.tilt * gap) * (
            total - math.exp(-gap) * float(window @ self.decay_next[:terms])
        )
        value += self.sign * self._error(epsilon, gap, total, terms)
        if math.isnan(value):
            return 1.0 if self.sign > 0 else 0.0
        if value <= 0.0:
            return 0.0
        log_delta = self.log_scale - self.tilt * epsilon + math.log(value)
        slack = self.shift + ulps(8.0, of=1.0 + abs(self.log_scale) + abs(self.tilt * epsilon))
        bound = math.exp(min(log_delta + self.sign * slack, 0.0)) + up(self.infinite, OPS_8M)
        return min(bound, 1.0)

    def _error(self, epsilon: float, gap: float, total: float, terms: int) -> float:
        peak = _weight(self.tilt, math.log1p(1.0 / self.tilt) if self.tilt > 0 else math.inf)
        error = self.bin_error * float(self.decay[:terms].sum()) * math.exp(-self.tilt * gap)
        error += ulps(terms + 16.0, of=total)
        if len(self.decay) < len(self.pmf):  # the truncated sum of vanishing weights
            error += float(self.decay[-1])
        if self.sign < 0:
            return error + 2.0 * self.alias * peak
        beyond = self.stop - epsilon
        past_peak = self.tilt > 0 and beyond > math.log1p(1.0 / self.tilt)
        error += self.alias * (_weight(self.tilt, beyond) if past_peak else peak)
        return error + (self.alias * peak if epsilon < self.start else 0.0)


def _weight(tilt: float, distance: float) -> float:
    """e^{-t u} (1 - e^{-u})."""
    return (
        math.exp(-tilt * distance) * -math.expm1(-distance) if tilt > 0 else -math.expm1(-distance)
    )


@dataclass(frozen=True)
class _TiltedPld:
    """One round's pmf, tilted and normalised, with the error of its weights in total variation."""

    index: NDArray[np.int64]
    pmf: Array
    log_norm: float
    error: float
    mean: float  # as an index
    variance: float
    centre: int  # index of the heaviest point


def _tilt(discrete: DiscretePld, tilt: float) -> _TiltedPld:
    some = np.isfinite(discrete.log_mass)
    index, log_mass, losses = discrete.index[some], discrete.log_mass[some], discrete.losses[some]
    logs = log_mass + tilt * losses
    top = float(logs.max())
    pmf = np.exp(logs - top)
    total = float(pmf.sum())
    pmf /= total
    log_norm = top + math.log(total)
    spread = 32.0 + 4.0 * (np.abs(losses * tilt) + abs(log_norm) + np.abs(log_mass))
    mean = float(pmf @ index)
    variance = float(pmf @ (index - mean) ** 2)
    return _TiltedPld(
        index, pmf, log_norm, ulps(float(pmf @ spread)), mean, variance, int(index[np.argmax(pmf)])
    )


@dataclass(frozen=True)
class _Window:
    """Positions, from the sum of the starts, beyond which mass is below ``alias``."""

    low: float
    high: float
    mean: float
    spread: float


def _window(parts: Sequence[tuple[_TiltedPld, int]], step: float, log_alias: float) -> _Window:
    mean = step * math.fsum([count * part.mean for part, count in parts])
    spread = step * math.sqrt(math.fsum([count * part.variance for part, count in parts]))
    farthest = max(
        step * max(float(np.abs(part.index - part.mean).max()) for part, _ in parts), step
    )
    rate = math.sqrt(-2.0 * log_alias) / max(spread, step) * 2.0 ** (-np.arange(-2.0, 11.0) / 2.0)
    rate = np.append(rate, (_RARE_RATES / farthest)[rate[-1] * farthest > _RARE_RATES])
    bounds = []
    for sign in (-1.0, 1.0):
        total = np.zeros_like(rate)
        for part, count in parts:
            distance = (part.index - part.mean) * step
            with np.errstate(over="ignore", invalid="ignore"):
                moments = np.expm1(np.multiply.outer(sign * rate, distance)) @ part.pmf
            moments[~np.isfinite(moments)] = np.inf
            # the centred pmf has mean 0, so moments are of second order; what rounding leaves of
            # the mean is charged
            total += count * (
                np.log1p(np.maximum(moments, 0.0))
                + rate * OPS_80 * float(np.abs(distance).max())
                + OPS_80
            )
        bounds.append(float(np.min((total - log_alias) / rate)))
    return _Window(mean - bounds[0], mean + bounds[1], mean, spread)


def sum_window(index: NDArray[np.int64], pmf: Array, count: int, alias: float) -> tuple[int, int]:
    """Integers beyond which a sum of ``count`` draws has mass below ``alias`` on either side."""
    mean = float(pmf @ index)
    variance = float(pmf @ (index - mean) ** 2)
    part = _TiltedPld(index, pmf, 0.0, 0.0, mean, variance, int(index[np.argmax(pmf)]))
    window = _window([(part, count)], 1.0, math.log(alias))
    if not math.isfinite(window.high - window.low):
        raise FloatingPointError("the law has no moments to bound its tails by")
    return math.floor(window.low) - 1, math.ceil(window.high) + 1


class _Spectrum:
    """A product of powers of transforms, with the error of each frequency.

    Frequencies that have died out are dropped.

    What is dropped was below e^{_LOG_DEAD} in modulus when it was dropped, and later factors can
    hardly raise it: their moduli are at most 1 plus their error. ``dead`` sums those bounds.
    """

    def __init__(self, points: int) -> None:
        self.points = points
        self.alive: NDArray[np.int64] = np.arange(points // 2 + 1)
        self.value: NDArray[np.complex128] | complex = 1.0 + 0.0j
        self.log_size: Array | float = 0.0
        self.wrong: Array | float = 0.0
        self.dead = 0.0

    def times(self, part: _TiltedPld, count: int) -> None:
        """Multiply by the count-th power of the pmf's transform."""
        if not self.alive.size:
            return
        factor, error = self._transform(part)
        if count * error > 1.0:
            raise FloatingPointError("rounding errors of this many rounds leave nothing to see")
        modulus = np.abs(factor) + error
        keep = modulus > np.exp((_LOG_DEAD - self.log_size) / count)
        dropped = len(keep) - int(np.count_nonzero(keep))
        self.dead = self.dead * math.exp(min(count * error, 50.0)) + dropped * math.exp(_LOG_DEAD)
        factor, modulus, self.alive = factor[keep], modulus[keep], self.alive[keep]
        value = self.value[keep] if isinstance(self.value, np.ndarray) else self.value
        log_size = self.log_size[keep] if isinstance(self.log_size, np.ndarray) else self.log_size
        wrong = self.wrong[keep] if isinstance(self.wrong, np.ndarray) else self.wrong
        # what is nothing at all is within its error
        logs = np.log(np.where(factor == 0.0, 1e-300, factor))
        log_most = count * np.log(modulus)
        most = np.exp(log_most)
        share = np.minimum(error / modulus, 1.0 - UNIT)  # all of it where the factor itself is 0
        relative = np.expm1(np.minimum(-count * np.log1p(-share), 50.0))
        relative += ulps(8.0, of=2.0 + count * np.abs(logs))
        self.wrong = (wrong + np.exp(log_size) * np.minimum(relative, 2.0)) * most
        self.log_size = log_size + log_most
        self.value = value * np.exp(count * logs)

    def _transform(self, part: _TiltedPld) -> tuple[NDArray[np.complex128], float]:
        """The transform at the frequencies still alive, and a bound on its error.

        With the heaviest point at 0 the phases stay small and powers exact.
        """
        place = (part.index - part.centre) % self.points
        last = int(self.alive[-1]) + 1
        # few frequencies: a sum, with exponentials split as 16 i + j
        if last * len(place) < 8 * self.points:
            few = np.exp(self._turns(np.arange(16), place))
            many = np.exp(self._turns(16 * np.arange(-(-last // 16)), place))
            values = np.asarray((many * part.pmf) @ few.T, dtype=np.complex128).reshape(-1)
            return values[self.alive], part.error + ulps(32.0 + len(place))
        circle = np.bincount(place, weights=part.pmf, minlength=self.points)
        return fft.rfft(circle)[self.alive], part.error + transform_error(self.points)

    def _turns(
        self, frequencies: NDArray[np.int64], place: NDArray[np.int64]
    ) -> NDArray[np.complex128]:
        # exact, so that the angle is too
        whole = np.multiply.outer(frequencies, place) % self.points
        return np.asarray(whole * (-2.0j * math.pi / self.points))

    def pmf(self) -> tuple[Array, float]:
        """The inverse transform, and a bound on the error of each of its points."""
        full = np.zeros(self.points // 2 + 1, dtype=np.complex128)
        full[self.alive] = self.value
        errors = self.wrong + transform_error(self.points) * np.exp(self.log_size)
        return fft.irfft(full, self.points), 2.0 / self.points * (float(np.sum(errors)) + self.dead)


@dataclass(frozen=True)
class TiltedPmf:
    """Tilted probabilities ``pmf[i]`` of ``base + (first + i) * step``, each within ``bin_error``.

    Besides, up to ``alias`` of mass may lie beyond either end of the window; it appears in the pmf,
    wrapped around. The probabilities themselves are pmf * exp(log_scale - tilt * sum).
    """

    pmf: Array
    base: float
    first: int
    step: float
    log_scale: float
    bin_error: float
    mean: float
    spread: float


def convolve(
    rounds: Sequence[tuple[DiscretePld, int]], tilt: float, alias: float, most: int = MAX_POINTS
) -> TiltedPmf:
    """The tilted PLD of the sum of ``count`` losses of each kind, on at most ``most`` points."""
    step = rounds[0][0].step
    parts = [(_tilt(discrete, tilt), count) for discrete, count in rounds]
    window = _window(parts, step, math.log(alias))
    if not math.isfinite(window.high - window.low):
        raise FloatingPointError("the tilted law has no moments to bound its tails by")
    points = fft.next_fast_len(int((window.high - window.low) / step) + 3, real=True)
    if points > most:
        raise MemoryError(f"a window of {points} points is more than {most}; ask for a larger rtol")
    first = math.floor(window.low / step) - 1
    spectrum = _Spectrum(points)
    # the widest first: most frequencies die at once
    for part, count in sorted(parts, key=lambda item: -item[1] * item[0].variance):
        spectrum.times(part, count)
    pmf, bin_error = spectrum.pmf()
    origin = sum(count * part.centre for part, count in parts)
    pmf = np.roll(pmf, (origin - first) % points)
    base = math.fsum([count * discrete.start for discrete, count in rounds])
    log_scale = math.fsum([count * part.log_norm for part, count in parts])
    return TiltedPmf(
        pmf, base, first, step, log_scale, bin_error, base + window.mean, window.spread
    )


def infinite_mass(rounds: Sequence[tuple[DiscretePld, int]]) -> float:
    """The product's mass at infinity: M^T - (M - m)^T for rounds of mass M with m at infinity.

    Upper pmfs may have more mass than 1 (docs/proofs.md, theorem 10), all of which a single
    infinite loss sends there.
    """
    logs, kept = [], []
    for discrete, count in rounds:
        mass = float(np.exp(discrete.log_mass).sum()) + discrete.infinite
        # the charge rises in M
        mass = max(up(mass, ulps(len(discrete.log_mass) + 8.0)), 1.0)
        logs.append(count * math.log(mass))
        kept.append(count * math.log1p(-discrete.infinite / mass))
    total = math.fsum(logs)
    return math.exp(total) * -math.expm1(math.fsum(kept)) if total < 700.0 else math.inf


def compose(
    rounds: Sequence[tuple[DiscretePld, int]],
    tilt: float,
    sign: int,
    alias: float = 1e-15,
    most: int = MAX_POINTS,
) -> PrivacyLossDistribution:
    """Compose ``count`` rounds of each PLD: upper (``sign`` +1) or lower (-1) discretisations.

    ``alias`` is the tilted mass that may lie outside the window, on either side; ``most`` its
    largest size.
    """
    sums = convolve(rounds, tilt, alias, most)
    step, points = sums.step, len(sums.pmf)
    infinite = infinite_mass(rounds)
    reach = points if tilt * step * points <= 45.0 else int(45.0 / (tilt * step)) + 2
    decay = np.exp(-tilt * step * np.arange(reach))
    return PrivacyLossDistribution(
        sign=sign,
        tilt=tilt,
        start=sums.base + step * sums.first,
        step=step,
        pmf=sums.pmf,
        log_scale=sums.log_scale,
        bin_error=sums.bin_error,
        alias=alias,
        infinite=infinite if sign > 0 else 0.0,
        shift=math.fsum([count * discrete.shift for discrete, count in rounds]),
        mean=sums.mean,
        spread=sums.spread,
        decay=decay,
        decay_next=decay * np.exp(-step * np.arange(reach)),
    )
