"""pfl's simulation on the rounds of federated.py beside the embedded engine: rounds per second, on one core.

Run it with ``python benchmarks/federated_pfl.py`` where ``pfl[pytorch]`` is installed (pfl 0.6.0
with Python 3.11).

Unit "client" is what pfl is made for: federated averaging, a local step on the records that a
client has sampled, its difference clipped, Gaussian noise on the sum, all of it pfl's. Unit
"record" is the same simulation in which a client's work is verax's clipped sum of its records;
noise and step are pfl's. verax runs its own engine on the same data, model and rates. Both toss
their coins every round (pfl only has to simulate those who take part), and take turns in one
process; medians are shown, the ratio's of neighbouring turns. Needs 3 GB of memory.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

import federated  # first: one thread
import numpy as np
import torch
from federated import LOSS, MODELS, seconds, sgd
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics
from torch import nn

from verax.federated import Plan
from verax.federated.worker import Worker
from verax.training.performance.malloc import keep_freed_blocks

UNITS = ("client", "record")


class Model(nn.Sequential):
    """A model as pfl wants it."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return LOSS(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, Weighted]:
        return {"loss": Weighted.from_unweighted(float(self.loss(x, y)))}


class ClippedSums(FederatedAveraging):
    """Every client sends the clipped sum of its records."""

    def __init__(self, worker: Worker, names: list[str], shapes: list[torch.Size]) -> None:
        super().__init__()
        self._worker, self._names, self._shapes = worker, names, shapes

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):  # type: ignore[no-untyped-def]
        x, y = user_dataset.raw_data
        total = torch.from_numpy(self._worker.total((x, y), len(y)))
        parts = total.split([shape.numel() for shape in self._shapes])
        pieces = zip(self._names, parts, self._shapes, strict=True)
        return MappedVectorStatistics(
            {name: -part.view(shape) for name, part, shape in pieces}
        ), Metrics()


def module(name: str) -> Model:
    torch.manual_seed(0)
    return Model(*MODELS[name]())  # type: ignore[misc]


def simulated(name: str, data: tuple[torch.Tensor, torch.Tensor], plan: Plan) -> Callable[[], None]:
    """A round of pfl's."""
    rng, network = np.random.default_rng(0), module(name)
    per_client = plan.records // plan.clients

    def records(client: int) -> Dataset:
        heads = np.flatnonzero(rng.random(per_client) < plan.record_rate)
        chosen = torch.from_numpy(
            client * per_client + (heads if heads.size else np.zeros(1, np.int64))
        )
        return Dataset([data[0][chosen], data[1][chosen]])  # one at least: pfl has no loss of none

    algorithm = FederatedAveraging()
    if plan.unit == "record":
        parameters = dict(network.named_parameters())
        worker = Worker(network, LOSS, plan)  # its weights are the model's
        algorithm = ClippedSums(worker, list(parameters), [p.shape for p in parameters.values()])
    model = PyTorchModel(
        network, lambda p, lr: torch.optim.SGD(p, lr), sgd(list(network.parameters()))
    )
    # A client's sum of records may be longer than one record's norm; pfl then clips nothing, and
    # adds the same noise.
    bound = 1.0 if plan.unit == "client" else float(plan.largest)
    noise = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism(bound, plan.noise_multiplier / bound)
    )
    everybody = FederatedDataset(records, lambda: int(rng.integers(plan.clients)))
    backend = SimulatedBackend(everybody, everybody, [noise])
    many = NNAlgorithmParams(
        central_num_iterations=plan.rounds + 1,
        evaluation_frequency=10**9,
        train_cohort_size=1,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None)
    number = 0

    def step() -> None:
        nonlocal number, model
        number += 1  # from 1: round 0 would be evaluated
        (context,), model, _ = algorithm.get_next_central_contexts(model, number, many, local)
        people = int(rng.binomial(plan.clients, plan.client_rate))
        context = dataclasses.replace(context, cohort_size=people)
        found, metrics = backend.gather_results(
            model=model, training_algorithm=algorithm, central_context=context
        )
        if found is not None:
            model, _ = algorithm.process_aggregated_statistics(context, metrics, model, found)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="rounds of a turn")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--units", nargs="+", choices=UNITS, default=list(UNITS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()  # for both sides
    plan = Plan(23_264, 697_920, 30, 0.001, 0.1, (given.turns + 2) * given.rounds, 1.0)
    generator = torch.Generator().manual_seed(0)
    data = (
        torch.rand(plan.records, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (plan.records,), generator=generator),
    )
    print(f"{'unit':<10}{'model':<10}{'embedded /s':>14}{'pfl /s':>10}{'ratio':>8}")
    for unit in given.units:
        for name in given.models:
            run = dataclasses.replace(plan, unit=unit)
            ours_too = nn.Sequential(*module(name))
            ways = [federated.federated(ours_too, data, run), simulated(name, data, run)]
            for step in ways:
                seconds(step, given.rounds)  # warm up
            times = np.array(
                [[seconds(step, given.rounds) for step in ways] for _ in range(given.turns)]
            )
            ours, theirs = np.median(times, axis=0)
            ratio = np.median(times[:, 1] / times[:, 0])
            print(
                f"{unit:<10}{name:<10}{1.0 / ours:>14.0f}{1.0 / theirs:>10.1f}{ratio:>8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
