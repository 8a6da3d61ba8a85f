"""Choose parameters before anything runs: plans that meet a privacy target, and their costs.

>>> from verax.planning import Target, frontier, ranked
>>> target = Target(records=60000, epsilon=1.0, delta=1e-5)
>>> best = ranked(frontier(target, batches=[256, 1024], epochs=[5, 20]))[0]
>>> best.batch, best.epochs, best.epsilon <= 1.0
(1024, 20, True)
"""

from verax.planning.costs import Change, changes
from verax.planning.frontier import (
    RANKINGS,
    frontier,
    full_batch_signal,
    ranked,
    undominated,
    within,
)
from verax.planning.planner import Plan, Planner, Target
from verax.planning.unknowns import (
    fewest_records,
    largest_batch,
    most_rounds,
    reachable_delta,
    reachable_epsilon,
)
from verax.samplers.registry import plannable, planned

__all__ = [
    "RANKINGS",
    "Change",
    "Plan",
    "Planner",
    "Target",
    "changes",
    "fewest_records",
    "frontier",
    "full_batch_signal",
    "largest_batch",
    "most_rounds",
    "plannable",
    "planned",
    "ranked",
    "reachable_delta",
    "reachable_epsilon",
    "undominated",
    "within",
]
