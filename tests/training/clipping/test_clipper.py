"""Clipped sums: exact, in pieces of the size asked for, for clip-groups of any size."""

import copy
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Poisson  # noqa: E402
from verax.training import LocalSteps, PrivateTrainer, fit  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402
from verax.training.gradients.norms import ROOM  # noqa: E402

torch.set_num_threads(1)
RECORDS = 40


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2
        )
        self.head = nn.Linear(32, 5)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def conv(*widths):
    layers = []
    for before, width in zip((1, *widths), widths, strict=False):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 5))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 5),
    )


CASES = {
    "logistic": (lambda: nn.Linear(123, 5), lambda: torch.randn(RECORDS, 123)),
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 5)),
        lambda: torch.randn(RECORDS, 784),
    ),
    "lenet": (lenet, lambda: torch.randn(RECORDS, 1, 28, 28)),
    "cnn": (lambda: conv(8, 16, 16), lambda: torch.randn(RECORDS, 1, 16, 16)),
    "transformer": (Encoder, lambda: torch.randint(0, 50, (RECORDS, 12))),
}


def by_loop(model, x, y, sizes, norm):
    """The clipped sum over clip-groups, in double precision."""
    model, x = copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x
    total, start = 0.0, 0
    for size in sizes:
        part = slice(start, start + size)
        loss = functional.cross_entropy(model(x[part]), y[part])
        g = torch.cat([v.flatten() for v in torch.autograd.grad(loss, list(model.parameters()))])
        total, start = total + g * min(1.0, norm / float(g.norm())), start + size
    return total


@pytest.mark.parametrize("norm", [1e-3, 0.7, 1e3])
@pytest.mark.parametrize("clipping", [Individual, Batch, Mixed])
@pytest.mark.parametrize("name", CASES)
def test_the_clipped_sum_equals_a_loop_to_1e_5(name, clipping, norm):
    torch.manual_seed(0)
    model, x = (make() for make in CASES[name])
    y = torch.randint(0, 5, (RECORDS,))
    sizes = {Individual: [1] * RECORDS, Batch: [RECORDS], Mixed: [7, 1, 12, 20]}[clipping]
    into = FlatBuffer(model.parameters())
    kind, groups = (Mixed(norm, 4), sizes) if clipping is Mixed else (clipping(norm), None)
    Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), kind).add((x, y), RECORDS, into, groups)
    want = by_loop(model, x, y, sizes, norm)
    assert float((into.buffer.double() - want).norm()) <= 1e-5 * float(want.norm())
    if norm == 1e-3 and clipping is Batch:
        assert (1.0 - 2.0 * ROOM) * norm <= float(into.buffer.double().norm()) <= norm


class Counting(nn.Module):
    """Tells how many records it was given at a time."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(6, 3), []

    def forward(self, x):
        self.seen.append(len(x))
        return self.layer(x)


@pytest.mark.parametrize("most", [1, 2, 7, 33])
@pytest.mark.parametrize("clipping", [Individual(0.1), Batch(0.1), Mixed(0.1, 2)])
def test_no_more_records_go_together_than_was_asked_for(clipping, most):
    torch.manual_seed(0)
    model = Counting()
    x, y = torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,))
    sums = []
    for micro_batch in (most, RECORDS):
        model.seen.clear()
        into = FlatBuffer(model.parameters())
        clipper = Clipper(
            model, PerExampleLoss(nn.CrossEntropyLoss()), clipping, micro_batch=micro_batch
        )
        clipper.add((x, y), RECORDS, into, [15, 25] if isinstance(clipping, Mixed) else None)
        sums.append(into.buffer)
        without_a_graph = 0 if isinstance(clipping, Individual) else micro_batch + 1
        assert max(model.seen) <= micro_batch + without_a_graph
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-8)


def test_clip_groups_that_mix_their_records_stay_whole():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
    )
    x, y = torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,))
    into = FlatBuffer(model.parameters())
    Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), Batch(0.1), micro_batch=8).add(
        (x, y), RECORDS, into
    )
    want = by_loop(model, x, y, [RECORDS], 0.1)
    assert float((into.buffer.double() - want).norm()) <= 1e-5 * 0.1


@pytest.mark.parametrize("clipping", [Batch(1.0), Mixed(1.0, 4)])
def test_batch_norm_of_a_single_record_adds_nothing_and_goes_on(clipping):
    """Whether a batch or a clip-group has one record only is a secret: it must not end a run."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
    )
    run = Mechanism(Poisson(0.05, 60), 1.0, clipping)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), run, insecure_seed=3)
    data, sizes = (torch.randn(40, 6), torch.randint(0, 3, (40,))), set()
    for batch in trainer.batches(data):
        sizes.add(batch.records)
        trainer.step(batch, nn.CrossEntropyLoss())
    assert {0, 1, 2} <= sizes
    into = FlatBuffer(model.parameters())
    losses = PerExampleLoss(nn.CrossEntropyLoss())
    Clipper(model, losses, clipping).add((data[0][:1], data[1][:1]), 1, into, [1])
    assert not bool(into.buffer.any())


def test_local_steps_must_be_some():
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        LocalSteps(torch.optim.Adam, steps=0)


