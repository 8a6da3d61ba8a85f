"""Asynchronous rounds over a network that delays, drops and reorders; clients that die."""

import collections
import heapq
import math
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from verax import (  # noqa: E402
    Mechanism,
    Poisson,
    ledger,
)
from verax.federated import (  # noqa: E402
    AsyncClient,
    AsyncServer,
    Client,
    Diminishing,
    Model,
    Receipt,
    Update,
    together,
    unpack,
)
from verax.federated import weights_of as flat  # noqa: E402
from verax.federated.asynchronous import ONE_BEHIND, Behind  # noqa: E402
from verax.privacy.renyi.filter import Budget, OverBudget  # noqa: E402
from verax.training import Ledger  # noqa: E402

STEP = Diminishing(0.02, beta=0.05)


class Network:
    """Carries bytes with random delays, drops and repetitions."""

    def __init__(self, seed, drop, twice):
        self.random, self.drop, self.twice = random.Random(seed), drop, twice
        self.now, self.queue, self.sent = 0.0, [], 0

    def send(self, to, message):
        for _ in range(1 + (self.random.random() < self.twice)):
            if self.random.random() >= self.drop:
                self.sent += 1
                heapq.heappush(
                    self.queue,
                    (self.now + self.random.expovariate(1.0), self.sent, to, message.pack()),
                )

    def deliver(self):
        self.now, _, to, content = heapq.heappop(self.queue)
        return to, unpack(content)


def federation(world, run, permitted=ONE_BEHIND, **options):
    clients = [AsyncClient(client, STEP, permitted) for client in world.clients(run, **options)]
    return AsyncServer(run, flat(world.make()), STEP, permitted), clients


def simulate(head, clients, net, permitted, made, turns=20_000):
    """Let clients work and send what is not acknowledged until all rounds are in."""
    paces = [net.random.uniform(0.05, 1.0) for _ in clients]
    for _ in range(turns):
        if head.done and all(client.done for client in clients):
            return
        i = net.random.randrange(len(clients))
        if clients[i].ready and net.random.random() < paces[i]:
            k, number = clients[i]._k, clients[i].round
            assert permitted(k, number)
            made.append(clients[i].work())
        for update in clients[i].outbox:
            net.send(-1, update)
        net.send(i, head.model())
        for _ in range(min(len(net.queue), 6)):
            to, message = net.deliver()
            if to >= 0:
                clients[to].receive(message)
                continue
            head.receive(message)
            net.send(message.client, head.receipt(message.client))
            if (model := head.fresh()) is not None:
                for other in range(len(clients)):
                    net.send(other, model)
    raise AssertionError("the federation never finished")


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.floats(0.0, 0.6), st.floats(0.0, 0.5), st.integers(0, 3))
def test_every_round_of_every_client_is_used_once_whatever_the_network_does(
    world, seed, drop, twice, behind
):
    run, permitted = world.plan(noise="local", client_rate=1.0, rounds=4), Behind(behind)
    head, clients = federation(world, run, permitted)
    start, made = head.model().weights.astype(np.float64), []
    simulate(head, clients, Network(seed, drop, twice), permitted, made)
    assert sorted((u.client, u.round) for u in made) == [(c, r) for c in range(8) for r in range(4)]
    want = start - sum(STEP(u.seen) * u.values.astype(np.float64) for u in made)
    np.testing.assert_allclose(head.model().weights, want, rtol=1e-5, atol=1e-6)
    assert set(head.refused) <= {"replayed"}
    assert head.round == 4


