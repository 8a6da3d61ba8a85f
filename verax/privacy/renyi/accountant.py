"""Rényi accounting of mixtures of unit Gaussians on a line, with certified brackets.

One round is the pair N(0, 1) against sum_j w_j N(m_j, 1), shifts m_j >= 0 already divided by the
noise multiplier (docs/proofs.md, section 1). With A the likelihood ratio of the mixture to N(0, 1),
s = alpha - 1 and E under N(0, 1):

    remove:  s D_alpha(mixture || N(0)) = log E[A^alpha],      add:  s D_alpha(N(0) || mixture) =
        log E[A^-s].

Both are computed as log(1 + E[F]) with F >= 0 free of cancellation, by a trapezoidal rule whose
aliasing, truncation and rounding errors are bounded; ``docs/renyi.md`` has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from verax import checks
from verax.privacy.numerics import Array
from verax.privacy.numerics.rounding import OPS_8M, down, ulps, up

Numbers = Sequence[float]

DIRECTIONS = ("remove", "add", "both")
DEFAULT_ORDERS: tuple[float, ...] = tuple(
    1.0 + round(2.0 ** (k / 4), 3 if k < 12 else 0) for k in range(-24, 41)
)

_DIGITS = 36.0  # natural logarithm of the relative accuracy asked of the quadrature
_MAX_WORK = 2**23  # components times nodes beyond which the crude bound is returned instead
_PSI = tuple((-1.0) ** k / math.factorial(k) for k in range(14, 1, -1))


@dataclass(frozen=True)
class RenyiRound:
    """One round: N(0, 1) against the mixture of N(shifts[j], 1) with weights[j].

    Weights are normalised (they must sum to 1 up to 1e-9): the weight of the smallest shift is the
    complement of the others when it is at least one half, otherwise the others are rescaled.

    Example:
        >>> RenyiRound.poisson(rate=0.25, noise_multiplier=2.0)
        RenyiRound(weights=(0.75, 0.25), shifts=(0.0, 0.5))
    """

    weights: tuple[float, ...]
    shifts: tuple[float, ...]

    def __post_init__(self) -> None:
        weights = [checks.nonnegative("weights", w) for w in self.weights]
        shifts = [checks.nonnegative("shifts", m) for m in self.shifts]
        if len(weights) != len(shifts):
            raise ValueError(
                f"weights and shifts must have one length, got {len(weights)} and {len(shifts)}"
            )
        if not abs(math.fsum(weights) - 1.0) <= OPS_8M:
            raise ValueError(f"weights must sum to 1, got {math.fsum(weights)!r}")
        merged = {
            m: math.fsum(w for w, n in zip(weights, shifts, strict=True) if n == m) for m in shifts
        }
        (low, base), *rest = sorted((m, w) for m, w in merged.items() if w > 0.0)
        total = math.fsum(w for _, w in rest)
        if base >= 0.5:
            base = 1.0 - total
        else:
            rest = [(m, w * ((1.0 - base) / total)) for m, w in rest]
        object.__setattr__(self, "weights", (base, *(w for _, w in rest)))
        object.__setattr__(self, "shifts", (low, *(m for m, _ in rest)))

    @classmethod
    def poisson(cls, rate: float, noise_multiplier: float, shift: float = 1.0) -> RenyiRound:
        """A Poisson-sampled round: weight ``rate`` on ``shift / noise_multiplier``.

        The rest of the weight is on 0.
        """
        q = checks.rate("rate", rate)
        m = checks.nonnegative("shift", shift) / checks.positive(
            "noise_multiplier", noise_multiplier
        )
        return cls((1.0 - q, q), (0.0, m))

    def _log_ratio(self, x: Array) -> tuple[Array, Array, Array]:
        """At ``x``: log A, its derivative, and a bound on the rounding error of log A.

        (docs/renyi.md, section 5.)
        """
        # keep the arrays of components by nodes in the cache
        if x.size * len(self.shifts) > 2**19 and x.size > 1:
            values, slopes, errors = np.concatenate(
                [self._log_ratio(half) for half in np.array_split(x, 2)], axis=1
            )
            return values, slopes, errors
        low, top = self.shifts[0], self.shifts[-1]
        m, w = np.array(self.shifts[1:])[:, None], np.array(self.weights[1:])
        z = (m - low) * (x - (m + low) / 2)  # log-likelihood ratio of each component to the first
        e = np.expm1(np.minimum(z, 700.0))
        u = w @ e
        log_w = np.log(self.weights)
        a = np.concatenate((np.full((1, x.size), log_w[0]), log_w[1:, None] + z))
        peak = a.max(axis=0)
        lse = peak + np.log(np.exp(a - peak).sum(axis=0))
        near = (np.abs(u) <= 0.5) & (z.max(axis=0, initial=0.0) <= 700.0)
        rest = np.where(near, np.log1p(np.where(near, u, 0.0)), lse)
        posterior = np.exp(a - lse)
        slope = np.minimum(np.array(self.shifts) @ posterior, top)
        log_a = low * (x - low / 2) + rest
        small = 2 * (len(w) + 12) * (w @ np.abs(e))
        large = 2 * (len(w) + 9) + 2 * np.abs(log_w) @ posterior
        error = ulps(
            8 * slope * (np.abs(x) + top) + 4 * np.abs(log_a) + np.where(near, small, large)
        )
        return log_a, slope, error


def _psi_damped(y: Array) -> Array:
    """(exp(y) - 1 - y) exp(-max(y, 0)), without cancellation."""
    a = np.abs(y)
    e = np.expm1(-a)
    psi = a + e  # exp(-a) - 1 + a
    b = a[a < 0.25]
    psi[a < 0.25] = b * b * np.polyval(_PSI, b)
    return np.where(y > 0.0, -a * e - psi, psi)


def _spacing(
    spread: float, s: float, remove: bool, whole: bool, digits: float
) -> tuple[float, float]:
    """The widest spacing whose aliasing error is below exp(-digits), and a bound on that error.

    The error is relative to E[A^p] + 2 alpha.
    """
    widest = math.sqrt(2 * digits + 6)
    if not (remove and whole):
        # A has no zero while spread * c < pi: docs/renyi.md section 3
        widest = min(widest, 3.14 / spread)
    c = np.geomspace(1e-3, 1.0, 97) * widest
    growth = c * c / 2 - (0.0 if remove else s * np.log(np.cos(spread * c / 2)))
    steps = 2 * np.pi * c / (digits + growth + 1.0)
    best = int(np.argmax(steps))
    mantissa, exponent = math.frexp(float(steps[best]))
    # 10 bits: multiples of it are exact
    step = math.ldexp(math.floor(mantissa * 1024), exponent - 10)
    decay = 2 * math.pi * float(c[best]) / step
    return step, 2.0 * math.exp(float(growth[best]) - decay) / -math.expm1(-decay)


def _nodes(pair: RenyiRound, p: Array, step: float, digits: float) -> tuple[Array, Array] | None:
    """Nodes that matter for phi A^p, each p, and the logarithm of what the others sum to.

    (docs/renyi.md, section 4.)
    """
    margin = math.sqrt(2 * digits)
    ends = np.outer(p, [pair.shifts[0], pair.shifts[-1]])
    # indices times the step would no longer be exact
    if not ends.max() - ends.min() < 2.0**42 * step:
        return None
    first = math.floor((ends.min() - margin) / step)
    count = math.ceil((ends.max() + margin) / step) + 1 - first
    size = 8 ** max(0, math.ceil(math.log(count / 64, 8)))
    start = first + size * np.arange(-(-count // size), dtype=np.int64)
    outer = np.array([start[0], start[-1] + size]) * step
    value = p[:, None] * pair._log_ratio(outer)[0] - outer**2 / 2
    gap = np.stack((ends.min(axis=1) - outer[0], outer[1] - ends.max(axis=1)), axis=1)
    tails = np.logaddexp.reduce(value - np.log(gap), axis=1)
    height = np.zeros(len(p))
    allowance = digits + math.log(count * step + 1.0) + 1.0
    while size > 1 and len(start) * size > 256:
        left, right = start * step, (start + size) * step
        log_a, slope, _ = pair._log_ratio(np.concatenate((left, right)))
        at_left, at_right = np.split(log_a, 2)
        line = np.where(
            p[:, None] >= 0.0, (at_right - at_left) / (right - left), slope[: len(left)]
        )
        x = np.clip(p[:, None] * line, left, right)
        bound = p[:, None] * (at_left + line * (x - left)) - x * x / 2
        height = np.maximum(height, (p[:, None] * at_left - left**2 / 2).max(axis=1))
        start = start[(bound > (height - allowance)[:, None]).any(axis=0)]
        if len(start) * min(size, 8) * len(pair.shifts) > _MAX_WORK:
            return None
        size //= 8
        start = (start[:, None] + size * np.arange(8)).ravel()
    x = (start[:, None] + np.arange(size)).ravel() * step
    return x, np.logaddexp(height - digits, tails + math.log(2.0))


def _excess(
    pair: RenyiRound, s: Array, remove: bool, digits: float
) -> tuple[Array, Array, Array, Array] | None:
    """E[F] exp(-scale), bounds on its analytic and its rounding error, and scale.

    (docs/renyi.md, sections 1 to 5.)
    """
    whole = bool(np.all(s == np.floor(s)))
    step, alias = _spacing(pair.shifts[-1] - pair.shifts[0], float(s.max()), remove, whole, digits)
    found = _nodes(pair, np.append(s + 1.0, 0.0) if remove else np.append(-s, 1.0), step, digits)
    if found is None:
        return None
    x, omitted = found
    log_a, _, error = pair._log_ratio(x)
    signed, size = (log_a if remove else -log_a), np.abs(log_a)
    base = -x * x / 2 + (log_a if remove else 0.0)
    # integrates to the KL divergence
    divergence = np.exp(base + np.maximum(-signed, 0.0)) * _psi_damped(-signed)
    per_order = ulps(4, of=size) + 2 * error
    fixed = ulps(64 + 4 * x * x) + per_order + 2 * error / np.maximum(size, 1e-300)
    scale, total, rounding = np.empty((3, len(s)))
    rows = max(1, 2**18 // len(x))
    for i in range(0, len(s), rows):
        block = slice(i, i + rows)
        y = s[block, None] * signed
        exponent = base + np.maximum(y, 0.0)
        scale[block] = np.where(exponent.max(axis=1) > 1.0, exponent.max(axis=1), 0.0)
        f = np.exp(exponent - scale[block, None]) * _psi_damped(y)
        total[block] = f.sum(axis=1)
        rounding[block] = f @ fixed + s[block] * (f @ per_order)
    shrink = np.exp(-scale)
    total += s * shrink * divergence.sum()
    rounding += s * shrink * (divergence @ (fixed + per_order)) + ulps(64, of=total)
    total, rounding = np.stack((total, rounding)) * (step / math.sqrt(2 * math.pi))
    if np.any(rounding > 0.1 * total + 1e-290):  # the linear bound on rounding no longer holds
        return None
    cut = np.exp(omitted[:-1] - scale) + s * np.exp(omitted[-1] - scale)
    analytic = 1.01 * alias * (total + 2 * (s + 1.0) * shrink) + cut + 1e-300
    return total, analytic, rounding, scale


def _moment_brackets(pair: RenyiRound, s: Array, remove: bool) -> tuple[Array, Array]:
    """Bracket of the log-moment at orders 1 + s of similar size, sharing their nodes."""
    low, top = pair.shifts[0], pair.shifts[-1]
    crude = s * (s + 1.0) * (top * top / 2)  # docs/renyi.md section 6
    if not remove:
        base, rest = pair.weights[0], math.fsum(pair.weights[1:])
        # log A is at least this plus the base's ratio
        floor = math.log1p(-rest) if base >= 0.5 else math.log(base)
        crude = np.minimum(crude, s * (s + 1.0) * (low * low / 2) - s * floor)
    crude = up(crude, ulps(8)) + min(top, 1e-300)
    if low == top:
        return down(crude, ulps(16)), crude
    # of E[F]
    guess = (
        min(1.0, float(s.min())) * float(np.dot(pair.weights, np.minimum(pair.shifts, 0.8))) ** 2
    )
    digits = _DIGITS - math.log(max(guess, 1e-300))
    for _ in range(4):  # a second pass only when the moment is much closer to 1 than guessed
        # beyond, exponents lose their digits
        found = _excess(pair, s, remove, digits) if crude.max() < 1e12 else None
        if found is None:
            return np.zeros_like(s), crude
        total, analytic, rounding, scale = found
        excess = np.log(np.max(analytic / np.maximum(total, 1e-290))) + 30.0
        if excess <= 0.0:
            break
        digits += excess + 3.0
    ends = []
    for value, sign in (
        (np.maximum(total - analytic - rounding, 0.0), -1),
        (total + analytic + rounding, 1),
    ):
        log = np.where(
            scale > 0.0, scale + np.log(np.exp(-scale) + value + 1e-300), np.log1p(value)
        )
        ends.append(np.maximum(log + sign * ulps(8, of=scale + np.abs(log)), 0.0))
    return ends[0], np.minimum(ends[1], crude)


def _log_moment(pair: RenyiRound, s: Array, direction: str) -> tuple[Array, Array]:
    lower, upper = np.empty((2, len(s)))
    key = 2 * np.floor(np.log2(np.maximum(s, 4.0)) / 3)
    # whole positive powers are entire: a wider spacing does
    key += (key > 0.0) & (s == np.floor(s))
    for k in np.unique(key):
        lower[key == k], upper[key == k] = _moment_brackets(
            pair, s[key == k], direction == "remove"
        )
    return lower, upper


def _orders(order: Any) -> Array:
    values = np.asarray(order)
    flat = [checks.real("order", v) for v in values.ravel().tolist()]
    if wrong := [v for v in flat if not 1.0 < v < math.inf]:
        raise ValueError(f"order must be finite and above 1, got {wrong[0]!r}")
    return np.array(flat).reshape(values.shape)


def log_moment(
    weights: Numbers, shifts: Numbers, order: ArrayLike, direction: str = "both"
) -> tuple[Array, Array]:
    """Certified bracket (lower, upper) of order - 1 times the Rényi divergence of one round.

    Args:
        weights: Probabilities of the mixture's components.
        shifts: Their means divided by the noise's standard deviation.
        order: Rényi order above 1, a number or an array.
        direction: ``"remove"`` (mixture first), ``"add"`` (mixture second) or ``"both"``.

    Example:
        >>> lower, upper = log_moment([0.99, 0.01], [0.0, 1.0], 2.0, "remove")
        >>> exact = math.log1p(0.01**2 * math.expm1(1.0))
        >>> bool(lower <= exact <= upper), bool(upper - lower < 1e-12 * exact)
        (True, True)
    """
    both = (
        ("remove", "add")
        if checks.choice("direction", direction, DIRECTIONS) == "both"
        else (direction,)
    )
    pair, alpha = RenyiRound(tuple(weights), tuple(shifts)), _orders(order)
    lower, upper = np.max([_log_moment(pair, alpha.ravel() - 1.0, d) for d in both], axis=0)
    return lower.reshape(alpha.shape), upper.reshape(alpha.shape)


def renyi_divergence(
    weights: Numbers, shifts: Numbers, order: ArrayLike, direction: str = "both"
) -> Array:
    """Certified upper bound of the Rényi divergence of one round.

    Arguments are those of :func:`log_moment`.

    Example:
        >>> print(f"{renyi_divergence([1.0], [0.5], 8.0):.6f}")  # a Gaussian: alpha m^2 / 2
        1.000000
    """
    return np.asarray(
        up(log_moment(weights, shifts, order, direction)[1] / (_orders(order) - 1.0), ulps(4))
    )


def rdp_poisson(
    rate: float,
    noise_multiplier: float,
    order: ArrayLike,
    shift: float = 1.0,
    direction: str = "both",
) -> Array:
    """Certified upper bound of the Rényi divergence of one Poisson-sampled Gaussian round.

    ``shift`` is the sensitivity over the clip norm: 1 for individual clipping, 2 for batch
    clipping. The pair is that of Mironov, Talwar and Zhang 2019 (1908.10530), section 3.

    Example:
        >>> print(f"{rdp_poisson(0.01, 1.0, 2.0):.6e}")
        1.718134e-04
    """
    pair = RenyiRound.poisson(rate, noise_multiplier, shift)
    return renyi_divergence(pair.weights, pair.shifts, order, direction)


def _log_delta(s: Array, moment: Array, epsilon: float) -> Array:
    rounding = ulps(8, of=moment + s * epsilon + s + 1.0)
    return np.asarray(moment - s * epsilon - s * np.log1p(1.0 / s) - np.log1p(s) + rounding)


def _epsilon(s: Array, moment: Array, delta: float) -> Array:
    rounding = ulps(8, of=moment - math.log(delta) + s + 1.0)
    return np.asarray((moment - math.log(delta) - np.log1p(s) + rounding) / s - np.log1p(1.0 / s))


def _moments(orders: ArrayLike, rdp: ArrayLike) -> tuple[Array, Array]:
    """Orders minus 1 and log-moments from a list of divergences."""
    s, divergence = (
        _orders(orders).ravel() - 1.0,
        [checks.real("rdp", v) for v in np.ravel(rdp).tolist()],
    )
    if len(s) != len(divergence) or not divergence:
        raise ValueError(
            f"orders and rdp must have one length of at least 1, got {len(s)} and {len(divergence)}"
        )
    if min(divergence) < 0.0:
        raise ValueError(f"rdp must be at least 0, got {min(divergence)!r}")
    return s, s * np.array(divergence)


def epsilon_from_rdp(orders: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The smallest epsilon that a list of Rényi bounds proves at ``delta``.

    epsilon = rdp + log((a - 1) / a) - (log delta + log a) / (a - 1), minimised over the list; a
    bound may be ``inf``. Chords of the convex log-moment between the listed orders would not help
    (docs/renyi.md section 7): to search all real orders use :class:`Renyi`, which has the curve
    itself.

    Example:
        >>> round(epsilon_from_rdp([4.0, 8.0, 16.0, 32.0], [0.08, 0.16, 0.32, 0.64], 1e-5), 4)
        0.8382

    Reference: Balle et al. 2020 (1905.09982), Theorem 21; Canonne, Kamath and Steinke 2020
        (2004.00010), Proposition 12.
    """
    checks.probability("delta", delta)
    s, moment = _moments(orders, rdp)
    return max(0.0, float(_epsilon(s, moment, delta).min()))


