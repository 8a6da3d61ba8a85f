"""What a change of plan costs: each is planned anew, so the percentages are of proved numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from verax.checks import NoGuarantee
from verax.planning.planner import Plan, Planner, Target


@dataclass(frozen=True)
class Change:
    """One change, batch size and epochs the same, and the plan that then meets the target."""

    words: str
    before: Plan
    after: Plan

    @property
    def noise(self) -> float:
        """Relative change of the noise multiplier."""
        return _relative_change(self.after.noise_multiplier, self.before.noise_multiplier)

    @property
    def signal(self) -> float:
        """Relative change of the run's signal to noise."""
        return _relative_change(self.after.signal_of_run, self.before.signal_of_run)

    @property
    def rounds(self) -> float:
        """Relative change of the rounds."""
        return _relative_change(self.after.rounds, self.before.rounds)

    def __str__(self) -> str:
        return (
            f"{self.words}: noise {_percent(self.noise)}, signal of the run {_percent(self.signal)}"
            + (f", rounds {_percent(self.rounds)}" if self.rounds else "")
        )


def changes(plan: Plan) -> list[Change]:
    """The costs of the usual changes to a plan with noise, except those that cannot be made.

    >>> from verax.planning import Planner, Target
    >>> plan = Planner(Target(records=60000, epsilon=1.0, delta=1e-5)).plan(
    ...     "poisson", batch=600, epochs=10
    ... )
    >>> print(changes(plan)[0])
    twice the epochs: noise +30 %, signal of the run +9 %, rounds +100 %
    """
    if plan.noise_multiplier == 0.0:
        return []
    found = []
    for words, target, batch, epochs in _usual_changes(plan):
        try:
            after = Planner(target).plan(plan.way, batch, epochs)
        except NoGuarantee:
            continue
        found.append(Change(words, plan, after))
    return found


def _usual_changes(plan: Plan) -> Iterator[tuple[str, Target, int, int]]:
    target, batch, epochs = plan.target, plan.batch, plan.epochs
    yield "twice the epochs", target, batch, 2 * epochs
    if epochs % 2 == 0:
        yield "half the epochs", target, batch, epochs // 2
    if 2 * batch <= target.records:
        yield "twice the batch", target, 2 * batch, epochs
    if batch % 2 == 0:
        yield "half the batch", target, batch // 2, epochs
    yield "half the epsilon", replace(target, epsilon=target.epsilon / 2.0), batch, epochs
    yield "a tenth of delta", replace(target, delta=target.delta / 10.0), batch, epochs
    yield "twice the records", replace(target, records=2 * target.records), batch, epochs
    if 2 * target.group <= target.records:
        size = 2 * target.group
        yield f"any {size} records together", replace(target, group=size), batch, epochs


def _relative_change(after: float, before: float) -> float:
    return after / before - 1.0


def _percent(change: float) -> str:
    return f"{100.0 * change:+.{0 if abs(change) >= 0.0095 else 1}f} %"
