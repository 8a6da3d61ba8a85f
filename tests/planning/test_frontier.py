import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verax import Batch, Individual, Mechanism, Mixed, Poisson, RandomAllocation, Shuffle, calibrate
from verax.checks import NoGuarantee
from verax.planning import (
    Plan,
    Planner,
    Target,
    changes,
    fewest_records,
    frontier,
    full_batch_signal,
    largest_batch,
    most_rounds,
    plannable,
    planned,
    ranked,
    reachable_delta,
    reachable_epsilon,
    undominated,
    within,
)
from verax.planning.closed_form import closed_form
from verax.planning.closed_form.theorems import FailedCondition, GrantedGuarantee
from verax.planning.frontier import spread, usual_batches
from verax.planning.noise_search import gaussian_limit, gaussian_shift, smallest_noise
from verax.planning.planner import upper_only
from verax.privacy.curves import gaussian

TARGET = Target(records=60_000, epsilon=1.0, delta=1e-5)


# --- ways -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", plannable())
def test_every_sampler_has_about_the_batch_and_the_epochs_asked_for(way):
    sampler = planned(way, records=10_000, batch=300, epochs=4)
    assert 290 <= sampler.expected_batch(10_000) <= 300
    assert 40_000 <= len(sampler) * sampler.expected_batch(10_000) <= 40_300


def test_rounds_are_counted_in_whole_numbers():
    assert len(planned("poisson", 49, 7, 3)) == 21  # 3 / (7 / 49) is 21.000000000000004 in doubles
    assert planned("without-replacement", 10, 3, 1).steps == 4


def test_a_truncated_run_hardly_ever_reaches_its_largest_batch():
    stats = pytest.importorskip("scipy.stats")
    sampler = planned("truncated-poisson", 60_000, 512, 2)
    beyond = stats.binom.sf(sampler.max_batch, 60_000, sampler.rate) * len(sampler)
    assert (
        beyond <= 1e-20 < stats.binom.sf(sampler.max_batch - 1, 60_000, sampler.rate) * len(sampler)
    )


@pytest.mark.parametrize(
    ("way", "batch", "message"),
    [
        ("dice", 1, "sampler must be one of 'poisson'"),
        ("poisson", 11, "at most 10, got 11"),
        ("poisson", 0, "batch"),
    ],
)
def test_bad_ways(way, batch, message):
    with pytest.raises(ValueError, match=message):
        planned(way, 10, batch, 1)


# --- the fast accountant --------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [Individual(), Batch()])
@pytest.mark.parametrize(
    "sampler",
    [
        Poisson(0.02, 100),
        Shuffle(50, 3),
        Shuffle(50, 3, reshuffle=False),
        planned("buffered-shuffle", 1000, 20, 3),
    ],
    ids=repr,
)
def test_leaving_out_attacks_leaves_the_upper_bound(sampler, clipping):
    run = Mechanism(sampler, 2.0, clipping)
    found = upper_only(run).epsilon(1e-5)
    assert found.lower == 0.0
    assert found.upper == pytest.approx(run.guarantee().epsilon(1e-5).upper, rel=1e-3)


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
def test_one_round_of_many_is_a_little_looser_and_never_below_the_attack(relation):
    for sampler in (planned("balls-in-bins", 1000, 50, 2), RandomAllocation(2, 40)):
        run = Mechanism(sampler, 1.2, relation=relation)
        whole, fast = run.guarantee().epsilon(1e-5), upper_only(run).epsilon(1e-5).upper
        assert whole.lower <= fast
        assert fast == pytest.approx(whole.upper, rel=1e-2)


def test_groups_go_to_the_accountant_itself():
    run = Mechanism(Shuffle(20), 3.0)
    assert upper_only(run, 2).epsilon(1e-5).upper == pytest.approx(
        run.guarantee(2).epsilon(1e-5).upper
    )


# --- the search -----------------------------------------------------------------------------------


