"""Norms must never come out too small, or a record passes with more than the clip norm."""

import pytest

torch = pytest.importorskip("torch")

from verax.training.factors import ROUNDING, Outer, Rows  # noqa: E402

WIDTH = 64


def parts(size, seed):
    """Two long vectors whose sum is ten long, and a direction."""
    rng = torch.Generator().manual_seed(seed)
    long, short, x = torch.randn(3, WIDTH, generator=rng) / WIDTH**0.5
    return torch.stack([size * long, 10.0 * short - size * long]).unsqueeze(0), x


def embedding(size, seed):
    g, _ = parts(size, seed)
    return Rows(torch.tensor([[3, 3]]), g, torch.Size([10, WIDTH])), torch.zeros(10, WIDTH)


def linear(size, seed):
    g, x = parts(size, seed)
    factor = Outer(torch.stack([x, x]).unsqueeze(0), g)
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
        assert float(factor.squares().sqrt()) == pytest.approx(float(total.norm()), rel=4 * ROUNDING)
