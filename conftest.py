"""Settings shared by all tests: reproducible hypothesis, and no doctests for extras that are not installed."""

from __future__ import annotations

import signal
from importlib.util import find_spec

from hypothesis import settings

# jobs in the background inherit that, and our children would
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NEEDS = {
    "randomness/*": "cryptography",
    "training/*": "torch",
    "federated/*": "torch",
    "federated/flower/*": "flwr",
    "web/*": "fastapi",
}

collect_ignore_glob = [
    f"verax/{files}" for files, library in NEEDS.items() if find_spec(library) is None
]

settings.register_profile("verax", deadline=None, derandomize=True)
settings.load_profile("verax")
