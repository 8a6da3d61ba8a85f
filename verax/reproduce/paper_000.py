"""'Generalizing DP-SGD with shuffling and batch clipping' (van Dijk et al.): tables and errata.

The tables give Gaussian trade-off curves G_mu between which the run's curve lies, for the adversary
A1 who sees the sampling. Here each becomes the epsilon it implies at one delta, next to the exact
A1 epsilon and the one of the standard adversary A0. The paper's sigma is half the noise multiplier
(docs/strong-adversary.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import special

from verax.mechanism import Batch, Clipping, Individual, Mechanism, Mixed
from verax.privacy.curves.gaussian import black_box_group, gaussian_delta, gaussian_epsilon
from verax.privacy.guarantee import format_bound
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pld.composition import LOWER, UPPER
from verax.privacy.strong.curve import StrongCurve
from verax.privacy.strong.occupancy import thin_pmf
from verax.privacy.strong.random_mu import mixture_tradeoff
from verax.reproduce import paper_000_model
from verax.reproduce.rows import (
    AGREES,
    DIFFERS,
    ERRATUM,
    TIGHTER,
    Progress,
    Row,
    quiet,
    write_csv,
    write_rows,
)
from verax.samplers import Sampler, Shuffle, WithoutReplacement

POPULATION, BATCH, CLIP_GROUPS = 60_000, 60, 4  # as many records as MNIST; the batch divides them
SIGMA, DELTA = 2.0, 1e-5  # the paper's sigma
EPOCHS, GROUPS = (20, 100), (1, 4, 32)
COLUMNS = (
    "table",
    "row",
    "clipping",
    "sampling",
    "epochs",
    "group",
    "c_squared",
    "mu_at_most",
    "mu_at_least",
    "epsilon_at_most",
    "epsilon_at_least",
    "a1_lower",
    "a1_upper",
    "a0_lower",
    "a0_upper",
    "verdict",
)


@dataclass(frozen=True)
class Case:
    """One line of a table at one setting: sampling, clipping, and what the paper says of mu.

    ``ceiling`` and ``floor`` are the mu of the Gaussian curves below and above the run's, if there
    are any; ``tail`` is the probability that the ceiling leaves out, which adds to delta.
    ``approximate`` marks a range printed with a condition that the setting does not meet.
    """

    table: int
    row: int
    clipping: str
    sampling: str
    epochs: int
    group: int
    ceiling: float | None = None
    floor: float | None = None
    tail: float = 0.0
    approximate: bool = False
    formula: str = ""

    @property
    def groups(self) -> int:
        """m, the clip-groups of a round."""
        return {"individual": BATCH, "batch": 1, "mixed": CLIP_GROUPS}[self.clipping]

    def law(self) -> LatticePmf:
        """The exact law of c^2."""
        return exact(self.sampling, self.groups, self.epochs, self.group)

    def run(self) -> Mechanism:
        """The same as a mechanism, for A0; its clip-groups are drawn independently."""
        clippings: dict[str, Clipping] = {
            "individual": Individual(),
            "batch": Batch(),
            "mixed": Mixed(groups=CLIP_GROUPS),
        }
        rounds = POPULATION // BATCH
        sampler: Sampler = WithoutReplacement(BATCH, POPULATION, rounds * self.epochs)
        if self.sampling == "shuffling":
            sampler = Shuffle(rounds, self.epochs)
        return Mechanism(sampler, 2.0 * SIGMA, clippings[self.clipping], relation="replace")


@cache
def exact(sampling: str, groups: int, epochs: int, group: int) -> LatticePmf:
    """The law of c^2 in the paper's model, ``groups`` equal clip-groups a round."""
    size = BATCH // groups
    if sampling == "shuffling":
        return paper_000_model.shuffling(POPULATION, size, groups, epochs, group)
    return paper_000_model.subsampling(
        POPULATION, size, groups, POPULATION // BATCH * epochs, group
    )


def curve(law: LatticePmf, sigma: float = SIGMA) -> StrongCurve:
    """What A1 sees at this sigma."""
    return StrongCurve(lambda _: law.scaled(sigma**-2.0))


