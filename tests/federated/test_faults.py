"""Faults in a round are refused and counted; no client's privacy is under-counted."""

import math
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from verax import ledger  # noqa: E402
from verax.federated import (  # noqa: E402
    AsyncClient,
    AsyncServer,
    Client,
    Diminishing,
    Embedded,
    Model,
    Refused,
    Server,
    Update,
    weights_of,
)
from verax.federated import asynchronous as asynchronous_module  # noqa: E402
from verax.federated import embedded as embedded_module  # noqa: E402
from verax.federated import server as server_module  # noqa: E402
from verax.training import Ledger  # noqa: E402


def spoilt(update, how):
    values, size = update.values, len(update.values)
    nan = values.copy()
    nan[1] = np.nan
    cases = {
        "not finite": {"values": nan},
        "shape": {"values": values[:-1]},
        "late": {"round": update.round - 1} if update.round else {"round": update.round + 1},
        "early": {"round": update.round + 1},
        "large": {"values": np.full(size, 10.0, np.float32)},
        "another run": {"run": bytes(16)},
        "unknown client": {"client": 99},
    }
    fields = {
        "run": update.run,
        "client": update.client,
        "round": update.round,
        "values": values,
        **cases[how],
    }
    return Update(**fields)


HOWS = ("not finite", "shape", "early", "large", "another run", "unknown client")


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from((*HOWS, "dead", "twice", "forged"))),
        max_size=8,
    )
)
def test_spoilt_answers_are_refused_and_the_rest_is_the_round(world, faults):
    run = world.plan(noise_multiplier=0.0, client_rate=1.0, record_rate=1.0)
    head, other = world.server(run), world.server(run)
    clients, wrong = world.clients(run), dict(faults)
    refused = 0
    for client in clients:
        good = client.answer(head.model())
        how = wrong.get(client.number)
        if how in HOWS:
            assert (
                head.receive(
                    spoilt(good, how), sender=99 if how == "unknown client" else client.number
                )
                == how
            )
            refused += 1
        elif how == "forged":
            assert head.receive(good, sender=(client.number + 1) % 8) == "forged sender"
            refused += 1
        elif how != "dead":
            assert head.receive(good) is None
            other.add(good.values)
            if how == "twice":
                assert head.receive(good) == "replayed"
                refused += 1
    head.step()
    other.step()
    assert sum(head.refused.values()) == refused
    assert np.array_equal(head.weights.numpy(), other.weights.numpy())
    assert all(client.spent == 1 for client in clients)  # also those that were refused


def in_two_threads(call, place, name, monkeypatch):
    """Call twice at once: each call waits, after its checks, until the other is there too."""
    there, wrapped, found = threading.Barrier(2), getattr(place, name), []

    def slow(*words, **more):
        with suppress(threading.BrokenBarrierError):
            there.wait(0.3)
        return wrapped(*words, **more)

    def run():
        try:
            found.append(call())
        except ValueError as error:
            found.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, slow)
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def test_an_update_that_two_threads_deliver_is_used_once(world, monkeypatch):
    run = world.plan(client_rate=1.0)
    head, twin = world.server(run), world.server(run)
    update = world.client(0, run).answer(head.model())
    found = in_two_threads(lambda: head.receive(update), server_module, "objection", monkeypatch)
    assert sorted(map(str, found)) == ["None", "replayed"]
    twin.add(update.values)
    assert np.array_equal(head._total, twin._total)


def test_two_threads_do_not_get_two_answers_to_one_round(world, monkeypatch):
    run = world.plan(client_rate=1.0, noise="local")
    model, client = world.server(run).model(), world.client(0, run, seed=None)
    found = in_two_threads(lambda: client.answer(model), Client, "refuse_weights", monkeypatch)
    assert sorted(type(one).__name__ for one in found) == ["Refused", "Update"]
    assert client.spent == 1


def test_two_threads_do_not_end_one_round_twice(world, monkeypatch, tmp_path):
    head = world.server(world.plan(), ledger=tmp_path / "run.ledger")
    assert in_two_threads(head.step, Ledger, "release", monkeypatch) == [None, None]
    assert (head.round, ledger.read(tmp_path / "run.ledger").released) == (2, 2)


def test_two_threads_do_not_add_up_one_embedded_round_twice(world, monkeypatch):
    run = world.plan(client_rate=1.0, record_rate=1.0, noise_multiplier=0.0)
    whole, twin = (
        Embedded(
            run,
            world.make(),
            world.loss,
            (world.x, world.y),
            world.sizes,
            world.sgd,
            insecure_seed=5,
        )
        for _ in range(2)
    )
    assert in_two_threads(whole.step, embedded_module, "taking_part", monkeypatch) == [None, None]
    twin.step()
    twin.step()
    np.testing.assert_allclose(whole.server.weights.numpy(), twin.server.weights.numpy(), rtol=1e-6)


