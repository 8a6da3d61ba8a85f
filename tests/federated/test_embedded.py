"""The embedded engine: the weights of the objects, with one clipping pass a round."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax import ledger  # noqa: E402
from verax.federated import Embedded, Plan  # noqa: E402
from verax.privacy.guarantee import Bracket  # noqa: E402
from verax.training import LocalSteps  # noqa: E402


def engine(world, run, seed=5, model=None, **options):
    options.setdefault("loss", world.loss)
    return Embedded(
        run,
        model or world.make(),
        options.pop("loss"),
        (world.x, world.y),
        world.sizes,
        world.sgd,
        insecure_seed=seed,
        **options,
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"noise_multiplier": 0.0},
        {"client_rate": 1.0, "record_rate": 1.0},
        {"client_rate": 0.05},
        {"unit": "client"},
        {"unit": "client", "bins": 2},
    ],
)
@pytest.mark.parametrize("seed", [5, 6])
def test_the_same_seed_gives_the_weights_of_the_objects(world, change, seed):
    run = world.plan(**change)
    head, clients = world.server(run, seed), world.clients(run, seed)
    for _ in range(run.rounds):
        world.one_round(head, clients)
    whole = engine(world, run, seed)
    whole.run()
    np.testing.assert_allclose(
        whole.server.weights.numpy(), head.weights.numpy(), rtol=2e-5, atol=2e-6
    )
    other = engine(world, run, seed + 10)
    other.run()
    assert np.abs(whole.server.weights.numpy() - other.server.weights.numpy()).max() > 1e-3


def test_local_steps_too(world):
    run, inner = (
        world.plan(unit="client", clip_norm=0.05),
        LocalSteps(lambda p: torch.optim.SGD(p, 0.5), steps=2),
    )
    head, clients = world.server(run), world.clients(run, inner=inner)
    for _ in range(run.rounds):
        world.one_round(head, clients)
    whole = engine(world, run, inner=inner)
    whole.run()
    np.testing.assert_allclose(
        whole.server.weights.numpy(), head.weights.numpy(), rtol=2e-5, atol=2e-6
    )


def test_all_records_of_a_round_go_through_one_pass(world):
    calls = []

    def loss(model, batch):
        calls.append(len(batch["y"]))
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    run = world.plan(client_rate=1.0, record_rate=1.0, rounds=4)
    whole = Embedded(
        run,
        world.make(),
        loss,
        {"x": world.x, "y": world.y},
        world.sizes,
        world.sgd,
        insecure_seed=5,
    )
    for _ in range(3):  # the model is also checked, in rounds 1, 2, 3, 5, 9 ...
        whole.step()
    calls.clear()
    whole.step()
    assert calls == [50]


@pytest.mark.parametrize(("noise", "factor"), [("local", 30.0), ("visible", 0.0), ("central", 1.0)])
def test_the_sum_of_all_clients_noises(world, noise, factor):
    clients = 900
    run = Plan(clients, 900, 1, 2.0**-60, 0.5, 2, noise_multiplier=2.0, noise=noise)
    model = torch.nn.Linear(300, 50, bias=False)
    torch.nn.init.zeros_(model.weight)
    data = torch.zeros(900, 300), torch.zeros(900).long()
    expected = run.expected
    whole = Embedded(
        run, model, world.loss, data, [1] * 900, lambda p: torch.optim.SGD(p, expected)
    )
    whole.step()
    assert float(model.weight.detach().std()) == pytest.approx(2.0 * factor, rel=0.03)


def test_the_model_is_trained_in_place_and_learns(world):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(600, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    run = Plan(60, 600, 10, 0.5, 0.5, 80, noise_multiplier=1.0)
    model = torch.nn.Linear(2, 2)
    rounds = []
    whole = Embedded(
        run,
        model,
        world.loss,
        (x, y),
        [10] * 60,
        lambda p: torch.optim.SGD(p, 1.0),
        insecure_seed=1,
    )
    whole.run(after=lambda engine: rounds.append(engine.round))
    assert rounds == list(range(1, 81))
    assert float((model(x).argmax(dim=1) == y).float().mean()) > 0.95


def test_it_goes_on_from_ledger_and_state(world, tmp_path):
    run = world.plan()
    files = {"ledger": tmp_path / "run.ledger", "state": tmp_path / "run.state"}
    first = engine(world, run, None, **files)
    first.step()
    first.step()
    weights = first.server.weights.numpy().copy()
    first.server.close()
    model = world.make()
    again = Embedded.restart(
        run, model, world.loss, (world.x, world.y), world.sizes, world.sgd, **files
    )
    assert again.round == 2
    assert np.array_equal(again.server.weights.numpy(), weights)
    assert np.array_equal(
        torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy(), weights
    )
    again.run()
    assert ledger.read(files["ledger"]).complete


def test_guarantees_range_from_the_smallest_to_the_largest_client(world):
    low, high = engine(world, world.plan()).guarantees()
    assert low.mechanism.mechanisms[0].sampler.records == 1
    assert high.mechanism.mechanisms[0].sampler.records == 12
    assert low.epsilon(1e-5).upper < high.epsilon(1e-5).upper


def test_the_fewest_records_never_cost_more_than_the_most(world, monkeypatch):
    whole = engine(world, world.plan())
    least, most = whole.epsilons(1e-5)
    assert least.upper < most.upper
    assert (least, most) == tuple(guarantee.epsilon(1e-5) for guarantee in whole.guarantees())
    rounded = [Bracket(2.31, 2.3205, "proved", "a", "b"), Bracket(2.3, 2.3201, "proved", "c", "d")]
    found = tuple(SimpleNamespace(epsilon=lambda delta, one=one: one) for one in rounded)
    monkeypatch.setattr(Embedded, "guarantees", lambda self: found)
    assert whole.epsilons(1e-5) == (Bracket(2.31, 2.3201, "proved", "a", "d"), rounded[1])


OWN = np.array([0.5, 0.1, 0.4, 0.3, 0.2, 0.5, 0.05, 0.35])


def own_rates(kind):
    """Rates of clients and of records, all below the plan's: for all rounds, or a row for each."""
    if kind == "clients":
        return OWN, OWN[::-1] * 0.8
    rows = np.linspace(1.0, 0.5, 6)[:, None]
    return OWN * rows, OWN[::-1] * 0.8 * rows[::-1]


