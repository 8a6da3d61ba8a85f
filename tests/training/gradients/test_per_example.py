"""Per-example gradients against a loop over records, for the usual layers."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import Batch, Individual, Mixed  # noqa: E402
from verax.training.checks.trial_runs import loss_per_record  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.gradients.functional import FunctionalGradients  # noqa: E402
from verax.training.gradients.per_example import PerExampleGradients  # noqa: E402

RECORDS = 5
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def check(model, x, classes, general=False, tolerance=1e-5):
    """Norms and a weighted sum equal those of a loop, by rules unless said otherwise."""
    batch = x, torch.randint(0, classes, (len(x),))
    keys, records = list(model.state_dict()), PerExampleGradients(model, losses)
    factors = records.factors(batch, len(x))
    assert records._rules_failed is general
    truth = FunctionalGradients(model, losses).one_by_one(batch, len(x))
    weights = torch.rand(len(x))
    squares = sum(factor.squares() for factor in truth.values())
    torch.testing.assert_close(
        sum(f.squares() for f in factors.values()), squares, rtol=10 * tolerance, atol=1e-9
    )
    scale = float(squares.sum().sqrt())
    for parameter, factor in truth.items():
        mine, want = torch.zeros_like(parameter), torch.zeros_like(parameter)
        factor.add(weights, want)
        if parameter in factors:
            factors[parameter].add(weights, mine)
        assert float((mine - want).norm()) <= tolerance * (float(want.norm()) + 0.1 * scale)
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)


class Transformer(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.embed, self.place = nn.Embedding(20, 8), nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.batch_first = nn.Linear(8, 3), batch_first

    def forward(self, x):
        # an expanded, non-contiguous index
        x = self.embed(x) + self.place(torch.arange(x.shape[1]).expand_as(x))
        x = self.layers(x) if self.batch_first else self.layers(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x.mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self, kind, batch_first, **more):
        super().__init__()
        self.body = kind(4, 6, 2, batch_first=batch_first, **more)
        self.head, self.batch_first = (
            nn.Linear(12 if more.get("bidirectional") else 6, 3),
            batch_first,
        )

    def forward(self, x):
        out, state = self.body(x if self.batch_first else x.transpose(0, 1))
        last = state[0] if isinstance(state, tuple) else state
        return self.head(out[:, -1] if self.batch_first else out[-1]) + last.sum(
            dim=(0, 2)
        ).unsqueeze(1)


class Cross(nn.Module):
    """Attention between two sequences, masked, with weights asked for."""

    def __init__(self, **more):
        super().__init__()
        self.attention, self.head = (
            nn.MultiheadAttention(8, 2, batch_first=True, **more),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        other = x.flip(1)[:, :3] * 0.5
        hidden = torch.zeros(len(x), 3, dtype=torch.bool)
        hidden[:, 2] = True
        width = self.attention.kdim
        out, weights = self.attention(
            x, other[..., :width], other[..., :width], key_padding_mask=hidden
        )
        return self.head(out.mean(dim=1)) + weights.sum(dim=(1, 2)).unsqueeze(1)


CONV = nn.Sequential(
    nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, dilation=2),
    nn.GroupNorm(2, 8),
    nn.ReLU(),
    nn.Conv2d(8, 4, (3, 1), padding="same", padding_mode="circular"),
    nn.Flatten(),
    nn.Linear(64, 3),
)
MODELS = {
    "logistic": (nn.Linear(7, 3), (7,)),
    "mlp, relu in place": (
        nn.Sequential(nn.Linear(7, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)),
        (7,),
    ),
    "lenet": (
        nn.Sequential(
            nn.Conv2d(1, 4, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 6, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96, 3),
        ),
        (1, 12, 12),
    ),
    "convolutions": (CONV, (4, 9, 9)),
    "instance norm": (
        nn.Sequential(nn.InstanceNorm2d(2, affine=True), nn.Flatten(), nn.Linear(18, 3)),
        (2, 3, 3),
    ),
    "conv1d": (
        nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(56, 3)),
        (4, 9),
    ),
    "conv3d": (
        nn.Sequential(nn.Conv3d(2, 3, 2, bias=False), nn.Flatten(), nn.Linear(81, 3)),
        (2, 4, 4, 4),
    ),
    "linear on 3-D": (
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), Pool(), nn.Linear(8, 3)),
        (6, 4),
    ),
    "linear on 4-D": (
        nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Flatten(), nn.Linear(48, 3)),
        (2, 3, 4),
    ),
    "wide linear, few positions": (
        nn.Sequential(nn.Linear(64, 64), Pool(), nn.Linear(64, 3)),
        (2, 64),
    ),
    "layer norm over two dimensions": (
        nn.Sequential(nn.LayerNorm([3, 4]), nn.Flatten(), nn.Linear(12, 3)),
        (3, 4),
    ),
    "lstm": (Recurrent(nn.LSTM, True, bidirectional=True), (4, 4)),
    "lstm, time first": (Recurrent(nn.LSTM, False), (4, 4)),
    "gru": (Recurrent(nn.GRU, True), (4, 4)),
    "rnn": (Recurrent(nn.RNN, False, nonlinearity="relu", bias=False), (4, 4)),
    "attention": (Cross(), (4, 8)),
    "attention, other key width": (Cross(kdim=5, vdim=5), (4, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_rules_equal_a_loop(name):
    model, shape = MODELS[name]
    check(model, torch.randn(RECORDS, *shape), 3)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("length", [6, RECORDS])
def test_a_transformer_wherever_its_records_are(batch_first, length):
    check(Transformer(batch_first), torch.randint(0, 20, (RECORDS, length)), 3)


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x.reshape(-1, 4)).relu().view(len(x), -1, 8).mean(dim=1))


def test_positions_folded_into_the_first_dimension():
    model = Folded()
    check(model, torch.randn(RECORDS, 6, 4), 3)
    records = PerExampleGradients(model, losses)
    for size in (RECORDS, 3, 8):  # batches of all sizes, as Poisson sampling draws them
        batch = torch.randn(size, 6, 4), torch.randint(0, 3, (size,))
        factors = records.factors(batch, size)
        truth = records._functional.one_by_one(batch, size)
        torch.testing.assert_close(
            sum(f.squares() for f in factors.values()),
            sum(f.squares() for f in truth.values()),
            rtol=1e-4,
            atol=1e-8,
        )


class Tied(nn.Module):
    def __init__(self, functional_use):
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.decode = None if functional_use else nn.Linear(8, 11, bias=False)
        if self.decode is not None:
            self.decode.weight = self.embed.weight

    def forward(self, x):
        hidden = self.embed(x).mean(dim=1)
        return (
            functional.linear(hidden, self.embed.weight)
            if self.decode is None
            else self.decode(hidden)
        )


@pytest.mark.parametrize("functional_use", [False, True])
def test_tied_weights(functional_use):
    check(Tied(functional_use), torch.randint(0, 11, (RECORDS, 4)), 11, general=functional_use)


def test_a_module_used_twice():
    shared = nn.Linear(6, 6)
    check(
        nn.Sequential(shared, nn.ReLU(inplace=True), shared, nn.Tanh(), nn.Linear(6, 3)),
        torch.randn(RECORDS, 6),
        3,
    )


def test_keyword_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 3)

        def forward(self, x):
            return self.body(input=x)

    check(Named(), torch.randn(RECORDS, 6), 3)


def test_frozen_unfrozen_and_unused_parameters():
    model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 3), "unused": nn.Linear(2, 2)})

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["b"](self.parts["a"](x).relu())

    whole, x = Model(), torch.randn(RECORDS, 6)
    records = PerExampleGradients(whole, losses)
    batch = x, torch.randint(0, 3, (RECORDS,))
    assert len(records.factors(batch, RECORDS)) == 4
    model["a"].requires_grad_(False)
    assert len(records.factors(batch, RECORDS)) == 2
    check(whole, x, 3)
    model["a"].weight.requires_grad_(True)
    assert len(records.factors(batch, RECORDS)) == 3
    check(whole, x, 3)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.body = nn.Parameter(torch.randn(6, 3)), nn.Linear(6, 6)

    def forward(self, x):
        return self.body(x).sin() @ self.weight


class Branching(Own):
    def forward(self, x):
        return (
            super().forward(x) * (2.0 if float(x.sum()) > 0.0 else 1.0)
            if len(x) == 1
            else super().forward(x)
        )


@pytest.mark.parametrize(
    "model", [Own(), nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), nn.Bilinear(6, 6, 3)]
)
def test_layers_without_rules_go_through_torch_func(model):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x, x) if isinstance(self.inner, nn.Bilinear) else self.inner(x)

    check(Both(), torch.randn(RECORDS, 6), 3)


def test_control_flow_that_cannot_be_vectorised_goes_record_by_record():
    records = PerExampleGradients(Branching(), losses)
    records.factors((torch.randn(RECORDS, 6), torch.randint(0, 3, (RECORDS,))), RECORDS)
    assert records._functional.not_vectorisable


@given(
    st.lists(st.sampled_from(["linear", "norm", "relu", "conv", "tanh"]), min_size=1, max_size=5),
    st.integers(2, 6),
)
@settings(max_examples=40)
def test_random_small_modules(kinds, size):
    width = 4
    make = {
        "linear": lambda: nn.Linear(5, 5),
        "norm": lambda: nn.LayerNorm(5),
        "relu": lambda: nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True)),
        "conv": lambda: nn.Conv1d(width, width, 3, padding=1),
        "tanh": nn.Tanh,
    }
    layers = [make[kind]() for kind in kinds]
    check(
        nn.Sequential(*layers, nn.Flatten(), nn.Linear(20, 3)),
        torch.randn(size, width, 5),
        3,
        tolerance=3e-5,
    )


# --- what must be refused -------------------------------------------------------------------------


class Functional(nn.Module):
    """Uses its layer's weights, not its layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return functional.linear(torch.tanh(x), self.layer.weight, self.layer.bias)


