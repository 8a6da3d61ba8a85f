"""Black boxes: exact for the Gaussian mechanism, never below what is proved, honest where digits
run out.
"""

import math

import numpy as np
import pytest

from verax import (
    BallsInBins,
    Batch,
    Mechanism,
    Mixed,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.privacy.curves.black_box import DEEPEST, MOST_STEPS, BlackBox, BlackBoxCurve
from verax.privacy.curves.gaussian import black_box_group, gaussian_delta, gaussian_epsilon
from verax.privacy.curves.triangle import TriangleInequality
from verax.privacy.pld.composition import UPPER, Composition


@pytest.fixture(scope="module")
def gaussian():
    """Rate 1 and 25 steps of noise 20: a Gaussian mechanism with mu = 1/4."""
    return BlackBox(Mechanism(Poisson(1.0, 25), 20.0).guarantee())


@pytest.fixture(scope="module")
def figure_1():
    return BlackBox(Mechanism(Poisson(0.01, 10), 1.0).guarantee())


@pytest.mark.parametrize("group", [1, 2, 3, 8, 30, 64])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_with_the_best_shares_a_gaussian_stays_gaussian(gaussian, group, delta):
    """1 - (1 - G_mu)^k = G_(k mu): Dong, Roth and Su, theorem 2.14."""
    exact = gaussian_epsilon(0.25 * group, delta)
    found = gaussian.epsilon(group, delta, "any")
    assert exact * (1 - 1e-9) <= found <= exact * 1.01 + 1e-3
    assert gaussian.delta(group, exact, "any") == pytest.approx(delta, rel=0.25)
    assert gaussian.delta(group, exact, "any") >= gaussian_delta(0.25 * group, exact, -1)


@pytest.mark.parametrize("group", [2, 8, 30])
def test_equal_shares_are_theorem_4_at_its_best(gaussian, group):
    shares = np.linspace(0.0, 6.0, 20_001)
    best = min(e for e in shares if black_box_group(e, gaussian_delta(0.25, e), group)[1] <= 1e-5)
    assert gaussian.epsilon(group, 1e-5) == pytest.approx(group * best, rel=1e-3)
    each = 0.7
    implied = black_box_group(each, gaussian_delta(0.25, each), group)[1]
    assert gaussian.delta(group, group * each) == pytest.approx(implied, rel=2e-3)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_tight_is_below_the_best_shares_and_those_below_equal_ones(figure_1, group):
    tight = Mechanism(Poisson(0.01, 10), 1.0).guarantee(group)
    any_, equal = figure_1.epsilon(group, 1e-3, "any"), figure_1.epsilon(group, 1e-3)
    assert tight.epsilon(1e-3).upper < any_ <= equal
    assert tight.delta(1.0).upper < figure_1.delta(group, 1.0, "any") <= figure_1.delta(group, 1.0)


def test_it_is_at_least_as_good_as_the_curve_of_few_lines(figure_1):
    curve = Mechanism(Poisson(0.01, 10), 1.0).guarantee().tradeoff()
    for group in (2, 4):
        assert figure_1.epsilon(group, 1e-3, "any") <= curve.group(group).epsilon(1e-3) * 1.01


def test_one_record_is_itself(figure_1):
    own = Mechanism(Poisson(0.01, 10), 1.0).guarantee()
    for shares in ("equal", "any"):
        assert figure_1.epsilon(1, 1e-3, shares) == own.epsilon(1e-3).upper
        assert figure_1.delta(1, 0.1, shares) == own.delta(0.1).upper


def test_where_digits_run_out_it_says_infinite_rather_than_too_little():
    """A Gaussian mechanism with mu = 3: one record's delta at 1/50 of the true epsilon is far below
    doubles.
    """
    box, truth = (
        BlackBox(Mechanism(Poisson(1.0, 9), 1.0).guarantee()),
        gaussian_epsilon(150.0, 1e-5, -1),
    )
    assert truth > 11_000.0
    assert box.epsilon(50, 1e-5) == math.inf
    assert box.epsilon(50, 1e-5, "any") >= truth
    assert box.delta(50, 10_000.0) == box.delta(50, 10_000.0, "any") == 1.0


def test_without_noise_nothing_is_granted():
    box = BlackBox(Mechanism(Poisson(0.5, 2), 0.0).guarantee())
    assert box.epsilon(3, 1e-5) == box.epsilon(3, 1e-5, "any") == math.inf
    assert box.delta(1, 5.0) == pytest.approx(0.75)
    assert box.delta(3, 5.0, "any") == 1.0
    assert 0.0 < DEEPEST < 1e-100


def test_a_delta_that_the_group_cannot_reach_costs_nothing():
    box = BlackBox(Mechanism(Poisson(1e-9, 1), 1.0).guarantee())
    assert box.epsilon(4, 1e-5) == box.epsilon(4, 1e-5, "any") == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda box: box.epsilon(0, 1e-5), "group must be a whole number of at least 1, got 0"),
        (lambda box: box.epsilon(2, 0.0), "delta must lie strictly between 0 and 1"),
        (lambda box: box.delta(2, -1.0), "epsilon must be at least 0"),
        (lambda box: box.delta(2, 1.0, "most"), "shares must be one of 'equal', 'any', got 'most'"),
        (
            lambda _: BlackBox(Mechanism(Poisson(0.1, 1), 1.0).guarantee(2)),
            "guarantee must be of one record, got a group",
        ),
    ],
)
def test_bad_input(gaussian, call, message):
    with pytest.raises(ValueError, match=message):
        call(gaussian)


