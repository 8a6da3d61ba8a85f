"""Clip-groups in pieces: where that changes nothing, and only there."""

import copy
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import Batch  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.data.microbatch_size import MicroBatchSize  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402

torch.set_num_threads(1)
RECORDS = 100


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr("verax.training.data.microbatch_size._HELD_BYTES", 2.0**20)


class Large(nn.Module):
    """Holds some 60 kB a record for the backward pass, and notes the batch sizes it sees."""

    def __init__(self, *more):
        super().__init__()
        self.first, self.more, self.last = nn.Linear(6, 8), nn.Sequential(*more), nn.Linear(8, 3)
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        wide = self.more(self.first(x)).unsqueeze(1).repeat(1, 2**10, 1).square()
        return self.last(wide.mean(dim=1))


class Gate(nn.Module):
    """A branch that is closed at first."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.gate = branch, nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.gate * self.branch(x)


class Centred(nn.Module):
    """Mixes records in training only."""

    def forward(self, x):
        return x - x.mean(0) if self.training else x


class Attention(nn.Module):
    """Over the records."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, dropout=0.1)

    def forward(self, x):
        return self.layer(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1))[0][:, 0]


class Shuffled(nn.Module):
    """Adds another record, drawn at random."""

    def forward(self, x):
        return x + x[torch.randperm(len(x))]


class Steep(nn.Module):
    """Differentiates within the forward pass."""

    def forward(self, x):
        return x * torch.autograd.grad(x.square().sum(), x, create_graph=True)[0]


class Recurrent(nn.Module):
    """Takes the records for a sequence, so that each sees those before it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 8)

    def forward(self, x):
        return x + self.layer(x.unsqueeze(1))[0][:, 0]


class By(nn.Module):
    """Any function of what all records are at this place."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Averaged(torch.autograd.Function):
    """Mixes records in its derivative only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.mean(0).expand_as(g)


class Squared(torch.autograd.Function):
    """Has a derivative of its own, which mixes nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


def centred_in_rows(of):
    return lambda x: torch.cat([row - row.mean(0) for row in x.split(of)])


def insisting(x):
    """Has something against other numbers of records than all."""
    assert len(x) == RECORDS
    return x


def data(records=RECORDS):
    torch.manual_seed(0)
    return torch.randn(records, 6), torch.randint(0, 3, (records,))


def clipped(model, x, y, **options):
    into = FlatBuffer(model.parameters())
    Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), Batch(1e3), **options).add(
        (x, y), len(x), into
    )
    return into.buffer


def whole(model, x, y):
    model = copy.deepcopy(model)
    found = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


def trained_on(model):
    """Batch sizes in the pass itself, without the trials, which have 9 records or fewer."""
    return [seen for seen in model.seen if seen > 9]


@pytest.mark.parametrize(
    "more",
    [[], [nn.LayerNorm(8)], [nn.GELU(), nn.Linear(8, 8)], [By(Squared.apply)]],
    ids=["", "norm", "layers", "a derivative by hand"],
)
def test_large_models_take_clip_groups_in_even_pieces(more):
    x, y = data()
    model = Large(*more)
    found = clipped(model, x, y)
    assert trained_on(model) == [25, 25, 25, 25]
    torch.testing.assert_close(found, whole(model, x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.AlphaDropout(0.2), nn.Sequential(nn.Linear(8, 8), nn.Dropout1d(0.3))],
)
def test_dropout_is_no_reason_to_stay_whole(layer):
    x, y = data()
    model = Large(layer)
    clipped(model, x, y)
    assert trained_on(model) == [25, 25, 25, 25]


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(8, track_running_stats=False),
        Gate(nn.BatchNorm1d(8, track_running_stats=False)),
        Centred(),
        nn.Sequential(Centred(), nn.Dropout(0.5)),
        Attention(),
        Shuffled(),
        Steep(),
    ],
    ids=[
        "batch norm",
        "behind a gate",
        "in training",
        "and dropout",
        "attention",
        "shuffled",
        "a gradient inside",
    ],
)
def test_clip_groups_that_would_be_others_in_pieces_stay_whole(layer):
    x, y = data()
    model = Large(layer)
    clipped(model, x, y)
    assert set(trained_on(model)) == {RECORDS}


