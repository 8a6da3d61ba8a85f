"""The parties of a small federation: in this process, or in those of a Flower run.

Run as a program it is a client, which gets its part as JSON.
"""

import json
import os
import signal
import sys
from types import SimpleNamespace

SIZES = (3, 8, 4)


def world(change):
    """Three clients with 15 records among them."""
    import torch

    from verax.federated import Plan

    torch.set_num_threads(1)
    x = torch.randn(15, 6, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 3, (15,), generator=torch.Generator().manual_seed(2))
    starts = [sum(SIZES[:i]) for i in range(3)]
    plan = Plan(
        **{
            "clients": 3,
            "records": 15,
            "largest": 8,
            "client_rate": 0.5,
            "record_rate": 0.4,
            "rounds": 4,
            "noise_multiplier": 1.0,
            "clip_norm": 0.5,
            **change,
        }
    )

    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    def own(i):
        return x[starts[i] : starts[i] + SIZES[i]], y[starts[i] : starts[i] + SIZES[i]]

    def sgd(parameters):
        return torch.optim.SGD(parameters, 0.3, momentum=0.5)

    def client(i, seed, **options):
        from verax.federated import Client

        return Client(
            i, own(i), plan, make(), torch.nn.CrossEntropyLoss(), insecure_seed=seed, **options
        )

    return SimpleNamespace(
        x=x,
        y=y,
        plan=plan,
        make=make,
        own=own,
        sgd=sgd,
        client=client,
        loss=torch.nn.CrossEntropyLoss(),
    )


def server(grid, folder, plan, seed=None, again=False, asynchronous=False, dies_at=None, **waiting):
    """Run rounds in a ServerApp, and save the weights; or die after this round or a later one."""
    import numpy as np

    from verax.federated import AsyncServer, Diminishing, Server, weights_of
    from verax.federated.asynchronous import Behind
    from verax.federated.flower import Waiting, read_public_keys, run_rounds

    here, keys = world(plan), read_public_keys(f"{folder}/clients.pub")
    first, files = (
        weights_of(here.make()),
        {"ledger": f"{folder}/server.ledger", "state": f"{folder}/server.state"},
    )
    if asynchronous:
        rule = Diminishing(0.1, 0.1), Behind(0)
        if again:
            head = AsyncServer.restart(here.plan, rule[0], files["state"], rule[1])
        else:
            head = AsyncServer(here.plan, first, *rule, state=files["state"])
    elif again:
        head = Server.restart(here.plan, here.sgd, insecure_seed=seed, **files)
    else:
        head = Server(here.plan, first, here.sgd, insecure_seed=seed, **files)

    def after(found):
        with open(f"{folder}/rounds", "a") as log:
            log.write(f"{found.round}\n")
        if dies_at is not None and found.round >= dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    patient = {"gather": 600.0, "answers": 600.0, "farewell": 600.0, **waiting}
    run_rounds(grid, head, keys, Waiting(**patient), after)
    np.save(f"{folder}/weights.npy", head.model().weights)
    with open(f"{folder}/refused", "w") as log:
        json.dump(dict(head.refused), log)


def client(folder, plan, number, address, seed=None, asynchronous=False, dies_at=None):
    """Serve, with a ledger; or die when it is asked for this round."""
    from verax.federated import AsyncClient, Diminishing
    from verax.federated.asynchronous import Behind
    from verax.federated.flower import serve
    from verax.ledger.ledger import Ledger

    path = f"{folder}/{number}.ledger"
    book = Ledger.open(path) if os.path.exists(path) else path
    me = world(plan).client(number, seed, ledger=book)
    answer = me.answer

    def dying(model):
        if model.round == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(model)

    me.answer = dying
    waits = AsyncClient(me, Diminishing(0.1, 0.1), Behind(0)) if asynchronous else None
    serve(me, address, waits, pace=0.05)


if __name__ == "__main__":
    client(**json.loads(sys.argv[1]))
