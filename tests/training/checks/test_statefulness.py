"""Weights and buffers that a forward pass changes where no noise hides it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Shuffle  # noqa: E402
from verax.training import LocalSteps, PrivateTrainer  # noqa: E402
from verax.training.clipping.local_update import MeanGradient  # noqa: E402

torch.set_num_threads(1)
MADE = torch.Generator().manual_seed(3)
X, Y = torch.randn(12, 6, generator=MADE), torch.randint(0, 3, (12,), generator=MADE)
TOKENS = torch.randint(0, 5, (12, 4), generator=MADE)
CLIPPINGS = [Individual(0.5), Batch(0.5), Mixed(0.5, 3)]


def trained(model, data, clipping, rounds=1, **options):
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        Mechanism(Deterministic(1, rounds), 1.0, clipping),
        insecure_seed=1,
        **options,
    )
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


def test_buffers_are_looked_at_under_an_inner_algorithm_of_verax_too():
    with pytest.raises(ValueError, match="the buffer kept is changed"):
        trained(Remembers("mean"), (X, Y), Batch(0.5), inner=MeanGradient())


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
        )
        for batch in trainer.batches((X, Y)):
            trainer.step(batch, nn.CrossEntropyLoss())
        assert torch.equal(model[0].bias, start[1])
        assert all(p.grad is None for p in model.parameters())
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(
        weights(moves), weights(LocalSteps(lambda p: torch.optim.SGD(p, 0.5), 3))
    )


def test_an_inner_algorithm_that_fails_leaves_the_weights_alone():
    def fails(model, losses, batch, records, parameters):
        parameters[0].data.add_(1.0)
        raise KeyError("no")

    model = nn.Linear(6, 3)
    before = model.weight.detach().clone()
    with pytest.raises(KeyError):
        trained(model, (X, Y), Batch(0.5), inner=fails)
    assert torch.equal(model.weight, before)


class Keeps(nn.Module):
    """Keeps something of a batch in one of many ways."""

    def __init__(self, way):
        super().__init__()
        self.layer, self.way, self.rounds = nn.Linear(6, 3), way, 0
        self.register_buffer("kept", torch.zeros(6))
        self.register_buffer("begun", torch.tensor(False))
        self.register_buffer("nothing", None)
        self.frozen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.flag = False

    def forward(self, x):
        self.rounds += 1
        data = x.detach()
        getattr(self, self.way)(data)
        return self.layer(x)

    def largest(self, x):
        self.kept.copy_(torch.maximum(self.kept, x.amax(0)))

    def once(self, x):
        if not self.begun:
            self.kept.copy_(x.mean(0))
            self.begun.fill_(True)

    def once_by_a_flag(self, x):
        if not self.flag:
            self.kept.copy_(x.mean(0))
            self.flag = True

    def by_data(self, x):
        self.kept.data.mul_(0.9).add_(0.1 * x.mean(0))

    def new(self, x):
        if not hasattr(self, "fresh"):
            self.register_buffer("fresh", x.mean(0))

    def filled(self, x):
        if self.nothing is None:
            self.nothing = x.mean(0)

    def child(self, x):
        if not hasattr(self, "inside"):
            self.inside = nn.Module()
            self.inside.register_buffer("mean", x.mean(0))

    def later(self, x):
        if self.rounds < 8:
            self.kept += 1.0
        else:
            self.kept.copy_(x.mean(0))

    def frozen_by_data(self, x):
        self.frozen.data.copy_(x.mean(0))

    def layer_by_data(self, x):
        self.layer.bias.data.add_(1e-3 * x.mean())


WAYS = [
    "largest",
    "once",
    "once_by_a_flag",
    "by_data",
    "new",
    "filled",
    "child",
    "frozen_by_data",
    "layer_by_data",
    "later",
]


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_data_is_kept_in_any_way(way, clipping):
    model = Keeps(way)
    if way == "once_by_a_flag" and not isinstance(clipping, Batch):
        # the search for mixing, or the first of several passes, was undone
        trained(model, (X, Y), clipping)
        assert not bool(model.kept.any())
        return
    # the second is torch.func's own
    with pytest.raises((ValueError, RuntimeError), match=r"forward pass|escape"):
        trained(model, (X, Y), clipping, rounds=24)
    assert model.layer.weight.grad is None


def test_actnorm_is_refused():
    """Its first batch becomes weights, through .data."""

    class ActNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.zeros(6)), nn.Linear(6, 3)
            self.register_buffer("done", torch.tensor(0))

        def forward(self, x):
            if not self.done:
                self.shift.data.copy_(-x.detach().mean(0))
                self.done.fill_(1)
            return self.layer(x + self.shift)

    with pytest.raises(ValueError, match="shift was changed by the model's forward pass"):
        trained(ActNorm(), (X, Y), Batch(0.5))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_torchscript_goes_on(clipping):
    model = torch.jit.script(nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)))
    trained(model, (X, Y), clipping, rounds=3)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norm_is_not_taken_for_mixing(norm):
    for seed in range(10):
        torch.manual_seed(seed)
        trained(
            nn.Sequential(norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)),
            (X, Y),
            Individual(0.5),
            rounds=2,
        )


def test_what_an_inner_algorithm_does_to_buffers_and_places_is_undone():
    def leaks(model, losses, batch, records, parameters):
        mean = batch[0].mean(0)
        model.kept.add_(mean)
        model.register_buffer("leak", mean)
        model.other = nn.Linear(2, 2)
        model.layer.weight = nn.Parameter(torch.ones(3, 6))
        model.layer.bias.requires_grad_(False)
        return [torch.ones_like(p) for p in parameters]

    model = Remembers("nothing")
    weight, keys = model.layer.weight, list(model.state_dict())
    trained(model, (X, Y), Batch(0.5), inner=leaks)
    assert model.layer.weight is weight
    assert list(model.state_dict()) == keys
    assert not bool(model.kept.any())
    assert model.layer.bias.requires_grad


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_a_local_optimizer_that_remembers_is_refused(kind, options):
    model = nn.Linear(6, 3)
    kept = kind(model.parameters(), **options)
    with pytest.raises(
        ValueError,
        match=rf"made anew for every clip-group, got one \({kind.__name__}\) for several",
    ):
        trained(model, (X, Y), Mixed(0.5, 3), inner=LocalSteps(lambda p: kept))
    assert not any(
        float(held.get("step", 0)) or "momentum_buffer" in held for held in kept.state.values()
    )
