"""One direction of a run: rounds composed into certified bounds on delta and epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verax.privacy.curves import gaussian
from verax.privacy.numerics.roots import bracket, crossing
from verax.privacy.numerics.rounding import OPS_8M, OPS_8000, up
from verax.privacy.pairs.gaussian_mixture import MixturePair
from verax.privacy.pairs.rounds import PricedRound
from verax.privacy.pld import discretise
from verax.privacy.pld.cache import PldCache
from verax.privacy.pld.chernoff import ChernoffBound, OneRoundAttack
from verax.privacy.pld.convolve import MAX_POINTS, PrivacyLossDistribution, compose, infinite_mass
from verax.privacy.pld.saddle_point import SaddlePointEstimate, SaddlePointEstimates

UPPER, LOWER = 1, -1
Sides = tuple[int, ...]
BOTH: Sides = (LOWER, UPPER)
Bounds = tuple[float, float]
"""A lower and an upper bound."""
_ATTEMPTS = 10
_SMALL = 0.03  # of the loss's standard deviation: an epsilon below that is small
_SHARE = 0.65  # of the width allowed, what the grid is planned to use
# mass outside the window; less where what counts is far from the bulk
_ALIAS, _ALIAS_IRREGULAR = 1e-12, 1e-16
_NEAR_ONE = (0.5, 0.9, 0.99)  # deltas that round-off touches more and more
_LARGE = 1e-9  # a delta that needs no tilt, which rare large losses would be blown up by
_COARSE = 0.1  # width in log delta of a first look
_NOTHING = -800.0  # a log delta below all doubles
_LEAST = 1e-300  # the least delta that is given
_USUAL_POINTS, _USUAL_ACCURACY = 2**21, 1e-3  # of a window, and up to which accuracy that is enough
_MANY_POINTS = 2**20  # with which bounds far apart will not meet
_CLOSE = 1.01  # bounds that a convolution leaves this close together are left alone
_LOOSE = 0.9  # a delta from above that may be no more than what rounding leaves
_FARTHEST = 1e12  # an epsilon whose place on the line can still be told
_PERCENT, _LEAST_SCALE = 0.02, 2.0**-34  # of grids that nothing is convolved on


class Composition:
    """A product of rounds, each repeated. Equal rounds, and all Gaussian ones, are merged first.

    PLDs are cached under all that they depend on, which saves time and changes no answer. Only a
    composition with ``share_plds`` reads later questions off PLDs composed for other
    ones, sooner and sometimes a little closer.
    """

    def __init__(self, rounds: Sequence[tuple[PricedRound, int]], share_plds: bool = False) -> None:
        self.rounds = _merge(rounds)
        self._share_plds = share_plds
        self._cache = PldCache()
        self._estimates = SaddlePointEstimates([(rnd.pair, count) for rnd, count in self.rounds])

    def with_shared_plds(self) -> Composition:
        """A copy for many questions about the same curve."""
        return type(self)(self.rounds, share_plds=True)

    @property
    def gaussian_mu(self) -> float | None:
        """mu if the whole run is one Gaussian mechanism, else None."""
        (rnd, count), *more = self.rounds
        return rnd.pair.gaussian_shift * math.sqrt(count) if not more and rnd.is_gaussian else None

    @property
    def _supremum(self) -> float:
        """The largest loss there can be; infinite if mass was sent there."""
        unbounded = any(rnd.symmetric or rnd.pair.infinite > 0.0 for rnd, _ in self.rounds)
        return (
            math.inf
            if unbounded
            else math.fsum([count * rnd.pair.supremum for rnd, count in self.rounds])
        )

    def estimate(self, delta: float) -> float:
        """A rough epsilon, to choose among directions by; never a bound."""
        if (mu := self.gaussian_mu) is not None:
            return gaussian.gaussian_epsilon(mu, delta)
        # few distinct values, which the estimate remembers
        near = 10.0 ** round(math.log10(delta)) if delta < 0.3 else 0.5
        estimate = self._estimates.at(math.log(near), 1.0)
        return estimate.cumulants(estimate.tilt_for_delta(near))[1]

    def epsilon(self, delta: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on epsilon(delta); a side not asked for may be trivial.

        If only the upper side is asked for, a value of ``enough`` will do. Widths are relative to
        epsilon, or to a fraction of the loss's standard deviation where epsilon is smaller than
        that.
        """
        if (mu := self.gaussian_mu) is not None:
            return gaussian.gaussian_epsilon(mu, delta, LOWER), gaussian.gaussian_epsilon(
                mu, delta, UPPER
            )
        if self.is_single:
            return self._single_epsilon(delta, LOWER), self._single_epsilon(delta, UPPER)

        def plan(lower: float, upper: float) -> _GridPlan:
            estimate = self._estimates.at(math.log(delta), rtol)
            if math.isinf(upper):
                tilt = estimate.tilt_for_delta(delta)
                if not estimate.is_regular(tilt):
                    tilt = 0.0 if delta > _LARGE else tilt
                    return _GridPlan(estimate, tilt, _COARSE, 0.0, _most_points(rtol), coarse=True)
                upper = estimate.cumulants(tilt)[1]
            else:
                tilt = estimate.tilt_for_epsilon(upper)
                tilt = 0.0 if delta > _LARGE and not estimate.is_regular(tilt) else tilt
            spread = max(math.sqrt(estimate.cumulants(tilt)[2]), 1e-12)
            floor = rtol * _SMALL * spread
            width = max(tilt, 0.5 / spread) * max(rtol * upper, floor)
            return _GridPlan(estimate, tilt, width, floor, _most_points(rtol))

        def allowed(plan: _GridPlan, upper: float) -> float:
            return max(rtol * upper, plan.floor)

        most = up(self._supremum, OPS_8000)  # no epsilon can exceed the largest loss there is
        if sides == (UPPER,) and most <= enough:
            return 0.0, most
        lower, upper, reached = self._narrow(
            plan, allowed, lambda pld: _solve_epsilon(pld, delta), sides, enough
        )
        if not reached or (sides == (UPPER,) and math.isinf(upper)):
            spacings = self._spacings(math.log(delta))
            lower = max(lower, self._one_round(spacings).epsilon(delta) if LOWER in sides else 0.0)
            if UPPER in sides:
                upper = min(upper, self._chernoff(spacings).epsilon(delta))
        if upper > max(enough, lower * (1.0 + rtol)):
            # round-off of many rounds hides how far delta is from 1; but epsilon falls in delta
            smaller = max((level for level in _NEAR_ONE if level < delta), default=None)
            if smaller is not None:
                upper = min(upper, self.epsilon(smaller, rtol, (UPPER,), enough)[1])
        return lower, min(upper, most)

    def delta(self, epsilon: float, rtol: float, sides: Sides = BOTH, enough: float = 0) -> Bounds:
        """Lower and upper bound on delta(epsilon); a side not asked for may be trivial."""
        if (mu := self.gaussian_mu) is not None:
            return gaussian.gaussian_delta(mu, epsilon, LOWER), gaussian.gaussian_delta(
                mu, epsilon, UPPER
            )
        if self.is_single:
            rnd = self.rounds[0][0]
            if epsilon > _FARTHEST:  # delta falls
                return 0.0, rnd.pair.delta(_FARTHEST)[1]
            return (rnd.dominated or rnd.pair).delta(epsilon)[0], rnd.pair.delta(epsilon)[1]
        if epsilon > up(self._supremum, OPS_8M):
            return 0.0, 0.0
        log_delta = max(self._estimates.log_delta(epsilon, rtol), _NOTHING)
        if (
            log_delta == _NOTHING
            and (below := self._chernoff(self._spacings(_NOTHING)).delta(epsilon)) < _LEAST
        ):
            return 0.0, below

        def plan(lower: float, upper: float) -> _GridPlan:
            estimate = self._estimates.at(math.log(lower) if lower > 0.0 else log_delta - 5.0, rtol)
            tilt = estimate.tilt_for_epsilon(epsilon)
            tilt = 0.0 if log_delta > math.log(_LARGE) and not estimate.is_regular(tilt) else tilt
            return _GridPlan(estimate, tilt, rtol, 0.0, _most_points(rtol))

        def allowed(plan: _GridPlan, upper: float) -> float:
            return rtol * upper

        lower, upper, reached = self._narrow(
            plan, allowed, lambda pld: pld.delta(epsilon), sides, enough
        )
        if not reached or (sides == (UPPER,) and upper > _LOOSE):
            spacings = self._spacings(log_delta)
            lower = max(lower, self._one_round(spacings).delta(epsilon) if LOWER in sides else 0.0)
            if UPPER in sides:
                upper = min(upper, self._chernoff(spacings).delta(epsilon))
        return lower, min(upper, 1.0)

    def upper_pld(
        self, log_delta: float, span: float, rtol: float
    ) -> PrivacyLossDistribution | None:
        """A PLD close to the curve from above, for log deltas from ``log_delta`` down by ``span``.

        None if its window is too large.
        """
        estimate = self._estimates.at(log_delta - span, rtol)
        tilt = estimate.tilt_for_delta(math.exp(log_delta - 0.5 * span))
        if log_delta > math.log(_LARGE) and not estimate.is_regular(tilt):
            tilt = 0.0
        try:
            return self._composed(
                UPPER, _GridPlan(estimate, tilt, rtol, 0.0, _most_points(rtol)), rtol
            )
        except (FloatingPointError, MemoryError):
            return None

    def _spacings(self, log_delta: float) -> list[discretise.Spacing]:
        """Points close together near the bulk of each PLD, a percent apart far from it."""
        found = self._estimates.at(log_delta, 1e-3).spacings(0.0, 1.0)
        reach = [max(abs(s.low), abs(s.high)) for s in found]
        scales = [max(min(s.scale, r), r * _LEAST_SCALE) for s, r in zip(found, reach, strict=True)]
        pairs = zip(found, scales, strict=True)
        return [discretise.Spacing(_PERCENT * scale, s.low, s.high, scale) for s, scale in pairs]

    def _chernoff(self, spacings: Sequence[discretise.Spacing]) -> ChernoffBound:
        pairs = zip(self.rounds, spacings, strict=True)
        plds = [(_discretise(rnd, UPPER, spacing), count) for (rnd, count), spacing in pairs]
        return ChernoffBound(plds, infinite_mass(plds))

    def _one_round(self, spacings: Sequence[discretise.Spacing]) -> OneRoundAttack:
        seen = [(rnd.dominated or rnd.pair, count) for rnd, count in self.rounds]
        return OneRoundAttack(seen, [spacing.high for spacing in spacings])

    @property
    def is_single(self) -> bool:
        """Whether there is only one round, for which nothing needs composing."""
        (rnd, count), *more = self.rounds
        return count == 1 and not more and not rnd.symmetric

    def _single_epsilon(self, delta: float, side: int) -> float:
        rnd = self.rounds[0][0]
        pair = rnd.pair if side == UPPER else rnd.dominated or rnd.pair

        def excess(epsilon: float) -> float:
            bound = pair.delta(epsilon)[side == UPPER]
            return math.log(bound / delta) if bound > 0.0 else -1e3

        _, high = bracket(lambda epsilon: excess(epsilon) > 0.0, 0.0, 1.0, limit=_FARTHEST)
        if high > _FARTHEST:
            return math.inf if side == UPPER else high
        return crossing(excess, 0.0, high, side) if excess(0.0) > 0.0 else 0.0

    def _narrow(
        self,
        make_plan: Callable[[float, float], _GridPlan],
        allowed: Callable[[_GridPlan, float], float],
        read: Callable[[PrivacyLossDistribution], float],
        sides: Sides,
        enough: float,
    ) -> tuple[float, float, bool]:
        """Compose ever more finely until the bounds are close; also whether they are, or nearly."""
        finer, done = _SHARE, False
        # what was too fine for the memory, and too coarse for a bound
        finest, coarsest = 0.0, math.inf
        plds = {side: self._cache.on(side) if self._share_plds else [] for side in BOTH}

        def best() -> tuple[float, float]:
            lower = max((read(pld) for pld in plds[LOWER]), default=0.0)
            return lower, min((read(pld) for pld in plds[UPPER]), default=math.inf)

        lower, upper = best()
        plan = make_plan(lower, upper)
        for _ in range(_ATTEMPTS):
            if upper == 0.0 or (
                sides == BOTH and math.isfinite(upper) and upper - lower <= allowed(plan, upper)
            ):
                return lower, upper, True
            if sides != BOTH and (done or upper <= enough or _reusable(plds[sides[0]], plan)):
                return lower, upper, True
            try:
                fresh = {side: self._compose(side, plan, finer * plan.width) for side in sides}
            # a grid too coarse for a lower bound, or a tilt too strong for its PLD
            except FloatingPointError:
                coarsest, finer = min(coarsest, finer), 0.25 * finer
                if finer <= finest:
                    break
                continue
            except MemoryError:  # finer than can be had: take what can
                finest, finer = max(finest, finer), 8.0 * finer
                if finer >= coarsest or (math.isfinite(upper) and (sides != BOTH or lower > 0.0)):
                    break
                continue
            for side, pld in fresh.items():
                plds[side].append(pld)
            planned, before = plan, upper - lower
            lower, upper = best()
            plan = make_plan(lower, upper)
            done = not planned.coarse
            if done and sides == BOTH and (gap := upper - lower) > allowed(planned, upper):
                large = max(len(pld.pmf) for pld in fresh.values()) > _MANY_POINTS
                # round-off, which finer grids do not cure
                if gap > 0.9 * before or (large and gap > 0.5 * upper):
                    break
                finer *= min(0.5, max(0.7 * allowed(planned, upper) / gap, 0.02))
        return lower, upper, upper <= _CLOSE * lower

    def _compose(self, side: int, plan: _GridPlan, width: float) -> PrivacyLossDistribution:
        key = (side, *plan.estimate.key, plan.tilt, width, plan.most)
        return self._cache.get(key, lambda: self._composed(side, plan, width))

    def _composed(self, side: int, plan: _GridPlan, width: float) -> PrivacyLossDistribution:
        tilt = plan.tilt
        spacings = plan.estimate.spacings(tilt, width)
        pairs = zip(self.rounds, spacings, strict=True)
        plds = [(_discretise(rnd, side, spacing), count) for (rnd, count), spacing in pairs]
        alias = _ALIAS if tilt == 0.0 or plan.estimate.is_regular(tilt) else _ALIAS_IRREGULAR
        return compose(plds, tilt, side, alias, plan.most)


