"""Plans as code and as command lines: what they make is the plan, for every sampler."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from verax import Batch, Individual, Mechanism, Mixed
from verax.cli import app
from verax.cli.options import ClippingName, RunOptions, SamplerFlags
from verax.planning import Plan, Target, plannable
from verax.reporting.plan_code import command_lines, python_code
from verax.samplers import planned as planned_sampler
from verax.samplers.options import all_options


def planned(way, records=2000, batch=130, epochs=3, noise=1.7, **target):
    """A plan whose noise was not solved for."""
    return Plan(
        Target(records, 1.0, 1e-5, **target),
        way,
        batch,
        epochs,
        planned_sampler(way, records, batch, epochs),
        noise,
        1.0,
    )


def options(line):
    words = shlex.split(line)
    return words[1], dict(zip(words[2::2], words[3::2], strict=True))


def described(given, records):
    """The sampler that the command line makes of these options."""

    known = {flag: kind(given[flag]) for flag, (kind, _) in all_options().items() if flag in given}
    flags = SamplerFlags(known | ({"--records": records} if records else {}))
    groups = int(given.get("--clip-groups", 1))
    return RunOptions(given["--sampler"], flags, ClippingName(given["--clipping"]), groups)


@pytest.mark.parametrize("way", plannable())
@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=3)])
def test_code_makes_the_mechanism(way, clipping):
    plan = planned(way, clipping=clipping, group=2)
    code = python_code(plan)
    head = code.partition("print(")[0]
    names: dict[str, object] = {}
    exec(head.replace("import torch\n", "").replace("from verax.training import fit\n", ""), names)
    assert names["run"] == plan.mechanism
    assert "guarantee(group=2)" in code
    compile(code, "plan.py", "exec")


@pytest.mark.parametrize("way", plannable())
def test_command_lines_make_the_sampler(way):
    plan = planned(way)
    lines = command_lines(plan)
    for line in lines:
        command, given = options(line)
        made = described(given, plan.target.records if command == "train" else None)
        assert made.build_sampler() == plan.sampler
        assert made.build_clipping() == plan.target.clipping
        assert float(given["--noise-multiplier"]) == plan.noise_multiplier
    assert len(lines) == (1 if way == "random-allocation" else 2)


@given(
    st.integers(10, 10**6),
    st.integers(1, 500),
    st.integers(1, 60),
    st.sampled_from(list(plannable())),
)
def test_a_training_command_is_given_only_if_it_runs_the_plan(records, batch, epochs, way):
    plan = planned(way, records, min(batch, records), epochs)
    for line in command_lines(plan):
        command, given = options(line)
        assert (
            described(given, records if command == "train" else None).build_sampler()
            == plan.sampler
        )


def test_the_command_runs():
    plan = planned("poisson", group=2)
    line = shlex.split(command_lines(plan)[0])
    result = CliRunner().invoke(app, [*line[1:]], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"{Mechanism(plan.sampler, 1.7).guarantee(2).epsilon(1e-5)}"[1:6] in result.stdout


def test_another_relation_is_not_trained_by_the_command_line():
    assert len(command_lines(planned("poisson", relation="zero-out"))) == 1
