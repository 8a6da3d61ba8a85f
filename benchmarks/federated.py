"""The embedded engine beside central training of as many records a round: rounds per second, on one core.

Run it with ``python benchmarks/federated.py`` (``--clients``, ``--records``, ``--rounds``,
``--models`` to choose).

By default 23,264 clients hold 30 records each, a client takes part with probability .001 and uses a
record with probability .1; central training draws every record with probability .0001 out of all
697,920. Both use the same clipping, noise and optimizer, and take turns in one process. Medians are
shown, the ratio's of neighbouring turns: the fastest turns would be those that happened to draw few
records. The last column says how long the engine takes over a round without any record.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn

from verax import Mechanism, Poisson
from verax.federated import Embedded, Plan
from verax.training import PrivateTrainer
from verax.training.performance.malloc import keep_freed_blocks

MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 10),
    ),
}
LOSS = nn.CrossEntropyLoss()


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1)


def federated(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], plan: Plan
) -> Callable[[], None]:
    sizes = np.full(plan.clients, plan.records // plan.clients)
    return Embedded(plan, model, LOSS, data, sizes, sgd).step


def central(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], plan: Plan
) -> Callable[[], None]:
    mechanism = Mechanism(
        Poisson(plan.client_rate * plan.record_rate, plan.rounds), plan.noise_multiplier
    )
    trainer = PrivateTrainer(model, sgd(list(model.parameters())), mechanism)
    batches = trainer.batches(data)

    def step() -> None:
        trainer.step(next(batches), LOSS)

    return step


def seconds(step: Callable[[], None], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        step()
    return (time.perf_counter() - start) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=23_264)
    parser.add_argument("--records", type=int, default=30, help="records of each client")
    parser.add_argument("--client-rate", type=float, default=0.001)
    parser.add_argument("--record-rate", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a turn")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()  # for both sides
    total = given.clients * given.records
    rounds = (given.turns + 1) * given.rounds
    plan = Plan(
        given.clients, total, given.records, given.client_rate, given.record_rate, rounds, 1.0
    )
    idle = Plan(given.clients, total, given.records, given.client_rate, 2.0**-60, rounds, 1.0)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (total, 1, 28, 28), dtype=torch.uint8, generator=generator)
    data = pixels, torch.randint(0, 10, (total,), generator=generator)
    print(
        f"{given.clients:,} clients x {given.records} records, {plan.expected:.1f} records a round expected"
    )
    print(f"{'model':<10}{'embedded /s':>14}{'central /s':>14}{'ratio':>8}{'idle, ms':>10}")
    for name in given.models:

        def model(name: str = name) -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(Scaled(), *MODELS[name]())  # type: ignore[misc]

        ways = [
            federated(model(), data, plan),
            central(model(), data, plan),
            federated(model(), data, idle),
        ]
        for step in ways:
            seconds(step, given.rounds)  # warm up
        times = np.array(
            [[seconds(step, given.rounds) for step in ways] for _ in range(given.turns)]
        )
        ours, theirs, empty = np.median(times, axis=0)
        ratio = np.median(times[:, 1] / times[:, 0])
        print(
            f"{name:<10}{1.0 / ours:>14.0f}{1.0 / theirs:>14.0f}{ratio:>8.2f}{1e3 * empty:>10.2f}"
        )


class Scaled(nn.Module):
    """Bytes to numbers between 0 and 1: all images as floats would not fit into a small machine's memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 255.0


if __name__ == "__main__":
    main()