def test_an_asynchronous_update_that_two_threads_deliver_is_used_once(world, monkeypatch):
    run = world.plan(client_rate=1.0, noise="local")
    head = AsyncServer(run, weights_of(world.make()), Diminishing(0.1))
    client = AsyncClient(world.client(0, run), Diminishing(0.1))
    client.receive(head.model())
    update = client.work()
    found = in_two_threads(
        lambda: head.receive(update), asynchronous_module, "objection", monkeypatch
    )
    assert sorted(map(str, found)) == ["None", "replayed"]


def test_two_threads_do_not_work_on_one_asynchronous_round(world, monkeypatch):
    run = world.plan(client_rate=1.0, noise="local")
    client = AsyncClient(world.client(0, run, seed=None), Diminishing(0.1))
    client.receive(AsyncServer(run, weights_of(world.make()), Diminishing(0.1)).model())
    found = in_two_threads(client.work, Client, "charge", monkeypatch)
    assert sorted(one.round for one in found) == [0, 1]


def test_late_answers_are_not_used_in_the_next_round(world):
    run = world.plan(client_rate=1.0)
    head, client = world.server(run), world.client(0, run)
    slow = client.answer(head.model())
    head.step()
    assert head.receive(slow) == "late"
    assert head.round == 1


def test_the_largest_honest_sum_passes_and_a_larger_one_does_not(world):
    run = world.plan(client_rate=1.0, record_rate=1.0)
    head = world.server(run)
    size = len(head.weights)
    honest = np.zeros(size, np.float32)
    honest[0] = 12 * 0.5
    assert head.receive(Update(head.model().run, 0, 0, honest)) is None
    assert head.receive(Update(head.model().run, 1, 0, honest * np.float32(1.001))) == "large"


def test_local_noise_does_not_get_honest_clients_refused(world):
    run = world.plan(
        noise="local", noise_multiplier=5.0, client_rate=1.0, record_rate=1.0, rounds=6
    )
    head, clients = world.server(run), world.clients(run)
    for _ in range(6):
        world.one_round(head, clients)
    assert not head.refused


def test_the_server_restarts_from_its_ledger_and_spends_no_round_twice(world, tmp_path):
    run = world.plan()
    files = {"ledger": tmp_path / "server.ledger", "state": tmp_path / "server.state"}
    head = world.server(run, seed=None, **files)
    clients = world.clients(run, seed=None)
    world.one_round(head, clients)
    kept = head.weights.numpy().copy()
    # It dies after writing the ledger, before the model of the round was kept.
    head._ledger.release(1, clip_norm=0.5, noise_multiplier=1.0)
    head.close()
    again = Server.restart(run, world.sgd, **files)
    assert again.round == 2
    assert np.array_equal(again.weights.numpy(), kept)
    assert again.model().run == head.model().run
    for _ in range(4):
        world.one_round(again, clients)
    again.finish()
    assert ledger.read(files["ledger"]).released == 6
    assert [client.spent for client in clients] == [6] * 8  # the lost round is counted
    with pytest.raises(ValueError, match="6 planned rounds are over"):
        again.step()


def test_a_server_that_asks_again_after_a_restart_is_refused_by_those_who_answered(world, tmp_path):
    run = world.plan(client_rate=1.0)
    files = {"ledger": tmp_path / "server.ledger", "state": tmp_path / "server.state"}
    head = world.server(run, seed=None, **files)
    clients = world.clients(run, seed=None)
    assert head.receive(clients[0].answer(head.model())) is None
    head.close()
    again = Server.restart(run, world.sgd, **files)
    assert again.round == 0
    with pytest.raises(Refused):
        clients[0].answer(again.model())
    assert again.receive(clients[1].answer(again.model())) is None
    again.step()


def test_a_state_of_another_plan_or_a_seed_in_a_secret_run_is_refused(world, tmp_path):
    files = {"ledger": tmp_path / "server.ledger", "state": tmp_path / "server.state"}
    world.server(world.plan(), seed=None, **files).close()
    with pytest.raises(ValueError, match="state must be of the plan"):
        Server.restart(world.plan(record_rate=0.1), world.sgd, **files)
    with pytest.raises(ValueError, match="insecure_seed must not be used"):
        Server.restart(world.plan(), world.sgd, insecure_seed=3, **files)


