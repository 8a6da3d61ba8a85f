"""Exact pmfs of how many clip-groups a group of records touches in each round.

Every pmf here is a product of ratios or a recursion whose terms are all positive, so its relative
accuracy survives far into the tails; alternating sums such as the inclusion-exclusion form of the
occupancy pmf do not have that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verax.privacy.numerics import Array
from verax.privacy.numerics.distributions import binomial_pmf, pmf_error, poisson_pmf
from verax.privacy.numerics.lattice import CELLS, LatticePmf, significant_slice
from verax.privacy.numerics.rounding import OPS_8M, ulps, up

Counts = Callable[[], Iterator[Array]]
"""Yields the pmf of the number of touched clip-groups of a batch that holds 0, 1, 2, ... of the
records.
"""

_ALL = 2**62  # cells of a pmf that must stay exact
# relative error of one step of a recursion below
_STEP = ulps(8.0)


def occupied_bins_pmfs(bins: int, size: int | None = None) -> Iterator[Array]:
    """The pmfs of the number of bins hit by 0, 1, 2, ... balls.

    There are ``bins`` bins of ``size`` places each.

    Balls take distinct places; without ``size`` each picks its bin uniformly and independently. The
    next ball hits a new bin with probability (bins - l) size / (bins size - balls). This is the
    exact pmf of batches hit by g shuffled records, for which section F.3 of the paper prints
    another (docs/errata.md).

    >>> next(itertools.islice(occupied_bins_pmfs(10, 8), 4, None)).round(3).tolist()
    [0.0, 0.0, 0.048, 0.408, 0.544]
    """
    pmf = np.ones(1)
    for balls in itertools.count() if size is None else range(bins * size + 1):
        yield pmf
        hit = np.arange(float(len(pmf)))
        if size is None:
            grow, stay = (bins - hit) / bins, hit / bins
        else:
            left = max(bins * size - balls, 1)
            grow, stay = (bins - hit) * size / left, np.maximum(hit * size - balls, 0.0) / left
        pmf = (np.append(pmf * stay, 0.0) + np.append(0.0, pmf * grow))[: bins + 1]


def one_group_per_record() -> Iterator[Array]:
    """Individual clipping: every record is a clip-group of its own."""
    for hits in itertools.count():
        yield np.append(np.zeros(hits), 1.0)


def thin_pmf(pmf: Array, keep: float) -> Array:
    """The pmf of how many are left if each is kept with probability ``keep``.

    (Appendix D of "shuffling and batch clipping".)

    >>> thin_pmf(np.array([0.0, 0.0, 1.0]), 0.5).tolist()
    [0.25, 0.5, 0.25]
    """
    if keep == 1.0:
        return pmf
    left = np.zeros(len(pmf))
    for count in np.flatnonzero(pmf).tolist():
        left[: count + 1] += pmf[count] * binomial_pmf(count, keep)
    return left


def touched_groups_pmf(hits: Array, counts: Iterator[Array]) -> tuple[Array, float]:
    """The pmf of touched clip-groups of a batch, and the probability left out.

    ``hits`` is the pmf of the number of records in it.
    """
    last = significant_slice(hits)[1]
    total = np.zeros(1)
    for chance, pmf in zip(hits[:last].tolist(), counts, strict=False):
        if len(pmf) > len(total):
            total = np.append(total, np.zeros(len(pmf) - len(total)))
        total[: len(pmf)] += chance * pmf
    return total, float(hits[last:].sum())


def independent_rounds_pmf(
    hits: Array,
    counts: Iterator[Array] | None,
    steps: int,
    power: int = 2,
    cells: int = CELLS,
    keep: float = 1.0,
) -> LatticePmf:
    """The pmf of c^2 of ``steps`` rounds with independent batches.

    Args:
        hits: the pmf of the group's records in one batch, as computed above.
        counts: touched clip-groups, as in :data:`Counts`; None if every record is one of its own.
        steps: number of rounds.
        power: 2; 1 if the records' gradients are orthogonal; 0 if the whole batch is one
            clip-group.
        cells: how finely the pmf is kept.
        keep: probability that a clip-group is kept.
    """
    pmf, left_out = (hits, 0.0) if counts is None else touched_groups_pmf(hits, counts)
    error = pmf_error(hits) + _STEP * (3.0 * len(pmf) + len(hits) + 2.0)
    if power == 0:
        pmf = np.array([pmf[0], pmf[1:].sum()])
    once = LatticePmf.of(
        np.arange(float(len(pmf))) ** max(power, 1), thin_pmf(pmf, keep), error, cells
    )
    return replace(once, lost=once.lost + left_out).times(steps, cells)


# --- one epoch of shuffled batches ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RecordsAndCost:
    """The joint pmf of the number of records in some batches and of a sum of costs.

    ``rows`` has one row for every number of records.

    A row is its first cost and the probabilities of this and the following ones. ``lost`` and
    ``error`` as in LatticePmf.
    """

    rows: dict[int, tuple[int, Array]]
    lost: float
    error: float

    def product(self, other: RecordsAndCost, most: int, least: int = 0) -> RecordsAndCost:
        """The joint pmf for both sets of batches together, for ``least`` to ``most`` records."""
        found: dict[int, list[tuple[int, Array]]] = {}
        terms = 0
        same = self is other
        for i, (first, a) in self.rows.items():
            for j, (second, b) in other.rows.items():
                if least <= i + j <= most and not (same and j < i):
                    both = np.convolve(a, b)
                    found.setdefault(i + j, []).append(
                        (first + second, 2.0 * both if same and i < j else both)
                    )
                    terms = max(terms, min(len(a), len(b)))
        error = self.error + other.error + self.error * other.error + ulps(terms + most + 4.0)
        return _add_rows(found, self.lost + other.lost, error)

    def power(self, count: int, most: int) -> RecordsAndCost:
        """The joint pmf of ``count`` such sets of batches."""
        total: RecordsAndCost | None = None
        double = self
        while count:
            if count % 2:
                total = double if total is None else total.product(double, most)
            count //= 2
            if count:
                double = double.product(double, most)
        return total if total is not None else RecordsAndCost({0: (0, np.ones(1))}, 0.0, 0.0)


def _add_rows(
    found: dict[int, list[tuple[int, Array]]], lost: float, error: float
) -> RecordsAndCost:
    """Add up what was found for each number of records and drop what is negligible."""
    rows: dict[int, tuple[int, Array]] = {}
    for records, parts in found.items():
        start = min(first for first, _ in parts)
        row = np.zeros(max(first + len(part) for first, part in parts) - start)
        for first, part in parts:
            row[first - start : first - start + len(part)] += part
        first, last, cut = significant_slice(row)
        lost += cut
        rows[records] = (start + first, row[first:last])
    return RecordsAndCost(rows, lost, error)


def one_batch_layer(
    hits: Array, counts: Iterator[Array], keep: float, repeats: int
) -> RecordsAndCost:
    """One batch: its records, and the cost of the clip-groups they touch.

    The cost is the squared number of touched clip-groups, added up over ``repeats`` rounds.
    """
    found: dict[int, list[tuple[int, Array]]] = {}
    error = pmf_error(hits)
    last = significant_slice(hits)[1]
    lost = float(hits[last:].sum())
    for records, (chance, pmf) in enumerate(zip(hits[:last].tolist(), counts, strict=False)):
        if chance > 0.0:
            once = LatticePmf.of(
                np.arange(float(len(pmf))) ** 2,
                thin_pmf(pmf, keep),
                _STEP * (3.0 * records + 2.0),
                _ALL,
            )
            cost = once.times(repeats, _ALL)
            lost, error = (
                lost + chance * cost.lost,
                max(error, pmf_error(hits) + cost.error + ulps(1.0)),
            )
            found[records] = [(round(cost.start), chance * cost.weights)]
    return _add_rows(found, lost, error)


def occupied_batches(batches: int, size: int | None, hits: Array) -> RecordsAndCost:
    """``batches`` batches at once if a touched batch costs 1, as under batch clipping."""
    found: dict[int, list[tuple[int, Array]]] = {}
    for records, (chance, pmf) in enumerate(
        zip(hits.tolist(), occupied_bins_pmfs(batches, size), strict=False)
    ):
        if chance > 0.0:
            found[records] = [(0, chance * pmf)]
    return _add_rows(found, 0.0, pmf_error(hits) + _STEP * len(hits))


def epoch_pmf(
    group: int,
    sizes: Sequence[tuple[int, int | None]],
    counts: Counts | None,
    keep: float = 1.0,
    repeats: int = 1,
) -> LatticePmf:
    """The pmf of c^2 of one epoch, every record in one batch, uniform among all places.

    Records per batch are independent binomials given that they add up to ``group``: the pmf is read
    off the product of the batches' joint pmfs with that number of records.

    Args:
        group: how many records.
        sizes: (number of batches, records in each); None for batches that every record picks
            independently.
        counts: touched clip-groups, see :data:`Counts`; None if a touched batch counts 1, as under
            batch clipping.
        keep: probability that a clip-group is kept.
        repeats: how many times the same batches are used.

    >>> pmf = epoch_pmf(2, [(5, 2)], None)  # two records in five batches of two
    >>> pmf.lows.tolist(), pmf.weights.round(12).tolist()
    ([1.0, 2.0], [0.111111111111, 0.888888888889])
    """
    places = sum(batches * (size or 1) for batches, size in sizes)
    total = RecordsAndCost({0: (0, np.ones(1))}, 0.0, 0.0)
    for part, (batches, size) in enumerate(sizes, start=1):
        if counts is None and keep == 1.0:
            if size is None:
                hits = poisson_pmf(float(group), group)
            else:
                hits = binomial_pmf(batches * size, group / places, group)
            layers = occupied_batches(batches, size, hits)
        else:
            rate = group / places
            hits = poisson_pmf(rate, group) if size is None else binomial_pmf(size, rate, group)
            each = occupied_bins_pmfs(1, size) if counts is None else counts()
            layers = one_batch_layer(hits, each, keep, repeats).power(batches, group)
        total = total.product(layers, group, least=group if part == len(sizes) else 0)
    start, weights = total.rows[group]
    mass = float(weights.sum())
    lost = up(total.lost / mass, OPS_8M)
    error = 2.0 * total.error + ulps(len(weights) + 4.0) + lost
    return LatticePmf(
        float(start), 1.0, weights / mass, 0.0, lost, float(group) ** 2 * repeats, error
    )
