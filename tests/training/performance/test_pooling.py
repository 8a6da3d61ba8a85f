"""Average pooling by slices: torch's means and gradients, and an unchanged model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from verax.training.performance.pooling import _WindowMeans, pool_by_slices  # noqa: E402


def images(shape, last=False, dtype=None, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def both(layer, x):
    """Output and input's gradient both ways, and whether slices were used."""
    found, calls, usual = [], [], _WindowMeans.apply
    weights = images(layer(x).shape, dtype=torch.float64, seed=1)
    for patch in (False, True):
        seen = x.clone().requires_grad_()
        if patch:
            with pytest.MonkeyPatch.context() as patched, pool_by_slices(layer):
                patched.setattr(
                    _WindowMeans, "apply", lambda *given: calls.append(1) or usual(*given)
                )
                y = layer(seen)
        else:
            y = layer(seen)
        (y.double() * weights).sum().backward()
        found.append((y.detach(), seen.grad))
    return *found, bool(calls)


@given(
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    places=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    images_=st.integers(0, 3),
    channels=st.integers(1, 5),
    last=st.booleans(),
    double=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_equal_to_torch(window, places, images_, channels, last, double):
    shape = images_, channels, window[0] * places[0], window[1] * places[1]
    x = images(shape, last, torch.float64 if double else torch.float32)
    (y, g), (mine, mine_g), sliced = both(nn.AvgPool2d(window), x)
    assert sliced is (window != (1, 1))
    tolerance = 1e-13 if double else 1e-6
    torch.testing.assert_close(mine, y, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mine_g, g, rtol=tolerance, atol=tolerance)
    assert mine.dtype == y.dtype


def test_nothing_is_written_to_the_input():
    x = images((2, 3, 4, 4))
    before = x.clone()
    for window in (1, 2, (1, 2), (2, 1)):
        layer = nn.AvgPool2d(window)
        with pool_by_slices(layer):
            layer(x).zero_()
        assert torch.equal(x, before)


@pytest.mark.parametrize("size", [(2,), [2, 2], np.int64(2)])
def test_sizes_as_torch_takes_them(size):
    layer = nn.AvgPool2d(size)
    x = images((2, 3, 4, 4))
    usual = layer(x)
    with pool_by_slices(layer):
        torch.testing.assert_close(layer(input=x), usual)


def test_the_order_in_memory_is_kept():
    for last in (False, True):
        (y, g), (mine, mine_g), _ = both(nn.AvgPool2d(2), images((2, 3, 4, 6), last))
        assert (mine.stride(), mine_g.stride()) == (y.stride(), g.stride())


@pytest.mark.parametrize(
    ("layer", "shape", "dtype"),
    [
        (nn.AvgPool2d(2, stride=1), (2, 3, 4, 4), torch.float32),
        (nn.AvgPool2d(2, padding=1), (2, 3, 4, 4), torch.float32),
        (nn.AvgPool2d(2, divisor_override=3), (2, 3, 4, 4), torch.float32),
        (nn.AvgPool2d(2), (2, 3, 5, 4), torch.float32),
        (nn.AvgPool2d(2, ceil_mode=True), (2, 3, 5, 5), torch.float32),
        (nn.AvgPool2d(2), (3, 4, 4), torch.float32),
        (nn.AvgPool2d(2), (2, 3, 4, 4), torch.bfloat16),
    ],
)
def test_other_pooling_stays_with_torch(layer, shape, dtype):
    (y, g), (mine, mine_g), sliced = both(layer, images(shape, dtype=dtype))
    assert not sliced
    assert torch.equal(y, mine)
    assert torch.equal(g, mine_g)


# of torch, on forward-mode gradients
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_second_gradients():
    x = images((1, 2, 4, 6), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: _WindowMeans.apply(x, 2, 3), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: _WindowMeans.apply(x, 2, 3).square(), x)


# of torch, on forward-mode gradients
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_function_transforms():
    x, y = images((3, 2, 1, 4, 4)), images((3, 2, 1, 4, 4), seed=1)
    layer = nn.AvgPool2d(2)

    def one(x):
        return layer(x).square().sum()

    usual = torch.func.vmap(torch.func.grad(one))(x), torch.func.jvp(layer, (x[0],), (y[0],))
    with pool_by_slices(layer):
        sliced = torch.func.vmap(torch.func.grad(one))(x), torch.func.jvp(layer, (x[0],), (y[0],))
    torch.testing.assert_close(sliced, usual)


def test_the_model_is_left_as_it_was():
    own = nn.AvgPool2d(2)
    own.forward = lambda x: x + 1.0
    model = nn.Sequential(nn.AvgPool2d(2), own, nn.Conv2d(1, 1, 1))

    with pytest.raises(RuntimeError, match="channels"), pool_by_slices(model):
        model(torch.zeros(1, 2, 4, 4))
    with pool_by_slices(model):
        assert "forward" in vars(model[0])
        assert torch.equal(own(torch.zeros(1)), torch.ones(1))
    assert "forward" not in vars(model[0])
    assert torch.equal(own(torch.zeros(1)), torch.ones(1))
