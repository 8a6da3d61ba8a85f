"""Clip-groups from one pass: equal to one group after the other, never across groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from verax import Batch, Individual, Mixed  # noqa: E402
from verax.training.clipping import clip_groups as grouped  # noqa: E402
from verax.training.clipping.clipper import Clipper, NotFiniteError  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.clipping.local_update import MeanGradient  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402
from verax.training.gradients.per_example import PerExampleGradients  # noqa: E402


def perceptron():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 8),
        nn.ReLU(),
        nn.Linear(8, 5, bias=False),
        nn.Tanh(),
        nn.Linear(5, 3),
    )


def frozen():
    model = perceptron()
    model[1].weight.requires_grad_(False)
    model[5].bias.requires_grad_(False)
    return model


def shared():
    layer = nn.Linear(12, 12)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(inplace=True), layer, nn.Linear(12, 3))


def logistic():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def total(model, loss, batch, clipping, labels=None, inner=None, parameters=None):
    """The clipped sum, and whether one pass served all groups."""
    clipper = Clipper(model, PerExampleLoss(loss), clipping, inner)
    alone, usual = [], clipper._aggregate
    clipper._aggregate = lambda *given: alone.append(1) or usual(*given)
    into = FlatBuffer(parameters or [p for p in model.parameters() if p.requires_grad])
    if labels is None:
        labels = np.random.default_rng(0).integers(0, getattr(clipping, "groups", 1), len(batch[1]))
    order, sizes = (
        torch.from_numpy(np.argsort(labels, kind="stable")),
        np.unique(labels, return_counts=True)[1],
    )
    for _ in range(2):  # the first is checked against autograd, the second is not
        into.buffer.zero_()
        clipper.add(tuple(part[order] for part in batch), len(order), into, sizes.tolist())
    return into.buffer.clone(), not alone


def data(records, seed=0, classes=3):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(records, 3, 4, generator=rng), torch.randint(
        0, classes, (records,), generator=rng
    )


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("make", [logistic, perceptron, frozen, shared])
@pytest.mark.parametrize("clipping", [Batch(0.02), Batch(100.0), Mixed(0.02, 4), Mixed(100.0, 40)])
def test_one_pass_equals_a_loop_over_groups(make, clipping):
    model, batch = make(), data(30)
    mine, together = total(model, nn.CrossEntropyLoss(), batch, clipping)
    want, apart = total(model, nn.CrossEntropyLoss(), batch, clipping, inner=MeanGradient())
    assert together
    assert not apart
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-7)


@settings(max_examples=30, deadline=None)
@given(
    records=st.integers(1, 40),
    groups=st.integers(1, 9),
    held=st.integers(1, 5),
    norm=st.floats(1e-3, 10.0),
    seed=st.integers(0, 2**16),
)
def test_any_groups_and_any_number_held_at_once(records, groups, held, norm, seed):
    model, batch = perceptron(), data(records, seed)
    labels = np.random.default_rng(seed).integers(0, groups, records)
    size = sum(p.numel() for p in model.parameters())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "_TOGETHER", held * size)
        mine, together = total(model, nn.CrossEntropyLoss(), batch, Mixed(norm, groups), labels)
    want, _ = total(
        model, nn.CrossEntropyLoss(), batch, Mixed(norm, groups), labels, MeanGradient()
    )
    assert together
    torch.testing.assert_close(mine, want, rtol=1e-3, atol=1e-6)


def test_positions_are_summed_within_their_group():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    rng = torch.Generator().manual_seed(1)
    batch = torch.randn(11, 3, 4, generator=rng), torch.randn(11, 3, 2, generator=rng)
    mine, together = total(model, nn.MSELoss(), batch, Mixed(0.05, 3))
    want, _ = total(model, nn.MSELoss(), batch, Mixed(0.05, 3), inner=MeanGradient())
    assert together
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-7)


def test_half_precision_and_parameters_outside_the_model():
    model = logistic().to(torch.bfloat16)
    x, y = data(20)
    mine, together = total(model, nn.CrossEntropyLoss(), (x.to(torch.bfloat16), y), Mixed(0.5, 2))
    want, _ = total(model.float(), nn.CrossEntropyLoss(), (x, y), Mixed(0.5, 2))
    assert together
    assert (mine - want).norm() < 0.05 * want.norm()
    beside = nn.Parameter(torch.ones(2))
    more, _ = total(
        model,
        nn.CrossEntropyLoss(),
        (x, y),
        Mixed(0.5, 2),
        parameters=[*model.parameters(), beside],
    )
    torch.testing.assert_close(more, torch.cat([want, torch.zeros(2)]))


def test_a_group_sees_nothing_of_the_others():
    """If one group is replaced, the sum moves by at most twice the clip norm."""
    model, norm, labels = perceptron(), 0.01, np.repeat([0, 1, 2], 10)
    x, y = data(30)
    other = x.clone()
    other[10:20] *= 1e3
    before, _ = total(model, nn.CrossEntropyLoss(), (x, y), Mixed(norm, 3), labels)
    after, together = total(model, nn.CrossEntropyLoss(), (other, y), Mixed(norm, 3), labels)
    assert together
    assert 0 < (before - after).norm() <= 2 * norm


class Contrast(nn.Module):
    """A loss that compares records with each other."""

    def forward(self, outputs, target):
        return (outputs - outputs.mean(dim=0)).square().sum(dim=1)


def test_losses_that_compare_records_go_group_by_group():
    model, batch, labels = perceptron(), data(30), np.repeat([0, 1, 2], 10)
    mine, together = total(model, Contrast(), batch, Mixed(0.01, 3), labels)
    want, _ = total(model, Contrast(), batch, Mixed(0.01, 3), labels, MeanGradient())
    assert not together
    torch.testing.assert_close(mine, want)


def test_a_layer_that_is_no_link_of_a_chain_goes_group_by_group():
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 8),
        nn.BatchNorm1d(8, track_running_stats=False),
        nn.Linear(8, 3),
    )
    mine, together = total(model, nn.CrossEntropyLoss(), data(30), Mixed(0.01, 3))
    want, _ = total(model, nn.CrossEntropyLoss(), data(30), Mixed(0.01, 3), inner=MeanGradient())
    assert not together
    torch.testing.assert_close(mine, want)


def test_an_aggregate_that_is_not_finite_is_refused():
    x, y = data(30)
    x[7] = float("nan")
    with pytest.raises(NotFiniteError, match="clip-group"):
        total(logistic(), nn.CrossEntropyLoss(), (x, y), Mixed(0.01, 3))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x[:, 0].abs().long() % 9).mean(dim=1))


class Centred(nn.Module):
    """Takes its batch's mean from every record, which no layer shows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 4, 2), nn.Linear(12, 3)

    def forward(self, x):
        x = self.first(x).flatten(1)
        return self.second(torch.relu(x - x.mean(dim=0)))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.norm, self.head = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.each(x).relu()).mean(dim=1))


