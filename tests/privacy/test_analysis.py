"""From mechanism to guarantee: relations, groups and clippings per sampler, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, NoGuarantee, Poisson, Shuffle
from verax.privacy.analysis import MAX_GROUP
from verax.privacy.curves.gaussian import black_box_group, gaussian_delta, gaussian_epsilon
from verax.privacy.guarantee import Bracket, Guarantee
from verax.privacy.pairs.gaussian_mixture import MixturePair

WIDTH = 1e-3


def run(sampler, noise: float, clipping=None, relation: str = "", group: int = 1) -> Guarantee:
    return Mechanism(sampler, noise, clipping or Individual(), relation).guarantee(group)


def same(a: Bracket, b: Bracket) -> bool:
    return (a.lower, a.upper) == (b.lower, b.upper)


# --- Poisson --------------------------------------------------------------------------------------

SMALL = Poisson(rate=0.02, steps=200)


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=3)])
@pytest.mark.parametrize("group", [1, 3])
def test_add_remove_and_zero_out_are_the_same_numbers(clipping, group):
    one, other = (
        run(SMALL, 2.0, clipping, relation, group).epsilon(1e-6)
        for relation in ("add-remove", "zero-out")
    )
    assert same(one, other)


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=3)])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("rate", [0.02, 0.4, 1.0])
def test_replacing_costs_at_least_as_much_as_adding(clipping, group, rate):
    sampler = Poisson(rate, 50)
    added, replaced = (
        run(sampler, 3.0, clipping, relation, group).epsilon(1e-6)
        for relation in ("add-remove", "replace")
    )
    assert added.lower <= replaced.upper
    assert replaced.upper >= added.upper * (1.0 - WIDTH)
    assert replaced.lower >= added.lower * (1.0 - 2 * WIDTH)


def test_full_batches_are_gaussian_under_every_relation():
    for clipping, relation, shift in (
        (Individual(), "add-remove", 1.0),
        (Individual(), "replace", 2.0),
        (Batch(), "add-remove", 2.0),
        (Batch(), "replace", 2.0),
        (Mixed(groups=5), "zero-out", 2.0),
    ):
        bracket = run(Poisson(1.0, 16), 2.0, clipping, relation).epsilon(1e-6)
        assert bracket.upper == pytest.approx(gaussian_epsilon(shift * 4.0 / 2.0, 1e-6), rel=1e-12)


def test_a_full_batch_group_shifts_by_its_size():
    assert run(Poisson(1.0, 4), 5.0, group=3).epsilon(1e-6).upper == pytest.approx(
        gaussian_epsilon(3 * 2 / 5, 1e-6), rel=1e-12
    )
    assert run(Poisson(1.0, 4), 5.0, Batch(), group=3).epsilon(1e-6).upper == pytest.approx(
        gaussian_epsilon(4 / 5, 1e-6)
    )


def test_one_round_of_poisson_is_the_pair_in_its_worse_direction():
    for clipping, shift in ((Individual(), 1.0), (Batch(), 2.0), (Mixed(groups=7), 2.0)):
        bracket = run(Poisson(0.1, 1), 1.5, clipping).delta(0.5)
        pair = MixturePair.subsampled(0.1, shift / 1.5)
        worst = max(pair.delta(0.5)[1], pair.reverse().delta(0.5)[1])
        assert bracket.upper == pytest.approx(worst, rel=1e-9)
        assert bracket.lower == pytest.approx(worst, rel=1e-9)


def test_replacing_one_record_in_one_round_is_the_opposite_sided_pair():
    """Schuchardt et al. 2024: (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1)."""
    side = MixturePair.subsampled(0.1, 1.0 / 1.5).up
    bracket = run(Poisson(0.1, 1), 1.5, relation="replace").delta(0.3)
    assert bracket.upper == pytest.approx(MixturePair(side, side).delta(0.3)[1], rel=1e-9)


def test_a_group_of_one_is_a_record():
    for clipping in (Individual(), Batch(), Mixed(groups=3)):
        mechanism = Mechanism(SMALL, 2.0, clipping)
        assert same(mechanism.guarantee(1).epsilon(1e-6), mechanism.guarantee().epsilon(1e-6))


def test_a_group_under_batch_clipping_is_a_higher_rate():
    """MATH section 2: q_k = 1 - (1-q)^k, still a shift of 2; far better than up to k such
    shifts.
    """
    grouped = run(SMALL, 3.0, Batch(), group=5).epsilon(1e-6)
    higher = run(Poisson(-math.expm1(5 * math.log1p(-0.02)), 200), 3.0, Batch()).epsilon(1e-6)
    assert grouped.lower <= higher.upper
    assert higher.lower <= grouped.upper
    assert grouped.upper == pytest.approx(higher.upper, rel=2 * WIDTH)
    assert grouped.upper < 0.95 * run(SMALL, 1.5, Individual(), group=5).epsilon(1e-6).lower


def test_mixed_clipping_lies_between_its_extremes():
    """One clip-group is batch clipping; endlessly many are individual clipping at twice the
    shift.
    """
    batch, mixed = (
        run(SMALL, 4.0, Batch(), group=4).epsilon(1e-6),
        run(SMALL, 4.0, Mixed(groups=1), group=4).epsilon(1e-6),
    )
    assert mixed.upper == pytest.approx(batch.upper, rel=2 * WIDTH)
    many = run(SMALL, 4.0, Mixed(groups=10**6), group=4).epsilon(1e-6)
    doubled = run(SMALL, 2.0, Individual(), group=4).epsilon(1e-6)
    assert many.upper == pytest.approx(doubled.upper, rel=2 * WIDTH)
    some = run(SMALL, 4.0, Mixed(groups=3), group=4).epsilon(1e-6)
    assert batch.lower <= some.upper
    assert some.lower <= many.upper


def test_group_privacy_beats_the_black_box():
    alone = run(SMALL, 2.0)
    for group in (2, 4):
        epsilon, delta = 0.4 * group, black_box_group(0.4, alone.delta(0.4).upper, group)[1]
        assert run(SMALL, 2.0, group=group).delta(epsilon).lower <= delta


def test_the_norm_is_only_a_unit():
    a, b = (run(SMALL, 2.0, Individual(norm=norm)).epsilon(1e-6) for norm in (1.0, 0.01))
    assert same(a, b)


def test_every_side_names_its_theorem():
    for relation in ("add-remove", "replace"):
        for clipping in (Individual(), Batch(), Mixed(groups=2)):
            bracket = run(SMALL, 2.0, clipping, relation, 2).delta(1.0, rtol=0.1)
            assert bracket.upper_by
            assert bracket.lower_by
            assert bracket.evidence == "proved"


def test_a_large_group_is_priced():
    bracket = run(Poisson(0.001, 10), 50.0, group=1000).epsilon(1e-6)
    assert 0.0 < bracket.lower <= bracket.upper
    assert bracket.width <= WIDTH * bracket.upper


# --- fixed batches --------------------------------------------------------------------------------


def deterministic_mu(
    clipping, relation: str, group: int, batches: int, epochs: int, noise: float
) -> float:
    """MATH section 4, by brute force over how the group is spread over batches and clip-groups."""
    if isinstance(clipping, Individual):
        return group * math.sqrt(epochs) / noise * (2.0 if relation == "replace" else 1.0)
    if isinstance(clipping, Batch):
        return 2.0 * math.sqrt(min(group, batches) * epochs) / noise
    best = 0

    def spread(left: int, batch: int, squared: int) -> None:
        nonlocal best
        best = max(best, squared)
        if batch < batches:
            for touched in range(min(left, clipping.groups) + 1):
                spread(left - touched, batch + 1, squared + touched**2)

    spread(group, 0, 0)
    return 2.0 * math.sqrt(best * epochs) / noise


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=2), Mixed(groups=5)])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_deterministic_batches_are_one_gaussian_mechanism(clipping, relation, group):
    for batches, epochs, noise in ((3, 1, 2.0), (4, 9, 20.0)):
        mu = deterministic_mu(clipping, relation, group, batches, epochs, noise)
        bracket = run(Deterministic(batches, epochs), noise, clipping, relation, group).delta(1.0)
        assert (
            gaussian_delta(mu, 1.0, -1) * (1.0 - 1e-12)
            <= bracket.upper
            <= gaussian_delta(mu, 1.0, 1) * (1.0 + 1e-12)
        )
        if not (isinstance(clipping, Mixed) and group > 1):
            assert bracket.lower == pytest.approx(bracket.upper, rel=1e-10)


def test_deterministic_epsilon():
    """z = .5, one epoch: 10.997 (MATH section 4)."""
    assert run(Deterministic(10000), 0.5).epsilon(1e-6).upper == pytest.approx(10.997, abs=6e-4)
    assert run(Deterministic(10000, epochs=4), 1.0).epsilon(1e-6).upper == pytest.approx(
        10.997, abs=6e-4
    )


@given(
    st.integers(1, 500),
    st.integers(1, 4),
    st.floats(0.5, 4.0),
    st.integers(1, 3),
    st.sampled_from(["zero-out", "replace"]),
)
@settings(max_examples=20)
def test_shuffling_costs_at_most_fixed_batches(batches, epochs, noise, group, relation):
    for clipping in (Individual(), Batch(), Mixed(groups=2)):
        mixed = run(Shuffle(batches, epochs), noise, clipping, relation, group).epsilon(1e-5)
        fixed = run(Deterministic(batches, epochs), noise, clipping, relation, group).epsilon(1e-5)
        assert mixed.upper <= fixed.upper * (1.0 + 1e-9)
        assert group > 1 or mixed.upper == fixed.upper
        assert 0.0 <= mixed.lower <= mixed.upper


@pytest.mark.parametrize(
    "sampler", [Deterministic(10), Shuffle(10), Shuffle(10, epochs=3, reshuffle=False)]
)
def test_fixed_batches_have_no_add_remove_analysis(sampler):
    with pytest.raises(
        NoGuarantee, match=f"{type(sampler).__name__} has fixed batch sizes.*zero-out"
    ):
        run(sampler, 1.0, relation="add-remove")
    assert Mechanism(sampler, 1.0).relation == "zero-out"


# --- several phases, and refusals -----------------------------------------------------------------


def test_phases_of_different_samplers_compose_under_a_shared_relation():
    poisson, fixed = Mechanism(SMALL, 2.0, relation="zero-out"), Mechanism(Deterministic(50), 2.0)
    both = (poisson + fixed).guarantee().epsilon(1e-6)
    assert (
        both.lower
        <= poisson.guarantee().epsilon(5e-7).upper + fixed.guarantee().epsilon(5e-7).upper
    )
    assert both.upper >= max(m.guarantee().epsilon(1e-6).lower for m in (poisson, fixed))
    assert both.width <= WIDTH * both.upper


def test_a_shuffled_phase_keeps_its_lower_bound_in_company():
    shuffled, poisson = (
        Mechanism(Shuffle(1000), 0.7),
        Mechanism(Poisson(0.001, 10), 5.0, relation="zero-out"),
    )
    both = (shuffled + poisson).guarantee().epsilon(1e-5)
    assert both.lower >= shuffled.guarantee().epsilon(1e-5).lower * (1.0 - WIDTH)
    assert both.upper >= shuffled.guarantee().epsilon(1e-5).upper * (1.0 - WIDTH)


def test_phases_with_different_relations_are_refused():
    with pytest.raises(NoGuarantee, match="one neighbouring relation, got add-remove and zero-out"):
        Mechanism(SMALL, 1.0) + Mechanism(Deterministic(10), 1.0)


@dataclass(frozen=True)
class Unheard(Poisson):
    """A sampler that nobody analysed."""


def test_an_unknown_sampler_is_refused_by_name():
    class Other(Poisson):
        pass

    with pytest.raises(NoGuarantee, match="no privacy analysis is known for Other"):
        Mechanism(Other(0.1, 3), 1.0).guarantee()
    with pytest.raises(NoGuarantee, match="no privacy analysis is known for Unheard"):
        Mechanism(Unheard(0.1, 3), 1.0).guarantee()


@pytest.mark.parametrize("group", [0, -1, 1.5, math.nan, "a", True, 10**9, MAX_GROUP + 1])
def test_bad_groups_name_themselves(group):
    with pytest.raises(ValueError, match="group must be") as refusal:
        Mechanism(SMALL, 1.0).guarantee(group)
    assert str(group) in str(refusal.value)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_very_little_noise_costs_a_lot_but_stays_a_bracket(noise):
    bracket = run(Poisson(0.01, 10), noise).epsilon(1e-5)
    assert 1.0 < bracket.lower <= bracket.upper < math.inf
    assert bracket.width <= 0.01 * bracket.upper


@pytest.mark.parametrize("noise", [1e3, 1e6])
def test_very_much_noise_costs_nearly_nothing(noise):
    bracket = run(Poisson(0.01, 10), noise).epsilon(1e-5)
    assert 0.0 <= bracket.lower <= bracket.upper < 0.01


def test_orthogonal_groups_that_change_must_be_orthogonal_before_and_after():
    """Old gradients e1 and e2, both new ones -(e1 + e2) / sqrt 2: more than two runs with one
    record each.
    """
    run = Mechanism(Poisson(1.0, 1), 1.0, relation="replace")
    guarantee = run.guarantee(2, geometry="orthogonal")
    old, new = np.eye(2), -np.ones((2, 2)) / math.sqrt(2.0)
    moved = float(np.linalg.norm(old.sum(axis=0) - new.sum(axis=0)))
    assert guarantee.delta(1.0).upper == pytest.approx(
        gaussian_delta(math.sqrt(8.0), 1.0), rel=1e-6
    )
    assert gaussian_delta(moved, 1.0) > 1.05 * guarantee.delta(1.0).upper
    assert "the old and new gradients of each record" in guarantee.assuming
    assert (
        "the old and new gradients"
        in run.guarantee(2, geometry="orthogonal", adversary="A1").assuming
    )
    assert "old" not in Mechanism(Poisson(1.0, 1), 1.0).guarantee(2, geometry="orthogonal").assuming
