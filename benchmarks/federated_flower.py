"""Flower's simulation on the rounds of federated.py: rounds per second, where only those who take part are asked.

Run it with ``python benchmarks/federated_flower.py`` where ``flwr[simulation]`` is installed. That
only those who take part are asked favours Flower: clients that toss coins of their own would all
have to be asked in every round. Clients make up their records on the spot, so that no data are
moved; clipping, noise and step are verax's.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from federated import LOSS, MODELS, sgd
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from verax.federated import Plan, Server, Update, unpack, weights_of
from verax.federated.worker import Worker

NODES = 64  # of Flower's; each stands for many clients
WORKERS: dict[str, Worker] = {}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def client_app(name: str, plan: Plan) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        if name not in WORKERS:
            WORKERS[name] = Worker(network(name), LOSS, plan)
        worker = WORKERS[name]
        model = unpack(message.content["round"]["model"])
        worker.load(model.weights)
        chosen = np.random.default_rng().binomial(plan.largest, plan.record_rate)
        batch = torch.rand(chosen, 1, 28, 28), torch.randint(0, 10, (chosen,))
        update = Update(model.run, 0, model.round, worker.total(batch, chosen).copy())
        return Message(
            RecordDict({"round": ConfigRecord({"update": update.pack()})}), reply_to=message
        )

    return app


def server_app(name: str, plan: Plan, warm: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        server, rng = Server(plan, weights_of(network(name)), sgd), np.random.default_rng(0)
        while len(nodes := list(grid.get_node_ids())) < NODES:
            time.sleep(0.1)
        for number in range(plan.rounds):
            if number == warm:
                start = time.perf_counter()
            people = rng.binomial(plan.clients, plan.client_rate)
            content = RecordDict({"round": ConfigRecord({"model": server.model().pack()})})
            left = set(
                grid.push_messages(
                    [
                        Message(content, nodes[place], "train")
                        for place in rng.integers(0, NODES, people)
                    ]
                )
            )
            while left:
                for reply in grid.pull_messages(left):
                    left.discard(reply.metadata.reply_to_message_id)
                    server.add(unpack(reply.content["round"]["update"]).values)
                time.sleep(0.001)
            server.step()
        spent = time.perf_counter() - start
        print(f"{name:<10}{(plan.rounds - warm) / spent:>14.2f} rounds a second", flush=True)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    given = parser.parse_args()
    warm = 5
    plan = Plan(23_264, 697_920, 30, 0.001, 0.1, given.rounds + warm, 1.0)
    for name in given.models:
        run_simulation(
            server_app(name, plan, warm),
            client_app(name, plan),
            NODES,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )


if __name__ == "__main__":
    main()
