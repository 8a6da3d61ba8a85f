"""State carried between batches, and gradients that hide from clipping, are refused."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed  # noqa: E402
from verax.training import LocalSteps, PrivateTrainer  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.clipping.local_update import MeanGradient  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402

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

    # a count is a change from pass to pass, and refused there in words
    if not isinstance(clipping, Individual):
        assert trained(Locked({"count", "outputs"}), (X, Y), clipping, rounds=3).rounds == 3
    with pytest.raises(ValueError, match="depend on earlier batches"):
        trained(Locked({"mean", "outputs"}), (X, Y), clipping, rounds=3)


def test_recurrent_state_between_batches_is_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head, self.state = (
                nn.LSTM(1, 4, batch_first=True),
                nn.Linear(4, 3),
                None,
            )

        def forward(self, x):
            before = (
                None
                if self.state is None
                else tuple(s.expand(1, len(x), 4).contiguous() for s in self.state)
            )
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
            found = (
                new
                if self.old is None
                else [x + 0.9 * y for x, y in zip(new, self.old, strict=True)]
            )
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
    clipper = Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), Batch(0.5))
    clipper._hidden_check.refuse((X, Y), len(X), list(model.parameters()))
    assert torch.equal(torch.rand(3), first)


# --- what a review broke --------------------------------------------------------------------------


def in_rounds(model, loss, data, clipping, rounds=4, **options):
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        Mechanism(Deterministic(2, rounds // 2), 1.0, clipping),
        insecure_seed=1,
        **options,
    )
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

    for model in (
        Holds(lambda y: y[0]),
        Holds(lambda y: y[-1]),
        Holds(lambda y: y.mean(0), later=3),
        Holds(lambda y: y.new_tensor([0.1 * len(y), 0.0, 0.0])),
    ):
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
    """Not pieces, records or clip-groups: their number is a secret."""
    model = Anneals()
    clipper = Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), clipping, micro_batch=4)
    into = FlatBuffer(list(model.parameters()))
    sizes = [3, records - 3] if records > 3 else [records]
    for number in range(1, 6):
        into.buffer.zero_()
        clipper.add(
            (X[:records], Y[:records]),
            records,
            into,
            sizes if isinstance(clipping, Mixed) else None,
        )
        assert float(model.passes) == number
    if isinstance(clipping, Individual) and records:
        total = into.buffer.clone()
        one = torch.zeros_like(total)
        for i in range(records):
            loss = nn.functional.cross_entropy(model.layer(X[i : i + 1]) * 5.0, Y[i : i + 1])
            g = torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
            )
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
