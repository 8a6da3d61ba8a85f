"""One direction of a run: rounds in, certified bounds on delta(eps) and epsilon(delta) out, as narrow as asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from verax.privacy import closed_form, loss
from verax.privacy.compose import Composed, compose
from verax.privacy.pairs import Pair
from verax.privacy.revealed import Revealed
from verax.privacy.roots import crossing
from verax.privacy.sketch import Sketch, Sketches
from verax.privacy.tables import Table

UPPER, LOWER = 1, -1
Sides = tuple[int, ...]
BOTH: Sides = (LOWER, UPPER)
_ATTEMPTS = 10
_SMALL = 0.03  # of the loss's standard deviation: an epsilon below that is small
_SHARE = 0.65  # of the width allowed, what the grid is planned to use
_ALIAS, _ALIAS_IRREGULAR = 1e-12, 1e-16  # mass outside the window; less where what counts is far from the bulk
_COARSE = 0.1  # width in log delta of a first look


@dataclass(frozen=True)
class Round:
    """A dominating pair; ``dominated`` is a pair that an attack achieves, if it is not the same.

    ``symmetric`` rounds are dominated by the pair in either direction, as the attacker may choose round by round.
    """

    pair: Pair | Table | Revealed
    dominated: Pair | Table | Revealed | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.symmetric and not isinstance(self.pair, Pair):
            raise ValueError("symmetric rounds are known for pairs of mixtures only")

    @property
    def is_gaussian(self) -> bool:
        """Whether closed forms apply."""
        return self.pair.is_gaussian and self.dominated is None

    def attack(self) -> Round:
        """What an attack achieves, alone."""
        return Round(self.dominated or self.pair)

    def reverse(self) -> Round:
        """The other direction."""
        return Round(self.pair.reverse(), self.dominated and self.dominated.reverse(), self.symmetric)


class Hand:
    """Laws composed for one asker, for its next questions; nobody else's answers depend on them.

    What is at hand decides how close a bracket is, so two askers who share laws could be told two numbers, both true.
    """

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[Composition, dict[int, list[Composed]]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Hand], tuple[()]]:
        return Hand, ()  # copies start empty

    def of(self, curve: Composition) -> dict[int, list[Composed]]:
        """The laws of this curve, by side."""
        return self._held.setdefault(curve, {UPPER: [], LOWER: []})

    @contextmanager
    def used(self) -> Iterator[None]:
        """Questions within are answered from this hand; from the outer one where they are part of a larger question."""
        token = _HAND.set(self if _HAND.get() is None else _HAND.get())
        try:
            yield
        finally:
            _HAND.reset(token)


_HAND: ContextVar[Hand | None] = ContextVar("hand", default=None)


class Composition:
    """A product of rounds, each repeated. Equal rounds, and all Gaussian ones, are merged first.

    Composed laws are kept, in the hand of the guarantee that asks or here: further questions nearby cost a dot product,
    not a new composition.
    """

    def __init__(self, rounds: Sequence[tuple[Round, int]]) -> None:
        self.rounds = _merge(rounds)
        self._own: dict[int, list[Composed]] = {UPPER: [], LOWER: []}
        self._sketches = Sketches([(rnd.pair, count) for rnd, count in self.rounds])

    @property
    def _laws(self) -> dict[int, list[Composed]]:
        """The laws at hand, by side."""
        hand = _HAND.get()
        return self._own if hand is None else hand.of(self)

    @property
    def gaussian_mu(self) -> float | None:
        """mu if the whole run is one Gaussian mechanism, for which everything is in closed form; else None."""
        (rnd, count), *more = self.rounds
        return rnd.pair.gaussian_shift * math.sqrt(count) if not more and rnd.is_gaussian else None

    @property
    def _supremum(self) -> float:
        """The largest loss there can be; infinite if mass was sent there."""
        unbounded = any(rnd.symmetric or rnd.pair.infinite > 0.0 for rnd, _ in self.rounds)
        return math.inf if unbounded else math.fsum([count * rnd.pair.supremum for rnd, count in self.rounds])

    def estimate(self, delta: float) -> float:
        """A rough epsilon, to choose among directions by; never a bound."""
        if (mu := self.gaussian_mu) is not None:
            return closed_form.gaussian_epsilon(mu, delta)
        near = (
            10.0 ** round(math.log10(delta)) if delta < 0.3 else 0.5
        )  # few distinct values, which the sketch remembers
        sketch = self._sketches.at(math.log(near), 1.0)
        return sketch.cumulants(sketch.tilt_for_delta(near))[1]

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on epsilon(delta); a side not asked for may be trivial.

        If only the upper side is asked for, a value of ``enough`` will do. Widths are relative to epsilon, or to a
        fraction of the loss's standard deviation where epsilon is smaller than that.
        """
        if (mu := self.gaussian_mu) is not None:
            return closed_form.gaussian_epsilon(mu, delta, LOWER), closed_form.gaussian_epsilon(mu, delta, UPPER)
        if self._single:
            return self._single_epsilon(delta, LOWER), self._single_epsilon(delta, UPPER)

        def plan(lower: float, upper: float) -> _Plan:
            sketch = self._sketches.at(math.log(delta), rtol)
            if math.isinf(upper):
                tilt = sketch.tilt_for_delta(delta)
                if not sketch.is_regular(tilt):
                    return _Plan(sketch, tilt, _COARSE, 0.0, coarse=True)
                upper = sketch.cumulants(tilt)[1]
            else:
                tilt = sketch.tilt_for_epsilon(upper)
            spread = max(math.sqrt(sketch.cumulants(tilt)[2]), 1e-12)
            floor = rtol * _SMALL * spread
            return _Plan(sketch, tilt, max(tilt, 0.5 / spread) * max(rtol * upper, floor), floor)

        def allowed(plan: _Plan, upper: float) -> float:
            return max(rtol * upper, plan.floor)

        most = self._supremum * (1.0 + 1e-12)  # no epsilon can exceed the largest loss there is
        if sides == (UPPER,) and most <= enough:
            return 0.0, most
        lower, upper = self._narrow(plan, allowed, lambda law: _solve_epsilon(law, delta), sides, enough)
        return lower, min(upper, most)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0.0) -> tuple[float, float]:
        """Lower and upper bound on delta(epsilon); a side not asked for may be trivial."""
        if (mu := self.gaussian_mu) is not None:
            return closed_form.gaussian_delta(mu, epsilon, LOWER), closed_form.gaussian_delta(mu, epsilon, UPPER)
        if self._single:
            rnd = self.rounds[0][0]
            return (rnd.dominated or rnd.pair).delta(epsilon)[0], rnd.pair.delta(epsilon)[1]
        if epsilon > self._supremum * (1.0 + 1e-9):
            return 0.0, 0.0

        def plan(lower: float, upper: float) -> _Plan:
            log_delta = math.log(lower) if lower > 0.0 else self._sketches.log_delta(epsilon, rtol) - 5.0
            sketch = self._sketches.at(log_delta, rtol)
            return _Plan(sketch, sketch.tilt_for_epsilon(epsilon), rtol, 0.0)

        def allowed(plan: _Plan, upper: float) -> float:
            return rtol * upper

        lower, upper = self._narrow(plan, allowed, lambda law: law.delta(epsilon), sides, enough)
        return lower, min(upper, 1.0)

    @property
    def _single(self) -> bool:
        """Whether there is only one round, for which nothing needs composing."""
        (rnd, count), *more = self.rounds
        return count == 1 and not more and not rnd.symmetric

    def _single_epsilon(self, delta: float, side: int) -> float:
        rnd = self.rounds[0][0]
        pair = rnd.pair if side == UPPER else rnd.dominated or rnd.pair

        def excess(epsilon: float) -> float:
            bound = pair.delta(epsilon)[side == UPPER]
            return math.log(bound / delta) if bound > 0.0 else -1e3

        high = 1.0
        while excess(high) > 0.0:
            high *= 2.0
            if high > 1e12:
                return math.inf if side == UPPER else high
        return crossing(excess, 0.0, high, side) if excess(0.0) > 0.0 else 0.0

    def _narrow(
        self,
        make_plan: Callable[[float, float], _Plan],
        allowed: Callable[[_Plan, float], float],
        read: Callable[[Composed], float],
        sides: Sides,
        enough: float,
    ) -> tuple[float, float]:
        """Try the laws at hand, then compose ever more finely until the bounds are as close as allowed."""
        finer, done = _SHARE, False
        lower, upper = self._read(read)
        plan = make_plan(lower, upper)
        for _ in range(_ATTEMPTS):
            if upper == 0.0 or (sides == BOTH and math.isfinite(upper) and upper - lower <= allowed(plan, upper)):
                break
            if sides != BOTH and (done or upper <= enough or self._reusable(sides[0], plan)):
                break
            try:
                fresh = {side: self._compose(side, plan, finer * plan.width) for side in sides}
            except FloatingPointError:  # a grid too coarse for a lower bound, or a tilt too strong for its law
                finer *= 0.25
                continue
            except MemoryError:  # finer than can be had: take what can
                if math.isfinite(upper) and (sides != BOTH or lower > 0.0):
                    break
                finer *= 8.0
                continue
            for side, law in fresh.items():
                self._laws[side].append(law)
            planned, before = plan, upper - lower
            lower, upper = self._read(read)
            plan = make_plan(lower, upper)
            done = not planned.coarse
            if done and sides == BOTH and (gap := upper - lower) > allowed(planned, upper):
                if gap > 0.9 * before:  # what is left is round-off, which finer grids do not cure
                    break
                finer *= min(0.5, max(0.7 * allowed(planned, upper) / gap, 0.02))
        return lower, upper

    def _read(self, read: Callable[[Composed], float]) -> tuple[float, float]:
        """The best of what the laws at hand say."""
        lower = max((read(law) for law in self._laws[LOWER]), default=0.0)
        return lower, min((read(law) for law in self._laws[UPPER]), default=math.inf)

    def _reusable(self, side: int, plan: _Plan) -> bool:
        """Whether a law at hand is fine enough and tilted nearly so; a matter of width, never of soundness."""
        step = plan.sketch.spacings(plan.tilt, _SHARE * plan.width)[0].step
        return any(
            law.step <= 1.2 * step and 0.5 <= (law.tilt + 0.1) / (plan.tilt + 0.1) <= 2.0 for law in self._laws[side]
        )

    def _compose(self, side: int, plan: _Plan, width: float) -> Composed:
        spacings = plan.sketch.spacings(plan.tilt, width)
        pairs = zip(self.rounds, spacings, strict=True)
        laws = [(_discretise(rnd, side, spacing), count) for (rnd, count), spacing in pairs]
        return compose(laws, plan.tilt, side, _ALIAS if plan.sketch.is_regular(plan.tilt) else _ALIAS_IRREGULAR)


