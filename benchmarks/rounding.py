"""How much one record changes the computed sum of the others' clipped gradients, by rounding alone.

Run it with ``python benchmarks/rounding.py``. A sum of real numbers would not change at all;
docs/noise.md, section 7.
"""

from __future__ import annotations

import torch
from torch import nn
from training import MODELS, data

from verax import Individual
from verax.training.clipping.clipper import Clipper
from verax.training.clipping.flat_buffer import FlatBuffer
from verax.training.gradients.loss import PerExampleLoss
from verax.training.gradients.norms import ROOM

NORM = 1e-3  # every gradient is clipped


def moved(name: str, records: int) -> float:
    """The change beyond the record's own part, in clip norms: the largest of some numbers of records taken away."""
    torch.manual_seed(0)
    model, (x, y) = MODELS[name][0](), data(name, records)
    clipper = Clipper(model, PerExampleLoss(nn.CrossEntropyLoss()), Individual(NORM))

    def total(start: int, end: int) -> torch.Tensor:
        into = FlatBuffer(model.parameters())
        clipper.add((x[start:end], y[start:end]), end - start, into)
        return into.buffer.double()

    whole = total(0, records)
    return max(
        float((whole - total(0, records - away) - total(records - away, records)).norm()) / NORM
        for away in (1, 2, 3)
    )


def main() -> None:
    torch.set_num_threads(1)
    print("| model | batch | moved, clip norms | part of the room |\n|---|---|---|---|")
    for name in MODELS:
        for records in (64, 256, 1024):
            found = moved(name, records)
            print(f"| {name} | {records} | {found:.1e} | {found / ROOM:.2f} |", flush=True)


if __name__ == "__main__":
    main()
