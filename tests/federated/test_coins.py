"""Coins: exact thresholds, the same for one client as for all, and the stated law."""

import pickle
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from verax.federated.coins import Coins
from verax.randomness import Source


def coins_of(seed=1):
    return Coins(Source.insecure(seed))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.floats(0.01, 1.0),
    st.integers(0, 2**40),
)
def test_one_client_alone_finds_its_own_coins(sizes, rate, number):
    coins, sizes = coins_of(), np.array(sizes)
    clients = np.arange(len(sizes))
    all_clients = coins.clients(rate, number, clients)
    all_records = np.split(coins.records(rate, number, clients, sizes), np.cumsum(sizes)[:-1])
    picks = coins.picks(7, number, clients)
    for i in clients:
        me = np.array([i])
        assert coins.clients(rate, number, me)[0] == all_clients[i]
        assert np.array_equal(coins.records(rate, number, me, sizes[i : i + 1]), all_records[i])
        assert coins.picks(7, number, me)[0] == picks[i]


@given(st.floats(2.0**-70, 1.0), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_coin_is_an_exact_comparison_of_128_bits(rate, high, low):
    bits = np.array([[high, low]], dtype=np.uint64)
    assert bool(Coins._heads(rate, bits)[0]) == (
        Fraction(high * 2**64 + low, 2**128) < Fraction(rate)
    )


def test_rates_of_their_own_are_the_same_coins_as_one_by_one():
    coins, clients, sizes = coins_of(), np.arange(5), np.array([4, 1, 30, 7, 2])
    rates = np.array([1.0, 2.0**-70, 0.3, 0.7, 0.5])
    together, records = coins.clients(rates, 9, clients), coins.records(rates, 9, clients, sizes)
    for i, rate in enumerate(rates.tolist()):
        me, start = np.array([i]), int(sizes[:i].sum())
        assert coins.clients(rate, 9, me)[0] == together[i]
        assert np.array_equal(
            coins.records(rate, 9, me, sizes[i : i + 1]), records[start : start + int(sizes[i])]
        )
    assert together[0]
    assert records[:4].all()
    assert not records[4]


def test_the_threshold_itself_is_tails_and_the_number_below_it_heads():
    rate = 2.0**-70 * 1.5
    edge = int(Fraction(rate) * 2**128)
    for value, heads in ((edge, False), (edge - 1, True)):
        bits = np.array([divmod(value, 2**64)], dtype=np.uint64)
        assert bool(Coins._heads(rate, bits)[0]) is heads


def test_clients_records_and_rounds_are_independent_coins_of_their_rates():
    coins, clients = coins_of(), np.arange(400)
    taken = np.array([coins.clients(0.3, number, clients) for number in range(250)])
    assert stats.binomtest(int(taken.sum()), taken.size, 0.3).pvalue > 1e-4
    # counts per client and per round are Binomial: their variance tells dependence
    for axis in (0, 1):
        counts = taken.sum(axis=axis)
        expected = taken.shape[axis] * 0.3 * 0.7
        assert 0.75 < counts.var() / expected < 1.3
    used = coins.records(0.3, 0, clients, np.full(400, 250))
    assert stats.binomtest(int(used.sum()), used.size, 0.3).pvalue > 1e-4
    assert abs(np.corrcoef(used[:250], taken[:, 0])[0, 1]) < 0.3


def test_picks_are_uniform():
    picks = coins_of().picks(6, 3, np.arange(60_000))
    assert stats.chisquare(np.bincount(picks, minlength=6)).pvalue > 1e-4
    assert set(coins_of().picks(1, 0, np.arange(50))) == {0}


def test_other_keys_give_other_coins_and_the_key_is_not_shown():
    clients = np.arange(256)
    assert not np.array_equal(
        coins_of(1).clients(0.5, 0, clients), coins_of(2).clients(0.5, 0, clients)
    )
    assert not np.array_equal(
        coins_of(1).clients(0.5, 0, clients), coins_of(1).clients(0.5, 1, clients)
    )
    assert repr(coins_of()) == "<Coins>"
    with pytest.raises(TypeError, match="must not be copied or pickled"):
        pickle.dumps(coins_of())
