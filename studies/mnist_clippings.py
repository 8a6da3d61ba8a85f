"""Table 3 of "Generalizing DP-SGD with shuffling and batch clipping": LeNet-5 on MNIST under three clippings.

Run it with ``python studies/mnist_clippings.py`` (five hours on one core, a quarter of an hour for
each long run); it writes docs/study-mnist.csv line by line and can be interrupted: what is in the
file already is not run again.

The paper adds noise 2Cσ with σ = 2, which is a noise multiplier of 4 here. Its learning rate is
lowered by a tenth after every epoch in which the test accuracy fell. Subsampling is Poisson here.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from verax import Batch, Individual, Mechanism, Mixed, Poisson, Shuffle
from verax.mechanism import Clipping
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER
from verax.training import PrivateTrainer
from verax.training.data.examples import Examples, accuracy, build, load
from verax.training.performance.malloc import keep_freed_blocks

DELTA = 1e-5
CELLS = [
    # the table
    "subsampling:individual:8192:8192:1:4:100:0.5:0.9:tanh",
    "shuffling:individual:8192:8192:1:4:100:0.5:0.9:tanh",
    "subsampling:mixed:30000:468:1:4:100:0.1:0.9:tanh",
    "shuffling:mixed:30000:468:1:4:100:0.1:0.9:tanh",
    "subsampling:batch:64:1:0.004:4:100:0.025:0:tanh",
    "shuffling:batch:64:1:0.004:4:100:0.025:0:tanh",
    # at the paper's learning rate and batches
    "subsampling:individual:1024:1024:12:4:100:0.025:0:tanh",
    "subsampling:individual:256:256:3:4:40:0.025:0:relu",
    "shuffling:individual:256:256:3:4:40:0.025:0:relu",
    "subsampling:mixed:512:8:0.3:4:40:0.025:0:relu",
    "shuffling:mixed:512:8:0.3:4:40:0.025:0:relu",
    "subsampling:batch:64:1:0.012:4:40:0.025:0:relu",
    "shuffling:batch:64:1:0.012:4:40:0.025:0:relu",
    # smaller batches for batch clipping
    "subsampling:batch:16:1:0.004:4:6:0.025:0:tanh",
    "subsampling:batch:64:1:0.012:4:6:0.025:0:tanh",
    # noise divided by the size of a clip-group, or none
    "subsampling:batch:64:1:0.2:0.0625:100:0.025:0:tanh",
    "subsampling:batch:64:1:1:0.0625:10:0.025:0:relu",
    "subsampling:mixed:512:8:1:0.0625:10:0.025:0:relu",
    "subsampling:batch:64:1:1000:0:10:0.025:0:relu",
    "subsampling:mixed:512:8:1000:0:10:0.025:0:relu",
]
"""All runs of docs/studies.md, as ``Cell.read`` reads them."""


@dataclass(frozen=True)
class Cell:
    """One run: how records are drawn and clipped, the optimiser and the network."""

    sampling: str
    clipping: str
    batch: int
    groups: int
    norm: float
    noise: float
    epochs: int
    rate: float
    momentum: float
    network: str

    @classmethod
    def read(cls, text: str) -> Cell:
        """From its fields, joined by colons."""
        types = {"int": int, "float": float, "str": str}
        values = zip(fields(cls), text.split(":"), strict=True)
        return cls(**{field.name: types[str(field.type)](value) for field, value in values})

    def mechanism(self, records: int) -> Mechanism:
        """What runs."""
        clipping: Clipping = {
            "individual": lambda: Individual(self.norm),
            "batch": lambda: Batch(self.norm),
            "mixed": lambda: Mixed(self.norm, self.groups),
        }[self.clipping]()
        batches = records // self.batch
        if self.sampling == "subsampling":
            return Mechanism(
                Poisson(self.batch / records, batches * self.epochs), self.noise, clipping
            )
        return Mechanism(Shuffle(batches, self.epochs), self.noise, clipping, relation="zero-out")


class Standardised(nn.Module):
    """Images about zero and of about unit variance, by the constants that everybody uses for MNIST."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.1307) / 0.3081


class ScaledTanh(nn.Module):
    """The activation of the first LeNet-5: 1.7159 tanh(2x/3)."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.7159 * torch.tanh(x * (2 / 3))


def network(name: str, data: Examples) -> nn.Module:
    """LeNet-5: that of ``verax train`` (relu), or with its first activation and pooling by the largest (tanh)."""
    if name == "relu":
        return build("lenet", data)
    if name != "tanh":
        raise ValueError(f"network must be relu or tanh, got {name!r}")
    return nn.Sequential(
        Standardised(),
        nn.Conv2d(1, 6, 5, padding=2),
        ScaledTanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        ScaledTanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        ScaledTanh(),
        nn.Linear(120, 84),
        ScaledTanh(),
        nn.Linear(84, data.classes),
    )


def run(cell: Cell, data: Examples) -> dict[str, object]:
    """Train one cell; the learning rate falls when the test accuracy does, as in the paper."""
    torch.manual_seed(0)
    model = network(cell.network, data)
    optimizer = torch.optim.SGD(model.parameters(), cell.rate, momentum=cell.momentum)
    mechanism = cell.mechanism(len(data.train[1]))
    trainer = PrivateTrainer(model, optimizer, mechanism, records=len(data.train[1]))
    loss, rounds, seen = nn.CrossEntropyLoss(), len(mechanism.sampler) // cell.epochs, [0.0]
    started = time.perf_counter()
    for batch in trainer.batches(data.train):
        trainer.step(batch, loss)
        if trainer.rounds % rounds == 0:
            seen.append(accuracy(model, data.test))
            if seen[-1] < seen[-2]:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.9
            print(f"{cell}: epoch {trainer.rounds // rounds}, accuracy {seen[-1]:.4f}", flush=True)
    epsilon = mechanism.guarantee().epsilon(DELTA)
    return asdict(cell) | {
        "accuracy": f"{100 * seen[-1]:.2f}",
        "best": f"{100 * max(seen):.2f}",
        "epsilon lower": format_bound(epsilon.lower, LOWER),
        "epsilon upper": format_bound(epsilon.upper, UPPER),
        "relation": mechanism.relation,
        "seconds": f"{time.perf_counter() - started:.0f}",
    }


def study(cells: Iterable[Cell], data: Examples, out: Path) -> None:
    """Run what is not in the file yet, and add a line for each run."""
    done = {cell for cell, _ in finished(out)} if out.exists() else set()
    for cell in cells:
        if cell in done:
            continue
        row, new = run(cell, data), not out.exists()
        with out.open("a", newline="") as file:
            writer = csv.DictWriter(file, row, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)


def finished(out: Path) -> list[tuple[Cell, dict[str, str]]]:
    """The runs in the file, with all that is known of them."""
    with out.open(newline="") as file:
        return [
            (Cell.read(":".join(row[field.name] for field in fields(Cell))), row)
            for row in csv.DictReader(file)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ":".join(field.name for field in fields(Cell))
    parser.add_argument("--cells", default=",".join(CELLS), help=f"{names}, comma separated")
    parser.add_argument("--out", type=Path, default=Path("docs/study-mnist.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    study([Cell.read(text) for text in options.cells.split(",")], load("mnist"), options.out)


if __name__ == "__main__":
    main()