def test_layers_that_are_used_by_their_weights_only():
    check(Functional(), torch.randn(RECORDS, 6), 3, general=True)


def test_frozen_batch_norm_in_eval_mode_is_fine():
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    model[1].eval().requires_grad_(False)
    check(model, torch.randn(RECORDS, 6), 3)


@pytest.mark.parametrize("shape", [(), (3,), (RECORDS, 2)])
def test_losses_must_be_one_per_record(shape):
    with pytest.raises(ValueError, match="one value per record"):
        loss_per_record(torch.zeros(shape), RECORDS)


def test_half_precision():
    model = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)).to(torch.bfloat16)
    batch = torch.randn(RECORDS, 7, dtype=torch.bfloat16), torch.randint(0, 3, (RECORDS,))
    records = PerExampleGradients(model, losses)
    factors = records.factors(batch, RECORDS)
    truth = records._functional.one_by_one(batch, RECORDS)
    assert not records._rules_failed
    torch.testing.assert_close(
        sum(f.squares() for f in factors.values()),
        sum(f.squares() for f in truth.values()),
        rtol=0.05,
        atol=1e-3,
    )


@settings(max_examples=60, deadline=None)
@given(
    dims=st.integers(1, 3),
    into=st.sampled_from([1, 2, 6, 40]),
    out=st.sampled_from([2, 6, 32, 34]),
    groups=st.sampled_from([1, 1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.sampled_from([0, 1, "circular"]),
    last=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_every_order_that_a_convolution_may_lie_in(
    dims, into, out, groups, kernel, stride, dilation, padding, last, seed
):
    torch.manual_seed(seed)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    groups, mode = (
        (groups if into % groups == 0 else 1),
        {"padding_mode": "circular"} if padding == "circular" else {},
    )
    around = 1 if padding == "circular" else padding
    layer = kind(into, out, kernel, stride, around, dilation, groups, **mode)
    sides = (7, 6, 5)[-dims:]
    width = layer(torch.zeros(1, into, *sides)).numel()
    model = nn.Sequential(layer, nn.Flatten(), nn.Tanh(), nn.Linear(width, 3))
    x = torch.randn(4, into, *sides)
    check(model, x.contiguous(memory_format=torch.channels_last) if last and dims == 2 else x, 3)


class Viewed(nn.Module):
    """Takes a view of an activation, which fits one order of memory only."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (
            nn.Conv2d(2, 3, 3),
            nn.Conv2d(3, 4, 3, stride=2),
            nn.Linear(16, 3),
        )

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.tanh(self.first(x)))).view(len(x), -1))


@pytest.mark.parametrize("last", [True, False])
def test_images_lie_in_the_order_that_the_model_bears(last):
    """The channels go last by themselves; a model that cannot bear that gets the order it knows."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(75, 3)) if last else Viewed()
    x, records = torch.randn(RECORDS, 2, 7, 7), PerExampleGradients(model, losses)
    check(model, x, 3)
    for _ in range(2):
        records.factors((x, torch.zeros(RECORDS, dtype=torch.int64)), RECORDS)
    assert records.channels._accepted is last


@pytest.mark.parametrize("last", [True, False])
def test_clip_groups_of_images_do_too(last):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(75, 3)) if last else Viewed()
    batch, parameters = (
        (torch.randn(6, 2, 7, 7), torch.zeros(6, dtype=torch.int64)),
        list(model.parameters()),
    )
    clipper, into = Clipper(model, losses, Batch(1e6)), FlatBuffer(parameters)
    clipper.add(batch, 6, into)
    assert clipper._gradients.channels._accepted is last
    exact = torch.autograd.grad(losses(model, batch).mean(), parameters)
    torch.testing.assert_close(
        into.buffer, torch.cat([g.flatten() for g in exact]), rtol=1e-4, atol=1e-6
    )


class Frames(nn.Module):
    """Several images a record, folded into one dimension for the convolution."""

    def __init__(self):
        super().__init__()
        self.see, self.head = nn.Conv2d(2, 3, 3), nn.Linear(27, 3)

    def forward(self, x):
        seen = self.see(x.flatten(0, 1)).unflatten(0, (len(x), -1))
        return self.head(torch.relu(seen).mean(dim=1).flatten(1))


def test_images_folded_into_the_records():
    check(Frames(), torch.randn(6, 4, 2, 5, 5), 3)


def test_a_chain_whose_loss_calls_it_in_pieces_takes_another_way():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def in_pieces(m, batch):
        out = torch.cat([m(piece) for piece in batch[0].split(64)])
        return functional.cross_entropy(out, batch[1], reduction="none")

    batch = torch.randn(200, 4), torch.randint(0, 3, (200,))
    records = PerExampleGradients(model, in_pieces)
    mine = sum(f.squares() for f in records.factors(batch, 200).values())
    torch.testing.assert_close(
        mine, sum(f.squares() for f in records._functional.one_by_one(batch, 200).values())
    )


def test_a_batch_may_hold_what_is_not_one_for_each_record():
    model = nn.Linear(4, 40)

    def weighted(m, batch):
        return functional.cross_entropy(m(batch[0]), batch[2], batch[1], reduction="none")

    for records in (8, 50):
        batch = torch.randn(records, 4), torch.rand(40), torch.randint(0, 40, (records,))
        PerExampleGradients(model, weighted).factors(batch, records)


def test_one_bad_record_does_not_change_the_way_of_the_next_batches():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 3))
    records, x, y = (
        PerExampleGradients(model, losses),
        torch.randn(8, 1, 5, 5),
        torch.zeros(8, dtype=torch.int64),
    )
    bad = x.clone()
    bad[-1] = float("nan")
    records.factors((bad, y), 8)
    records.factors((x, y), 8)
    assert not records._rules_failed