def cases(epochs: Sequence[int] = EPOCHS) -> Iterator[Case]:
    """Every line of tables 1 and 2 at our settings."""
    for e in epochs:
        for g in GROUPS:
            yield Case(
                1, 1, "batch", "subsampling", e, g, *_hoeffding(g * e), formula="gE ± √(gE/2)"
            )
        yield Case(1, 2, "mixed", "subsampling", e, 1, *_hoeffding(e), formula="E ± √(E/2)")
        root = math.sqrt(e) / SIGMA
        yield Case(1, 3, "mixed", "shuffling", e, 1, root, root, formula="E")
        for g in GROUPS[1:]:
            root = math.sqrt(g * e) / SIGMA
            yield Case(1, 4, "mixed", "shuffling", e, g, root, approximate=True, formula="gE")
            yield Case(1, 5, "batch", "shuffling", e, g, root, formula="gE")
            yield Case(1, 6, "batch", "shuffling", e, g, root, root, approximate=True, formula="gE")
        for g in GROUPS:
            yield Case(2, 1 if g == 1 else 2, "individual", "subsampling", e, g)
        for g in GROUPS:
            # gamma, so that half of delta goes into the tail
            spare = math.log(2.0 / DELTA) / (g * e)
            beta = math.exp(POPULATION / (POPULATION - g - BATCH)) + spare
            mu = math.sqrt(beta * min(BATCH, g) * g * e) / SIGMA
            yield Case(
                2,
                3,
                "individual",
                "subsampling",
                e,
                g,
                mu,
                tail=DELTA / 2.0,
                formula="(e+γ)·min(m,g)·gE",
            )


def _hoeffding(mean: float) -> tuple[float, float]:
    spread = math.sqrt(mean / 2.0)
    return math.sqrt(mean + spread) / SIGMA, math.sqrt(mean - spread) / SIGMA


def judge(case: Case) -> tuple[Row, list[object]]:
    """One line of a table next to our numbers, for people and for the CSV file."""
    low, high = curve(case.law()).epsilon(DELTA, 1e-6)
    standard = case.run().guarantee(group=case.group).epsilon(DELTA)
    a0 = min(standard.upper, high)  # what holds for A1 holds for A0
    most = math.inf if case.ceiling is None else gaussian_epsilon(case.ceiling, DELTA - case.tail)
    least = 0.0 if case.floor is None else gaussian_epsilon(case.floor, DELTA, LOWER)
    found, remark = _verdict(case, low, high, most, least)
    what = f"ε, {case.clipping}, {case.sampling}, g={case.group}, E={case.epochs}"
    here = f"{format_bound(low, LOWER)} to {format_bound(high, UPPER)}; A0 <= {format_bound(a0, UPPER)}"
    if case.ceiling is None:
        remark += (
            f"; alone it gives {format_bound(standard.upper, UPPER)}, but what holds for A1 holds for A0"
            if a0 == high
            else ""
        )
        below = format_bound(min(standard.lower, a0), LOWER)
        here = f"A0 {below} to {format_bound(a0, UPPER)}; A1 {format_bound(high, UPPER)}"
    row = Row(
        f"table {case.table}, row {case.row}",
        what,
        _printed(case, most, least),
        here,
        found,
        remark,
    )
    line: list[object] = [
        case.table,
        case.row,
        case.clipping,
        case.sampling,
        case.epochs,
        case.group,
        case.formula,
        case.ceiling,
        case.floor,
        most,
        least,
        low,
        high,
        standard.lower,
        a0,
        found,
    ]
    return row, line


def _printed(case: Case, most: float, least: float) -> str:
    if case.ceiling is None:
        return "C_{m/N}(G_{1/σ})^⊗" + ("" if case.group == 1 else ", g times")
    about = "~" if case.approximate else ""
    if case.floor is None:
        number = f"{about}<= {most:.5g}"
    else:
        number = (
            f"{about}{most:.5g}" if case.floor == case.ceiling else f"{least:.5g} to {most:.5g}"
        )
    return f"{number} (c²={case.formula})"


def _verdict(case: Case, low: float, high: float, most: float, least: float) -> tuple[str, str]:
    if case.ceiling is None:
        proof = "theorem 7" if case.group == 1 else "theorem 7, then lemma 5"
        return AGREES, f"what a guarantee composes (docs/proofs.md, {proof})"
    if low > most * (1.0 + 1e-9) and case.approximate:
        share = case.group**2 * BATCH / (POPULATION - case.group) * case.epochs
        return (
            DIFFERS,
            f"an approximation for small E·g²ms/(N-g), which is {share:.2g} here; epsilon is "
            "larger",
        )
    if low > most * (1.0 + 1e-9):
        return ERRATUM, "not a bound: epsilon is larger; see E.2 below"
    if case.floor is not None and case.floor < case.ceiling:
        delta, claimed, true = failure(case)
        return (
            ERRATUM,
            f"true here, but at delta {delta:.0e} epsilon is {true:.5g}, not {claimed:.5g}; see "
            "E.2 below",
        )
    return (TIGHTER if high < 0.98 * most and least < 0.98 * high else AGREES), ""


