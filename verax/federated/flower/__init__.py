"""Clients and servers of :mod:`verax.federated` as apps of Flower.

Only what Flower documents is used: ``flwr.app``, ``flwr.clientapp``, ``flwr.serverapp`` and the
commands ``flower-superlink``, ``flower-supernode`` and ``flwr``. Importing this package loads
nothing; each name is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verax.federated.flower.client import client_app, relay_app
    from verax.federated.flower.keys import new_certificates, new_key, read_public_keys
    from verax.federated.flower.server import Waiting, run_rounds, server_app
    from verax.federated.flower.service import ClientService, serve

_HOME = {
    "ClientService": "service",
    "Waiting": "server",
    "client_app": "client",
    "new_certificates": "keys",
    "new_key": "keys",
    "read_public_keys": "keys",
    "relay_app": "client",
    "run_rounds": "server",
    "serve": "service",
    "server_app": "server",
}

__all__ = [
    "ClientService",
    "Waiting",
    "client_app",
    "new_certificates",
    "new_key",
    "read_public_keys",
    "relay_app",
    "run_rounds",
    "serve",
    "server_app",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in."""
    if name in _HOME:
        return getattr(import_module(f"verax.federated.flower.{_HOME[name]}"), name)
    raise AttributeError(f"module 'verax.federated.flower' has no attribute {name!r}")
