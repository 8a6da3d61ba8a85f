"""Data split among clients: dealt out, by writer, by a table's column, by hospital."""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verax import checks
from verax.training.data.download import checked
from verax.training.data.examples import Examples, load

QMNIST = (
    "qmnist-train-labels-idx2-int.gz",
    "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# What a value is divided by: round numbers above what is medically usual, chosen without the data.
_SCALES = (100.0, 1.0, 4.0, 200.0, 600.0, 1.0, 2.0, 220.0, 1.0, 6.0, 3.0, 3.0, 7.0)


@dataclass(frozen=True, eq=False)
class Split:
    """Records to train on, client after client, and records to test on, of no client."""

    examples: Examples
    sizes: NDArray[np.int64]


def split(name: str, clients: int | None = None, by: str | None = None) -> Split:
    """Data by name, split among clients.

    Args:
        name: ``digits``, ``mnist``, ``heart`` (the last two from the folder named by VERAX_DATA),
            or a CSV file.
        clients: how many clients records are dealt out to; not with ``by``, nor for the four
            hospitals of ``heart``.
        by: "writer" for MNIST, or the column of a CSV file that names the client of each record.
    """
    if name == "heart":
        if clients is not None or by is not None:
            raise ValueError(
                "clients and by must not be given for data 'heart', "
                "whose clients are four hospitals"
            )
        return _heart()
    examples = load(name)
    if by is None:
        return dealt(examples, checks.count("clients", 20 if clients is None else clients))
    if clients is not None:
        raise ValueError(
            f"clients must not be given with by={by!r}, which tells how many there are"
        )
    if name == "mnist":
        checks.choice("by", by, ("writer",))
        return owned(examples, _writers())
    if not name.endswith(".csv"):
        raise ValueError(
            f"by must not be given for data {name!r}, where nothing names a client; "
            "use mnist or a CSV file"
        )
    return _by_column(examples, Path(name), by)


def dealt(examples: Examples, clients: int) -> Split:
    """Records dealt out in turn, so that clients differ by one record at most.

    >>> data = Examples(
    ...     (torch.zeros(10, 3), torch.zeros(10).long()),
    ...     (torch.zeros(1, 3), torch.zeros(1).long()),
    ...     2,
    ... )
    >>> dealt(data, 4).sizes.tolist()
    [3, 3, 2, 2]
    """
    records = len(examples.train[1])
    if clients > records:
        raise ValueError(f"clients must be at most the number of records, {records}, got {clients}")
    return owned(examples, np.arange(records) % clients)


def owned(examples: Examples, owners: NDArray[np.generic]) -> Split:
    """Records put together by their owners."""
    order = np.argsort(owners, kind="stable")
    _, sizes = np.unique(owners, return_counts=True)
    chosen = torch.from_numpy(order)
    x, y = examples.train
    return Split(
        Examples((x[chosen], y[chosen]), examples.test, examples.classes), sizes.astype(np.int64)
    )


def _folder() -> Path:
    folder = os.environ.get("VERAX_DATA")
    if not folder:
        raise ValueError(
            "this data is read from the folder named by the variable VERAX_DATA, which is not set"
        )
    return Path(folder)


def _writers() -> NDArray[np.int64]:
    """The writer of each of MNIST's training images, from the labels of QMNIST."""
    name, digest = QMNIST
    packed = checked(_folder() / "qmnist-labels" / name, digest)
    table = np.frombuffer(gzip.decompress(packed), dtype=">i4", offset=12).reshape(-1, 8)
    return table[:, 2].astype(np.int64)


def _by_column(examples: Examples, path: Path, by: str) -> Split:
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file))[:-1]
    if by not in names:
        raise ValueError(f"by must be one of the columns {', '.join(map(repr, names))}, got {by!r}")
    column = names.index(by)
    rest = [i for i in range(len(names)) if i != column]
    (x, y), (x_test, y_test) = examples.train, examples.test
    owners: NDArray[np.generic] = x[:, column].numpy()
    return owned(Examples((x[:, rest], y), (x_test[:, rest], y_test), examples.classes), owners)


def _heart() -> Split:
    """Heart disease in four hospitals; every fifth patient tests, missing values are 0."""
    x: list[Tensor] = []
    y: list[Tensor] = []
    owners: list[int] = []
    for number, hospital in enumerate(HOSPITALS):
        path = _folder() / "uci-heart-4centers" / f"processed.{hospital}.data"
        try:
            rows = [line.split(",") for line in path.read_text().split()]
        except OSError as error:
            raise ValueError(
                f"data 'heart' needs {path}, which cannot be read: {error.strerror}"
            ) from error
        for *cells, verdict in rows:
            known = [float(cell != "?") for cell in cells]
            values = [
                0.0 if cell == "?" else float(cell) / s
                for cell, s in zip(cells, _SCALES, strict=True)
            ]
            x.append(torch.tensor(values + known))
            y.append(torch.tensor(int(float(verdict) > 0)))
            owners.append(number)
    held = torch.arange(len(y)) % 5 == 4
    features, target = torch.stack(x), torch.stack(y)
    examples = Examples((features[~held], target[~held]), (features[held], target[held]), 2)
    return owned(examples, np.array(owners)[~held.numpy()])
