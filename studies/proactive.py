"""Section 4 of "Proactive DP": utility graphs, accuracy against the sample size s and against epsilon.

Run it with ``VERAX_DATA=folder python studies/proactive.py``: a9a and phishing, with and without
ridge; then ``--problems non-convex`` for LeNet on MNIST. It writes docs/study-proactive.csv and
docs/study-proactive-utility.csv line by line and can be interrupted: what is in the files already
is not run again. With everything there it draws both as .svg and prints the tables of
docs/studies.md.

Algorithm 1 of the paper adds (step size) x (noisy sum of the batch) to the weights; verax divides
the sum by s, so the learning rate is s times the paper's step size. The ridge's gradient depends on
no record: it is added after clipping and noise, as the optimizer's weight decay, and costs nothing.
One client, in step, where the paper has five.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from proactive_data import examples
from torch import Tensor, nn

from verax import Individual, Mechanism, Poisson, calibrate
from verax.planning.closed_form.calculator import budget, simple
from verax.planning.utility import mean_band
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.figures import OKABE_ITO, panels
from verax.training import fit
from verax.training.data.examples import Examples, build
from verax.training.performance.malloc import keep_freed_blocks


@dataclass(frozen=True)
class Problem:
    """What is minimised, and the paper's schedule for it: step / (1 + beta t), or the root of t, t records seen.

    The paper has step 0.1 for all. With ridge and one client that is too short a path to learn
    anything; 0.5 is as far as its five clients walk together.
    """

    name: str
    data: tuple[str, ...]
    beta: float
    root: bool
    ridge: bool
    norm: float
    epochs: int
    step: float
    epsilons: tuple[float, ...]
    sizes: tuple[int, ...]
    """Smaller than the largest s that theorem B.4 grants at the first epsilon."""
    norms: tuple[float, ...]
    sigmas: tuple[float, ...]

    def model(self, data: Examples, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Linear(data.shape[0], 1) if len(data.shape) == 1 else build("lenet", data)

    @property
    def loss(self) -> nn.Module:
        return nn.CrossEntropyLoss() if self.name == "non-convex" else nn.BCEWithLogitsLoss()


_LIBSVM, _SIGMAS = ("phishing", "a9a"), (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0)
_EPSILONS, _SIZES, _NORMS = (
    (0.04945, 0.1, 0.25, 0.5, 1.0, 2.0),
    (5, 10, 20),
    (0.05, 0.075, 0.1, 0.2),
)
PROBLEMS = {
    "ridge": Problem(
        "ridge", _LIBSVM, 0.001, False, True, 0.1, 5, 0.5, _EPSILONS, _SIZES, _NORMS, _SIGMAS
    ),
    "plain": Problem(
        "plain", _LIBSVM, 0.01, True, False, 0.1, 5, 0.1, _EPSILONS, _SIZES, _NORMS, _SIGMAS
    ),
    "non-convex": Problem(
        "non-convex",
        ("mnist",),
        0.01,
        True,
        False,
        0.025,
        6,
        0.1,
        (0.15007, 0.25, 0.5, 1.0),
        (100, 200),
        (0.01, 0.025, 0.05, 0.1),
        (0.5, 1.0, 2.0, 4.0, 8.0, 12.0),
    ),
}


@dataclass(frozen=True)
class Run:
    """One training run: everything that its accuracy depends on."""

    study: str
    problem: str
    data: str
    records: int
    batch: int
    rounds: int
    noise: float
    norm: float
    step: float
    seed: int
    epsilon: str
    """What the closed form grants, or what the noise was calibrated to."""

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(
            Poisson(self.batch / self.records, self.rounds), self.noise, Individual(self.norm)
        )

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


@dataclass(frozen=True)
class Bears:
    """A point of a utility graph: what noise on the weights leaves of the clean model's accuracy, with a 95 % band."""

    problem: str
    data: str
    norm: float
    step: float
    draws: int
    sigma: float
    clean: float
    fraction: float
    low: float
    high: float


