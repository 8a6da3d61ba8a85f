"""The facts of a privacy statement, computed once; prose, JSON and the page are written from these and nothing else."""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import dataclass, replace
from functools import cached_property, singledispatch
from importlib.metadata import PackageNotFoundError, version

import numpy as np

import verax
from verax import checks
from verax.ledger.run import Run, at_most, compose, if_independent
from verax.mechanism import UNITS, Mechanism, Phases
from verax.privacy.guarantee import Bracket, Guarantee
from verax.privacy.renyi.filter import Budget
from verax.privacy.tradeoff import TradeOff, between
from verax.privacy.tuning import Tuned

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1)
# epsilons at which delta is bracketed, for the figures and for what an attacker can tell
_POINTS = 40
_BELOW = 1e-3  # how far below the stated delta they go
_LEAST_DELTA = 1e-12  # and no further than this
_NO_REACH = 20.0  # how far they go where no epsilon is finite
_RTOL = 0.01  # of those deltas
_FAR = 700.0  # beyond this, e^epsilon is no double any more, and says nothing of an attacker

UNCOVERED = {
    "tuning": "Choosing parameters or a model by looking at the same data.",
    "scores": "Scores of trials that were measured on private data and released without noise.",
    "other-runs": "Other runs on the same data, earlier or later, also those that were thrown away; ledgers of several "
    "runs can be stated together.",
    "outside": "Whatever else was computed from the data: features scaled to fit them, validation scores, plots.",
    "seeds": "Reused, revealed or guessable randomness, and copies of a saved training state, which holds it.",
    "larger-groups": "More than {these} of one person or household.",
    "side-channels": "What timing, memory or logs of the computer give away.",
    "experiments": "Models and losses of one's own that let records see each other, or remember them: training looks "
    "for that by experiment, and does not prove that there is none.",
    "rounding": "How one record changes the rounding of the others in sums of single precision, before the noise: "
    "well within the room that clipping leaves where it was measured, but not bounded for data made to provoke it.",
}
"""What no statement of a run covers, by name."""
_USUAL = tuple(name for name in UNCOVERED if name != "scores")
RUN, SEARCH, BUDGET = "run", "search", "budget"
FREE = "what runs is chosen on the way, so no attack is fixed"


@dataclass(frozen=True)
class Reach:
    """What an attacker can reach at a rate of false alarms: the share of members found, and how sharp that bound is."""

    false_alarms: float
    least: float
    """No analysis by epsilon and delta can rule out this share. (An attack need not reach it: both
    directions of the relation share one curve, and an attack is about one of them.)"""
    most: float
    """No attacker finds more."""


@dataclass(frozen=True)
class Point:
    """A bracket on delta at one epsilon."""

    epsilon: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Facts:
    """Everything a statement says.

    >>> from verax import Mechanism, Poisson
    >>> g = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0).guarantee()
    >>> facts = Facts.of(g, delta=1e-5)
    >>> facts.adversary, facts.relation, facts.epsilon.upper < 1.83
    ('A0', 'add-remove', True)
    >>> [round(reach.most, 3) for reach in facts.reach]
    [0.004, 0.029, 0.111, 0.195]
    """

    delta: float
    epsilon: Bracket
    group: int
    relation: str
    adversary: str
    """"A0" sees all noisy sums; "A1" is also told where the protected records fell."""
    assuming: str
    by: str
    """What the guarantee is of, if it is more than one run: words that follow the epsilon."""
    settings: tuple[Phases, ...]
    """What runs; one of several if they were searched."""
    points: tuple[Point, ...]
    runs: tuple[Run, ...]
    """What the ledgers say, if there are any."""
    if_independent: Bracket | None
    """Epsilon at the same delta, if neither data nor results had a say in when an unfinished run
    ended.
    """
    private: bool
    """Whether the randomness was secret, as far as is known."""
    uncovered: tuple[str, ...]
    """Names in ``UNCOVERED``."""
    software: tuple[tuple[str, str], ...]
    kind: str = RUN
    """What the guarantee is of: a run, one trial of a search, or a budget that phases were taken
    from as one went.
    """
    context: str = ""
    """Whom of several observers it is about, in words, if there are several."""
    notes: tuple[str, ...] = ()
    """What else a reviewer should know about the number, a sentence each."""
    records: int | None = None
    """How many records there are, if that is public and no ledger says it."""
    unit: str = "record"
    """What a group has so many of: a record, or a client with all its records."""

    @classmethod
    def of(
        cls,
        guarantee: Guarantee,
        delta: float,
        runs: tuple[Run, ...] = (),
        *,
        private: bool = True,
        independent: Guarantee | None = None,
        context: str = "",
        records: int | None = None,
    ) -> Facts:
        """The facts of a guarantee, with what ledgers say about the runs it is the guarantee of.

        They do not depend on what the guarantee was asked before, so a statement and a report of
        its ledger agree.
        """
        guarantee = replace(guarantee)
        scope, epsilon = _scope(guarantee), guarantee.epsilon(delta)
        return cls(
            delta=float(delta),
            epsilon=epsilon,
            group=guarantee.group,
            relation=guarantee.mechanism.relation,
            adversary="A1" if "adversary A1" in guarantee.assuming else "A0",
            assuming=guarantee.assuming,
            by=scope.by,
            settings=scope.settings,
            points=_points(guarantee, delta),
            runs=tuple(runs),
            if_independent=None
            if independent is None
            else at_most(independent.epsilon(delta), epsilon),
            private=private and not any(run.insecure_seed for run in runs),
            uncovered=scope.uncovered,
            software=software(),
            kind=scope.kind,
            context=context,
            records=records,
            unit=guarantee.unit,
        )

    @classmethod
    def of_budget(
        cls,
        budget: Budget,
        notes: tuple[str, ...] = (),
        *,
        private: bool = True,
        unit: str = "record",
    ) -> Facts:
        """The facts of a budget: what was fixed beforehand for whatever is spent from it."""
        return cls(
            delta=budget.delta,
            epsilon=Bracket(
                0.0, budget.epsilon, "proved", FREE, "a Rényi filter (docs/budget.md, theorem 1)"
            ),
            group=budget.group,
            relation=budget.relation,
            adversary="A0",
            assuming="",
            by="by everything spent from this budget, however phases were chosen from earlier outputs",
            settings=(Phases(budget.phases),) if budget.phases else (),
            points=_one_pair(budget.epsilon, budget.delta),
            runs=(),
            if_independent=None,
            private=private,
            uncovered=_USUAL,
            software=software(),
            kind=BUDGET,
            notes=notes,
            unit=checks.choice("unit", unit, UNITS),
        )

    @classmethod
    def of_runs(cls, runs: tuple[Run, ...], delta: float, group: int = 1) -> Facts:
        """The facts of several runs on the same data, from their ledgers."""
        return cls.of(compose(runs, group), delta, runs, independent=if_independent(runs, group))

    @cached_property
    def curve(self) -> TradeOff:
        """The trade-off curve that the points imply, certified from below, with its companion from above."""
        useful = [point for point in self.points if point.epsilon <= _FAR]
        columns = zip(*((point.epsilon, point.lower, point.upper) for point in useful), strict=True)
        return between(*map(list, columns))

    @cached_property
    def reach(self) -> tuple[Reach, ...]:
        """What an attacker can reach at the usual rates of false alarms."""
        curve = self.curve
        above = curve.above or curve
        return tuple(
            Reach(rate, max(1.0 - above(rate), 0.0), 1.0 - curve(rate)) for rate in FALSE_ALARMS
        )

    @property
    def advantage(self) -> Bracket:
        """The most by which true alarms can exceed false ones: delta at epsilon 0."""
        first = self.points[0]
        return Bracket(
            first.lower, first.upper, "proved", self.epsilon.lower_by, self.epsilon.upper_by
        )


