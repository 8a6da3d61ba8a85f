"""Composition of many rounds: tilt, transform, multiply, transform back, with every error bounded.

For rounds with loss laws p_j (count T_j) and a tilt t >= 0 the tilted laws w_j = p_j e^{t x} / Z_j are convolved by FFT and

    delta(eps) = prod_j Z_j^{T_j} e^{-t eps} sum_{x > eps} r(x) e^{-t (x - eps)} (1 - e^{-(x - eps)}),

with r the convolution (MATH section 3). With t at the saddle point the sum is of order one, so errors that are tiny
beside 1 are tiny beside delta, be it 1e-30. Bounds charged (docs/proofs.md, section 3): aliasing by Chernoff's inequality
for the discrete law itself, round-off of the transforms and of the powers frequency by frequency, rounding of the losses
as a shift of epsilon, mass at infinity as itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from verax.privacy.loss import Discrete
from verax.privacy.pairs import UNIT, Array

ALIAS = 1e-15  # mass allowed to leave the window on either side, of the tilted law
_LOG_ALIAS = math.log(ALIAS)
_LOG_DEAD = -80.0  # log of the modulus below which a frequency is dropped (and charged)
MAX_POINTS = 2**25


@dataclass(frozen=True)
class Composed:
    """A composed law on a window of the grid, from which delta(eps) is read with its errors on the safe side."""

    sign: int  # +1: an upper bound on delta, -1: a lower bound
    tilt: float
    start: float
    step: float
    law: Array  # tilted probabilities of start + i * step
    log_scale: float  # sum of T_j log Z_j
    bin_error: float
    alias: tuple[float, float]
    infinite: float
    shift: float
    mean: float  # of the tilted law, as a loss
    spread: float  # its standard deviation
    decay: Array  # e^{-t k step}
    decay_next: Array  # e^{-(t+1) k step}

    @property
    def stop(self) -> float:
        """The right end of the window."""
        return self.start + self.step * len(self.law)

    def delta(self, epsilon: float) -> float:
        """A bound on D_{e^eps}, from above or below according to ``sign``."""
        epsilon -= self.sign * (self.shift + 4.0 * UNIT * (abs(self.start) + abs(self.stop)))
        first = min(max(math.floor((epsilon - self.start) / self.step) + 1, 0), len(self.law))
        gap = max(self.start + self.step * first - epsilon, 0.0)
        if gap > 600.0 / (1.0 + self.tilt) and first == 0:  # far left of the window nothing is known but the trivial bound
            return 1.0 if self.sign > 0 else 0.0
        terms = min(len(self.law) - first, len(self.decay))
        window = self.law[first : first + terms]
        total = float(window @ self.decay[:terms])
        value = math.exp(-self.tilt * gap) * (total - math.exp(-gap) * float(window @ self.decay_next[:terms]))
        value += self.sign * self._error(epsilon, gap, total, terms)
        if value <= 0.0:
            return 0.0
        log_delta = self.log_scale - self.tilt * epsilon + math.log(value)
        slack = self.shift + 8.0 * UNIT * (1.0 + abs(self.log_scale) + abs(self.tilt * epsilon))
        bound = math.exp(min(log_delta + self.sign * slack, 0.0)) + self.infinite * (1.0 + 1e-9)
        return min(bound, 1.0)

    def _error(self, epsilon: float, gap: float, total: float, terms: int) -> float:
        low, high = self.alias
        peak = _weight(self.tilt, math.log1p(1.0 / self.tilt) if self.tilt > 0 else math.inf)
        error = self.bin_error * float(self.decay[:terms].sum()) * math.exp(-self.tilt * gap)
        error += (terms + 16.0) * UNIT * total
        if len(self.decay) < len(self.law):  # the truncated sum of vanishing weights
            error += float(self.decay[-1])
        if self.sign < 0:
            return error + (low + high) * peak
        beyond = self.stop - epsilon
        past_peak = self.tilt > 0 and beyond > math.log1p(1.0 / self.tilt)
        error += high * (_weight(self.tilt, beyond) if past_peak else peak)
        return error + (low * peak if epsilon < self.start else 0.0)


def _weight(tilt: float, distance: float) -> float:
    """e^{-t u} (1 - e^{-u})."""
    return math.exp(-tilt * distance) * -math.expm1(-distance) if tilt > 0 else -math.expm1(-distance)


@dataclass(frozen=True)
class _Tilted:
    """One round's law, tilted and normalised, with the error of its weights in total variation."""

    law: Array
    log_norm: float
    error: float


def _tilt(discrete: Discrete, tilt: float) -> _Tilted:
    logs = discrete.log_mass + tilt * discrete.losses
    log_norm = float(special.logsumexp(logs))
    law = np.exp(logs - log_norm)
    spread = 16.0 + 4.0 * (np.abs(discrete.losses) * tilt + abs(log_norm))
    some = np.isfinite(discrete.log_mass)
    error = UNIT * float(law[some] @ (spread[some] + 4.0 * np.abs(discrete.log_mass[some])))
    return _Tilted(law, log_norm, error)


