"""What a run guarantees: brackets on epsilon and delta, with the theorem on each side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Protocol

from verax import checks
from verax.privacy.curves.base import Curve, with_shared_plds
from verax.privacy.curves.triangle import SmallestBound
from verax.privacy.numerics.rounding import OPS_8M, up
from verax.privacy.pld.composition import BOTH, LOWER, UPPER, Sides
from verax.privacy.tradeoff import TradeOff, from_brackets

if TYPE_CHECKING:
    from verax.mechanism import Phases
    from verax.reporting.statement import Statement

DEFAULT_RTOL = 1e-3
_POINTS = 200  # epsilons at which a trade-off curve is touched
_SMALLEST_SHOWN = 1e-8  # delta up to which it is
_FLAT = 1e-5  # absolute accuracy of its deltas
_NO_REACH = 20.0  # how far to look where no epsilon is finite
_SMALLEST_DELTA = 1e-300  # below this doubles lose their digits


@dataclass(frozen=True)
class Bracket:
    """A quantity known to lie between ``lower`` and ``upper``, and how that is known.

    ``float()`` of it is the upper bound.

    >>> from verax.privacy.guarantee import Bracket
    >>> Bracket(1.82801, 1.82855)
    Bracket(lower=1.8280, upper=1.8286)
    >>> float(Bracket(1.0, 2.0))
    2.0
    """

    lower: float
    upper: float
    evidence: str = "proved"
    lower_by: str = ""
    upper_by: str = ""

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ArithmeticError(
                f"lower bound {self.lower!r} exceeds upper bound {self.upper!r}: please report this"
            )

    def __float__(self) -> float:
        return self.upper

    @property
    def width(self) -> float:
        """How far apart the two sides are."""
        return self.upper - self.lower if self.lower < self.upper else 0.0

    def __repr__(self) -> str:
        lower, upper = format_bound(self.lower, LOWER), format_bound(self.upper, UPPER)
        return f"Bracket(lower={lower}, upper={upper})"

    def __str__(self) -> str:
        return f"[{format_bound(self.lower, LOWER)}, {format_bound(self.upper, UPPER)}]"


def format_bound(value: float, side: int, digits: int = 5) -> str:
    """A number to a few digits, rounded down for a lower bound and up for an upper one."""
    if value == 0.0 or math.isinf(value):
        return f"{value:g}"
    exact = Decimal(value)
    exponent = exact.adjusted()
    unit = Decimal(1).scaleb(exponent - digits + 1)
    number = exact.quantize(unit, rounding=ROUND_CEILING if side == UPPER else ROUND_FLOOR)
    return (
        f"{number:.{max(digits - 1 - exponent, 0)}f}"
        if -4 <= exponent < 6
        else f"{number:.{digits - 1}e}"
    )


def orthogonality_assumption(relation: str) -> str:
    """What geometry="orthogonal" assumes, in words (docs/proofs.md, theorem 9)."""
    if relation == "replace":
        return (
            "that in every round the old and new gradients of each record of the group "
            "are orthogonal to the old and "
            "new ones of all others of the group"
        )
    return "that the group's gradients are orthogonal to each other in every round"


class LastResort(Protocol):
    """Bounds that are looked at where others are infinite."""

    def bounds(self) -> Iterable[tuple[Sequence[Curve], str]]:
        """Upper curves that all count, and the theorem."""


@dataclass(frozen=True)
class Guarantee:
    """The privacy of a run for any ``group`` records, as brackets for all neighbouring data.

    ``uppers`` holds one curve per direction of the relation, each of which must be private;
    ``lowers`` holds attacks, any one of which proves a violation. They are the same objects where
    the analysis is exact.

    What was composed for one question is kept for the next, which is then answered sooner, with the
    same numbers: an answer depends on nothing but the mechanism and the question.
    """

    mechanism: Phases
    group: int
    uppers: Sequence[Curve]
    lowers: Sequence[Curve]
    upper_by: str
    lower_by: str
    exposure: float = 1.0
    """Probability that the group is sampled at all: no delta can exceed it (couple the runs until
    it is).
    """
    assuming: str = ""
    """What the caller has vouched for, in words; or which attacker is meant, if not the standard
    one.
    """
    extra_records: int = 0
    """How many more records than declared it also holds for: those that a chain of neighbours adds
    on its way.
    """
    last_resort: LastResort | None = field(default=None, repr=False, compare=False)
    """Further bounds on epsilon, looked at where those of ``uppers`` are infinite."""
    unit: str = "record"
    """What a group is counted in: "record", or "client" if what the sampler draws is all data of a
    client.
    """

    def epsilon(self, delta: float, rtol: float = DEFAULT_RTOL) -> Bracket:
        """The epsilon at this delta; the sides are within ``rtol`` if the analysis is exact.

        >>> from verax import Mechanism, Poisson
        >>> g = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0).guarantee()
        >>> 1.826 < g.epsilon(delta=1e-5).lower < 1.82824 < g.epsilon(delta=1e-5).upper < 1.830
        True
        """
        delta = checks.probability("delta", delta)
        if delta < _SMALLEST_DELTA:
            raise ValueError(f"delta must be at least {_SMALLEST_DELTA:g}, got {delta!r}")

        if delta >= self.exposure:
            return Bracket(
                0.0,
                0.0,
                "proved",
                self.lower_by,
                "the group is sampled with at most this probability",
            )

        def bounds(curve: Curve, tolerance: float, sides: Sides, enough: float) -> _Bound:
            if isinstance(curve, SmallestBound):
                return 0.0, *curve.epsilon_by(delta, tolerance, enough)
            return *curve.epsilon(delta, tolerance, sides, enough), ""

        found = self._bracket(bounds, _accuracy(rtol), lambda curve: curve.estimate(delta))
        others = self.last_resort.bounds() if self.last_resort and math.isinf(found.upper) else ()
        for curves, theorem in others:
            upper = max(curve.epsilon(delta, rtol, (UPPER,))[1] for curve in curves)
            if upper < found.upper:
                found = replace(found, upper=max(upper, found.lower), upper_by=theorem)
        return found

    def delta(self, epsilon: float, rtol: float = DEFAULT_RTOL) -> Bracket:
        """The delta at this epsilon; the sides are within ``rtol`` if the analysis is exact.

        >>> from verax import Mechanism, Poisson
        >>> g = Mechanism(Poisson(rate=0.001, steps=1000), noise_multiplier=0.8).guarantee()
        >>> 1.96e-23 < g.delta(epsilon=6.0).lower < 1.9694e-23 < g.delta(
        ...     epsilon=6.0
        ... ).upper < 1.98e-23
        True
        """
        epsilon = checks.nonnegative("epsilon", epsilon)

        def bounds(curve: Curve, tolerance: float, sides: Sides, enough: float) -> _Bound:
            if isinstance(curve, SmallestBound):
                return 0.0, *curve.delta_by(epsilon, tolerance, enough)
            return *curve.delta(epsilon, tolerance, sides, enough), ""

        found = self._bracket(bounds, _accuracy(rtol), lambda curve: curve.estimate(_TYPICAL_DELTA))
        if found.upper > self.exposure:
            found = replace(
                found,
                upper=self.exposure,
                upper_by="the group is sampled with at most this probability",
            )
        if found.lower < _SMALLEST_DELTA:
            found = replace(found, lower=0.0, upper=max(found.upper, _SMALLEST_DELTA))
        return found

    def tradeoff(self) -> TradeOff:
        """The trade-off curve: the least miss rate at every false-alarm rate, both directions.

        The curve is certified from below; its ``above`` is a companion that is never below the true
        curve.

        >>> from verax import Mechanism, Poisson
        >>> curve = (
        ...     Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
        ...     .guarantee()
        ...     .tradeoff()
        ... )
        >>> curve([0.01, 0.05, 0.1]).round(3)
        array([0.971, 0.889, 0.806])
        """
        apart = self.with_shared_plds()  # hundreds of questions about the same curves
        reach = apart.epsilon(_SMALLEST_SHOWN, rtol=0.1).upper
        top = max(reach, 1e-3) if math.isfinite(reach) else _NO_REACH
        epsilons = [top * i / _POINTS for i in range(_POINTS + 1)]
        brackets: list[Bracket] = []
        for epsilon in epsilons:
            likely = brackets[-1].upper if brackets else 1.0
            brackets.append(
                apart.delta(epsilon, rtol=min(max(_FLAT / max(likely, 1e-300), 1e-4), 0.05))
            )
        return from_brackets(epsilons, [b.lower for b in brackets], [b.upper for b in brackets])

    def with_shared_plds(self) -> Guarantee:
        """A copy for many questions, which remembers what was composed for earlier ones."""
        uppers = [with_shared_plds(curve) for curve in self.uppers]
        lowers = (
            uppers
            if self.lowers is self.uppers
            else [with_shared_plds(curve) for curve in self.lowers]
        )
        return replace(self, uppers=uppers, lowers=lowers)

    def _bracket(self, bounds: _Bounds, rtol: float, rank: Callable[[Curve], float]) -> Bracket:
        lower, upper, by = self._bounds(bounds, rtol, rank)
        if lower > up(upper, OPS_8M):
            raise ArithmeticError(
                f"lower bound {lower!r} exceeds upper bound {upper!r}: please report this"
            )
        return Bracket(min(lower, upper), upper, "proved", self.lower_by, by or self.upper_by)

    def _bounds(self, bounds: _Bounds, rtol: float, rank: Callable[[Curve], float]) -> _Bound:
        """Both sides of the worst direction; the others only as far as needed."""
        exact = self.uppers is self.lowers
        main, *others = sorted(self.uppers, key=rank, reverse=True)
        lower, upper, by = bounds(main, rtol, BOTH if exact else (UPPER,), 0.0)
        for curve in others:
            gap = 1.0 - rank(curve) / rank(main) if rank(main) > 0.0 else 0.0
            rough = min(max(rtol, 0.3 * gap), 0.1)
            if bounds(curve, rough, (UPPER,), upper)[1] > upper:
                low, other, name = bounds(curve, rtol, BOTH if exact else (UPPER,), 0.0)
                lower, by = max(lower, low), name if other > upper else by
                upper = max(upper, other)
        if not exact:
            lower = max(
                (bounds(curve, rtol, (LOWER,), 0.0)[0] for curve in self.lowers), default=0.0
            )
        return lower, upper, by

    def statement(self, delta: float) -> Statement:
        """The privacy statement in words; it can also be had as JSON and as a page.

        >>> from verax import Mechanism, Poisson
        >>> g = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0).guarantee()
        >>> print(g.statement(delta=1e-5).splitlines()[0])
        Any 1 record is protected with epsilon at most 1.8290 at delta 1e-05 (relation: add-remove).
        """
        # reporting depends on this module, not the reverse
        from verax.reporting.statement import Statement

        return Statement.of(self, delta)


_Bound = tuple[float, float, str]
"""From below, from above, and by which of several theorems the latter (empty: there is only one).
"""
_Bounds = Callable[[Curve, float, Sides, float], _Bound]
_TYPICAL_DELTA = (
    # where directions are ranked when epsilon is given; the ranking only decides what is computed
    # first
    1e-6
)


def _accuracy(rtol: float) -> float:
    value = checks.positive("rtol", rtol)
    if not 1e-7 <= value < 1.0:
        raise ValueError(f"rtol must lie in [1e-7, 1), got {rtol!r}")
    return value