def test_a_ledger_that_cannot_be_written_stops_the_answer_before_it_leaves(world, tmp_path):
    run = world.plan(client_rate=1.0)
    client = world.client(0, run, ledger=tmp_path / "c.ledger")
    client._ledger.close()
    with pytest.raises(ValueError, match="cannot be written"):
        client.answer(world.server(run).model())


def test_a_model_with_weights_that_are_not_finite_is_not_begun_with(world):
    with pytest.raises(ValueError, match="weights must be finite"):
        Server(world.plan(), np.array([np.nan], np.float32), world.sgd)
    with pytest.raises(
        ValueError, match="expected must be one number, or one for each of the 6 rounds, got 2"
    ):
        world.server(world.plan(), expected=[1.0, 2.0])


def test_a_malicious_model_cannot_make_a_client_send_more_than_its_bound(world):
    run = world.plan(client_rate=1.0, record_rate=1.0)
    client: Client = world.client(4, run)
    wild = np.full(client.dimension, 1e30, np.float32)
    values = client.answer(Model(bytes(16), 0, wild)).values
    assert np.isfinite(values).all()
    assert np.linalg.norm(values) <= run.longest(client.dimension)


KILLED = """
import sys, torch
from verax.federated import Embedded, Plan
torch.set_num_threads(1)
folder, going_on = sys.argv[1], sys.argv[2] == "again"
plan = Plan(
    clients=4, records=40, largest=10, client_rate=0.5, record_rate=0.5, rounds=40,
    noise_multiplier=1.0,
)
data = torch.zeros(40, 3), torch.zeros(40).long()
how = Embedded.restart if going_on else Embedded
run = how(plan, torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), data, [10] * 4,
          lambda p: torch.optim.SGD(p, 0.1), ledger=folder + "/ledger", state=folder + "/state")
print(run.round, flush=True)
run.run(lambda engine: print(engine.round, flush=True))
"""


def test_kill_9_and_go_on(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen([*command, "first"], stdout=subprocess.PIPE, text=True) as first:
        for line in first.stdout:
            if int(line) >= 5:
                first.kill()
                break
    known = ledger.read(tmp_path / "ledger").released
    assert 5 <= known < 40
    again = subprocess.run([*command, "again"], capture_output=True, text=True, check=True)
    rounds = [int(line) for line in again.stdout.split()]
    assert rounds == list(range(known, 41))
    found = ledger.read(tmp_path / "ledger")
    assert found.complete
    assert [event.kind for event in found.events] == ["resumed", "finished"]


@pytest.mark.parametrize("kind", ["chain", "other"])
def test_a_client_that_is_not_finite_counts_as_nothing_and_the_other_clients_as_ever(world, kind):
    """Where clients are clipped, many go through one pass."""
    run = world.plan(
        unit="client", client_rate=1.0, record_rate=1.0, noise_multiplier=0.0, rounds=1
    )
    x = world.x.clone()
    x[world.starts[4] + 2] = math.nan

    def ends_with(left_out, micro_batch):
        model = (
            world.make()
            if kind == "chain"
            else torch.nn.Sequential(world.make(), torch.nn.LayerNorm(3))
        )
        whole = Embedded(
            run,
            model,
            world.loss,
            (x, world.y),
            world.sizes,
            world.sgd,
            insecure_seed=5,
            micro_batch=micro_batch,
        )
        if left_out is None:
            whole.step()
        else:
            for i in set(range(8)) - {left_out}:
                start = int(world.starts[i])
                some = np.arange(start, start + int(world.sizes[i]))
                whole.server.add(whole._worker.total(whole._data.take(some), len(some)))
            whole.server.step()
        return whole.server.weights.numpy().copy()

    want = ends_with(4, 1024)
    for micro_batch in (1024, 9):
        np.testing.assert_allclose(ends_with(None, micro_batch), want, rtol=1e-5, atol=1e-6)


def test_a_record_that_is_not_finite_counts_as_nothing_wherever_it_is_found(world, monkeypatch):
    """Large models are added in pieces: those added before the fault must not count twice."""
    # the fewest records at once
    monkeypatch.setattr("verax.training.gradients.per_example._FIT", 1.0)
    run = world.plan(
        noise_multiplier=0.0, client_rate=1.0, record_rate=1.0, records=100, largest=100, clients=1
    )
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(3))
    y = torch.zeros(50, dtype=torch.int64)
    x[41] = math.nan
    kept = torch.arange(50) != 41

    def answer(records):
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)
        )  # no plain chain
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        client = Client(0, records, run, model, world.loss, insecure_seed=5)
        return client.contribution(0).copy()

    np.testing.assert_allclose(answer((x, y)), answer((x[kept], y[kept])), rtol=1e-5, atol=1e-6)