@dataclass(frozen=True)
class Scope:
    """What a guarantee is of, and what it leaves out."""

    by: str
    settings: tuple[Phases, ...]
    uncovered: tuple[str, ...]
    kind: str = RUN


@singledispatch
def _scope(guarantee: Guarantee) -> Scope:
    return Scope("", (guarantee.mechanism,), _USUAL)


@_scope.register
def _searched(guarantee: Tuned) -> Scope:
    settings = (Phases((one,)) if isinstance(one, Mechanism) else one for one in guarantee.settings)
    return Scope(
        "by the released trial and the search for it",
        tuple(settings),
        tuple(name for name in UNCOVERED if name != "tuning"),
        SEARCH,
    )


def _points(guarantee: Guarantee, delta: float) -> tuple[Point, ...]:
    """Brackets on delta at even epsilons, from 0 to where delta is far below the stated one."""
    guarantee = guarantee.remembering()
    smallest = max(min(delta * _BELOW, 1e-8), min(_LEAST_DELTA, delta * _BELOW))
    top = guarantee.epsilon(smallest, rtol=0.1).upper
    top = max(top, 1e-3) if np.isfinite(top) else _NO_REACH
    brackets = [
        (top * i / _POINTS, guarantee.delta(top * i / _POINTS, rtol=_RTOL))
        for i in range(_POINTS + 1)
    ]
    return tuple(Point(epsilon, bracket.lower, bracket.upper) for epsilon, bracket in brackets)


def _one_pair(epsilon: float, delta: float) -> tuple[Point, ...]:
    """What (epsilon, delta) in both directions implies for other epsilons.

    Miss and false alarm rates satisfy beta >= 1 - delta - e^epsilon alpha and the same with the two
    exchanged, so 1 - beta - e^at alpha, whose largest value is delta at ``at``, is largest where
    both hold with equality: at alpha = beta = (1 - delta) / (1 + e^epsilon) if ``at`` is at most
    epsilon, and at alpha = 0 beyond.
    """
    found = []
    for i in range(_POINTS + 1):
        at = 1.25 * epsilon * i / _POINTS
        rest = (1.0 - delta) * max(-math.expm1(at - epsilon), 0.0) / (1.0 + math.exp(-epsilon))
        found.append(Point(at, 0.0, min((delta + rest) * (1.0 + 1e-12), 1.0)))
    return tuple(found)


def software() -> tuple[tuple[str, str], ...]:
    """Names and versions of what is loaded and counts: verax, Python, the numerics, torch and the noise's cipher."""
    found = [("verax", verax.__version__), ("python", platform.python_version())]
    for name in ("numpy", "scipy", "torch", "cryptography"):
        if name in sys.modules:
            try:
                found.append((name, version(name)))
            except PackageNotFoundError:
                continue
    return tuple(found)
