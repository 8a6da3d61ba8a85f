"""Train in several processes, some of which die; run by test_distributed.

python ranks.py FOLDER [SCENARIO...] forks the processes (importing torch takes longer than
training) and prints, as JSON, what went wrong in each scenario: nothing, or a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import IterableDataset

from verax import (
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    Shuffle,
    ledger,
)
from verax.training import Ledger, LeftMechanism, LocalSteps, LostProcess, PrivateTrainer, fit

PATIENCE = 600.0  # seconds that processes may take
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(2))
LOSS = nn.CrossEntropyLoss()
SCENARIOS: dict[str, Callable[[Path], None]] = {}
torch.set_num_threads(1)


def warm() -> None:
    """Import what torch and we import when first needed, so that not every forked process does."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        kind([parameter], 0.1).step()
    for mechanism, _ in CASES.values():
        mechanism.guarantee()


def scenario(check: Callable[[Path], None]) -> Callable[[Path], None]:
    SCENARIOS[check.__name__] = check
    return check


# --- processes ------------------------------------------------------------------------------------


def start(size: int, work: Callable[[int], Any], folder: Path) -> list[int]:
    """Fork processes that do the work together; each leaves its result or its error."""
    folder.mkdir()
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            live(rank, size, work, folder)
        children.append(child)
    return children


def live(rank: int, size: int, work: Callable[[int], Any], folder: Path) -> None:
    try:
        if size > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=2 * PATIENCE),
            )
        result = "done", work(rank)
    except Exception as error:  # noqa: BLE001 - the scenario looks at whatever it was
        result = type(error).__name__, str(error)
    torch.save(result, folder / f"{rank}.new")
    os.rename(folder / f"{rank}.new", folder / str(rank))
    os._exit(0)


def results(children: list[int], folder: Path) -> list[Any]:
    """What each process left, or None if it died; in bounded time."""
    end = time.monotonic() + PATIENCE
    waiting = set(children)
    while waiting and time.monotonic() < end:
        waiting -= {child for child in waiting if os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.005)
    for child in waiting:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not waiting, f"{len(waiting)} processes did not stop within {PATIENCE} s"
    found = [folder / str(rank) for rank in range(len(children))]
    return [torch.load(path) if path.exists() else None for path in found]


def run(size: int, work: Callable[[int], Any], folder: Path) -> list[Any]:
    return results(start(size, work, folder), folder)


def done(found: list[Any]) -> list[Any]:
    assert all(result is not None and result[0] == "done" for result in found), found
    return [result[1] for result in found]


# --- what they do ---------------------------------------------------------------------------------


def make(rank: int = 0, norm: bool = False) -> nn.Module:
    torch.manual_seed(rank)  # weights differ, until the first process's are taken
    middle = [nn.BatchNorm1d(5, track_running_stats=False)] if norm else []
    return nn.Sequential(nn.Linear(6, 5), *middle, nn.Tanh(), nn.Linear(5, 3))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def trained(
    mechanism: Mechanism,
    path: Path | None,
    data: Any = (X, Y),
    loss: Any = LOSS,
    norm: bool = False,
    **more,
):
    def work(rank: int) -> torch.Tensor:
        model = make(rank, norm)
        trainer = PrivateTrainer(
            model,
            torch.optim.Adam(model.parameters(), 0.05),
            mechanism,
            ledger=path,
            insecure_seed=7,
            **more,
        )
        for batch in trainer.batches(data() if callable(data) else data):
            trainer.step(batch, loss)
        return weights(model)

    return work


class Passing(IterableDataset):
    def __iter__(self):
        return iter([(X[i], Y[i]) for i in range(40)])


