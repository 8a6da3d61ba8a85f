"""Data sets that give several records at once must not mix what is clipped apart."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch.utils.data import Dataset  # noqa: E402

from verax import ledger  # noqa: E402
from verax.federated import Client, Embedded, weights_of  # noqa: E402
from verax.training.checks.independence import MixedRecords  # noqa: E402


class AtOnce(Dataset):
    """Gives several records in one call, changed together."""

    def __init__(self, data, change):
        self.x, self.y = data
        self.change = change

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers):
        return list(zip(self.change(self.x[numbers]), self.y[numbers], strict=True))


def alone(x):
    return 2.0 * x


def mixed(x):
    return x - x.mean(0)


def client(world, run, change, number=4, **options):
    data = AtOnce(world.own(number), change)
    return Client(number, data, run, world.make(), world.loss, insecure_seed=5, **options)


def embedded(world, run, change, kind=Embedded, **options):
    data = AtOnce((world.x, world.y), change)
    return kind(
        run, world.make(), world.loss, data, world.sizes, world.sgd, insecure_seed=5, **options
    )


def test_a_client_whose_records_are_protected_must_not_mix_them(world, tmp_path):
    run = world.plan(client_rate=1.0)
    with pytest.raises(MixedRecords, match=r"__getitems__.*protect nobody"):
        client(world, run, mixed, ledger=tmp_path / "client.ledger")
    assert not (tmp_path / "client.ledger").exists()
    assert client(world, run, alone).answer(world.server(run).model()) is not None


def test_a_client_that_begins_to_mix_later_is_refused_in_a_round(world):
    run = world.plan(client_rate=1.0, record_rate=1.0)
    found, model = client(world, run, alone), world.server(run).model()
    found._data._one.__self__.change = mixed
    with pytest.raises(MixedRecords):
        found.answer(model)


def test_a_client_that_is_protected_as_a_whole_may_mix_its_records(world):
    run = world.plan(unit="client", client_rate=1.0, record_rate=1.0, noise_multiplier=0.0)
    found = client(world, run, mixed).answer(world.server(run).model())
    assert np.linalg.norm(found.values) <= 0.5 * (1.0 + 1e-5)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_records_of_many_clients_are_not_mixed_in_one_process(world, unit, tmp_path):
    run = world.plan(unit=unit, client_rate=1.0)
    path = tmp_path / "run.ledger"
    with pytest.raises(MixedRecords, match=r"__getitems__.*protect nobody"):
        embedded(world, run, mixed, ledger=path).run()
    assert ledger.read(path).released == 0
    apart = embedded(world, run, alone)
    apart.run()
    twice = Embedded(
        run,
        world.make(),
        world.loss,
        (alone(world.x), world.y),
        world.sizes,
        world.sgd,
        insecure_seed=5,
    )
    twice.run()
    np.testing.assert_array_equal(weights_of(apart.model), weights_of(twice.model))


def test_flower_on_one_host_refuses_before_anything_starts(world):
    pytest.importorskip("flwr")
    from verax.federated.flower.engine import LocalFlower

    with pytest.raises(MixedRecords):
        embedded(world, world.plan(), mixed, LocalFlower).run()
    own, _ = embedded(world, world.plan(unit="client"), mixed, LocalFlower)._own(4)
    np.testing.assert_allclose(own.mean(0).numpy(), np.zeros(6), atol=1e-6)
