"""A small federation for all tests of this folder."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture(scope="session")
def world():
    """Eight clients with 50 records among them, and how to make them."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("cryptography")
    from verax.federated import Client, Plan, Server, unpack, weights_of

    torch.set_num_threads(1)
    sizes = np.array([3, 8, 1, 5, 12, 7, 4, 10])
    starts = np.cumsum(sizes) - sizes
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 3, (50,), generator=torch.Generator().manual_seed(2))
    loss = torch.nn.CrossEntropyLoss()

    def plan(**change):
        return Plan(
            **{
                "clients": 8,
                "records": 50,
                "largest": 12,
                "client_rate": 0.5,
                "record_rate": 0.4,
                "rounds": 6,
                "noise_multiplier": 1.0,
                "clip_norm": 0.5,
                **change,
            }
        )

    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    def own(i):
        return x[starts[i] : starts[i] + sizes[i]], y[starts[i] : starts[i] + sizes[i]]

    def sgd(parameters):
        return torch.optim.SGD(parameters, 0.3, momentum=0.5)

    def client(i, run, seed=5, **options):
        return Client(i, own(i), run, make(), loss, insecure_seed=seed, **options)

    def clients(run, seed=5, **options):
        return [client(i, run, seed, **options) for i in range(run.clients)]

    def server(run, seed=5, **options):
        return Server(run, weights_of(make()), sgd, insecure_seed=seed, **options)

    def one_round(head, clients):
        """Everybody answers, over bytes, and the server steps."""
        for client in clients:
            answer = client.answer(unpack(head.model().pack()))
            if answer is not None:
                assert head.receive(unpack(answer.pack()), sender=client.number) is None
        head.step()

    return SimpleNamespace(
        sizes=sizes,
        starts=starts,
        x=x,
        y=y,
        loss=loss,
        plan=plan,
        make=make,
        own=own,
        sgd=sgd,
        client=client,
        clients=clients,
        server=server,
        one_round=one_round,
        torch=torch,
    )


@pytest.fixture(scope="session")
def parties():
    """The functions of parties.py, in this process."""
    spec = spec_from_file_location("parties", Path(__file__).with_name("parties.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