@dataclass(frozen=True)
class _Plan:
    """Where to tilt, and how far apart in log delta the sides may be, by a sketch for deltas of the right size.

    ``floor`` is a distance in the quantity asked for that always does. A ``coarse`` plan only finds out where the
    answer lies.
    """

    sketch: Sketch
    tilt: float
    width: float
    floor: float
    coarse: bool = False


def _discretise(rnd: Round, side: int, spacing: loss.Spacing) -> loss.Discrete:
    if side == LOWER:
        if rnd.symmetric:
            raise ValueError("a symmetric round has no lower law of its own; compose its attacks instead")
        return loss.lower(rnd.dominated or rnd.pair, spacing)
    if rnd.symmetric and isinstance(rnd.pair, Pair):
        return loss.upper_symmetric(rnd.pair, spacing)
    return loss.upper(rnd.pair, spacing)


def _merge(rounds: Sequence[tuple[Round, int]]) -> list[tuple[Round, int]]:
    """Add up equal rounds; all Gaussian ones together are one Gaussian with the root of the summed squares."""
    counts: dict[Round, int] = {}
    for rnd, count in ((rnd, count) for rnd, count in rounds if count > 0):
        counts[rnd] = counts.get(rnd, 0) + count
    gaussian = math.fsum([r.pair.gaussian_shift**2 * n for r, n in counts.items() if r.is_gaussian])
    merged = [(r, n) for r, n in counts.items() if not r.is_gaussian]
    return merged + ([(Round(Pair.gaussian(math.sqrt(gaussian))), 1)] if gaussian > 0.0 or not merged else [])


def _solve_epsilon(law: Composed, delta: float) -> float:
    """Where the law's bound on delta(eps) crosses delta, on the safe side of the crossing."""

    def excess(epsilon: float) -> float:
        value = law.delta(epsilon)
        return math.log(value / delta) if value > 0.0 else -1e3

    high = max(law.stop, law.step)
    if excess(high) > 0.0:
        return math.inf if law.sign > 0 else high
    # walk in from the right: far left of its window a law proves nothing
    for place in (max(law.mean + k * law.spread, 0.0) for k in range(6, -7, -2)):
        if place < high:
            if excess(place) > 0.0:
                break
            high = place
    else:
        if law.sign < 0 or high == 0.0 or excess(0.0) <= 0.0:
            return 0.0
        place = 0.0
    return crossing(excess, place, high, law.sign)
