"""Section 6 of "Privacy amplification via random participation": accuracy against rounds, as its figures 6 and 7.

Run it with ``VERAX_DATA=folder python studies/participation.py``. It writes
docs/study-participation.csv, a line for every checkpoint of every run, and can be interrupted: what
is in the file already is not run again. Then it draws docs/study-participation.svg and prints the
tables of docs/studies-federated.md.

A small network on MNIST, dealt out equally or held by the digits' real writers, by many clients
that seldom take part and then use much of what they hold, or by few that take part often and use
little: 70 digits a round in all cases. Every arm runs the same rounds with the noise that its own
bound asks for: ``proposed`` (random participation, the corrected theorem), ``WCS`` (participation
known), ``OLS`` (as if all always took part), and ``none``, without clipping and noise. The same
privacy is asked for in each round, as in the paper, or for the whole run.

Where there is much noise the learning rate is lower, as in the paper. ``--rates 0.005,0.02`` tries
both everywhere; tables and figure show, for every arm, the rate that ended best with the first
seed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from proactive import add, grouped, rows, spread
from torch import nn

from verax import calibrate
from verax.federated import Embedded, Plan
from verax.federated.observers import baseline
from verax.federated.splits import Split, split
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import UPPER
from verax.reporting.figures import OKABE_ITO, panels
from verax.training.data.examples import Examples, accuracy, build
from verax.training.performance.malloc import keep_freed_blocks

DELTA = 1e-5  # of the whole run
TARGETS = {"each round": (0.015, 1e-6), "whole run": (1.0, DELTA)}
ARMS = ("proposed", "WCS", "OLS")
NO_CLIPPING = 1e9
# learning rates, and the noise above which the slow one is used
FAST, SLOW, LOUD = 0.02, 0.005, 6.0
LITTLE, MUCH = 70 / 6000, 0.1  # 60,000 x LITTLE x MUCH = 70 digits a round, as in the paper


@dataclass(frozen=True)
class Setting:
    """Who holds the digits, and how they take part."""

    name: str
    clients: int | None
    """Equal clients; None for the writers."""
    client_rate: float
    record_rate: float

    def split(self, data: str) -> Split:
        return split(data, by="writer") if self.clients is None else split(data, self.clients)


SETTINGS = (
    Setting("2000 equal clients", 2000, LITTLE, MUCH),
    Setting("60 equal clients", 60, MUCH, LITTLE),
    Setting("writers, seldom", None, LITTLE, MUCH),
    Setting("writers, often", None, MUCH, LITTLE),
)


@dataclass(frozen=True)
class Run:
    """One training run."""

    setting: str
    target: str
    arm: str
    rounds: int
    rate: float
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


COLUMNS = [field.name for field in fields(Run)] + [
    "clients",
    "largest",
    "client rate",
    "record rate",
    "noise",
    "round",
    "accuracy",
    "epsilon upper",
    "seconds",
]


def network(data: Examples) -> nn.Module:
    """Two convolutions and two full layers, as the paper's, but small: 13,722 weights. Or for tables one layer."""
    if len(data.shape) == 1:
        return build("logistic", data)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(128, 32),
        nn.Tanh(),
        nn.Linear(32, data.classes),
    )


def public(setting: Setting, held: Split, rounds: int) -> Plan:
    """What runs, as yet without noise."""
    sizes = held.sizes
    rates = setting.client_rate, setting.record_rate
    return Plan(len(sizes), int(sizes.sum()), int(sizes.max()), *rates, rounds, 0.0)


@cache
def noise(plan: Plan, arm: str, target: str) -> float:
    """The least that the arm's own bound asks for, rounded up."""
    if arm == "none":
        return 0.0
    epsilon, delta = TARGETS[target]
    sampler = replace(plan, rounds=1 if target == "each round" else plan.rounds).mechanism().sampler
    if arm != "proposed":
        sampler = baseline(arm, sampler, 1.0).sampler  # type: ignore[arg-type]
    return round(calibrate.noise_multiplier(sampler, epsilon, delta) + 5e-6, 5)


@cache
def spent(plan: Plan) -> str:
    """The proved upper end of epsilon of all rounds of a plan, at DELTA, for any record of any client."""
    return (
        "inf"
        if plan.noise_multiplier == 0.0
        else format_bound(plan.guarantee().epsilon(DELTA).upper, UPPER)
    )


def measure(
    run: Run, noise: float, setting: Setting, held: Split, checkpoints: tuple[int, ...]
) -> list[dict[str, object]]:
    """Train; accuracy and the price so far at every checkpoint. Seeded, because this is research."""
    clip = NO_CLIPPING if run.arm == "none" else 1.0
    plan = replace(public(setting, held, run.rounds), noise_multiplier=noise, clip_norm=clip)
    torch.manual_seed(run.seed)
    model = network(held.examples)
    found: list[dict[str, object]] = []
    started = time.process_time()

    def after(engine: Embedded) -> None:
        if engine.round in checkpoints:
            found.append(
                {
                    **asdict(run),
                    "clients": plan.clients,
                    "largest": plan.largest,
                    "client rate": f"{plan.client_rate:.5f}",
                    "record rate": f"{plan.record_rate:.5f}",
                    "noise": plan.noise_multiplier,
                    "round": engine.round,
                    "accuracy": f"{100 * accuracy(model, held.examples.test):.2f}",
                    "epsilon upper": spent(replace(plan, rounds=engine.round)),
                    "seconds": f"{time.process_time() - started:.1f}",
                }
            )

    Embedded(
        plan,
        model,
        nn.CrossEntropyLoss(),
        held.examples.train,
        held.sizes,
        lambda p: torch.optim.SGD(p, run.rate, momentum=0.9),
        insecure_seed=run.seed,
    ).run(after)
    return found


