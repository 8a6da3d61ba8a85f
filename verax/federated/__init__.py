"""Federated training: clients and a server that exchange messages, in one or many processes.

Importing this package loads nothing; each name is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verax.federated.asynchronous import AsyncClient, AsyncServer, Diminishing, together
    from verax.federated.client import Client, Refused
    from verax.federated.embedded import Embedded
    from verax.federated.messages import BadMessage, Model, Receipt, Update, unpack
    from verax.federated.plan import Plan
    from verax.federated.server import Server
    from verax.federated.worker import put_weights, weights_of

_HOME = {
    "AsyncClient": "asynchronous",
    "AsyncServer": "asynchronous",
    "BadMessage": "messages",
    "Client": "client",
    "Diminishing": "asynchronous",
    "Embedded": "embedded",
    "Model": "messages",
    "Plan": "plan",
    "Receipt": "messages",
    "Refused": "client",
    "Server": "server",
    "Update": "messages",
    "put_weights": "worker",
    "together": "asynchronous",
    "unpack": "messages",
    "weights_of": "worker",
}

__all__ = [
    "AsyncClient",
    "AsyncServer",
    "BadMessage",
    "Client",
    "Diminishing",
    "Embedded",
    "Model",
    "Plan",
    "Receipt",
    "Refused",
    "Server",
    "Update",
    "put_weights",
    "together",
    "unpack",
    "weights_of",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in."""
    if name in _HOME:
        return getattr(import_module(f"verax.federated.{_HOME[name]}"), name)
    raise AttributeError(f"module 'verax.federated' has no attribute {name!r}")