def _log_moments(law: Array, step: float, rates: Array) -> Array:
    """log sum_i law_i e^{s i step} for each s, exponentials formed as outer products."""
    block = max(1, math.isqrt(len(law)))
    rows = -(-len(law) // block)
    table = np.zeros(rows * block)
    table[: len(law)] = law
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        inner = np.exp(rates[:, None] * (step * np.arange(block)))
        outer = np.exp(rates[:, None] * (step * block * np.arange(rows)))
        moments = np.einsum("sr,sr->s", outer, inner @ table.reshape(rows, block).T)
        return np.where(np.isfinite(moments), np.log(moments), np.inf)


@dataclass(frozen=True)
class _Window:
    """Positions relative to the sum of the starts, outside of which the sum has mass below ALIAS on each side."""

    low: float
    high: float
    mean: float
    spread: float


def _window(parts: Sequence[tuple[_Tilted, int]], step: float) -> _Window:
    mean = variance = 0.0
    centres = []
    for part, count in parts:
        index = np.arange(len(part.law)) * step
        first = float(part.law @ index)
        centres.append(first)
        mean += count * first
        variance += count * float(part.law @ (index - first) ** 2)
    rate = math.sqrt(-2.0 * _LOG_ALIAS / max(variance, step * step)) * 2.0 ** (-np.arange(-2.0, 11.0) / 2.0)
    bounds = []
    for sign in (-1.0, 1.0):
        total = np.zeros_like(rate)
        for (part, count), centre in zip(parts, centres, strict=True):
            # 1e-13: floating-point error of the centred log moment, charged to the safe side
            total += count * (_log_moments(part.law, step, sign * rate) - sign * rate * centre + 1e-13)
        bounds.append(float(np.min((total - _LOG_ALIAS) / rate)))
    return _Window(mean - bounds[0], mean + bounds[1], mean, math.sqrt(variance))


class _Spectrum:
    """A product of powers of transforms, with the error of each frequency; frequencies that have died out are dropped.

    What is dropped was bounded in modulus when it was dropped, and later factors can hardly raise it: their moduli are at
    most 1 plus their error. ``dead`` sums those bounds.
    """

    def __init__(self, frequencies: int) -> None:
        self.alive = np.arange(frequencies)
        self.value = np.ones(frequencies, dtype=np.complex128)
        self.size = np.ones(frequencies)
        self.wrong = np.zeros(frequencies)
        self.dead = 0.0

    def times(self, transform: NDArray[np.complex128], count: int, error: float) -> None:
        """Multiply by transform ** count, given the error of the transform."""
        factor = transform[self.alive]
        size = np.abs(factor) + error
        log_most = count * np.log(size)
        keep = log_most + np.log(self.size) > _LOG_DEAD
        self.dead = self.dead * math.exp(min(count * error, 50.0)) + float(np.sum((~keep) * self.size * np.exp(log_most)))
        if not keep.all():
            self.alive, self.value = self.alive[keep], self.value[keep]
            self.size, self.wrong = self.size[keep], self.wrong[keep]
            factor, size, log_most = factor[keep], size[keep], log_most[keep]
        logs = np.log(factor)
        most = np.exp(log_most)
        relative = np.expm1(np.minimum(-count * np.log1p(-error / size), 50.0)) + 8.0 * UNIT * (2.0 + count * np.abs(logs))
        self.wrong = self.wrong * most + self.size * most * np.minimum(relative, 2.0)
        self.size = self.size * most
        self.value = self.value * np.exp(count * logs)

    def full(self, frequencies: int) -> NDArray[np.complex128]:
        """All frequencies again, the dead ones as zeros."""
        result = np.zeros(frequencies, dtype=np.complex128)
        result[self.alive] = self.value
        return result


def compose(rounds: Sequence[tuple[Discrete, int]], tilt: float, sign: int) -> Composed:
    """Compose ``count`` rounds of each law. ``sign`` says whether they are upper (+1) or lower (-1) discretisations."""
    step = rounds[0][0].step
    parts = [(_tilt(discrete, tilt), count) for discrete, count in rounds]
    window = _window(parts, step)
    points = fft.next_fast_len(int((window.high - window.low) / step) + 3, real=True)
    if points > MAX_POINTS:
        raise MemoryError(f"a window of {points} points is more than {MAX_POINTS}; ask for a larger rtol")
    first = math.floor(window.low / step) - 1
    spectrum = _Spectrum(points // 2 + 1)
    round_off = 8.0 * UNIT * math.log2(points)
    origin = 0
    for part, count in parts:
        centre = int(np.argmax(part.law))  # near index 0 the phases stay small and powers exact
        origin += count * centre
        spectrum.times(fft.rfft(_fold(part.law, centre, points)), count, part.error + round_off)
    law = fft.irfft(spectrum.full(points // 2 + 1), points)
    bin_error = 2.0 / points * (float(np.sum(spectrum.wrong + round_off * spectrum.size)) + spectrum.dead)
    law = np.roll(law, (origin - first) % points)
    base = math.fsum([count * discrete.start for discrete, count in rounds])
    infinite = -math.expm1(math.fsum([count * math.log1p(-discrete.infinite) for discrete, count in rounds]))
    reach = points if tilt <= 0 else min(points, int(45.0 / (tilt * step)) + 2)
    decay = np.exp(-tilt * step * np.arange(reach))
    return Composed(
        sign=sign,
        tilt=tilt,
        start=base + step * first,
        step=step,
        law=law,
        log_scale=math.fsum([count * part.log_norm for part, count in parts]),
        bin_error=bin_error,
        alias=(ALIAS, ALIAS),
        infinite=infinite if sign > 0 else 0.0,
        shift=math.fsum([count * discrete.shift for discrete, count in rounds]),
        mean=base + window.mean,
        spread=window.spread,
        decay=decay,
        decay_next=decay * np.exp(-step * np.arange(reach)),
    )


def _fold(law: Array, centre: int, points: int) -> Array:
    """The law wrapped onto a circle of ``points``, with index ``centre`` at 0."""
    shifted = np.arange(len(law)) - centre
    if len(law) <= points:
        folded = np.zeros(points)
        folded[shifted % points] = law
        return folded
    return np.bincount(shifted % points, weights=law, minlength=points)
