"""Settings that flwr reads when imported: no telemetry, and logs of warnings only."""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")
