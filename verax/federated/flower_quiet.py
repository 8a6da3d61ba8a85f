"""Import this before flwr, which reads it once: nothing goes to the makers of Flower, and logs hold troubles only."""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")
