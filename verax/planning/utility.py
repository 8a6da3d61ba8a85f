"""The utility graph: how much noise a trained model bears, measured on public data beforehand.

Train with clipping and without noise, add Gaussian noise of standard deviation (clip norm) x sigma
to all weights, and compare the accuracy with that of the clean model: section 4.1 of "Proactive
DP". It is a heuristic that steers a plan, never a guarantee. docs/utility.md says how sigma relates
to a plan.
"""

from __future__ import annotations

import copy
import json
import math
import secrets
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from verax import checks
from verax.mechanism import Individual, Mechanism
from verax.samplers import Poisson

if TYPE_CHECKING:
    from torch import Tensor, nn

    from verax.planning.planner import Plan

FORMAT = 1
_GRID = 2000  # means that are bet on
LEAKS = (
    "the graph was made from private data: what is chosen by it, and the graph itself, are "
    "releases without noise that no guarantee covers; use public or proxy data, or price the "
    "search with verax.privacy.tuning"
)


class PrivateData(UserWarning):
    """A choice was made by looking at private data."""


@dataclass(frozen=True)
class Point:
    """Accuracy with noise over accuracy without, at one sigma: mean and confidence band."""

    sigma: float
    fraction: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One clip norm: the accuracy of its clean model, and the fraction left by each sigma."""

    clip_norm: float
    accuracy: float
    points: tuple[Point, ...]

    def fraction(self, sigma: float) -> float:
        """The fraction left at sigma: linear between the points, flat beyond the last."""
        x, y = [0.0, *(p.sigma for p in self.points)], [1.0, *(p.fraction for p in self.points)]
        return float(np.interp(sigma, x, y))

    def largest_sigma(self, drop: float) -> float | None:
        """The largest sigma up to which the lower end of the band stays within the drop.

        >>> line = Line(
        ...     1.0,
        ...     0.9,
        ...     (
        ...         Point(0.1, 0.99, 0.98, 1.0),
        ...         Point(0.3, 0.9, 0.88, 0.92),
        ...         Point(0.9, 0.5, 0.4, 0.6),
        ...     ),
        ... )
        >>> round(line.largest_sigma(0.05), 3), line.largest_sigma(0.01)
        (0.16, None)
        """
        floor = 1.0 - checks.probability("drop", drop)
        before: Point | None = None
        for point in self.points:
            if point.low < floor:
                if before is None:
                    return None
                share = (before.low - floor) / (before.low - point.low)
                return before.sigma + share * (point.sigma - before.sigma)
            before = point
        return before.sigma if before else None


@dataclass(frozen=True)
class UtilityGraph:
    """Lines for several clip norms, with how they were measured; see :meth:`save`, :func:`read`.

    ``path`` is learning rate times rounds of the clean runs: how far a model can have moved, in
    clip norms.
    """

    lines: tuple[Line, ...]
    learning_rate: float
    rounds: int
    draws: int
    confidence: float
    public: bool
    data: str = ""
    model: str = ""

    @property
    def path(self) -> float:
        """Learning rate times rounds."""
        return self.learning_rate * self.rounds

    def pick(self, drop: float) -> tuple[Line, float] | None:
        """The line and largest sigma within the drop, by noise on the weights; None if none.

        The drop is measured from the best clean accuracy of any line, so that a clip norm that
        hurts by itself has less to give away.
        """
        best = max(line.accuracy for line in self.lines)
        found: list[tuple[float, Line]] = []
        for line in self.lines:
            left = 1.0 - (1.0 - checks.probability("drop", drop)) * best / max(line.accuracy, 1e-12)
            sigma = line.largest_sigma(left) if left > 0.0 else None
            if sigma is not None:
                found.append((sigma, line))
        if not found:
            return None
        sigma, line = max(found, key=lambda item: item[0])
        return line, sigma

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        content = {"verax_utility": FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(path: str | Path) -> UtilityGraph:
    """A graph that was saved; warns if it was made from private data."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"path must be a utility graph that can be read, got {str(path)!r}: {error}"
        ) from error
    if not isinstance(content, dict) or content.pop("verax_utility", None) != FORMAT:
        raise ValueError(f"path must be a utility graph of format {FORMAT}, got {str(path)!r}")
    try:
        lines = tuple(
            Line(
                line["clip_norm"],
                line["accuracy"],
                tuple(Point(**point) for point in line["points"]),
            )
            for line in content.pop("lines")
        )
        graph = UtilityGraph(lines=lines, **content)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"path must be a whole utility graph, got {str(path)!r}: {error}"
        ) from error
    if not graph.public:
        warnings.warn(LEAKS, PrivateData, stacklevel=2)
    return graph


