"""A ServerApp's rounds: the same weights as the objects, lost clients, and what is refused."""

from itertools import count

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")
pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'verax[federated]'")

from flwr.app import Error, Message  # noqa: E402

from verax import ledger  # noqa: E402
from verax.federated import (  # noqa: E402
    AsyncClient,
    AsyncServer,
    Diminishing,
    Embedded,
    Server,
    Update,
    together,
    unpack,
    weights_of,
)
from verax.federated.asynchronous import Behind  # noqa: E402
from verax.federated.flower import Waiting, client_app, run_rounds, server_app  # noqa: E402
from verax.federated.flower.client import pieces_of, record_of  # noqa: E402
from verax.ledger.ledger import Ledger  # noqa: E402

SEED = 918_273_645
PACE = 1e-3
RULE = Diminishing(0.1, 0.1), Behind(0)


def one_by_one(here, seed):
    """What the objects end with in this process."""
    head = Server(here.plan, weights_of(here.make()), here.sgd, insecure_seed=seed)
    clients = [here.client(i, seed) for i in range(3)]
    for _ in range(here.plan.rounds):
        for client in clients:
            update = client.answer(head.model())
            if update is not None:
                assert head.receive(update) is None
        head.step()
    return head.weights.numpy()


@pytest.mark.parametrize("noise", ["central", "visible", "local"])
def test_the_same_weights_as_the_objects_and_nothing_secret_in_logs(
    parties, grid_of, tmp_path, noise, capfd
):
    here, last = parties.world({"noise": noise}), []
    clients = [here.client(i, SEED, ledger=tmp_path / f"{i}.ledger") for i in range(3)]
    grid = grid_of([client_app(c, pace=PACE, ended=last.append) for c in clients])
    head = Server(here.plan, weights_of(here.make()), here.sgd, insecure_seed=SEED)
    run_rounds(grid, head, grid.keys)
    found = head.weights.numpy()
    np.testing.assert_allclose(found, one_by_one(here, SEED), rtol=1e-6, atol=1e-7)
    if noise == "central":
        data, sizes = (here.x, here.y), parties.SIZES
        whole = Embedded(
            here.plan, here.make(), here.loss, data, sizes, here.sgd, insecure_seed=SEED
        )
        whole.run()
        np.testing.assert_allclose(found, whole.server.weights.numpy(), rtol=2e-5, atol=2e-6)
    assert head.refused == {}
    assert [model.round for model in last] == [4, 4, 4]
    for i in range(3):
        assert ledger.read(tmp_path / f"{i}.ledger").complete
    assert capfd.readouterr() == ("", "")


def test_asynchronous_rounds_end_with_the_weights_of_the_embedded_engine(parties, grid_of):
    """No client may be ahead, so each works at the broadcast models in any message order."""
    here, risen = parties.world({"noise": "local", "client_rate": 0.7}), []
    clients = [here.client(i, SEED) for i in range(3)]
    grid = grid_of([client_app(c, AsyncClient(c, *RULE), pace=PACE) for c in clients])
    head = AsyncServer(here.plan, weights_of(here.make()), *RULE)
    server_app(head, grid.keys)
    run_rounds(grid, head, grid.keys, after=lambda server: risen.append(server.round))
    twin = AsyncServer(here.plan, weights_of(here.make()), *RULE)
    twins = [AsyncClient(here.client(i, SEED), *RULE) for i in range(3)]
    together(twin, twins, turns=[2, 0, 1, 1] * 4)
    np.testing.assert_allclose(head.model().weights, twin.model().weights, rtol=1e-5, atol=1e-6)
    assert risen == sorted(set(risen))
    assert risen[-1] == 4
    assert head.refused == {}


def test_an_asynchronous_client_that_is_lost_is_left_behind(parties, grid_of):
    here = parties.world({"noise": "local"})
    clients = [here.client(i, SEED) for i in range(3)]
    grid = grid_of([client_app(c, AsyncClient(c, *RULE), pace=PACE) for c in clients])
    grid.away = {1}
    head = AsyncServer(here.plan, weights_of(here.make()), *RULE)
    run_rounds(grid, head, grid.keys, Waiting(lost=30.0, answers=8.0))
    assert head.done
    assert [clients[i].spent for i in range(3)] == [4, 0, 4]
    assert len([1 for client, kind in grid.asked if client == 1 and kind == "train"]) == 4