COLUMNS = [field.name for field in fields(Run)] + [
    "accuracy",
    "epsilon lower",
    "epsilon upper",
    "seconds",
]
GRAPH = [field.name for field in fields(Bears)]
load = cache(examples)


def runs(problem: Problem, data: str, seeds: int, step: float) -> Iterator[Run]:
    """All runs on one data set: without noise, then by epsilon, by sample size, and by both at equal tight epsilon."""
    records = len(load(data).train[1])
    delta, work = 1.0 / records, problem.epochs * records

    def each(study: str, batch: int, noise: float, epsilon: str) -> Iterator[Run]:
        rounds, norm = work // batch, problem.norm
        for seed in range(seeds):
            yield Run(
                study, problem.name, data, records, batch, rounds, noise, norm, step, seed, epsilon
            )

    settings = [
        simple(records, budget(records, epsilon=e), epochs=problem.epochs).minimum
        for e in problem.epsilons
    ]
    first = settings[0]
    yield from each("no noise", first.batch, 0.0, "inf")
    for setting in settings:
        yield from each("epsilon", setting.batch, round(setting.sigma, 5), f"{setting.epsilon:g}")
    for batch in reversed(problem.sizes):
        yield from each("sample size", batch, round(first.sigma, 5), f"{first.epsilon:g}")
    if problem.name == "plain":  # the ridge changes nothing here
        for setting in settings:
            noise = calibrate.noise_multiplier(setting.mechanism().sampler, setting.epsilon, delta)
            yield from each(
                "tight epsilon", setting.batch, round(noise + 5e-6, 5), f"{setting.epsilon:g}"
            )
        spent = first.mechanism().guarantee().epsilon(delta).upper
        for batch in (1000, 300, 100, 20, 10):
            noise = calibrate.noise_multiplier(
                Poisson(batch / records, work // batch), spent, delta
            )
            yield from each("equal tight epsilon", batch, round(noise + 5e-6, 5), f"{spent:.5f}")


def train(run: Run, problem: Problem) -> nn.Module:
    """The model after the run; seeded, because this is research."""
    data = load(run.data)
    model = problem.model(data, run.seed)

    def size(number: int) -> float:
        seen = run.batch * number
        return 1.0 / (1.0 + problem.beta * (seen**0.5 if problem.root else seen))

    decay = 1.0 / run.records if problem.ridge else 0.0
    fit(
        model,
        problem.loss,
        data.train,
        run.mechanism,
        lambda p: torch.optim.SGD(p, run.batch * run.step, weight_decay=decay),
        schedule=lambda o: torch.optim.lr_scheduler.LambdaLR(o, size),
        records=run.records,
        progress=False,
        insecure_seed=run.seed,
    )
    return model


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """The share of records whose class is the model's."""
    x, y = test
    out = model(x)
    said = (out > 0).float() if out.shape[1] == 1 else out.argmax(1)
    return float((said == y).float().mean())


def measure(run: Run, problem: Problem) -> dict[str, object]:
    """Train and price one run."""
    started = time.process_time()
    found = accuracy(train(run, problem), load(run.data).test)
    tight = run.mechanism.guarantee().epsilon(1.0 / run.records)
    return {
        **asdict(run),
        "accuracy": f"{100 * found:.2f}",
        "epsilon lower": format_bound(tight.lower, LOWER),
        "epsilon upper": format_bound(tight.upper, UPPER),
        "seconds": f"{time.process_time() - started:.1f}",
    }


@torch.no_grad()
def graph(problem: Problem, data: str, norm: float, step: float) -> Iterator[Bears]:
    """One line of a utility graph: train with clipping and without noise, then add noise to the weights."""
    records = len(load(data).train[1])
    epsilon = problem.epsilons[0]
    batch = simple(records, budget(records, epsilon=epsilon), epochs=problem.epochs).minimum.batch
    rounds = problem.epochs * records // batch
    run = Run("graph", problem.name, data, records, batch, rounds, 0.0, norm, step, 0, "inf")
    with torch.enable_grad():
        model = train(run, problem)
    # images take their time
    draws, tested = (200, 20_000) if len(load(data).shape) == 1 else (50, 1_000)
    x, y = load(data).test
    test = x[:tested], y[:tested]
    clean, weights = accuracy(model, test), [p.clone() for p in model.parameters()]
    for sigma in problem.sigmas:
        values = torch.empty(draws, dtype=torch.float64)
        for i in range(draws):
            for parameter, base in zip(model.parameters(), weights, strict=True):
                parameter.copy_(base + norm * sigma * torch.randn_like(base))
            values[i] = accuracy(model, test)
        shares = (float(values.mean()), *mean_band(values.numpy(), 0.05))
        yield Bears(
            problem.name,
            data,
            norm,
            step,
            draws,
            sigma,
            round(100 * clean, 2),
            *(round(share / clean, 4) for share in shares),
        )


# --- files, tables, figures -----------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    """What has been measured so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add(path: Path, columns: list[str], found: Iterable[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in found:
            writer.writerow(row)
            file.flush()
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def grouped(
    found: list[dict[str, str]], *columns: str
) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows by what they have in common, in the order of the file."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in found:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def tables(found: list[dict[str, str]]) -> Iterator[str]:
    """Markdown: a table per study, a line per setting, a column per problem: mean accuracy and range over seeds."""
    for (study, _), part in grouped(found, "study", "records").items():
        columns = list(grouped(part, "problem", "data", "step"))
        titles = [f"{problem}, {data}, step {step} (%)" for problem, data, step in columns]
        yield f"\n{study}\n\n| s | T | noise | ε | tight ε | {' | '.join(titles)} |"
        yield "|" + " --- |" * (5 + len(columns))
        part.sort(key=lambda row: (-float(row["noise"]), float(row["batch"])))
        for key, group in grouped(
            part, "batch", "rounds", "noise", "epsilon", "epsilon upper"
        ).items():
            cells = grouped(group, "problem", "data", "step")
            yield f"| {' | '.join(key)} | {' | '.join(spread(cells.get(column, [])) for column in columns)} |"


def spread(group: list[dict[str, str]]) -> str:
    """The mean accuracy, with the least and the most."""
    seen = [float(row["accuracy"]) for row in group]
    return f"{mean(seen):.1f} ({min(seen):.1f} to {max(seen):.1f})" if seen else ""


def draw(found: list[dict[str, str]], path: Path) -> None:
    """Accuracy by epsilon and by sample size, a column per data set."""
    found = [row for row in found if row["step"] == str(PROBLEMS[row["problem"]].step)]
    data = list(dict.fromkeys(row["data"] for row in found))
    colours = {
        "ridge": OKABE_ITO["blue"],
        "plain": OKABE_ITO["orange"],
        "non-convex": OKABE_ITO["green"],
    }
    styles = {
        "epsilon": "-",
        "tight epsilon": "--",
        "sample size": "-",
        "equal tight epsilon": "--",
    }
    labels = {
        "epsilon": "closed form",
        "tight epsilon": "noise by the accountant",
        "sample size": "same noise",
        "equal tight epsilon": "same tight epsilon",
    }
    kinds: list[tuple[str, str, Callable[[dict[str, str]], float]]] = [
        ("epsilon", "epsilon asked for", lambda row: float(row["epsilon"])),
        ("size", "sample size s", lambda row: float(row["batch"])),
    ]
    with panels(2, len(data), 3.6 * len(data), 6.4, path) as axes:
        for column, name in enumerate(data):
            here = [row for row in found if row["data"] == name]
            for (kind, label, place), panel in zip(kinds, axes[:, column], strict=True):
                for (study, problem), group in grouped(here, "study", "problem").items():
                    line = list(group)
                    if kind == "size":  # s = 31 of the first epsilon belongs to both lines
                        first = [
                            r for r in here if r["study"] == "epsilon" and r["problem"] == problem
                        ]
                        line += [r for r in first if r["epsilon"] == first[0]["epsilon"]]
                    if study in styles and (study.endswith("size") or "equal" in study) == (
                        kind == "size"
                    ):
                        points = sorted((place(r), float(r["accuracy"])) for r in line)
                        xs = sorted({x for x, _ in points})
                        panel.plot(
                            xs,
                            [mean(y for at, y in points if at == x) for x in xs],
                            marker="o",
                            markersize=3,
                            linestyle=styles[study],
                            color=colours[problem],
                            label=f"{problem}, {labels[study]}",
                        )
                    elif study == "no noise" and kind == "epsilon":
                        panel.axhline(
                            mean(float(r["accuracy"]) for r in group),
                            color=colours[problem],
                            linewidth=1,
                            linestyle=":",
                            label=f"{problem}, no noise",
                        )
                panel.set(xscale="log", xlabel=label, ylabel="test accuracy (%)")
                panel.set_title(name, loc="left")
                panel.grid(alpha=0.25)
                if panel.lines:
                    panel.legend(frameon=False, fontsize=7, handlelength=3.5)


def draw_graphs(found: list[dict[str, str]], path: Path) -> None:
    """A panel per problem and data set, a line per clip norm."""
    groups = grouped(found, "problem", "data")
    with panels(1, len(groups), 2.9 * len(groups), 3.2, path) as axes:
        for panel, ((problem, data), part) in zip(axes[0], groups.items(), strict=True):
            colours = list(OKABE_ITO.values())[1:]
            lines = sorted(grouped(part, "norm").items(), key=lambda entry: float(entry[0][0]))
            for colour, ((norm,), line) in zip(colours, lines, strict=False):
                x = [float(row["sigma"]) for row in line]
                panel.plot(
                    x,
                    [float(row["fraction"]) for row in line],
                    marker="o",
                    markersize=3,
                    color=colour,
                    label=f"C = {norm} (clean {line[0]['clean']} %)",
                )
                panel.fill_between(
                    x,
                    [float(row["low"]) for row in line],
                    [float(row["high"]) for row in line],
                    color=colour,
                    alpha=0.2,
                    linewidth=0,
                )
            panel.axhline(0.9, color=OKABE_ITO["grey"], linestyle="--", linewidth=1)
            panel.set(
                xlabel="sigma: noise on the weights / C",
                ylabel="accuracy with noise / without",
                ylim=(0.0, 1.2),
            )
            panel.set_title(f"{problem}, {data}", loc="left")
            panel.grid(alpha=0.25)
            panel.legend(frameon=False, fontsize=7, handlelength=3.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", default="ridge,plain", help="of ridge, plain, non-convex")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--step", type=float, help="the paper's eta_0, 0.1 there; by default the problem's own"
    )
    parser.add_argument(
        "--studies", default="graph,no noise,epsilon,tight epsilon,equal tight epsilon,sample size"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of processor time after which no run is begun"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/study-proactive.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    wanted, graphs = (
        options.studies.split(","),
        options.out.with_stem(options.out.stem + "-utility"),
    )
    chosen = [
        (PROBLEMS[name], data)
        for name in options.problems.split(",")
        for data in PROBLEMS[name].data
    ]
    steps = {problem.name: options.step or problem.step for problem, _ in chosen}
    if "graph" in wanted:
        drawn = {(row["problem"], row["data"], row["norm"], row["step"]) for row in rows(graphs)}
        for problem, data in chosen:
            for norm in problem.norms:
                step = steps[problem.name]
                if (problem.name, data, str(norm), str(step)) not in drawn:
                    add(graphs, GRAPH, map(asdict, graph(problem, data, norm, step)))
    done = {
        tuple(row[column] for column in COLUMNS[: len(fields(Run))]) for row in rows(options.out)
    }
    planned = [(r, p) for p, data in chosen for r in runs(p, data, options.seeds, steps[p.name])]
    for study in wanted:
        for run, problem in planned:
            if (
                run.study == study
                and run.key not in done
                and time.process_time() < 60.0 * options.minutes
            ):
                add(options.out, COLUMNS, [measure(run, problem)])
    print("\n".join(tables(rows(options.out))))
    draw(rows(options.out), options.out.with_suffix(".svg"))
    draw_graphs(rows(graphs), graphs.with_suffix(".svg"))


if __name__ == "__main__":
    main()
