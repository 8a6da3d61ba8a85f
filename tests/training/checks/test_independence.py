"""Models that mix or count records are refused; those that only look like it are not."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax.training.checks.independence import MixedRecords  # noqa: E402
from verax.training.gradients.per_example import PerExampleGradients  # noqa: E402

RECORDS = 5
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Centred(nn.Module):
    """Batch norm in disguise, out of autograd's sight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x):
        return self.body(x - x.mean(dim=0).detach())


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, affine=False)),
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3).requires_grad_(False)),
        Centred(),
    ],
    ids=["plain", "no weights", "batch statistics", "frozen", "in disguise"],
)
def test_mixing_records_is_refused_in_words(model):
    batch = torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,))
    with pytest.raises(MixedRecords, match="batch clipping"):
        PerExampleGradients(model, losses).factors(batch, RECORDS)


def test_mixing_is_found_whatever_the_weights():
    """Two records, to a thousandth: with one, to a hundredth, 1 of 20 slipped through."""
    for seed in range(100):
        torch.manual_seed(seed)
        model, batch = Centred(), (torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,)))
        with pytest.raises(MixedRecords):
            PerExampleGradients(model, losses).factors(batch, RECORDS)


class Closed(nn.Module):
    """A branch that mixes records, and begins at zero."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        h = self.first(x)
        return self.out(x + self.last((h - h.mean(0)) / (h.std(0) + 1e-3)))


def test_mixing_behind_weights_that_are_zero_is_found():
    """No loss shows it yet, but the gradient of the last layer does."""
    model, batch = Closed(), (torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,)))
    before = {
        name: (p.detach().clone(), p.data_ptr(), p._version) for name, p in model.named_parameters()
    }
    with pytest.raises(MixedRecords):
        PerExampleGradients(model, losses).factors(batch, RECORDS)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name][0])
        assert (p.data_ptr(), p._version) == before[name][1:]


def test_mixing_that_begins_later_is_found_later():
    model, begun = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), False

    def later(m, batch):
        out = m(batch[0])
        return functional.cross_entropy(
            out - out.mean(0) if begun else out, batch[1], reduction="none"
        )

    batch, records = (
        (torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,))),
        PerExampleGradients(model, later),
    )
    for _ in range(4):
        records.factors(batch, RECORDS)
    begun = True  # looked at before batches 1, 2, 3, 5, 9 ...
    with pytest.raises(MixedRecords):
        records.factors(batch, RECORDS)


def test_running_statistics_are_refused():
    with pytest.raises(MixedRecords, match="track_running_stats=False"):
        PerExampleGradients(nn.InstanceNorm2d(2, track_running_stats=True), losses).factors(
            (torch.randn(RECORDS, 2, 3, 3), torch.zeros(RECORDS)), RECORDS
        )


def test_mixing_is_looked_for_among_all_records_that_go_together():
    """A neighbour a quarter of the batch away: another one among 32 than among 256."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def far(m, batch):
        x = batch[0]
        return functional.cross_entropy(
            m(0.5 * x + 0.5 * x.roll(len(x) // 64, 0)), batch[1], reduction="none"
        )

    with pytest.raises(MixedRecords):
        PerExampleGradients(model, far).factors(
            (torch.randn(256, 6), torch.randint(0, 3, (256,))), 256
        )


# --- records that are counted ---------------------------------------------------------------------


def divided(model, batch):
    return losses(model, batch) / len(batch[1])


def signed(model, batch):
    return losses(model, batch) * (1.0 if len(batch[1]) % 2 else -1.0)


class Counted(nn.Linear):
    """The losses are those of a record alone; their gradients are not."""

    def forward(self, x):
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda g: g / len(g))
        return out


@pytest.mark.parametrize("size", [2, 3, 32, 33])
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Linear(6, 3), divided),
        (nn.Linear(6, 3), signed),
        (
            nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3)),
            divided,
        ),
        (nn.Linear(6, 3), lambda model, batch: 1e-6 * divided(model, batch)),
        (nn.Sequential(Counted(6, 8), nn.Linear(8, 3)), losses),
    ],
    ids=["mean of a batch", "parity", "dropout", "small", "hook"],
)
def test_losses_that_count_records_are_refused(model, loss, size):
    """A record that is added would move the gradients of all others."""
    batch = torch.randn(size, 6), torch.randint(0, 3, (size,))
    modes = [module.training for module in model.modules()]
    with pytest.raises(MixedRecords, match="how many records"):
        PerExampleGradients(model, loss).factors(batch, size)
    assert [module.training for module in model.modules()] == modes