def test_a_client_that_never_answers_holds_up_one_round(parties, grid_of):
    here, seen = parties.world({"client_rate": 1.0, "rounds": 3}), []
    grid = grid_of([client_app(here.client(i, 3), pace=PACE) for i in range(3)])
    grid.away = {0}
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    waiting = Waiting(answers=50.0, farewell=0.0)
    run_rounds(grid, head, grid.keys, waiting, lambda s: seen.append((s.round, grid.clock.now)))
    (one, first), (two, second), (three, third) = seen
    assert (one, two, three) == (1, 2, 3)
    assert 50.0 <= first < 51.0
    assert second == first  # it was waited for once
    assert third == first
    assert head.refused == {}


def test_a_client_that_dies_and_comes_back_counts_the_rounds_that_it_missed(
    parties, grid_of, tmp_path
):
    here = parties.world({"client_rate": 1.0, "rounds": 6})
    clients = [here.client(i, None, ledger=tmp_path / f"{i}.ledger") for i in range(3)]
    grid = grid_of([client_app(c, pace=PACE) for c in clients])
    head = Server(here.plan, weights_of(here.make()), here.sgd, ledger=tmp_path / "server.ledger")

    def after(server):
        if server.round == 2:
            grid.away = {0}
            clients[0]._ledger.close()
        if server.round == 4:  # its SuperNode has stayed, or has connected anew
            book = Ledger.open(tmp_path / "0.ledger")
            assert book.released == 2
            grid.apps[0] = client_app(here.client(0, None, ledger=book), pace=PACE)
            grid.away = set()
            grid.nodes[0].last_activated_at = "again"

    run_rounds(grid, head, grid.keys, Waiting(answers=5.0), after)
    for name in ("server", "0", "1", "2"):
        book = ledger.read(tmp_path / f"{name}.ledger")
        assert book.complete
        assert book.released == 6
    assert head.refused == {}


def test_no_round_begins_without_a_client_and_errors_of_flower_are_no_answers(parties, grid_of):
    here, begun = parties.world({"rounds": 2, "client_rate": 1.0}), []
    grid = grid_of([client_app(here.client(i, 3), pace=PACE) for i in range(3)])
    grid.gone = {0, 1, 2}
    plain = grid.get_nodes

    def nodes():
        if grid.clock.now > 100.0:
            grid.gone = {0}
        return plain()

    def change(client, reply):
        if client == 1 and reply.metadata.message_type == "train":
            return Message(Error(0, "the client cannot be reached"), reply_to=grid.question)
        return reply

    grid.get_nodes, grid.change = nodes, change
    push = grid.push_messages

    def remembered(messages):
        (grid.question,) = messages
        begun.append(grid.clock.now)
        return push(messages)

    grid.push_messages = remembered
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    run_rounds(grid, head, grid.keys, Waiting(gather=10.0))
    assert begun[0] > 100.0
    assert head.round == 2
    assert {client for client, _ in grid.asked} == {1, 2}


def test_a_server_that_died_goes_on_after_its_restart(parties, grid_of, tmp_path):
    here = parties.world({"rounds": 6, "client_rate": 1.0})
    clients = [here.client(i, SEED, ledger=tmp_path / f"{i}.ledger") for i in range(3)]
    grid = grid_of([client_app(c, pace=PACE) for c in clients])
    files = {"ledger": tmp_path / "server.ledger", "state": tmp_path / "server.state"}
    head = Server(here.plan, weights_of(here.make()), here.sgd, insecure_seed=SEED, **files)

    def dies(server):
        if server.round == 3:
            server.close()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rounds(grid, head, grid.keys, after=dies)
    head = Server.restart(here.plan, here.sgd, insecure_seed=SEED, **files)
    assert head.round == 3
    run_rounds(grid, head, grid.keys)
    for name in ("server", "0", "1", "2"):
        book = ledger.read(tmp_path / f"{name}.ledger")
        assert book.complete
        assert book.released == 6
    kinds = [event.kind for event in ledger.read(tmp_path / "server.ledger").events]
    assert kinds == ["resumed", "finished"]


