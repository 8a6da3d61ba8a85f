"""Layer rules: per-example gradients from a layer's input and its output's gradient.

To teach verax a new layer, add a module here with a rule: a function of the layer, its input and
the gradient of its output that yields a factored gradient for each trainable parameter. Layers
without a rule are differentiated by ``torch.func``.
"""

from verax.training.gradients.layer_rules import (
    attention,
    convolution,
    embedding,
    linear,
    normalisation,
    recurrent,
)
from verax.training.gradients.layer_rules.base import DECOMPOSITIONS, RULES, rule_for

__all__ = [
    "DECOMPOSITIONS",
    "RULES",
    "attention",
    "convolution",
    "embedding",
    "linear",
    "normalisation",
    "recurrent",
    "rule_for",
]