class Fails(nn.Module):
    """What people do in training only, and in eval mode only."""

    def __init__(self, always):
        super().__init__()
        self.body, self.drop, self.head, self.always = (
            nn.Linear(6, 8),
            nn.Dropout(0.5),
            nn.Linear(8, 3),
            always,
        )
        self.drop.eval()

    def forward(self, x):
        if not self.training and not self.always:
            raise KeyError("labels")
        return self.head(functional.dropout(self.body(x), 0.5, self.always))


@pytest.mark.parametrize("always", [True, False], ids=["random in eval mode", "no eval mode"])
def test_where_counting_cannot_be_told_nothing_is_refused(always):
    model, batch = Fails(always), (torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,)))
    PerExampleGradients(model, losses).factors(batch, RECORDS)
    assert [module.training for module in model.modules()] == [True, True, False, True]


class Faint(nn.Module):
    """Mixes records in an output so small that no loss shows it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x):
        y = self.body(x)
        return self.head(y - y.mean(0).detach()) * 1e-3


@pytest.mark.parametrize("small", [1.0, 1e-30])
def test_mixing_is_found_however_small_it_is(small):
    def square(model, batch):
        return small * (model(batch[0]) - batch[1]).square().mean(dim=1)

    with pytest.raises(
        MixedRecords, match="gradient of a record's loss depends on the other records"
    ):
        PerExampleGradients(Faint(), square).factors((torch.randn(32, 6), torch.randn(32, 1)), 32)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_rounding_is_not_taken_for_mixing(size):
    """The gradient of an exactly fitted record is rounding, which depends on shapes."""
    model, x = nn.Sequential(nn.Linear(8, 512), nn.Tanh(), nn.Linear(512, 3)), torch.randn(size, 8)
    with torch.no_grad():
        fitted = torch.cat([model(one) for one in x.split(1)])

    def square(m, batch):
        return (m(batch[0]) - batch[1]).square().mean(dim=1)

    PerExampleGradients(model, square).factors((x, fitted), size)


# --- normalisation that fails among copies --------------------------------------------------------

PLAIN_NORMALISATIONS = {
    "standard": lambda t: (t - t.mean(0)) / t.std(0),
    "scaled": lambda t: t / t.std(0),
    "range": lambda t: (t - t.amin(0)) / (t.amax(0) - t.amin(0)),
    "detached": lambda t: t / t.detach().std(0),
}


@pytest.mark.parametrize("name", PLAIN_NORMALISATIONS)
@pytest.mark.parametrize("hidden", [False, True])
def test_normalisation_without_an_epsilon_is_refused(name, hidden):
    class Normalises(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x):
            change = PLAIN_NORMALISATIONS[name]
            return self.head(change(self.body(x)) if hidden else self.body(change(x)))

    with pytest.raises(MixedRecords):
        PerExampleGradients(Normalises(), losses).factors(
            (torch.randn(16, 6), torch.randint(0, 3, (16,))), 16
        )


def test_mixing_between_the_first_and_the_last_record_is_refused():
    class Middle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            middle = x[1:-1]
            return self.layer(torch.cat([x[:1], middle - middle.mean(0), x[-1:]]))

    with pytest.raises(MixedRecords):
        PerExampleGradients(Middle(), losses).factors(
            (torch.randn(16, 6), torch.randint(0, 3, (16,))), 16
        )
