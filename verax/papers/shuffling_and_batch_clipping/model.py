"""The paper's model: equal clip-groups, c^2 as an adversary A1 sees it, bounds on a mixture."""

from __future__ import annotations

import math
from functools import cache, partial

from scipy import special

from verax import checks
from verax.privacy.numerics.distributions import hypergeometric_pmf
from verax.privacy.numerics.lattice import CELLS, LatticePmf
from verax.privacy.numerics.rounding import NORMAL_TRADEOFF, down, ulps, up
from verax.privacy.strong.curve import StrongCurve
from verax.privacy.strong.occupancy import epoch_pmf, independent_rounds_pmf, occupied_bins_pmfs
from verax.privacy.strong.random_mu import RELATIVE_MU

POPULATION, BATCH, CLIP_GROUPS = 60_000, 60, 4  # as many records as MNIST; the batch divides them
SIGMA, DELTA = 2.0, 1e-5  # the paper's sigma


@cache
def exact(sampling: str, groups: int, epochs: int, group: int) -> LatticePmf:
    """The law of c^2 in the paper's model, ``groups`` equal clip-groups a round."""
    size = BATCH // groups
    if sampling == "shuffling":
        return shuffling(POPULATION, size, groups, epochs, group)
    return subsampling(POPULATION, size, groups, POPULATION // BATCH * epochs, group)


def strong_curve(law: LatticePmf, sigma: float = SIGMA) -> StrongCurve:
    """What A1 sees at this sigma."""
    return StrongCurve(lambda _: law.scaled(sigma**-2.0))


def subsampling(
    population: int,
    size: int,
    groups: int,
    steps: int,
    group: int = 1,
    keep: float = 1.0,
    cells: int = CELLS,
) -> LatticePmf:
    """q(c^2) of definition 5.1, every round a fresh sample.

    Every round draws ``groups`` clip-groups of ``size`` records each from all of them.

    Individual clipping is ``size`` 1, batch clipping ``groups`` 1. ``keep`` below 1 filters
    clip-groups (appendix D).

    >>> pmf = subsampling(population=4, size=1, groups=2, steps=1, group=2)
    >>> pmf.lows.tolist(), pmf.weights.round(12).tolist()
    ([0.0, 1.0, 2.0, 3.0, 4.0], [0.166666666667, 0.666666666667, 0.0, 0.0, 0.166666666667])
    """
    hits = hypergeometric_pmf(*_places(population, size, groups, group))
    return independent_rounds_pmf(
        hits, occupied_bins_pmfs(groups, size), checks.count("steps", steps), 2, cells, _share(keep)
    )


def shuffling(
    population: int,
    size: int,
    groups: int,
    epochs: int,
    group: int = 1,
    keep: float = 1.0,
    cells: int = CELLS,
) -> LatticePmf:
    """q_E(c^2) of definition 5.1, every epoch a fresh shuffle.

    Every epoch cuts all records into rounds of ``groups`` clip-groups of ``size`` each.

    >>> pmf = shuffling(population=80, size=8, groups=1, epochs=1, group=4)
    >>> pmf.lows.tolist(), pmf.weights.round(3).tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.0, 0.048, 0.408, 0.544])
    """
    _, _, batch = _places(population, size, groups, group)
    if population % batch:
        raise ValueError(
            f"population must be a multiple of size * groups, {batch}, got {population}"
        )
    counts = None if groups == 1 else partial(occupied_bins_pmfs, groups, size)
    once = epoch_pmf(group, [(population // batch, batch)], counts, _share(keep))
    return once.merged(cells).times(checks.count("epochs", epochs), cells)


def _places(population: int, size: int, groups: int, group: int) -> tuple[int, int, int]:
    checks.count("size", size)
    checks.count("groups", groups)
    checks.count("population", population, minimum=size * groups)
    return population, checks.count("group", group, maximum=population), size * groups


def _share(keep: float) -> float:
    return checks.rate("keep", keep)


# --- the bounds of definitions 5.3 and 5.4 --------------------------------------------------------


def lower_bound(pmf: LatticePmf, cut: float, alpha: float) -> float:
    """f^L of definition 5.4 at mu^2 = ``cut``, with the exact tail above it: never above the curve.

    >>> from verax.privacy.strong.random_mu import mixture_tradeoff
    >>> pmf = LatticePmf.of([1.0, 4.0], [0.9, 0.1])
    >>> lower_bound(pmf, 1.0, 0.05) < mixture_tradeoff(pmf, 0.05, -1) < upper_bound(pmf, 1.0, 0.05)
    True
    """
    mu, tail = up(math.sqrt(cut), RELATIVE_MU), pmf.above(cut)[1]
    there = down(gaussian_tradeoff(mu, alpha), NORMAL_TRADEOFF) - tail
    beyond = down(gaussian_tradeoff(mu, min(up(alpha + tail, ulps(4.0)), 1.0)), NORMAL_TRADEOFF)
    return max(there, beyond, 0.0)


def upper_bound(pmf: LatticePmf, cut: float, alpha: float) -> float:
    """f^U of definition 5.3 at mu^2 = ``cut``, with the exact tail: never below the curve."""
    mu, tail = down(math.sqrt(cut), RELATIVE_MU), pmf.below(cut)[1]
    if tail >= 1.0 or mu == 0.0:
        return 1.0 - alpha
    log_rest = math.log1p(-tail) / mu
    first = float(special.ndtr(log_rest - mu / 2.0))
    last = tail + (1.0 - tail) * float(special.ndtr(-mu / 2.0 - log_rest))
    if alpha <= first:
        value = tail + (1.0 - tail) * gaussian_tradeoff(mu, alpha)
    elif alpha < last:
        value = first + last - alpha
    else:
        value = gaussian_tradeoff(mu, max((alpha - tail) / (1.0 - tail) - ulps(4.0), 0.0))
    return min(up(value, NORMAL_TRADEOFF) + ulps(4.0), 1.0 - alpha)


def bounds(pmf: LatticePmf, alpha: float) -> tuple[float, float]:
    """The best of all f^L and of all f^U at ``alpha``."""
    return (
        max(lower_bound(pmf, cut, alpha) for cut in pmf.highs.tolist()),
        min(upper_bound(pmf, cut, alpha) for cut in pmf.lows.tolist()),
    )


def gaussian_tradeoff(mu: float, alpha: float) -> float:
    """G_mu(alpha) = Phi(Phi^{-1}(1 - alpha) - mu), not rounded to either side."""
    return float(special.ndtr(-special.ndtri(alpha) - mu))
