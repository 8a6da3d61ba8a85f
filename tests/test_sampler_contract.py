"""What every registered sampler can do, in every room, a toy from outside the package too."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from verax import Batch, Mechanism, Mixed, Poisson, calibrate, ledger
from verax.auditing import audit_sampler
from verax.checks import NoGuarantee
from verax.cli import app
from verax.description import describe, restore
from verax.planning import Planner, Target
from verax.planning.planner import upper_only
from verax.privacy.samplers.base import prices, pricing_of
from verax.privacy.samplers.poisson import PoissonPricing
from verax.reporting import comparison
from verax.reporting.plan_code import command_lines
from verax.samplers import Sampler, options, registry, resume
from verax.training import fit
from verax.web import requests, service

RECORDS, BATCH, EPOCHS, NOISE, DELTA = 120, 12, 2, 2.0, 1e-5
NOT_PLANNED = {
    "random-participation": {
        "--client-rate": 0.5,
        "--record-rate": 0.2,
        "--other-records": 119,
        "--rounds": 20,
    }
}
TOY = "relabelled-poisson"


@dataclass(frozen=True)
class Relabelled(Poisson):
    """Poisson sampling under another name: all that a new sampler needs besides its pricing."""


@prices(Relabelled)
class RelabelledPricing(PoissonPricing):
    """What Poisson sampling costs."""


@pytest.fixture(params=[*registry.names(), TOY])
def name(request) -> Iterator[str]:
    if request.param != TOY:
        yield request.param
        return
    registry.register(TOY, "Poisson by another name")(Relabelled)
    yield TOY
    registry.unregister(TOY)


@pytest.fixture
def sampler(name) -> Sampler:
    if name in NOT_PLANNED:
        return options.build(name, NOT_PLANNED[name])
    return registry.planned(name, RECORDS, BATCH, EPOCHS)


def test_a_description_is_read_back_as_what_was_described(sampler):
    run = Mechanism(sampler, NOISE)
    assert restore(json.loads(json.dumps(describe(run)))) == run


def test_the_name_is_found_again(name, sampler):
    assert registry.entry_of(sampler).name == name
    assert registry.named(name).label
    assert sampler.title()


def test_batches_are_drawn_and_resumed(sampler):
    run = sampler.draw(RECORDS, np.random.default_rng(1))
    first = [next(run) for _ in range(3)]
    state = json.loads(json.dumps(run.state()))
    rest = [batch.tolist() for batch in run]
    assert len(first) + len(rest) == len(sampler)
    assert [batch.tolist() for batch in resume(sampler, state, RECORDS)] == rest
    assert 0.0 < sampler.expected_batch(RECORDS) <= RECORDS


def test_a_prefix_is_the_run_as_far_as_it_went(sampler):
    assert (
        sampler.prefix(len(sampler), up=True) == sampler.prefix(len(sampler), up=False) == sampler
    )
    assert sampler.prefix(0, up=True) is None
    for rounds in (1, len(sampler) // 2, len(sampler) - 1):
        longer, shorter = sampler.prefix(rounds, up=True), sampler.prefix(rounds, up=False)
        assert rounds <= len(longer) <= len(sampler)
        assert shorter is None or len(shorter) <= rounds


def test_it_is_priced_alone_and_in_groups_or_refused_in_words(sampler):
    one = Mechanism(sampler, NOISE).guarantee().epsilon(DELTA)
    assert 0.0 <= one.lower <= one.upper < np.inf
    for group in (2, 3):
        several = Mechanism(sampler, NOISE).guarantee(group).epsilon(DELTA)
        assert one.lower <= several.upper
        assert several.lower <= several.upper


@pytest.mark.parametrize("clipping", [Batch(), Mixed(groups=3)])
def test_clip_groups_that_may_be_empty_are_allowed_for(sampler, clipping):
    try:
        bracket = Mechanism(sampler, NOISE, clipping).guarantee().epsilon(DELTA)
    except NoGuarantee:  # in words
        return
    assert 0.0 <= bracket.lower <= bracket.upper
    chance = pricing_of(sampler).empty_group_probability(3, 1, RECORDS, sampler.relation)
    assert chance >= 0.0


def test_adversary_a1_has_an_analysis_or_says_that_it_has_none(sampler):
    run = Mechanism(sampler, NOISE)
    try:
        strong = run.guarantee(adversary="A1", population=RECORDS).epsilon(DELTA)
    except NoGuarantee:  # in words
        return
    assert run.guarantee().epsilon(DELTA).lower <= strong.upper


def test_hardly_any_noise_is_priced(sampler):
    bracket = Mechanism(sampler, 1e-3).guarantee().epsilon(DELTA)
    assert 1e3 < bracket.lower <= bracket.upper < np.inf


def test_the_upper_bound_alone_is_no_smaller_than_an_attack(sampler):
    run = Mechanism(sampler, NOISE)
    assert run.guarantee().epsilon(DELTA).lower <= upper_only(run).epsilon(DELTA).upper


def test_noise_is_calibrated(sampler):
    noise = calibrate.noise_multiplier(sampler, epsilon=3.0, delta=DELTA)
    assert Mechanism(sampler, noise).guarantee().epsilon(DELTA).upper <= 3.0


def test_the_command_line_describes_and_prices_it(name, sampler):
    typed = [
        "account",
        "--sampler",
        name,
        *options.describe(sampler),
        "-z",
        str(NOISE),
        "--delta",
        str(DELTA),
        "--json",
    ]
    result = CliRunner().invoke(app, typed, catch_exceptions=False)
    answer = json.loads(result.stdout)
    run = Mechanism(sampler, NOISE)
    assert answer["mechanism"] == repr(run)
    assert answer["epsilon"][0]["upper"] == run.guarantee().epsilon(DELTA).upper


def test_it_is_planned_or_says_how_else(name):
    planner = Planner(Target(RECORDS, epsilon=4.0, delta=DELTA))
    if name in NOT_PLANNED:
        assert name not in registry.plannable()
        with pytest.raises(ValueError, match=f"sampler {name} has"):
            planner.plan(name, BATCH, EPOCHS)
        return
    plan = planner.plan(name, BATCH, EPOCHS)
    assert plan.mechanism.guarantee().epsilon(DELTA).upper <= 4.0
    assert f"--sampler {name}" in command_lines(plan)[0]


def test_it_is_compared_with_the_others(name):
    found = [type(one) for _, one in comparison.samplers(batches=10, epochs=2, records=RECORDS)]
    assert (registry.named(name).kind in found) is (name in registry.plannable())


def test_the_browser_asks_for_it(name, sampler):
    if name not in registry.plannable():
        with pytest.raises(ValueError, match="sampler must be one of"):
            requests.CompareRequest(sampler=[name])
        return
    asked = requests.CompareRequest(
        records=RECORDS, batch=BATCH, epochs=EPOCHS, noise_multiplier=NOISE, sampler=[name]
    )
    assert service.compare_steps(asked)[-1].task.arguments[0].mechanism() == Mechanism(
        sampler, NOISE
    )


def test_an_audit_does_not_refute_it(sampler):
    run = Mechanism(sampler, NOISE)
    result = audit_sampler(
        sampler, run, delta=1e-3, trials=400, population=RECORDS, insecure_seed=3
    )
    assert not result.refuted


def test_it_trains_and_its_ledger_states_what_ran(sampler, tmp_path):
    torch.manual_seed(0)
    data = torch.randn(RECORDS, 4), torch.randint(0, 2, (RECORDS,))
    run = Mechanism(sampler, NOISE)
    fitted = fit(
        torch.nn.Linear(4, 2),
        torch.nn.CrossEntropyLoss(),
        data,
        run,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ledger=tmp_path / "run.ledger",
        delta=DELTA,
        progress=False,
    )
    found = ledger.read(tmp_path / "run.ledger")
    assert found.complete
    assert found.mechanism.mechanisms == (run,)
    assert str(fitted.statement()).count("epsilon") > 0


def test_a_toy_costs_what_it_relabels():
    toy, poisson = Relabelled(0.1, 20), Poisson(0.1, 20)
    for group in (1, 2):
        ours, theirs = (
            Mechanism(one, NOISE).guarantee(group).epsilon(DELTA) for one in (toy, poisson)
        )
        assert (ours.lower, ours.upper) == (theirs.lower, theirs.upper)
    assert calibrate.noise_multiplier(toy, 3.0, DELTA) == calibrate.noise_multiplier(
        poisson, 3.0, DELTA
    )


def test_what_is_not_said_is_refused_when_registering():
    @dataclass(frozen=True)
    class Silent(Sampler):
        relation = "add-remove"

    with pytest.raises(TypeError, match="Silent must say repeats, independent_records"):
        registry.register("silent", "silent")(Silent)


def test_a_name_or_a_class_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        registry.register("poisson", "again")(Relabelled)
    other = replace(registry.named("poisson"), name="other")
    assert other.kind is Poisson


def test_a_subclass_that_is_not_priced_is_refused():
    class Other(Poisson):
        pass

    with pytest.raises(NoGuarantee, match="no privacy analysis is known for Other"):
        Mechanism(Other(0.1, 3), 1.0).guarantee()
