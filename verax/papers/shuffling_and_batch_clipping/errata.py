"""Statements of the paper that fail, each with its counterexample."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import special

from verax.mechanism import Mechanism
from verax.papers.comparison import Row, between, erratum
from verax.papers.shuffling_and_batch_clipping.model import (
    BATCH,
    DELTA,
    POPULATION,
    SIGMA,
    exact,
    shuffling,
    strong_curve,
    subsampling,
)
from verax.privacy.curves.gaussian import black_box_group, gaussian_delta, gaussian_epsilon
from verax.privacy.guarantee import format_bound
from verax.privacy.numerics.lattice import LatticePmf
from verax.privacy.pld.composition import LOWER, UPPER
from verax.privacy.strong.occupancy import thin_pmf
from verax.privacy.strong.random_mu import mixture_tradeoff
from verax.samplers import WithoutReplacement


def errata() -> Iterator[Row]:
    """Statements that fail, and the numbers that show it."""
    yield from _tails()
    yield from _occupancy()
    yield from _definitions()
    yield from _side_remarks()


def _tails() -> Iterator[Row]:
    population, batch, epochs = 60_000, 64, 20
    law = subsampling(population, 1, batch, population * epochs // batch, 1)
    edge = epochs + math.sqrt(epochs / 2.0)
    tail = law.above(edge)[0]
    yield erratum(
        "E.2 and E.5",
        f"P[c² > E + √(E/2)], N={population}, m={batch}, E={epochs}",
        f"<= {math.exp(-epochs):.3g}",
        f">= {format_bound(tail, LOWER, 3)}",
        "Hoeffding's inequality without its 1/n: with it the bound is e^(-m/N) = "
        f"{math.exp(-batch / population):.4f}",
    )
    claimed = gaussian_epsilon(math.sqrt(edge) / SIGMA, DELTA - math.exp(-epochs))
    low, high = strong_curve(law).epsilon(DELTA, 1e-6)
    yield erratum(
        "lemma E.2",
        "ε of the same run",
        f"<= {claimed:.5g}",
        between(low, high),
        "the lower end of the range is false; no counterexample to its upper end was found",
    )
    run = Mechanism(
        WithoutReplacement(batch, population, population * epochs // batch), 2.0 * SIGMA
    )
    standard = run.guarantee().epsilon(DELTA)
    yield erratum(
        "E.2",
        "C_{m/N}(G_{1/σ})^⊗ is tight for A1",
        "ε is the same",
        f"A0 <= {format_bound(standard.upper, UPPER)}, A1 >= {format_bound(low, LOWER)}",
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
        shuffling(batches * size, size, 1, 1, group),
        printed_occupancy(batches, group),
    )
    yield erratum(
        "F.3",
        f"P[c²={group}], {batches} batches of {size}, g={group}",
        f"{wrong.weights[-1]:.3f}",
        f"{right.weights[-1]:.3f}",
        "stars and bars weigh batch contents alike; shuffles do not",
    )
    claimed = mixture_tradeoff(wrong.scaled(sigma**-2.0), alpha, LOWER)
    beta = mixture_tradeoff(right.scaled(sigma**-2.0), alpha, UPPER)
    yield erratum(
        "lemma F.4",
        f"f({alpha:g}) from that law, σ={sigma:g}",
        f">= {claimed:.4g}",
        f"<= {format_bound(beta, UPPER, 4)}",
        "promises more privacy than there is",
    )
    group = 32
    tail = exact("shuffling", 1, 1, group).below(float(group))[0]
    rounds = POPULATION // BATCH
    yield erratum(
        "theorem F.1",
        f"tail u at g={group}, N/s={rounds}",
        f"{group**2 / (rounds - group - group**2):.3g}",
        f">= {format_bound(tail, LOWER, 3)}",
        "no probability: the condition 2g² + g <= N/s is missing",
    )


def _definitions() -> Iterator[Row]:
    law = exact("subsampling", 1, 1, 1)
    empty = law.below(0.5)[0]
    first, last = blind_range(law.scaled(SIGMA**-2.0))
    yield erratum(
        "definition 5.2",
        "a Λ for every α (subsampling, E=1, g=1)",
        "exists",
        f"none for α from {first:.3f} to {last:.3f}",
        f"c = 0 has probability {empty:.3f}: there the curve is a line of slope -1",
    )
    yield erratum(
        "C.4",
        "|U-U'| for k=4 orthogonal terms",
        "8C",
        "4C",
        "2kC is met by parallel differences; orthogonal ones give 2√k C",
    )
    kept = LatticePmf.of([0.0, 1.0], thin_pmf(np.array([0.0, 1.0]), 0.5))
    low = strong_curve(kept, 1.0).delta(2.0, 1e-6)[0]
    yield erratum(
        "D",
        "filtered, k=1, σ=1: δ at ε=2",
        f"~{gaussian_delta(0.5, 2.0):.3g} (G_{{k/2σ}})",
        f">= {format_bound(low, LOWER, 3)}",
        "the average shift is no bound; over many rounds c falls by √2 at g = 1, not by 2",
    )


def blind_range(law: LatticePmf) -> tuple[float, float]:
    """The false-alarm rates between rejecting none and all runs without the group."""
    seen = law.lows > 0.0
    few = float(law.weights[seen] @ special.ndtr(-np.sqrt(law.lows[seen]) / 2.0))
    return few, few + float(law.weights[~seen].sum())


def _side_remarks() -> Iterator[Row]:
    value = clt_mu(SIGMA)
    yield erratum(
        "G",
        f"h(σ) against 1/σ at σ={SIGMA:g}",
        "slightly smaller",
        f"{value:.4f} > {1.0 / SIGMA:g}",
        "the expansion is σ⁻¹√(1 + 2σ⁻¹/√(2π)), not σ⁻¹√(1 - ⅝σ⁻¹/√(2π))",
    )
    epsilon, group = 2.0, 2
    needed = black_box_group(epsilon, 1e-6, group)[1] / 1e-6
    yield erratum(
        "2",
        f"δ for g={group} records, ε={epsilon:g} each",
        f"g·e^(g-1)·δ = {group * math.e:.3g}·δ",
        f"{needed:.3g}·δ",
        "the factor is e^((g-1)ε); without epsilon it is too small above epsilon 1",
    )
    yield erratum(
        "A", "f_{ε,δ}(0) at ε=1, δ=0", "min{0, 1, 1/e} = 0", "1", "a maximum, not a minimum"
    )


def clt_mu(sigma: float) -> float:
    """h(sigma) of appendix G (Dong, Roth and Su, corollary 5.4)."""
    x = 1.0 / sigma
    return math.sqrt(
        2.0 * (math.exp(x * x) * special.ndtr(1.5 * x) + 3.0 * special.ndtr(-0.5 * x) - 2.0)
    )
