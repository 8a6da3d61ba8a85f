"""The facts of a privacy statement; prose, JSON and page are written from these alone."""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version

import verax
from verax import checks
from verax.ledger.run import Run, at_most, compose, if_independent
from verax.mechanism import UNITS, Mechanism, Phases
from verax.privacy.guarantee import Bracket, Guarantee
from verax.privacy.renyi.filter import Budget
from verax.privacy.tradeoff import TradeOff, from_brackets
from verax.privacy.tuning import Tuned

# Rates of false alarms at which a statement says what an attacker can find.
FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1)
# Epsilons at which delta is bracketed, for the figures and for what an attacker can find.
_POINTS = 40
# These epsilons go up to where delta is this much below the stated one, but not below the least.
_BELOW = 1e-3
_LEAST_DELTA = 1e-12
# Where they end if no epsilon is finite.
_LARGEST_EPSILON = 20.0
# Relative width of the brackets on delta.
_RTOL = 0.01
# Beyond this e^epsilon is no double any more, and says nothing of an attacker.
_OVERFLOW = 700.0

# What no statement of a run covers, by name.
UNCOVERED = {
    "tuning": "Choosing parameters or a model by looking at the same data.",
    "scores": "Scores of trials that were measured on private data and released without noise.",
    "other-runs": "Other runs on the same data, earlier or later, also those that were thrown "
    "away; ledgers of several runs can be stated together.",
    "outside": "Whatever else was computed from the data: features scaled to fit them, validation "
    "scores, plots.",
    "seeds": "Reused, revealed or guessable randomness, and copies of a saved training state, "
    "which holds it.",
    "larger-groups": "More than {these} of one person or household.",
    "side-channels": "What timing, memory or logs of the computer give away.",
    "experiments": "Models and losses of one's own that let records see each other, or remember "
    "them: training looks for that by experiment, and does not prove that there is none.",
    "rounding": "How one record changes the rounding of the others in sums of single precision, "
    "before the noise: well within the room that clipping leaves where it was measured, but not "
    "bounded for data made to provoke it.",
}
_OF_ONE_RUN = tuple(name for name in UNCOVERED if name != "scores")
_OF_A_SEARCH = tuple(name for name in UNCOVERED if name != "tuning")
# What a guarantee is of: a run, one trial of a search, or a budget that phases were taken from.
RUN, SEARCH, BUDGET = "run", "search", "budget"


@dataclass(frozen=True)
class Reach:
    """The share of members that an attacker can find at a rate of false alarms."""

    false_alarms: float
    # No analysis by epsilon and delta can rule out this share. (An attack need not reach it: both
    # directions of the relation share one curve, and an attack is about one of them.)
    least: float
    # No attacker finds more.
    most: float


@dataclass(frozen=True)
class DeltaAt:
    """A bracket on delta at one epsilon."""

    epsilon: float
    lower: float
    upper: float


def loaded_software() -> tuple[tuple[str, str], ...]:
    """Names and versions of the loaded software that the numbers depend on."""
    found = [("verax", verax.__version__), ("python", platform.python_version())]
    for name in ("numpy", "scipy", "torch", "cryptography"):
        if name in sys.modules:
            try:
                found.append((name, version(name)))
            except PackageNotFoundError:
                continue
    return tuple(found)


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
    # What runs; one of several if they were searched.
    settings: tuple[Phases, ...]
    points: tuple[DeltaAt, ...]
    # "A0" sees all noisy sums; "A1" also knows in which rounds the protected records took part.
    adversary: str = "A0"
    assuming: str = ""
    # What the guarantee is of, if it is more than one run: words that follow the epsilon.
    by: str = ""
    # What the ledgers say, if there are any.
    runs: tuple[Run, ...] = ()
    # Epsilon at the same delta, if the end of an unfinished run did not depend on the data.
    if_independent: Bracket | None = None
    # Whether the randomness was secret, as far as is known.
    private: bool = True
    # Names in ``UNCOVERED``.
    uncovered: tuple[str, ...] = _OF_ONE_RUN
    software: tuple[tuple[str, str], ...] = field(default_factory=loaded_software)
    kind: str = RUN
    # Whom of several observers it is about, in words, if there are several.
    context: str = ""
    # What else a reviewer should know about the number, a sentence each.
    notes: tuple[str, ...] = ()
    # How many records there are, if that is public and no ledger says it.
    records: int | None = None
    # What is protected: a record, or a client with all its records.
    unit: str = "record"

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
        epsilon = guarantee.epsilon(delta)
        smaller = None
        if independent is not None:
            smaller = at_most(independent.epsilon(delta), epsilon)
        facts = cls(
            delta=float(delta),
            epsilon=epsilon,
            group=guarantee.group,
            relation=guarantee.mechanism.relation,
            adversary="A1" if "adversary A1" in guarantee.assuming else "A0",
            assuming=guarantee.assuming,
            settings=(guarantee.mechanism,),
            points=_deltas(guarantee, delta),
            runs=tuple(runs),
            if_independent=smaller,
            private=private and not any(run.insecure_seed for run in runs),
            context=context,
            records=records,
            unit=guarantee.unit,
        )
        return facts._of_search(guarantee) if isinstance(guarantee, Tuned) else facts

    def _of_search(self, guarantee: Tuned) -> Facts:
        """The facts of one trial of a search, whose guarantee covers the search."""
        settings = (
            Phases((one,)) if isinstance(one, Mechanism) else one for one in guarantee.settings
        )
        return replace(
            self,
            by="by the released trial and the search for it",
            settings=tuple(settings),
            uncovered=_OF_A_SEARCH,
            kind=SEARCH,
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
        no_attack = "what runs is chosen on the way, so no attack is fixed"
        theorem = "a Rényi filter (docs/budget.md, theorem 1)"
        return cls(
            delta=budget.delta,
            epsilon=Bracket(0.0, budget.epsilon, "proved", no_attack, theorem),
            group=budget.group,
            relation=budget.relation,
            by="by everything spent from this budget, however phases were chosen from earlier "
            "outputs",
            settings=(Phases(budget.phases),) if budget.phases else (),
            points=_deltas_of_pair(budget.epsilon, budget.delta),
            private=private,
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
        """The trade-off curve that the points imply, certified from below and from above."""
        finite = [point for point in self.points if point.epsilon <= _OVERFLOW]
        return from_brackets(
            [point.epsilon for point in finite],
            [point.lower for point in finite],
            [point.upper for point in finite],
        )

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
        first, by = self.points[0], self.epsilon
        return Bracket(first.lower, first.upper, "proved", by.lower_by, by.upper_by)


def _deltas(guarantee: Guarantee, delta: float) -> tuple[DeltaAt, ...]:
    """Brackets on delta at even epsilons, from 0 to where delta is far below the stated one."""
    guarantee = guarantee.with_shared_plds()
    smallest = max(min(delta * _BELOW, 1e-8), min(_LEAST_DELTA, delta * _BELOW))
    top = guarantee.epsilon(smallest, rtol=0.1).upper
    top = max(top, 1e-3) if math.isfinite(top) else _LARGEST_EPSILON
    epsilons = [top * i / _POINTS for i in range(_POINTS + 1)]
    brackets = [guarantee.delta(epsilon, rtol=_RTOL) for epsilon in epsilons]
    return tuple(DeltaAt(e, b.lower, b.upper) for e, b in zip(epsilons, brackets, strict=True))


def _deltas_of_pair(epsilon: float, delta: float) -> tuple[DeltaAt, ...]:
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
        found.append(DeltaAt(at, 0.0, min((delta + rest) * (1.0 + 1e-12), 1.0)))
    return tuple(found)
