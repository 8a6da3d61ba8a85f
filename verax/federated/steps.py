"""Step sizes that diminish with the records used so far, a public number."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verax import checks


@dataclass(frozen=True)
class Diminishing:
    """Step size after t records: ``first / (1 + beta t)``, with ``root`` sqrt(t) for t.

    Args:
        first: the step size of the first round, for each record.
        beta: how fast it diminishes; 0 for a constant.
        root: whether with the square root of t, as for objectives that are not strongly convex.

    >>> Diminishing(0.1, beta=0.01)(100.0)
    0.05
    >>> Diminishing(0.1, beta=0.1, root=True)(100.0)
    0.05
    """

    first: float
    beta: float = 0.0
    root: bool = False

    def __post_init__(self) -> None:
        checks.positive("first", self.first)
        checks.nonnegative("beta", self.beta)

    def __call__(self, records: float) -> float:
        """The step size after so many records."""
        return self.first / (1.0 + self.beta * (math.sqrt(records) if self.root else records))