def test_what_runs_cannot_be_exchanged_on_the_way():
    model = nn.Linear(6, 3)
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), Mechanism(Poisson(0.2, 6), 1.0)
    )
    with pytest.raises(AttributeError):
        trainer.mechanism = Mechanism(Poisson(0.2, 6), 0.001)


@pytest.mark.parametrize(
    ("more", "loss"),
    [
        (
            {"scale": torch.tensor(2.0)},
            lambda o, b: b["scale"] * functional.cross_entropy(o, b["y"], reduction="none"),
        ),
        (
            {"table": torch.rand(3)},
            lambda o, b: functional.cross_entropy(o, b["y"], b["table"], reduction="none"),
        ),
        ({}, lambda o, b: functional.cross_entropy(o, b["y"], reduction="none") / len(o)),
        ({}, lambda o, b: functional.cross_entropy(o - o.mean(0), b["y"], reduction="none")),
    ],
    ids=["a number", "a table", "by the size", "mixing"],
)
def test_clip_groups_that_cannot_be_cut_stay_whole(more, loss):
    torch.manual_seed(0)
    batch = {"x": torch.randn(RECORDS, 6), "y": torch.randint(0, 3, (RECORDS,)), **more}
    model, sums = Counting(), []
    for micro_batch in (8, RECORDS):
        into = FlatBuffer(model.parameters())
        losses = PerExampleLoss(lambda m, b: loss(m(b["x"]), b))
        Clipper(model, losses, Batch(0.1), micro_batch=micro_batch).add(batch, RECORDS, into)
        sums.append(into.buffer)
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("clipping", [Individual(1.0), Batch(1.0), Mixed(1.0, 2)])
def test_a_run_under_autocast_sees_its_weights_move(clipping):
    """Autocast keeps weights that it has cast until it ends."""
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    found = []
    for lower in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(6, 16), nn.Unflatten(1, (4, 4)), nn.Flatten(), nn.Tanh(), nn.Linear(16, 2)
        )
        mechanism = Mechanism(Deterministic(batches=2, epochs=20), 1e-6, clipping)
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            fit(
                model,
                nn.CrossEntropyLoss(),
                (x, y),
                mechanism,
                lambda p: torch.optim.SGD(p, 0.5),
                progress=False,
                insecure_seed=0,  # the same clip-groups in both runs
            )
        found.append(functional.cross_entropy(model(x), y).item())
    assert found[1] == pytest.approx(found[0], rel=0.02)


class Attending(nn.Module):
    """A transformer's layers, whose fused kernel knows no autocast on a processor."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("clipping", [Individual(1.0), Batch(1.0), Mixed(1.0, 2)])
def test_a_transformer_trains_under_autocast_in_either_mode(clipping, training, tmp_path):
    x = torch.randn(60, 5, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0] > 0).long()
    fused = torch.backends.mha.get_fastpath_enabled()
    found = []
    for lower in (False, True):
        torch.manual_seed(0)
        model = Attending().train(training)
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            fit(
                model,
                nn.CrossEntropyLoss(),
                (x, y),
                Mechanism(Deterministic(batches=2, epochs=3), 1e-6, clipping),
                lambda p: torch.optim.SGD(p, 0.5),
                progress=False,
                insecure_seed=7,
                diagnostics=tmp_path / str(lower),
            )
        found.append(functional.cross_entropy(model.eval()(x), y).item())
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert torch.backends.mha.get_fastpath_enabled() is fused


class WithLoss(nn.Module):
    """Computes its own loss, as models of transformers do: the mean over the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 3)

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def mean_of_batch(model, batch):
    return model(**batch)["loss"]


def loss_of_each(model, batch):
    return functional.cross_entropy(model(**batch)["logits"], batch["labels"], reduction="none")


@pytest.mark.parametrize("inner", [None, LocalSteps(lambda p: torch.optim.SGD(p, 0.1), steps=2)])
@pytest.mark.parametrize("clipping", [Batch(0.3), Mixed(0.3, 3)])
def test_the_mean_loss_of_a_batch_is_enough_where_it_is_clipped_as_a_whole(
    clipping, inner, tmp_path
):
    """The mean of all records, also where they do not go through the model at once."""
    data = {"x": torch.randn(300, 6), "labels": torch.randint(0, 3, (300,))}
    found = []
    for loss in (mean_of_batch, loss_of_each):
        path = tmp_path / loss.__name__
        model = WithLoss()
        fit(
            model,
            loss,
            data,
            Mechanism(Deterministic(2), 1e-6, clipping),
            lambda p: torch.optim.SGD(p, 1.0),
            inner=inner,
            micro_batch=40,
            progress=False,
            insecure_seed=7,
            diagnostics=path,
        )
        losses = [json.loads(line).get("loss", 0.0) for line in path.read_text().splitlines()]
        found.append(torch.cat([model.body.weight.detach().reshape(-1), torch.tensor(losses)]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_it_is_not_where_records_are_clipped_one_by_one():
    data = {"x": torch.randn(30, 6), "labels": torch.randint(0, 3, (30,))}
    with pytest.raises(
        ValueError, match=r"one value for all.*the mean of a batch is enough under batch clipping"
    ):
        fit(
            WithLoss(),
            mean_of_batch,
            data,
            Mechanism(Deterministic(2), 1.0),
            lambda p: torch.optim.SGD(p, 1.0),
        )