def _reusable(plds: Sequence[PrivacyLossDistribution], plan: _GridPlan) -> bool:
    """Whether one of these PLDs is fine enough and about equally tilted; none is unsound."""
    if not plds:
        return False
    step = plan.estimate.spacings(plan.tilt, _SHARE * plan.width)[0].step
    return any(
        pld.step <= 1.2 * step and 0.5 <= (pld.tilt + 0.1) / (plan.tilt + 0.1) <= 2.0
        for pld in plds
    )


@dataclass(frozen=True)
class _GridPlan:
    """Where to tilt, and how far apart in log delta the sides may be.

    ``floor`` is a distance in the quantity asked for that always does, ``most`` the number of
    points that it may take. A ``coarse`` plan only finds out where the answer lies.
    """

    estimate: SaddlePointEstimate
    tilt: float
    width: float
    floor: float
    most: int
    coarse: bool = False


def _most_points(rtol: float) -> int:
    """Points worth a try: a second or two of work for three digits, more for more digits."""
    return _USUAL_POINTS if rtol >= _USUAL_ACCURACY else MAX_POINTS


def _discretise(rnd: PricedRound, side: int, spacing: discretise.Spacing) -> discretise.DiscretePld:
    if side == LOWER:
        if rnd.symmetric:
            raise ValueError(
                "a symmetric round has no lower law of its own; compose its attacks instead"
            )
        return discretise.lower(rnd.dominated or rnd.pair, spacing)
    if rnd.symmetric and isinstance(rnd.pair, MixturePair):
        return discretise.upper_symmetric(rnd.pair, spacing)
    return discretise.upper(rnd.pair, spacing)