def cells() -> Iterator[tuple[Setting, str, str]]:
    """All that is compared: setting, target, arm."""
    for setting in SETTINGS:
        yield setting, "none", "none"
        for target in TARGETS:
            for arm in ARMS:
                yield setting, target, arm


def best(found: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows with the learning rate of each arm that ended best with the first seed."""
    chosen = []
    for group in grouped(found, "setting", "target", "arm", "rounds").values():
        ends = [row for row in group if row["round"] == row["rounds"] and row["seed"] == "0"]
        rate = max(ends, key=lambda row: float(row["accuracy"]))["rate"]
        chosen += [row for row in group if row["rate"] == rate]
    return chosen


# --- tables, figures ------------------------------------------------------------------------------


def tables(found: list[dict[str, str]]) -> Iterator[str]:
    """Markdown: a line per setting and arm at the end of training, mean and range over the seeds."""
    ends = [row for row in best(found) if row["round"] == row["rounds"]]
    order = list(dict.fromkeys(row["setting"] for row in ends))
    ends.sort(key=lambda row: (order.index(row["setting"]), ("none", *ARMS).index(row["arm"])))
    for (target,), part in grouped(ends, "target").items():
        yield f"\n{target}\n\n| clients | bound | noise | rate | rounds | accuracy (%) | ε at {DELTA:g} proved |"
        yield "|" + " --- |" * 7
        columns = ("setting", "arm", "noise", "rate", "rounds", "epsilon upper")
        for (setting, arm, z, rate, rounds, epsilon), group in grouped(part, *columns).items():
            yield f"| {setting} | {arm} | {z} | {rate} | {rounds} | {spread(group)} | {epsilon} |"


def draw(found: list[dict[str, str]], path: Path) -> None:
    """Accuracy against rounds: a row per target, a column per setting, a line per arm."""
    chosen = best(found)
    settings = list(dict.fromkeys(row["setting"] for row in chosen))
    targets = [target for target in TARGETS if any(row["target"] == target for row in chosen)]
    colours = {"none": "black", "proposed": "blue", "WCS": "orange", "OLS": "red"}
    with panels(len(targets), len(settings), 2.8 * len(settings), 2.9 * len(targets), path) as axes:
        for target, row in zip(targets, axes, strict=True):
            for setting, panel in zip(settings, row, strict=True):
                part = [
                    r for r in chosen if r["setting"] == setting and r["target"] in (target, "none")
                ]
                part.sort(key=lambda r: list(colours).index(r["arm"]))
                for (arm,), group in grouped(part, "arm").items():
                    points = {
                        int(n): [float(r["accuracy"]) for r in g]
                        for (n,), g in grouped(group, "round").items()
                    }
                    x, colour = sorted(points), OKABE_ITO[colours[arm]]
                    label = (
                        "no privacy"
                        if arm == "none"
                        else f"{arm}, noise {float(group[0]['noise']):.2f}"
                    )
                    panel.plot(
                        x,
                        [mean(points[n]) for n in x],
                        color=colour,
                        marker="o",
                        markersize=2.5,
                        label=label,
                        linestyle={"WCS": "--"}.get(arm, "-"),
                    )
                    panel.fill_between(
                        x,
                        [min(points[n]) for n in x],
                        [max(points[n]) for n in x],
                        color=colour,
                        alpha=0.2,
                        linewidth=0,
                    )
                epsilon, delta = TARGETS[target]
                panel.set(
                    xlabel="rounds",
                    ylabel="test accuracy (%)",
                    ylim=(0, 150),
                    yticks=range(0, 101, 20),
                )
                panel.set_title(
                    f"{setting}\n({epsilon:g}, {delta:g}) in {target.replace('whole', 'the whole')}",
                    loc="left",
                    fontsize=9,
                )
                panel.grid(alpha=0.25)
                panel.legend(frameon=False, fontsize=7, loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument(
        "--rates", help="learning rates to try; by default the one for the arm's noise"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", default="mnist")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of processor time after which no run is begun"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/study-participation.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    held = cache(lambda setting: setting.split(options.data))
    checkpoints = tuple(sorted({max(1, options.rounds * part // 8) for part in (1, 2, 4, 6, 8)}))
    asked = [float(rate) for rate in options.rates.split(",")] if options.rates else None
    for seed in range(options.seeds):
        for setting, target, arm in cells():
            found = rows(options.out)
            done = {tuple(row[column] for column in COLUMNS[: len(fields(Run))]) for row in found}
            known = [
                row
                for row in found
                if setting.name == row["setting"]
                and target == row["target"]
                and arm == row["arm"]
                and row["rounds"] == str(options.rounds)
            ]
            if time.process_time() > 60.0 * options.minutes:
                break
            plan = public(setting, held(setting), options.rounds)
            z = float(known[0]["noise"]) if known else noise(plan, arm, target)
            for rate in asked or [SLOW if z > LOUD else FAST]:
                run = Run(setting.name, target, arm, options.rounds, rate, seed)
                if run.key not in done:
                    add(options.out, COLUMNS, measure(run, z, setting, held(setting), checkpoints))
    print("\n".join(tables(rows(options.out))))
    draw(rows(options.out), options.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
