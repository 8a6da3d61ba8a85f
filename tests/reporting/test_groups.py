"""The table and figures of groups."""

import math

import pytest

from verax import (
    BallsInBins,
    Batch,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    Shuffle,
    WithoutReplacement,
)
from verax.privacy.curves.black_box import BlackBox
from verax.privacy.guarantee import Bracket
from verax.reporting.groups import (
    Block,
    GroupCost,
    GroupSettings,
    clipping_name,
    clippings_figure,
    draw_block,
    groups_figure,
    price_clippings,
    price_groups,
)

RUN = Mechanism(Poisson(1.0, 4), 20.0)  # Gaussian, so that black boxes are quick
FEW = GroupSettings(samples=2000, insecure_seed=1)


def test_both_quantities_in_one_go():
    blocks = price_groups(RUN, [1, 8], delta=1e-2, epsilon=0.5, settings=FEW)
    assert [block.title for block in blocks] == [
        "epsilon at delta = 0.01",
        "delta at epsilon = 0.5",
    ]
    box = BlackBox(RUN.guarantee())
    for block in blocks:
        assert [row.group for row in block.rows] == [1, 8]
        for row in block.rows:
            own, drawn = RUN.guarantee(row.group), row.monte_carlo
            assert row.tight == (
                own.epsilon(1e-2) if block.quantity == "epsilon" else own.delta(0.5)
            )
            reads = box.epsilon if block.quantity == "epsilon" else box.delta
            several = (reads(row.group, block.at), reads(row.group, block.at, "any"))
            assert (row.black_box, row.f_dp) == (
                (row.tight.upper,) * 2 if row.group == 1 else several
            )
            assert drawn.lower <= row.tight.upper
            assert row.tight.lower <= drawn.upper
            assert row.tight.upper <= row.f_dp <= row.black_box


@pytest.mark.parametrize(
    "run",
    [
        Mechanism(Poisson(0.01, 1000), 1.0),
        Mechanism(Poisson(0.1, 100), 2.0, Batch()),
        Mechanism(BallsInBins(20), 1.0, relation="replace"),
        Mechanism(WithoutReplacement(10, 1000, 100), 1.0),
    ],
    ids=repr,
)
def test_the_tight_bound_is_at_most_either_black_box(run):
    settings = GroupSettings(rtol=0.01, samples=0)
    for block in price_groups(run, [1, 2, 4], delta=1e-5, epsilon=1.0, settings=settings):
        for row in block.rows:
            assert row.tight.upper <= row.f_dp <= row.black_box
            assert ("one record's curve" in row.tight.upper_by) <= (row.tight.upper == row.f_dp)


def test_one_record_costs_what_the_accountant_says_in_every_column():
    run = Mechanism(Poisson(0.01, 1000), 1.0)
    for block in price_groups(run, [1], delta=1e-5, epsilon=1.0, settings=GroupSettings(samples=0)):
        own = (
            run.guarantee().epsilon(1e-5)
            if block.quantity == "epsilon"
            else run.guarantee().delta(1.0)
        )
        (row,) = block.rows
        assert (row.tight, row.black_box, row.f_dp) == (own, own.upper, own.upper)


def test_runs_that_cannot_be_simulated_are_priced_all_the_same():
    (block,) = price_groups(Mechanism(Shuffle(10), 1.0), [1, 2], delta=1e-5)
    assert [row.monte_carlo for row in block.rows] == [None, None]
    assert block.rows[1].tight.upper < block.rows[1].f_dp < block.rows[1].black_box
    with pytest.raises(ValueError, match="the simulation is of Poisson batches"):
        price_groups(Mechanism(Shuffle(10), 1.0), [1], delta=1e-5, settings=FEW)


def test_orthogonal_groups():
    settings = GroupSettings("orthogonal", samples=0)
    (block,) = price_groups(RUN, [4], delta=1e-5, settings=settings)
    assert block.rows[0].tight == RUN.guarantee(4, "orthogonal").epsilon(1e-5)


