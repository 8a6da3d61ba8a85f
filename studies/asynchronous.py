"""The five asynchronous clients of "Proactive DP", appendices A and D: logistic regression on a9a, LeNet on MNIST.

Run it with ``VERAX_DATA=folder python studies/asynchronous.py``. It writes
docs/study-asynchronous.csv line by line and can be interrupted: what is in the file already is not
run again. Then it prints the tables of docs/studies-federated.md.

The paper's clients hold N records each, and it does not say how five such clients are made from one
data set. So both: ``drawn`` gives every client N records of the whole set, drawn for it alone (of
MNIST: all of them), so that one record is in several clients; ``split`` deals the N records out to
the five. ``one`` is one client with all N, in the same engine. Noise, batches and rounds follow
from the closed form for what each client holds.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from statistics import mean

import torch
from proactive import PROBLEMS, Problem, accuracy, add, grouped, load, rows, spread
from proactive_data import read
from torch import Tensor, nn

from verax import Mechanism, Poisson
from verax.federated import (
    AsyncClient,
    AsyncServer,
    Client,
    Diminishing,
    Model,
    Plan,
    Update,
    put_weights,
    weights_of,
)
from verax.planning.closed_form.calculator import budget, simple
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.training.data.examples import Examples
from verax.training.performance.malloc import keep_freed_blocks

CLIENTS = 5
PROBLEM = {"a9a": PROBLEMS["plain"], "mnist": PROBLEMS["non-convex"]}
EPSILONS = {"a9a": (0.04945, 0.1), "mnist": (0.15007,)}
STEPS = {"a9a": (0.1, 0.02), "mnist": (0.02, 0.06, 0.1)}
# of a message, where the fastest client's round takes 1; both are means of exponential times
LATENCY = 0.1


@dataclass(frozen=True)
class Run:
    """One training run: everything that its accuracy depends on."""

    data: str
    holding: str
    clients: int
    records: int
    """Of one client."""
    batch: int
    rounds: int
    noise: float
    norm: float
    step: float
    seed: int
    epsilon: str
    """What the closed form grants every client."""

    @property
    def plan(self) -> Plan:
        return Plan(
            self.clients,
            self.clients * self.records,
            self.records,
            1.0,
            self.batch / self.records,
            self.rounds,
            self.noise,
            self.norm,
            noise="local",
        )

    @property
    def together(self) -> Mechanism:
        """What a record pays that every client holds."""
        return Mechanism(Poisson(self.batch / self.records, self.clients * self.rounds), self.noise)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


COLUMNS = [field.name for field in fields(Run)] + [
    "accuracy",
    "epsilon lower",
    "epsilon upper",
    "epsilon of all upper",
    "behind",
    "seconds",
]


@cache
def pool(name: str) -> tuple[Tensor, Tensor]:
    """All records that clients may be given, more than one of them holds."""
    if name == "mnist":
        return load(name).train
    x, y = read(name)
    return x, y.unsqueeze(1)


def shares(
    run: Run, data: Examples, whole: tuple[Tensor, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What each client holds."""
    for client in range(run.clients):
        if run.holding == "drawn":
            mixed = torch.Generator().manual_seed(1000 * run.seed + client)
            x, y = whole
            chosen = torch.randperm(len(y), generator=mixed)[: run.records]
        else:
            x, y = data.train
            chosen = torch.arange(client, len(y), run.clients)[: run.records]
        yield (x, y) if len(chosen) == len(y) else (x[chosen], y[chosen])


def runs(
    data: str, holdings: list[str], seeds: int, steps: tuple[float, ...], noiseless: bool
) -> Iterator[Run]:
    """All runs on one data set, by holding, epsilon and step size; without noise the batch is the first epsilon's."""
    problem, population = PROBLEM[data], len(load(data).train[1])
    for holding in holdings:
        clients = 1 if holding == "one" else CLIENTS
        records = population // clients if holding == "split" else population
        found = [
            simple(records, budget(records, epsilon=e), epochs=problem.epochs).minimum
            for e in EPSILONS[data]
        ]
        cells = [(s.batch, round(s.sigma, 5), f"{s.epsilon:g}") for s in found]
        if noiseless:
            cells.insert(0, (found[0].batch, 0.0, "inf"))
        for (batch, noise, epsilon), step, seed in itertools.product(cells, steps, range(seeds)):
            rounds = problem.epochs * records // batch
            yield Run(
                data,
                holding,
                clients,
                records,
                batch,
                rounds,
                noise,
                problem.norm,
                step,
                seed,
                epsilon,
            )