@given(
    power=st.floats(0.5, 12.0),
    scale=st.floats(1e-3, 1e3),
    target=st.floats(1e-3, 1e2),
    off=st.floats(-4.0, 4.0),
    fall=st.floats(0.3, 30.0),
)
def test_the_search_ends_just_above_the_boundary(power, scale, target, off, fall):
    boundary = scale * target ** (-1.0 / power)
    if not 1e-4 < boundary < 1e6:
        return
    found = smallest_noise(
        lambda noise: (scale / noise) ** power, target, boundary * math.exp(off), fall
    )
    assert boundary * (1.0 - 1e-12) <= found.noise_multiplier <= boundary * 1.004
    assert found.epsilon == (scale / found.noise_multiplier) ** power <= target


def test_the_search_survives_infinite_and_flat_stretches():
    def look(noise):
        return math.inf if noise < 1.0 else 5.0 if noise < 3.0 else 0.9 / noise

    found = smallest_noise(look, 1.0, 0.01, 2.0)
    assert found.noise_multiplier == pytest.approx(3.0, rel=2e-3)
    assert found.epsilon <= 1.0


def test_the_search_knows_when_there_is_nothing_to_find():
    assert smallest_noise(lambda noise: 2.0, 1.0, 1.0, 2.0) is None
    assert smallest_noise(lambda noise: 0.0, 1.0, 1.0, 2.0).noise_multiplier == 0.0


def test_a_noise_has_few_digits_and_was_looked_at_as_it_is_returned():
    seen = []
    found = smallest_noise(lambda noise: seen.append(noise) or math.pi / noise, 1.0, 3.0, 1.0)
    assert found.noise_multiplier in seen
    assert float(f"{found.noise_multiplier:.6g}") == found.noise_multiplier


def test_the_gaussian_guess_is_exact_for_full_batches():
    mu = gaussian_shift(0.7, 1e-6)
    assert gaussian.gaussian_delta(mu, 0.7) == pytest.approx(1e-6, rel=1e-3)
    assert gaussian_limit(mu, 1.0, 1e6) == pytest.approx(1e3 / mu, rel=1e-6)


# --- the frontier ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisson():
    return frontier(TARGET, [64, 256, 1024, 4096], [1, 3, 10, 30])


def test_every_noise_is_certified_by_the_whole_accountant_and_one_percent_less_is_refuted(poisson):
    for plan in poisson:
        assert plan.mechanism.guarantee().epsilon(1e-5).upper <= 1.0
        assert plan.epsilon <= 1.0
        less = Mechanism(plan.sampler, 0.99 * plan.noise_multiplier)
        assert less.guarantee().epsilon(1e-5).lower > 1.0  # an attack


def test_the_noise_is_that_of_calibrate(poisson):
    for plan in poisson[::5]:
        assert plan.noise_multiplier == pytest.approx(
            calibrate.noise_multiplier(plan.sampler, 1.0, 1e-5), rel=1.5e-3
        )


@pytest.mark.parametrize(
    "way", ["truncated-poisson", "without-replacement", "shuffle", "buffered-shuffle"]
)
def test_other_samplers_are_certified_too(way):
    for plan in frontier(Target(6000, 2.0, 1e-4), [60, 600], [1, 7], [way]):
        assert plan.mechanism.guarantee().epsilon(1e-4).upper <= 2.0
        less = Mechanism(plan.sampler, 0.99 * plan.noise_multiplier)
        assert less.guarantee().epsilon(1e-4).upper > 2.0


@pytest.mark.parametrize("way", ["balls-in-bins", "random-allocation"])
def test_one_round_of_many_is_certified_too(way):
    for plan in frontier(Target(2000, 2.0, 1e-4), [100, 500], [1, 3], [way]):
        assert plan.mechanism.guarantee().epsilon(1e-4).upper <= 2.0
        less = Mechanism(plan.sampler, 0.99 * plan.noise_multiplier)
        assert less.guarantee().epsilon(1e-4).upper > 2.0


