"""Losses as people write them: one per record, and none that compares records with each other."""

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed  # noqa: E402
from verax.training import PrivateTrainer  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss, same_loss  # noqa: E402

torch.set_num_threads(1)
MADE = torch.Generator().manual_seed(4)
X, Y = torch.randn(10, 4, generator=MADE), torch.randint(0, 3, (10,), generator=MADE)


@pytest.mark.parametrize("clipping", [Individual(0.5), Batch(0.5), Mixed(0.5, 5)])
@pytest.mark.parametrize(
    "loss",
    [nn.MSELoss(), nn.L1Loss(reduction="none"), nn.SmoothL1Loss(), nn.HuberLoss(reduction="sum")],
)
@pytest.mark.parametrize(
    "model", [nn.Linear(4, 1), nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 1))]
)
def test_targets_that_would_be_compared_with_every_output_are_refused(model, loss, clipping):
    """Outputs (10, 1) and targets (10,) would broadcast to (10, 10)."""
    x = X if isinstance(model, nn.Linear) else X.unsqueeze(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = PrivateTrainer(
        model, optimizer, Mechanism(Deterministic(1), 1.0, clipping), insecure_seed=1
    )
    batch = next(trainer.batches((x, torch.randn(10))))
    with pytest.raises(
        ValueError,
        match=r"needs outputs and targets of one shape, got \(records, 1\) and \(records\)",
    ):
        trainer.step(batch, loss)


@dataclass
class Output:
    logits: torch.Tensor


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


@pytest.mark.parametrize(
    ("wrap", "open_"),
    [(lambda o: {"logits": o}, lambda o: o["logits"]), (lambda o: (o, o + 1), lambda o: o[0])],
    ids=["dictionary", "tuple"],
)
def test_reduced_losses_of_outputs_that_are_more_than_a_tensor(wrap, open_):
    model = Wrapped(wrap)
    want = functional.cross_entropy(model.layer(X), Y, reduction="none")
    found = PerExampleLoss(lambda out, goal: functional.cross_entropy(open_(out), goal))(
        model, (X, Y)
    )
    torch.testing.assert_close(found, want)


def test_a_reduced_loss_that_looks_at_values_goes_record_by_record():
    def loss(out, goal):
        value = functional.cross_entropy(out, goal)
        return value * 2.0 if value.item() > 1.0 else value

    model = nn.Linear(4, 3)
    each = functional.cross_entropy(model(X), Y, reduction="none")
    torch.testing.assert_close(
        PerExampleLoss(loss)(model, (X, Y)), torch.where(each > 1.0, 2.0 * each, each)
    )


def test_a_reduced_loss_of_an_output_that_nobody_can_take_apart_is_refused_in_words():
    loss = PerExampleLoss(lambda out, goal: functional.cross_entropy(out.logits, goal))
    with pytest.raises(ValueError, match="output of type Output: use reduction='none'"):
        loss(Wrapped(Output), (X, Y))


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.NLLLoss])
def test_ignored_classes_do_not_count_in_a_records_mean(kind):
    out, goal = (
        torch.randn(5, 3, 7, generator=MADE).log_softmax(1),
        torch.randint(0, 3, (5, 7), generator=MADE),
    )
    goal[4] = 0
    loss = kind(ignore_index=0)
    want = [loss(out[i : i + 1], goal[i : i + 1]) for i in range(4)]
    found = PerExampleLoss(loss)(nn.Identity(), (out, goal))
    torch.testing.assert_close(found[:4], torch.stack(want))
    assert float(found[4]) == 0.0  # nothing counts: no loss, in place of torch's 0 / 0


def test_equal_losses_are_one_loss(monkeypatch):
    made = []
    monkeypatch.setattr(
        Clipper,
        "__init__",
        lambda self, *a, old=Clipper.__init__: made.append(self) or old(self, *a),
    )
    model = nn.Linear(4, 3)
    run = Mechanism(Deterministic(1, epochs=4), 1.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), run, insecure_seed=1)
    for batch in trainer.batches((X, Y)):
        trainer.step(batch, nn.CrossEntropyLoss())
    assert len(made) == 1
    smooth, weighted = (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
    )
    assert not same_loss(nn.CrossEntropyLoss(), smooth)
    assert not same_loss(weighted, nn.CrossEntropyLoss(weight=torch.ones(3)))
    assert same_loss(weighted, weighted)
    assert not same_loss(lambda: None, lambda: None)