class World:
    """Clients of different speeds around a server, and messages that take their time; repeatable."""

    def __init__(
        self,
        server: AsyncServer,
        hands: list[AsyncClient],
        seed: int,
        watch: Callable[[Model], None],
    ) -> None:
        self.server, self.hands, self._watch = server, hands, watch
        self.behind = 0  # rounds that began with a model one round behind
        self._random, self._now, self._count = random.Random(seed), 0.0, itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._busy, self._known = [False] * len(hands), [-1] * len(hands)

    def run(self) -> None:
        """Until the server has all rounds of all clients."""
        self._broadcast()
        while self._queue:
            self._now, _, happen = heapq.heappop(self._queue)
            happen()
        if not self.server.done:
            raise RuntimeError(
                f"clients stopped at round {self.server.round}: their models are never new enough"
            )

    def _later(self, wait: float, happen: Callable[[], None]) -> None:
        when = self._now + self._random.expovariate(1.0 / wait)
        heapq.heappush(self._queue, (when, next(self._count), happen))

    def _broadcast(self) -> None:
        if (model := self.server.fresh()) is not None:
            self._watch(model)
            for client in range(len(self.hands)):
                self._later(LATENCY, partial(self._told, client, model))

    def _told(self, client: int, model: Model) -> None:
        self.hands[client].receive(model)
        self._known[client] = max(self._known[client], model.round)
        self._begin(client)

    def _begin(self, client: int) -> None:
        if not self._busy[client] and self.hands[client].ready:
            self._busy[client] = True
            # the last takes twice as long as the first
            self._later(1.0 + client / 4.0, partial(self._finish, client))

    def _finish(self, client: int) -> None:
        """As in algorithms 3 and 4, a model that arrives during a round is used at once."""
        self._busy[client] = False
        self.behind += self.hands[client].round > self._known[client]
        self._later(LATENCY, partial(self._arrived, self.hands[client].work()))
        self._begin(client)

    def _arrived(self, update: Update) -> None:
        if (reason := self.server.receive(update, update.client)) is not None:
            raise RuntimeError(f"an honest update was refused: {reason}")
        self.hands[update.client].receive(self.server.receipt(update.client))
        self._broadcast()


def train(
    run: Run, problem: Problem, data: Examples, whole: tuple[Tensor, Tensor]
) -> tuple[nn.Module, list[Client], World]:
    """The server's last model, and who made it; seeded, because this is research."""
    step = Diminishing(run.step, problem.beta, problem.root)
    model = problem.model(data, run.seed)
    parties = [
        Client(
            i, held, run.plan, problem.model(data, run.seed), problem.loss, insecure_seed=run.seed
        )
        for i, held in enumerate(shares(run, data, whole))
    ]
    server = AsyncServer(run.plan, weights_of(model), step)

    def watch(now: Model) -> None:
        if now.round and now.round % (run.rounds // problem.epochs) == 0:
            put_weights(model, now.weights)
            print(
                f"round {now.round} of {run.rounds}: accuracy {100 * accuracy(model, data.test):.2f}",
                flush=True,
            )

    world = World(server, [AsyncClient(party, step) for party in parties], run.seed, watch)
    world.run()
    put_weights(model, server.model().weights)
    return model, parties, world


def measure(
    run: Run, problem: Problem, data: Examples, whole: tuple[Tensor, Tensor]
) -> dict[str, object]:
    """Train and price one run."""
    started = time.process_time()
    model, parties, world = train(run, problem, data, whole)
    delta = 1.0 / run.records
    tight = parties[0].guarantee.epsilon(delta)
    every = run.together.guarantee().epsilon(delta).upper if run.holding == "drawn" else tight.upper
    return {
        **asdict(run),
        "accuracy": f"{100 * accuracy(model, data.test):.2f}",
        "epsilon lower": format_bound(tight.lower, LOWER),
        "epsilon upper": format_bound(tight.upper, UPPER),
        "epsilon of all upper": format_bound(every, UPPER),
        "behind": f"{world.behind / (run.clients * run.rounds):.2f}",
        "seconds": f"{time.process_time() - started:.1f}",
    }


# --- tables ---------------------------------------------------------------------------------------


def tables(found: list[dict[str, str]]) -> Iterator[str]:
    """Markdown: a table per data set, a line per setting, a column per step size."""
    for (data,), part in grouped(found, "data").items():
        steps = sorted({row["step"] for row in part}, key=float)
        yield (
            f"\n{data}\n\n| clients | records of each | s | T | noise | ε | tight ε | a record in all | behind | "
            + (" | ".join(f"η₀ = {step} (%)" for step in steps) + " |")
        )
        yield "|" + " --- |" * (9 + len(steps))
        columns = (
            "holding",
            "clients",
            "records",
            "batch",
            "rounds",
            "noise",
            "epsilon",
            "epsilon upper",
            "epsilon of all upper",
        )
        for (holding, clients, *key), group in grouped(part, *columns).items():
            cells = grouped(group, "step")
            behind = mean(float(row["behind"]) for row in group)
            seen = " | ".join(spread(cells.get((step,), [])) for step in steps)
            yield f"| {clients}, {holding} | {' | '.join(key)} | {behind:.2f} | {seen} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="a9a,mnist")
    parser.add_argument("--holdings", default="one,split,drawn")
    parser.add_argument("--seeds", type=int, help="by default 2 of a9a and 1 of MNIST")
    parser.add_argument("--steps", help="the paper's eta_0, comma separated; it has 0.1")
    parser.add_argument(
        "--noiseless", default="yes", choices=("yes", "no"), help="whether to run without noise too"
    )
    parser.add_argument(
        "--minutes", type=float, default=90.0, help="of processor time after which no run is begun"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/study-asynchronous.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    for data in options.data.split(",") if options.data else []:
        steps = tuple(map(float, options.steps.split(","))) if options.steps else STEPS[data]
        seeds = options.seeds or {"a9a": 2, "mnist": 1}[data]
        for run in runs(
            data, options.holdings.split(","), seeds, steps, options.noiseless == "yes"
        ):
            done = {
                tuple(row[column] for column in COLUMNS[: len(fields(Run))])
                for row in rows(options.out)
            }
            if run.key not in done and time.process_time() < 60.0 * options.minutes:
                add(options.out, COLUMNS, [measure(run, PROBLEM[data], load(data), pool(data))])
    print("\n".join(tables(rows(options.out))))


if __name__ == "__main__":
    main()
