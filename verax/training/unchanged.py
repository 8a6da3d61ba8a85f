"""What a forward pass must not do: change weights, or keep something of the data in a buffer, where no noise hides it.

Both would be released with the model. A buffer may change if it does so in the same way whatever the data are: a
counter, or the power iteration of a spectral norm, which depends on the weights alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from verax.training.records import Losses, copies, of_each, repeatable

Held = list[tuple[dict[str, Any], str, Tensor, int]]
"""Parameters and buffers: the module's dictionary and key of each, the tensor, and its version."""


class Unchanged:
    """Compares a model's weights and buffers before and after a batch went through it."""

    def __init__(self, model: nn.Module, losses: Losses) -> None:
        self._model, self._losses = model, losses
        self._harmless: set[str] = set()

    def look(self) -> Held:
        """As they are now."""
        found: Held = []
        for module in self._model.modules():
            if getattr(module, "max_norm", None) is not None and isinstance(module, nn.Embedding | nn.EmbeddingBag):
                raise ValueError(
                    f"{self._named(module)} has max_norm={module.max_norm!r}: it shortens the rows of the tokens that "
                    "occur, in place and without noise, and so shows which do; use max_norm=None"
                )
            for held in (module._parameters, module._buffers):
                found += [(held, key, x, x._version) for key, x in held.items() if x is not None]
        return found

    def check(self, before: Held, batch: Any, records: int, weights: bool) -> None:
        """Refuse what changed since, with ``weights`` also of the parameters."""
        changed = [
            (held, key, isinstance(x, nn.Parameter))
            for held, key, x, version in before
            if x._version != version or held.get(key) is not x
        ]
        for held, key, parameter in changed:
            name = self._name(held, key)
            if parameter and weights:
                raise ValueError(
                    f"{name} was changed by the model's forward pass, where no noise is added: leave weights to the "
                    "optimizer. This copy of the model must not be released"
                )
            if not parameter and name not in self._harmless:
                if name in self._following(batch, records):
                    raise ValueError(
                        f"the buffer {name} is changed by the model's forward pass according to the data, and no noise "
                        "protects it: keep such statistics out of the model. This copy of it must not be released"
                    )
                self._harmless.add(name)

    def _following(self, batch: Any, records: int) -> set[str]:
        """Names of the buffers that another batch changes in another way; they are left as they were."""
        first: Callable[[Tensor], Tensor] = partial(copies, record=0) if records > 1 else torch.zeros_like
        usual, other = self._after(batch), self._after(of_each(batch, records, first))
        return {name for name, x in usual.items() if not torch.equal(x, other[name])}

    def _after(self, batch: Any) -> dict[str, Tensor]:
        places = [(module._buffers, key) for module in self._model.modules() for key in module._buffers]
        kept = [(held, key, held[key], x.clone()) for held, key in places if (x := held[key]) is not None]
        try:
            repeatable(lambda: self._losses(self._model, batch))
            return {name: x.clone() for name, x in self._model.named_buffers()}
        finally:
            for held, key, x, value in kept:
                held[key] = x
                x.copy_(value)

    def _name(self, held: dict[str, Any], key: str) -> str:
        """The name of a parameter or buffer in the model."""
        for prefix, module in self._model.named_modules():
            if held is module._parameters or held is module._buffers:
                return f"{prefix}.{key}" if prefix else key
        return key

    def _named(self, module: nn.Module) -> str:
        names = (name for name, one in self._model.named_modules() if one is module)
        return f"{next(names) or 'the model'} ({type(module).__name__})"
