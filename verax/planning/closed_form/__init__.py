"""The closed forms of "Proactive DP": the noise that a formula asks for, beside the accountant.

``theorems`` has theorems 3.1 and B.4, ``calculator`` the calculators of appendices D.4 and E.1.
"""

from __future__ import annotations

from verax.mechanism import Individual
from verax.planning.closed_form.theorems import (
    LARGEST_EPSILON,
    FailedCondition,
    GrantedGuarantee,
    Work,
    sigma,
    theorem_31,
    theorem_b4,
)
from verax.planning.planner import Plan
from verax.samplers import Poisson


def closed_form(plan: Plan) -> GrantedGuarantee | FailedCondition | None:
    """The noise of theorem 3.1 (from epsilon 1/2: B.4), or the condition that fails.

    None where the theorems say nothing: batches other than Poisson's, other clippings, groups,
    replacement.

    >>> from verax.planning import Planner, Target
    >>> plan = Planner(Target(60_000, epsilon=0.15, delta=1e-5)).plan(
    ...     "poisson", batch=128, epochs=10
    ... )
    >>> asked = closed_form(plan)
    >>> round(asked.sigma, 1), round(plan.noise_multiplier, 1)
    (12.5, 3.2)
    """
    target = plan.target
    plainly = (
        isinstance(plan.sampler, Poisson)
        and isinstance(target.clipping, Individual)
        and target.group == 1
    )
    if (
        not plainly
        or plan.mechanism.relation == "replace"
        or target.records < 2
        or plan.batch >= target.records
    ):
        return None
    work = Work(target.records, plan.rounds, plan.work / target.records)
    theorem = theorem_31 if target.epsilon < LARGEST_EPSILON else theorem_b4
    return theorem(work, sigma(target.epsilon, target.delta), target.epsilon, target.delta)