def utility_graph(
    model: Callable[[], nn.Module],
    loss: Callable[..., Tensor],
    train: tuple[Tensor, Tensor],
    accuracy: Callable[[nn.Module], float],
    *,
    public: bool,
    clip_norms: Sequence[float],
    sigmas: Iterable[float],
    learning_rate: float,
    batch: int,
    epochs: int,
    draws: int = 200,
    confidence: float = 0.95,
    data: str = "",
    insecure_seed: int | None = None,
) -> UtilityGraph:
    """Train once per clip norm, without noise, then measure what noise on the weights does.

    Args:
        model: makes a fresh model.
        loss: a torch criterion.
        train: records to train on: public, or resembling the private ones.
        accuracy: from a model to a number in [0, 1]; on public or proxy records as well.
        public: whether all these data are public. If not, the result says so and a
            :class:`PrivateData` is warned.
        clip_norms: of individual gradients, one line each.
        sigmas: standard deviations of the noise on the weights, divided by the clip norm.
        learning_rate: of plain SGD.
        batch: expected batch size.
        epochs: passes over the data.
        draws: noise draws per point; with fewer than 100 the bands are wide.
        confidence: of the bands, point by point.
        data: what to call the data in the graph.
        insecure_seed: makes the graph repeatable.
    """
    import torch

    from verax.training import fit

    if not public:
        warnings.warn(LEAKS, PrivateData, stacklevel=2)
    checks.count("draws", draws, 2)
    checks.probability("confidence", confidence)
    grid = sorted(checks.positive("sigmas", sigma) for sigma in sigmas)
    if not grid or not clip_norms:
        raise ValueError("clip_norms and sigmas must hold at least one value each, got none")
    rate = min(checks.count("batch", batch) / len(train[1]), 1.0)
    rounds = math.ceil(checks.count("epochs", epochs) / rate)
    noise = torch.Generator()
    noise.manual_seed(insecure_seed if insecure_seed is not None else secrets.randbits(63))
    lines, name = [], ""
    for norm in sorted(checks.positive("clip_norms", norm) for norm in clip_norms):
        if insecure_seed is not None:
            torch.manual_seed(insecure_seed)
        network = model()
        name = type(network).__name__
        run = Mechanism(Poisson(rate, rounds), 0.0, Individual(norm))
        fit(
            network,
            loss,
            train,
            run,
            lambda p: torch.optim.SGD(p, learning_rate),
            progress=False,
            insecure_seed=insecure_seed,
        )
        clean = accuracy(network)
        if not clean > 0.0:
            raise ValueError(
                f"the model trained with clip norm {norm!r} has accuracy {clean!r}: "
                "nothing to compare with"
            )
        points = tuple(
            _point(network, accuracy, clean, norm, sigma, draws, confidence, noise)
            for sigma in grid
        )
        lines.append(Line(norm, clean, points))
    return UtilityGraph(tuple(lines), learning_rate, rounds, draws, confidence, public, data, name)


def _point(
    network: nn.Module,
    accuracy: Callable[[nn.Module], float],
    clean: float,
    norm: float,
    sigma: float,
    draws: int,
    confidence: float,
    noise: Any,
) -> Point:
    import torch

    noisy = copy.deepcopy(network)
    found = np.empty(draws)
    for i in range(draws):
        with torch.no_grad():
            for parameter, base in zip(noisy.parameters(), network.parameters(), strict=True):
                if base.requires_grad:
                    draw = torch.randn(base.shape, generator=noise, dtype=base.dtype)
                    parameter.copy_(base + norm * sigma * draw.to(base.device))
        found[i] = accuracy(noisy)
    if not np.all((found >= 0.0) & (found <= 1.0)):
        raise ValueError(
            f"accuracy must lie in [0, 1], got {found[(found < 0.0) | (found > 1.0)][0]!r}"
        )
    low, high = mean_band(found, 1.0 - confidence)
    return Point(sigma, float(found.mean()) / clean, low / clean, high / clean)


