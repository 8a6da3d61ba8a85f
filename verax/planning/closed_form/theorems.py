"""Closed forms of "Proactive DP": a guarantee, or the first condition that fails.

(van Dijk et al., ICML 2024.)

The paper's run draws every record into round i with probability s_i / N on its own and adds noise
of deviation sigma clip norms to the sum of clipped gradients: Poisson batches with noise multiplier
sigma under add-remove neighbours, with no factor of two. What is granted here is proved, but 3 to 5
times larger than the epsilon of the accountant.

Two steps of the printed proof are repaired (docs/reproduce-004.md): the first denominator in gamma
is 1 - a - 2 sqrt(a), and the geometric series in the proof of lemma B.3 are replaced by those of
:func:`series_share`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from verax import checks
from verax.mechanism import Mechanism, Phases
from verax.privacy.numerics.roots import bisect
from verax.privacy.numerics.rounding import OPS_8, OPS_8000, up
from verax.samplers import Poisson

LEAST_NOISE = 216.0 / 215.0  # lemma B.3
LARGEST_ALPHA = (math.sqrt(2.0) - 1.0) ** 2  # where u_0 = 2 sqrt(a) / (1 - a) reaches 1
LARGEST_THETA, FEWEST_RECORDS, LARGEST_EPSILON = 6.85, 10_000, 0.5  # theorem 3.1
# and its inverse: sizes, rounds, noise and epsilon between them keep their digits in every formula
_EXTREME = 1e50
# what a right-hand side is multiplied by before a condition is said to hold
SAFE = up(1.0, OPS_8000)


@dataclass(frozen=True)
class SampleSizes:
    """Expected batch sizes, round by round, as blocks of (size, rounds).

    Each round draws records at rate size / N.

    >>> sizes = SampleSizes(10_000, ((20, 100), (60, 100)))
    >>> sizes.work
    Work(population=10000, rounds=200, epochs=0.8, theta=1.5)
    """

    population: int
    blocks: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        checks.count("population", self.population, minimum=2)
        if not self.blocks:
            raise ValueError("blocks must hold at least one (size, rounds), got none")
        for block in self.blocks:
            size, rounds = _pair(block)
            checks.count("rounds of a block", rounds)
            if require_moderate("size", size) >= self.population:
                raise ValueError(
                    f"size must be below the population {self.population}, got {size!r}"
                )

    @classmethod
    def of(cls, population: int, sizes: Iterable[float]) -> SampleSizes:
        """From the sizes of all rounds in order.

        >>> SampleSizes.of(100, [1, 1, 2])
        SampleSizes(population=100, blocks=((1, 2), (2, 1)))
        """
        return cls(population, tuple((size, len(list(run))) for size, run in groupby(sizes)))

    @property
    def rounds(self) -> int:
        """T."""
        return sum(rounds for _, rounds in self.blocks)

    @property
    def largest_rate(self) -> float:
        """The largest s_i / N."""
        return max(size for size, _ in self.blocks) / self.population

    @property
    def work(self) -> Work:
        """What theorems 3.1 and B.4 need to know of it."""
        epochs = self.moment(1) * self.rounds
        return Work(
            self.population, self.rounds, epochs, max(self.largest_rate / self.moment(1), 1.0)
        )

    def moment(self, power: int) -> float:
        """S-hat_j of theorem B.2, the average of s^j / (N (N - s)^(j-1)) over the rounds."""
        rates = [(size / self.population, rounds) for size, rounds in self.blocks]
        return math.fsum(n * q * (q / (1.0 - q)) ** (power - 1) for q, n in rates) / self.rounds

    def mechanism(self, noise_multiplier: float) -> Mechanism | Phases:
        """The run that these sizes describe, for the accountant."""
        runs = [
            Mechanism(Poisson(size / self.population, n), noise_multiplier)
            for size, n in self.blocks
        ]
        return runs[0] if len(runs) == 1 else Phases(tuple(runs))


@dataclass(frozen=True)
class Work:
    """Gradient work in the paper's terms.

    N records, T rounds, k = K/N epochs, theta the largest over the mean batch.
    """

    population: int
    rounds: float
    epochs: float
    theta: float = 1.0

    def __post_init__(self) -> None:
        checks.count("population", self.population, minimum=2)
        require_moderate("rounds", self.rounds)
        require_moderate("epochs", self.epochs)
        if require_moderate("theta", self.theta) < 1.0:
            raise ValueError(f"theta must be at least 1, got {self.theta!r}")

    @property
    def largest_rate(self) -> float:
        """The largest s_i / N."""
        return self.theta * self.epochs / self.rounds


@dataclass(frozen=True)
class GrantedGuarantee:
    """What a theorem grants for one record under add-remove.

    It holds for Poisson batches with at least this noise.
    """

    theorem: str
    epsilon: float
    delta: float
    sigma: float
    """The noise multiplier that the theorem asks for."""
    gamma: float | None
    """Of theorems 3.1 and B.4."""
    order: int | None
    """The moment that theorem B.2 uses."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class FailedCondition:
    """The first condition of a theorem that fails.

    ``quantity`` is ``value`` and must be ``sense`` ``bound``.

    >>> print(theorem_31(Work(60_000, rounds=10, epochs=6), 12.2, epsilon=0.15, delta=1 / 60_000))
    theorem 3.1, condition (8): rounds T >= gamma theta^2 k^2 / epsilon fails: 10 against 882.1
    """

    theorem: str
    condition: str
    quantity: str
    sense: str
    requirement: str
    value: float
    bound: float

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return (
            f"{self.theorem}, condition {self.condition}: {self.quantity} "
            f"{self.sense} {self.requirement} fails: "
            f"{self.value:.4g} against {self.bound:.4g}"
        )


