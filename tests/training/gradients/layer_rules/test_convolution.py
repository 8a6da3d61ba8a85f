"""Convolutions: gradients of the weight that are formed, and those that are not, are the same."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402

from verax.training.clipping.clip_groups import group_gradients  # noqa: E402
from verax.training.gradients.factors import ConvolutionGradients, UnfoldedConvolution  # noqa: E402
from verax.training.gradients.layer_rules import RULES  # noqa: E402

torch.set_num_threads(1)
RECORDS = 6
CONVOLUTIONS = {
    "1d": (nn.Conv1d(5, 7, 3, padding=1), (5, 9)),
    "2d": (nn.Conv2d(4, 40, 3, padding=1), (4, 5, 6)),
    "3d": (nn.Conv3d(2, 3, 2, stride=2), (2, 4, 4, 4)),
    "strided": (nn.Conv2d(3, 5, (3, 2), stride=2, dilation=2, padding=(1, 0)), (3, 9, 8)),
    "same": (nn.Conv2d(3, 33, (2, 4), padding="same", bias=False), (3, 5, 5)),
    "around": (nn.Conv2d(3, 5, 3, padding=2, padding_mode="circular"), (3, 4, 4)),
}


def factors(module, x, g):
    return dict(RULES[type(module)](module, x, g))


def case(name, images=()):
    torch.manual_seed(0)
    module, shape = CONVOLUTIONS[name]
    x = torch.randn(RECORDS, *images, *shape)
    out = module(x.flatten(0, len(images)))
    return module, x, torch.randn_like(out).unflatten(0, (RECORDS, *images))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("images", [(), (3,)], ids=["one image", "three images"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_that_are_not_formed_are_those_that_are(monkeypatch, name, images):
    module, x, g = case(name, images)
    found = []
    for large, kind in ((1e9, ConvolutionGradients), (0.0, UnfoldedConvolution)):
        monkeypatch.setattr("verax.training.gradients.layer_rules.convolution._LARGE", large)
        found.append(factors(module, x, g)[module.weight])
        assert isinstance(found[-1], kind)
    numbers_formed, not_formed = found
    torch.testing.assert_close(
        not_formed.explicit(), numbers_formed.explicit(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(not_formed.squares(), numbers_formed.squares(), rtol=1e-5, atol=0.0)
    weights, totals = torch.rand(RECORDS), [torch.ones_like(module.weight) for _ in found]
    for factor, total in zip(found, totals, strict=True):
        factor.add(weights, total)
    torch.testing.assert_close(*totals, rtol=1e-4, atol=1e-5)
    groups = [
        group_gradients({module.weight: factor}, [1, 3, 2])[module.weight] for factor in found
    ]
    torch.testing.assert_close(*(group.explicit() for group in groups), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*(group.squares() for group in groups), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("places", "kind"),
    [(2, UnfoldedConvolution), (4, UnfoldedConvolution), (8, ConvolutionGradients)],
)
def test_large_weights_at_few_places_are_not_formed(places, kind):
    module = nn.Conv2d(64, 128, 3, padding=1)
    x, g = torch.randn(RECORDS, 64, places, places), torch.randn(RECORDS, 128, places, places)
    for layout in (torch.contiguous_format, torch.channels_last):
        found = factors(
            module, x.contiguous(memory_format=layout), g.contiguous(memory_format=layout)
        )
        assert isinstance(found[module.weight], kind)


def test_no_gradient_is_formed_of_a_separable_convolution(monkeypatch):
    monkeypatch.setattr("verax.training.gradients.layer_rules.convolution._LARGE", 0.0)
    module = nn.Conv2d(8, 8, 3, groups=8)
    assert isinstance(
        factors(module, torch.randn(2, 8, 4, 4), torch.randn(2, 8, 2, 2))[module.weight],
        ConvolutionGradients,
    )


def test_norms_are_right_where_places_cancel():
    """The same patch everywhere, and gradients that add up to a thousandth of their size."""
    torch.manual_seed(0)
    module = nn.Conv2d(256, 512, 1, bias=False)
    x = torch.randn(RECORDS, 256, 1, 1).expand(RECORDS, 256, 4, 4).contiguous()
    g = torch.randn(RECORDS, 512, 4, 4)
    g = g - g.mean(dim=(2, 3), keepdim=True) + 1e-3 * torch.randn(RECORDS, 512, 1, 1)
    found = factors(module, x, g)[module.weight]
    assert isinstance(found, UnfoldedConvolution)
    exact = (
        torch.bmm(g.double().flatten(2), x.double().flatten(2).transpose(1, 2))
        .flatten(1)
        .norm(dim=1)
    )
    torch.testing.assert_close(found.squares().sqrt().double(), exact, rtol=1e-6, atol=0.0)
