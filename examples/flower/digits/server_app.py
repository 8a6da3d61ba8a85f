"""The ServerApp: `flwr run` starts it on the server's host, anew after a crash."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from digits.task import DELTA, PLAN, model
from verax.federated import Server, put_weights, weights_of
from verax.federated.flower import Waiting, read_public_keys, run_rounds

app = ServerApp()


def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """What uses the noisy sums."""
    return torch.optim.SGD(parameters, lr=0.5)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begin a run, or go on with the one whose ledger is there."""
    folder = Path(str(context.run_config["folder"]))
    ledger, state = folder / "server.ledger", folder / "server.state"
    if ledger.exists():
        server = Server.restart(PLAN, optimizer, ledger=ledger, state=state)
    else:
        server = Server(PLAN, weights_of(model()), optimizer, ledger=ledger, state=state)
    patience = float(context.run_config["patience"])
    waiting = Waiting(gather=patience, answers=patience, farewell=patience)
    run_rounds(grid, server, read_public_keys(str(context.run_config["keys"])), waiting)
    trained = model()
    put_weights(trained, server.weights)
    torch.save(trained.state_dict(), folder / "model.pt")
    print(server.statement(DELTA))
