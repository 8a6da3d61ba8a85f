"""SuperLink and SuperNodes as processes on this host: a project, lost parties, and strangers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")
pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'verax[federated]'")

from verax import ledger  # noqa: E402
from verax.federated import AsyncClient, AsyncServer, Diminishing, together, weights_of  # noqa: E402
from verax.federated.asynchronous import Behind  # noqa: E402
from verax.federated.flower import new_key  # noqa: E402
from verax.federated.flower.local import local_federation  # noqa: E402

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flower"
SEED = 918_273_645
PATIENCE = 600.0  # seconds; far more than needed on a machine that does nothing else
PROJECT = """
[project]
name = "parties"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "verax"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
part = ""
"""
SERVER_APP = """
import json
import parties
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    with open(context.run_config["part"]) as part:
        parties.server(grid, **json.load(part))
"""
CLIENT_APP = """
from verax.federated.flower import relay_app
app = relay_app()
"""


class Parties:
    """A local federation of three clients, and what parties.py does in it."""

    def __init__(self, federation, plan, **options):
        self.flower, self.folder, self.options = federation, federation.folder, options
        self.plan, self.clients, self.runs = plan, {}, 0
        self.project = self.folder / "project"
        self.project.mkdir()
        (self.project / "pyproject.toml").write_text(PROJECT)
        (self.project / "server_app.py").write_text(SERVER_APP)
        (self.project / "client_app.py").write_text(CLIENT_APP)

    def run(self, **part):
        path = self.folder / f"part-{self.runs}.json"
        self.runs += 1
        whole = {"folder": os.fspath(self.folder), "plan": self.plan, **self.options, **part}
        path.write_text(json.dumps(whole))
        return self.flower.run(self.project, part=os.fspath(path))

    def serve(self, *numbers, **part):
        for number in numbers:
            own = {"number": number, "address": self.flower.socket(number)}
            whole = {"folder": os.fspath(self.folder), "plan": self.plan, **self.options}
            command = [sys.executable, str(ROOT / "tests" / "federated" / "parties.py")]
            self.clients[number] = subprocess.Popen(
                [*command, json.dumps({**whole, **own, **part})]
            )

    def rounds(self):
        path = self.folder / "rounds"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def see_round(self, number):
        end = time.monotonic() + PATIENCE
        while number not in self.rounds():
            assert time.monotonic() < end, self.flower.log("run")
            self.flower.check()
            time.sleep(0.1)

    def end(self, run):
        assert run.wait(PATIENCE) == 0
        for process in self.clients.values():
            process.wait(PATIENCE)
        assert (self.folder / "weights.npy").exists(), self.flower.log("run")
        return np.load(self.folder / "weights.npy")

    def stop(self):
        for process in self.clients.values():
            process.kill()
            process.wait()


@pytest.fixture
def federation(tmp_path_factory, monkeypatch):
    """Starts three SuperNodes; all processes end with the test."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "federated")])
    )
    started = []
    with local_federation(tmp_path_factory.mktemp("f"), 3) as flower:

        def make(plan, **options):
            started.append(Parties(flower, plan, **options))
            return started[-1]

        try:
            yield make
        finally:
            for parties in started:
                parties.stop()


def await_sockets(flower, clients):
    """Wait until all clients serve."""
    end = time.monotonic() + PATIENCE
    while not all(Path(flower.socket(i)).is_socket() for i in range(clients)):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_flwr_run_of_the_example_and_no_stranger_joins(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("f")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(EXAMPLE)]))
    clients = []
    with local_federation(folder, 2) as flower:
        try:
            for i in range(2):
                words = [str(i), str(folder / f"{i}.ledger"), flower.socket(i)]
                clients.append(subprocess.Popen([sys.executable, "-m", "digits.client", *words]))
            new_key(folder / "stranger.key")
            flower.start_supernode(2, "stranger.key")
            stranger = flower.processes.pop("supernode-2")
            await_sockets(flower, 2)
            keys = str(folder / "clients.pub")
            run = flower.run(EXAMPLE, folder=str(folder), keys=keys, patience=PATIENCE)
            assert run.wait(PATIENCE) == 0, flower.log("run")
            assert [client.wait(PATIENCE) for client in clients] == [0, 0]
            assert stranger.wait(PATIENCE) != 0
        finally:
            for client in clients:
                client.kill()
                client.wait()
            stranger.kill()
            stranger.wait()
        said = (folder / "run.log").read_text()
        assert "Any 1 record is protected with epsilon at most 1.2318 at delta 1e-05" in said
        assert "Failed to activate SuperNode" in (folder / "supernode-2.log").read_text()
    for name in ("server", "0", "1"):
        book = ledger.read(folder / f"{name}.ledger")
        assert book.complete
        assert book.released == 3
    assert torch.load(folder / "model.pt")["1.weight"].shape == (10, 64)


@pytest.mark.slow
def test_asynchronous_rounds_end_with_the_weights_of_the_embedded_engine(federation, parties):
    """No client may be ahead, so each works at the broadcast models in any message order."""
    plan = {"noise": "local", "client_rate": 0.7, "rounds": 3}
    there = federation(plan, seed=SEED, asynchronous=True)
    there.serve(0, 1, 2)
    await_sockets(there.flower, 3)
    found, here, rule = (
        there.end(there.run()),
        parties.world(plan),
        (Diminishing(0.1, 0.1), Behind(0)),
    )
    head = AsyncServer(here.plan, weights_of(here.make()), *rule)
    together(head, [AsyncClient(here.client(i, SEED), *rule) for i in range(3)])
    np.testing.assert_allclose(found, head.model().weights, rtol=1e-5, atol=1e-6)
    assert json.loads((there.folder / "refused").read_text()) == {}


@pytest.mark.slow
def test_kill_9_of_a_client_and_its_return(federation):
    there = federation({"rounds": 6, "client_rate": 1.0})
    there.serve(0, dies_at=1)
    there.serve(1, 2)
    await_sockets(there.flower, 3)
    run = there.run(answers=20.0)
    there.see_round(2)  # the others go on
    there.clients[0].wait(PATIENCE)
    assert ledger.read(there.folder / "0.ledger").released == 1
    there.serve(0)
    there.end(run)
    for name in ("server", "0", "1", "2"):
        book = ledger.read(there.folder / f"{name}.ledger")
        assert book.complete  # missed rounds are counted, too
        assert book.released == 6


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_kill_9_of_the_server_and_its_restart(federation, asynchronous):
    plan = {"rounds": 5, "client_rate": 1.0, "noise": "local"}
    there = federation(plan, asynchronous=asynchronous)
    there.serve(0, 1, 2)
    await_sockets(there.flower, 3)
    dying = there.run(dies_at=2)
    there.see_round(2)
    dying.kill()
    dying.wait()
    first = there.rounds()
    assert there.end(there.run(again=True)).shape == (53,)
    rounds = there.rounds()[len(first) :]
    assert rounds[-1] == 5
    if asynchronous:
        assert rounds == sorted(set(rounds))
        assert min(rounds) >= first[-1]
    else:
        assert [*first, *rounds] == [1, 2, 3, 4, 5]  # no round twice
        book = ledger.read(there.folder / "server.ledger")
        assert book.complete
        assert [event.kind for event in book.events] == ["resumed", "finished"]
    for i in range(3):
        assert ledger.read(there.folder / f"{i}.ledger").complete
        assert ledger.read(there.folder / f"{i}.ledger").released == 5