def _merge(rounds: Sequence[tuple[PricedRound, int]]) -> list[tuple[PricedRound, int]]:
    """Add up equal rounds; all Gaussian ones become one, with the root of the summed squares."""
    counts: dict[PricedRound, int] = {}
    for rnd, count in ((rnd, count) for rnd, count in rounds if count > 0):
        counts[rnd] = counts.get(rnd, 0) + count
    gaussian = math.fsum([r.pair.gaussian_shift**2 * n for r, n in counts.items() if r.is_gaussian])
    merged = [(r, n) for r, n in counts.items() if not r.is_gaussian]
    return merged + (
        [(PricedRound.gaussian(math.sqrt(gaussian)), 1)] if gaussian > 0.0 or not merged else []
    )


def _solve_epsilon(pld: PrivacyLossDistribution, delta: float) -> float:
    """Where the pld's bound on delta(eps) crosses delta, on the safe side of the crossing."""

    def excess(epsilon: float) -> float:
        value = pld.delta(epsilon)
        return math.log(value / delta) if value > 0.0 else -1e3

    high = max(pld.stop, pld.step)
    if excess(high) > 0.0:
        return math.inf if pld.sign > 0 else high
    # walk in from the right: far left of its window a pld proves nothing
    for place in (max(pld.mean + k * pld.spread, 0.0) for k in range(6, -7, -2)):
        if place < high:
            if excess(place) > 0.0:
                break
            high = place
    else:
        if pld.sign < 0 or high == 0.0 or excess(0.0) <= 0.0:
            return 0.0
        place = 0.0
    return crossing(excess, place, high, pld.sign)
