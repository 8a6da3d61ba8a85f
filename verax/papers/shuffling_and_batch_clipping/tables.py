"""Tables 1 and 2: Gaussian trade-off curves G_mu between which a run's curve lies.

They are for adversary A1, who sees the sampling. Each mu becomes the epsilon it implies at one
delta, next to the exact A1 epsilon and the one of the standard adversary A0. The paper's sigma is
half the noise multiplier (docs/strong-adversary.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verax.mechanism import Batch, Clipping, Individual, Mechanism, Mixed
from verax.papers.comparison import AGREES, DIFFERS, ERRATUM, TIGHTER, Progress, Row, between, quiet
from verax.papers.files import write_rows, write_table
from verax.papers.shuffling_and_batch_clipping.errata import errata
from verax.papers.shuffling_and_batch_clipping.model import (
    BATCH,
    CLIP_GROUPS,
    DELTA,
    POPULATION,
    SIGMA,
    exact,
    strong_curve,
)
from verax.privacy.curves.gaussian import gaussian_epsilon
from verax.privacy.guarantee import format_bound
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pld.composition import LOWER, UPPER
from verax.samplers import Sampler, Shuffle, WithoutReplacement

EPOCHS, GROUPS = (20, 100), (1, 4, 32)
CLIPPINGS: dict[str, Clipping] = {
    "individual": Individual(),
    "batch": Batch(),
    "mixed": Mixed(groups=CLIP_GROUPS),
}


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

    @property
    def at_most(self) -> float:
        """The epsilon that the ceiling implies."""
        if self.ceiling is None:
            return math.inf
        return gaussian_epsilon(self.ceiling, DELTA - self.tail)

    @property
    def at_least(self) -> float:
        """The epsilon that the floor implies."""
        return 0.0 if self.floor is None else gaussian_epsilon(self.floor, DELTA, LOWER)

    def law(self) -> LatticePmf:
        """The exact law of c^2."""
        return exact(self.sampling, self.groups, self.epochs, self.group)

    def run(self) -> Mechanism:
        """The same as a mechanism, for A0; its clip-groups are drawn independently."""
        rounds = POPULATION // BATCH
        sampler: Sampler = WithoutReplacement(BATCH, POPULATION, rounds * self.epochs)
        if self.sampling == "shuffling":
            sampler = Shuffle(rounds, self.epochs)
        return Mechanism(sampler, 2.0 * SIGMA, CLIPPINGS[self.clipping], relation="replace")


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


def judge(case: Case) -> tuple[Row, dict[str, object]]:
    """One line of a table next to our numbers, for people and for the CSV file."""
    low, high = strong_curve(case.law()).epsilon(DELTA, 1e-6)
    standard = case.run().guarantee(group=case.group).epsilon(DELTA)
    a0 = min(standard.upper, high)  # what holds for A1 holds for A0
    found, remark = _verdict(case, low, high)
    here = f"{between(low, high)}; A0 <= {format_bound(a0, UPPER)}"
    if case.ceiling is None:
        if a0 == high:
            alone = format_bound(standard.upper, UPPER)
            remark += f"; alone it gives {alone}, but what holds for A1 holds for A0"
        here = f"A0 {between(min(standard.lower, a0), a0)}; A1 {format_bound(high, UPPER)}"
    what = f"ε, {case.clipping}, {case.sampling}, g={case.group}, E={case.epochs}"
    where = f"table {case.table}, row {case.row}"
    line = {
        "table": case.table,
        "row": case.row,
        "clipping": case.clipping,
        "sampling": case.sampling,
        "epochs": case.epochs,
        "group": case.group,
        "c_squared": case.formula,
        "mu_at_most": case.ceiling,
        "mu_at_least": case.floor,
        "epsilon_at_most": case.at_most,
        "epsilon_at_least": case.at_least,
        "a1_lower": low,
        "a1_upper": high,
        "a0_lower": standard.lower,
        "a0_upper": a0,
        "verdict": found,
    }
    return Row(where, what, _printed(case), here, found, remark), line


def _printed(case: Case) -> str:
    if case.ceiling is None:
        return "C_{m/N}(G_{1/σ})^⊗" + ("" if case.group == 1 else ", g times")
    number = f"{case.at_most:.5g}"
    if case.floor is None:
        number = f"<= {number}"
    elif case.floor < case.ceiling:
        number = f"{case.at_least:.5g} to {number}"
    return f"{'~' * case.approximate}{number} (c²={case.formula})"


def _verdict(case: Case, low: float, high: float) -> tuple[str, str]:
    if case.ceiling is None:
        proof = "theorem 7" if case.group == 1 else "theorem 7, then lemma 5"
        return AGREES, f"what a guarantee composes (docs/proofs.md, {proof})"
    if low > case.at_most * (1.0 + 1e-9):
        if not case.approximate:
            return ERRATUM, "not a bound: epsilon is larger; see E.2 below"
        share = case.group**2 * BATCH / (POPULATION - case.group) * case.epochs
        return DIFFERS, (
            f"an approximation for small E·g²ms/(N-g), which is {share:.2g} here; epsilon is larger"
        )
    if case.floor is not None and case.floor < case.ceiling:
        delta, claimed, true = failure(case)
        return ERRATUM, (
            f"true here, but at delta {delta:.0e} epsilon is {true:.5g}, not {claimed:.5g}; see "
            "E.2 below"
        )
    return (TIGHTER if high < 0.98 * case.at_most and case.at_least < 0.98 * high else AGREES), ""


def failure(case: Case) -> tuple[float, float, float]:
    """The first delta, a power of ten, where the range fails, its epsilon, and the true one."""
    for digits in range(5, 200):
        delta = 10.0**-digits
        claimed = gaussian_epsilon(case.ceiling or 0.0, delta)
        true = strong_curve(case.law()).epsilon(delta, 1e-6)[0]
        if true > claimed:
            return delta, claimed, true
    raise ArithmeticError(f"no failure found for {case}")


def reproduce(
    folder: Path, progress: Progress = quiet, epochs: Sequence[int] = EPOCHS
) -> list[Row]:
    """Write ``tables.csv`` and ``numbers.csv``; return the tables next to ours, then the errata."""
    rows: list[Row] = []
    lines: list[dict[str, object]] = []
    for table in (1, 2):
        with progress(f"table {table} of 2"):
            for case in sorted(cases(epochs), key=lambda c: (c.row, c.epochs, c.group)):
                if case.table == table:
                    row, line = judge(case)
                    rows.append(row)
                    lines.append(line)
    rows += errata()
    write_table(folder / "tables.csv", lines)
    write_rows(folder, rows)
    return rows
