"""What all parties agree on: the plan, the model and the loss."""

import torch
from torch import nn

from verax.federated import Plan
from verax.federated.splits import split

CLIENTS = 2
LOSS = nn.CrossEntropyLoss()
DELTA = 1e-5


def model() -> nn.Module:
    """The model, the same on every host at first."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


# every number here is public; records counts those of all clients, largest those of one
PLAN = Plan(
    clients=CLIENTS,
    records=1438,
    largest=719,
    client_rate=0.5,
    record_rate=0.3,
    rounds=3,
    noise_multiplier=2.0,
)


def own_data(client: int) -> tuple[torch.Tensor, ...]:
    """The records of a client; in earnest, read what is on its host."""
    found = split("digits", CLIENTS)
    ends = found.sizes.cumsum()
    return tuple(
        column[ends[client] - found.sizes[client] : ends[client]] for column in found.examples.train
    )
