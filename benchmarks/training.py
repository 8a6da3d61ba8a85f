"""Private training beside plain SGD and every mode of Opacus: ratios of the time of one step, on one core.

Run it with ``python benchmarks/training.py`` (``--models``, ``--batches``, ``--seconds`` to choose,
``--no-opacus``); ``--memory`` shows peak memory in place of times: what a process of its own needs
beyond model, data and libraries.

All variants of a cell run interleaved in one process, and the fastest of their repetitions counts,
since the rest is the machine's noise. Plain SGD, verax and Opacus each choose their own micro-batch
out of the same list; the allocator keeps freed blocks for all of them alike. Opacus and verax run
without noise here; the noise has its own columns.

"--models resnet --batches 64" is a ResNet-18, which takes too long for the usual table.

verax lays images out with their channels last by itself. "plain, last" is plain SGD by somebody who
does so too.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
}
if any(os.environ.get(name) != value for name, value in _KEEP.items()):
    os.environ.update(_KEEP, OMP_NUM_THREADS="1")
    os.execv(sys.executable, [sys.executable, *sys.argv])

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed  # noqa: E402
from verax.randomness import Source  # noqa: E402
from verax.training import PrivateTrainer  # noqa: E402
from verax.training.gradients.norms import row_norms  # noqa: E402

MICRO = (16, 32, 64, 128, 256, 1024)
# seconds; such a step is repeated before it is timed: who went before it would still be in the
# cache
SHORT = 5e-3
MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp")


class Transformer(nn.Module):
    """An encoder of width 128 with 2 layers on 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(1000, 128), nn.Embedding(64, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand_as(x)
        return self.head(self.layers(self.embed(x) + self.place(places)).mean(dim=1))


def logistic() -> nn.Module:
    return nn.Linear(123, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def cnn() -> nn.Module:
    def block(into: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(into, out, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32),
        nn.AvgPool2d(2),
        *block(32, 64),
        nn.AvgPool2d(2),
        *block(64, 64),
        nn.AvgPool2d(2),
        *block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.ways = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False),
            nn.GroupNorm(8, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.GroupNorm(8, out),
        )
        past = (
            []
            if into == out
            else [nn.Conv2d(into, out, 1, stride, bias=False), nn.GroupNorm(8, out)]
        )
        self.past = nn.Sequential(*past)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.ways(x) + self.past(x))


def resnet() -> nn.Module:
    """ResNet-18 for small images, with group norm."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    first = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(8, 64), nn.ReLU()
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "logistic": (logistic, (123,), 2),
    "mlp": (mlp, (1, 28, 28), 10),
    "lenet": (lenet, (1, 28, 28), 10),
    "cnn": (cnn, (3, 32, 32), 10),
    "transformer": (Transformer, (64,), 2),
    "resnet": (resnet, (3, 32, 32), 10),
}
USUAL = ("logistic", "mlp", "lenet", "cnn", "transformer")
IMAGES = ("lenet", "cnn", "resnet")


def data(name: str, records: int) -> tuple[Tensor, Tensor]:
    _, shape, classes = MODELS[name]
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (records,), generator=rng)
    if name == "transformer":
        return torch.randint(0, 1000, (records, *shape), generator=rng), y
    return torch.randn(records, *shape, generator=rng), y


# --- variants: each yields before a step and after it; drawing the batch is not part of the step --

Stepper = Iterator[None]


def plain(name: str, records: int, micro: int, last: bool = False) -> Stepper:
    model = MODELS[name][0]()
    optimizer, everything = torch.optim.SGD(model.parameters(), 1e-3), data(name, records)
    order = torch.arange(records)
    while True:
        x, y = (part[order] for part in everything)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        yield
        optimizer.zero_grad()
        for start in range(0, records, micro):
            loss = functional.cross_entropy(
                model(x[start : start + micro]), y[start : start + micro], reduction="sum"
            )
            (loss / records).backward()
        optimizer.step()
        yield


def ours(
    name: str, records: int, micro: int | None, clipping: Individual | Batch | Mixed
) -> Stepper:
    model = MODELS[name][0]()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    mechanism = Mechanism(Deterministic(batches=1, epochs=10**6), 0.0, clipping, relation="replace")
    trainer = PrivateTrainer(
        model, optimizer, mechanism, **({} if micro is None else {"micro_batch": micro})
    )
    loss = nn.CrossEntropyLoss()
    for batch in trainer.batches(data(name, records)):
        yield
        trainer.step(batch, loss)
        yield


def opacus(name: str, records: int, micro: int, mode: str) -> Stepper:
    from opacus import PrivacyEngine

    model = MODELS[name][0]()
    optimizer, (x, y) = torch.optim.SGD(model.parameters(), 1e-3), data(name, records)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=records)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        criterion=nn.CrossEntropyLoss(),
    )
    model, optimizer = made[0], made[1]
    loss = made[2] if mode.startswith("ghost") else nn.CrossEntropyLoss()
    while True:
        yield
        for start in range(0, records, micro):
            optimizer.signal_skip_step(do_skip=start + micro < records)
            loss(model(x[start : start + micro]), y[start : start + micro]).backward()
            optimizer.step()
            optimizer.zero_grad()
        yield


def seconds(step: Stepper) -> float:
    next(step)
    start = time.perf_counter()
    next(step)
    return time.perf_counter() - start


def best_micro(make: Callable[[int], Stepper], records: int) -> tuple[Stepper, int]:
    """The variant at its best micro-batch."""
    tried = []
    for micro in sorted({min(m, records) for m in MICRO}):
        step = make(micro)
        once = max(seconds(step), seconds(step))
        tried.append(
            (min(seconds(step) for _ in range(min(max(int(0.5 / once), 5), 200))), micro, step)
        )
    _, micro, step = min(tried, key=lambda entry: entry[0])
    return step, micro


def cell(name: str, records: int, budget: float, modes: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, tuple[Stepper, int]] = {
        "plain": best_micro(lambda micro: plain(name, records, micro), records)
    }
    if name in IMAGES:
        made["plain, last"] = best_micro(
            lambda micro: plain(name, records, micro, last=True), records
        )
    made["verax"] = best_micro(lambda micro: ours(name, records, micro, Individual(1.0)), records)
    for label, clipping in (
        ("default", Individual(1.0)),
        ("batch", Batch(1.0)),
        ("mixed 4", Mixed(1.0, 4)),
    ):
        made[label] = ours(name, records, None, clipping), 0
    failures = {}
    for mode in modes:
        try:
            made[mode] = best_micro(
                lambda micro, mode=mode: opacus(name, records, micro, mode), records
            )
        except Exception as error:  # noqa: BLE001  whatever a peer cannot do is a result
            failures[mode] = type(error).__name__
    times: dict[str, list[float]] = {label: [] for label in made}
    for step, _ in made.values():
        seconds(step), seconds(step)
    started = time.perf_counter()
    while time.perf_counter() - started < budget or len(times["plain"]) < 7:
        for label, (step, _) in made.items():
            if times[label] and times[label][-1] < SHORT:
                seconds(step)
            times[label].append(seconds(step))
    base = min(times["plain"])
    row: dict[str, Any] = {
        "plain ms": 1e3 * base,
        "micro": f"{made['plain'][1]}/{made['verax'][1]}",
    }
    row.update({label: min(t) / base for label, t in times.items() if label != "plain"})
    return row | failures | noise(sum(p.numel() for p in MODELS[name][0]().parameters()), base)


def noise(size: int, base: float) -> dict[str, float]:
    """Time of the secure noise: as a ratio to torch.randn, and as a part of a plain step."""
    source, buffer = Source.system(), np.zeros(size, dtype=np.float32)
    # noise is drawn ahead in blocks of 2^16, so that is part of every timing
    calls = max(2**18 // size, 1)

    def once(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) / calls

    both = (lambda: source.add_gaussian(buffer, 1.0)), (lambda: torch.randn(size))
    mine, theirs = zip(*[[once(work) for work in both] for _ in range(15)], strict=True)
    return {"noise/randn": min(mine) / min(theirs), "noise/plain": min(mine) / base}


def memory(name: str, records: int, variant: str) -> float:
    """Megabytes that six steps add to what was there after building everything, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", f"{name}:{records}:{variant}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def peak(name: str, records: int, variant: str) -> float:
    """Needs Linux, which can be told to forget the highest mark so far.

    A few steps of both on eight records come first: the code that they load is as large as what
    small models need. What they freed is given back.
    """
    for step in (plain(name, 8, 8), ours(name, 8, None, Individual(1.0))):
        for _ in range(6):
            next(step)
    del step
    # rows of eight records are too short for numpy's library, those to come are not
    row_norms(torch.ones(2, 2**17))
    ctypes.CDLL(None).malloc_trim(0)
    step = (
        ours(name, records, None, Individual(1.0))
        if variant == "verax"
        else plain(name, records, int(variant))
    )
    next(step)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _highest()
    for _ in range(11):
        next(step)
    return (_highest() - before) / 1024.0


def _highest() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def show_memory(names: list[str], batches: list[int]) -> None:
    print("| model | batch | plain SGD, 64 at a time, MB | 256 at a time | all at once | verax |")
    print("|---|---|---|---|---|---|")
    for name in names:
        for records in batches:
            found = [
                memory(name, records, variant) for variant in ("64", "256", str(records), "verax")
            ]
            print(
                f"| {name} | {records} |",
                " | ".join(f"{megabytes:.0f}" for megabytes in found),
                "|",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(USUAL), help="of " + ", ".join(MODELS))
    parser.add_argument("--batches", default="64,256,1024")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each cell")
    parser.add_argument("--opacus", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--memory", action="store_true", help="peak memory in place of times")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        name, records, variant = options.peak.split(":")
        print(peak(name, int(records), variant))
        return
    names, batches = (
        options.models.split(","),
        [int(records) for records in options.batches.split(",")],
    )
    if options.memory:
        show_memory(names, batches)
        return
    warnings.simplefilter("ignore")
    modes = MODES[:4] if options.opacus else ()
    columns = [
        "plain ms",
        "plain, last",
        "micro",
        "verax",
        "default",
        "batch",
        "mixed 4",
        *modes,
        "noise/randn",
        "noise/plain",
    ]
    print("| model | batch |", " | ".join(columns), "|")
    print("|---|---|" + "---|" * len(columns))
    for name in names:
        for records in batches:
            row = {"plain, last": ""} | cell(name, records, options.seconds, modes)
            shown = [f"{row[c]:.2f}" if isinstance(row[c], float) else str(row[c]) for c in columns]
            print(f"| {name} | {records} |", " | ".join(shown), "|", flush=True)


if __name__ == "__main__":
    main()
