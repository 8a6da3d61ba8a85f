"""How many records of a group fall into one bin, under balls-in-bins.

The ``size`` records of a group pick their bins independently, so the numbers n_t in the T bins of
an epoch are multinomial. A bin that holds n of them is shifted by at most ``shifts[n]``, and the
likelihood of an epoch changes by

    S = E prod_t exp(s_(n_t) x_t - s_(n_t)^2 / 2),    x_t independent N(0, 1) without the group

(docs/allocation.md, theorem 2). With weights w_n = rho^n / n! / Z, n = 0, ..., size, it is a
coefficient of a product,

    S = [y^size] prod_t (sum_n w_n y^n exp(s_n x_t - s_n^2 / 2)) / beta,    beta = (T rho)^size /
    (size! Z^T),

whatever rho is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8000
from verax.privacy.pairs.gaussian_mixture import Mixture, MixturePair


@dataclass(frozen=True)
class SharedBins:
    """A group of ``size`` records, each in ``times`` of ``bins`` at random.

    Args:
        size: number of records.
        bins: number of bins an epoch.
        unit: what one record shifts its bin by, in standard deviations of the noise.
        adds_up: whether n records in one bin shift it by n units (individual clipping), or by one
            (batch clipping).
        times: in how many different bins each record is.
    """

    size: int
    bins: int
    unit: float
    adds_up: bool
    times: int = 1

    def shifts(self, most: int) -> Array:
        """Shifts of bins with 0 to ``most`` records of the group."""
        held = np.arange(most + 1.0)
        return self.unit * (held if self.adds_up else np.minimum(held, 1.0))

    @cached_property
    def reach(self) -> float:
        """The longest shift of an epoch: all records in the same bins, or all in different ones."""
        if self.adds_up:
            return self.unit * self.size * math.sqrt(self.times)
        return self.unit * math.sqrt(min(self.size * self.times, self.bins))

    def log_weights(self, rho: float, most: int) -> tuple[Array, float]:
        """log w_0, ..., log w_most, and log Z."""
        held = np.arange(most + 1.0)
        logs = held * math.log(rho) - special.gammaln(held + 1.0)
        log_z = float(special.logsumexp(logs))
        return np.asarray(logs - log_z), log_z

    def log_beta(self, rho: float, log_z: float) -> float:
        """log beta, which the sum over n must be divided by."""
        return (
            self.size * math.log(self.bins * rho) - math.lgamma(self.size + 1.0) - self.bins * log_z
        )

    def pair(self, log_weights: Array) -> MixturePair:
        """One round against none, if the numbers in different bins were independent."""
        shifts = self.shifts(len(log_weights) - 1)
        if self.adds_up:
            return MixturePair(
                Mixture(tuple(log_weights.tolist()), tuple(shifts.tolist()), error=OPS_8000)
            )
        some = float(special.logsumexp(log_weights[1:]))
        return MixturePair(Mixture((float(log_weights[0]), some), (0.0, self.unit), error=OPS_8000))

    def likely(self, chance: float) -> int:
        """A number of records that one bin exceeds with about this chance at most."""
        mean = self.size / self.bins
        logs = (
            -mean
            + np.arange(self.size + 1.0) * math.log(mean)
            - special.gammaln(np.arange(self.size + 1.0) + 1.0)
        )
        return int(np.flatnonzero(logs > math.log(chance))[-1])
