"""Clients and a server, round by round: what is sent, released, and divided by."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch.nn import functional  # noqa: E402

from verax import ledger  # noqa: E402
from verax.federated import Client, Model, Refused, Server, Update, put_weights, weights_of  # noqa: E402
from verax.federated.client import taking_part, used  # noqa: E402
from verax.federated.coins import Coins  # noqa: E402
from verax.randomness import Source  # noqa: E402
from verax.training import Ledger, LocalSteps  # noqa: E402


def clipped_sum(world, model, records, norm):
    total = np.zeros(len(weights_of(model)))
    for i in records:
        loss = functional.cross_entropy(model(world.x[i : i + 1]), world.y[i : i + 1])
        g = torch.cat(
            [v.reshape(-1) for v in torch.autograd.grad(loss, list(model.parameters()))]
        ).numpy()
        total += g * min(1.0, norm / np.linalg.norm(g))
    return total


def sampled(world, run, number, seed=5):
    """The records that the seed's coins choose, worked out apart."""
    coins = Coins(Source.insecure(seed).spawn("lots"))
    here = taking_part(coins, run, number, np.arange(8), run.client_rate)
    return here, used(coins, run.record_rate, number, here, world.sizes[here], world.starts[here])


def test_weights_there_and_back(world):
    model = world.make()
    flat = weights_of(model)
    put_weights(model, flat + 1.0)
    assert np.array_equal(weights_of(model), flat + 1.0)


def test_a_round_without_noise_is_the_clipped_sum_over_the_expected_size(world):
    run = world.plan(noise_multiplier=0.0)
    head, clients = world.server(run), world.clients(run)
    before = head.weights.numpy().copy()
    model = world.make()
    want = clipped_sum(world, model, sampled(world, run, 0)[1], 0.5) / (0.5 * 0.4 * 50)
    world.one_round(head, clients)
    np.testing.assert_allclose(head.weights.numpy(), before - 0.3 * want, rtol=1e-4, atol=1e-6)


def test_clients_that_stay_away_send_nothing_and_rates_are_as_planned(world):
    run = world.plan(noise_multiplier=0.0)
    head, clients = world.server(run), world.clients(run)
    here, _ = sampled(world, run, 0)
    assert [h.number for h in clients if h.answer(head.model()) is not None] == here.tolist()


def test_a_clients_aggregate_is_clipped_where_clients_are_protected(world):
    run = world.plan(
        unit="client", noise_multiplier=0.0, client_rate=1.0, record_rate=1.0, clip_norm=0.01
    )
    head = world.server(run)
    for client in world.clients(run):
        values = client.answer(head.model()).values
        assert np.linalg.norm(values) == pytest.approx(0.01, rel=1e-3)
        assert head.receive(Update(head.model().run, client.number, 0, values)) is None


def test_local_steps_move_a_client_by_at_most_the_clip_norm(world):
    run = world.plan(unit="client", noise_multiplier=0.0, client_rate=1.0, clip_norm=0.02)
    inner = LocalSteps(lambda p: torch.optim.SGD(p, 0.5), steps=3)
    head = world.server(run)
    norms = [np.linalg.norm(h.answer(head.model()).values) for h in world.clients(run, inner=inner)]
    assert max(norms) == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize("noise", ["central", "local", "visible"])
def test_who_adds_which_noise(world, noise):
    wide = torch.nn.Linear(400, 50, bias=False)  # 20,000 coordinates tell a standard deviation
    run = world.plan(noise=noise, client_rate=2.0**-60, noise_multiplier=3.0)
    client = Client(0, (torch.zeros(1, 400), torch.zeros(1).long()), run, wide, world.loss)
    head = Server(run, weights_of(wide) * 0.0, lambda p: torch.optim.SGD(p, 1.0), expected=1.0)
    answer = client.answer(head.model())
    assert (answer is not None) == (noise == "local")
    if answer is not None:  # away, and yet it sends
        assert np.std(answer.values) == pytest.approx(3.0 * 0.5, rel=0.03)
        assert head.receive(answer) is None
    head.step()
    spread = float(head.weights.std())
    assert spread == pytest.approx(0.0 if noise == "visible" else 1.5, rel=0.03)


def test_an_absent_clients_message_looks_like_any_other(world):
    run = world.plan(noise="local", client_rate=0.5, noise_multiplier=2.0)
    head, clients = world.server(run), world.clients(run)
    answers = [client.answer(head.model()) for client in clients]
    assert len({len(a.pack()) for a in answers}) == 1
    assert all(np.isfinite(a.values).all() and a.values.any() for a in answers)


def test_two_clients_of_one_seed_have_different_noise_and_two_of_none_different_everything(world):
    run = world.plan(noise="local", client_rate=2.0**-60)
    head = world.server(run)
    a, b = (world.client(i, run).answer(head.model()).values for i in (0, 1))
    assert not np.array_equal(a, b)
    a, b = (world.client(0, run, seed=None).answer(head.model()).values for _ in range(2))
    assert not np.array_equal(a, b)


