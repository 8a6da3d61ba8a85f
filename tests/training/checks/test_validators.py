"""What cannot be trained is refused in words."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import Batch, Deterministic, Mechanism  # noqa: E402
from verax.training import LocalSteps, PrivateTrainer, fit  # noqa: E402
from verax.training.clipping.local_update import MeanGradient  # noqa: E402

torch.set_num_threads(1)
X = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 3
RUN = Mechanism(Deterministic(2), 1.0, Batch(1.0))


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def fitted(data=(X, Y), loss=None, model=None, optimizer=sgd, **options):
    return fit(
        model or nn.Linear(4, 3), loss or nn.CrossEntropyLoss(), data, RUN, optimizer, **options
    )


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (sgd(nn.Linear(4, 3).parameters()), r"an optimizer \(SGD\)$"),
        ("adam", "'adam'"),
        (None, "None"),
    ],
)
def test_fit_takes_what_makes_an_optimizer(optimizer, words):
    with pytest.raises(
        ValueError,
        match=rf"optimizer must be a function .* lambda p: torch\.optim\.SGD.* got {words}",
    ):
        fitted(optimizer=optimizer)


@pytest.mark.parametrize("optimizer", [sgd, torch.optim.SGD, lambda p: None])
def test_a_trainer_takes_an_optimizer(optimizer):
    with pytest.raises(
        ValueError, match="optimizer must be an optimizer over the model's parameters"
    ):
        PrivateTrainer(nn.Linear(4, 3), optimizer, RUN)
    with pytest.raises(ValueError, match="got None"):
        fitted(optimizer=lambda p: None)


@pytest.mark.parametrize(
    "inner",
    [
        torch.optim.Adam,
        sgd(nn.Linear(4, 3).parameters()),
        sgd,
        partial(torch.optim.SGD, lr=0.1),
        LocalSteps,
        3,
        lambda model, losses, batch, records: [],
    ],
)
def test_an_optimizer_is_no_inner_algorithm(inner):
    with pytest.raises(
        ValueError,
        match=r"inner must be LocalSteps\(lambda p: torch\.optim\.Adam\(p, 0\.01\), steps=3\)",
    ):
        fitted(inner=inner)


@pytest.mark.parametrize(
    "inner",
    [
        LocalSteps(sgd),
        MeanGradient(),
        lambda *given: MeanGradient()(*given),
        partial(MeanGradient().__call__),
        lambda model, losses, batch, records, parameters, more=0: [
            torch.ones_like(p) for p in parameters
        ],
    ],
)
def test_inner_algorithms_of_every_form_run(inner):
    assert fitted(inner=inner).trainer.rounds == 2


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last((x * self.turn).real)


def test_complex_parameters_are_refused_unless_they_are_frozen():
    model = Turned()
    with pytest.raises(ValueError, match=r"got turn of torch\.complex64.*torch\.view_as_real"):
        fitted(model=model)
    model.turn.requires_grad_(False)
    assert fitted(model=model).trainer.rounds == 2


def of_both(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


class Both(nn.CrossEntropyLoss):
    def forward(self, model, batch):
        return of_both(model, batch)


@pytest.mark.parametrize("data", [{"x": X, "y": Y}, X])
def test_criteria_of_outputs_and_targets_are_not_for_dictionaries(data):
    with pytest.raises(
        ValueError, match=r"loss must be a function of model and batch .* got CrossEntropyLoss"
    ):
        fitted(data)


@pytest.mark.parametrize("loss", [of_both, Both()])
def test_losses_of_model_and_batch_are(loss):
    assert fitted({"x": X, "y": Y}, loss).trainer.rounds == 2


def test_an_optimizer_of_sparse_gradients_is_refused_because_noise_is_everywhere():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 3, sparse=True)

        def forward(self, x):
            return self.table(x).mean(1)

    data = torch.arange(36).reshape(12, 3) % 10, Y
    with pytest.raises(ValueError, match=r"got SparseAdam, which takes sparse ones only; use Adam"):
        fitted(data, model=Sparse(), optimizer=lambda p: torch.optim.SparseAdam(list(p), 0.1))
    assert (
        fitted(data, model=Sparse(), optimizer=lambda p: torch.optim.Adam(p, 0.1)).trainer.rounds
        == 2
    )
