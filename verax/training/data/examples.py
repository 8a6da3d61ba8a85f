"""Data and models to try private training on: what ``verax train`` knows by name.

Features are scaled by public constants only: the data's own mean and spread would leak.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from verax import checks
from verax.training.data.download import obtain

_MNIST_AT = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# The parts of MNIST, each a file "<part>-ubyte.gz", and the SHA-256 of that file.
_MNIST = {
    "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_LARGEST = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True, eq=False)
class Examples:
    """Records to train on and records to test on: features, and classes from 0."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    public: bool = True
    """Whether everybody knows how many records and classes there are."""

    @property
    def shape(self) -> torch.Size:
        """The shape of one record's features."""
        return self.train[0].shape[1:]


def load(name: str) -> Examples:
    """``digits`` (from scikit-learn), ``mnist`` (from VERAX_DATA, or fetched), or a CSV file."""
    if name == "digits":
        return _digits()
    if name == "mnist":
        return _mnist()
    if name.endswith(".csv"):
        return _csv(Path(name))
    raise ValueError(f"data must be digits, mnist or the path of a .csv file, got {name!r}")


def _digits() -> Examples:
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.from_numpy(found.images).float().unsqueeze(1) / 16.0
    y = torch.from_numpy(found.target).long()
    held = torch.arange(len(y)) % 5 == 4
    return Examples((x[~held], y[~held]), (x[held], y[held]), 10)


def _mnist() -> Examples:
    named = ((f"{part}-ubyte.gz", digest) for part, digest in _MNIST.items())
    arrays = [_idx(obtain(f"mnist/{name}", _MNIST_AT + name, digest)) for name, digest in named]
    x, y, x_test, y_test = (torch.from_numpy(array) for array in arrays)
    train, test = (
        (x.float().unsqueeze(1) / 255.0, y.long()) for x, y in ((x, y), (x_test, y_test))
    )
    return Examples(train, test, 10)


def _idx(packed: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The array of an IDX file."""
    content = gzip.decompress(packed)
    rank = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape).copy()


def _csv(path: Path) -> Examples:
    """Numbers with a header; the last column is the class. About a fifth is for testing."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"data must be a readable CSV file, got {path}: {error}") from error
    if len(rows) < 6:
        raise ValueError(
            f"data must have a header and at least 5 records, got {len(rows)} lines in {path}"
        )
    names = rows[0][1]
    if len(names) < 2:
        raise ValueError(
            f"data must have two or more columns with commas between them, got one in {path}, "
            f"{names[0][:40]!r}: write the file anew if its columns are parted by something else"
        )
    if all(map(_number, names)):
        raise ValueError(
            f"data must begin with a line of names, got numbers in the first line of {path}"
        )
    table = np.array([_numbers(path, line, names, row) for line, row in rows[1:]])
    classes, y = np.unique(table[:, -1], return_inverse=True)
    if len(classes) < 2 or not all(map(float.is_integer, classes.tolist())):
        raise ValueError(
            "data must have classes that are two or more different whole numbers in the last "
            f"column, {names[-1]!r}, got {len(classes)} different numbers such as {classes[0]:g} "
            f"in {path}: give each class a number, and round what is measured"
        )
    x, labels = torch.from_numpy(table[:, :-1]).float(), torch.from_numpy(y).long()
    held = _held_out(table)
    if held.all() or not held.any():
        raise ValueError(f"data must have more records to hold some out, got {len(y)} in {path}")
    return Examples((x[~held], labels[~held]), (x[held], labels[held]), len(classes), public=False)


def _numbers(path: Path, line: int, names: list[str], row: list[str]) -> list[float]:
    """The numbers of a line; errors show only the cell that is no number."""
    if len(row) != len(names):
        raise ValueError(
            f"{path}, line {line}: {len(names)} cells are needed, one for each name, got {len(row)}"
        )
    for name, cell in zip(names, row, strict=True):
        if not _number(cell) or not abs(float(cell)) <= _LARGEST:
            feature = name != names[-1]
            hint = (
                "turn words into numbers, fill in what is missing"
                if feature
                else "give each class a number"
            )
            raise ValueError(
                f"{path}, line {line}: every cell must be a number that single precision can hold, "
                f"got {cell[:40]!r} in column {name!r}: {hint}"
            )
    return [float(cell) for cell in row]


def _held_out(table: NDArray[np.float64]) -> Tensor:
    """Which records are for testing. Each decides by itself: one more or less moves no other."""
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in table)
    return torch.tensor([int.from_bytes(digest, "big") % 5 == 4 for digest in digests])


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# --- models ---------------------------------------------------------------------------------------


def _logistic(shape: torch.Size, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: torch.Size, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 256), nn.ReLU(), nn.Linear(256, classes)
    )


def _lenet(shape: torch.Size, classes: int) -> nn.Module:
    if len(shape) != 3 or shape[0] != 1:
        other = "cnn" if len(shape) == 3 else "logistic or mlp"
        raise ValueError(
            f"model lenet is for images in one channel, got shape {tuple(shape)}; use {other}"
        )
    scaled = [] if shape == (1, 28, 28) else [nn.Upsample((28, 28), mode="bilinear")]
    first = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)]
    second = [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return nn.Sequential(*scaled, *first, *second, *dense)


def _cnn(shape: torch.Size, classes: int) -> nn.Module:
    if len(shape) != 3:
        raise ValueError(
            f"model cnn is for images, got records of shape {tuple(shape)}; use logistic or mlp"
        )
    widths = (32, 64, 64, 128)
    layers: list[nn.Module] = []
    for before, width in zip((shape[0], *widths), widths, strict=False):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
        layers += [nn.AvgPool2d(2)] if len(layers) < 6 and shape[-1] >= 8 else []
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)]
    return nn.Sequential(*layers, *head)


MODELS: dict[str, Callable[[torch.Size, int], nn.Module]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "lenet": _lenet,
    "cnn": _cnn,
}


def build(name: str, examples: Examples) -> nn.Module:
    """A model by name, for these records.

    >>> import torch
    >>> data = Examples(
    ...     (torch.zeros(4, 3), torch.zeros(4).long()),
    ...     (torch.zeros(1, 3), torch.zeros(1).long()),
    ...     2,
    ... )
    >>> sum(p.numel() for p in build("logistic", data).parameters())
    8
    """
    return MODELS[checks.choice("model", name, tuple(MODELS))](examples.shape, examples.classes)


def accuracy(model: nn.Module, examples: tuple[Tensor, Tensor]) -> float:
    """The share of records whose class the model finds."""
    was = model.training
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(dim=1) == y).sum())
            for x, y in zip(examples[0].split(1024), examples[1].split(1024), strict=True)
        )
    model.train(was)
    return right / len(examples[1])