# --- ledgers --------------------------------------------------------------------------------------


def test_every_round_is_counted_whether_or_not_the_client_took_part(world, tmp_path):
    run = world.plan()
    clients = [world.client(i, run, ledger=tmp_path / f"{i}.ledger") for i in range(8)]
    head = world.server(run, ledger=tmp_path / "server.ledger")
    for _ in range(run.rounds):
        world.one_round(head, clients)
    for client in clients:
        client.finish()
    head.finish()
    files = [tmp_path / f"{i}.ledger" for i in range(8)]
    assert [ledger.read(f).released for f in files] == [6] * 8
    sizes = {len(f.read_bytes()) for f in files}
    # nothing but the number of records, in the first line, differs
    assert max(sizes) - min(sizes) <= 2
    assert ledger.read(tmp_path / "server.ledger").complete


def test_missed_rounds_are_charged_and_none_is_answered_twice(world, tmp_path):
    run = world.plan()
    client = world.client(1, run, ledger=tmp_path / "c.ledger")
    model = world.server(run).model()
    client.answer(Model(model.run, 3, model.weights))
    assert client.spent == 4
    assert ledger.read(tmp_path / "c.ledger").released == 4
    for number in (0, 3):
        with pytest.raises(Refused, match="to repeat one would cost again"):
            client.answer(Model(model.run, number, model.weights))
    with pytest.raises(Refused, match="beyond the 6 planned rounds"):
        client.answer(Model(model.run, 6, model.weights))
    assert client.spent == 4


def test_a_client_refuses_models_that_are_not_for_it_before_it_spends_anything(world):
    run = world.plan()
    client, model = world.client(1, run), world.server(run).model()
    client.answer(model)
    for bad in (
        Model(b"another run 1234", 1, model.weights),
        Model(model.run, 1, model.weights[:-1]),
        Model(model.run, 1, np.full_like(model.weights, np.nan)),
    ):
        with pytest.raises(Refused):
            client.answer(bad)
    assert client.spent == 1


def test_a_client_goes_on_from_its_ledger(world, tmp_path):
    run, path = world.plan(), tmp_path / "c.ledger"
    head = world.server(run)
    client = world.client(4, run, seed=None, ledger=path)
    client.answer(head.model())
    client._ledger.close()  # dies
    again = world.client(4, run, seed=None, ledger=Ledger.open(path))
    assert again.spent == 1
    with pytest.raises(Refused, match="round 0 is spent"):
        again.answer(head.model())
    head.step()
    again.answer(head.model())
    assert ledger.read(path).released == 2


def test_ledgers_of_other_runs_are_refused(world, tmp_path):
    path = tmp_path / "c.ledger"
    world.client(4, world.plan(), seed=None, ledger=path)._ledger.close()
    with pytest.raises(ValueError, match="ledger must declare what this client runs"):
        world.client(4, world.plan(record_rate=0.5), ledger=Ledger.open(path))
    with pytest.raises(ValueError, match="insecure_seed must not be used"):
        world.client(4, world.plan(), seed=1, ledger=Ledger.open(path))


def test_own_rates_have_an_own_guarantee(world):
    run = world.plan(noise_multiplier=2.0)
    usual, rare = (
        world.client(3, run),
        world.client(3, world.plan(noise_multiplier=2.0, client_rate=0.05)),
    )
    assert rare.guarantee.epsilon(1e-4).upper < usual.guarantee.epsilon(1e-4).upper
    rates = [0.4] * 3 + [0.01] * 3
    varied = world.client(3, run, record_rates=rates)
    assert varied.guarantee.epsilon(1e-4).upper < usual.guarantee.epsilon(1e-4).upper
    assert varied.seen(4) == pytest.approx(0.5 * 5 * 1.21)


def test_statements_say_what_holds_and_that_a_seed_is_not_private(world):
    run = world.plan(client_rate=1.0)
    text = world.client(3, run).statement(1e-5)
    assert "NOT private" in text
    assert "server is trusted" in text
    assert "NOT private" not in world.client(3, run, seed=None).statement(1e-5)
    assert "NOT private" in world.server(run).statement(1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"records": 3}, "records must be at least the client's own number"),
        ({"records": 13}, "at most the plan's largest, 12"),
        ({"record_rates": [0.1]}, "one rate for each of the 6 rounds"),
    ],
)
def test_bad_clients(world, options, message):
    with pytest.raises(ValueError, match=message):
        world.client(4, world.plan(), **options)
    with pytest.raises(ValueError, match="number must be a whole number"):
        world.client(0, world.plan()).__class__(
            8, world.own(0), world.plan(), world.make(), world.loss
        )


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "got LBFGS"),
        (lambda p: None, "optimizer must be an optimizer .* got None"),
        (
            torch.optim.SGD([torch.zeros(1)], 0.1),
            r"must be a function from parameters .* an optimizer \(SGD\)",
        ),
        (0.1, "must be a function from parameters"),
    ],
)
def test_bad_optimizers_of_a_server(world, optimizer, message):
    with pytest.raises(ValueError, match=message):
        Server(world.plan(), weights_of(world.make()), optimizer)


