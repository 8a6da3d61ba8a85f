"""Accuracy against epsilon for three ways of drawing batches, each with the noise that its own proved bound asks for.

Run it with ``python studies/equal_epsilon.py``; it writes docs/study-equal-epsilon.csv and .svg,
and goes on where it was interrupted. A perceptron on MNIST, the same epochs, batches and learning
rate for all; only the sampler and the noise it needs differ.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import nn

from verax import BallsInBins, Individual, Mechanism, Poisson, Shuffle, calibrate
from verax.samplers.base import Sampler
from verax.training import PrivateTrainer
from verax.training.data.examples import Examples, accuracy, build, load
from verax.training.performance.malloc import keep_freed_blocks

DELTA, BATCH = 1e-5, 600


def samplers(batches: int, epochs: int) -> dict[str, Sampler]:
    return {
        "Poisson": Poisson(1.0 / batches, batches * epochs),
        "balls in bins": BallsInBins(batches, epochs),
        "shuffle": Shuffle(batches, epochs),
    }


def train(data: Examples, sampler: Sampler, noise: float, seed: int) -> float:
    """Accuracy on the test set after one private run."""
    torch.manual_seed(seed)
    model = build("mlp", data)
    mechanism = Mechanism(sampler, noise, Individual(1.0))
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 1.0, momentum=0.0),
        mechanism,
        records=len(data.train[1]),
    )
    for batch in trainer.batches(data.train):
        trainer.step(batch, nn.CrossEntropyLoss())
    return accuracy(model, data.test)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="0.25,0.5,1,2,4,8")
    parser.add_argument("--out", type=Path, default=Path("docs/study-equal-epsilon.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    data = load("mnist")
    found: dict[str, list[tuple[float, float]]] = {}
    if not options.out.exists():
        options.out.write_text("sampler,epsilon,noise multiplier,accuracy,least,most\n")
    with options.out.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["sampler"], []).append(
                (float(row["epsilon"]), float(row["accuracy"]) / 100.0)
            )
    with options.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for epsilon in map(float, options.epsilons.split(",")):
            for name, sampler in samplers(len(data.train[1]) // BATCH, options.epochs).items():
                if any(done == epsilon for done, _ in found.get(name, [])):
                    continue
                noise = calibrate.noise_multiplier(sampler, epsilon, DELTA)
                runs = [train(data, sampler, noise, seed) for seed in range(options.seeds)]
                mean = sum(runs) / len(runs)
                found.setdefault(name, []).append((epsilon, mean))
                writer.writerow(
                    [
                        name,
                        epsilon,
                        f"{noise:.4f}",
                        *(f"{100 * a:.2f}" for a in (mean, min(runs), max(runs))),
                    ]
                )
                file.flush()
                print(
                    f"{name}, epsilon {epsilon}: noise {noise:.3f}, accuracy {mean:.4f}", flush=True
                )
    draw(found, options.out.with_suffix(".svg"))


def draw(found: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, points in found.items():
        axes.plot([p[0] for p in points], [100 * p[1] for p in points], marker="o", label=name)
    axes.set(xscale="log", xlabel=f"true epsilon at delta {DELTA:g}", ylabel="test accuracy (%)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
