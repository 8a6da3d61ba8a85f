"""A model's own randomness comes from secret seeds, and torch's generators stay."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed  # noqa: E402
from verax.federated import Embedded, Plan  # noqa: E402
from verax.training import PrivateTrainer  # noqa: E402

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(3))
Y = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(4))
CLIPPINGS = [Individual(10.0), Batch(10.0), Mixed(10.0, 2)]


class Masks(nn.Module):
    """Dropout in front, and what was dropped of the last batch of the right size."""

    def __init__(self, records):
        super().__init__()
        self.drop, self.layer, self.records, self.seen = (
            nn.Dropout(0.5),
            nn.Linear(6, 3),
            records,
            None,
        )

    def forward(self, x):
        dropped = self.drop(x)
        if len(x) == self.records and torch.is_grad_enabled():
            self.seen = (dropped != 0.0).detach()
        return self.layer(dropped)


def masks(clipping, rounds=1, seed=None, model=None):
    """Those of the last round of a run under a public seed, and what torch draws after it."""
    torch.manual_seed(0)
    model = model or Masks(24)
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        Mechanism(Deterministic(1, rounds), 1.0, clipping),
        insecure_seed=seed,
    )
    torch.manual_seed(0)
    for batch in trainer.batches((X, Y)):
        trainer.step(batch, nn.CrossEntropyLoss())
    return model.seen, torch.rand(3)


@pytest.mark.parametrize("clipping", CLIPPINGS[:2])
def test_a_public_seed_does_not_tell_who_is_dropped(clipping):
    torch.manual_seed(0)
    untouched = torch.rand(3)
    first, after = masks(clipping)
    second, _ = masks(clipping)
    assert not torch.equal(first, second)
    assert torch.equal(after, untouched)
    assert abs(float(first.float().mean()) - 0.5) < 0.25


@pytest.mark.parametrize("clipping", CLIPPINGS[:2])
def test_every_round_has_masks_of_its_own_and_a_seed_repeats_them(clipping):
    one, again, later = (masks(clipping, rounds, seed=7)[0] for rounds in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, later)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_so_do_models_of_known_layers(clipping):
    def trained(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3))
        model[0].weight.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        trainer = PrivateTrainer(
            model,
            optimizer,
            Mechanism(Deterministic(1, 2), 0.0, clipping, relation="replace"),
            insecure_seed=seed,
        )
        torch.manual_seed(0)
        for batch in trainer.batches((X.view(24, 1, 2, 3), Y)):
            trainer.step(batch, nn.CrossEntropyLoss())
        return model[3].weight.detach().clone()

    assert not torch.equal(trained(None), trained(None))
    assert torch.equal(trained(1), trained(1))


def test_resuming_a_seeded_run_repeats_its_masks(tmp_path):
    def runs(stop):
        torch.manual_seed(0)
        model = Masks(24)
        mechanism = Mechanism(Deterministic(1, 4), 1.0)
        trainer = PrivateTrainer(
            model, torch.optim.SGD(model.parameters(), 0.1), mechanism, insecure_seed=5
        )
        for batch in trainer.batches((X, Y)):
            trainer.step(batch, nn.CrossEntropyLoss())
            if trainer.rounds == stop:
                trainer.save(tmp_path / "state")
                trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism)
                trainer.load(tmp_path / "state", (X, Y))
                for later in trainer.batches((X, Y)):
                    trainer.step(later, nn.CrossEntropyLoss())
                break
        return model.layer.weight.detach()

    assert torch.equal(runs(2), runs(None))


def test_federated_clients_draw_in_secret_too():
    def runs():
        torch.manual_seed(0)
        model = Masks(24)
        plan = Plan(
            clients=1,
            records=24,
            largest=24,
            client_rate=1.0,
            record_rate=1.0,
            rounds=1,
            noise_multiplier=1.0,
        )
        engine = Embedded(
            plan, model, nn.CrossEntropyLoss(), (X, Y), [24], lambda p: torch.optim.SGD(p, 0.0)
        )
        torch.manual_seed(0)
        engine.run()
        return model.seen

    assert not torch.equal(runs(), runs())