def test_what_a_client_cannot_compute_is_refused_before_the_first_round(world):
    by_client = world.plan(unit="client")
    with pytest.raises(ValueError, match="inner must be LocalSteps"):
        world.client(4, by_client, inner=torch.optim.SGD)
    with pytest.raises(ValueError, match="model must be the module itself"):
        Client(4, world.own(4), by_client, torch.nn.DataParallel(world.make()), world.loss)
    x, y = world.own(4)
    client = Client(4, {"x": x, "y": y}, world.plan(client_rate=1.0), world.make(), world.loss)
    with pytest.raises(ValueError, match="loss must be a function of model and batch"):
        client.rehearse()


def test_a_client_that_remembers_its_last_round_is_refused(world):
    class Remembers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.mean = torch.nn.Linear(6, 3), 0.0

        def forward(self, x):
            y, self.mean = self.layer(x) + self.mean, self.layer(x).detach().mean(0)
            return y

    run = world.plan(unit="client", client_rate=1.0, record_rate=1.0)
    client = Client(4, world.own(4), run, Remembers(), world.loss, insecure_seed=5)
    model = Server(run, weights_of(Remembers()), world.sgd, insecure_seed=5).model()
    with pytest.raises(ValueError, match="depend on earlier batches"):
        client.answer(model)


# --- records that cannot be clipped ---------------------------------------------------------------


def test_a_record_that_is_not_finite_counts_as_nothing_and_moves_no_other(world):
    run = world.plan(noise_multiplier=0.0, client_rate=1.0, record_rate=1.0)
    x, y = world.own(4)
    bad = x.clone()
    bad[5] = float("inf")
    model = world.server(run).model()
    for micro_batch in (3, 256):
        client = Client(
            4, (bad, y), run, world.make(), world.loss, micro_batch=micro_batch, insecure_seed=5
        )
        keep = [i for i in range(12) if i != 5]
        want = Client(4, (x[keep], y[keep]), run, world.make(), world.loss, insecure_seed=5).answer(
            model
        )
        np.testing.assert_allclose(client.answer(model).values, want.values, rtol=1e-4, atol=1e-6)


# --- secrets --------------------------------------------------------------------------------------


def test_nothing_secret_is_shown(world, tmp_path):
    run = world.plan()
    client = world.client(4, run, seed=None, ledger=tmp_path / "c.ledger")
    head = world.server(run, seed=None, state=tmp_path / "state")
    world.one_round(head, [client])
    shown = repr(vars(client)) + repr(vars(head)) + (tmp_path / "c.ledger").read_text()
    for source in (client._noise, head._noise):
        assert source.state()["key"] not in shown
    held = torch.load(tmp_path / "state", weights_only=True)
    assert set(held) == {
        "plan",
        "run",
        "rounds",
        "weights",
        "optimizer",
        "optimizer_kind",
        "settings",
    }
    assert not re.search("seed|key|coins", " ".join(held))


@pytest.mark.parametrize("stop", range(5))
def test_whoever_restarts_within_an_epoch_of_bins_has_no_second_turn(world, stop):
    """The epoch's picks are lost with the old key: the rest of it is silent, later ones are not."""
    run = world.plan(unit="client", bins=3, client_rate=1.0 / 3.0)
    before, after = Coins(Source.insecure(1)), Coins(Source.insecure(2), since=stop)
    everybody = np.arange(8)
    turns = [
        taking_part(
            before if number < stop else after, run, number, everybody, run.client_rate
        ).tolist()
        for number in range(run.rounds)
    ]
    for epoch in range(2):
        had = [client for turn in turns[3 * epoch : 3 * epoch + 3] for client in turn]
        assert len(had) == len(set(had))
    assert all(turn == [] for turn in turns[stop : -(-stop // 3) * 3])
    later = [client for turn in turns[-(-stop // 3) * 3 :] for client in turn]
    assert sorted(later) == sorted(everybody.tolist() * (2 - -(-stop // 3)))


def test_a_client_that_goes_on_from_its_ledger_knows_that_its_key_is_new(world, tmp_path):
    run = world.plan(unit="client", bins=3, client_rate=1.0 / 3.0)
    first = Client(0, world.own(0), run, world.make(), world.loss, ledger=tmp_path / "a.ledger")
    first.charge(0)
    assert first._coins.since == 0
    first._ledger.close()
    again = Client(
        0, world.own(0), run, world.make(), world.loss, ledger=Ledger.open(tmp_path / "a.ledger")
    )
    assert again._coins.since == 1
    assert again.contribution(1) is None
    assert again.contribution(2) is None