def delta_from_rdp(orders: ArrayLike, rdp: ArrayLike, epsilon: float) -> float:
    """The smallest delta that a list of Rényi bounds proves at ``epsilon``.

    See :func:`epsilon_from_rdp`.

    Example:
        >>> print(f"{delta_from_rdp([4.0, 8.0, 16.0, 32.0], [0.08, 0.16, 0.32, 0.64], 0.8382):.1e}")
        1.0e-05
    """
    checks.nonnegative("epsilon", epsilon)
    s, moment = _moments(orders, rdp)
    return math.exp(min(0.0, float(_log_delta(s, moment, epsilon).min())))


@dataclass(frozen=True)
class Renyi:
    """The Rényi curve of phases fixed in advance: pairs ``(round, times)``.

    They are composed by adding log-moments.

    Add phases with ``+``, repeat with ``*``. ``rdp`` at one order is what a privacy filter spends
    per round.

    Example:
        >>> curve = Renyi.poisson(rate=0.01, noise_multiplier=1.0, steps=1000)
        >>> round(curve.epsilon(delta=1e-5), 4), f"{curve.delta(epsilon=2.0):.2e}"
        (2.1013, '1.98e-05')
    """

    phases: tuple[tuple[RenyiRound, int], ...] = ()

    def __post_init__(self) -> None:
        for _, times in self.phases:
            checks.count("times", times)

    @classmethod
    def poisson(cls, rate: float, noise_multiplier: float, steps: int, shift: float = 1.0) -> Renyi:
        """``steps`` Poisson-sampled rounds."""
        return cls(
            ((RenyiRound.poisson(rate, noise_multiplier, shift), checks.count("steps", steps)),)
        )

    def __add__(self, other: Renyi) -> Renyi:
        return Renyi(self.phases + other.phases)

    def __mul__(self, times: int) -> Renyi:
        return Renyi(tuple((pair, n * checks.count("times", times)) for pair, n in self.phases))

    def _moment(self, s: Array) -> Array:
        # a record is present throughout one of the two runs: add, then take the worse
        moments = np.zeros((2, len(s)))
        for pair, times in self.phases:
            moments += [times * _log_moment(pair, s, direction)[1] for direction in DIRECTIONS[:2]]
        return np.asarray(up(moments.max(axis=0), ulps(4.0, of=len(self.phases) + 2)))

    def rdp(self, order: ArrayLike) -> Array:
        """Certified upper bound of the divergence at ``order``, the worse of both directions."""
        alpha = _orders(order)
        return np.asarray(self._moment(alpha.ravel() - 1.0).reshape(alpha.shape) / (alpha - 1.0))

    def _minimise(self, objective: Callable[[Array, Array, float], Array], at: float) -> float:
        """The minimum over real orders, by a coarse scan and then zooms.

        Every order is valid, so a missed optimum is safe.
        """
        s, best = np.array(DEFAULT_ORDERS) - 1.0, math.inf
        for _ in range(5):
            values = objective(s, self._moment(s), at)
            i = int(np.argmin(values))
            best = min(best, float(values[i]))
            left = s[i - 1] if i > 0 else s[0] / 16
            right = s[i + 1] if i + 1 < len(s) else s[-1] * 16
            s = np.geomspace(max(left, 1e-9), min(right, 1e6), 7)
        return best

    def epsilon(self, delta: float) -> float:
        """A proved epsilon at ``delta`` (see :func:`epsilon_from_rdp`)."""
        return max(0.0, self._minimise(_epsilon, checks.probability("delta", delta)))

    def delta(self, epsilon: float) -> float:
        """A proved delta at ``epsilon`` (see :func:`delta_from_rdp`)."""
        return math.exp(
            min(0.0, self._minimise(_log_delta, checks.nonnegative("epsilon", epsilon)))
        )
