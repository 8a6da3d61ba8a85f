"""Which extra brings what is not installed."""

from __future__ import annotations

EXTRAS = {
    "cryptography": "train",
    "fastapi": "web",
    "flwr": "federated",
    "matplotlib": "figures",
    "pydantic": "web",
    "sklearn": "train",
    "starlette": "web",
    "torch": "train",
    "uvicorn": "web",
}


def missing_module(error: ModuleNotFoundError) -> str:
    """What is missing and how to get it, where Python itself says only that it is missing.

    >>> missing_module(ModuleNotFoundError("No module named 'torch'", name="torch"))
    "this needs torch, which comes with the extra train: pip install 'verax[train]'"
    """
    module = (error.name or "").partition(".")[0]
    if extra := EXTRAS.get(module):
        return (
            f"this needs {module}, which comes with the extra {extra}: pip install 'verax[{extra}]'"
        )
    return str(error)