def failure(case: Case) -> tuple[float, float, float]:
    """The first delta, a power of ten, where the range fails, its epsilon, and the true one."""
    for digits in range(5, 200):
        delta = 10.0**-digits
        claimed = gaussian_epsilon(case.ceiling or 0.0, delta)
        true = curve(case.law()).epsilon(delta, 1e-6)[0]
        if true > claimed:
            return delta, claimed, true
    raise ArithmeticError(f"no failure found for {case}")


# --- the errata, each with its counterexample -----------------------------------------------------


def errata() -> Iterator[Row]:
    """Statements that fail, and the numbers that show it."""
    yield from _tails()
    yield from _occupancy()
    yield from _definitions()
    yield from _side_remarks()


def _tails() -> Iterator[Row]:
    population, batch, epochs = 60_000, 64, 20
    law = paper_000_model.subsampling(population, 1, batch, population * epochs // batch, 1)
    edge = epochs + math.sqrt(epochs / 2.0)
    tail = law.above(edge)[0]
    yield Row(
        "E.2 and E.5",
        f"P[c² > E + √(E/2)], N={population}, m={batch}, E={epochs}",
        f"<= {math.exp(-epochs):.3g}",
        f">= {format_bound(tail, LOWER, 3)}",
        ERRATUM,
        "Hoeffding's inequality without its 1/n: with it the bound is e^(-m/N) = "
        f"{math.exp(-batch / population):.4f}",
    )
    claimed = gaussian_epsilon(math.sqrt(edge) / SIGMA, DELTA - math.exp(-epochs))
    low, high = curve(law).epsilon(DELTA, 1e-6)
    yield Row(
        "lemma E.2",
        "ε of the same run",
        f"<= {claimed:.5g}",
        f"{format_bound(low, LOWER)} to {format_bound(high, UPPER)}",
        ERRATUM,
        "the lower end of the range is false; no counterexample to its upper end was found",
    )
    run = Mechanism(
        WithoutReplacement(batch, population, population * epochs // batch), 2.0 * SIGMA
    )
    standard = run.guarantee().epsilon(DELTA)
    yield Row(
        "E.2",
        "C_{m/N}(G_{1/σ})^⊗ is tight for A1",
        "ε is the same",
        f"A0 <= {format_bound(standard.upper, UPPER)}, A1 >= {format_bound(low, LOWER)}",
        ERRATUM,
        "that curve is A0's, as appendix G says; lemma E.2's range excludes it",
    )


def printed_occupancy(batches: int, group: int) -> LatticePmf:
    """The law of touched batches as section F.3 has it."""
    ways = math.comb(batches - 1 + group, group)
    chances = [
        math.comb(batches, j) * math.comb(group - 1, j - 1) / ways for j in range(1, group + 1)
    ]
    return LatticePmf.of(np.arange(1.0, group + 1.0), chances)


def _occupancy() -> Iterator[Row]:
    batches, size, group, sigma, alpha = 10, 8, 4, 1.0, 0.05
    right, wrong = (
        paper_000_model.shuffling(batches * size, size, 1, 1, group),
        printed_occupancy(batches, group),
    )
    yield Row(
        "F.3",
        f"P[c²={group}], {batches} batches of {size}, g={group}",
        f"{wrong.weights[-1]:.3f}",
        f"{right.weights[-1]:.3f}",
        ERRATUM,
        "stars and bars weigh batch contents alike; shuffles do not",
    )
    claimed = mixture_tradeoff(wrong.scaled(sigma**-2.0), alpha, LOWER)
    beta = mixture_tradeoff(right.scaled(sigma**-2.0), alpha, UPPER)
    yield Row(
        "lemma F.4",
        f"f({alpha:g}) from that law, σ={sigma:g}",
        f">= {claimed:.4g}",
        f"<= {format_bound(beta, UPPER, 4)}",
        ERRATUM,
        "promises more privacy than there is",
    )
    group = 32
    tail = exact("shuffling", 1, 1, group).below(float(group))[0]
    rounds = POPULATION // BATCH
    yield Row(
        "theorem F.1",
        f"tail u at g={group}, N/s={rounds}",
        f"{group**2 / (rounds - group - group**2):.3g}",
        f">= {format_bound(tail, LOWER, 3)}",
        ERRATUM,
        "no probability: the condition 2g² + g <= N/s is missing",
    )


def _definitions() -> Iterator[Row]:
    law = exact("subsampling", 1, 1, 1)
    empty = law.below(0.5)[0]
    first, last = blind_range(law.scaled(SIGMA**-2.0))
    yield Row(
        "definition 5.2",
        "a Λ for every α (subsampling, E=1, g=1)",
        "exists",
        f"none for α from {first:.3f} to {last:.3f}",
        ERRATUM,
        f"c = 0 has probability {empty:.3f}: there the curve is a line of slope -1",
    )
    yield Row(
        "C.4",
        "|U-U'| for k=4 orthogonal terms",
        "8C",
        "4C",
        ERRATUM,
        "2kC is met by parallel differences; orthogonal ones give 2√k C",
    )
    kept = LatticePmf.of([0.0, 1.0], thin_pmf(np.array([0.0, 1.0]), 0.5))
    low = curve(kept, 1.0).delta(2.0, 1e-6)[0]
    yield Row(
        "D",
        "filtered, k=1, σ=1: δ at ε=2",
        f"~{gaussian_delta(0.5, 2.0):.3g} (G_{{k/2σ}})",
        f">= {format_bound(low, LOWER, 3)}",
        ERRATUM,
        "the average shift is no bound; over many rounds c falls by √2 at g = 1, not by 2",
    )


def blind_range(law: LatticePmf) -> tuple[float, float]:
    """The false-alarm rates between rejecting none and all runs without the group."""
    seen = law.lows > 0.0
    few = float(law.weights[seen] @ special.ndtr(-np.sqrt(law.lows[seen]) / 2.0))
    return few, few + float(law.weights[~seen].sum())


def _side_remarks() -> Iterator[Row]:
    value = clt_mu(SIGMA)
    yield Row(
        "G",
        f"h(σ) against 1/σ at σ={SIGMA:g}",
        "slightly smaller",
        f"{value:.4f} > {1.0 / SIGMA:g}",
        ERRATUM,
        "the expansion is σ⁻¹√(1 + 2σ⁻¹/√(2π)), not σ⁻¹√(1 - ⅝σ⁻¹/√(2π))",
    )
    epsilon, group = 2.0, 2
    needed = black_box_group(epsilon, 1e-6, group)[1] / 1e-6
    yield Row(
        "2",
        f"δ for g={group} records, ε={epsilon:g} each",
        f"g·e^(g-1)·δ = {group * math.e:.3g}·δ",
        f"{needed:.3g}·δ",
        ERRATUM,
        "the factor is e^((g-1)ε); without epsilon it is too small above epsilon 1",
    )
    yield Row(
        "A",
        "f_{ε,δ}(0) at ε=1, δ=0",
        "min{0, 1, 1/e} = 0",
        "1",
        ERRATUM,
        "a maximum, not a minimum",
    )


def clt_mu(sigma: float) -> float:
    """h(sigma) of appendix G (Dong, Roth and Su, corollary 5.4)."""
    x = 1.0 / sigma
    return math.sqrt(
        2.0 * (math.exp(x * x) * special.ndtr(1.5 * x) + 3.0 * special.ndtr(-0.5 * x) - 2.0)
    )


def reproduce(
    folder: Path, progress: Progress = quiet, epochs: Sequence[int] = EPOCHS
) -> list[Row]:
    """Write ``tables.csv`` and ``numbers.csv``; return the tables next to ours, then the errata.

    Args:
        folder: where to write; it must exist.
        progress: entered around each table's work.
        epochs: numbers of epochs to print the tables for.
    """
    rows: list[Row] = []
    lines: list[list[object]] = []
    for table in (1, 2):
        with progress(f"table {table} of 2"):
            for case in sorted(cases(epochs), key=lambda c: (c.row, c.epochs, c.group)):
                if case.table == table:
                    row, line = judge(case)
                    rows.append(row)
                    lines.append(line)
    rows += errata()
    write_csv(folder / "tables.csv", COLUMNS, lines)
    write_rows(folder / "numbers.csv", rows)
    return rows
