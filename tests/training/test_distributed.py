"""One run in several processes: one ledger, and a lost process stops all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402

from verax import (  # noqa: E402
    Mechanism,
    Poisson,
    ledger,
)
from verax.training import PrivateTrainer  # noqa: E402
from verax.training.distributed import LostProcess, Processes, launched  # noqa: E402

RANKS = Path(__file__).with_name("ranks.py")
SCENARIOS = [
    line.removeprefix("def ").partition("(")[0]
    for before, line in zip(
        RANKS.read_text().splitlines(), RANKS.read_text().splitlines()[1:], strict=False
    )
    if before == "@scenario"
]
MECHANISM = Mechanism(Poisson(0.5, 2), 1.0)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What went wrong in each scenario."""
    command = [sys.executable, str(RANKS), str(tmp_path_factory.mktemp("ranks"))]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=3000,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_several_processes(said, name):
    assert said[name] == "", said[name]


def trainer(model=None, **more):
    model = model or nn.Linear(3, 2)
    return PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), MECHANISM, **more)


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="init_process_group"):
        trainer()
    assert trainer(processes=1).first


@pytest.mark.parametrize("processes", [2, 0, "all", object()])
def test_processes_are_a_group_or_one(processes):
    with pytest.raises(ValueError, match="processes must be"):
        trainer(processes=processes)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (
            RuntimeError(
                "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
            ),
            True,
        ),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"), True),
        (torch.distributed.DistNetworkError("failed to recv, got 0 bytes"), True),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            False,
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("No backend type associated with device type mps"), False),
        (NotImplementedError("Operator c10d.broadcast_ does not support this tensor"), False),
        (RecursionError("maximum recursion depth exceeded"), False),
    ],
)
def test_only_what_another_process_did_is_a_lost_process(monkeypatch, error, lost):
    """Out of memory here, for one, was called the death of another."""
    dist = torch.distributed
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)

    def fail(*_, **__):
        raise error

    for name in ("broadcast", "reduce", "all_reduce", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, fail)
    here, buffer = Processes(None, torch.device("cpu")), torch.zeros(2)
    for call in (
        lambda: here.broadcast(buffer),
        lambda: here.reduce_to_first(buffer),
        lambda: here.together(int),
        lambda: here.share(1),
    ):
        with pytest.raises(LostProcess if lost else type(error)) as raised:
            call()
        assert (raised.value is error) is not lost


def test_models_that_reduce_their_own_gradients_are_refused():
    with pytest.raises(ValueError, match="DataParallel"):
        trainer(nn.DataParallel(nn.Linear(3, 2)))


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with launched() as first:
        assert first


@pytest.mark.slow
def test_the_command_line_under_torchrun(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--no-python",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(Path(sys.executable).with_name("verax")),
            "train",
            "--data",
            "digits",
            "--model",
            "logistic",
            "-z",
            "1",
            "--epochs",
            "4",
            "--lr",
            "0.05",
            "--ledger",
            str(tmp_path / "run.ledger"),
            "--json",
            "--insecure-seed",
            "1",
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.5  # once: the other process prints nothing
    assert ledger.read(tmp_path / "run.ledger").complete