def test_fixed_batches_are_one_gaussian_mechanism():
    mu = gaussian_shift(1.0, 1e-5)
    for way in ("deterministic", "shuffle", "persistent-shuffle"):
        for plan in frontier(TARGET, [600, 6000], [1, 9, 25], [way]):
            assert plan.noise_multiplier == pytest.approx(math.sqrt(plan.epochs) / mu, rel=1e-3)


def test_more_epochs_and_larger_batches_need_more_noise(poisson):
    noise = {(plan.batch, plan.epochs): plan.noise_multiplier for plan in poisson}
    for (batch, epochs), value in noise.items():
        assert all(value < other for (b, e), other in noise.items() if (b > batch and e >= epochs))
        assert all(value < other for (b, e), other in noise.items() if (b >= batch and e > epochs))


def test_no_plan_has_more_signal_than_the_full_batch(poisson):
    assert max(plan.signal_of_run for plan in poisson) < full_batch_signal(TARGET)
    full = frontier(TARGET, [TARGET.records], [1, 100])
    for plan in full:
        assert plan.signal_of_run == pytest.approx(full_batch_signal(TARGET), rel=2e-3)


def test_a_plan_has_one_noise_whatever_else_was_planned_and_in_which_order():
    points = [(b, e) for b in spread(64, 8192, 4) for e in spread(1, 100, 4)]
    inside = {
        (p.batch, p.epochs): p for p in frontier(TARGET, *map(set, zip(*points, strict=True)))
    }
    backwards = Planner(TARGET)
    for batch, epochs in reversed(points):
        assert backwards.plan("poisson", batch, epochs) == inside[batch, epochs]
        assert Planner(TARGET).plan("poisson", batch, epochs) == inside[batch, epochs]


@pytest.mark.parametrize(
    ("way", "most"), [("poisson", 3.5), ("without-replacement", 5.0), ("shuffle", 2.5)]
)
def test_a_search_takes_few_looks_at_the_accountant(way, most):
    planner = Planner(TARGET)
    points = [(b, e) for b in spread(64, 8192, 5) for e in spread(1, 100, 5)]
    looks = [
        planner.solve(planned(way, TARGET.records, batch, epochs)).looks for batch, epochs in points
    ]
    assert sum(looks) <= most * len(points)


@pytest.mark.parametrize("clipping", [Individual(norm=2.0), Batch(), Mixed(groups=4)])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_other_targets(clipping, group, relation):
    target = Target(5000, 3.0, 1e-5, clipping, relation, group)
    (plan,) = frontier(target, [100], [2])
    assert plan.mechanism == Mechanism(
        Poisson(0.02, 100), plan.noise_multiplier, clipping, relation
    )
    assert plan.mechanism.guarantee(group).epsilon(1e-5).upper <= 3.0
    less = Mechanism(plan.sampler, 0.98 * plan.noise_multiplier, clipping, relation)
    assert less.guarantee(group).epsilon(1e-5).upper > 3.0


def test_what_a_plan_costs():
    plan = Plan(TARGET, "poisson", 600, 10, Poisson(0.01, 1000), 1.5, 0.99)
    assert (plan.rounds, plan.work) == (1000, 600_000.0)
    assert plan.signal == 600 / 1.5
    assert plan.ratio == 1.5 / 600
    assert plan.signal_of_run == pytest.approx(math.sqrt(1000) * 400)
    aggregate = Plan(
        Target(60_000, 1.0, 1e-5, Batch()), "poisson", 600, 10, Poisson(0.01, 1000), 1.5, 0.99
    )
    assert aggregate.signal == 1 / 1.5
    mixed = Plan(
        Target(60_000, 1.0, 1e-5, Mixed(groups=8)),
        "poisson",
        600,
        10,
        Poisson(0.01, 1000),
        1.5,
        0.99,
    )
    assert mixed.ratio == 1.5 / 8