def _pair(block: object) -> Sequence[float]:
    if not isinstance(block, Sequence) or len(block) != 2:
        raise ValueError(f"blocks must hold pairs (size, rounds), got {block!r}")
    return block


def require_moderate(name: str, value: float) -> float:
    """A positive number whose digits every formula keeps; others raise ``ValueError``."""
    number = checks.positive(name, value)
    if not 1.0 / _EXTREME <= number <= _EXTREME:
        raise ValueError(
            f"{name} must lie between {1.0 / _EXTREME:g} and {_EXTREME:g}, got {value!r}"
        )
    return number


# --- the paper's functions ------------------------------------------------------------------------


def h(x: float) -> float:
    """Below this a has 2 e sqrt(a) / (1 - a) < x.

    >>> round(h(6.0), 2), round(h(10.0), 2)
    (0.42, 0.58)
    """
    ratio = math.e / require_moderate("x", x)
    return 1.0 / (math.sqrt(1.0 + ratio**2) + ratio) ** 2


def g(x: float) -> float:
    """The smaller of 1/(e x) and h(x): the largest sampling rate of theorem B.4 at noise x."""
    return min(h(x), 1.0 / (math.e * x))


def sigma(epsilon: float, delta: float) -> float:
    """The noise multiplier sqrt(2 (eps + ln(1/delta)) / eps) of equation (1), rounded up.

    >>> round(sigma(0.05, 1e-4), 3)
    19.246
    """
    epsilon, delta = require_moderate("epsilon", epsilon), checks.probability("delta", delta)
    return math.sqrt(2.0 * (1.0 - math.log(delta) / epsilon)) * SAFE


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """The epsilon at which :func:`sigma` is this noise, 2 ln(1/delta) / (noise^2 - 2), rounded up.

    >>> round(epsilon_of(19.29962, 1e-4), 4)
    0.0497
    """
    # what rounding may take
    room = (
        (require_moderate("noise_multiplier", noise_multiplier) / SAFE) ** 2 / 2.0
        - 1.0
        - 2.0 * OPS_8
    )
    if room <= 0.0:
        raise ValueError(
            f"noise_multiplier must exceed sqrt(2) = {math.sqrt(2.0):.11f} by "
            "1e-11 for the closed form, "
            f"got {noise_multiplier!r}"
        )
    value = max(-math.log(checks.probability("delta", delta)) / room, 1.0 / _EXTREME)
    while sigma(value, delta) > noise_multiplier:
        value = math.nextafter(value * SAFE, math.inf)
    return value


