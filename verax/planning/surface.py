"""Where an answer will be found, from answers nearby. It steers a search and never enters a bound."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from verax.privacy import closed_form
from verax.privacy.pairs import Array
from verax.privacy.roots import root

_NEAR = 24  # answers that a guess is made from
_ENOUGH = 4  # answers from which a spline is drawn
_TYPICAL_FALL, _LEAST_FALL, _MOST_FALL = 2.0, 0.3, 30.0


def gaussian_shift(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism with this epsilon at this delta.

    >>> round(gaussian_shift(1.0, 1e-5), 3)
    0.268
    """

    def excess(log_mu: float) -> float:
        value = closed_form.gaussian_delta(math.exp(log_mu), epsilon)
        return math.log(value / delta) if value > 0.0 else -1e4

    return math.exp(root(excess, math.log(1e-12), math.log(1e6), xtol=1e-6))


def gaussian_limit(mu: float, rate: float, rounds: float) -> float:
    """The noise whose run of many Poisson rounds is nearly a Gaussian mechanism with this mu.

    Solves mu = rate sqrt(rounds (e^(1/z^2) - 1)), the central limit of Bu, Dong, Long and Su (2020).
    """
    return 1.0 / math.sqrt(math.log1p((mu / rate) ** 2 / rounds))


class Surface:
    """Logarithms of the noise above its Gaussian limit, known at some (log rate, log rounds), guessed elsewhere.

    With it goes how fast log epsilon falls in log noise. A guess is a cubic polyharmonic spline through the nearest
    known places, which follows smooth surfaces to a few parts in ten thousand once there are some dozens.

    >>> surface = Surface()
    >>> surface.guess((0.0, 0.0))
    (0.0, 2.0)
    >>> for x in range(5):
    ...     surface.add((float(x), 0.0), 0.5 * x, 3.0)
    >>> value, fall = surface.guess((2.5, 0.0))
    >>> round(value, 6), round(fall, 6)
    (1.25, 3.0)
    """

    def __init__(self) -> None:
        self._places = np.empty((0, 2))
        self._known = np.empty((0, 2))

    def add(self, place: tuple[float, float], value: float, fall: float) -> None:
        """Remember an answer."""
        self._places = np.vstack([self._places, place])
        self._known = np.vstack([self._known, (value, math.log(fall))])

    def guess(self, place: tuple[float, float]) -> tuple[float, float]:
        """The value and the fall expected at a place; those of the Gaussian limit where nothing is known."""
        if not len(self._known):
            return 0.0, _TYPICAL_FALL
        offsets = self._places - np.asarray(place)
        distance = np.hypot(*offsets.T)
        near = np.argsort(distance, kind="stable")[:_NEAR]
        value, log_fall = self._known[near[0]] if len(near) < _ENOUGH else self._spline(offsets[near], near)
        return float(value), min(max(math.exp(log_fall), _LEAST_FALL), _MOST_FALL)

    def _spline(self, offsets: Array, near: NDArray[np.int64]) -> Array:
        """The value at the origin of a spline through what is known at these offsets from it."""
        distance = np.hypot(*offsets.T)
        scale = max(float(distance.max()), 1e-9)
        gaps = np.hypot(*(offsets[:, None, :] - offsets[None, :, :]).transpose(2, 0, 1)) / scale
        linear = np.column_stack([np.ones(len(near)), offsets / scale])
        system = np.block([[gaps**3, linear], [linear.T, np.zeros((3, 3))]])
        # least squares, because places on one line leave the linear part undetermined
        weights = np.linalg.lstsq(system, np.vstack([self._known[near], np.zeros((3, 2))]), rcond=1e-12)[0]
        return np.asarray((distance / scale) ** 3 @ weights[:-3] + weights[-3])