# --- where the rules do not apply -----------------------------------------------------------------


class Flagged(nn.Module):
    """Records with a flag use a weight behind the rules' back; the first and the last have none."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        y = torch.tanh(self.body(x))
        return self.head(y + (x[:, :1] > 0.0) * functional.linear(y, self.body.weight))


def test_what_some_records_do_is_checked():
    x = torch.randn(8, 6)
    x[:, 0] = torch.tensor([-1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0])
    check(Flagged(), x, 3, general=True)


class Largest(torch.autograd.Function):
    """Divides gradients by the largest one of the batch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / g.abs().max()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(Largest.apply(self.body(x))))


def test_the_first_record_is_checked_as_the_last_is():
    """The last record has the largest gradient: it alone would show nothing."""
    model, x, y = Scaled(), torch.randn(8, 6), torch.randint(0, 3, (8,))
    out = model.body(x).detach().requires_grad_()
    (g,) = torch.autograd.grad(
        functional.cross_entropy(model.head(torch.tanh(out)), y, reduction="sum"), out
    )
    order = g.abs().amax(dim=1).argsort()
    batch, records = (x[order], y[order]), PerExampleGradients(model, losses)
    factors, truth = records.factors(batch, 8), records._functional.one_by_one(batch, 8)
    for parameter, factor in truth.items():
        torch.testing.assert_close(
            factors[parameter].squares(), factor.squares(), rtol=1e-4, atol=1e-9
        )