def test_no_noise_where_delta_covers_being_sampled():
    (plan,) = frontier(Target(1000, 1.0, 0.3), [1], [1], rounds_at_most=1000)
    assert plan.noise_multiplier > 0.0  # sampled with probability 0.63
    short = Planner(Target(10_000, 1.0, 0.7)).plan("poisson", 1, 1)
    assert short.noise_multiplier == 0.0
    assert short.signal == math.inf
    assert short.mechanism.guarantee().epsilon(0.7).upper <= 1.0
    assert changes(short) == []


def test_bounds_on_rounds_leave_plans_out():
    plans = frontier(TARGET, [600, 6000], [1, 10], rounds_at_least=50, rounds_at_most=200)
    assert {(plan.batch, plan.epochs) for plan in plans} == {(600, 1), (6000, 10)}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"rounds_at_most": 5},
            "rounds_at_most = 5 leaves no plan: .* 10 rounds; allow 10 rounds, or a batch of 12000",
        ),
        (
            {"rounds_at_least": 9999},
            "rounds_at_least = 9999 .* make 1000 rounds; ask for 1000 .* allow 100 epochs",
        ),
        (
            {"rounds_at_least": 20, "rounds_at_most": 40},
            r"nearest have 10 \(batch 6000.* and 100 \(",
        ),
    ],
)
def test_an_impossible_number_of_rounds_names_the_nearest(limits, message):
    with pytest.raises(ValueError, match=message):
        frontier(TARGET, [600, 6000], [1, 10], **limits)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1]), "batches must hold at least one value"),
        (([10], []), "epochs must hold at least one"),
        (([10], [1], []), "ways must hold at least one"),
        (
            ([10**6], [1]),
            "batch must be a whole number of at least 1 and at most 60000, got 1000000",
        ),
        (([10], [0]), "epochs must be"),
        (([10], [1], ["dice"]), "sampler must be one of"),
    ],
)
def test_bad_grids(arguments, message):
    with pytest.raises(ValueError, match=message):
        frontier(TARGET, *arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"records": 0}, "records"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta must lie"),
        ({"group": 11, "records": 10}, "group .* at most 10"),
    ],
)
def test_bad_targets(fields, message):
    with pytest.raises(ValueError, match=message):
        Target(**{"records": 100, "epsilon": 1.0, "delta": 1e-5, **fields})


def test_a_target_out_of_reach_says_what_is_reachable():
    with pytest.raises(ValueError, match=r"is out of reach of sampler poisson.*raise epsilon"):
        frontier(Target(100, 1e-9, 1e-12), [100], [1])


def test_no_analysis_is_not_hidden():
    with pytest.raises(NoGuarantee, match="add-remove"):
        frontier(Target(100, 1.0, 1e-5, relation="add-remove"), [10], [1], ["shuffle"])


# --- order, limits, changes -----------------------------------------------------------------------


def test_the_undominated_are_those_that_nothing_beats(poisson):
    best = undominated(poisson)
    assert best

    def beats(a, b):
        return (
            a.work <= 1.02 * b.work and a.rounds <= b.rounds and a.signal_of_run >= b.signal_of_run
        )

    for plan in poisson:
        assert (plan in best) != any(beats(other, plan) for other in best if other is not plan)


def test_ranking(poisson):
    assert [p.rounds for p in ranked(poisson, "rounds")] == sorted(p.rounds for p in poisson)
    assert ranked(poisson)[0].signal_of_run == max(p.signal_of_run for p in poisson)
    assert ranked(poisson, "ratio")[0].ratio == min(p.ratio for p in poisson)
    with pytest.raises(ValueError, match="rank must be one of"):
        ranked(poisson, "luck")