def gamma_at(alpha: float, noise_multiplier: float) -> float:
    """The right-hand side of (55), its first denominator as the proof has it.

    Infinite where a series diverges.
    """
    z, a = require_moderate("noise_multiplier", noise_multiplier), checks.real("alpha", alpha)
    if z < LEAST_NOISE:
        raise ValueError(f"noise_multiplier must be at least 216/215, got {noise_multiplier!r}")
    if not 0.0 <= a < 1.0:
        raise ValueError(f"alpha must lie in [0, 1), got {alpha!r}")
    first, second = 1.0 - a - 2.0 * math.sqrt(a), z * (1.0 - a) - 2.0 * math.e * math.sqrt(a)
    if first <= 0.0 or second <= 0.0:
        return math.inf
    tail = (z / first + math.e**3 / (z * second)) * math.exp(3.0 / z**2)
    return 2.0 / (1.0 - a) + 16.0 * a / (1.0 - a) * tail


def gamma(noise_multiplier: float, epsilon: float, epochs: float) -> float:
    """The one solution of gamma = :func:`gamma_at` (a = eps / (gamma k), noise), rounded up.

    The right-hand side falls in gamma, from infinity where a reaches min(h(noise), (sqrt 2 - 1)^2)
    to 2, so there is exactly one, and condition (33), a <= h(noise), holds there. The paper's own
    iteration stops after one step.

    >>> round(gamma(19.29962, epsilon=0.04972, epochs=5), 4)
    3.131
    """
    ratio = require_moderate("epsilon", epsilon) / require_moderate("epochs", epochs)
    z = require_moderate("noise_multiplier", noise_multiplier)

    # at its end a gamma_at(a) >= 2 a is too large
    too_large = min(h(z), LARGEST_ALPHA, ratio / 2.0)
    return ratio / bisect(lambda a: a * gamma_at(a, z) * SAFE <= ratio, 0.0, too_large)[0]


# --- lemma B.3 and the theorems -------------------------------------------------------------------


def series_share(rate: float, noise_multiplier: float, order: int, u_1: float) -> float:
    """How much of what lemma B.3 allows for its series they use at most; 1 is too much.

    For all orders up to this one.

    The proof bounds term t = 3, ..., order + 1 of (16) by a geometric series in U_0 and U_1, but
    those bound the ratios only for orders up to sigma. Here the factors 1/t!! and t^t/t! that (16)
    rounds to 1 and e^t are kept. With w = 2 order q / ((1 - q) sigma) and y = e^(1 / 2 sigma^2),
    relative to term 3 of (16), what must hold is

        sum_t w^(t-3) y^((t-3)(t+2)) / t!!               <= 1 <= 1 / (1 - u_0),
        sum_t (w/sigma)^(t-3) y^((t-3)(t+2)) t^t / t!    <= e^3 / (1 - u_1).

    As t <= order + 1, y^(t+2) is at most x = y^(order+3). If w x <= 1.6 the first sum is below .92;
    the second is, by Stirling's t! >= sqrt(2 pi t) (t/e)^t, at most e^3 / (sqrt(6 pi) (1 - e w x /
    sigma)). If that does not help, which takes sigma < 9, they are added up.
    """
    q, z = rate, noise_multiplier
    w, exponent = 2.0 * order * q / ((1.0 - q) * z), (order + 3.0) / (2.0 * z * z)
    if exponent < 100.0 and (wx := w * math.exp(exponent)) <= min(1.6, 0.76 * z / math.e):
        return max(0.92, 1.0 / (math.sqrt(6.0 * math.pi) * (1.0 - math.e * wx / z)))
    first = second = 0.0
    for t in range(3, order + 2):
        power = (t - 3) * (t + 2) / (2.0 * z * z)
        halves = math.lgamma(t / 2.0 + 1.0) + t / 2.0 * math.log(2.0)  # ln t!! for even t
        halves += 0.5 * math.log(2.0 / math.pi) if t % 2 else 0.0
        logs = (
            (t - 3) * math.log(w) + power - halves,
            (t - 3) * math.log(w / z) + power + t * math.log(t) - math.lgamma(t + 1.0),
        )
        if max(logs) > 600.0:
            return math.inf
        first, second = first + math.exp(logs[0]), second + math.exp(logs[1])
    return max(first, second * (1.0 - u_1) / math.e**3) * SAFE


def tail_failure(
    name: str, rate: float, noise_multiplier: float, order: int, u_1: float
) -> FailedCondition | None:
    """Refusal where the series in the proof of lemma B.3 are not proved to be small enough."""
    share = series_share(rate, noise_multiplier, order, u_1)
    if share <= 1.0:
        return None
    return FailedCondition(
        name, "(16)", "the tail's series over what is allowed for them", "<=", "1", share, 1.0
    )