def convolutions():
    return nn.Sequential(
        nn.Conv1d(3, 4, 2),
        nn.ReLU(),
        nn.GroupNorm(2, 4),
        nn.Conv1d(4, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def normed():
    return nn.Sequential(
        nn.Conv1d(3, 4, 2),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


@pytest.mark.parametrize(
    ("make", "by_records"),
    [(convolutions, True), (Sequence, False), (Tokens, False), (Centred, False), (normed, False)],
)
@pytest.mark.parametrize("fit", [8, 20, 100])
@pytest.mark.parametrize("norm", [0.02, 100.0])
@pytest.mark.parametrize("groups", [4, 30])
def test_small_groups_by_way_of_their_records(monkeypatch, make, by_records, fit, norm, groups):
    """The same as one pass after the other, also where records cannot be told apart."""
    model, batch, clipping = make(), data(40), Mixed(norm, groups)
    took = []
    monkeypatch.setattr(PerExampleGradients, "records_at_once", lambda *_: fit)
    usual = Clipper._add_small_groups
    monkeypatch.setattr(
        Clipper, "_add_small_groups", lambda *given: took.append(usual(*given)) or took[-1]
    )
    mine, _ = total(model, nn.CrossEntropyLoss(), batch, clipping)
    assert any(took) == (
        by_records
        and fit * len(np.unique(np.random.default_rng(0).integers(0, groups, 40))) >= 4 * 40
    )
    want, _ = total(model, nn.CrossEntropyLoss(), batch, clipping, inner=MeanGradient())
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("near", [2, 5, 64])
def test_tiny_groups_of_a_wide_layer_are_not_formed(monkeypatch, near):
    """Norms from Gram matrices of neighbours, a few groups at a time."""
    monkeypatch.setattr(grouped, "_NEIGHBOURS", near)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 300),
        nn.ReLU(),
        nn.Linear(300, 300),
        nn.ReLU(),
        nn.Linear(300, 3),
    )
    labels, clipping, used = np.repeat(np.arange(20), 2), Mixed(0.02, 20), []
    usual = grouped._UnformedMeans.squares
    monkeypatch.setattr(
        grouped._UnformedMeans, "squares", lambda one: used.append(one) or usual(one)
    )
    batch = data(40)
    mine, _ = total(model, nn.CrossEntropyLoss(), batch, clipping, labels)
    want, _ = total(model, nn.CrossEntropyLoss(), batch, clipping, labels, MeanGradient())
    assert used
    torch.testing.assert_close(mine, want, rtol=1e-3, atol=1e-6)


def test_tiny_groups_whose_gradients_cancel_are_clipped_all_the_same():
    """By Gram matrices alone the clipped gradient could be many times too long."""
    rng = torch.Generator().manual_seed(0)
    for size in (1e2, 1e4, 1e6):
        for _ in range(50):
            long, short, x = torch.randn(3, 64, generator=rng) / 8.0
            g = torch.stack([size * long, 10.0 * short - size * long])
            means = grouped._UnformedMeans(
                grouped.OuterProduct(torch.stack([x, x]), grouped.Explicit(g)),
                [2],
                torch.full((1, 2), 0.5),
            )
            into = torch.zeros(64, 64)
            means.add((1.0 / means.squares().sqrt()).clamp(max=1.0), into)
            assert float(into.double().norm()) <= 1.0 + 1e-4


def test_what_would_take_too_much_memory_goes_one_after_the_other(monkeypatch):
    model, batch, clipping = convolutions(), data(40), Mixed(0.02, 8)
    monkeypatch.setattr(grouped, "_FORMED", 10)
    mine, _ = total(model, nn.CrossEntropyLoss(), batch, clipping)
    want, _ = total(model, nn.CrossEntropyLoss(), batch, clipping, inner=MeanGradient())
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-6)