def test_model_k_is_broadcast_once_all_rounds_below_k_are_in(world):
    run = world.plan(noise="local", client_rate=1.0, clients=3)
    head, clients = federation(world, run)
    assert head.fresh().round == 0
    assert head.fresh() is None
    for client in clients:
        client.receive(head.model())
    firsts = [client.work() for client in clients]
    second = clients[0].work()  # one behind is permitted
    assert not clients[0].ready  # two are not
    assert head.receive(second) is None  # out of order, and used at once
    assert head.receive(firsts[0]) is None
    assert head.receive(firsts[1]) is None
    assert head.fresh() is None
    assert head.receive(firsts[2]) is None
    model = head.fresh()
    assert model.round == 1
    clients[0].receive(model)
    assert clients[0].ready
    assert np.array_equal(clients[0]._weights, model.weights)
    clients[0].receive(head.model())
    # late: an older model changes nothing
    clients[0].receive(Model(model.run, 0, np.zeros_like(model.weights)))
    assert np.array_equal(clients[0]._weights, model.weights)


def test_a_client_goes_on_from_its_own_update_until_a_newer_model_comes(world):
    run = world.plan(noise="local", client_rate=1.0, clients=1)
    head, (client,) = federation(world, run)
    client.receive(head.model())
    before = client._weights.copy()
    update = client.work()
    np.testing.assert_allclose(client._weights, before - STEP(0.0) * update.values, rtol=1e-6)


def test_receipts_clear_the_outbox_and_lost_ones_do_no_harm(world):
    run = world.plan(noise="local", client_rate=1.0, clients=2)
    head, clients = federation(world, run)
    clients[0].receive(head.model())
    update = clients[0].work()
    assert [u.round for u in clients[0].outbox] == [0]
    assert head.receive(update) is None
    assert head.receive(update) == "replayed"
    clients[0].receive(Receipt(head.model().run, 1, 1))  # somebody else's
    assert len(clients[0].outbox) == 1
    clients[0].receive(head.receipt(0))
    assert clients[0].outbox == []


def test_step_sizes_diminish_with_the_records_so_far(world):
    run = world.plan(noise="local", client_rate=1.0, rounds=3)
    head, clients = federation(world, run, Behind(5), record_rates=[0.5, 0.25, 1.0])
    clients[4].receive(head.model())
    seen = [clients[4].work().seen for _ in range(3)]
    assert seen == pytest.approx([0.0, 6.0, 9.0])
    assert [Diminishing(0.1, 0.5)(t) for t in seen] == pytest.approx([0.1, 0.1 / 4.0, 0.1 / 5.5])
    assert Diminishing(0.1, 0.5, root=True)(9.0) == pytest.approx(0.1 / 2.5)
    for bad in ({"first": 0.0}, {"first": 1.0, "beta": -1.0}):
        with pytest.raises(ValueError, match="must be"):
            Diminishing(**bad)


def test_declared_rates_are_priced_as_phases_and_the_ledger_counts_rounds(world, tmp_path):
    run = world.plan(noise="local", client_rate=1.0, rounds=3)
    client = AsyncClient(
        world.client(4, run, record_rates=[0.1, 0.1, 0.4], ledger=tmp_path / "c.ledger"),
        STEP,
        Behind(5),
    )
    client.receive(AsyncServer(run, flat(world.make()), STEP).model())
    client.work()
    client.work()
    found = ledger.read(tmp_path / "c.ledger")
    assert found.released == 2
    assert [m.sampler.record_rate for m in found.mechanism.mechanisms] == [0.1, 0.4]
    # Every client always sends: its sampling is Poisson's, priced apart.
    want = (
        (Mechanism(Poisson(0.1, 2), 1.0) + Mechanism(Poisson(0.4, 1), 1.0))
        .guarantee()
        .epsilon(1e-5)
    )
    assert client._client.guarantee.epsilon(1e-5).upper == pytest.approx(want.upper, rel=1e-6)


