"""Four hospitals learn together who has a heart disease, and each knows what its patients pay: docs/heart-hospitals.md.

Run it with ``VERAX_DATA=folder python studies/heart_hospitals.py``, where the folder has
uci-heart-4centers. It trains every arm several times, which takes a minute, and prints the page's
tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean

import numpy as np
import torch
from torch import Tensor, nn

from verax import Poisson, calibrate
from verax.federated import Client, Plan, Server, put_weights, weights_of
from verax.federated.splits import HOSPITALS, split
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.training.data.examples import Examples, accuracy, build

Records = tuple[Tensor, Tensor]
PATIENTS = (303, 294, 123, 200)  # in the files; every fifth is held out
RATES = (0.1, 0.1, 0.2, 0.05)  # each hospital's own choice: how likely a patient is used in a round
EPSILON, DELTA, ROUNDS, STEP = 2.0, 1e-4, 100, 0.5
NO_CLIPPING = 1e9


def federation(
    shares: Sequence[Records],
    rates: Sequence[float],
    noise: float,
    who: str,
    data: Examples,
    seed: int | None = None,
    rounds: int = ROUNDS,
) -> tuple[nn.Module, list[Client]]:
    """Train on what the hospitals hold; noise 0 is without clipping too.

    Args:
        shares: what each hospital holds.
        rates: its probability of using a patient in a round.
        noise: the noise multiplier.
        who: "central" if a trusted server adds the noise, "local" if every hospital does.
        data: says what the model looks like.
        seed: for research only; a real run leaves it out.
        rounds: number of rounds; every hospital takes part in all of them.
    """
    sizes = [len(y) for _, y in shares]
    clip = 1.0 if noise else NO_CLIPPING
    plan = Plan(
        len(shares), sum(sizes), max(sizes), 1.0, max(rates), rounds, noise, clip, noise=who
    )
    if seed is not None:
        torch.manual_seed(seed)
    model = build("logistic", data)
    clients = [
        Client(
            i,
            held,
            replace(plan, record_rate=rate),
            build("logistic", data),
            nn.CrossEntropyLoss(),
            insecure_seed=seed,
        )
        for i, (held, rate) in enumerate(zip(shares, rates, strict=True))
    ]
    expected = sum(rate * size for rate, size in zip(rates, sizes, strict=True))
    server = Server(
        plan,
        weights_of(model),
        lambda p: torch.optim.SGD(p, STEP),
        expected=expected,
        insecure_seed=seed,
    )
    for _ in range(rounds):
        message = server.model()
        for client in clients:
            update = client.answer(message)
            if update is not None:
                server.receive(update, sender=client.number)
        server.step()
    put_weights(model, server.weights.numpy())
    return model, clients


def shares_of(data: Examples, sizes: Sequence[int]) -> list[Records]:
    """The records of each hospital."""
    x, y = data.train
    return list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))


def held_out(data: Examples, patients: Sequence[int]) -> list[Records]:
    """The held-out records by hospital: every fifth of all files one after the other."""
    owners = torch.from_numpy(np.repeat(np.arange(len(patients)), patients)[4::5])
    x, y = data.test
    return [(x[owners == i], y[owners == i]) for i in range(len(patients))]


def prices(clients: Sequence[Client], names: Sequence[str], delta: float) -> Iterator[str]:
    """Markdown: what each hospital's patients pay, from its own numbers."""
    yield f"| hospital | patients | rate | ε at δ = {delta:g}, proved |\n| --- | --- | --- | --- |"
    for client, name in zip(clients, names, strict=True):
        found = client.guarantee.epsilon(delta)
        bracket = f"{format_bound(found.lower, LOWER)} to {format_bound(found.upper, UPPER)}"
        yield f"| {name} | {client.records} | {client.plan.record_rate} | {bracket} |"


def scores(
    data: Examples,
    shares: Sequence[Records],
    own: Sequence[Records],
    rates: Sequence[float],
    noise: float,
    names: Sequence[str],
    seeds: int,
    rounds: int = ROUNDS,
) -> Iterator[str]:
    """Markdown: accuracy on all held-out patients and on each hospital's, mean over seeds (range of the first)."""
    whole = [(torch.cat([x for x, _ in shares]), torch.cat([y for _, y in shares]))]
    arms: list[tuple[str, Sequence[Records], Sequence[float], float, str]] = [
        ("all in one place, not private", whole, [max(rates)], 0.0, "central"),
        ("together, not private", shares, rates, 0.0, "central"),
        ("together, private, server adds the noise", shares, rates, noise, "central"),
        ("together, private, hospitals add the noise", shares, rates, noise, "local"),
    ]
    for name, held, rate in zip(names, shares, rates, strict=True):
        arms.append((f"{name} alone, not private", [held], [rate], 0.0, "central"))
    for name, held, rate in zip(names, shares, rates, strict=True):
        arms.append((f"{name} alone, private", [held], [rate], noise, "central"))
    yield f"| | all {len(data.test[1])} | {' | '.join(names)} |\n|" + " --- |" * (2 + len(names))
    for name, held, kept, z, who in arms:
        found = []
        for seed in range(seeds):
            model, _ = federation(held, kept, z, who, data, seed, rounds)
            found.append([100 * accuracy(model, test) for test in (data.test, *own)])
        first, *others = zip(*found, strict=True)
        cells = " | ".join(f"{mean(other):.0f}" for other in others)
        yield f"| {name} | {mean(first):.1f} ({min(first):.1f} to {max(first):.1f}) | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--epsilon", type=float, default=EPSILON, help="of the hospital with the highest rate"
    )
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = split("heart")
    shares = shares_of(found.examples, found.sizes.tolist())
    noise = calibrate.noise_multiplier(Poisson(max(RATES), ROUNDS), options.epsilon, DELTA)
    print(f"noise multiplier {noise:.4f}, {ROUNDS} rounds\n")
    _, clients = federation(shares, RATES, noise, "central", found.examples)
    print("\n".join(prices(clients, HOSPITALS, DELTA)))
    print()
    own = held_out(found.examples, PATIENTS)
    for line in scores(found.examples, shares, own, RATES, noise, HOSPITALS, options.seeds):
        print(line, flush=True)
    print("\n" + str(clients[-1].statement(DELTA)))


if __name__ == "__main__":
    main()