def by_name(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


LOCAL = LocalSteps(lambda p: torch.optim.Adam(p, 0.05), steps=3)
CASES: dict[str, tuple[Mechanism, dict[str, Any]]] = {
    "individual": (Mechanism(Poisson(0.2, 8), 1.0), {}),
    "almost empty batches": (
        Mechanism(Poisson(0.02, 12), 1.0),
        {"data": {"x": X, "y": Y}, "loss": by_name},
    ),
    "clip norms": (
        Mechanism(Shuffle(5, 2), 1.0, Individual(9.0)),
        {"clip_norms": lambda t: 1.0 / (1 + t)},
    ),
    "batch": (Mechanism(Shuffle(5, 2), 1.0, Batch(0.1)), {}),
    "batch, tiny": (Mechanism(Poisson(0.03, 10), 1.0, Batch(10.0)), {"micro_batch": 1}),
    "batch, local steps": (Mechanism(Shuffle(4), 1.0, Batch(0.1)), {"inner": LOCAL}),
    "batch norm": (Mechanism(Shuffle(4), 1.0, Batch(0.1)), {"norm": True}),
    "mixed": (Mechanism(Poisson(0.3, 6), 1.0, Mixed(0.1, groups=3)), {}),
    "mixed, local steps": (Mechanism(Poisson(0.3, 4), 1.0, Mixed(0.1, groups=3)), {"inner": LOCAL}),
    "stream": (Mechanism(BufferedShuffle(5, 2, 2), 1.0), {"data": Passing, "records": 40}),
}


@scenario
def several_processes_are_as_good_as_one(top: Path) -> None:
    for number, (name, (mechanism, more)) in enumerate(CASES.items()):
        folder = top / str(number)
        folder.mkdir()
        (alone,) = done(run(1, trained(mechanism, None, **more), folder / "1"))
        for size in (2, 3) if number < 4 else (2,):
            found = done(
                run(size, trained(mechanism, folder / f"{size}.ledger", **more), folder / str(size))
            )
            for other in found:
                torch.testing.assert_close(
                    other, alone, rtol=1e-4, atol=2e-6, msg=f"{name}, {size} processes"
                )
                assert torch.equal(other, found[0]), f"{name}: processes differ"
            book = ledger.read(folder / f"{size}.ledger")
            assert book.complete
            assert book.ended.kind == "finished"


@scenario
def noise_is_added_once(top: Path) -> None:
    """Nothing but noise: not even rounding differs."""
    mechanism = Mechanism(Poisson(1e-9, 3), 1.0)
    (alone,) = done(run(1, trained(mechanism, None), top / "1"))
    for other in done(run(2, trained(mechanism, None), top / "2")):
        assert torch.equal(other, alone)


@scenario
def fit_works_in_several_processes(top: Path) -> None:
    def work(rank: int) -> Any:
        found = fit(
            make(rank),
            LOSS,
            (X, Y),
            Mechanism(Poisson(0.2, 4), 1.0),
            lambda p: torch.optim.SGD(p, 0.1),
            ledger=top / "run.ledger",
        )
        return weights(found.trainer.model), found.statement(top / f"{rank}.html").splitlines()[0]

    first, second = done(run(2, work, top / "2"))
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]
    assert (top / "0.html").exists()
    assert not (top / "1.html").exists()


def dying(mechanism: Mechanism, top: Path, who: int, when: int):
    """Process ``who`` dies in round ``when``; states are saved every second round."""

    def work(rank: int) -> None:
        model = make(rank)
        trainer = PrivateTrainer(
            model, torch.optim.SGD(model.parameters(), 0.1), mechanism, ledger=top / "run.ledger"
        )
        for batch in trainer.batches((X, Y)):
            if rank == who and batch.number == when:
                os.kill(os.getpid(), signal.SIGKILL)
            trainer.step(batch, LOSS)
            if trainer.rounds % 2 == 0:
                trainer.save(top / "state")

    return work


@scenario
def a_lost_process_stops_the_run_and_the_ledger_stays(top: Path) -> None:
    mechanism = Mechanism(Shuffle(4, 2), 1.0)
    for who in (0, 1):
        folder = top / str(who)
        folder.mkdir()
        # noticed at once, not by waiting for it: messages may take longer than `results` waits
        found = run(2, dying(mechanism, folder, who, 5), folder / "first")
        assert found[who] is None
        kind, words = found[1 - who]
        assert kind == "LostProcess", found
        assert "ledger" in words
        book = ledger.read(folder / "run.ledger")
        assert book.released == 5
        assert book.ended is None

        def again(rank: int, folder: Path = folder) -> list[int]:
            held = Ledger.open(folder / "run.ledger", mechanism) if rank == 0 else None
            model = make(rank)
            trainer = PrivateTrainer(
                model, torch.optim.SGD(model.parameters(), 0.1), mechanism, ledger=held
            )
            trainer.load(folder / "state", (X, Y))
            numbers = []
            for batch in trainer.batches((X, Y)):
                numbers.append(batch.number)
                trainer.step(batch, LOSS)
            return [*numbers, float(weights(model).sum())]

        first, second = done(run(2, again, folder / "second"))
        assert first == second
        assert first[:-1] == [5, 6, 7]  # round 4 was released after the last save: it is spent
        assert ledger.read(folder / "run.ledger").complete


