"""Processes of a federation for test_flower.py, forked from one that has imported everything once.

It reads orders from its standard input, a JSON object a line, and answers each with the number of
the new process. What the process prints goes to the order's log.
"""

import json
import os
import signal
import sys
import traceback
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


def server(folder, port, plan, seed=None, again=False, asynchronous=False, dies_at=None, **waiting):
    """Serve, and leave the weights in a file; or die after this round or a later one."""
    import numpy as np

    from verax.federated import AsyncServer, Diminishing, Server, weights_of
    from verax.federated.asynchronous import Behind
    from verax.federated.flower import Waiting, server_app
    from verax.federated.flower_keys import read_public_keys
    from verax.federated.flower_link import serve

    here, keys = world(plan), read_public_keys(f"{folder}/keys.pem")
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
        print(f"round {found.round}", flush=True)
        if dies_at is not None and found.round >= dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    app = server_app(
        head,
        keys,
        Waiting(**{"gather": 600.0, "answers": 600.0, "farewell": 600.0, **waiting}),
        after,
    )
    serve(
        app,
        keys,
        f"{folder}/server.pem",
        f"{folder}/server.key",
        port=port,
        ready=lambda port: print(f"port {port}", flush=True),
    )
    np.save(f"{folder}/weights.npy", head.model().weights)
    print(f"refused {json.dumps(dict(head.refused))}")


def client(folder, port, plan, number, seed=None, asynchronous=False, pace=0.05, dies_at=None):
    """Join, with a ledger of its own; or die when it is asked for this round."""
    from verax.federated import AsyncClient, Diminishing
    from verax.federated.asynchronous import Behind
    from verax.federated.flower import client_app
    from verax.federated.flower_node import join
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
    hand = AsyncClient(me, Diminishing(0.1, 0.1), Behind(0)) if asynchronous else None
    app = client_app(me, hand, lambda model: print(f"last model {model.round}", flush=True))
    join(
        app,
        f"{folder}/{number}.key",
        f"{folder}/ca.pem",
        f"127.0.0.1:{port}",
        pace,
        poll=0.1,
        patience=180.0,
    )


def main():
    import torch

    import verax.federated.flower_link
    import verax.federated.flower_node  # noqa: F401

    # imports more than a second's worth, once for all
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if process:
            print(process, flush=True)
            continue
        log = os.open(order.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            {"server": server, "client": client}[order.pop("role")](**order)
            print("ended", flush=True)
        except BaseException:  # noqa: BLE001 - whatever it is, the test reads it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