@pytest.mark.parametrize("kind", ["clients", "rounds"])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_clients_with_rates_of_their_own(world, kind, unit):
    run = world.plan(unit=unit)
    p, q = own_rates(kind)
    every = [np.broadcast_to(rates, (6, 8)) for rates in (p, q)]
    amounts = every[0] * (every[1] * world.sizes if unit == "record" else 1.0)
    head = world.server(run, expected=amounts.sum(axis=1).tolist())
    clients = [
        world.client(
            i, run, client_rates=every[0][:, i].tolist(), record_rates=every[1][:, i].tolist()
        )
        for i in range(8)
    ]
    for _ in range(run.rounds):
        world.one_round(head, clients)
    whole = engine(world, run, client_rates=p, record_rates=q)
    whole.run()
    np.testing.assert_allclose(
        whole.server.weights.numpy(), head.weights.numpy(), rtol=2e-5, atol=2e-6
    )
    low, high = (guarantee.epsilon(1e-5).upper for guarantee in whole.guarantees())
    for i in (0, 4, 6):
        mine = whole.guarantee_of(i)
        assert mine.mechanism == clients[i].mechanism  # from its own numbers only
        assert low <= mine.epsilon(1e-5).upper * (1 + 1e-3)
        assert mine.epsilon(1e-5).upper <= high * (1 + 1e-3)
    assert high <= whole.server.guarantee.epsilon(1e-5).upper * (1 + 1e-3)


def test_rates_of_their_own_after_a_crash(world, tmp_path):
    files = {"ledger": tmp_path / "run.ledger", "state": tmp_path / "run.state"}
    own = dict(zip(("client_rates", "record_rates"), own_rates("rounds"), strict=True))
    first = engine(world, world.plan(), **own, **files)
    first.step()
    first.server.close()
    again = Embedded.restart(
        world.plan(),
        world.make(),
        world.loss,
        (world.x, world.y),
        world.sizes,
        world.sgd,
        insecure_seed=5,
        **own,
        **files,
    )
    assert again.server._expected == first.server._expected
    assert len(set(again.server._expected)) > 1
    again.run()


@pytest.mark.parametrize(
    ("change", "own", "message"),
    [
        (
            {},
            {"client_rates": [0.1] * 7},
            "one rate for each of the 8 clients, or a row of them for each of the 6 rounds",
        ),
        (
            {},
            {"record_rates": [0.41] * 8},
            "record_rates must lie between 2\\^-70 and the plan's record_rate, 0.4",
        ),
        ({}, {"client_rates": [float("nan")] * 8}, "client_rates must lie between"),
        ({}, {"client_rates": [0.0] * 8}, "client_rates must lie between"),
        (
            {"unit": "client", "bins": 2},
            {"client_rates": [0.5] * 8},
            "client_rates must not be given with bins",
        ),
    ],
)
def test_bad_rates(world, change, own, message):
    with pytest.raises(ValueError, match=message):
        engine(world, world.plan(**change), **own)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([50], "one number for each of the 8 clients"),
        ([6] * 8, "add up to the 50 records"),
        ([13, 7, 1, 5, 5, 5, 4, 10], "between 1 and the plan's largest, 12, got 1 to 13"),
    ],
)
def test_bad_sizes(world, sizes, message):
    with pytest.raises(ValueError, match=message):
        Embedded(world.plan(), world.make(), world.loss, (world.x, world.y), sizes, world.sgd)


def test_twenty_thousand_clients_are_not_touched_one_by_one(world):
    import sys

    clients = 20_000
    run = Plan(clients, 2 * clients, 2, 2.0**-40, 0.1, 3, noise_multiplier=1.0)
    data = torch.zeros(2 * clients, 2), torch.zeros(2 * clients).long()
    whole = Embedded(run, torch.nn.Linear(2, 2), world.loss, data, np.full(clients, 2), world.sgd)
    events = 0

    def count(*_):
        nonlocal events
        events += 1

    sys.setprofile(count)
    try:
        whole.step()
    finally:
        sys.setprofile(None)
    assert events < 5_000
