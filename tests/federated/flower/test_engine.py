"""What the engine flower refuses; tests/cli/test_federate.py compares it with the embedded one."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("cryptography")
pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'verax[federated]'")

from verax.federated.flower.engine import LocalFlower


def test_many_clients_and_single_rounds_are_refused(world):
    plan = world.plan(clients=65, records=650)
    with pytest.raises(ValueError, match="clients must be at most 32 for the engine flower"):
        LocalFlower(plan, world.make(), world.loss, (world.x, world.y), world.sizes, world.sgd)
    engine = LocalFlower(
        world.plan(), world.make(), world.loss, (world.x, world.y), world.sizes, world.sgd
    )
    with pytest.raises(NotImplementedError, match="call run"):
        engine.step()
