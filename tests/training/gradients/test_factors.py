"""Norms must never come out too small, or a record passes with more than the clip norm."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from verax import Batch, Individual, Mixed  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.gradients.factors import EmbeddingRows, OuterProductSum  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402
from verax.training.gradients.norms import ROUNDING, norm_function, row_norms  # noqa: E402

WIDTH = 64


def parts(size, seed):
    """Two long vectors whose sum is ten long, and a direction."""
    rng = torch.Generator().manual_seed(seed)
    long, short, x = torch.randn(3, WIDTH, generator=rng) / WIDTH**0.5
    return torch.stack([size * long, 10.0 * short - size * long]).unsqueeze(0), x


def embedding(size, seed):
    g, _ = parts(size, seed)
    return EmbeddingRows(torch.tensor([[3, 3]]), g, torch.Size([10, WIDTH])), torch.zeros(10, WIDTH)


def linear(size, seed):
    g, x = parts(size, seed)
    factor = OuterProductSum(torch.stack([x, x]).unsqueeze(0), g)
    assert factor._ghost  # of the two ways, the one with Gram matrices
    return factor, torch.zeros(WIDTH, WIDTH)


@pytest.mark.parametrize("make", [embedding, linear])
@pytest.mark.parametrize("size", [1e1, 1e3, 1e4, 1e5, 1e6, 1e12])
def test_parts_that_cancel_are_clipped_all_the_same(make, size):
    """From Gram matrices alone the clipped gradient is up to 13 long in a few of these."""
    for seed in range(100):
        factor, total = make(size, seed)
        factor.add((1.0 / factor.squares().sqrt()).clamp(max=1.0), total)
        assert float(total.double().norm()) <= 1.0 + ROUNDING


@pytest.mark.parametrize("make", [embedding, linear])
def test_what_does_not_cancel_keeps_its_norm(make):
    for seed in range(20):
        factor, total = make(1.0, seed)
        factor.add(torch.ones(1), total)
        assert float(factor.squares().sqrt()) == pytest.approx(
            float(total.norm()), rel=4 * ROUNDING
        )


@pytest.mark.parametrize("size", [10, 2048, 2049, 5000, 2**20 + 17, 10**7])
@pytest.mark.parametrize("value", [0.1, 0.7, None])
def test_the_norm_of_many_numbers(size, value):
    """A plain norm in single precision is a hundredth off for ten million equal ones."""
    x = torch.randn(1, size) if value is None else torch.full((1, size), value)
    assert float(row_norms(x)) == pytest.approx(float(x.double().norm()), rel=ROUNDING / 4)


@pytest.mark.parametrize("shape", [(4, 203_530), (4, 203_776), (300, 2049), (1, 2**17), (3, 4000)])
def test_norms_of_rows_that_lie_apart(shape):
    rows = torch.randn(shape[0], shape[1] + 16, requires_grad=True)[:, : shape[1]]
    exact = rows.detach().double().norm(dim=1)
    with torch.no_grad():
        assert torch.allclose(row_norms(rows).double(), exact, rtol=ROUNDING / 4)


@pytest.mark.parametrize("size", [100, 5000, 2**18, 2**18 + 5])
@pytest.mark.parametrize("value", [1e30, -1e30, float("inf"), float("nan")])
def test_what_has_no_norm_in_single_precision_is_not_finite(size, value):
    """And nobody is warned of it: it is refused."""
    for at in (0, size - 1):
        rows = torch.randn(2, size)
        rows[1, at] = value
        first, second = row_norms(rows).tolist()
        assert math.isfinite(first)
        assert not math.isfinite(second)


@pytest.mark.parametrize("size", [100, 5000, 2**18, 2**18 + 5])
def test_norms_of_memory_that_is_written_again(size):
    rows = torch.randn(2, size)
    norms = norm_function(rows)
    for _ in range(3):
        rows.normal_()
        assert torch.allclose(norms(), rows.norm(dim=1), rtol=1e-4)


def contribution(model, losses, batch, clipping):
    into = FlatBuffer(model.parameters())
    Clipper(model, losses, clipping).add(batch, 1, into)
    return float(into.buffer.double().norm()) / clipping.norm


@pytest.mark.parametrize("clipping", [Individual(1.0), Batch(1.0)])
def test_many_parameters_are_clipped_to_the_norm(clipping):
    size = 10**6
    for g in (
        torch.full((size,), 0.7),
        torch.cat([torch.ones(64), torch.full((size - 64,), 2.0**-12.51)]),
    ):
        model = nn.Linear(1, size, bias=False)
        assert (
            contribution(model, lambda m, b, g=g: (m(b) * g).sum(1), torch.ones(1, 1), clipping)
            <= 1.0 + 1e-6
        )


def test_a_gradient_whose_square_vanishes_may_meet_a_large_input():
    """x g is above the clip norm, and the square of g is 0 in single precision."""
    model = nn.Linear(1, 16, bias=False)

    def losses(m, batch):
        return (m(batch) * 2e-23).sum(1)

    clipper, into = Clipper(model, losses, Individual(1e-4)), FlatBuffer(model.parameters())
    clipper.add(torch.full((2, 1), 1e19), 2, into)
    assert float(into.buffer.double().norm()) <= 2e-4


def test_autocast_around_a_step_does_not_reach_the_norms():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())

    def losses(m, batch):
        return (100.0 * m(batch)).sum(dim=(1, 2))

    clipper, into = Clipper(model, losses, Individual(1.0)), FlatBuffer(model.parameters())
    x = torch.randn(1, 2, 64).expand(4, 2, 64)
    with torch.autocast("cpu", torch.bfloat16):
        clipper.add(x, 4, into)
    assert float(into.buffer.double().norm()) <= 4.0001


@pytest.mark.parametrize("clipping", [Individual(1e-3), Mixed(1e-3, 4)])
@pytest.mark.parametrize("records", [50, 300])
def test_the_rounding_of_the_others_stays_within_the_room_that_clipping_leaves(clipping, records):
    """Without the record of the longest gradients, the sum moves by a clip norm at most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 5))
    clipper = Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), clipping)
    x, y = torch.randn(records, 40), torch.randint(0, 5, (records,))
    x[-1] *= 100.0

    def total(end):
        into, rest = FlatBuffer(model.parameters()), end - 3 * (records // 4)
        clipper.add((x[:end], y[:end]), end, into, [*[records // 4] * 3, rest])
        return into.buffer.double()

    most = 1.0 if isinstance(clipping, Individual) else 2.0
    assert 0.0 < float((total(records) - total(records - 1)).norm()) <= most * clipping.norm