def test_a_delta_below_the_range_of_doubles_is_not_taken_for_none():
    """A hundred records, each step with a tiny delta and a huge factor; nothing is truncated, so it
    is Poisson.
    """
    truth = Mechanism(Poisson(0.9, 10), 1.0).guarantee(100).epsilon(1e-5)
    truncated = Mechanism(TruncatedPoisson(0.9, 10, 200, 200), 1.0)
    assert truncated.guarantee(100).epsilon(1e-5).upper >= truth.lower
    one = truncated.guarantee()
    assert TriangleInequality(((one.uppers[0], 100),)).epsilon(1e-5, 1e-3)[1] >= truth.lower


def test_groups_without_an_analysis_of_their_own_are_a_black_box():
    mechanism = Mechanism(TruncatedPoisson(0.02, 40, 50, 1000), 1.0)
    four = mechanism.guarantee(4).epsilon(1e-5)
    assert four.upper <= BlackBox(mechanism.guarantee()).epsilon(4, 1e-5, "any") * 1.001
    assert "black box" in four.upper_by
    assert "best shares" in four.upper_by


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_best_shares_beat_the_chain_and_agree_with_powers_of_the_trade_off_curve(relation):
    """Eight records, or four removed and four added, against the trade-off curve composed as a
    function.
    """
    sampler = RandomAllocation(2, 300)
    one = Mechanism(sampler, 1.0).guarantee()
    group = 8 if relation == "add-remove" else 4
    priced = Mechanism(sampler, 1.0, relation=relation).guarantee(group)
    composed = one.tradeoff().group(8)
    equal = TriangleInequality(((one.uppers[0], 8),)).epsilon(1e-5, 1e-3)[1]
    assert priced.epsilon(1e-5).upper < 0.6 * equal
    assert priced.epsilon(1e-5).upper <= composed.epsilon(1e-5) * 1.001  # which has fewer lines
    assert priced.delta(5.0).upper == pytest.approx(composed.delta(5.0), rel=0.05)


def test_only_upper_laws_are_composed_and_few_of_them(monkeypatch):
    sides = []
    compose = Composition._composed

    def noted(self, side, plan, width):
        sides.append(side)
        return compose(self, side, plan, width)

    monkeypatch.setattr(Composition, "_composed", noted)
    box = BlackBox(Mechanism(BallsInBins(100, epochs=5), 1.0).guarantee())
    assert 4.0 < box.epsilon(8, 1e-5, "any") < 20.0
    assert set(sides) == {UPPER}
    assert len(sides) < 50