class Windows(nn.Module):
    """A layer on windows of a record, folded into the first dimension."""

    def __init__(self, layer, *widths):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(*widths)

    def forward(self, x):
        folded = x.reshape(-1, 3, x.shape[-1])
        if isinstance(self.layer, nn.MultiheadAttention):
            out = self.layer(folded, folded, folded, need_weights=False)[0]
        else:
            out = self.layer(folded)
        out = out[0] if isinstance(out, tuple) else out
        return self.head(out.reshape(len(x), -1, out.shape[-1]).mean(dim=1))


class Axial(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        total = 0.0
        for image in (x, x.transpose(1, 2)):
            lines = image.flatten(0, 1)
            total = total + self.layer(lines, lines, lines)[0].unflatten(0, x.shape[:2]).mean(
                dim=(1, 2)
            )
        return self.head(total)


class BothWays(nn.Module):
    """Records in the first dimension, and again in the second."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(
            torch.tanh(self.body(x.mean(1))) + torch.tanh(self.body(x.transpose(0, 1))).mean(0)
        )


APART = {
    "attention": (Windows(nn.MultiheadAttention(8, 2, batch_first=True), 8, 3), (6, 8)),
    "transformer": (
        Windows(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 8, 3),
        (6, 8),
    ),
    "lstm": (Windows(nn.LSTM(8, 5, batch_first=True), 5, 3), (6, 8)),
    "axial attention": (Axial(), (4, 4, 4)),
    "two dimensions": (BothWays(), (6, 8)),
    "two dimensions of one size": (BothWays(), (RECORDS, 8)),
}


@pytest.mark.parametrize("name", APART)
def test_layers_whose_records_are_elsewhere_take_the_general_way(name):
    model, shape = APART[name]
    check(model, torch.randn(RECORDS, *shape), 3, general=True)


def test_windows_that_come_later_are_noticed():
    """Only one window a record was checked; two would be clipped as two records."""
    model = Windows(nn.MultiheadAttention(8, 2, batch_first=True), 8, 3)
    records = PerExampleGradients(model, losses)
    for windows in (1, 2):
        batch = torch.randn(RECORDS, 3 * windows, 8), torch.randint(0, 3, (RECORDS,))
        factors, truth = (
            records.factors(batch, RECORDS),
            records._functional.one_by_one(batch, RECORDS),
        )
        mine, want = (sum(f.squares() for f in found.values()) for found in (factors, truth))
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-8)
        assert records._rules_failed is (windows == 2)


def test_gradients_of_an_embedding_may_be_sparse():
    check(
        nn.Sequential(nn.Embedding(20, 8, sparse=True), Pool(), nn.Linear(8, 3)),
        torch.randint(0, 20, (8, 4)),
        3,
    )


# --- a group norm whose input needs no gradient ---------------------------------------------------


@pytest.mark.parametrize("clipping", [Individual(0.1), Batch(0.1), Mixed(0.1, 2)])
@pytest.mark.parametrize(
    "first", [nn.Conv2d(3, 8, 3).requires_grad_(False), nn.Identity()], ids=["frozen", "none"]
)
@pytest.mark.parametrize("keyword", [False, True])
def test_group_norms_before_the_first_trained_layer(clipping, first, keyword):
    """In our order of memory torch's derivative of such a norm ended the process."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = first, nn.GroupNorm(1, 8 if isinstance(first, nn.Conv2d) else 3)
            self.conv, self.head = nn.Conv2d(self.norm.num_channels, 4, 3), nn.Linear(4, 3)

        def forward(self, x):
            x = self.first(x)
            x = self.norm(input=x) if keyword else self.norm(x)
            return self.head(torch.relu(self.conv(x)).mean(dim=(2, 3)))

    model, batch = Model(), (torch.randn(12, 3, 8, 8), torch.randint(0, 3, (12,)))
    into = FlatBuffer([p for p in model.parameters() if p.requires_grad])
    Clipper(model, losses, clipping).add(
        batch, 12, into, [6, 6] if isinstance(clipping, Mixed) else None
    )
    assert 0.0 < float(into.buffer.norm()) <= 1.2
    assert not model.norm._forward_pre_hooks


# --- layers whose gradients come later ------------------------------------------------------------


class TimeMajor(nn.Module):
    """Records in the second dimension, or in blocks, behind a head that begins at zero."""

    def __init__(self, folded):
        super().__init__()
        self.body, self.head, self.folded = nn.Linear(6, 5), nn.Linear(5, 3), folded
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        times = x.transpose(0, 1)
        if self.folded:
            return self.head(
                self.body(times.reshape(-1, 6)).tanh().view(*times.shape[:2], 5).mean(0)
            )
        return self.head(self.body(times).tanh().mean(0))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("times", [4, 8])
def test_a_head_that_begins_at_zero_hides_nothing(folded, times):
    model, x, y = TimeMajor(folded), torch.randn(8, times, 6), torch.randint(0, 3, (8,))
    records = PerExampleGradients(model, losses)
    for _ in range(3):
        factors, truth = records.factors((x, y), 8), records._functional.one_by_one((x, y), 8)
        for parameter, factor in truth.items():
            mine = factors[parameter].squares() if parameter in factors else torch.zeros(8)
            torch.testing.assert_close(mine, factor.squares(), rtol=1e-4, atol=1e-9)
        with torch.no_grad():
            model.head.weight += torch.randn(3, 5)


class Opens(nn.Module):
    """A branch that is connected from the third batch on."""

    def __init__(self):
        super().__init__()
        self.body, self.branch, self.head, self.open = (
            nn.Linear(6, 5),
            nn.Linear(6, 5),
            nn.Linear(5, 3),
            False,
        )

    def forward(self, x):
        side = self.branch(x.transpose(0, 1)).mean(0)
        return self.head(self.body(x.mean(1)).tanh() + (side if self.open else side.detach()))


def test_a_branch_that_is_connected_later_is_looked_at_then():
    model, x, y = Opens(), torch.randn(8, 8, 6), torch.randint(0, 3, (8,))
    records = PerExampleGradients(model, losses)
    for number in range(5):
        model.open = number >= 2
        factors, truth = records.factors((x, y), 8), records._functional.one_by_one((x, y), 8)
        for parameter, factor in truth.items():
            mine = factors[parameter].squares() if parameter in factors else torch.zeros(8)
            torch.testing.assert_close(mine, factor.squares(), rtol=1e-4, atol=1e-9)


def test_layers_in_which_most_records_are_dead_go_by_the_rules():
    model = nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 2))
    x = -torch.ones(9, 3)
    x[2] = 1.0  # neither the first nor the last nor the one in between
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()

    class Called(nn.Module):  # no plain chain
        def __init__(self):
            super().__init__()
            self.layers = model

        def forward(self, x):
            return self.layers(x)

    called = Called()
    records = PerExampleGradients(called, losses)
    batch = x, torch.zeros(9, dtype=torch.long)
    records.factors(batch, 9)
    assert records._checked
    check(called, x, 2)


@pytest.mark.parametrize(
    "normed", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm]
)
def test_models_with_spectral_norms_are_vectorised(normed):
    model = nn.Sequential(normed(nn.Linear(3, 4)), nn.Tanh(), normed(nn.Linear(4, 2)))
    clipper = Clipper(model, losses, Individual(1.0))
    for _ in range(2):
        batch = torch.randn(RECORDS, 3), torch.zeros(RECORDS, dtype=torch.long)
        clipper.add(batch, RECORDS, FlatBuffer(model.parameters()))
    assert not clipper._gradients._functional.not_vectorisable


def test_one_looks_again_with_few_records():
    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = nn.Linear(3, 2), []

        def forward(self, x):
            self.seen.append(len(x))
            return self.layer(x)

    model = Watching()
    records, batch = (
        PerExampleGradients(model, losses),
        (torch.randn(30, 3), torch.zeros(30, dtype=torch.long)),
    )
    records.factors(batch, 30)
    model.seen.clear()
    records.factors(batch, 30)
    assert sorted(model.seen)[-2] <= 16
