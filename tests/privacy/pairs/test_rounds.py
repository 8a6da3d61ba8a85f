"""Attacks through several phases come from one pair of data sets."""

from verax import Batch, Mechanism, Poisson, RandomParticipation
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound, join_attacks, join_phases

ONE, OTHER = (
    PricedRound(MixturePair.subsampled(0.1, 1.0)),
    PricedRound(MixturePair.subsampled(0.2, 1.0)),
)


def test_what_is_known_in_one_direction_only_is_not_used_in_the_other():
    both = {"remove": [(ONE, 1)], "add": [(ONE.reverse(), 1)]}
    assert join_phases([both, {"remove, alone": [(OTHER, 1)]}]) == [[(ONE, 1), (OTHER, 1)]]
    assert join_phases([{"remove, alone": [(OTHER, 1)]}, {"add": [(ONE.reverse(), 1)]}]) == []


def test_an_attack_looks_away_where_nothing_is_known_in_its_direction():
    both = {"remove": [(ONE, 1)], "add": [(ONE.reverse(), 1)]}
    one_way = {"remove, alone": [(OTHER, 1)]}
    assert join_attacks([both, one_way]) == [[(ONE, 1), (OTHER, 1)], [(ONE.reverse(), 1)]]


def test_rounds_that_are_the_same_in_both_directions_go_with_either():
    both = {"remove": [(ONE, 1)], "add": [(ONE.reverse(), 1)]}
    gauss = PricedRound(MixturePair.gaussian(1.0))
    assert join_phases([both, {"any": [(gauss, 2)]}]) == [
        [(ONE, 1), (gauss, 2)],
        [(ONE.reverse(), 1), (gauss, 2)],
    ]


def test_a_record_added_in_one_phase_is_not_removed_in_the_next():
    """Poisson's two directions and random participation's only attack: each curve has one direction."""
    first = Mechanism(Poisson(0.5, 4), 1.0, Batch())
    second = Mechanism(RandomParticipation(0.5, 0.5, 3, 4), 1.0, Batch())
    found = (first + second).guarantee()
    directions = [{rnd.pair.up.trivial for rnd, _ in curve.rounds} for curve in found.lowers]
    assert directions == [{False}, {True}]
    assert [len(curve.rounds) for curve in found.lowers] == [2, 1]
    alone = [phase.guarantee().epsilon(1e-3).lower for phase in (first, second)]
    assert max(alone) * 0.99 <= found.epsilon(1e-3).lower <= found.epsilon(1e-3).upper
