"""Rounds whose kind is drawn by a public coin: averages of curves, discretised and composed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.public_coin import PublicCoinPair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld import discretise
from verax.privacy.pld.composition import Composition
from verax.privacy.pld.discretise import DiscretePld, Spacing

COINS = {
    "room or not": PublicCoinPair(
        (0.97, 0.03), (MixturePair.subsampled(0.1, 0.8), MixturePair.subsampled(0.1, 1.6))
    ),
    "rare crowd": PublicCoinPair(
        (1.0 - 1e-9, 1e-9), (MixturePair.subsampled(0.01, 1.0), MixturePair.subsampled(0.01, 2.0))
    ),
    "gaussians": PublicCoinPair((0.5, 0.5), (MixturePair.gaussian(0.5), MixturePair.gaussian(1.5))),
    "mixed": PublicCoinPair(
        (0.2, 0.3, 0.5),
        (
            MixturePair.gaussian(1.0),
            MixturePair.subsampled(0.3, 0.5),
            MixturePair.subsampled(0.01, 3.0),
        ),
    ),
}
ALL = {**COINS, **{f"{name}, reversed": coin.reverse() for name, coin in COINS.items()}}


def curve(pmf: DiscretePld, epsilon: float) -> float:
    above = pmf.losses > epsilon
    return pmf.infinite + math.fsum(
        (np.exp(pmf.log_mass[above]) * -np.expm1(epsilon - pmf.losses[above])).tolist()
    )


def exact(coin: PublicCoinPair, epsilon: float) -> float:
    """The average of the pairs' curves."""
    return math.fsum(
        c * math.fsum(pair.delta(epsilon)) / 2.0
        for c, pair in zip(coin.chances, coin.pairs, strict=True)
    )


@pytest.mark.parametrize("coin", ALL.values(), ids=ALL)
def test_the_curve_is_the_average(coin):
    for epsilon in (-0.3, 0.0, 0.05, 0.5, 2.0, 9.0):
        low, high = coin.delta(epsilon)
        assert low <= exact(coin, epsilon) * (1.0 + 1e-12)
        assert exact(coin, epsilon) <= high * (1.0 + 1e-12)
        assert high - low <= 1e-11 * high + 1e-15


@pytest.mark.parametrize("coin", ALL.values(), ids=ALL)
def test_cells_hold_the_masses_of_all_pairs(coin):
    """The mass of P and Q at losses in an interval, by a sum along each pair's own line."""
    ends = np.array([-np.inf, -1.0, -0.05, 0.0, 0.02, 0.7, 3.0, np.inf])
    cells = coin.cells(ends)
    x = np.arange(-14.0, 18.0, 1e-3)
    p, q = np.zeros(len(ends) - 1), np.zeros(len(ends) - 1)
    for chance, pair in zip(coin.chances, coin.pairs, strict=True):
        dp = np.exp(pair.log_density(x)) * 1e-3 * chance
        values = pair.loss(x)
        place = np.searchsorted(ends, values, side="right") - 1
        p += np.bincount(place, weights=dp, minlength=len(p))
        q += np.bincount(place, weights=dp * np.exp(-values), minlength=len(q))
    assert np.exp(cells.log_p) == pytest.approx(p, rel=2e-3, abs=2e-3)
    assert np.where(
        np.isfinite(cells.log_p), np.exp(cells.log_p - cells.loss), 0.0
    ) == pytest.approx(q, rel=2e-3, abs=2e-3)
    assert np.exp(cells.log_p).sum() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("coin", ALL.values(), ids=ALL)
@pytest.mark.parametrize("step", [0.2, 0.01])
def test_the_curve_lies_between_the_two_laws(coin, step):
    spacing = Spacing(step, -6.0, 12.0)
    above = discretise.upper(coin, spacing)
    try:
        below = discretise.lower(coin, spacing)
    except FloatingPointError:
        below = None
    for epsilon in [*np.linspace(-2.0, 6.0, 41).tolist(), 0.0]:
        truth = exact(coin, epsilon)
        assert (
            curve(above, epsilon - above.shift) * math.exp(above.shift) * (1.0 + 1e-10) + 1e-15
            >= truth
        )
        if below is not None:
            assert (
                curve(below, epsilon + below.shift) * math.exp(-below.shift)
                <= truth * (1.0 + 1e-10) + 1e-15
            )


@given(st.floats(0.001, 0.999), st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.5]), st.booleans())
@settings(max_examples=12)
def test_rounds_compose_like_the_average_over_all_draws(chance, count, epsilon, forward):
    """Given how often the coin fell on either side the rounds are ordinary ones: a binomial average
    of brackets.
    """
    pairs = (MixturePair.subsampled(0.2, 0.7), MixturePair.subsampled(0.2, 1.4))
    coin = PublicCoinPair((1.0 - chance, chance), pairs)
    coin, pairs = (
        (coin, pairs) if forward else (coin.reverse(), (pairs[0].reverse(), pairs[1].reverse()))
    )
    low, high = Composition([(PricedRound(coin), count)]).delta(epsilon, 1e-3)
    least = most = 0.0
    for hits in range(count + 1):
        weight = math.comb(count, hits) * chance**hits * (1.0 - chance) ** (count - hits)
        a, b = Composition(
            [(PricedRound(pairs[0]), count - hits), (PricedRound(pairs[1]), hits)]
        ).delta(epsilon, 1e-3)
        least, most = least + weight * a, most + weight * b
    assert low <= most * (1.0 + 1e-9) + 1e-15
    assert least <= high * (1.0 + 1e-9) + 1e-15
    assert high - low <= 0.02 * high + 1e-9


def test_boundaries_are_losses_and_miss_by_what_the_worst_pair_misses():
    coin = COINS["room or not"]
    grid = np.linspace(-0.1, 3.0, 200)
    boundaries, miss = coin.boundaries_at(grid)
    assert boundaries.tolist() == grid.tolist() == coin.inverse(grid).tolist()
    assert miss == max(pair.boundaries_at(grid)[1] for pair in coin.pairs) > 0.0


def test_ends_of_the_range():
    coin = COINS["mixed"]
    assert coin.infimum == -math.inf
    assert coin.reverse().supremum == math.inf
    crowd = COINS["room or not"]
    assert crowd.infimum == pytest.approx(math.log(0.9))
    assert crowd.supremum == math.inf
    assert crowd.reverse().supremum == pytest.approx(-math.log(0.9))
    assert crowd.infinite == 0.0
    assert not crowd.is_gaussian