def mean_band(values: NDArray[np.float64], miss: float) -> tuple[float, float]:
    """A confidence interval for the mean of independent values in [0, 1] of any distribution.

    A model with noise is often either fine or useless, and then Student's interval is wrong far too
    often. Here one bets on the values being above, and below, every possible mean m; fair bets
    rarely multiply the stake by 2 / miss (Ville's inequality; Waudby-Smith and Ramdas 2024, theorem
    3).

    >>> low, high = mean_band(np.array([0.9, 0.92, 0.88, 0.91, 0.9] * 8), 0.05)
    >>> 0.78 < low < 0.902 < high < 0.97
    True
    """
    n = len(values)
    before = np.arange(1, n + 1)  # a half, and the values seen so far
    means = (0.5 + np.cumsum(values)) / (before + 1.0)
    spread = (0.25 + np.cumsum((values - means) ** 2)) / (before + 1.0)
    stake = np.sqrt(2.0 * math.log(2.0 / miss) / (n * np.concatenate([[0.25], spread[:-1]])))
    m = np.linspace(0.0, 1.0, _GRID + 1)[1:-1, None]
    up = np.log1p(np.minimum(stake, 0.75 / m) * (values - m)).sum(axis=1)
    down = np.log1p(-np.minimum(stake, 0.75 / (1.0 - m)) * (values - m)).sum(axis=1)
    kept = np.flatnonzero(np.maximum(up, down) < math.log(2.0 / miss)) + 1
    if not kept.size:  # narrower than the grid
        kept = np.array([round(float(values.mean()) * _GRID)])
    return max(float(kept[0]) - 1.0, 0.0) / _GRID, min(float(kept[-1]) + 1.0, _GRID) / _GRID


# --- with the frontier ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A plan, the clip norm and learning rate to run it with, and its expected accuracy."""

    plan: Plan
    clip_norm: float
    learning_rate: float
    accuracy: float


def expected(plan: Plan, graph: UtilityGraph) -> Choice:
    """What the graph expects of a plan at the best of its clip norms.

    The plan takes as long a path as the clean run, path / rounds at a time, and the noise of all
    its rounds adds up on the weights: sigma = path / (signal of the whole run). See
    docs/utility.md.
    """
    sigma = graph.path / plan.signal_of_run
    best = max(graph.lines, key=lambda line: line.accuracy * line.fraction(sigma))
    return Choice(
        plan, best.clip_norm, graph.path / plan.rounds, best.accuracy * best.fraction(sigma)
    )


def best_plan(plans: Iterable[Plan], graph: UtilityGraph, within: float = 0.002) -> Choice:
    """The plan with the least gradient work among those ``within`` of the best accuracy.

    Plans with fewer rounds than the graph's own runs are left out: they would need a larger
    learning rate than tried.

    Example:
        >>> from verax.planning import Target, frontier
        >>> line = Line(1.0, 0.95, (Point(0.01, 0.99, 0.98, 1.0), Point(0.1, 0.9, 0.89, 0.91)))
        >>> graph = UtilityGraph(
        ...     (line,), learning_rate=0.5, rounds=20, draws=20, confidence=0.95, public=True
        ... )
        >>> plans = frontier(Target(60000, 1.0, 1e-5), batches=[600, 6000], epochs=[2, 10])
        >>> choice = best_plan(plans, graph)
        >>> choice.plan.batch, choice.plan.epochs, 0.9 < choice.accuracy < 0.95
        (6000, 2, True)
    """
    tried = list(plans)
    choices = [expected(plan, graph) for plan in tried if plan.rounds >= graph.rounds]
    if not choices:
        most = max((plan.rounds for plan in tried), default=0)
        raise ValueError(
            f"plans must have at least the {graph.rounds} rounds of the graph's clean runs, got at "
            f"most {most}; allow more rounds, or make the graph with fewer"
        )
    top = max(choice.accuracy for choice in choices)
    near = [
        choice
        for choice in choices
        if choice.accuracy >= top - checks.nonnegative("within", within)
    ]
    return min(near, key=lambda choice: (choice.plan.work, -choice.accuracy))