def test_what_a_node_may_send_is_refused_and_counted_and_the_round_goes_on(parties, grid_of):
    """NaN, a forged round or client, too large, of the wrong shape, repeated, no message."""
    here = parties.world(
        {"client_rate": 1.0, "record_rate": 1.0, "rounds": 6, "noise_multiplier": 0.0}
    )
    head, seen = Server(here.plan, weights_of(here.make()), here.sgd), []
    twin = Server(here.plan, weights_of(here.make()), here.sgd)
    clients = [here.client(i, 3) for i in range(3)]
    grid = grid_of([client_app(c, pace=PACE) for c in clients])
    nan, large = np.full(53, np.nan, np.float32), np.full(53, 1e3, np.float32)

    def spoilt(update):
        run, number, values = update.run, update.round, update.values
        return [
            [Update(run, 0, number, nan)],
            [Update(run, 0, number + 1, values)],
            [Update(run, 1, number, values)],
            [Update(run, 0, number, large)],
            [Update(run, 0, number, values[1:])],
            [update, update],
        ][number]

    def change(client, reply):
        pieces = pieces_of(reply)
        if not pieces:
            return reply  # of the farewell
        (good,) = map(unpack, pieces)
        if client == 0:
            more = [update.pack() for update in spoilt(good)]
            reply.content = record_of([b"no message", *more])
        if client or good.round == 5:
            twin.add(good.values)
        return reply

    def after(server):
        seen.append(server.round)
        twin.step()

    grid.change = change
    run_rounds(grid, head, grid.keys, after=after)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert head.refused == {
        "not finite": 1,
        "early": 1,
        "forged sender": 1,
        "large": 1,
        "shape": 1,
        "replayed": 1,
    }
    np.testing.assert_allclose(head.weights.numpy(), twin.weights.numpy(), rtol=1e-5, atol=1e-6)
    assert [client.spent for client in clients] == [6, 6, 6]


def test_what_has_come_by_the_end_of_a_round_is_used_however_late_the_server_looks(
    parties, grid_of
):
    """As after a suspension of the server's host: time is up before its first look."""
    here = parties.world({"client_rate": 1.0, "rounds": 1})
    grid = grid_of([client_app(here.client(i, 3), pace=PACE) for i in range(3)])
    grid.away = {2}
    head, used = Server(here.plan, weights_of(here.make()), here.sgd), []
    receive = head.receive
    head.receive = lambda update, sender: used.append(sender) or receive(update, sender=sender)
    looks = count()
    grid.clock.monotonic = lambda: 1000.0 * next(looks)
    run_rounds(grid, head, grid.keys, Waiting(answers=1.0, farewell=0.0))
    assert sorted(used) == [0, 1]


def test_strangers_are_neither_asked_nor_heard(parties, grid_of):
    here = parties.world({"rounds": 2, "client_rate": 1.0})
    apps = [client_app(here.client(i, 3), pace=PACE) for i in (0, 1, 2, 0)]
    grid = grid_of(apps)
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    run_rounds(grid, head, grid.keys[:3])
    assert {client for client, _ in grid.asked} == {0, 1, 2}
    assert head.refused == {}


def test_bad_keys_and_times(parties):
    here = parties.world({})
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    message = "keys must be 3 different public keys, one for each client, got 3 of which 2"
    with pytest.raises(ValueError, match=message):
        server_app(head, [b"a", b"a", b"b"])
    with pytest.raises(ValueError, match=message):
        run_rounds(None, head, [b"a", b"a", b"b"])
    with pytest.raises(ValueError, match="answers must be"):
        Waiting(answers=0.0)
    with pytest.raises(ValueError, match="farewell must be"):
        Waiting(farewell=-1.0)
