"""The layer rule of embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from verax.training.gradients.factors import EmbeddingRows
from verax.training.gradients.layer_rules.base import Factors, rule


@rule(nn.Embedding)
def embedding(module: nn.Embedding, x: Tensor, g: Tensor) -> Factors:
    """The gradient of each position goes to the row that it looked up."""
    g = g.reshape(len(x), -1, g.shape[-1])
    index = x.reshape(len(x), -1)
    if module.padding_idx is not None:
        g = g * (index != module.padding_idx).unsqueeze(-1)
    yield module.weight, EmbeddingRows(index, g, module.weight.shape)
