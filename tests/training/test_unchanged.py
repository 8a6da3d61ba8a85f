"""Weights and buffers that a forward pass changes where no noise hides it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Shuffle  # noqa: E402
from verax.training import LocalSteps, PrivateTrainer  # noqa: E402

torch.set_num_threads(1)
MADE = torch.Generator().manual_seed(3)
X, Y = torch.randn(12, 6, generator=MADE), torch.randint(0, 3, (12,), generator=MADE)
TOKENS = torch.randint(0, 5, (12, 4), generator=MADE)
CLIPPINGS = [Individual(0.5), Batch(0.5), Mixed(0.5, 3)]


def trained(model, data, clipping, rounds=1, **options):
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.0), Mechanism(Deterministic(1, rounds), 1.0, clipping),
        insecure_seed=1, **options,
    )  # fmt: skip
    for batch in trainer.batches(data):
        trainer.step(batch, nn.CrossEntropyLoss())
    return trainer


class Remembers(nn.Module):
    """Keeps something in a buffer that its output does not use."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.what = nn.Linear(6, 3), what
        self.register_buffer("kept", torch.zeros(6))

    def forward(self, x):
        if self.what == "mean":
            self.kept.mul_(0.9).add_(0.1 * x.detach().mean(0))
        elif self.what == "another mean":
            self.kept = 0.9 * self.kept + 0.1 * x.detach().mean(0)
        elif self.what == "count":
            self.kept += 1.0
        return self.layer(x)


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("what", ["mean", "another mean"])
def test_buffers_that_follow_the_data_are_refused(clipping, what):
    with pytest.raises(ValueError, match=r"the buffer kept is changed .* according to the data"):
        trained(nn.Sequential(nn.Identity(), Remembers(what))[1], (X, Y), clipping)
    with pytest.raises(ValueError, match=r"the buffer 1\.kept is changed"):
        trained(nn.Sequential(nn.Tanh(), Remembers(what)), (X, Y), clipping)


def test_a_batch_of_one_record_is_enough():
    with pytest.raises(ValueError, match="the buffer kept is changed"):
        trained(Remembers("mean"), (X[:1], Y[:1]), Individual(0.5))


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_buffers_that_change_whatever_the_data_are_kept(clipping):
    model = Remembers("count")
    trained(model, (X, Y), clipping, rounds=3)
    assert bool((model.kept >= 3).all())
    nothing = Remembers("nothing")
    trained(nothing, (X, Y), clipping)
    assert not bool(nothing.kept.any())


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_spectral_norm_iterates_on_the_weights_alone(clipping):
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))
    trained(nn.Sequential(layer), (X, Y), clipping, rounds=3)


class Bag(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.last = embedding, nn.Linear(4, 3)

    def forward(self, tokens):
        return self.last(self.embedding(tokens).reshape(len(tokens), -1, 4).mean(1))


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_shortened_in_place_show_which_tokens_occur(kind, clipping):
    model = Bag(kind(10, 4, max_norm=0.5))
    before = model.embedding.weight.detach().clone()
    with pytest.raises(ValueError, match=r"embedding \(Embedding(Bag)?\) has max_norm=0.5"):
        trained(model, (TOKENS, Y), clipping)
    assert torch.equal(model.embedding.weight, before)
    trained(Bag(kind(10, 4)), (TOKENS, Y), clipping)


class Renormalises(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(1.0 + 1e-3 * x.mean())
        return x @ self.weight.t()


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_weights_that_the_forward_pass_changes_are_refused(clipping):
    with pytest.raises(ValueError, match="weight was changed by the model's forward pass"):
        trained(Renormalises(), (X, Y), clipping)


@pytest.mark.parametrize("clipping", CLIPPINGS[1:])
def test_what_an_inner_algorithm_does_to_the_weights_is_undone(clipping):
    def moves(model, losses, batch, records, parameters):
        before = [p.detach().clone() for p in parameters]
        local = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            local.zero_grad()
            losses(model, batch).mean().backward()
            local.step()
        return [old - p.detach() for old, p in zip(before, parameters, strict=True)]

    def weights(inner):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        model[0].bias.requires_grad_(False)
        start = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
        trainer = PrivateTrainer(
            model, optimizer, Mechanism(Shuffle(2), 1.0, clipping), inner=inner, insecure_seed=1
        )  # fmt: skip
        for batch in trainer.batches((X, Y)):
            trainer.step(batch, nn.CrossEntropyLoss())
        assert torch.equal(model[0].bias, start[1])
        assert all(p.grad is None for p in model.parameters())
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(weights(moves), weights(LocalSteps(lambda p: torch.optim.SGD(p, 0.5), 3)))


def test_an_inner_algorithm_that_fails_leaves_the_weights_alone():
    def fails(model, losses, batch, records, parameters):
        parameters[0].data.add_(1.0)
        raise KeyError("no")

    model = nn.Linear(6, 3)
    before = model.weight.detach().clone()
    with pytest.raises(KeyError):
        trained(model, (X, Y), Batch(0.5), inner=fails)
    assert torch.equal(model.weight, before)
