"""The data of the study on "Proactive DP": two LIBSVM files and MNIST, from the folder named by VERAX_DATA."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from verax.training.data.examples import Examples, load

DIGESTS = {
    "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    "phishing": "0cf66ef36604c393da9359b2e5d894a2df8aee31fd184633cefa138add2ef08a",
}
"""SHA-256 of the unpacked files, as published at
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/.
"""
FEATURES = {"a9a": 123, "a9a.t": 123, "phishing": 68}
RECORDS = 10_000  # what a client of the paper holds


def parse(text: str, features: int) -> tuple[Tensor, Tensor]:
    """Features and classes of a text in LIBSVM's format: ``label index:value index:value``, indices from 1.

    Positive labels are class 1, all others class 0.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    x, y = torch.zeros(len(lines), features), torch.zeros(len(lines))
    for row, (label, *pairs) in enumerate(lines):
        y[row] = float(float(label) > 0)
        indices, values = (
            zip(*(pair.split(":") for pair in pairs), strict=True) if pairs else ((), ())
        )
        places = [int(index) for index in indices]
        if any(not 1 <= place <= features for place in places):
            raise ValueError(f"record {row + 1}: indices must lie in 1 to {features}, got {places}")
        x[row, [place - 1 for place in places]] = torch.tensor([float(value) for value in values])
    return x, y


def examples(name: str) -> Examples:
    """``a9a`` or ``phishing`` with 10,000 records to train on, as in the paper, or all of ``mnist``.

    phishing has no test set: the other 1,055 records are held out. Classes of these two have the
    shape of one output.
    """
    if name == "mnist":
        return load(name)
    x, y = read(name)
    # in case the file is sorted
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, rest = order[:RECORDS], order[RECORDS:]
    x_test, y_test = (x[rest], y[rest]) if name == "phishing" else read("a9a.t")
    return Examples((x[train], y[train].unsqueeze(1)), (x_test, y_test.unsqueeze(1)), 2)


def read(name: str) -> tuple[Tensor, Tensor]:
    """One file, packed by gzip or not, from the folder libsvm below the one named by VERAX_DATA."""
    folder = os.environ.get("VERAX_DATA")
    if not folder:
        raise ValueError(
            "VERAX_DATA must name a folder with libsvm/a9a.gz, libsvm/a9a.t.gz and libsvm/phishing.gz"
        )
    path = Path(folder) / "libsvm" / f"{name}.gz"
    content = (
        gzip.decompress(path.read_bytes()) if path.exists() else path.with_suffix("").read_bytes()
    )
    if hashlib.sha256(content).hexdigest() != DIGESTS[name]:
        raise ValueError(f"{path} is not the official file (its SHA-256 differs)")
    return parse(content.decode(), FEATURES[name])
