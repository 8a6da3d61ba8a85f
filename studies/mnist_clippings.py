"""Table 3 of "Generalizing DP-SGD with shuffling and batch clipping": LeNet-5 on MNIST under three clippings.

Run it with ``python studies/mnist_clippings.py --epochs 40`` (an hour on one core); it writes docs/study-mnist.csv line
by line and can be interrupted: what is in the file already is not run again.

The paper adds noise 2Cσ with σ = 2, which is a noise multiplier of 4 here, with learning rate .025, lowered by a tenth
after every epoch in which the test accuracy fell, and the best clip norm of several. Subsampling is Poisson here.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from verax import Batch, Individual, Mechanism, Mixed, Poisson, Shuffle
from verax.mechanism import Clipping
from verax.privacy.composition import LOWER, UPPER
from verax.privacy.guarantee import shown
from verax.training import PrivateTrainer
from verax.training.examples import Examples, accuracy, build, load
from verax.training.memory import keep_freed_blocks

DELTA = 1e-5
PAPER = {
    ("subsampling", "individual"): 98.41, ("subsampling", "batch"): 98.21, ("subsampling", "mixed"): 97.50,
    ("shuffling", "individual"): 98.38, ("shuffling", "batch"): 98.33, ("shuffling", "mixed"): 96.97,
}  # fmt: skip
CELLS = ",".join(
    f"{sampling}:{cell}"
    for sampling in ("shuffling", "subsampling")
    for cell in ("individual:256:3.0", "mixed:512:0.3", "batch:64:0.012")
)
COLUMNS = [
    "sampling", "clipping", "batch", "clip norm", "noise", "epochs", "accuracy", "best", "paper",
    "epsilon lower", "epsilon upper", "relation", "seconds",
]  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    sampling: str
    clipping: str
    batch: int
    norm: float
    epochs: int
    noise: float

    def mechanism(self, records: int) -> Mechanism:
        """What runs."""
        clipping: Clipping = {
            "individual": Individual(self.norm),
            "batch": Batch(self.norm),
            "mixed": Mixed(self.norm, max(self.batch // 64, 2)),
        }[self.clipping]
        batches = records // self.batch
        if self.sampling == "subsampling":
            return Mechanism(Poisson(self.batch / records, batches * self.epochs), self.noise, clipping)
        return Mechanism(Shuffle(batches, self.epochs), self.noise, clipping, relation="zero-out")


def run(cell: Cell, data: Examples, rate: float) -> dict[str, object]:
    """Train one cell; the learning rate falls when the test accuracy does, as in the paper."""
    torch.manual_seed(0)
    model = build("lenet", data)
    optimizer = torch.optim.SGD(model.parameters(), rate)
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
    return {
        "sampling": cell.sampling, "clipping": cell.clipping, "batch": cell.batch, "clip norm": cell.norm,
        "noise": cell.noise, "epochs": cell.epochs,
        "accuracy": f"{100 * seen[-1]:.2f}", "best": f"{100 * max(seen):.2f}",
        "paper": PAPER[cell.sampling, cell.clipping] if cell.noise else "",
        "epsilon lower": shown(epsilon.lower, LOWER), "epsilon upper": shown(epsilon.upper, UPPER),
        "relation": mechanism.relation,
        "seconds": f"{time.perf_counter() - started:.0f}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--noise", type=float, default=4.0)
    parser.add_argument("--rate", type=float, default=0.025)
    parser.add_argument("--cells", default=CELLS, help="sampling:clipping:batch:norm, comma separated")
    parser.add_argument("--out", type=Path, default=Path("docs/study-mnist.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    data = load("mnist")
    cells = []
    for text in options.cells.split(","):
        sampling, clipping, batch, norm = text.split(":")
        cells.append(Cell(sampling, clipping, int(batch), float(norm), options.epochs, options.noise))
    done = set()
    if options.out.exists():
        with options.out.open() as file:
            done = {tuple(row[c] for c in COLUMNS[:6]) for row in csv.DictReader(file)}
    for cell in cells:
        key = (cell.sampling, cell.clipping, str(cell.batch), str(cell.norm), str(cell.noise), str(cell.epochs))
        if key in done:
            continue
        row = run(cell, data, options.rate)
        new = not options.out.exists()
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