def test_rates_chosen_on_the_way_are_spent_from_a_budget_that_holds(world, tmp_path):
    run = world.plan(noise="local", client_rate=1.0, rounds=60, noise_multiplier=2.0)
    budget = Budget(1.0, 1e-5, path=tmp_path / "c.budget")
    inner = world.client(4, run, budget=budget)
    client = AsyncClient(
        inner, STEP, Behind(1000), record_rate=lambda i, behind: 0.1 if behind < 4 else 0.08
    )
    client.receive(AsyncServer(run, flat(world.make()), STEP, Behind(1000)).model())
    with pytest.raises(OverBudget):
        collections.deque((client.work() for _ in range(60)), maxlen=0)
    spent = client.round
    assert 5 < spent < 60
    assert [p.sampler.record_rate for p in budget.phases[:6]] == [0.1] * 4 + [0.08] * 2
    assert budget.static().upper < 1.0
    assert len(client.outbox) == spent
    again = world.client(4, run, budget=Budget.open(tmp_path / "c.budget"))
    assert again.spent == spent
    assert again.seen(5) == pytest.approx(inner.seen(5))
    assert "Rényi filter" in again.statement(1e-5)
    with pytest.raises(ValueError, match="budget and ledger must not both"):
        world.client(4, run, budget=budget, ledger=tmp_path / "x.ledger")
    with pytest.raises(ValueError, match="declare record_rates"):
        world.client(4, run).charge(0, 0.1)


def test_all_parties_in_one_process(world):
    run = world.plan(noise="local", client_rate=1.0, clients=3, rounds=4)

    def ends_with(behind, turns):
        head, clients = federation(world, run, Behind(behind))
        seen = []
        together(head, clients, turns, lambda server: seen.append(server.round))
        assert head.done
        assert seen == [1, 2, 3, 4]
        assert [client.round for client in clients] == [4, 4, 4]
        assert not head.refused
        return head.model().weights

    in_order = ends_with(0, None)
    # Nobody may be ahead: whatever the order, everybody works at the models that were broadcast.
    np.testing.assert_allclose(
        ends_with(0, [2, 2, 1, 0, 0, 1, 2] * 4), in_order, rtol=1e-5, atol=1e-6
    )
    ahead = ends_with(1, [0, 0, 0, 1, 2, 2] * 4)
    assert np.abs(ahead - in_order).max() > 1e-4  # who is ahead works at other models
    assert np.array_equal(ends_with(1, [0, 0, 0, 1, 2, 2] * 4), ahead)


def test_all_parties_in_one_process_do_not_wait_for_ever(world):
    run = world.plan(noise="local", client_rate=1.0)
    head, clients = federation(world, run, lambda k, i: k > i)
    with pytest.raises(ValueError, match="permitted must let a client work with model 0"):
        together(head, clients)


# --- faults ---------------------------------------------------------------------------------------


def test_updates_that_no_honest_client_can_have_sent_are_refused_and_counted(world):
    run = world.plan(noise="local", client_rate=1.0)
    head, clients = federation(world, run)
    clients[0].receive(head.model())
    good = clients[0].work()
    before = head.model().weights.copy()
    size = len(good.values)
    cases = {
        "another run": Update(bytes(16), 0, 0, good.values),
        "unknown client": Update(good.run, 8, 0, good.values),
        "early": Update(good.run, 0, 2, good.values),
        "shape": Update(good.run, 0, 0, good.values[:-1]),
        "not finite": Update(good.run, 0, 0, np.full(size, np.nan, np.float32)),
        "large": Update(good.run, 0, 0, np.full(size, 1e3, np.float32)),
    }
    for reason, update in cases.items():
        assert head.receive(update) == reason
    assert head.receive(good, sender=1) == "forged sender"
    assert head.receive(Update(good.run, 0, 10**9, good.values)) == "early"
    assert np.array_equal(head.model().weights, before)
    assert head.receive(good, sender=0) is None
    assert head.refused["early"] == 2
    assert sum(head.refused.values()) == 8


def test_a_dead_client_is_left_behind_and_the_rest_goes_on(world):
    run = world.plan(noise="local", client_rate=1.0, clients=3, rounds=2)
    head, clients = federation(world, run)
    for client in clients:
        client.receive(head.model())
    last = clients[2].work()
    for client in clients[:2]:
        head.receive(client.work())
        head.receive(client.work())
    assert not head.done
    head.leave(2)
    assert head.done
    assert head.receive(last) == "late"
    with pytest.raises(ValueError, match="client must be one of the 3 clients"):
        head.leave(7)


