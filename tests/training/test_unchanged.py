"""Weights and buffers that a forward pass changes where no noise hides it, and what is carried from batch to batch."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Shuffle  # noqa: E402
from verax.training import LocalSteps, PrivateTrainer  # noqa: E402
from verax.training.clipped import Clipper, MeanGradient  # noqa: E402
from verax.training.flat import Flat  # noqa: E402
from verax.training.losses import PerRecord  # noqa: E402

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
    "largest", "once", "once_by_a_flag", "by_data", "new", "filled", "child", "frozen_by_data", "layer_by_data",
    "later",
]  # fmt: skip


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_data_is_kept_in_any_way(way, clipping):
    model = Keeps(way)
    if way == "once_by_a_flag" and not isinstance(clipping, Batch):
        trained(model, (X, Y), clipping)  # the search for mixing, or the first of several passes, was undone
        assert not bool(model.kept.any())
        return
    with pytest.raises((ValueError, RuntimeError), match=r"forward pass|escape"):  # the second is torch.func's own
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
        trained(nn.Sequential(norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)), (X, Y), Individual(0.5), rounds=2)


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
    [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.Adam, {}), (torch.optim.Adagrad, {})],
)
def test_a_local_optimizer_that_remembers_is_refused(kind, options):
    model = nn.Linear(6, 3)
    kept = kind(model.parameters(), **options)
    with pytest.raises(ValueError, match=rf"made anew for every clip-group, got one \({kind.__name__}\) for several"):
        trained(model, (X, Y), Mixed(0.5, 3), inner=LocalSteps(lambda p: kept))
    assert not any(float(held.get("step", 0)) or "momentum_buffer" in held for held in kept.state.values())


class Attributes(nn.Module):
    """Keeps something outside its buffers."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.what = nn.Linear(6, 3), what
        self.mean, self.passes, self.seen = torch.zeros(3), 0, None

    def forward(self, x):
        y = self.layer(x)
        if "mean" in self.what:
            y, self.mean = y + self.mean, 0.99 * self.mean + 0.01 * y.detach().mean(0)
        if "count" in self.what:
            y, self.passes = y * (1.0 + 0.1 * self.passes), self.passes + 1
        if "outputs" in self.what:
            self.seen = y
        return y


GROUPED = [
    (Individual(0.5), None),
    (Batch(0.5), None),
    (Mixed(0.5, 3), None),
    (Batch(0.5), LocalSteps(lambda p: torch.optim.SGD(p, 0.1))),
]


@pytest.mark.parametrize(("clipping", "inner"), GROUPED)
@pytest.mark.parametrize("what", [{"mean"}, {"mean", "count"}, {"mean", "outputs"}])
def test_attributes_that_carry_data_to_the_next_round_are_refused(clipping, inner, what):
    with pytest.raises(ValueError, match="depend on earlier batches"):
        trained(Attributes(what), (X, Y), clipping, inner=inner)


@pytest.mark.parametrize(("clipping", "inner"), GROUPED[1:])
@pytest.mark.parametrize("what", [{"count"}, {"outputs"}])
def test_counts_and_outputs_that_nobody_reads_are_not(clipping, inner, what):
    model = Attributes(what)
    assert trained(model, (X, Y), clipping, rounds=3, inner=inner).rounds == 3
    assert model.what == what


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_what_cannot_be_copied_is_no_hindrance(clipping):
    class Locked(Attributes):
        def __init__(self, what):
            super().__init__(what)
            self.lock = threading.Lock()

    if not isinstance(clipping, Individual):  # a count is a change from pass to pass, and refused there in words
        assert trained(Locked({"count", "outputs"}), (X, Y), clipping, rounds=3).rounds == 3
    with pytest.raises(ValueError, match="depend on earlier batches"):
        trained(Locked({"mean", "outputs"}), (X, Y), clipping, rounds=3)


def test_recurrent_state_between_batches_is_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head, self.state = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3), None

        def forward(self, x):
            before = None if self.state is None else tuple(s.expand(1, len(x), 4).contiguous() for s in self.state)
            y, after = self.cell(x.unsqueeze(-1), before)
            self.state = tuple(s.detach().mean(1, keepdim=True) for s in after)
            return self.head(y[:, -1])

    with pytest.raises(ValueError, match="depend on earlier batches"):
        trained(Recurrent(), (X, Y), Batch(0.5))