def test_limits_keep_what_keeps_them_or_name_what_would(poisson):
    kept = within(poisson, noise_at_most=1.0, ratio_at_most=0.01)
    assert kept == [p for p in poisson if p.noise_multiplier <= 1.0 and p.ratio <= 0.01]
    with pytest.raises(
        ValueError, match=r"ratio_at_most = 1e-05 leaves no plan.*epsilon (\d+\.?\d*) there"
    ) as error:
        within(poisson, ratio_at_most=1e-5)
    epsilon = float(str(error.value).split("epsilon ")[1].split()[0])
    best = ranked(poisson, "ratio")[0]
    there = Mechanism(best.sampler, 1e-5 * best.batch).guarantee().epsilon(1e-5)
    assert there.upper == pytest.approx(epsilon, rel=2e-3)


def test_changes_are_plans_of_their_own():
    plan = Planner(TARGET).plan("poisson", 600, 10)
    found = {change.words: change for change in changes(plan)}
    double = calibrate.noise_multiplier(Poisson(0.01, 2000), 1.0, 1e-5)
    assert found["twice the epochs"].noise == pytest.approx(
        double / plan.noise_multiplier - 1.0, abs=2e-3
    )
    assert found["twice the epochs"].rounds == 1.0
    pair = found["any 2 records together"].after
    assert pair.mechanism.guarantee(2).epsilon(1e-5).upper <= 1.0
    assert found["half the epsilon"].after.mechanism.guarantee().epsilon(1e-5).upper <= 0.5
    assert str(found["twice the records"]).startswith("twice the records: noise -")
    assert "half the epochs" not in {
        c.words for c in changes(Planner(TARGET).plan("shuffle", 600, 5))
    }


# --- other unknowns -------------------------------------------------------------------------------


def test_epsilon_and_delta_that_a_noise_reaches():
    run = Mechanism(Poisson(0.01, 1000), 1.0).guarantee()
    found = reachable_epsilon(TARGET, "poisson", 600, 10, 1.0)
    assert found.target.epsilon == found.epsilon == pytest.approx(run.epsilon(1e-5).upper, rel=1e-3)
    assert reachable_delta(TARGET, "poisson", 600, 10, 1.0).target.delta == pytest.approx(
        run.delta(1.0).upper, rel=1e-3
    )


def test_the_most_rounds_are_those_of_calibrate():
    plan = most_rounds(TARGET, "poisson", 600, 1.5)
    assert plan.rounds == pytest.approx(calibrate.steps(0.01, 1.5, 1.0, 1e-5), abs=2)
    assert (
        TARGET.epsilon_at(Poisson(0.01, plan.rounds), 1.5)
        <= 1.0
        < TARGET.epsilon_at(Poisson(0.01, plan.rounds + 1), 1.5)
    )
    fixed = most_rounds(TARGET, "shuffle", 600, 10.0)
    assert fixed.epochs == math.floor((10.0 * gaussian_shift(1.0, 1e-5)) ** 2)


def test_the_fewest_records_and_the_largest_batch_are_the_last_ones_that_do():
    records = fewest_records(TARGET, "poisson", 600, 10, 1.3).target.records
    assert TARGET.epsilon_at(planned("poisson", records, 600, 10), 1.3) <= 1.0
    assert TARGET.epsilon_at(planned("poisson", records - 1, 600, 10), 1.3) > 1.0
    batch = largest_batch(TARGET, "poisson", 10, 1.3).batch
    assert TARGET.epsilon_at(planned("poisson", 60_000, batch, 10), 1.3) <= 1.0
    assert TARGET.epsilon_at(planned("poisson", 60_000, batch + 1, 10), 1.3) > 1.0
    assert largest_batch(TARGET, "poisson", 1, 50.0).batch == 60_000


