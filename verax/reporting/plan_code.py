"""A plan as code and as command lines that run it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from verax.mechanism import Mixed
from verax.planning import Plan
from verax.samplers import options

_TEMPLATE = """\
import torch
from verax import {names}
from verax.training import fit

run = Mechanism(
    {sampler},
    noise_multiplier={noise!r},
    clipping={clipping},
    relation={relation!r},
)
print(run.guarantee({group}).epsilon(delta={delta!r}))  # its upper side is at most {epsilon!r}

# Put your own model and data in place of these {records} made-up records.
model = torch.nn.Linear(20, 2)
data = torch.randn({records}, 20), torch.randint(0, 2, ({records},))

fitted = fit(
    model,
    torch.nn.CrossEntropyLoss(),
    data,
    run,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    ledger="run.ledger",
    delta={delta!r},
)
print(fitted.statement())
"""


def python_code(plan: Plan) -> str:
    """A program that runs the plan, from the mechanism to the statement.

    >>> from verax.planning import Planner, Target
    >>> plan = Planner(Target(records=60000, epsilon=1.0, delta=1e-5)).plan(
    ...     "poisson", batch=600, epochs=10
    ... )
    >>> "Poisson(rate=0.01, steps=1000)" in python_code(plan)
    True
    """
    mechanism, target = plan.mechanism, plan.target
    names = sorted(
        {type(part).__name__ for part in (mechanism, mechanism.sampler, mechanism.clipping)}
    )
    return _TEMPLATE.format(
        names=", ".join(names),
        sampler=_call(mechanism.sampler),
        noise=mechanism.noise_multiplier,
        clipping=_call(mechanism.clipping),
        relation=mechanism.relation,
        group=f"group={target.group}" if target.group > 1 else "",
        delta=target.delta,
        epsilon=target.epsilon,
        records=target.records,
    )


def _call(value: Any) -> str:
    """A frozen value as the call that makes it."""
    arguments = (
        f"{field.name}={getattr(value, field.name)!r}" for field in fields(value) if field.init
    )
    return f"{type(value).__name__}({', '.join(arguments)})"


def command_lines(plan: Plan) -> list[str]:
    """A command that accounts for this run and, if ``verax train`` can run it, one that does.

    >>> from verax.planning import Planner, Target
    >>> plan = Planner(Target(records=60000, epsilon=1.0, delta=1e-5)).plan(
    ...     "balls-in-bins", batch=600, epochs=2
    ... )
    >>> command_lines(plan)[0]
    'verax account --sampler balls-in-bins --batches 100 --epochs 2 ...'
    """
    target, sampler = plan.target, _sampler_options(plan)
    run = {
        "--noise-multiplier": repr(plan.noise_multiplier),
        "--clipping": type(target.clipping).__name__.lower(),
    }
    if isinstance(target.clipping, Mixed):
        run["--clip-groups"] = str(target.clipping.groups)
    way, delta = {"--sampler": plan.way}, {"--delta": repr(target.delta)}
    relation = {"--relation": plan.mechanism.relation}
    group = {"--group": str(target.group)} if target.group > 1 else {}
    account = _command("account", way | sampler | run | relation | delta | group)
    special = {flag: value for flag, value in sampler.items() if flag not in options.SHARED}
    if not _is_trainable(plan, special):
        return [account]
    sizes = {"--batch": str(plan.batch), "--epochs": str(plan.epochs)}
    data, ledger = {"--data": "yours.csv"}, {"--ledger": "run.ledger"}
    return [account, _command("train", data | way | sizes | special | run | delta | ledger)]


def _command(name: str, given: Mapping[str, str]) -> str:
    words = [word for option in given.items() for word in option]
    return shlex.join(["verax", name, *words])


def _sampler_options(plan: Plan) -> dict[str, str]:
    words = options.describe(plan.sampler)
    return dict(zip(words[::2], words[1::2], strict=True))


def _is_trainable(plan: Plan, special: Mapping[str, str]) -> bool:
    """Whether ``verax train`` runs this very sampler, under the sampler's own relation.

    ``special`` are the options that it cannot derive from data, batch size and epochs.
    """
    given: dict[str, Any] = {
        "--records": plan.target.records,
        "--batch": plan.batch,
        "--epochs": plan.epochs,
    }
    given |= {flag: int(value) for flag, value in special.items()}
    try:
        made = options.build(plan.way, given)
    except ValueError:  # what the options would describe there is impossible
        return False
    return plan.mechanism.relation == plan.sampler.relation and made == plan.sampler
