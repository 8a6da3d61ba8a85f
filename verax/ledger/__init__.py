"""The ledger: what a run released, recorded before it is released, and what it proves; no torch."""

from verax.ledger.entries import DamagedLedger, LedgerError
from verax.ledger.file import LedgerBusy
from verax.ledger.ledger import Ledger, LeftMechanism, RunOver, read
from verax.ledger.run import Run

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