def test_clippings_side_by_side():
    kinds = [Individual(), Batch(), Mixed(groups=2)]
    (epsilons, deltas) = price_clippings(RUN, kinds, [1, 3], delta=1e-5, epsilon=1.0)
    assert epsilons[:2] == ("epsilon", 1e-5)
    assert deltas[:2] == ("delta", 1.0)
    for i, kind in enumerate(kinds):
        own = Mechanism(RUN.sampler, 20.0, kind).guarantee(3)
        assert epsilons[2][3][i] == own.epsilon(1e-5)
        assert deltas[2][3][i] == own.delta(1.0)
    assert [clipping_name(kind) for kind in kinds] == [
        "individual",
        "batch",
        "mixed, 2 clip-groups",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "nothing to report: give delta"),
        ({"groups": [], "delta": 1e-5}, "groups must hold at least one size, got none"),
        ({"groups": [0], "delta": 1e-5}, "group must be a whole number of at least 1, got 0"),
        ({"delta": 2.0}, "delta must lie strictly between 0 and 1, got 2.0"),
        ({"epsilon": -1.0}, "epsilon must be at least 0 and finite, got -1.0"),
        (
            {"delta": 1e-5, "settings": GroupSettings(sampling="paper")},
            "sampling must be 'both' where epsilon is asked for",
        ),
    ],
)
def test_bad_input(words, message):
    with pytest.raises(ValueError, match=message):
        price_groups(RUN, **words)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    blocks = price_groups(RUN, [1, 2, 16], delta=1e-2, epsilon=0.5, settings=FEW)
    infinite = price_groups(
        Mechanism(Poisson(1.0, 4), 0.1), [1, 2], delta=1e-5, settings=GroupSettings(samples=100)
    )
    assert math.isinf(infinite[0].rows[-1].black_box)
    groups_figure([*blocks, *infinite], "a title", tmp_path / f"a.{suffix}")
    tables = price_clippings(RUN, [Individual(), Batch()], [1, 8], delta=1e-5, epsilon=1.0)
    clippings_figure(tables, ["individual", "batch"], "a title", tmp_path / f"b.{suffix}")
    for path in tmp_path.iterdir():
        assert path.stat().st_size > 5000


def test_nothing_is_left_out_of_a_figure():
    """What lies beyond the axis, above or below it, is marked at its edge with its value."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    bracket, wide = Bracket(1.0, 2.0), Bracket(0.0, math.inf)
    rows = [
        GroupCost(1, bracket, 1e9, math.inf, wide),
        GroupCost(2, Bracket(0.0, 0.0), 3.0, 2.5, bracket),
        GroupCost(3, bracket, 4.0, 3.0, None),
    ]
    axes = figure.subplots()
    draw_block(axes, Block("epsilon", 1e-5, tuple(rows)))
    low, high = axes.get_ylim()
    drawn = {
        (x, y)
        for line in axes.get_lines()
        for x, y in zip(*line.get_data(), strict=True)
        if low <= y <= high
    }
    assert {(2, 3.0), (2, 2.5), (3, 4.0), (3, 3.0), (1, 2.0), (3, 2.0)} <= drawn
    marks = {(text.xy[0], text.get_text()) for text in axes.texts}
    assert marks == {(1, "1.00e+9"), (1, "inf"), (2, "0")}
    edge = [line.get_marker() for line in axes.get_lines() if line.get_marker() in ("^", "v")]
    # 1e9, inf, an interval's end; 0, two intervals' ends
    assert (edge.count("^"), edge.count("v")) == (3, 3)


def test_a_figure_of_one_group_of_which_nothing_is_finite(tmp_path):
    pytest.importorskip("matplotlib")
    blocks = price_groups(Mechanism(Poisson(0.5, 1), 0.0), [3], delta=1e-5)
    assert blocks[0].rows[0].tight.upper == math.inf
    groups_figure(blocks, "", tmp_path / "a.png")


@pytest.mark.parametrize(
    "run",
    [
        Mechanism(Poisson(0.05, 30), 2.0, Mixed(groups=2), "replace"),
        Mechanism(BallsInBins(20), 1.0, relation="replace"),
        Mechanism(BallsInBins(20), 1.0),
        Mechanism(Shuffle(20), 2.0, relation="zero-out"),
        Mechanism(Poisson(0.05, 30), 2.0),
    ],
    ids=str,
)
def test_no_proved_bound_is_printed_above_another_that_it_should_not_exceed(run):
    for block in price_groups(
        run, [1, 2, 4], delta=1e-5, epsilon=1.5, settings=GroupSettings(samples=0)
    ):
        for row in block.rows:
            assert row.tight.lower <= row.tight.upper <= row.f_dp <= row.black_box