def largest_order(noise_multiplier: float) -> int:
    """The theorems use lemma B.3 for orders up to sigma^2 - 1, by (26) and (27)."""
    return math.floor(noise_multiplier**2 * SAFE) - 1


def _noise_failure(name: str, noise_multiplier: float, least: float) -> FailedCondition | None:
    if require_moderate("noise_multiplier", noise_multiplier) >= least:
        return None
    what = "sqrt(2 (epsilon + ln(1/delta)) / epsilon)"
    return FailedCondition(name, "(35)", "noise sigma", ">=", what, noise_multiplier, least)


def _rounds_failure(
    name: str, label: str, work: Work, epsilon: float, gamma: float
) -> FailedCondition | None:
    least = gamma * work.theta**2 * work.epochs**2 / epsilon * SAFE
    if work.rounds >= least:
        return None
    return FailedCondition(
        name, label, "rounds T", ">=", "gamma theta^2 k^2 / epsilon", work.rounds, least
    )


def theorem_b4(
    work: Work, noise_multiplier: float, epsilon: float, delta: float
) -> GrantedGuarantee | FailedCondition:
    """Theorem B.4, for any epsilon.

    Its conditions are checked at the least noise s of (35); more is post-processing. (The printed
    step from s to the larger noise goes the wrong way: a <= 1/(e s) does not bound a by 1/(e
    noise).) Condition (33) holds at every gamma.

    >>> run = Work(60_000, rounds=60_000 * 6 / 412, epochs=6)
    >>> granted = theorem_b4(
    ...     run, 12.10881, epsilon=epsilon_of(12.10881, 1 / 60_000), delta=1 / 60_000
    ... )
    >>> round(granted.epsilon, 4), round(granted.gamma, 3)
    (0.1521, 3.686)
    """
    name, least = "theorem B.4", sigma(epsilon, delta)
    if (refused := _noise_failure(name, noise_multiplier, least)) is not None:
        return refused
    if work.largest_rate * SAFE > (most := g(least)):
        what = "min(1 / (e sigma), h(sigma))"
        return FailedCondition(
            name, "(32)", "largest batch over N", "<=", what, work.largest_rate, most
        )
    found = gamma(least, epsilon, work.epochs)
    if (refused := _rounds_failure(name, "(34)", work, epsilon, found)) is not None:
        return refused
    rate = work.largest_rate
    u_1 = 2.0 * math.e * math.sqrt(rate) / (least * (1.0 - rate))
    if (refused := tail_failure(name, rate, least, largest_order(least), u_1)) is not None:
        return refused
    return GrantedGuarantee(name, epsilon, delta, least, found, None)


def theorem_31(
    work: Work, noise_multiplier: float, epsilon: float, delta: float
) -> GrantedGuarantee | FailedCondition:
    """Theorem 3.1, the readable one, for epsilon below one half.

    >>> run = Work(60_000, rounds=4000, epochs=10)
    >>> theorem_31(run, 13.0, epsilon=0.15, delta=1 / 60_000).theorem
    'theorem 3.1'
    """
    name, least = "theorem 3.1", sigma(epsilon, delta)
    if epsilon >= LARGEST_EPSILON:
        return FailedCondition(name, "(6)", "epsilon", "<", "1/2", epsilon, LARGEST_EPSILON)
    if delta > 1.0 / work.population:
        return FailedCondition(name, "(6)", "delta", "<=", "1/N", delta, 1.0 / work.population)
    if work.population < FEWEST_RECORDS:
        return FailedCondition(
            name, "on N", "records N", ">=", "10000", work.population, FEWEST_RECORDS
        )
    if work.theta > LARGEST_THETA:
        return FailedCondition(name, "on theta", "theta", "<=", "6.85", work.theta, LARGEST_THETA)
    if (refused := _noise_failure(name, noise_multiplier, least)) is not None:
        return refused
    spent, need = (2.0 / math.e * work.epochs) ** 2, (0.5 - math.log(delta)) * SAFE
    if spent < need:
        return FailedCondition(name, "(7)", "(2/e)^2 k^2", ">=", "1/2 + ln(1/delta)", spent, need)
    found = gamma(least, epsilon, work.epochs)
    if (refused := _rounds_failure(name, "(8)", work, epsilon, found)) is not None:
        return refused
    return GrantedGuarantee(name, epsilon, delta, least, found, None)
