"""Plain chains: the gradients of a loop over records, without a graph."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax.training.gradients.functional import FunctionalGradients  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402
from verax.training.gradients.mlp import keeps_apart, linear_chain  # noqa: E402
from verax.training.gradients.per_example import PerExampleGradients  # noqa: E402

RECORDS = 6


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def agree(model, losses, batch, chained=True):
    """Norms and a weighted sum as in a loop; and whether the model was taken as a chain."""
    records = PerExampleGradients(model, losses)
    for _ in range(2):  # the first is checked against autograd, the second is not
        factors = records.factors(batch, RECORDS)
    assert (records.find_layers().chain is not None) is chained
    truth = FunctionalGradients(model, losses).one_by_one(batch, RECORDS)
    weights = torch.rand(RECORDS)
    assert {p for p in truth if truth[p].squares().any()} <= set(factors)
    for parameter, factor in factors.items():
        torch.testing.assert_close(
            factor.squares(), truth[parameter].squares(), rtol=1e-4, atol=1e-9
        )
        mine, want = torch.zeros_like(parameter), torch.zeros_like(parameter)
        factor.add(weights, mine)
        truth[parameter].add(weights, want)
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-7)


def perceptron():
    inner = nn.Sequential(nn.Identity(), nn.Linear(7, 6, bias=False), nn.Sigmoid())
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 8),
        nn.ReLU(),
        nn.Linear(8, 7),
        nn.Tanh(),
        inner,
        nn.Linear(6, 3),
    )


def frozen():
    model = perceptron()
    model[1].weight.requires_grad_(False)
    model[3].bias.requires_grad_(False)
    return model


def shared():
    layer = nn.Linear(12, 12)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(inplace=True), layer, nn.Linear(12, 3))


def squashed():
    """Activations first, in a row, and behind a layer that only reshapes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Tanh(),
        nn.Linear(12, 8),
        nn.ReLU(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.Linear(8, 6),
        nn.Flatten(),
        nn.ReLU(),
        nn.ReLU(),
        nn.Linear(6, 3),
        nn.Tanh(),
    )


def test_activations_in_place_leave_the_data_alone():
    for first in (nn.ReLU(), nn.Tanh(), nn.Sigmoid()):
        model, x = nn.Sequential(first, nn.Linear(4, 3)), torch.randn(RECORDS, 4)
        before = x.clone()
        PerExampleGradients(model, PerExampleLoss(nn.CrossEntropyLoss())).factors(
            (x, torch.arange(RECORDS) % 3), RECORDS
        )
        assert torch.equal(x, before)


@pytest.mark.parametrize(
    "make",
    [perceptron, frozen, shared, squashed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3))],
)
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MultiMarginLoss()])
def test_chains_equal_a_loop(make, loss):
    agree(
        make(), PerExampleLoss(loss), (torch.randn(RECORDS, 3, 4), torch.randint(0, 3, (RECORDS,)))
    )


def test_a_chain_on_sequences():
    batch = torch.randn(RECORDS, 5, 4), torch.randn(RECORDS, 5, 2)
    agree(
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        PerExampleLoss(nn.MSELoss()),
        batch,
    )


CLASSES = torch.tensor([0, 1, 2, 1, 0, 2])
IGNORED = torch.tensor([0, -100, 2, 1, -100, 2])
MANY = torch.rand(RECORDS, 3)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("kind", "options", "target"),
    [
        (nn.CrossEntropyLoss, {}, CLASSES),
        (nn.CrossEntropyLoss, {}, IGNORED),
        (nn.CrossEntropyLoss, {"ignore_index": 1}, CLASSES),
        (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, CLASSES),
        (nn.CrossEntropyLoss, {"weight": torch.tensor([1.0, 2.0, 3.0])}, CLASSES),
        (nn.CrossEntropyLoss, {}, MANY / MANY.sum(dim=1, keepdim=True)),
        (nn.BCEWithLogitsLoss, {}, MANY),
        (nn.BCEWithLogitsLoss, {"pos_weight": torch.tensor([1.0, 2.0, 3.0])}, MANY),
        (nn.BCEWithLogitsLoss, {"weight": torch.tensor([1.0, 2.0, 3.0])}, MANY),
        (nn.MSELoss, {}, MANY),
    ],
)
def test_closed_forms_of_losses_equal_autograd(kind, options, target, reduction):
    agree(
        nn.Linear(4, 3),
        PerExampleLoss(kind(reduction=reduction, **options)),
        (torch.randn(RECORDS, 4), target),
    )


def test_targets_to_be_ignored_may_come_later():
    """The first batch has none, so the closed form was checked without them."""
    model, losses = nn.Linear(4, 3), PerExampleLoss(nn.CrossEntropyLoss())
    records = PerExampleGradients(model, losses)
    x = torch.randn(RECORDS, 4)
    records.factors((x, CLASSES), RECORDS)
    found = records.factors((x, IGNORED), RECORDS)[model.bias].squares()
    assert found[1] < 1e-30
    assert found[0] > 1e-6


def twice(model, batch):
    return functional.cross_entropy(model(batch[0]) + model(-batch[0]), batch[1], reduction="none")


def ridge(model, batch):
    return (
        functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        + model[1].weight.square().sum()
    )


def part(model, batch):
    return functional.cross_entropy(model[1](model[0](batch[0])), batch[1], reduction="none")


@pytest.mark.parametrize("losses", [twice, ridge, part])
def test_losses_that_do_more_than_call_the_model_are_left_to_the_rules(losses):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    agree(model, losses, (torch.randn(RECORDS, 3, 4), CLASSES), chained=False)


def test_watched_or_unknown_models_are_no_chains():
    model = perceptron()
    assert linear_chain(model) is not None
    handle = model[2].register_forward_hook(lambda *_: None)
    assert linear_chain(model) is None
    handle.remove()
    changed = copy.deepcopy(model)
    changed[2].forward = torch.tanh
    assert linear_chain(changed) is None
    assert linear_chain(nn.Sequential(nn.Linear(2, 2), nn.Dropout())) is None
    assert linear_chain(nn.Sequential(nn.Flatten(0), nn.Linear(2, 2))) is None

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert linear_chain(nn.Sequential(Doubled(2, 2))) is None


def test_a_mistake_in_a_later_batch_is_not_hidden():
    records = PerExampleGradients(nn.Linear(4, 3), PerExampleLoss(nn.CrossEntropyLoss()))
    records.factors((torch.randn(RECORDS, 4), CLASSES), RECORDS)
    with pytest.raises(RuntimeError):
        records.factors((torch.randn(RECORDS, 5), CLASSES), RECORDS)


def test_patched_layers_are_not_known():
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU())
    assert keeps_apart(model)
    usual = model[0]._conv_forward
    model[0]._conv_forward = lambda x, *rest: usual(x - x.mean(0), *rest)
    assert not keeps_apart(model)