@pytest.mark.parametrize("clipping", [Batch(0.5), Mixed(0.5, 2)])
def test_an_inner_algorithm_that_remembers_is_refused(clipping):
    class Momentum:
        def __init__(self):
            self.old = None

        def __call__(self, model, losses, batch, records, parameters):
            new = MeanGradient()(model, losses, batch, records, parameters)
            found = new if self.old is None else [x + 0.9 * y for x, y in zip(new, self.old, strict=True)]
            self.old = found
            return found

    for model in (Attributes(set()), nn.Sequential(nn.Linear(6, 3))):
        with pytest.raises(ValueError, match="depend on earlier batches"):
            trained(model, (X, Y), clipping, inner=Momentum())


def test_memory_that_begins_later_is_found():
    class Late(Attributes):
        def forward(self, x):
            self.what = {"count", "mean"} if self.passes > 3 else {"count"}
            return super().forward(x)

    with pytest.raises(ValueError, match="depend on earlier batches"):
        trained(Late(set()), (X, Y), Batch(0.5), rounds=16)


def test_looking_for_memory_leaves_randomness_alone():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), Attributes(set()))
    torch.manual_seed(0)
    first = torch.rand(3)
    torch.manual_seed(0)
    clipper = Clipper(model, PerRecord(nn.CrossEntropyLoss()), Batch(0.5))
    clipper._tricks.refuse((X, Y), len(X), list(model.parameters()))
    assert torch.equal(torch.rand(3), first)


# --- what a review broke ----------------------------------------------------------------------------------------------