@pytest.mark.parametrize("sampler", [Poisson(0.01, 10), BallsInBins(100, epochs=5)], ids=str)
def test_an_answer_depends_on_the_question_alone(sampler):
    def guarantee():
        return Mechanism(sampler, 1.0).guarantee().with_shared_plds()

    questions = [
        lambda box: box.epsilon(4, 1e-3, "any"),
        lambda box: box.delta(3, 1.0, "any"),
        lambda box: box.epsilon(3, 1e-5),
        lambda box: box.delta(2, 0.7),
    ]
    one = guarantee()
    asked = BlackBox(one)
    asked.epsilon(64, 1e-3, "any")
    asked.delta(8, 2.0, "any")
    one.epsilon(1e-7)
    one.delta(0.3)
    alone = [ask(BlackBox(guarantee())) for ask in questions]
    assert [ask(asked) for ask in questions] == alone
    assert [ask(asked) for ask in reversed(questions)] == alone[::-1]


@pytest.mark.parametrize(("group", "known"), [(8, 1.0988e-3), (64, 0.66439)])
def test_delta_at_the_best_shares_also_where_little_is_left(figure_1, group, known):
    """Figures of docs/group-privacy.md, and an epsilon so large that every walk is flat enough."""
    assert figure_1.delta(group, 2.0, "any") == pytest.approx(known, rel=0.01)
    assert figure_1.delta(group, 2.0) > 1.2 * known
    assert figure_1.delta(2, 60.0, "any") < 1e-100


def test_so_many_steps_that_shares_are_not_searched_for(figure_1):
    assert figure_1.epsilon(MOST_STEPS + 1, 1e-3, "any") == figure_1.epsilon(MOST_STEPS + 1, 1e-3)
    assert figure_1.delta(MOST_STEPS + 1, 1.0, "any") == 1.0


def test_as_a_curve_it_says_the_same_and_knows_nothing_from_below(figure_1):
    curve = BlackBoxCurve(figure_1, 4)
    assert curve.epsilon(1e-3, 1e-3) == (0.0, figure_1.epsilon(4, 1e-3, "any"))
    assert curve.delta(0.5, 1e-3) == (0.0, figure_1.delta(4, 0.5, "any"))
    assert curve.estimate(1e-3) == 4 * max(one.estimate(1e-3) for one in figure_1.one.uppers)


RUNS = [
    Mechanism(Poisson(0.05, 30), 2.0, Mixed(groups=2), "replace"),
    Mechanism(Poisson(0.05, 30), 2.0, Batch(), "replace"),
    Mechanism(TruncatedPoisson(0.05, 30, 20, 200), 2.0),
    Mechanism(Shuffle(20, epochs=2), 2.0, Mixed(groups=2), "zero-out"),
    Mechanism(WithoutReplacement(10, 200, 30), 2.0, relation="replace"),
    Mechanism(RandomParticipation(0.3, 0.5, 9, 20), 2.0),
    Mechanism(BallsInBins(20), 2.0),
    Mechanism(BallsInBins(20), 2.0, relation="replace"),
    Mechanism(BallsInBins(20), 2.0, Mixed(groups=2), "replace"),
    Mechanism(RandomAllocation(2, 20), 4.0),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_group_costs_at_most_what_follows_from_one_record(run):
    """Up to the last digits: a group's own black box reads tables with deeper tails."""
    box, group = BlackBox(run.guarantee()), run.guarantee(2)
    assert group.epsilon(1e-5).upper <= box.epsilon(2, 1e-5, "any") * (1.0 + 1e-5)
    assert group.delta(1.5).upper <= box.delta(2, 1.5, "any") * (1.0 + 1e-5)


def test_the_theorem_of_the_smallest_bound_is_named():
    run = Mechanism(BallsInBins(20), 1.0, relation="replace")
    replaced = run.guarantee(4).epsilon(1e-5)
    # 8 unequal steps: 21.3
    assert replaced.upper == BlackBox(run.guarantee()).epsilon(4, 1e-5, "any") < 18.2
    assert replaced.upper_by.startswith("black box: 4 steps by the triangle inequality")
    shuffled = Mechanism(Shuffle(100, epochs=1), 1.0, relation="zero-out").guarantee(8)
    assert shuffled.upper_by.startswith("the smallest of: ")
    assert shuffled.epsilon(1e-5).upper_by.startswith("adversary A1 sees the sampling")
    assert shuffled.epsilon(1e-5).upper_by in shuffled.upper_by