def test_a_client_that_died_between_counting_and_sending_fills_the_gap_with_nothing(
    world, tmp_path
):
    run, path = world.plan(noise="local", client_rate=1.0, clients=2), tmp_path / "c.ledger"
    head = AsyncServer(run, flat(world.make()), STEP)
    client = AsyncClient(world.client(1, run, seed=None, ledger=path), STEP)
    client.receive(head.model())
    sent, _ = client.work(), client.work()
    assert head.receive(sent) is None  # round 1 was counted, and its message dies with the client
    client._client._ledger.close()
    again = AsyncClient(world.client(1, run, seed=None, ledger=Ledger.open(path)), STEP)
    assert not again.done
    again.receive(head.model())
    again.receive(head.receipt(1))
    (filler,) = again.outbox
    assert (filler.round, filler.values.any()) == (1, False)
    assert head.receive(filler) is None
    assert again.round == 2  # nothing is done twice
    assert ledger.read(path).released == 2


def test_the_server_goes_on_from_its_state_without_losing_or_repeating_an_update(world, tmp_path):
    run, state = world.plan(noise="local", client_rate=1.0, clients=2), tmp_path / "server.state"
    head = AsyncServer(run, flat(world.make()), STEP, state=state)
    clients = [AsyncClient(client, STEP) for client in world.clients(run)]
    for client in clients:
        client.receive(head.model())
        assert head.receive(client.work()) is None
    ahead = clients[0].work()
    assert head.receive(ahead) is None
    again = AsyncServer.restart(run, STEP, state)
    assert again.round == head.round == 1
    assert np.array_equal(again.model().weights, head.model().weights)
    assert again.receive(ahead) == "replayed"
    assert again.receipt(0).below == 2
    clients[1].receive(again.fresh())
    assert again.receive(clients[1].work()) is None
    with pytest.raises(ValueError, match="state must be of the plan"):
        AsyncServer.restart(world.plan(noise="local"), STEP, state)


def test_models_that_cannot_be_used_are_ignored(world):
    run = world.plan(noise="local", client_rate=1.0)
    head, clients = federation(world, run)
    client, model = clients[0], head.model()
    client.receive(model)
    client.receive(Model(bytes(16), 5, model.weights))
    client.receive(Model(model.run, 5, np.full_like(model.weights, np.inf)))
    client.receive(Model(model.run, 5, model.weights[:3]))
    assert (client.ignored, client._k) == (3, 0)


@pytest.mark.parametrize("noise", ["central", "visible"])
def test_asynchronous_rounds_need_noise_of_every_client(world, noise):
    run = world.plan(noise=noise)
    with pytest.raises(ValueError, match="noise must be 'local' for asynchronous rounds"):
        AsyncServer(run, flat(world.make()), STEP)
    with pytest.raises(ValueError, match="noise must be 'local' for asynchronous rounds"):
        AsyncClient(world.client(0, run), STEP)


def test_it_learns_although_models_are_stale_and_messages_are_lost(world):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1000, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    run = world.plan(
        noise="local",
        client_rate=1.0,
        clients=5,
        records=1000,
        largest=200,
        record_rate=0.2,
        rounds=25,
        clip_norm=1.0,
    )
    step, permitted = Diminishing(0.05, beta=0.01, root=True), Behind(1)
    torch.manual_seed(0)
    clients = [
        AsyncClient(
            Client(
                i,
                (x[200 * i : 200 * i + 200], y[200 * i : 200 * i + 200]),
                run,
                torch.nn.Linear(2, 2),
                world.loss,
                insecure_seed=1,
            ),
            step,
            permitted,
        )
        for i in range(5)
    ]
    head = AsyncServer(run, np.zeros(6, np.float32), step, permitted)
    simulate(head, clients, Network(2, 0.2, 0.2), permitted, [])
    w = head.model().weights
    scores = x.numpy() @ w[:4].reshape(2, 2).T + w[4:]
    assert float((scores.argmax(axis=1) == y.numpy()).mean()) > 0.93
    assert math.isfinite(float(w.sum()))
