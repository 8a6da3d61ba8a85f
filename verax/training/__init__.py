"""Run a mechanism: the ledger of what was released, and the training loop that writes it.

Importing this package loads nothing; each name is imported when it is first asked for, so that
reading a ledger does not need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verax.ledger import (
        DamagedLedger,
        Ledger,
        LedgerBusy,
        LedgerError,
        LeftMechanism,
        Run,
        RunOver,
    )
    from verax.training.checks.independence import MixedRecords
    from verax.training.clipping.local_update import LocalSteps
    from verax.training.diagnostics import PublicLog
    from verax.training.distributed import LostProcess
    from verax.training.fitting import Fitted, Interrupted, fit
    from verax.training.trainer import PrivateTrainer

_HOME = {
    "Fitted": "training.fitting",
    "Interrupted": "training.fitting",
    "LocalSteps": "training.clipping.local_update",
    "LostProcess": "training.distributed",
    "fit": "training.fitting",
    "MixedRecords": "training.checks.independence",
    "PrivateTrainer": "training.trainer",
    "PublicLog": "training.diagnostics",
    "DamagedLedger": "ledger",
    "LedgerError": "ledger",
    "LeftMechanism": "ledger",
    "Ledger": "ledger",
    "LedgerBusy": "ledger",
    "RunOver": "ledger",
    "Run": "ledger",
}

__all__ = [
    "DamagedLedger",
    "Fitted",
    "Interrupted",
    "Ledger",
    "LedgerBusy",
    "LedgerError",
    "LeftMechanism",
    "LocalSteps",
    "LostProcess",
    "MixedRecords",
    "PrivateTrainer",
    "PublicLog",
    "Run",
    "RunOver",
    "fit",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in."""
    if name in _HOME:
        return getattr(import_module(f"verax.{_HOME[name]}"), name)
    raise AttributeError(f"module 'verax.training' has no attribute {name!r}")