def in_rounds(model, loss, data, clipping, rounds=4, **options):
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.0), Mechanism(Deterministic(2, rounds // 2), 1.0, clipping),
        insecure_seed=1, **options,
    )  # fmt: skip
    for batch in trainer.batches(data):
        trainer.step(batch, loss)
    return trainer


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_a_loss_that_writes_weights_of_a_chain_is_refused(clipping):
    def loss(model, batch):
        model.bias.data.copy_(batch["y"].mean(0))
        return (model(batch["x"]) - batch["y"]).square().sum(1)

    with pytest.raises(ValueError, match=r"bias was changed|depends on the other records"):
        in_rounds(nn.Linear(6, 3), loss, {"x": X, "y": X[:, :3] + 7.0}, clipping)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_calibration_by_the_first_batch_is_refused(clipping):
    class Calibrates(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.mean = nn.Linear(6, 3), None

        def forward(self, x):
            if self.mean is None:
                self.mean = x.mean(0).detach()
            return self.layer(x - self.mean)

    with pytest.raises(ValueError, match="depend on earlier batches"):
        in_rounds(Calibrates(), nn.CrossEntropyLoss(), (X, Y), clipping)
    means = []

    def loss(outputs, targets):
        if not means:
            means.append(outputs.mean(0).detach())
        return nn.functional.cross_entropy(outputs - means[0], targets, reduction="none")

    with pytest.raises(ValueError, match="depend on earlier batches"):
        in_rounds(nn.Linear(6, 3), loss, (X, Y), clipping)
    assert not means


@pytest.mark.parametrize("clipping", CLIPPINGS[1:])
def test_memory_of_one_record_or_read_later_is_refused(clipping):
    class Holds(nn.Module):
        def __init__(self, what, later=0):
            super().__init__()
            self.layer, self.what, self.past = nn.Linear(6, 3), what, [torch.zeros(3)] * (1 + later)

        def forward(self, x):
            y = self.layer(x)
            first, *rest = self.past
            self.past = [*rest, self.what(y.detach())]
            return y + first

    for model in (Holds(lambda y: y[0]), Holds(lambda y: y[-1]), Holds(lambda y: y.mean(0), later=3),
                  Holds(lambda y: y.new_tensor([0.1 * len(y), 0.0, 0.0]))):  # fmt: skip
        with pytest.raises(ValueError, match="depend on earlier batches"):
            in_rounds(model, nn.CrossEntropyLoss(), (X, Y), clipping, rounds=8)
    with pytest.raises(ValueError, match="depend on earlier batches"):
        trained(Holds(lambda y: y.mean(0)), (X[:1], Y[:1]), clipping, rounds=4)


ELSEWHERE = nn.Linear(6, 3)


@pytest.mark.parametrize("clipping", CLIPPINGS[1:])
def test_memory_of_a_loss_that_uses_a_model_of_its_own_is_refused(clipping):
    def remembering(model):
        past = [torch.zeros(3)]

        def loss(_, batch):
            outputs = model(batch["x"]) + past[0]
            past[0] = outputs.detach().mean(0)
            return nn.functional.cross_entropy(outputs, batch["y"], reduction="none")

        return loss

    model = nn.Sequential(nn.Linear(6, 3), nn.Softsign())
    for used, loss in ((model, remembering(model)), (ELSEWHERE, remembering(ELSEWHERE))):
        with pytest.raises(ValueError, match="depend on earlier batches"):
            in_rounds(used, loss, {"x": X, "y": Y}, clipping)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_buffers_that_count_records_are_refused(clipping):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += len(x)
            return self.layer(x)

    with pytest.raises(ValueError, match="the buffer seen is changed"):
        in_rounds(Counts(), nn.CrossEntropyLoss(), (X, Y), clipping)


class Anneals(nn.Module):
    """Its outputs grow with the number of forward passes, which a buffer counts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1.0
        return self.layer(x) * self.passes


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("records", [12, 5, 1, 0])
def test_a_counter_counts_rounds_whatever_the_batch(clipping, records):
    """Not pieces, records or clip-groups: their number is a secret, and so is whether there are any."""
    model = Anneals()
    clipper = Clipper(model, PerRecord(nn.CrossEntropyLoss()), clipping, micro_batch=4)
    into = Flat(list(model.parameters()))
    sizes = [3, records - 3] if records > 3 else [records]
    for number in range(1, 6):
        into.buffer.zero_()
        clipper.add((X[:records], Y[:records]), records, into, sizes if isinstance(clipping, Mixed) else None)
        assert float(model.passes) == number
    if isinstance(clipping, Individual) and records:
        total = into.buffer.clone()
        one = torch.zeros_like(total)
        for i in range(records):
            loss = nn.functional.cross_entropy(model.layer(X[i : i + 1]) * 5.0, Y[i : i + 1])
            g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
            one += g * min(1.0, 0.5 / float(g.norm()))
        assert float((total - one).norm()) <= 1e-4 * float(one.norm())


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_layers_made_by_the_first_pass_are_no_hindrance(clipping):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = nn.Linear(6, 3), None

        def forward(self, x):
            if self.act is None:
                self.act = nn.Tanh()
            return self.act(self.layer(x))

    assert in_rounds(Lazy(), nn.CrossEntropyLoss(), (X, Y), clipping).rounds == 4


@pytest.mark.parametrize("clipping", CLIPPINGS[1:])
def test_batches_that_cannot_be_cut_or_copied_are_no_hindrance(clipping):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            centred = x - x.mean(0)
            whitened = torch.linalg.solve(torch.linalg.cholesky(centred.t() @ centred), x.t()).t()
            return self.layer(whitened)

    many = torch.randn(80, 6, generator=MADE), torch.randint(0, 3, (80,), generator=MADE)
    assert in_rounds(Fixed(), nn.CrossEntropyLoss(), many, clipping).rounds == 4


def test_sparse_embeddings_have_dense_aggregates():
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(16, 3))
    assert trained(model, (TOKENS, Y), Batch(0.5)).rounds == 1


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpoints_that_hide_layers_are_refused(clipping, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            y = self.first(x).tanh()
            return self.third(checkpoint(self.second, y, use_reentrant=reentrant).tanh())

    if reentrant:
        with pytest.raises(ValueError, match="use_reentrant=False"):
            trained(Checkpointed(), (X, Y), clipping)
    else:
        assert trained(Checkpointed(), (X, Y), clipping).rounds == 1