@pytest.mark.parametrize(
    "layer",
    [
        Recurrent(),
        By(lambda x: x.flip(0).cumsum(0).flip(0) / 9),
        By(lambda x: x - x[:1]),
        By(lambda x: x + torch.arange(len(x)).unsqueeze(1) / 9),
        *(By(centred_in_rows(of)) for of in (2, 3, 4, 5, 10)),
        By(lambda x: x.view(-1, 2, 8).flip(1).reshape(-1, 8)),
        By(Averaged.apply),
        By(insisting),
        By(lambda x: x * {RECORDS: 1.0}[len(x)]),
    ],
    ids=[
        "a sequence",
        "from behind",
        "to the first",
        "by place",
        "in pairs",
        "in threes",
        "in fours",
        "in fives",
        "in tens",
        "pairs only",
        "in the derivative",
        "by assertion",
        "by a table",
    ],
)
def test_whoever_mixes_records_in_whatever_way_has_the_gradient_of_the_whole(layer):
    x, y = data()
    model = Large(layer)
    torch.testing.assert_close(clipped(model, x, y), whole(model, x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        By(lambda x: x * random.random()),
        By(lambda x: x * np.random.rand()),  # noqa: NPY002
        By(lambda x: x + torch.randn(8)),
        By(lambda x: x + x.square() * torch.empty(1, 1).bernoulli_(0.5)),
    ],
    ids=["python", "numpy", "noise on a weight", "stochastic depth"],
)
def test_what_is_drawn_once_for_all_records_is_not_drawn_for_each_piece(layer):
    x, y = data()
    model = Large(layer)
    clipped(model, x, y)
    assert set(trained_on(model)) == {RECORDS}


def test_autocast_keeps_no_weights_of_the_looks():
    x, y = data()
    model = Large(nn.Linear(8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        found = clipped(model, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(found, whole(model, x, y), rtol=0.02, atol=1e-3)


def test_a_closed_branch_that_mixes_has_its_gradient():
    x, y = data()
    model = Large(Gate(nn.BatchNorm1d(8, track_running_stats=False)))
    torch.testing.assert_close(clipped(model, x, y), whole(model, x, y), rtol=1e-4, atol=1e-6)


def test_asking_leaves_model_and_randomness_as_they_were():
    x, y = data()
    model = Large(nn.Dropout(0.5), Gate(nn.Linear(8, 8)))
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert (
        MicroBatchSize(model, PerExampleLoss(nn.CrossEntropyLoss()), 1024).pieces((x, y), RECORDS)
        == 25
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_small_models_are_asked_once():
    class Small(Large):
        def forward(self, x):
            self.seen.append(len(x))
            return self.last(self.more(self.first(x)))

    model = Small()
    cuts = MicroBatchSize(model, PerExampleLoss(nn.CrossEntropyLoss()), 1024)
    x, y = data(1000)
    assert [cuts.pieces((x, y), 1000), cuts.pieces((x[:300], y[:300]), 300)] == [1000, 300]
    assert model.seen == [4, 9]


@pytest.mark.parametrize(
    ("most", "size", "want"), [(1, 9, 1), (2, 9, 2), (7, 20, 7), (1024, 97, 25), (1024, 96, 96)]
)
def test_no_more_go_together_than_was_asked_for(most, size, want):
    model = Large()
    assert (
        MicroBatchSize(model, PerExampleLoss(nn.CrossEntropyLoss()), most).pieces(data(size), size)
        == want
    )
    assert max(model.seen, default=0) <= 2 * most + 1