class Context(nn.Module):
    """Adds its clip-group's mean through a branch that begins with zeros."""

    def __init__(self):
        super().__init__()
        self.first, self.context, self.last = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.context.weight)
        nn.init.zeros_(self.context.bias)

    def forward(self, x):
        h = torch.relu(self.first(x.flatten(1)))
        return self.last(h + self.context(h.mean(0, keepdim=True).expand_as(h)))


class Mixup(nn.Module):
    """Mixes the records of its clip-group, in some steps."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.net(0.5 * x + 0.5 * x[torch.randperm(len(x))] if torch.rand(()) < 0.5 else x)


class Late(nn.Module):
    """Takes away its clip-group's mean, once it is told to."""

    def __init__(self):
        super().__init__()
        self.net, self.told = nn.Linear(12, 3), False

    def forward(self, x):
        x = x.flatten(1)
        return self.net(x - x.mean(0) if self.told else x)


def paired(outputs, target):
    """A loss that compares neighbours."""
    return (outputs - outputs.roll(1, 0)).square().sum(1) + target


@pytest.mark.parametrize("make", [Context, Mixup, Late, convolutions, logistic])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), paired])
def test_no_record_reaches_another_clip_group_whatever_the_model_does_later(make, loss):
    """One record is replaced: the sum moves by at most twice the clip norm."""
    model, norm, groups = make(), 1e-2, 40
    x, y = data(4 * groups)
    clipper = Clipper(model, PerExampleLoss(loss), Mixed(norm, groups))

    def clipped_sum(records, seed):
        torch.manual_seed(seed)
        into = FlatBuffer(model.parameters())
        clipper.add((records, y), len(y), into, [4] * groups)
        return into.buffer

    other = x.clone()
    other[0] = 1000.0
    for seed in range(4):
        assert float((clipped_sum(x, seed) - clipped_sum(other, seed)).norm()) <= 2.0001 * norm
        if isinstance(model, Context):
            nn.init.normal_(model.context.weight)
        model.told = True


@pytest.mark.parametrize("make", [logistic, perceptron, convolutions, Sequence, Tokens])
@pytest.mark.parametrize("clipping", [Individual(0.02), Batch(0.02), Mixed(0.02, 4)])
def test_double_precision_is_clipped_in_single(make, clipping):
    model, (x, y) = make(), data(20)
    want, _ = total(model, nn.CrossEntropyLoss(), (x, y), clipping)
    mine, _ = total(model.double(), nn.CrossEntropyLoss(), (x.double(), y), clipping)
    assert mine.dtype is torch.float32
    torch.testing.assert_close(mine, want, rtol=1e-3, atol=1e-6)


def test_gradients_of_an_earlier_batch_do_not_come_back():
    """A layer that is taken out or frozen leaves nothing behind."""
    first, between, last = nn.Linear(12, 4), nn.Linear(4, 4), nn.Linear(4, 3)
    model, out = nn.Sequential(nn.Flatten(), first, nn.Identity(), last), nn.Identity()
    into = FlatBuffer([*first.parameters(), *between.parameters(), *last.parameters()])
    clipper = Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), Mixed(100.0, 2))

    def longest(parameter):
        into.buffer.zero_()
        clipper.add(data(40), 40, into, [20, 20])
        return float(into.views[parameter].abs().max())

    for layer in (out, between, out):
        model[2] = layer
        assert (longest(between.weight) > 0.0) == (layer is between)
    assert longest(first.weight) > 0.0
    first.requires_grad_(False)
    assert longest(first.weight) == 0.0


@pytest.mark.parametrize(
    ("width", "value"), [(2**13, 0.7), (2**15, 0.71848738), (2**18, 0.52521008)]
)
def test_wide_layers_of_tiny_groups_are_clipped_to_the_norm(width, value):
    """Products of long equal rows, added up in one go in single precision, come out too small."""
    x = torch.zeros(8, width)
    x[:2] = value
    mine, _ = total(
        nn.Linear(width, 160, bias=False),
        nn.MSELoss(),
        (x, torch.ones(8, 160)),
        Mixed(1.0, 4),
        np.repeat(range(4), 2),
    )
    assert 0.9999 < float(mine.double().norm()) <= 1.0


def test_targets_with_more_digits_than_the_model():
    model, (x, _) = perceptron(), data(20)
    want, _ = total(model, nn.MSELoss(), (x, x[:, :, 0]), Mixed(0.01, 3))
    mine, together = total(model, nn.MSELoss(), (x, x[:, :, 0].double()), Mixed(0.01, 3))
    assert together
    torch.testing.assert_close(mine, want)
