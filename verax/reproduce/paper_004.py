"""'Proactive DP' (van Dijk et al.): tables 6 to 11, each number next to ours, and why they differ.

The tables come from two calculators, both stopped after their first step by a rule that asks for a
signed difference:
that of appendix E.1 with noise sqrt(2 ln(1/delta) / epsilon), which lacks an epsilon (tables 6 to
8), and that of appendix D.4 (tables 9 to 11). Both are rebuilt here as printed, so that every
difference has its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scipy import special

from verax.mechanism import Mechanism
from verax.planning import closed_form
from verax.planning.calculator import budget, simple
from verax.planning.closed_form import SampleSizes, theorem_b4
from verax.privacy.curves.gaussian import gaussian_epsilon
from verax.privacy.guarantee import Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reproduce.rows import (
    AGREES,
    DIFFERS,
    ERRATUM,
    TIGHTER,
    Progress,
    Row,
    quiet,
    verdict,
    write_csv,
    write_rows,
)
from verax.samplers import Poisson

COLUMNS = (
    "table",
    "population",
    "epochs",
    "printed_epsilon",
    "printed_sigma",
    "printed_batch",
    "sigma",
    "batch",
    "rounds",
    "first_step_epsilon",
    "first_step_sigma",
    "first_step_batch",
    "accountant_lower",
    "accountant_upper",
)


@dataclass(frozen=True)
class Line:
    """One line of tables 6 to 8, as printed; delta is 1/N."""

    table: int
    population: int
    epochs: int
    epsilon: str
    sigma: str
    batch: int


@dataclass(frozen=True)
class Comparison:
    """One of tables 9 to 11, as printed: each pair is for T_min and for T_min,asym."""

    table: int
    population: int
    epochs: int
    sigma: float
    epsilon: str
    batches: tuple[str, str]
    f_dp: tuple[str, str]
    factors: tuple[str, str]


_A9A, _MNIST, _CIFAR = (6, 10_000, 5), (7, 60_000, 6), (8, 50_000, 7)
LINES = (
    Line(*_A9A, "0.04945", "19.29962", 26),
    Line(*_A9A, "0.1", "13.06742", 55),
    Line(*_A9A, "0.25", "8.59143", 103),
    Line(*_A9A, "0.5", "6.05868", 168),
    Line(*_A9A, "1.0", "4.27273", 265),
    Line(*_A9A, "2.0", "3.03241", 400),
    Line(*_MNIST, "0.15007", "12.10881", 370),
    Line(*_MNIST, "0.2", "10.48452", 460),
    Line(*_MNIST, "0.25", "9.37379", 543),
    Line(*_MNIST, "0.5", "6.63120", 889),
    Line(*_MNIST, "0.75", "5.41887", 1168),
    Line(*_MNIST, "1.0", "4.69244", 1409),
    Line(*_MNIST, "2.0", "3.31648", 2159),
    Line(*_CIFAR, "0.25", "9.29838", 417),
    Line(*_CIFAR, "0.5", "6.57192", 689),
    Line(*_CIFAR, "0.75", "5.36937", 909),
    Line(*_CIFAR, "1.0", "4.65014", 1099),
    Line(*_CIFAR, "1.5", "4.16111", 1267),
    Line(*_CIFAR, "2.0", "3.28831", 1690),
    Line(*_CIFAR, "3.0", "2.68273", 1994),
)
COMPARISONS = (
    Comparison(
        9, 10_000, 5, 19.29962, "0.0497", ("26", "198"), ("0.0105", "0.0533"), ("4.7234", "0.9328")
    ),
    Comparison(
        10,
        60_000,
        6,
        12.10881,
        "0.1521",
        ("288", "3042"),
        ("0.0389", "0.2097"),
        ("3.9147", "0.7257"),
    ),
    Comparison(
        11, 50_000, 7, 6.572, "0.5253", ("406", "7504"), ("0.1133", "0.8239"), ("4.6372", "0.6376")
    ),
)


# --- the paper's calculators, as printed ----------------------------------------------------------


def printed_gamma(alpha: float, sigma: float) -> float:
    """The right-hand side of (55) with the printed first denominator."""
    a, e = alpha, math.e
    tail = sigma / (1.0 - math.sqrt(a)) ** 2 + e**3 / sigma / (
        sigma * (1.0 - a) - 2.0 * e * math.sqrt(a)
    )
    return 2.0 / (1.0 - a) + 16.0 * a / (1.0 - a) * tail * math.exp(3.0 / sigma**2)


def first_step_d4(population: int, epochs: float, sigma: float, epsilon: float) -> float:
    """The batch of appendix D.4 after one step from gamma = 2.

    >>> round(first_step_d4(50_000, 7, 6.572, 0.52534))
    407
    """
    gamma = printed_gamma(epsilon / (2.0 * epochs), sigma)
    return epsilon * population / (gamma * epochs)


def first_step_e1(population: int, epochs: float, batch: int) -> tuple[float, float]:
    """Epsilon and sigma of appendix E.1 for this batch after one step from gamma = 2.

    >>> epsilon, sigma = first_step_e1(60_000, 6, 370)
    >>> f"{epsilon:.5f} {sigma:.5f}"
    '0.15007 12.10881'
    """
    room, spent = 2.0 * math.log(population), batch * epochs / population
    gamma = printed_gamma(batch / population, math.sqrt(room / (2.0 * spent)))
    return gamma * spent, math.sqrt(room / (gamma * spent))


def central_limit(population: int, batch: int, rounds: float, sigma: float) -> float:
    """Approximate epsilon of the central limit (Dong et al., corollary 5.4); delta 1/N."""
    far, near = float(special.ndtr(1.5 / sigma)), float(special.ndtr(-0.5 / sigma))
    per_round = 2.0 * (math.exp(sigma**-2.0) * far + 3.0 * near - 2.0)
    return gaussian_epsilon(batch / population * math.sqrt(rounds * per_round), 1.0 / population)


# --- tables 6 to 8 --------------------------------------------------------------------------------


def accountant(population: int, epochs: float, batch: int, sigma: float) -> Bracket:
    """The proved epsilon of Poisson batches for at least this many epochs, at delta = 1/N."""
    rounds = math.ceil(epochs * population / batch)
    return (
        Mechanism(Poisson(batch / population, rounds), sigma).guarantee().epsilon(1.0 / population)
    )


def judge(line: Line) -> tuple[list[Row], list[object]]:
    """One line of tables 6 to 8: its noise and batch next to ours, for people and the CSV."""
    epsilon, sigma, n, k = float(line.epsilon), float(line.sigma), line.population, line.epochs
    needed = closed_form.sigma(epsilon, 1.0 / n)
    ours = simple(n, budget(n, epsilon=epsilon), epochs=k).minimum
    first = first_step_e1(n, k, line.batch)
    tight = accountant(n, k, line.batch, sigma)
    where, which = f"table {line.table}", f"ε={line.epsilon}"
    origin, mislabelled = _origin(line, first)
    short = "; with the ε that (1) has, (35) asks for more noise" if sigma < needed else ""
    noise = Row(
        where,
        f"σ, {which}",
        line.sigma,
        f"{needed:.5f}",
        ERRATUM if mislabelled else DIFFERS,
        f"{origin}{short}; the accountant gives ε <= {format_bound(tight.upper, UPPER, 4)} for the "
        "printed line",
    )
    size = Row(
        where,
        f"s, {which}",
        str(line.batch),
        str(ours.batch),
        DIFFERS if ours.batch != line.batch else AGREES,
        f"largest that theorem B.4 grants at ε={line.epsilon} with σ={needed:.5g}: gamma is "
        f"{ours.gamma:.4g} at its fixed point; printed s and ε make it "
        f"{epsilon * n / (line.batch * k):.4g}",
    )
    columns: list[object] = [
        line.table,
        n,
        k,
        epsilon,
        sigma,
        line.batch,
        needed,
        ours.batch,
        ours.rounds,
        *first,
        first_step_d4(n, k, sigma, 2.0 * math.log(n) / sigma**2),
        tight.lower,
        tight.upper,
    ]
    return [noise, size], columns


def _origin(line: Line, first: tuple[float, float]) -> tuple[str, bool]:
    """The paper's calculator that a line is from, and whether its epsilon or batch is not."""
    n, k, sigma = line.population, line.epochs, float(line.sigma)
    if abs(first[1] - sigma) < 2e-5:
        note = f"E.1 after one step at s={line.batch}, σ=√(2 ln(1/δ)/ε)"
        if abs(first[0] / float(line.epsilon) - 1.0) > 0.02:
            return f"{note}: it belongs to ε={first[0]:.4f}, not {line.epsilon}", True
        return f"{note} at ε={first[0]:.5f}", False
    old = 2.0 * math.log(n) / sigma**2
    if math.floor(first_step_d4(n, k, sigma, old) + 0.005) == line.batch:
        return f"D.4 after one step, σ=√(2 ln(1/δ)/ε) at ε={old:.5f}", False
    nearest = min(range(1, n // 10), key=lambda s: abs(first_step_e1(n, k, s)[1] - sigma))
    return (
        f"s and σ are not of one run: E.1 has this σ at s={nearest}, and σ={first[1]:.5f} at this "
        "s",
        True,
    )


# --- tables 9 to 11 -------------------------------------------------------------------------------


def compare(table: Comparison) -> Iterator[Row]:
    """Every number of one of tables 9 to 11."""
    n, k, sigma = table.population, table.epochs, table.sigma
    where, target = f"table {table.table}", budget(n, sigma=sigma)
    answer = simple(n, target, epochs=k)
    epsilon = target.epsilon
    yield Row(
        where,
        "ε_target",
        table.epsilon,
        f"{epsilon:.5f}",
        verdict(table.epsilon, "~", epsilon, epsilon),
        "2 ln(1/δ)/(σ²-2), the same as solving (1)",
    )
    first = first_step_d4(n, k, sigma, epsilon)
    yield Row(
        where,
        "s_max",
        table.batches[0],
        str(answer.minimum.batch),
        DIFFERS,
        f"the printed rule stops D.4 after one step, at s={first:.1f}; gamma is "
        f"{epsilon * n / (first * k):.4g} there, {answer.minimum.gamma:.4g} at its fixed point",
    )
    own = accountant(n, k, answer.minimum.batch, sigma)
    yield Row(
        where,
        f"ε of s={answer.minimum.batch}",
        "not given",
        _shown(own),
        TIGHTER,
        f"the accountant for our s_max, {epsilon / own.upper:.3g} times below ε_target",
    )
    same = str(answer.asymptotic.batch) == table.batches[1]
    yield Row(
        where,
        "s_max,asym",
        table.batches[1],
        str(answer.asymptotic.batch),
        AGREES if same else DIFFERS,
    )
    for column, twice in ((0, False), (1, True)):
        yield from _f_dp(table, epsilon, column, twice)


def _f_dp(table: Comparison, epsilon: float, column: int, twice: bool) -> Iterator[Row]:
    n, k, batch = table.population, table.epochs, int(table.batches[column])
    where, tight = f"table {table.table}", accountant(n, k, batch, table.sigma)
    limit = central_limit(n, batch, k * n / batch * (2.0 if twice else 1.0), table.sigma)
    reason = (
        f"central limit for fixed-size batches, {limit:.4f}: an approximation, not the tight number"
    )
    if twice:
        once = central_limit(n, batch, k * n / batch, table.sigma)
        reason += f"; and of twice the rounds: for T = kN/s it is {once:.4f}"
    found = verdict(table.f_dp[column], "~", tight.lower, tight.upper)
    what = f"ε_f-DP, s={batch}"
    yield Row(where, what, table.f_dp[column], _shown(tight), ERRATUM if twice else found, reason)
    low, high = epsilon / tight.upper, epsilon / tight.lower
    remark = "ε_target over the number above"
    if twice:
        remark = (
            "above 1: ε_target is reached with T_min,asym, contrary to the conclusion drawn in D.4"
            if low > 1.0
            else "below 1: ε_target is not reached with T_min,asym, as the paper says"
        )
    judged = ERRATUM if twice and low > 1.0 else DIFFERS
    yield Row(
        where,
        f"factor, s={batch}",
        table.factors[column],
        f"{low:.4f} to {high:.4f}",
        judged,
        remark,
    )


def _shown(bracket: Bracket) -> str:
    return f"{format_bound(bracket.lower, LOWER)} to {format_bound(bracket.upper, UPPER)}"


# --- the errata, each with its counterexample -----------------------------------------------------


def errata() -> Iterator[Row]:
    """Steps that fail, and the numbers that show it."""
    a, sigma = 0.02, 10.0
    yield Row(
        "(39) and (55)",
        f"gamma's right-hand side, ā={a:g}, σ={sigma:g}",
        f"{printed_gamma(a, sigma):.4f}",
        f"{closed_form.gamma_at(a, sigma):.4f}",
        ERRATUM,
        "1-u_0 is (1-a-2√a)/(1-a), not (1-√a)²/(1-a)",
    )
    rate = 0.01
    order = math.floor(sigma**2 * math.log(1.0 / (rate * sigma)))
    ratio = 2.0 * order * rate * math.exp(order / (2.0 * sigma**2)) / ((1.0 - rate) * sigma)
    yield Row(
        "lemma B.3, proof",
        f"ratio of the series, q={rate:g}, σ={sigma:g}, λ={order}",
        f"<= {2.0 * math.sqrt(order * rate) / ((1.0 - rate) * sigma):.4f}",
        f"{ratio:.4f}",
        ERRATUM,
        "needs λ <= σ, used up to σ² ln(N/sσ); the lemma stands, see docs/reproduce-004.md",
    )
    done, noise, epsilon, n = (408, 882), 9.0, 0.3, 60_000
    grants = {
        s: theorem_b4(SampleSizes(n, (done, (s, 2 * n // s))).work, noise, epsilon, 1.0 / n)
        for s in (1, 408)
    }
    yield Row(
        "E.1",
        f"second phase, {done[1]} rounds of {done[0]} before, σ={noise:g}, ε={epsilon:g}, k=2",
        "s=1, 2, ... until one fails",
        f"s=1 {_word(grants[1])}, s=408 {_word(grants[408])}",
        ERRATUM,
        "theta counts the largest batch in every round, so the search must start there",
    )


def _word(found: object) -> str:
    return "granted" if found else "refused"


def reproduce(folder: Path, progress: Progress = quiet) -> list[Row]:
    """Write ``tables.csv`` and ``numbers.csv``; return the numbers of tables 6 to 11 and ours.

    Args:
        folder: where to write; it must exist.
        progress: entered around each part's work.
    """
    rows: list[Row] = []
    lines: list[list[object]] = []
    with progress("tables 6 to 8"):
        for line in LINES:
            found, columns = judge(line)
            rows += found
            lines.append(columns)
    with progress("tables 9 to 11"):
        for table in COMPARISONS:
            rows += compare(table)
    rows += errata()
    write_csv(folder / "tables.csv", COLUMNS, lines)
    write_rows(folder / "numbers.csv", rows)
    return rows