@scenario
def processes_killed_at_any_time_leave_a_ledger_that_is_not_behind(top: Path) -> None:
    mechanism = Mechanism(Poisson(0.3, 10**6), 1.0)  # more rounds than anybody waits for
    for number in range(6):
        folder = top / str(number)
        folder.mkdir()

        def work(rank: int, folder: Path = folder) -> None:
            model = make(rank)
            trainer = PrivateTrainer(
                model,
                torch.optim.SGD(model.parameters(), 0.1),
                mechanism,
                ledger=folder / "run.ledger",
            )
            out = os.open(folder / f"seen {rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            for batch in trainer.batches((X, Y)):
                trainer.step(batch, LOSS)
                os.write(out, b"%d\n" % batch.number)

        children = start(2, work, folder / "run")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not (folder / "seen 0").exists():
            time.sleep(0.01)
        time.sleep(0.02 + 0.03 * number)
        os.kill(children[number % 2], signal.SIGKILL)
        found = results(children, folder / "run")
        assert found[1 - number % 2][0] == "LostProcess", found
        released = ledger.read(folder / "run.ledger").released
        for rank in range(2):
            assert len((folder / f"seen {rank}").read_text().split()) <= released


@scenario
def resuming_goes_on_with_the_very_same_run(top: Path) -> None:
    mechanism = Mechanism(Poisson(0.3, 6), 1.0, Mixed(0.1, groups=3))
    (alone,) = done(run(1, trained(mechanism, None), top / "1"))

    def half(rank: int, more: bool) -> torch.Tensor:
        model = make(rank)
        trainer = PrivateTrainer(
            model, torch.optim.Adam(model.parameters(), 0.05), mechanism, insecure_seed=7
        )
        if more:
            trainer.load(top / "state", (X, Y))
        for batch in trainer.batches((X, Y)):
            trainer.step(batch, LOSS)
            if batch.number == 2 and not more:
                trainer.save(top / "state")
                break
        return weights(model)

    done(run(2, lambda rank: half(rank, False), top / "2"))
    for size in (2, 1):
        for other in done(run(size, lambda rank: half(rank, True), top / f"more {size}")):
            torch.testing.assert_close(other, alone, rtol=1e-4, atol=2e-6)


@scenario
def the_same_program_goes_on_with_the_state_that_it_kept(top: Path) -> None:
    mechanism = Mechanism(Poisson(0.3, 8), 1.0)

    def work(rank: int, until: int) -> list[float]:
        model = make(rank)
        others = top / "not looked at" if until > 0 else None
        trainer = PrivateTrainer(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            mechanism,
            ledger=top / "run.ledger",
            state=top / "state" if rank == 0 else others,
        )
        numbers = []
        for batch in trainer.batches((X, Y)):
            if batch.number == until:
                os._exit(1)
            trainer.step(batch, LOSS)
            numbers.append(float(batch.number))
        return [*numbers, float(weights(model).sum())]

    run(2, lambda rank: work(rank, 3), top / "first")
    assert ledger.read(top / "run.ledger").released == 3
    first, second = done(run(2, lambda rank: work(rank, -1), top / "second"))
    assert first == second
    assert first[:-1] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert ledger.read(top / "run.ledger").complete
    # over: the same weights
    assert done(run(2, lambda rank: work(rank, -1), top / "third")) == [first[-1:]] * 2
    assert not (top / "not looked at").exists()


def stopping(top: Path, loss: Any, mechanism: Mechanism, **more: Any) -> list[Any]:
    return run(2, trained(mechanism, top / "run.ledger", loss=loss, **more), top / "2")


@scenario
def gradients_that_are_not_finite_stop_all_processes(top: Path) -> None:
    bad = X.clone()
    bad[-1] = torch.nan  # in the share of the second process
    for name, clipping in (
        ("individual", Individual()),
        ("batch", Batch()),
        ("mixed", Mixed(groups=2)),
    ):
        folder = top / name
        folder.mkdir()
        found = stopping(folder, LOSS, Mechanism(Deterministic(1), 1.0, clipping), data=(bad, Y))
        assert [kind for kind, _ in found] == [LeftMechanism.__name__] * 2, found
        book = ledger.read(folder / "run.ledger")
        assert book.ended.private
        assert book.released == 0


@scenario
def a_batch_is_clipped_whatever_the_others_send(top: Path) -> None:
    """The first process does not cut the batch; the other does, and sends its share."""

    def work(rank: int) -> float:
        model = make(0, norm=True)
        model[1].train(rank == 0)
        trainer = PrivateTrainer(
            model,
            torch.optim.SGD(model.parameters(), 1.0),
            Mechanism(Deterministic(1), 0.0, Batch(1e-3)),
        )
        before = weights(model)
        for batch in trainer.batches((X, Y)):
            trainer.step(batch, LOSS)
        return float((weights(model) - before).norm())

    for moved in done(run(2, work, top / "2")):
        assert 0.0 < moved <= 1e-3 * (1 + 1e-4)


@scenario
def an_error_in_one_process_is_heard_in_all(top: Path) -> None:
    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            raise KeyError("a bug")
        return nn.functional.cross_entropy(out, y, reduction="none")

    found = stopping(top, loss, Mechanism(Deterministic(2), 1.0))
    assert found[1][0] == "KeyError"
    assert found[0][0] == LostProcess.__name__
    assert "process 1" in found[0][1]
    assert "a bug" in found[0][1]
    assert ledger.read(top / "run.ledger").released == 0


@scenario
def a_ledger_that_cannot_be_written_stops_all(top: Path) -> None:
    (top / "run.ledger").write_text("something else\n")
    found = stopping(top, LOSS, Mechanism(Deterministic(2), 1.0))
    assert found[0][0] == "LedgerError"
    assert found[1][0] == LostProcess.__name__
    assert "must be new" in found[1][1]


@scenario
def processes_must_agree(top: Path) -> None:
    def odd(rank: int, what: str) -> None:
        model = make(rank)
        noise = 2.0 if (rank, what) == (1, "mechanism") else 1.0
        rate = 0.2 if (rank, what) == (1, "optimizer") else 0.1
        optimizer = torch.optim.SGD(model.parameters(), rate)
        trainer = PrivateTrainer(
            model,
            optimizer,
            Mechanism(Poisson(0.2, 4), noise),
            records=39 + rank if what == "records" else None,
            schedule=ExponentialLR(optimizer, 0.9) if (rank, what) == (0, "schedule") else None,
        )
        records = 39 if (rank, what) == (1, "dataset") else 40
        for batch in trainer.batches((X[:records], Y[:records])):
            trainer.step(batch, LOSS)

    for what in ("mechanism", "optimizer", "schedule", "records", "dataset"):
        found = run(2, lambda rank, what=what: odd(rank, what), top / what)
        assert found[1][0] == "ValueError", found
        assert found[1][1].startswith(f"{what} must"), found
        assert found[0][0] == LostProcess.__name__


@scenario
def models_in_parts_are_refused_in_words(top: Path) -> None:
    """FSDP2 and tensor parallelism: every parameter is a DTensor."""

    def fully_sharded(model: nn.Module, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)

    def tensor_parallel(model: nn.Module, mesh: Any) -> None:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def work(rank: int, cut: Callable[[nn.Module, Any], None]) -> None:
        model = make(0)
        cut(model, dist.device_mesh.init_device_mesh("cpu", (2,)))
        if rank == 0:  # both ways to train say so
            fit(
                model,
                LOSS,
                (X, Y),
                Mechanism(Poisson(0.2, 4), 1.0),
                lambda p: torch.optim.SGD(p, 0.1),
            )
        PrivateTrainer(
            model, torch.optim.SGD(model.parameters(), 0.1), Mechanism(Poisson(0.2, 4), 1.0)
        )

    for cut in (fully_sharded, tensor_parallel):
        found = run(2, lambda rank, cut=cut: work(rank, cut), top / cut.__name__)
        for kind, words in found:
            assert kind == "ValueError", found
            assert "neither FSDP2 nor tensor parallelism" in words, found
            assert words.startswith(
                "model must have whole parameters in every process, got 0.weight"
            ), found


@scenario
def only_the_first_process_may_open_the_ledger(top: Path) -> None:
    mechanism = Mechanism(Poisson(0.2, 4), 1.0)

    def work(rank: int) -> None:
        model = make(rank)
        held = Ledger.create(top / f"{rank}.ledger", mechanism)
        PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism, ledger=held)

    found = run(2, work, top / "2")
    assert found[1] == (
        "ValueError",
        "ledger must be opened by the first process only: pass None in the others",
    )


@scenario
def separate_runs_and_groups_are_possible(top: Path) -> None:
    mechanism = Mechanism(Poisson(0.2, 4), 1.0)

    def alone(rank: int) -> torch.Tensor:
        return trained(mechanism, top / f"{rank}.ledger", processes=1)(rank)

    first, second = done(run(2, alone, top / "2"))
    assert not torch.equal(first, second)
    assert ledger.read(top / "1.ledger").complete

    def grouped(rank: int) -> torch.Tensor:
        pairs = [dist.new_group([0]), dist.new_group([1, 2])]
        return trained(mechanism, None, processes=pairs[rank > 0])(0)

    apart = done(run(3, grouped, top / "3"))
    torch.testing.assert_close(apart[1], apart[0], rtol=1e-4, atol=2e-6)
    assert torch.equal(apart[1], apart[2])


if __name__ == "__main__":
    where = Path(sys.argv[1])
    warm()
    said = {}
    for name in sys.argv[2:] or SCENARIOS:
        (where / name).mkdir()
        try:
            SCENARIOS[name](where / name)
            said[name] = ""
        except Exception:  # noqa: BLE001 - told to the test, which fails
            said[name] = traceback.format_exc()
    print(json.dumps(said))
