import math
from dataclasses import dataclass

import pytest

from verax import Batch, Deterministic, Mechanism, Poisson, Shuffle, TruncatedPoisson
from verax.checks import NoGuarantee
from verax.privacy import analysis
from verax.privacy.guarantee import Bracket
from verax.reporting import comparison as module
from verax.reporting.comparison import (
    SamplerCost,
    against_poisson,
    compare,
    comparison_figure,
    samplers,
)
from verax.samplers import registry


def test_every_sampler_draws_batches_of_the_same_expected_size():
    for epochs in (1, 3):
        listed = [sampler for _, sampler in samplers(20, epochs, records=400)]
        assert [sampler.expected_batch(400) for sampler in listed] == [20.0] * len(listed)
        assert {len(sampler) for sampler in listed} == {20 * epochs}
        assert len({type(sampler) for sampler in listed}) == 7 + (epochs > 1)


def test_names_are_distinct_and_short():
    names = [name for name, _ in samplers(10_000, 10)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 20


def test_samplers_of_other_packages_are_listed():
    @dataclass(frozen=True)
    class Relabelled(Poisson):
        def title(self) -> str:
            return "another"

    registry.register("relabelled-poisson", "Poisson by another name")(Relabelled)
    try:
        listed = dict(samplers(20, 3, records=400))
        assert listed["another"] == Relabelled(0.05, 60)
    finally:
        registry.unregister("relabelled-poisson")


def test_truncation_is_rare_and_the_cut_no_larger_than_needed():
    stats = pytest.importorskip("scipy.stats")
    cut = next(s for _, s in samplers(1000, 2, records=100_000) if isinstance(s, TruncatedPoisson))
    assert stats.binom.sf(cut.max_batch, 100_000, 1e-3) <= 1e-20 / 2000
    assert stats.binom.sf(cut.max_batch - 1, 100_000, 1e-3) > 1e-20 / 2000


@pytest.mark.parametrize("count", [1, 2, 7])
def test_few_batches_and_one_record_each(count):
    assert len(list(samplers(count, records=count))) == 7


def test_brackets_are_those_of_the_mechanisms():
    rows = {type(row.sampler): row for row in compare(0.7, 1000, delta=1e-5)}
    for kind, sampler in (
        (Poisson, Poisson(1e-3, 1000)),
        (Shuffle, Shuffle(1000)),
        (Deterministic, Deterministic(1000)),
    ):
        truth = Mechanism(sampler, 0.7, relation="zero-out").guarantee().epsilon(1e-5)
        assert rows[kind].bracket == truth
        assert rows[kind].relation == "zero-out"


def test_delta_at_an_epsilon_and_other_clipping():
    rows = {row.name: row.bracket for row in compare(1.0, 100, epsilon=1.0, clipping=Batch())}
    assert rows["Poisson"] == Mechanism(
        Poisson(0.01, 100), 1.0, Batch(), "zero-out"
    ).guarantee().delta(1.0)
    assert rows["fixed"].lower > rows["Poisson"].upper


def test_epochs_bring_the_persistent_order_and_the_exact_allocation():
    rows = {row.name: row for row in compare(0.7, 100, 4, delta=1e-5)}
    assert rows["shuffled once"].bracket.upper == pytest.approx(rows["fixed"].bracket.upper)
    assert rows["exactly 4 rounds"].sampler.times == 4
    assert "exactly 1 rounds" not in [row.name for row in compare(0.7, 100, delta=1e-5)]


def test_a_sampler_without_a_guarantee_is_a_row_that_says_why(monkeypatch):
    def refuse(mechanism, group):
        raise NoGuarantee("nobody knows")

    monkeypatch.setattr(analysis, "analysis_of", refuse)
    rows = compare(0.7, 100, delta=1e-5)
    assert {row.why for row in rows} == {"nobody knows"}
    assert all(row.bracket is None for row in rows)
    assert against_poisson(rows[0], rows) is None


def test_an_asked_for_relation_is_the_only_one_tried():
    rows = {row.name: row for row in compare(0.7, 100, delta=1e-5, relation="add-remove")}
    assert rows["fixed"].bracket is None
    assert "zero-out" in rows["fixed"].why
    assert rows["Poisson"].bracket is not None


def test_a_relation_without_analysis_gives_way_to_the_samplers_own(monkeypatch):
    real = analysis.analysis_of

    def choosy(mechanism, group):
        if isinstance(mechanism.sampler, Poisson) and mechanism.relation == "zero-out":
            raise NoGuarantee("not under zero-out")
        return real(mechanism, group)

    monkeypatch.setattr(analysis, "analysis_of", choosy)
    poisson = next(row for row in compare(0.7, 100, delta=1e-5) if row.name == "Poisson")
    assert poisson.relation == "add-remove"
    assert poisson.why == ""
    assert poisson.bracket is not None


def test_the_factor_against_poisson_is_rounded_to_both_sides():
    poisson = SamplerCost("Poisson", Poisson(0.1, 10), "zero-out", Bracket(1.0, 2.0))
    other = SamplerCost("fixed", Deterministic(10), "zero-out", Bracket(4.0, 8.0))
    replaced = SamplerCost("fixed", Deterministic(10), "replace", Bracket(4.0, 8.0))
    rows = [other, poisson, replaced]
    assert against_poisson(other, rows) == Bracket(2.0, 8.0)
    assert against_poisson(poisson, rows) == Bracket(1.0, 1.0)
    assert against_poisson(replaced, rows) is None
    free = SamplerCost("Poisson", Poisson(0.1, 10), "zero-out", Bracket(0.0, 2.0))
    assert against_poisson(other, [free]).upper == math.inf


@pytest.mark.parametrize("given", [{}, {"delta": 1e-5, "epsilon": 1.0}])
def test_exactly_one_of_delta_and_epsilon(given):
    with pytest.raises(ValueError, match="either delta"):
        compare(0.7, 100, **given)


def test_too_few_records():
    with pytest.raises(ValueError, match="records must be a whole number of at least 100, got 99"):
        compare(0.7, 100, delta=1e-5, records=99)


def priced(*brackets):
    return [
        SamplerCost(f"row {i}", Poisson(0.1, 10) if i == 0 else Shuffle(10), "zero-out", bracket)
        for i, bracket in enumerate(brackets)
    ]


@pytest.mark.parametrize(
    "rows",
    [
        priced(Bracket(1.0, 1.001), Bracket(5.0, 6.0), None),
        priced(Bracket(1e-20, 1e-20), Bracket(0.0, 0.5)),
        priced(Bracket(0.0, 0.0), Bracket(0.0, math.inf)),
        priced(Bracket(math.inf, math.inf), Bracket(math.inf, math.inf)),
        priced(None, None),
        priced(Bracket(2.0, 2.0)),
    ],
)
def test_figures_of_all_kinds_of_brackets(rows, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.png", "a.svg"):
        saved = comparison_figure(rows, "epsilon at delta = 1e-05", "a title", tmp_path / name)
        assert saved.stat().st_size > 5000


def test_labels_stay_inside_the_axes(tmp_path, monkeypatch):
    """The words of a bracket are beside or above it, within the axes, wherever it lies."""
    pytest.importorskip("matplotlib")
    kept = []
    real = module._bar
    monkeypatch.setattr(module, "_bar", lambda axes, *rest: (real(axes, *rest), kept.append(axes)))
    rows = priced(
        Bracket(1.0, 1.1), Bracket(90.0, 100.0), Bracket(1.0, 100.0), Bracket(40.0, 100.0)
    )
    comparison_figure(rows, "epsilon", "title", tmp_path / "a.png")
    axes = kept[0]
    frame = axes.get_window_extent()
    for text in axes.texts:
        box = text.get_window_extent()
        assert frame.x0 - 1 <= box.x0 < box.x1 <= frame.x1 + 1
