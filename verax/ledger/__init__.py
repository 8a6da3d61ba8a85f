"""The ledger: what a run released, recorded before it is released, and what it proves.

It needs no torch. Importing this package loads nothing: names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verax.ledger.entries import DamagedLedger, LedgerError
    from verax.ledger.file import LedgerBusy
    from verax.ledger.ledger import Ledger, LeftMechanism, RunOver, read
    from verax.ledger.run import Run

_HOME = {
    "DamagedLedger": "entries",
    "Ledger": "ledger",
    "LedgerBusy": "file",
    "LedgerError": "entries",
    "LeftMechanism": "ledger",
    "Run": "run",
    "RunOver": "ledger",
    "read": "ledger",
}

__all__ = [
    "DamagedLedger",
    "Ledger",
    "LedgerBusy",
    "LedgerError",
    "LeftMechanism",
    "Run",
    "RunOver",
    "read",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in."""
    if name in _HOME:
        return getattr(import_module(f"verax.ledger.{_HOME[name]}"), name)
    raise AttributeError(f"module 'verax.ledger' has no attribute {name!r}")