@settings(max_examples=8)
@given(st.integers(10, 3000), st.integers(1, 30), st.floats(0.3, 4.0))
def test_unknowns_agree_with_each_other(batch, epochs, epsilon):
    target = Target(20_000, epsilon, 1e-6)
    noise = Planner(target).plan("poisson", batch, epochs).noise_multiplier
    reached = reachable_epsilon(target, "poisson", batch, epochs, noise).epsilon
    assert 0.985 * epsilon <= reached <= epsilon
    assert most_rounds(target, "poisson", batch, noise).rounds >= len(
        planned("poisson", 20_000, batch, epochs)
    )
    largest = largest_batch(target, "poisson", epochs, noise).batch
    # rounds are whole: a larger batch may take one fewer, and meet the target where a smaller fails
    assert largest >= batch or (
        target.epsilon_at(planned("poisson", 20_000, largest + 1, epochs), noise) > epsilon
    )


def test_too_little_noise_names_what_would_do():
    with pytest.raises(
        ValueError, match=r"one epoch of batch 600 has epsilon .* or take noise 3\.73"
    ):
        most_rounds(TARGET, "shuffle", 600, 1.0)
    with pytest.raises(
        ValueError, match=r"up to 1e\+09 records has epsilon .*, or take noise 3\.73"
    ):
        fewest_records(TARGET, "shuffle", 600, 1, 1.0)
    with pytest.raises(ValueError, match="a batch of one record for 50 epochs has epsilon"):
        largest_batch(Target(1000, 0.1, 1e-6), "poisson", 50, 0.4)
    with pytest.raises(ValueError, match="noise_multiplier must be positive"):
        most_rounds(TARGET, "poisson", 600, 0.0)


# --- the closed form beside it --------------------------------------------------------------------


@settings(max_examples=12)
@given(st.sampled_from([0.05, 0.2, 0.45, 1.0, 2.0]), st.integers(20, 3000), st.integers(1, 40))
def test_the_closed_form_never_asks_for_less(epsilon, batch, epochs):
    plan = Planner(Target(60_000, epsilon, 1e-5)).plan("poisson", batch, epochs)
    asked = closed_form(plan)
    assert isinstance(asked, GrantedGuarantee | FailedCondition)
    if isinstance(asked, GrantedGuarantee):
        assert asked.sigma >= plan.noise_multiplier


def test_the_closed_form_is_silent_where_it_is_not_about_this_run():
    assert closed_form(Planner(TARGET).plan("shuffle", 600, 10)) is None
    assert closed_form(Planner(Target(60_000, 1.0, 1e-5, Batch())).plan("poisson", 600, 10)) is None
    assert closed_form(Planner(Target(60_000, 1.0, 1e-5, group=2)).plan("poisson", 600, 10)) is None


# --- grids ----------------------------------------------------------------------------------------


def test_grids_are_whole_ascending_and_include_their_ends():
    for low, high, count in [(1, 100, None), (1, 100, 50), (7, 7, None), (3, 5, 2), (64, 8192, 20)]:
        values = spread(low, high, count)
        assert values[0] == low
        assert values[-1] == high
        assert values == sorted(set(values))
        assert count is None or len(values) <= count
    with pytest.raises(ValueError, match="end of a range"):
        spread(5, 3)
    for records in (1, 2, 7, 1000, 10**8):
        assert usual_batches(records)
        assert max(usual_batches(records)) <= records


@pytest.mark.parametrize(("batch", "epochs"), [(600, 10), (60, 3)])
def test_a_plan_and_a_calibration_end_within_a_thousandth_of_each_other(batch, epochs):
    """They stop by rules of their own (docs/planning.md), on the same bound."""
    plan = Planner(Target(60_000, 1.0, 1e-5)).plan("poisson", batch, epochs)
    least = calibrate.noise_multiplier(plan.sampler, 1.0, 1e-5)
    assert 1.0 / 1.0006 <= plan.noise_multiplier / least <= 1.0011
    assert plan.mechanism.guarantee().epsilon(1e-5).upper <= 1.0
